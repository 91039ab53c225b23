/*
 * GPUs, drivers and streams that fail: whoever has to do with them is told what it was, others
 * notice nothing, and the daemon holds nothing of it afterwards.
 */
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#include "shared/base.h"
#include "tests/end_to_end/driver.h"
#include "tests/end_to_end/gpu_part.h"
#include "tests/unit/unit.h"

#define BYTES 65536u

static struct driver driver;
static struct stage *stage;

/* What the actors are told beside cues. */
static struct orders {
    _Atomic bool renew;     /* register the memory again first */
    _Atomic bool broadcast; /* instead of a sum */
    _Atomic bool apart;     /* rank 1 is on GPU 1, which does not fail */
} * orders;

static void raise_curtain(void)
{
    orders = mmap(NULL, sizeof(*orders), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(orders, MAP_FAILED);
    driver_start(&driver, NULL);
    stage = stage_open(&driver.harness);
}

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    munmap(orders, sizeof(*orders));
    return driver_stop(&driver);
}

/* ---- pairs that compute by themselves until the last cue, and notice nothing */

static void compute_steadily(struct stage *s, struct part *me, uint32_t id, int gpu)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, id, me->rank, 2, NULL);
    struct ruccl_region *region = part_region(me, conn, gpu, BYTES);
    struct ruccl_region *flag = part_alloc(me, conn, sizeof(int32_t));
    const struct ruccl_tensor over = vector_of(flag, 1);
    int32_t *done = ruccl_region_data(flag);

    if (gpu != PART_ON_HOST)
        comm = ruccl_on_stream(comm, part_stream(me));
    for (int32_t round = 0; *done == 0; round++) {
        part_compute(me, comm, region, round);
        atomic_fetch_add(&me->done, 1);
        *done = atomic_load(&me->cue) == UINT32_MAX;
        part_ok(me, ruccl_all_reduce(comm, &over, &over, RUCCL_MIN), "all_reduce of the flag");
    }
    part_drop_region(me, region, gpu);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

static void play_on_gpu_0(struct stage *s, struct part *me)
{
    compute_steadily(s, me, 10, 0);
}

static void play_on_gpu_1(struct stage *s, struct part *me)
{
    compute_steadily(s, me, 11, 1);
}

static void play_on_gpu_1_and_host(struct stage *s, struct part *me)
{
    compute_steadily(s, me, 12, me->rank ? PART_ON_HOST : 1);
}

static void play_on_host(struct stage *s, struct part *me)
{
    compute_steadily(s, me, 13, PART_ON_HOST);
}

static void add_pair(role_fn play)
{
    stage_add(stage, 0, play);
    stage_add(stage, 1, play);
}

static void await_progress(struct part *part, uint64_t rounds)
{
    const uint64_t until = atomic_load(&part->done) + rounds;
    const int64_t deadline = stage_now_us() + STAGE_PATIENCE_MS * 1000ll;
    const struct timespec moment = { .tv_nsec = 100000 };

    while (atomic_load(&part->done) < until) {
        if (stage_now_us() > deadline)
            fail_msg("actor %u does not go on: %s", part->number, part->failure);
        nanosleep(&moment, NULL);
    }
}

/* ---- a pair whose GPU 0 fails */

static int call(struct ruccl_comm comm, struct ruccl_region *region)
{
    const struct ruccl_tensor t = vector_of(region, 5003);

    return atomic_load(&orders->broadcast) ? ruccl_broadcast(comm, &t, &t, 1)
                                           : ruccl_all_reduce(comm, &t, &t, RUCCL_SUM);
}

/* The daemon may still be at work with what is left of the GPU. */
static struct ruccl_region *renew(struct part *me, struct ruccl_conn *conn,
                                  struct ruccl_region *region)
{
    const int64_t deadline = stage_now_us() + STAGE_PATIENCE_MS * 1000ll;
    void *const data = ruccl_region_data(region);
    int r;

