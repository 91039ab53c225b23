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
#include "tests/unit/unit.h"

#define MIB        (1024u * 1024)
#define LONG_BYTES (HARNESS_SANITIZED ? 64 * MIB : 256 * MIB)
#define COUNT      (LONG_BYTES / sizeof(int32_t))
#define TIMEOUT_US (HARNESS_SANITIZED ? 6000000u : 3000000u)

static struct harness harness;
static struct stage *stage;

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* ---- the ranks: 0 watches, from shared memory; 1 and 2 copy */

static struct ruccl_comm join(struct stage *s, struct part *me, struct ruccl_conn *conn)
{
    const struct ruccl_join_options options = { .label = "job", .timeout_us = TIMEOUT_US };

    return part_join(s, me, conn, 0, me->rank, 3, &options);
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

static void raise_curtain(void)
{
    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    stage_add(stage, 0, play_watcher);
    stage_add(stage, 1, play_copier);
    stage_add(stage, 2, play_copier);
    stage_await(&stage->parts[1], 1);
    stage_await(&stage->parts[2], 1);
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

static void expect_middle(void)
{
    const struct part *watcher = &stage->parts[0];

    assert_true(watcher->done > 0 && watcher->done < watcher->total);
}

static unsigned long ticks_of(pid_t pid)
{
    char path[64], line[1024] = "";
    unsigned long user = 0, system = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    assert_int_equal(sscanf(strrchr(line, ')'),
                            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                            &system),
                     2);
    return user + system;
}

static void expect_idle(void)
{
    unsigned long before;

    poll(NULL, 0, 200);
    before = ticks_of(harness.pid);
    poll(NULL, 0, 500);
    assert_in_range(ticks_of(harness.pid), before, before + 1);
}

static void expect_nothing_left(void)
{
    stage_expect_nothing_left(stage, &harness);
    expect_idle();
}

TEST(a_killed_rank_is_named_to_those_who_copy)
{
    struct part *victim;
    char words[64];
    int64_t killed_us;

    raise_curtain();
    victim = &stage->parts[2];
    await_middle();
    killed_us = stage_now_us();
    stage_kill(victim);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    snprintf(words, sizeof(words), "rank 2 (pid %d on |died", (int)victim->pid);
    stage_expect(&stage->parts[0], 0, RUCCL_RANK_LOST, words, killed_us);
    stage_expect(&stage->parts[1], 0, RUCCL_RANK_LOST, words, killed_us);
    assert_int_equal(stage->parts[1].reports[0].error.ranks[0], 2);
    expect_middle();
    expect_nothing_left();
}

TEST(an_abort_ends_it_for_those_who_copy)
{
    int64_t aborted_us;

    raise_curtain();
    await_middle();
    aborted_us = stage_now_us();
    stage_cue(&stage->parts[0], 2);
    stage_dismiss_all(stage);
    for (uint32_t i = 0; i < 3; i++)
        stage_expect(&stage->parts[i], 0, RUCCL_ABORTED, "aborted by rank 0|enough", aborted_us);
    expect_middle();
    expect_nothing_left();
}

TEST(a_stopped_rank_times_out_by_name)
{
    struct part *victim;
    char words[96];
    int64_t stopped_us;

    raise_curtain();
    victim = &stage->parts[2];
    await_middle();
    stopped_us = stage_now_us();
    kill(victim->pid, SIGSTOP);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    snprintf(words, sizeof(words), "timeout after|its memory is waited for: rank 2 (pid %d on ",
             (int)victim->pid);
    for (uint32_t i = 0; i < 2; i++)
        stage_expect(&stage->parts[i], 0, RUCCL_TIMEOUT, words, stopped_us + TIMEOUT_US);
    assert_int_equal(stage->parts[1].reports[0].error.nranks, 1);
    assert_int_equal(stage->parts[1].reports[0].error.ranks[0], 2);
    expect_middle();
    kill(victim->pid, SIGCONT); /* and it is told as well */
    stage_dismiss(victim);
    stage_expect(victim, 0, RUCCL_TIMEOUT, words, stage_now_us());
    expect_nothing_left();
}

TEST(it_ends_well_where_nothing_happens)
{
    raise_curtain();
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
        CLAIM(an_abort_ends_it_for_those_who_copy),
        CLAIM(a_stopped_rank_times_out_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
