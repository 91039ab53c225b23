/*
 * The daemon's end: killed, stopped or told to stop while clients wait in every way there is. All
 * of them return, soon and with the reason.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/cost.h"
#include "tests/unit/unit.h"

#define PATIENCE_US (STAGE_PATIENCE_MS * 1000ll)

static struct harness harness;
static struct stage *stage;

static void raise_curtain(const char *const *options)
{
    harness_start(&harness, options);
    stage = stage_open(&harness);
}

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* ---- ways of waiting */

struct seat {
    struct ruccl_conn *conn;
    struct ruccl_comm comm;
};

/* As rank, in a communicator whose last rank never does anything. */
static struct seat take_seat(struct stage *s, struct part *me)
{
    struct seat seat = { .conn = part_connect(s, me) };

    seat.comm = part_join(s, me, seat.conn, 0, me->rank, s->nparts, NULL);
    return seat;
}

/* What every way ends with: the reason holds, and what is left can be let go of. */
static void leave_seat(struct part *me, struct seat seat)
{
    char id[RUCCL_ID_BYTES];

    part_report(me, ruccl_new_id(seat.conn, id));
    ruccl_close(seat.conn);
}

static void wait_in_call(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);

    part_reach(me, 1);
    part_report(me, ruccl_barrier(seat.comm));
    leave_seat(me, seat);
}

static void wait_with_deadline(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct ruccl_work *work;

    part_ok(me, ruccl_barrier_async(seat.comm, &work), "barrier");
    part_check(me, ruccl_work_wait(work, 1000) == RUCCL_PENDING, "a deadline of a millisecond");
    part_reach(me, 1);
    part_report(me, ruccl_work_wait(work, PATIENCE_US));
    ruccl_work_release(work);
    leave_seat(me, seat);
}

static void wait_in_tests(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct ruccl_work *work;
    int r;

    part_ok(me, ruccl_barrier_async(seat.comm, &work), "barrier");
    part_reach(me, 1);
    while ((r = ruccl_work_test(work)) == RUCCL_PENDING)
        poll(NULL, 0, 1);
    part_report(me, r);
    ruccl_work_release(work);
    leave_seat(me, seat);
}

static void wait_in_loop(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct pollfd loop = { .fd = ruccl_fd(seat.conn), .events = POLLIN };
    struct ruccl_work *work;
    int r;

    part_ok(me, ruccl_barrier_async(seat.comm, &work), "barrier");
    part_reach(me, 1);
    while ((r = ruccl_dispatch(seat.conn)) == 0)
        part_check(me, poll(&loop, 1, STAGE_PATIENCE_MS) == 1, "the descriptor becoming readable");
    part_report(me, r);
    part_check(me, ruccl_work_test(work) == r, "the work being told the same");
    ruccl_work_release(work);
    leave_seat(me, seat);
}

static void wait_for_message(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    int32_t value;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };

    part_reach(me, 1);
    part_report(me, ruccl_recv(seat.comm, &t, s->nparts - 1, 7));
    leave_seat(me, seat);
}

static void wait_in_join(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct ruccl_comm comm;

    part_id(s, me, seat.conn, 1, true);
    part_reach(me, 1);
    part_report(me, ruccl_join(seat.conn, s->ids[1].text, 0, 2, NULL, &comm));
    leave_seat(me, seat);
}

/* Its own work is not done: leaving waits for it, and is no failure where the work alone fails. */
static void wait_in_leave(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct ruccl_work *work;
    int left;

    part_ok(me, ruccl_barrier_async(seat.comm, &work), "barrier");
    part_reach(me, 1);
    left = ruccl_leave(seat.comm);
    part_report(me, ruccl_work_test(work));
    part_check(me, left == 0 || left == me->reports[0].result, "leaving being told the same");
    ruccl_work_release(work);
    leave_seat(me, seat);
}

struct waiter {
    struct seat seat;
    uint32_t tag, from;
    int result;
    struct ruccl_error error;
    pthread_t id;
};

static void *wait_in_thread(void *context)
{
    struct waiter *w = context;
    int32_t value;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };

    w->result = ruccl_recv(w->seat.comm, &t, w->from, w->tag);
    w->error = *ruccl_last_error();
    return NULL;
}

