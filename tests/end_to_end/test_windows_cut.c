/*
 * What ends a collective in the middle whose memory passes through windows: a death, an abort, a
 * rank that stands still. Whoever copies is told by name, and nothing of it is left.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/cost.h"
#include "tests/unit/unit.h"

#define MIB        (1024u * 1024)
#define LONG_BYTES (HARNESS_SANITIZED ? 64 * MIB : 256 * MIB)
#define COUNT      (LONG_BYTES / sizeof(int32_t))
#define TIMEOUT_US (HARNESS_SANITIZED ? 8000000u : 4000000u)
#define TRIES      20u

static struct harness harness;
static struct stage *stage;

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* ---- the ranks: 0 watches, from shared memory; 1 and 2 copy */

static uint64_t timeout_us; /* of the scene; 0: the usual one */
static uint64_t budget;     /* bytes; 0: none */

static struct ruccl_comm join(struct stage *s, struct part *me, struct ruccl_conn *conn)
{
    const struct ruccl_join_options options = { .label = "job", .timeout_us = timeout_us };
    const struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 3, &options);

    return budget ? ruccl_bounded(comm, budget) : comm;
}

/* Cue 2: abort, in the middle. */
static void play_watcher(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_alloc(me, conn, LONG_BYTES);
    const struct ruccl_tensor t = vector_of(region, COUNT);
    struct ruccl_comm comm = join(s, me, conn);
    struct ruccl_progress progress;
    struct ruccl_work *work;
    int r;

    memset(ruccl_region_data(region), 1, LONG_BYTES);
    part_reach(me, 1);
    part_wait(me, 1);
    part_ok(me, ruccl_all_reduce_async(comm, &t, &t, RUCCL_SUM, &work), "all_reduce");
    do {
        r = ruccl_work_wait(work, 200);
        part_ok(me, ruccl_work_progress(work, &progress), "progress");
        atomic_store(&me->total, progress.chunks_total);
        atomic_store(&me->done, progress.chunks_done);
        if (r == RUCCL_PENDING && atomic_load(&me->cue) == 2)
            part_ok(me, ruccl_abort(comm, "enough"), "abort");
    } while (r == RUCCL_PENDING);
    part_report(me, r);
    ruccl_work_release(work);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

static void play_copier(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = join(s, me, conn);
    int32_t *data = malloc(LONG_BYTES);
    const struct ruccl_tensor t = {
        .dtype = RUCCL_I32, .naxes = 1, .shape = { COUNT }, .data = data
    };

    part_check(me, data != NULL, "memory");
    memset(data, 1, LONG_BYTES);
    part_reach(me, 1);
    part_wait(me, 1);
    part_report(me, ruccl_all_reduce(comm, &t, &t, RUCCL_SUM));
    part_ok(me, ruccl_leave(comm), "leave");
    free(data);
    ruccl_close(conn);
}

/* ---- the director */

static void raise_curtain(uint64_t timeout, uint64_t bytes)
{
    timeout_us = timeout;
    budget = bytes;
    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    stage_add(stage, 0, play_watcher);
    stage_add(stage, 1, play_copier);
    stage_add(stage, 2, play_copier);
    stage_await_all(stage, 1);
    stage_cue_all(stage, 1);
}

static void await_middle(void)
{
    const struct part *watcher = &stage->parts[0];
    const struct timespec moment = { .tv_nsec = 50000 };
    const int64_t deadline = stage_now_us() + STAGE_PATIENCE_MS * 1000ll;

    while (atomic_load(&watcher->done) == 0 ||
           atomic_load(&watcher->done) * 20 < atomic_load(&watcher->total)) {
        if (stage_now_us() > deadline)
            fail_msg("the operation is at chunk %llu of %llu",
                     (unsigned long long)atomic_load(&watcher->done),
                     (unsigned long long)atomic_load(&watcher->total));
        nanosleep(&moment, NULL);
    }
}

/* Whether the first `n` were in the middle when it ended. The operation may have been the faster
 * one: it ended for one of them, or its last chunk was done when it was cut short. */
static bool in_the_middle(uint32_t n)
{
    const struct part *watcher = &stage->parts[0];

    for (uint32_t i = 0; i < n; i++)
        if (stage->parts[i].reports[0].result == 0)
            return false;
    return watcher->done > 0 && watcher->done < watcher->total;
}

static void expect_idle(void)
{
    struct cost before;

    poll(NULL, 0, 200);
    cost_await_rest(&harness.pid, 1);
    before = cost_of(harness.pid);
    poll(NULL, 0, 1000);
    cost_expect_idle("the daemon", harness.pid, &before, 1);
}

static void expect_nothing_left(void)
{
    stage_expect_nothing_left(stage, &harness);
    expect_idle();
}

/* Until a scene was played in the middle of the operation; scene(): whether it was. */
static void play(bool (*scene)(void), uint64_t timeout, uint64_t bytes)
{
    for (uint32_t i = 0; i < TRIES; i++) {
        raise_curtain(timeout, bytes);
        await_middle();
        if (scene()) {
            expect_nothing_left();
            return;
        }
        stage_dismiss_all(stage);
        assert_int_equal(drop_curtain(NULL), 0);
    }
    fail_msg("the operation was over each time");
}

static bool kill_one(void)
{
    struct part *victim = &stage->parts[2];
    const int64_t killed_us = stage_now_us();
    char words[64];

    stage_kill(victim);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    if (!in_the_middle(2))
        return false;
    snprintf(words, sizeof(words), "rank 2 (pid %d on |died", (int)victim->pid);
    stage_expect(&stage->parts[0], 0, RUCCL_RANK_LOST, words, killed_us);
    stage_expect(&stage->parts[1], 0, RUCCL_RANK_LOST, words, killed_us);
    assert_int_equal(stage->parts[1].reports[0].error.ranks[0], 2);
    return true;
}

TEST(a_killed_rank_is_named_to_those_who_copy)
{
    play(kill_one, 0, 0);
}

TEST(a_killed_rank_is_named_under_a_budget_too)
{
    play(kill_one, 0, 500000);
}

static bool abort_it(void)
{
    const int64_t aborted_us = stage_now_us();

    stage_cue(&stage->parts[0], 2);
    stage_dismiss_all(stage);
    if (!in_the_middle(3))
        return false;
    for (uint32_t i = 0; i < 3; i++)
        stage_expect(&stage->parts[i], 0, RUCCL_ABORTED, "aborted by rank 0|enough", aborted_us);
    return true;
}

TEST(an_abort_ends_it_for_those_who_copy)
{
    play(abort_it, 0, 0);
}

static bool stop_one(void)
{
    struct part *victim = &stage->parts[2];
    const int64_t stopped_us = stage_now_us();
    char words[96];
    bool middle;

    stage_freeze(victim->pid);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    kill(victim->pid, SIGCONT); /* and it is told as well */
    stage_dismiss(victim);
    middle = in_the_middle(3);
    snprintf(words, sizeof(words), "timeout after|its memory is waited for: rank 2 (pid %d on ",
             (int)victim->pid);
    for (uint32_t i = 0; middle && i < 3; i++) {
        stage_expect(&stage->parts[i], 0, RUCCL_TIMEOUT, words, stopped_us + TIMEOUT_US);
        assert_int_equal(stage->parts[i].reports[0].error.nranks, 1);
        assert_int_equal(stage->parts[i].reports[0].error.ranks[0], 2);
    }
    return middle;
}

TEST(a_stopped_rank_times_out_by_name)
{
    play(stop_one, TIMEOUT_US, 0);
}

TEST(it_ends_well_where_nothing_happens)
{
    raise_curtain(0, 0);
    stage_dismiss_all(stage);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(stage->parts[i].reports[0].result, 0);
    expect_nothing_left();
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(it_ends_well_where_nothing_happens),
        CLAIM(a_killed_rank_is_named_to_those_who_copy),
        CLAIM(a_killed_rank_is_named_under_a_budget_too),
        CLAIM(an_abort_ends_it_for_those_who_copy),
        CLAIM(a_stopped_rank_times_out_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