    ruccl_release(region);
    do {
        r = ruccl_register_cuda(conn, data, BYTES, &region);
        part_check(me, r == 0 || stage_now_us() < deadline, "a GPU that can be used again");
    } while (r == -RUCCL_SYSTEM);
    part_ok(me, r, "register again");
    return region;
}

/* By turns a call whose outcome it reports, and a sum that has to be right. */
static void play_patient(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);
    const int gpu = atomic_load(&orders->apart) ? (int)me->rank : 0;
    struct ruccl_region *region = part_region(me, conn, gpu, BYTES);
    CUstream stream = part_stream(me);

    comm = ruccl_on_stream(comm, stream);
    part_compute(me, comm, region, 0);
    part_reach(me, 1);
    for (uint32_t turn = 1;; turn++) {
        part_wait(me, turn);
        if (atomic_load(&me->cue) == UINT32_MAX)
            break;
        if (turn % 2) {
            me->nreports = 0;
            part_report(me, call(comm, region));
            part_settle(me, stream);
        } else {
            if (atomic_load(&orders->renew) && gpu == 0)
                region = renew(me, conn, region);
            part_compute(me, comm, region, (int32_t)turn);
        }
        part_reach(me, turn + 1);
    }
    part_drop_region(me, region, gpu);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

struct fault {
    const char *words; /* to the driver */
    enum ruccl_code code;
    const char *text; /* of the error, beside the GPU's name */
    bool lost;        /* memory has to be registered again */
    bool broadcast;
};

static void expect_fault(const struct fault *f)
{
    char words[256];

    snprintf(words, sizeof(words), "%s|%s", driver.texts[0], f->text);
    for (uint32_t i = 0; i < 2; i++)
        stage_expect(&stage->parts[i], 0, f->code, words, stage->parts[i].reports[0].at_us);
}

static void cue_patients(uint32_t cue)
{
    for (uint32_t i = 0; i < 2; i++)
        stage_cue(&stage->parts[i], cue);
}

static void await_patients(uint32_t at)
{
    for (uint32_t i = 0; i < 2; i++)
        stage_await(&stage->parts[i], at);
}

/* The pair's turns `turn` and the next. */
static void strike(const struct fault *f, uint32_t turn)
{
    atomic_store(&orders->renew, f->lost);
    atomic_store(&orders->broadcast, f->broadcast);
    driver_say(&driver, f->words);
    cue_patients(turn);
    await_patients(turn + 1);
    expect_fault(f);
    driver_say(&driver, "");
    cue_patients(turn + 1);
    await_patients(turn + 2);
}

