/*
 * Clients with memory of GPUs that die, and a daemon that does: what the others are told, that no
 * stream stands still, and that the daemon's driver is left with nothing.
 */
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/driver.h"
#include "tests/end_to_end/gpu_part.h"
#include "tests/unit/unit.h"

#define BYTES 262144u /* of a tensor; in chunks enough to die between them */

static struct driver driver;
static struct stage *stage;

static void raise_curtain(void)
{
    driver_start(&driver, (const char *const[]){ "--set", "drain_timeout=300ms", NULL });
    stage = stage_open(&driver.harness);
}

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return driver_stop(&driver);
}

static void wait_a_moment(uint64_t *seed, uint64_t most_us)
{
    const struct timespec moment = { .tv_nsec = (long)(unit_random(seed) % most_us * 1000) };

    nanosleep(&moment, NULL);
}

static int all_reduce(struct ruccl_comm comm, struct ruccl_region *region)
{
    const struct ruccl_tensor t = vector_of(region, ruccl_region_bytes(region) / sizeof(int32_t));
    const uint64_t share = ruccl_region_bytes(region) / 64;

    return ruccl_all_reduce(ruccl_bounded(comm, share * ruccl_world_size(comm)), &t, &t, RUCCL_SUM);
}

/* ---- one dies, two are told */

enum { RANKS = 3, VICTIM = RANKS - 1, KILLS = HARNESS_SANITIZED ? 30 : 120 };

/* Ranks are on GPU 0, GPU 1 and GPU 0. */
static int gpu_of(uint32_t rank)
{
    return (int)(rank % DRIVER_GPUS);
}

/* Until it fails. */
static int reduce_on(struct part *me, struct ruccl_comm comm, struct ruccl_region *region)
{
    int r;

    do {
        r = all_reduce(comm, region);
        atomic_fetch_add(&me->done, 1);
    } while (r == 0);
    return r;
}

static void play_survivor(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_region(me, conn, gpu_of(me->rank), BYTES);
    CUstream stream = part_stream(me);

    for (uint32_t round = 0;; round++) {
        struct ruccl_comm comm;

        part_wait(me, round + 1);
        if (atomic_load(&me->cue) == UINT32_MAX)
            break;
        comm = ruccl_on_stream(part_join(s, me, conn, round, me->rank, RANKS, NULL), stream);
        me->nreports = 0;
        part_report(me, reduce_on(me, comm, region));
        part_report(me, ruccl_barrier(comm));
        part_settle(me, stream);
        part_ok(me, ruccl_leave(comm), "leave");
        part_reach(me, round + 1);
    }
    part_drop_region(me, region, gpu_of(me->rank));
    ruccl_close(conn);
}

/* In every third round its stream never comes to what it has called for. */
static void play_victim(struct stage *s, struct part *me)
{
    const uint32_t round = atomic_load(&s->parts[0].cue) - 1;
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_region(me, conn, gpu_of(me->rank), BYTES);
    CUstream stream = part_stream(me);
    struct ruccl_comm comm = part_join(s, me, conn, round, me->rank, RANKS, NULL);

    comm = ruccl_on_stream(comm, stream);
    if (round % 3 == 2) {
        fake_cuda_delay_us(stream, PART_HELD_US);
        cuMemsetD8Async((uintptr_t)ruccl_region_data(region), 1, BYTES, stream);
    }
    part_reach(me, 1);
    reduce_on(me, comm, region);
}

static void kill_one(struct part *victim, uint32_t round, uint64_t *seed)
{
    char words[64];
    int64_t killed_us;

    stage_cue(&stage->parts[0], round + 1);
    stage_cue(&stage->parts[1], round + 1);
    stage_play(stage, victim, play_victim);
    stage_await(victim, 1);
    wait_a_moment(seed, 8000);
    killed_us = stage_now_us();
    stage_kill(victim);
    snprintf(words, sizeof(words), "rank %u (pid %d on |died", VICTIM, (int)victim->pid);
    for (uint32_t i = 0; i < VICTIM; i++) {
        stage_await(&stage->parts[i], round + 1);
        stage_expect(&stage->parts[i], 0, RUCCL_RANK_LOST, words, killed_us);
        stage_expect(&stage->parts[i], 1, RUCCL_RANK_LOST, words, killed_us);
        assert_int_equal(stage->parts[i].reports[0].error.nranks, 1);
        assert_int_equal(stage->parts[i].reports[0].error.ranks[0], VICTIM);
    }
}

