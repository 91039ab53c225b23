/* An idle daemon with idle clients uses no CPU: at first, and after work. */
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/cost.h"
#include "tests/unit/unit.h"

#define CLIENTS     8u
#define IDLE_S      5   /* twice */
#define SETTLE_MS   200 /* for what is left of the work before */
#define WORK_ROUNDS 200

static struct harness harness;
static struct stage *stage;

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* ---- the clients */

static int bell; /* an eventfd, a semaphore: ends the idling */

/* Half of them idle in the library, in a call that waits for the last rank; half outside of it. */
static void idle(struct part *me, struct ruccl_comm comm, uint32_t scene)
{
    int32_t value = 0;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };
    eventfd_t rung;

    part_reach(me, scene);
    if (me->rank % 2 == 0) {
        part_ok(me, ruccl_recv(comm, &t, CLIENTS - 1, 0), "recv");
        return;
    }
    part_check(me, eventfd_read(bell, &rung) == 0, "the bell ringing");
    for (uint32_t to = 0; me->rank == CLIENTS - 1 && to < CLIENTS; to += 2)
        part_ok(me, ruccl_send(comm, &t, to, 0), "send");
}

static void play_client(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, CLIENTS, NULL);
    struct ruccl_region *region;

    part_ok(me, ruccl_alloc(conn, 1 << 20, &region), "alloc");
    const struct ruccl_tensor t = {
        .dtype = RUCCL_F32, .naxes = 1, .shape = { 1 << 18 }, .region = region
    };

    if (me->rank % 4 < 2) /* where those sleep who also have a loop is not where others do */
        part_check(me, ruccl_fd(conn) >= 0, "a descriptor for a loop, which shall cost nothing");
    idle(me, comm, 1);
    for (uint32_t round = 0; round < WORK_ROUNDS; round++)
        part_ok(me, ruccl_all_reduce(comm, &t, &t, RUCCL_MAX), "all_reduce");
    idle(me, comm, 2);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

/* ---- the daemon and its clients, while they idle */

static void expect_all_idle(void)
{
    struct cost daemon, clients[CLIENTS];
    pid_t pids[CLIENTS + 1] = { harness.pid };

    for (uint32_t i = 0; i < CLIENTS; i++)
        pids[i + 1] = stage->parts[i].pid;
    poll(NULL, 0, SETTLE_MS);
    cost_await_rest(pids, CLIENTS + 1);
    daemon = cost_of(harness.pid);
    for (uint32_t i = 0; i < CLIENTS; i++)
        clients[i] = cost_of(stage->parts[i].pid);
    poll(NULL, 0, IDLE_S * 1000);
    cost_expect_idle("the daemon", harness.pid, &daemon, IDLE_S);
    for (uint32_t i = 0; i < CLIENTS; i++)
        cost_expect_idle("a client", stage->parts[i].pid, &clients[i], IDLE_S);
}

TEST(idle_clients_and_their_daemon_use_no_cpu)
{
    bell = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    for (uint32_t rank = 0; rank < CLIENTS; rank++)
        stage_add(stage, rank, play_client);
    for (uint32_t scene = 1; scene <= 2; scene++) {
        stage_await_all(stage, scene);
        expect_all_idle();
        eventfd_write(bell, CLIENTS / 2);
    }
    stage_dismiss_all(stage);
    close(bell);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(idle_clients_and_their_daemon_use_no_cpu, drop_curtain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
