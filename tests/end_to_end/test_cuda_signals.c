/*
 * Streams that go on by themselves: where all of an operation is one stream's work, that stream
 * writes what the clients' wait for, and else the daemon does. All ranks are in this process, and
 * in one of its GPUs' memory.
 */
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/driver.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define BYTES 4096u
#define RANKS 3u
#define SUM   (1 + 2 + 3)

/* The daemon's loop never hears of an end, or hears of all. */
#define DEAF  "cuStreamQuery:0:600"
#define HEARS ""

static struct driver driver;

struct actor {
    CUstream stream;
    CUdeviceptr memory; /* input, then output, then what the stream has seen of it */
    struct ruccl_region *region;
    struct ruccl_tensor in, out;
    struct ruccl_work *work;
};

static struct world world;
static struct actor actors[RANKS];

static void cu(CUresult r)
{
    assert_int_equal(r, CUDA_SUCCESS);
}

static void enter_gpu(int gpu)
{
    static CUcontext contexts[DRIVER_GPUS];

    cu(cuInit(0));
    if (!contexts[gpu])
        cu(cuDevicePrimaryCtxRetain(&contexts[gpu], gpu));
    cu(cuCtxSetCurrent(contexts[gpu]));
}

static struct ruccl_tensor tensor_at(struct ruccl_region *region, uint64_t offset)
{
    return (struct ruccl_tensor){
        .dtype = RUCCL_U8, .naxes = 1, .shape = { BYTES }, .region = region, .offset = offset
    };
}

static void actor_open(uint32_t rank, int gpu)
{
    struct actor *a = &actors[rank];

    enter_gpu(gpu);
    cu(cuStreamCreate(&a->stream, CU_STREAM_NON_BLOCKING));
    cu(cuMemAlloc_v2(&a->memory, 3 * BYTES));
    if (ruccl_register_cuda(world_conn(&world, rank), (void *)(uintptr_t)a->memory, 3 * BYTES,
                            &a->region) < 0)
        fail_msg("register: %s", ruccl_last_error()->text);
    a->in = tensor_at(a->region, 0);
    a->out = tensor_at(a->region, BYTES);
    world.comms[rank] = ruccl_on_stream(world.comms[rank], a->stream);
}

/* `far`: the last rank is on the other GPU. */
static void open_world(uint32_t nranks, bool far)
{
    world_open(&world, &driver.harness, nranks, nranks);
    for (uint32_t r = 0; r < nranks; r++)
        actor_open(r, far && r + 1 == nranks);
}

static void close_world(void)
{
    for (uint32_t r = 0; r < world.nranks; r++) {
        ruccl_release(actors[r].region);
        cu(cuStreamSynchronize(actors[r].stream));
        cu(cuStreamDestroy_v2(actors[r].stream));
        cu(cuMemFree_v2(actors[r].memory));
    }
    world_close(&world);
}

static int stop_daemon(void **state)
{
    (void)state;
    return driver_stop(&driver);
}

static void set(uint32_t rank, CUdeviceptr at, uint8_t value)
{
    cu(cuMemsetD8Async(at, value, BYTES, actors[rank].stream));
}

/* Its input, and what is to be overwritten. */
static void ready(uint32_t rank)
{
    set(rank, actors[rank].memory, (uint8_t)(rank + 1));
    set(rank, actors[rank].memory + BYTES, 99);
}

static void see(uint32_t rank)
{
    const CUdeviceptr memory = actors[rank].memory;

    cu(cuMemcpyAsync(memory + 2 * BYTES, memory + BYTES, BYTES, actors[rank].stream));
    set(rank, memory, 77); /* not before it was read */
}

static void expect_seen(uint32_t rank, uint8_t value)
{
    const uint8_t *seen = (const uint8_t *)(uintptr_t)actors[rank].memory + 2 * BYTES;

    cu(cuStreamSynchronize(actors[rank].stream));
    for (uint32_t i = 0; i < BYTES; i++)
        if (seen[i] != value)
            fail_msg("rank %u: byte %u is %u, not %u", rank, i, seen[i], value);
}

static void sum_all(void)
{
    for (uint32_t r = 0; r < world.nranks; r++) {
        struct actor *a = &actors[r];

        ready(r);
        assert_int_equal(
            ruccl_all_reduce_async(world.comms[r], &a->in, &a->out, RUCCL_SUM, &a->work), 0);
        see(r);
    }
}

static void expect_pending(void)
{
    for (uint32_t r = 0; r < world.nranks; r++)
        assert_int_equal(ruccl_work_test(actors[r].work), RUCCL_PENDING);
}

static void expect_all_done(void)
{
    for (uint32_t r = 0; r < world.nranks; r++)
        expect_done(actors[r].work, "the call");
}