TEST(a_gpu_that_fails_is_named_to_its_own_and_works_again)
{
    static const struct fault faults[] = {
        { "poison:0:700", RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS|register its memory again",
          true, false },
        { "poison:0:214", RUCCL_SYSTEM, "CUDA_ERROR_ECC_UNCORRECTABLE", true, false },
        { "poison:0:719", RUCCL_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED", true, true },
    };
    struct driver_live before;
    uint32_t turn = 1;

    raise_curtain();
    before = driver_live(&driver);
    add_pair(play_patient);
    add_pair(play_on_gpu_1);
    add_pair(play_on_gpu_1_and_host);
    add_pair(play_on_host);
    await_patients(1);
    for (unsigned i = 0; i < ARRAY_SIZE(faults); i++, turn += 2) {
        strike(&faults[i], turn);
        for (uint32_t k = 2; k < 8; k += 2)
            await_progress(&stage->parts[k], 5);
    }
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

TEST(a_gpu_that_fails_takes_no_other_with_it)
{
    static const struct fault faults[] = {
        { "poison:0:700", RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS", true, false },
        { "poison:0:719", RUCCL_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED", true, true },
    };
    struct driver_live before;

    raise_curtain();
    before = driver_live(&driver);
    atomic_store(&orders->apart, true);
    add_pair(play_patient);
    await_patients(1);
    for (uint32_t i = 0; i < 6; i++)
        strike(&faults[i % 2], 2 * i + 1);
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

TEST(a_gpu_that_fails_in_the_middle_of_an_operation_works_again)
{
    const struct fault f = { "poison:0:700 delay:0", RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS",
                             true, false };
    const struct timespec moment = { .tv_nsec = 50000000 };
    struct driver_live before;

    raise_curtain();
    before = driver_live(&driver);
    add_pair(play_patient);
    add_pair(play_on_gpu_1);
    await_patients(1);
    driver_say(&driver, "delay:3600000000");
    driver_live(&driver); /* it has heard */
    cue_patients(1);
    nanosleep(&moment, NULL); /* nothing shows that it has begun; else the test is an easier one */
    driver_say(&driver, f.words);
    await_patients(2);
    expect_fault(&f);
    atomic_store(&orders->renew, true);
    cue_patients(2);
    await_patients(3);
    await_progress(&stage->parts[2], 5);
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

TEST(a_driver_that_fails_an_operation_is_quoted)
{
    static const struct fault faults[] = {
        { "cuLaunchKernel:1:701", RUCCL_SYSTEM,
          "cuLaunchKernel failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", false, false },
        { "cuLaunchKernel:1:2", RUCCL_SYSTEM, "cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY",
          false, false },
        { "cuLaunchKernel:1:719", RUCCL_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED", true, false },
        { "kernel:1:700", RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS", true, false },
        { "cuMemcpyAsync:1:999", RUCCL_SYSTEM, "cuMemcpyAsync failed with CUDA_ERROR_UNKNOWN",
          false, true },
        { "cuMemcpyAsync:1:700", RUCCL_SYSTEM, "CUDA_ERROR_ILLEGAL_ADDRESS", true, true },
        { "cuStreamQuery:1:999", RUCCL_SYSTEM, "CUDA_ERROR_UNKNOWN", true, false },
        { "cuEventQuery:1:999", RUCCL_SYSTEM, "cuEventQuery failed with CUDA_ERROR_UNKNOWN", false,
          false },
        { "cuEventQuery:1:1", RUCCL_SYSTEM, "cuEventQuery failed with CUDA_ERROR_INVALID_VALUE",
          false, false },
        { "cuEventQuery:1:719", RUCCL_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED", true, false },
    };
    struct driver_live before;

    raise_curtain();
    before = driver_live(&driver);
    add_pair(play_patient);
    await_patients(1);
    for (uint32_t i = 0; i < ARRAY_SIZE(faults); i++) {
        print_message("           %s\n", faults[i].words);
        strike(&faults[i], 2 * i + 1);
    }
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

/* ---- streams that stand still */

enum { HELD_RANKS = 3, HELD = 1, HELD_TIMEOUT_US = 3000000 };

/* All ranks; the work before the call of one of them does not end. */
static void play_late(struct stage *s, struct part *me)
{
    const struct ruccl_join_options options = { .timeout_us = HELD_TIMEOUT_US };
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_work *joins[HELD_RANKS], *works[HELD_RANKS];
    struct ruccl_comm comms[HELD_RANKS];
    struct ruccl_region *regions[HELD_RANKS];
    CUstream streams[HELD_RANKS];
    const char *id = part_id(s, me, conn, 0, true);

    for (uint32_t r = 0; r < HELD_RANKS; r++)
        part_ok(me, ruccl_join_async(conn, id, r, HELD_RANKS, &options, &comms[r], &joins[r]),
                "join");
    for (uint32_t r = 0; r < HELD_RANKS; r++) {
        part_ok(me, ruccl_work_wait(joins[r], -1), "join");
        ruccl_work_release(joins[r]);
        regions[r] = part_region(me, conn, (int)(r % DRIVER_GPUS), BYTES);
        streams[r] = part_stream(me);
    }
    part_enter_gpu(me, HELD % DRIVER_GPUS);
    fake_cuda_delay_us(streams[HELD], PART_HELD_US);
    cuMemsetD8Async((uintptr_t)ruccl_region_data(regions[HELD]), 1, BYTES, streams[HELD]);
    for (uint32_t r = 0; r < HELD_RANKS; r++) {
        const struct ruccl_tensor t = vector_of(regions[r], 5003);

        part_ok(me,
                ruccl_all_reduce_async(ruccl_on_stream(comms[r], streams[r]), &t, &t, RUCCL_SUM,
                                       &works[r]),
                "all_reduce");
    }
    for (uint32_t r = 0; r < HELD_RANKS; r++) {
        part_report(me, ruccl_work_wait(works[r], -1));
        ruccl_work_release(works[r]);
    }
    part_settle(me, streams[0]);
    part_settle(me, streams[2]);
    fake_cuda_delay_us(streams[HELD], 0);
    part_settle(me, streams[HELD]);
    for (uint32_t r = 0; r < HELD_RANKS; r++) {
        part_drop_region(me, regions[r], (int)(r % DRIVER_GPUS));
        part_ok(me, ruccl_leave(comms[r]), "leave");
    }
    ruccl_close(conn);
}

TEST(a_timeout_names_the_rank_whose_gpu_is_not_done)
{
    struct driver_live before;
    struct part *late;
    char words[96];

    raise_curtain();
    before = driver_live(&driver);
    late = stage_add(stage, 0, play_late);
    snprintf(words, sizeof(words), "work on the GPU before it is waited for: rank %d (pid %d", HELD,
             (int)late->pid);
    stage_dismiss(late);
    for (uint32_t r = 0; r < HELD_RANKS; r++) {
        stage_expect(late, r, RUCCL_TIMEOUT, words, late->reports[0].at_us);
        assert_int_equal(late->reports[r].error.nranks, 1);
        assert_int_equal(late->reports[r].error.ranks[0], HELD);
    }
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

enum { STALLED = 40 };

/* Calls whose stream goes on only when told to. */
static void play_stalled(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);
    struct ruccl_region *region = part_region(me, conn, 0, BYTES);
    const struct ruccl_tensor t = vector_of(region, 5003);
    struct ruccl_work *works[STALLED];
    CUstream stream = part_stream(me);

    comm = ruccl_on_stream(comm, stream);
    if (me->rank == 0)
        fake_cuda_delay_us(stream, PART_HELD_US);
    part_cu(me, cuMemsetD8Async((uintptr_t)ruccl_region_data(region), 0, BYTES, stream), "memset");
    for (int i = 0; i < STALLED; i++)
        part_ok(me, ruccl_all_reduce_async(comm, &t, &t, RUCCL_SUM, &works[i]), "all_reduce");
    part_reach(me, 1);
    part_wait(me, 1);
    for (int i = 0; i < STALLED; i++)
        part_check(me, ruccl_work_test(works[i]) == RUCCL_PENDING, "a work that waits");
    if (me->rank == 0)
        fake_cuda_delay_us(stream, 0);
    for (int i = 0; i < STALLED; i++) {
        part_ok(me, ruccl_work_wait(works[i], STAGE_PATIENCE_MS * 1000), "all_reduce");
        ruccl_work_release(works[i]);
    }
    part_settle(me, stream);
    part_drop_region(me, region, 0);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_stream_that_stands_still_stops_nobody_else_on_its_gpu)
{
    struct driver_live before;

    raise_curtain();
    before = driver_live(&driver);
    add_pair(play_stalled);
    stage_await_all(stage, 1);
    add_pair(play_on_gpu_0);
    add_pair(play_on_gpu_1_and_host);
    for (uint32_t i = 2; i < 6; i += 2)
        await_progress(&stage->parts[i], 30);
    stage_cue_all(stage, UINT32_MAX);
    stage_expect_nothing_left(stage, &driver.harness);
    driver_expect_live(&driver, &before);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(a_gpu_that_fails_is_named_to_its_own_and_works_again),
        CLAIM(a_gpu_that_fails_takes_no_other_with_it),
        CLAIM(a_gpu_that_fails_in_the_middle_of_an_operation_works_again),
        CLAIM(a_driver_that_fails_an_operation_is_quoted),
        CLAIM(a_timeout_names_the_rank_whose_gpu_is_not_done),
        CLAIM(a_stream_that_stands_still_stops_nobody_else_on_its_gpu),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