static void wait_in_threads(struct stage *s, struct part *me)
{
    struct waiter waiters[4];
    struct seat seat = take_seat(s, me);

    for (uint32_t i = 0; i < ARRAY_SIZE(waiters); i++) {
        waiters[i] = (struct waiter){ .seat = seat, .tag = i, .from = s->nparts - 1 };
        pthread_create(&waiters[i].id, NULL, wait_in_thread, &waiters[i]);
    }
    part_reach(me, 1);
    part_report(me, ruccl_barrier(seat.comm));
    for (uint32_t i = 0; i < ARRAY_SIZE(waiters); i++) {
        pthread_join(waiters[i].id, NULL);
        part_check(me, waiters[i].result == me->reports[0].result, "all threads being told");
    }
    leave_seat(me, seat);
}

/* Never takes part, only waits for news. The last rank. */
static void wait_idly(struct stage *s, struct part *me)
{
    struct seat seat = take_seat(s, me);
    struct pollfd loop = { .fd = ruccl_fd(seat.conn), .events = POLLIN };
    int r;

    part_reach(me, 1);
    while ((r = ruccl_dispatch(seat.conn)) == 0)
        part_check(me, poll(&loop, 1, STAGE_PATIENCE_MS) == 1, "the descriptor becoming readable");
    part_report(me, r);
    leave_seat(me, seat);
}

static const role_fn ways[] = {
    wait_in_call, wait_with_deadline, wait_in_tests,   wait_in_loop, wait_for_message,
    wait_in_join, wait_in_leave,      wait_in_threads, wait_idly,
};

/* They must know how many they are before the first is forked. */
static void add_all(const role_fn *roles, uint32_t n)
{
    for (uint32_t rank = 0; rank < n; rank++)
        stage_reserve(stage, rank);
    for (uint32_t rank = 0; rank < n; rank++)
        stage_play(stage, &stage->parts[rank], roles[rank]);
}

static void expect_all(uint32_t report, enum ruccl_code code, const char *words, int64_t since_us)
{
    for (uint32_t i = 0; i < stage->nparts; i++)
        stage_expect(&stage->parts[i], report, code, words, since_us);
}

/* Until everybody is blocked in what it has begun, but for who only looks now and then; with the
 * daemon, where that is not `stopped`. */
static void settle(const role_fn *roles, bool stopped)
{
    pid_t pids[ACTORS_MAX + 1];
    uint32_t n = 0;

    for (uint32_t i = 0; i < stage->nparts; i++)
        if (roles[i] != wait_in_tests)
            pids[n++] = stage->parts[i].pid;
    if (!stopped)
        pids[n++] = harness.pid;
    cost_await_rest(pids, n);
}

TEST(whoever_waits_is_told_when_the_daemon_is_killed)
{
    int64_t since_us;

    raise_curtain(NULL);
    add_all(ways, ARRAY_SIZE(ways));
    stage_await_all(stage, 1);
    settle(ways, false);
    since_us = stage_now_us();
    harness_kill(&harness);
    stage_dismiss_all(stage);
    expect_all(0, RUCCL_DAEMON_LOST, harness.socket, since_us);
    expect_all(1, RUCCL_DAEMON_LOST, harness.socket, since_us);
}

#define LONG_COUNT  (2u << 20)
#define LONG_TRIES  12u
#define LONGER_EACH 3u /* tries */

/* Of the try. Where others have the CPU, the operation may be over before anybody has seen that it
 * runs: such a try does not count, and later ones take longer. */
static uint64_t long_count;

/* Two ranks' operation, an element at a time, that is behind its first chunk. */
static struct ruccl_work *part_begin_long(struct stage *s, struct part *me,
                                          struct ruccl_conn **ret_conn)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);
    struct ruccl_region *region;
    struct ruccl_work *work;
    struct ruccl_progress progress;

    part_ok(me, ruccl_alloc(conn, long_count * sizeof(int32_t), &region), "alloc");
    const struct ruccl_tensor t = vector_of(region, long_count);

    part_ok(
        me,
        ruccl_all_reduce_async(ruccl_bounded(comm, 2 * sizeof(int32_t)), &t, &t, RUCCL_SUM, &work),
        "all_reduce");
    do {
        part_check(me, ruccl_work_wait(work, 1000) >= 0, "the operation going on");
        part_ok(me, ruccl_work_progress(work, &progress), "progress");
    } while (!progress.chunks_done);
    part_reach(me, 1);
    *ret_conn = conn;
    return work;
}

static void wait_for_data(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn;
    struct ruccl_work *work = part_begin_long(s, me, &conn);

    part_report(me, ruccl_work_wait(work, PATIENCE_US));
    ruccl_work_release(work);
    ruccl_close(conn);
}