/* ---- without the daemon's loop */

TEST(streams_go_on_while_the_daemon_knows_of_no_end)
{
    driver_start(&driver, NULL);
    open_world(RANKS, false);
    driver_say(&driver, DEAF);
    sum_all();
    for (uint32_t r = 0; r < RANKS; r++)
        expect_seen(r, SUM);
    expect_pending();
    driver_say(&driver, HEARS);
    expect_all_done();
    close_world();
}

TEST(so_does_a_pair)
{
    driver_start(&driver, NULL);
    open_world(2, false);
    driver_say(&driver, DEAF);
    for (uint32_t r = 0; r < 2; r++)
        ready(r);
    assert_int_equal(ruccl_send_async(world.comms[0], &actors[0].in, 1, 3, &actors[0].work), 0);
    assert_int_equal(ruccl_recv_async(world.comms[1], &actors[1].out, 0, 3, &actors[1].work), 0);
    for (uint32_t r = 0; r < 2; r++)
        see(r);
    expect_seen(1, 1);
    expect_seen(0, 99);
    expect_pending();
    driver_say(&driver, HEARS);
    expect_all_done();
    close_world();
}

TEST(so_does_a_start)
{
    struct ruccl_persistent *persistent;
    struct actor *a = &actors[0];

    driver_start(&driver, NULL);
    open_world(1, false);
    assert_int_equal(ruccl_all_reduce_init(world.comms[0], &a->in, &a->out, RUCCL_SUM, &persistent),
                     0);
    for (int k = 0; k < 3; k++) {
        driver_say(&driver, DEAF);
        ready(0);
        assert_int_equal(ruccl_start(persistent, &a->work), 0);
        see(0);
        expect_seen(0, 1);
        expect_pending();
        driver_say(&driver, HEARS);
        expect_all_done();
    }
    ruccl_persistent_release(persistent);
    close_world();
}

/* ---- where one stream is not all */

static void expect_waits(void)
{
    test_sleep_ms(50);
    for (uint32_t r = 0; r < world.nranks; r++)
        assert_int_equal(cuStreamQuery(actors[r].stream), CUDA_ERROR_NOT_READY);
    expect_pending();
}

TEST(streams_wait_for_the_daemon_where_two_gpus_are_at_work)
{
    driver_start(&driver, NULL);
    open_world(RANKS, true);
    driver_say(&driver, DEAF);
    sum_all();
    expect_waits();
    driver_say(&driver, HEARS);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_seen(r, SUM);
    expect_all_done();
    close_world();
}

/* A gather's parts are copied by as many streams. */
TEST(streams_wait_for_the_daemon_where_several_streams_are_at_work)
{
    driver_start(&driver, NULL);
    open_world(2, false);
    driver_say(&driver, DEAF);
    for (uint32_t r = 0; r < 2; r++) {
        struct ruccl_tensor in = actors[r].in;

        ready(r);
        in.shape[0] = BYTES / 2;
        assert_int_equal(
            ruccl_all_gather_async(world.comms[r], &in, &actors[r].out, &actors[r].work), 0);
        see(r);
    }
    expect_waits();
    driver_say(&driver, HEARS);
    expect_all_done();
    close_world();
}

/* ---- what the driver does not do */

static void try_words(const char *words)
{
    driver_say(&driver, words);
    sum_all();
    for (uint32_t r = 0; r < RANKS; r++)
        expect_seen(r, SUM);
    expect_all_done();
    driver_say(&driver, HEARS);
}

TEST(streams_go_on_where_the_driver_does_not_write_their_values)
{
    static const char *const words[] = { "cuStreamWriteValue32_v2:2:801",
                                         "cuStreamWriteValue32_v2:0:999",
                                         "cuMemHostRegister_v2:2:1", "cuMemHostRegister_v2:0:2" };

    driver_start(&driver, NULL);
    for (unsigned i = 0; i < ARRAY_SIZE(words); i++) {
        open_world(RANKS, false);
        try_words(words[i]);
        try_words(""); /* a few are still refused */
        close_world();
    }
}

TEST(streams_go_on_where_the_gpu_writes_no_values)
{
    setenv("FAKE_CUDA_VALUES", "no", 1);
    driver_start(&driver, NULL);
    unsetenv("FAKE_CUDA_VALUES");
    open_world(RANKS, false);
    try_words("");
    driver_say(&driver, DEAF);
    sum_all();
    expect_waits();
    driver_say(&driver, HEARS);
    expect_all_done();
    close_world();
}

/* ---- failures */

