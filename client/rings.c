#include "client/rings.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/region.h"

#define VAIN_YIELDS 4u /* that did not let the daemon run: only sleep does */

#define SLEEP_NS 100000000 /* at the bells; a daemon that dies is found out then */
#define NS_PER_S 1000000000

static int map_bells(struct rings *r, int fd, struct error *e)
{
    struct stat status;
    void *bells;

    if (fd < 0 || fstat(fd, &status) < 0 || (uint64_t)status.st_size < sizeof(*r->bells))
        return error_set(e, ERROR_PROTOCOL, "the daemon opened the rings without bells");
    bells = mmap(NULL, sizeof(*r->bells), PROT_READ, MAP_SHARED, fd, 0);
    if (bells == MAP_FAILED)
        return error_set_errno(e, errno, "map the bells");
    r->bells = bells;
    return 0;
}

static int rings_share(struct ruccl_conn *c, int memfd, int64_t deadline, struct error *e)
{
    struct rings *r = &c->rings;
    struct request q = { .kind = REQUEST_RINGS_OPEN };
    struct answer answer = { .fd = -1 };
    void *memory = mmap(NULL, sizeof(*r->memory), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    int result;

    if (memory == MAP_FAILED)
        return error_set_errno(e, errno, "map the rings");
    result = conn_ask(c, &q, memfd, deadline, &answer, e);
    if (result == 0)
        result = map_bells(r, answer.fd, e);
    if (answer.fd >= 0)
        close(answer.fd);
    if (result < 0)
        munmap(memory, sizeof(*r->memory));
    else
        r->memory = memory;
    return result;
}

/* FNV-1a; two communicators at one bell only wake each other in vain. */
static uint32_t bell_of(const char *id)
{
    uint32_t hash = 2166136261u;

    for (; *id; id++)
        hash = (hash ^ (uint8_t)*id) * 16777619u;
    return 1 + hash % ((1u << RING_BELL_BITS) - 1);
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
    r->daemon = daemon;
    r->mail = atomic_load(&daemon->mail);
    r->patience.most_ns = (int64_t)spin_us * 1000;
    r->bell = bell_of("");
    ring_arm(&r->replies, BELL_NONE);
    return 0;
}

void rings_close(struct rings *r)
{
    if (r->memory)
        munmap(r->memory, sizeof(*r->memory));
    if (r->bells)
        munmap((void *)r->bells, sizeof(*r->bells));
    r->memory = NULL;
    r->bells = NULL;
}

static bool look(struct rings *r, int64_t deadline)
{
    int64_t now = conn_now();
    const int64_t ns = patience_ns(&r->patience, now);
    const int64_t until = MIN(now + ns, deadline);
    struct ring_watch daemon = { 0 };

    if (ns == 0)
        return false;

    ring_disarm(&r->replies);
    while (ring_is_empty(&r->replies)) {
        if (now >= until || ring_consumer_is_kept_waiting(&r->requests, &daemon, VAIN_YIELDS))
            return false;
        sched_yield();
        now = conn_now();
    }
    return true;
}

bool rings_look(struct rings *r, int64_t deadline)
{
    const bool found = look(r, deadline);

    patience_note(&r->patience, found);
    return found;
}

/* ---- bells */

void rings_hear(struct rings *r, const char *id)
{
    if (r->bell != BELL_NONE)
        r->bell = bell_of(id);
}

uint32_t rings_mail(const struct rings *r)
{
    return r->memory ? atomic_load_explicit(&r->daemon->mail, memory_order_acquire) : 0;
}

bool rings_have_mail(const struct rings *r)
{
    return rings_mail(r) != r->mail;
}

void rings_take_mail(struct rings *r, uint32_t mail)
{
    r->mail = mail;
}

/* What rings before this is for the caller to find. */
static struct futex_waitv wait_for(const _Atomic uint32_t *bell)
{
    return (struct futex_waitv){ .val = atomic_load_explicit(bell, memory_order_acquire),
                                 .uaddr = (uintptr_t)bell,
                                 .flags = FUTEX_32 };
}

int rings_sleep(struct rings *r, uint32_t bell, uint32_t nudges, int64_t deadline)
{
    const int64_t until = MIN(deadline, conn_now() + SLEEP_NS);
    struct timespec t = { .tv_sec = until / NS_PER_S, .tv_nsec = until % NS_PER_S };
    struct futex_waitv waits[] = { wait_for(&r->bells->rung[bell]), wait_for(&r->daemon->bell),
                                   wait_for(&r->nudges) };

    waits[2].val = nudges;
    waits[2].flags |= FUTEX_PRIVATE_FLAG;
    if (rings_have_mail(r) || !ring_arm(&r->replies, bell))
        return 0;
    if (syscall(SYS_futex_waitv, waits, ARRAY_SIZE(waits), 0, &t, CLOCK_MONOTONIC) >= 0 ||
        errno == EAGAIN || errno == EINTR)
        return 0;
    return errno == ETIMEDOUT ? RINGS_TIMEOUT : -errno;
}

void rings_nudge(struct rings *r)
{
    atomic_fetch_add(&r->nudges, 1);
    syscall(SYS_futex, &r->nudges, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