TEST(a_rank_killed_at_any_moment_is_named_and_holds_nothing_on_a_gpu)
{
    struct driver_live before;
    struct part *victim;
    uint64_t seed = 1;

    _Static_assert(KILLS < STAGE_IDS_MAX, "an id a round");
    raise_curtain();
    before = driver_live(&driver);
    stage_add(stage, 0, play_survivor);
    stage_add(stage, 1, play_survivor);
    victim = stage_reserve(stage, VICTIM);
    for (uint32_t round = 0; round < KILLS; round++)
        kill_one(victim, round, &seed);
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

/* ---- all die */

static struct ruccl_region *create(struct part *me, struct ruccl_conn *conn, int gpu)
{
    struct ruccl_region *region;

    part_ok(me, ruccl_register_cuda(conn, (void *)(uintptr_t)part_create(me, gpu), BYTES, &region),
            "register_cuda");
    return region;
}

/* A little of everything, until the end. */
static void play_busy(struct stage *s, struct part *me)
{
    const uint32_t rank = me->rank, next = (rank + 1) % RANKS, previous = (rank + 2) % RANKS;
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, rank, RANKS, NULL), back;
    CUstream streams[2];

    part_enter_gpu(me, gpu_of(rank));
    for (int i = 0; i < 2; i++)
        streams[i] = part_stream(me);
    comm = ruccl_on_stream(comm, streams[0]);
    back = ruccl_on_stream(comm, streams[1]);
    for (unsigned round = 0;; round++) {
        struct ruccl_region *a = create(me, conn, gpu_of(rank));
        struct ruccl_region *b =
            part_region(me, conn, round % RANKS == rank ? PART_ON_HOST : gpu_of(rank), BYTES);
        const struct ruccl_tensor x = vector_of(a, 5003), y = vector_of(b, 5003);
        struct ruccl_work *works[3] = { NULL };
        struct ruccl_persistent *persistent = NULL;

        all_reduce(comm, b);
        ruccl_send_async(comm, &x, next, 0, &works[0]);
        ruccl_recv_async(back, &y, previous, 0, &works[1]);
        ruccl_all_reduce_async(comm, &x, &x, RUCCL_MAX, &works[2]);
        if (ruccl_broadcast_init(comm, &x, &x, 1, &persistent) == 0) {
            ruccl_work_release(works[2]);
            if (ruccl_start(persistent, &works[2]) < 0)
                works[2] = NULL;
        }
        ruccl_release(a); /* its operations hold it */
        for (int i = 0; i < 3; i++)
            ruccl_work_release(works[i]);
        ruccl_persistent_release(persistent);
    }
}