static void renew(uint32_t rank)
{
    struct actor *a = &actors[rank];
    int r;

    ruccl_release(a->region);
    do
        r = ruccl_register_cuda(world_conn(&world, rank), (void *)(uintptr_t)a->memory, 3 * BYTES,
                                &a->region);
    while (r == -RUCCL_SYSTEM);
    assert_int_equal(r, 0);
    a->in = tensor_at(a->region, 0);
    a->out = tensor_at(a->region, BYTES);
}

TEST(streams_go_on_where_an_operation_fails)
{
    static const char *const faults[] = {
        "cuLaunchKernel:1:2",  "cuLaunchKernel:1:719",
        "kernel:1:700",        "cuStreamWriteValue32_v2:1:700",
        "cuStreamQuery:1:719", "cuEventQuery:1:999",
    };

    driver_start(&driver, NULL);
    open_world(RANKS, false);
    for (unsigned i = 0; i < ARRAY_SIZE(faults); i++) {
        driver_say(&driver, faults[i]);
        sum_all();
        for (uint32_t r = 0; r < RANKS; r++) {
            cu(cuStreamSynchronize(actors[r].stream));
            expect_failure(actors[r].work, RUCCL_SYSTEM, faults[i]);
        }
        for (uint32_t r = 0; r < RANKS; r++)
            renew(r);
        try_words("");
    }
    close_world();
}

/* ---- one value after the other */

/* Of which the stream's comes before the daemon's, and both before the slot's next. */
TEST(a_hundred_calls_of_a_stream_follow_each_other)
{
    enum { DEPTH = 100 };
    static struct ruccl_work *works[DEPTH][RANKS];

    driver_start(&driver, NULL);
    open_world(RANKS, false);
    for (uint32_t r = 0; r < RANKS; r++)
        ready(r);
    for (int k = 0; k < DEPTH; k++)
        for (uint32_t r = 0; r < RANKS; r++) {
            struct actor *a = &actors[r];

            if (k >= 8) /* slots are used again and again */
                expect_done(works[k - 8][r], "all_reduce");
            set(r, a->memory, (uint8_t)(k + (int)r));
            assert_int_equal(
                ruccl_all_reduce_async(world.comms[r], &a->in, &a->out, RUCCL_SUM, &works[k][r]),
                0);
            if (k == DEPTH - 1)
                see(r);
        }
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_seen(r, (uint8_t)(RANKS * (DEPTH - 1) + 3));
        for (int k = DEPTH - 8; k < DEPTH; k++)
            expect_done(works[k][r], "all_reduce");
    }
    close_world();
}

/* ---- clients that go */

static void expect_no_failure(void)
{
    struct raw c;

    raw_open(&c, driver.harness.socket);
    raw_ask_status(&c);
    for (uint32_t i = 0; i < c.reply.status_page.nitems; i++)
        if (c.reply.status_page.items[i].kind == STATUS_GPU)
            assert_int_equal(c.reply.status_page.items[i].gpu.failures, 0);
    raw_close(&c);
}

/* The daemon's stream is not done then, and writes into their cells. */
static void close_too_early(void)
{
    for (uint32_t r = 0; r < world.nranks; r++) {
        ruccl_work_release(actors[r].work);
        ruccl_close(world.conns[r]);
    }
    for (uint32_t r = 0; r < world.nranks; r++) {
        cu(cuStreamSynchronize(actors[r].stream));
        cu(cuStreamDestroy_v2(actors[r].stream));
        cu(cuMemFree_v2(actors[r].memory));
    }
}

TEST(clients_that_go_before_their_values_come_harm_nobody)
{
    struct driver_live before;

    driver_start(&driver, NULL);
    before = driver_live(&driver);
    for (unsigned i = 0; i < 10; i++) {
        open_world(RANKS, false);
        driver_say(&driver, i % 2 ? "delay:3600000000" : "delay:3000");
        sum_all();
        test_sleep_ms(i % 2 ? 20 : i / 2);
        close_too_early();
        test_sleep_ms(50); /* it has noticed */
        driver_say(&driver, "delay:0");
    }
    driver_expect_live(&driver, &before);
    expect_no_failure();
    open_world(RANKS, false);
    try_words("");
    close_world();
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest tests[] = {
        CLAIM(streams_go_on_while_the_daemon_knows_of_no_end),
        CLAIM(so_does_a_pair),
        CLAIM(so_does_a_start),
        CLAIM(streams_wait_for_the_daemon_where_two_gpus_are_at_work),
        CLAIM(streams_wait_for_the_daemon_where_several_streams_are_at_work),
        CLAIM(streams_go_on_where_the_driver_does_not_write_their_values),
        CLAIM(streams_go_on_where_the_gpu_writes_no_values),
        CLAIM(streams_go_on_where_an_operation_fails),
        CLAIM(a_hundred_calls_of_a_stream_follow_each_other),
        CLAIM(clients_that_go_before_their_values_come_harm_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
