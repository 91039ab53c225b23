/* Every way in which persistent operations end, and what of theirs outlives what. */
#include "tests/end_to_end/persistent_world.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- letting go */

TEST(freed_memory_serves_until_the_release_and_nobody_else)
{
    struct ruccl_persistent *p[RANKS];
    struct set s, other;
    int32_t *in[RANKS], *out[RANKS];

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    for (uint32_t r = 0; r < RANKS; r++) {
        in[r] = ruccl_region_data(s.in[r]);
        out[r] = ruccl_region_data(s.out[r]);
    }
    set_free(&s);
    set_alloc(&other); /* of the same size, so the first to be offered what was freed */
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_ptr_not_equal(ruccl_region_data(other.in[r]), in[r]);
        assert_ptr_not_equal(ruccl_region_data(other.in[r]), out[r]);
        for (uint32_t i = 0; i < COUNT; i++)
            in[r][i] = (int32_t)i;
    }
    start_all(p);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(out[2][i], 3 * i);
    release_all(p);
    set_free(&other);
    world_close(&world);
}

static struct ruccl_region *registered(uint32_t rank)
{
    const int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct ruccl_region *region;

    assert_true(fd >= 0 && ftruncate(fd, COUNT * sizeof(int32_t)) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(ruccl_register(world_conn(&world, rank), fd, COUNT * sizeof(int32_t), &region),
                     0);
    close(fd);
    return region;
}

TEST(the_daemon_keeps_released_memory_until_all_have_let_go)
{
    struct harness_usage before, during;
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];

    open_all();
    before = harness_usage(&harness);
    for (uint32_t r = 0; r < RANKS; r++) {
        makers[r] = (struct maker){ .comm = world.comms[r] };
        makers[r].in = makers[r].out = vector_of(registered(r), COUNT);
    }
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, 0);
        p[r] = makers[r].made;
        ruccl_release(makers[r].in.region);
    }
    start_all(p);
    during = harness_usage(&harness);
    assert_int_equal(during.mappings, before.mappings + RANKS);
    release_all(p);
    harness_expect_usage(&harness, &before);
    world_close(&world);
}

TEST(starts_under_way_outlive_the_release)
{
    struct ruccl_persistent *p[RANKS];
    struct ruccl_work *works[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    set_fill(&s, 7);
    for (uint32_t r = 0; r < RANKS; r++) {
        works[r] = started(p[r]);
        ruccl_persistent_release(p[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "start of what was released");
    expect_outputs(&s, ALL_REDUCE, 0, 7);
    set_free(&s);
    world_close(&world);
}

TEST(they_may_be_released_after_leaving_and_after_closing)
{
    struct ruccl_persistent *a[RANKS], *b[RANKS];
    struct harness_usage before;
    struct ruccl_work *work;
    struct set s;

    harness_start(&harness, NULL);
    before = harness_usage(&harness);
    world_open(&world, &harness, RANKS, RANKS);
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, a);
    made_of(&s, SCATTER, 1, b);
    world_leave(&world);
    expect_failure(started(a[0]), RUCCL_CLOSED, "start after leaving");
    release_all(a);
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_close(world.conns[r]);
    assert_int_equal(ruccl_start(b[0], &work), -RUCCL_CLOSED);
    release_all(b);
    harness_expect_usage(&harness, &before);
}

/* ---- forks and losses */

TEST(a_forked_child_is_told)
{
    struct ruccl_persistent *p[RANKS];
    struct set s;
    pid_t child;
    int status;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    child = fork();
    if (child == 0) {
        struct ruccl_work *work;
        const int r = ruccl_start(p[0], &work);

        ruccl_persistent_release(p[0]); /* the parent's stays */
        _exit(r == -RUCCL_FORKED ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

TEST(a_lost_daemon_ends_them)
{
    struct ruccl_persistent *p[RANKS];
    struct ruccl_work *work, *waiting;
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    waiting = started(p[0]);
    harness_kill(&harness);
    expect_failure(waiting, RUCCL_DAEMON_LOST, "a start that waits");
    assert_int_equal(ruccl_start(p[0], &work), -RUCCL_DAEMON_LOST);
    release_all(p);
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_close(world.conns[r]);
}

static void play_rank(struct stage *st, struct part *me)
{
    struct ruccl_conn *conn = part_connect(st, me);
    struct ruccl_comm comm = part_join(st, me, conn, 0, me->rank, 2, NULL);
    struct ruccl_region *region = part_alloc(me, conn, COUNT * sizeof(int32_t));
    const struct ruccl_tensor t = vector_of(region, COUNT);
    struct ruccl_persistent *p;
    struct ruccl_work *work;

    part_ok(me, ruccl_all_reduce_init(comm, &t, &t, RUCCL_SUM, &p), "init");
    for (int i = 0; i < 10; i++) {
        part_ok(me, ruccl_start(p, &work), "start");
        part_ok(me, ruccl_work_wait(work, -1), "wait");
        ruccl_work_release(work);
    }
    part_reach(me, 1);
    part_wait(me, 1);
    part_ok(me, ruccl_start(p, &work), "start");
    part_report(me, ruccl_work_wait(work, -1));
    ruccl_work_release(work);
    ruccl_persistent_release(p);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_death_between_starts_is_named)
{
    char words[64];
    int64_t killed_us;

    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    stage_add(stage, 0, play_rank);
    stage_add(stage, 1, play_rank);
    stage_await_all(stage, 1);
    killed_us = stage_now_us();
    stage_kill(&stage->parts[1]);
    stage_cue(&stage->parts[0], 1);
    stage_dismiss(&stage->parts[0]);
    snprintf(words, sizeof(words), "rank 1 (pid %d on |died", (int)stage->parts[1].pid);
    stage_expect(&stage->parts[0], 0, RUCCL_RANK_LOST, words, killed_us);
    stage_expect_nothing_left(stage, &harness);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PERSISTENT_TEST(freed_memory_serves_until_the_release_and_nobody_else),
        PERSISTENT_TEST(the_daemon_keeps_released_memory_until_all_have_let_go),
        PERSISTENT_TEST(starts_under_way_outlive_the_release),
        PERSISTENT_TEST(they_may_be_released_after_leaving_and_after_closing),
        PERSISTENT_TEST(a_forked_child_is_told),
        PERSISTENT_TEST(a_lost_daemon_ends_them),
        PERSISTENT_TEST(a_death_between_starts_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