/* Until a scene was in the middle of the operation; scene(): whether it was. */
static void play_while_data_moves(bool (*scene)(void))
{
    for (uint32_t i = 0; i < LONG_TRIES; i++) {
        long_count = (uint64_t)LONG_COUNT << i / LONGER_EACH;
        raise_curtain(NULL);
        stage_add(stage, 0, wait_for_data);
        stage_add(stage, 1, wait_for_data);
        if (scene())
            return;
        assert_int_equal(drop_curtain(NULL), 0);
    }
    fail_msg("the operation was over each time");
}

static bool kill_daemon_while_data_moves(void)
{
    bool over = false;
    int64_t since_us;

    stage_await_all(stage, 1);
    since_us = stage_now_us();
    harness_kill(&harness);
    stage_dismiss_all(stage);
    for (uint32_t i = 0; i < stage->nparts; i++)
        over |= stage->parts[i].reports[0].result == 0;
    if (!over)
        expect_all(0, RUCCL_DAEMON_LOST, harness.socket, since_us);
    return !over;
}

TEST(whoever_waits_for_data_is_told_when_the_daemon_is_killed)
{
    play_while_data_moves(kill_daemon_while_data_moves);
}

/* ---- waiting for an answer that a stopped daemon does not give */

static void ask_for_memory(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region;

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_alloc(conn, 100000, &region));
    ruccl_close(conn);
}

/* It sends without waiting until the socket is full. */
static void release_and_ask_for_more(struct stage *s, struct part *me)
{
    static struct ruccl_region *regions[1000];
    struct ruccl_conn *conn = part_connect(s, me);
    int memfd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    part_ok(me, ftruncate(memfd, 4096), "ftruncate");
    part_ok(me, fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), "seal");
    for (size_t i = 0; i < ARRAY_SIZE(regions); i++)
        part_ok(me, ruccl_register(conn, memfd, 4096, &regions[i]), "register");
    close(memfd);
    part_reach(me, 1);
    part_wait(me, 1);
    for (size_t i = 0; i < ARRAY_SIZE(regions); i++)
        ruccl_release(regions[i]);
    part_report(me, ruccl_alloc(conn, 1, &regions[0]));
    ruccl_close(conn);
}

static void ask_for_id(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    char id[RUCCL_ID_BYTES];

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_new_id(conn, id));
    ruccl_close(conn);
}

static void ask_to_join(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm;
    char id[RUCCL_ID_BYTES];

    part_ok(me, ruccl_new_id(conn, id), "new_id");
    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_join(conn, id, 0, 1, NULL, &comm));
    ruccl_close(conn);
}

static void ask_in_plain_memory(struct stage *s, struct part *me)
{
    static int32_t values[100000];
    const struct ruccl_tensor t = {
        .dtype = RUCCL_I32, .naxes = 1, .shape = { ARRAY_SIZE(values) }, .data = values
    };
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, me->number, 0, 1, NULL);

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_all_reduce(comm, &t, &t, RUCCL_SUM));
    ruccl_close(conn);
}

static void ask_to_leave(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, me->number, 0, 1, NULL);

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_leave(comm));
    ruccl_close(conn);
}

static void ask_to_abort(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, me->number, 0, 1, NULL);

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_abort(comm, "enough"));
    ruccl_close(conn);
}

static void ask_to_connect(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn;

    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_connect(s->socket, NULL, &conn));
}

static const role_fn questions[] = {
    ask_for_memory, release_and_ask_for_more, ask_for_id,
    ask_to_join,    ask_in_plain_memory,      ask_to_leave,
    ask_to_abort,   ask_to_connect,
};

TEST(whoever_asks_a_daemon_that_does_not_answer_is_told_of_its_death)
{
    int64_t since_us;

    raise_curtain(NULL);
    add_all(questions, ARRAY_SIZE(questions));
    stage_await_all(stage, 1);
    stage_freeze(harness.pid);
    stage_cue_all(stage, 1);
    settle(questions, true);
    since_us = stage_now_us();
    harness_kill(&harness);
    stage_dismiss_all(stage);
    expect_all(0, RUCCL_DAEMON_LOST, harness.socket, since_us);
}

TEST(a_daemon_that_was_only_stopped_answers_later)
{
    static const role_fn roles[] = { wait_in_tests, wait_in_call };
    struct part *waiting;

    raise_curtain(NULL);
    add_all(roles, ARRAY_SIZE(roles));
    waiting = &stage->parts[1];
    stage_await_all(stage, 1);
    stage_freeze(harness.pid);
    poll(NULL, 0, 300);
    kill(harness.pid, SIGCONT);
    stage_dismiss(waiting);
    assert_int_equal(waiting->reports[0].result, 0);
}