TEST(ranks_killed_at_any_moment_leave_the_driver_nothing)
{
    enum { LIVES = HARNESS_SANITIZED ? 30 : 150 };
    struct driver_live before;
    uint64_t seed = 7;

    raise_curtain();
    before = driver_live(&driver);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        stage_reserve(stage, rank);
    stage_add_bystanders(stage);
    for (int life = 0; life < LIVES; life++) {
        atomic_store(&stage->ids[0].ready, false);
        for (uint32_t i = 0; i < RANKS; i++)
            stage_play(stage, &stage->parts[i], play_busy);
        for (uint32_t i = 0; i < RANKS; i++) {
            wait_a_moment(&seed, 8000);
            stage_kill(&stage->parts[(i + (uint32_t)life) % RANKS]);
        }
    }
    stage_dismiss_bystanders(stage);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

/* ---- many lives */

/* Of GPU memory, and with other memory beside it. */
static void play_short_life(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);

    part_compute(me, comm, part_region(me, conn, gpu_of(me->rank), 100000), 3);
    part_compute(me, comm, part_region(me, conn, me->rank ? PART_ON_HOST : 0, 1000), 4);
    part_ok(me, ruccl_barrier(comm), "barrier");
    /* one in two without a farewell */
    if (me->rank == 0)
        _exit(0);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_thousand_lives_leave_the_driver_nothing)
{
    enum { LIVES = HARNESS_SANITIZED ? 100 : 1000 };
    struct driver_live before;

    raise_curtain();
    before = driver_live(&driver);
    stage_reserve(stage, 0);
    stage_reserve(stage, 1);
    for (int life = 0; life < LIVES; life += 2) {
        atomic_store(&stage->ids[0].ready, false);
        stage_play(stage, &stage->parts[0], play_short_life);
        stage_play(stage, &stage->parts[1], play_short_life);
        stage_dismiss_all(stage);
    }
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

/* ---- the daemon dies */

enum { STREAMS = 3, DEPTH = 4 };

static enum ruccl_code ending; /* of the works */

/* Rank 2 makes no call that the others wait for. */
static void play_waiter(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, RANKS, NULL);
    struct ruccl_region *region = part_region(me, conn, gpu_of(me->rank), BYTES);
    struct ruccl_region *after = part_region(me, conn, gpu_of(me->rank), 1);
    const struct ruccl_tensor t = vector_of(region, 1000);
    struct ruccl_work *works[STREAMS][DEPTH] = { 0 };
    CUstream streams[STREAMS];

    for (int i = 0; i < STREAMS; i++) {
        streams[i] = part_stream(me);
        for (uint32_t k = 0; k < DEPTH; k++) {
            struct ruccl_comm on = ruccl_on_stream(comm, streams[i]);
            int r = me->rank == VICTIM
                        ? ruccl_recv_async(on, &t, 0, 10 * (uint32_t)i + k, &works[i][k])
                        : ruccl_all_reduce_async(on, &t, &t, RUCCL_SUM, &works[i][k]);

            part_ok(me, r, "post");
            part_cu(me, cuMemsetD8Async((uintptr_t)ruccl_region_data(after), 1, 1, streams[i]),
                    "cuMemsetD8Async");
        }
        part_check(me, cuStreamQuery(streams[i]) == CUDA_ERROR_NOT_READY, "a stream that waits");
    }
    part_reach(me, 1);
    part_report(me, ruccl_work_wait(works[0][0], -1));
    for (int i = 0; i < STREAMS; i++) {
        for (int k = 0; k < DEPTH; k++) {
            part_check(me, ruccl_work_wait(works[i][k], -1) == -(int)ending, "the same end");
            ruccl_work_release(works[i][k]);
        }
        part_settle(me, streams[i]);
    }
    part_drop_region(me, region, gpu_of(me->rank));
    part_drop_region(me, after, gpu_of(me->rank));
    ruccl_close(conn);
    part_check(me, fake_cuda_live(FAKE_CUDA_EVENTS) == 0, "no event being left");
    part_check(me, fake_cuda_live(FAKE_CUDA_REGISTRATIONS) == 0, "no cell being left");
}

static void let_wait(enum ruccl_code code)
{
    raise_curtain();
    ending = code;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        stage_add(stage, rank, play_waiter);
    stage_await_all(stage, 1);
}

static void expect_ends(int64_t since_us)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        stage_dismiss(&stage->parts[rank]);
        stage_expect(&stage->parts[rank], 0, ending, NULL, since_us);
    }
}

TEST(streams_that_wait_for_a_daemon_that_dies_go_on)
{
    int64_t killed_us;

    let_wait(RUCCL_DAEMON_LOST);
    killed_us = stage_now_us();
    harness_kill(&driver.harness);
    expect_ends(killed_us);
}

TEST(streams_that_wait_for_a_daemon_that_is_told_to_stop_go_on)
{
    int64_t told_us;

    let_wait(RUCCL_DAEMON_STOPPING);
    told_us = stage_now_us();
    assert_int_equal(kill(driver.harness.pid, SIGTERM), 0);
    expect_ends(told_us);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(a_rank_killed_at_any_moment_is_named_and_holds_nothing_on_a_gpu),
        CLAIM(ranks_killed_at_any_moment_leave_the_driver_nothing),
        CLAIM(a_thousand_lives_leave_the_driver_nothing),
        CLAIM(streams_that_wait_for_a_daemon_that_dies_go_on),
        CLAIM(streams_that_wait_for_a_daemon_that_is_told_to_stop_go_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
