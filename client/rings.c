#include "client/rings.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/region.h"

#define MISSES_MAX   16u
#define HALVINGS_MAX 4u
#define TRIAL_NS     (1 << 21) /* out of every ... */
#define TRIALS_NS    (1 << 24)
#define PATIENCE     4u /* yields that did not let the daemon run: only sleep does */

static int rings_share(struct ruccl_conn *c, int memfd, int64_t deadline, struct error *e)
{
    struct rings *r = &c->rings;
    struct request q = { .kind = REQUEST_RINGS_OPEN };
    void *memory = mmap(NULL, sizeof(*r->memory), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    int result;

    if (memory == MAP_FAILED)
        return error_set_errno(e, errno, "map the rings");
    result = conn_ask(c, &q, memfd, deadline, NULL, e);
    if (result < 0)
        munmap(memory, sizeof(*r->memory));
    else
        r->memory = memory;
    return result;
}

int rings_open(struct ruccl_conn *c, const struct daemon_rings *daemon, uint32_t spin_us,
               int64_t deadline, struct error *e)
{
    struct rings *r = &c->rings;
    int memfd, result;

    result = memfd_new(sizeof(*r->memory), &memfd, e);
    if (result < 0)
        return result;
    result = rings_share(c, memfd, deadline, e);
    close(memfd);
    if (result < 0)
        return result;
    r->requests = (struct ring_out){ .messages = &r->memory->requests, .state = &daemon->requests };
    r->replies = (struct ring_in){ .messages = &daemon->replies, .state = &r->memory->replies };
    r->spin_ns = (int64_t)spin_us * 1000;
    ring_arm(&r->replies);
    return 0;
}

void rings_close(struct rings *r)
{
    if (r->memory)
        munmap(r->memory, sizeof(*r->memory));
    r->memory = NULL;
}

/* Alone one of many would learn nothing, since those that sleep slow it down: so all who go by the
 * same clock try again at the same times. */
static bool is_trial(int64_t now)
{
    return now % TRIALS_NS < TRIAL_NS;
}

/* Where answers are slower than a look, as with many more ranks than CPUs, with large tensors or
 * other nodes, looking takes from those who work: half as long after each in vain, then only now
 * and again. */
static int64_t time_to_look(const struct rings *r, int64_t now)
{
    if (is_trial(now))
        return r->spin_ns;
    return r->misses < MISSES_MAX ? r->spin_ns >> MIN(r->misses, HALVINGS_MAX) : 0;
}

static bool look(struct rings *r, int64_t deadline)
{
    const int64_t now = conn_now();
    const int64_t ns = time_to_look(r, now);
    const int64_t until = MIN(now + ns, deadline);
    struct ring_watch daemon = { 0 };

    if (ns == 0)
        return false;

    ring_disarm(&r->replies);
    while (ring_is_empty(&r->replies)) {
        if (conn_now() >= until || ring_consumer_is_kept_waiting(&r->requests, &daemon, PATIENCE))
            return false;
        sched_yield();
    }
    return true;
}

bool rings_wait(struct rings *r, int64_t deadline)
{
    const bool found = look(r, deadline);

    r->misses = found ? 0 : r->misses + 1;
    return found || !ring_arm(&r->replies);
}