/* ---- told to stop */

/* That it ends by itself, in good order. */
static void expect_end(void)
{
    const int64_t deadline_us = stage_now_us() + PATIENCE_US;
    int status;

    while (waitpid(harness.pid, &status, WNOHANG) == 0) {
        if (stage_now_us() > deadline_us)
            fail_msg("the daemon does not end");
        poll(NULL, 0, 1);
    }
    harness.pid = 0;
    assert_int_equal(status, 0);
}

/* Asks for something new meanwhile. */
static void come_late(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me), *another;
    struct ruccl_comm comm;
    char id[RUCCL_ID_BYTES];
    int r;

    part_ok(me, ruccl_new_id(conn, id), "new_id");
    part_reach(me, 1);
    part_wait(me, 1);
    /* nobody listens any more: it has begun to stop */
    while ((r = ruccl_connect(s->socket, NULL, &another)) != -RUCCL_SYSTEM) {
        if (r == 0)
            ruccl_close(another);
        poll(NULL, 0, 1);
    }
    part_report(me, r);
    part_report(me, ruccl_join(conn, id, 0, 1, NULL, &comm));
    part_report(me, ruccl_new_id(conn, id));
    part_reach(me, 2);
}

static bool stop_daemon_while_data_moves(void)
{
    const struct part *late = stage_add(stage, 0, come_late);
    int64_t since_us;
    bool over;

    stage_await_all(stage, 1);
    since_us = stage_now_us();
    kill(harness.pid, SIGTERM);
    stage_cue_all(stage, 1);
    stage_await(&stage->parts[2], 2);
    over = stage->parts[0].nreports > 0;
    stage_dismiss_all(stage);
    expect_end();
    assert_int_equal(stage->parts[0].reports[0].result, 0);
    assert_int_equal(stage->parts[1].reports[0].result, 0);
    if (over)
        return false;
    stage_expect(late, 0, RUCCL_SYSTEM, harness.socket, since_us);
    stage_expect(late, 1, RUCCL_DAEMON_STOPPING, "stopping", since_us);
    stage_expect(late, 2, RUCCL_DAEMON_STOPPING, "stopping", since_us);
    return true;
}

TEST(a_daemon_told_to_stop_finishes_what_runs_and_begins_nothing)
{
    play_while_data_moves(stop_daemon_while_data_moves);
}

#define DRAIN_US 300000

TEST(what_never_completes_is_ended_by_the_limit)
{
    int64_t since_us;

    raise_curtain((const char *const[]){ "--set", "drain_timeout=300ms", NULL });
    add_all(ways, ARRAY_SIZE(ways));
    stage_await_all(stage, 1);
    settle(ways, false);
    since_us = stage_now_us();
    kill(harness.pid, SIGTERM);
    stage_dismiss_all(stage);
    expect_end();
    expect_all(0, RUCCL_DAEMON_STOPPING, "told to stop", since_us + DRAIN_US);
    for (uint32_t i = 0; i < stage->nparts; i++)
        assert_true(stage->parts[i].reports[0].at_us >= since_us + DRAIN_US);
}

TEST(idle_clients_are_told_at_once)
{
    static const role_fn roles[] = { wait_idly, wait_idly };
    int64_t since_us;

    raise_curtain(NULL);
    add_all(roles, ARRAY_SIZE(roles));
    stage_await_all(stage, 1);
    since_us = stage_now_us();
    kill(harness.pid, SIGTERM);
    stage_dismiss_all(stage);
    expect_end();
    expect_all(0, RUCCL_DAEMON_STOPPING, "told to stop", since_us);
    expect_all(1, RUCCL_DAEMON_STOPPING, "told to stop", since_us);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(whoever_waits_is_told_when_the_daemon_is_killed),
        CLAIM(whoever_waits_for_data_is_told_when_the_daemon_is_killed),
        CLAIM(whoever_asks_a_daemon_that_does_not_answer_is_told_of_its_death),
        CLAIM(a_daemon_that_was_only_stopped_answers_later),
        CLAIM(a_daemon_told_to_stop_finishes_what_runs_and_begins_nothing),
        CLAIM(what_never_completes_is_ended_by_the_limit),
        CLAIM(idle_clients_are_told_at_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
