/*
 * Ranks as processes that share a GPU, or have one each, with any driver: exactness, killed ranks,
 * and what the daemon keeps of those that went. The director asks no driver for anything.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/fill.h"
#include "tests/end_to_end/gpus.h"
#include "tests/end_to_end/reference.h"

#define SLAB_BYTES (1u << 20)
#define GUARD      64u
#define POISON     0x5a
#define END        UINT32_MAX

/* Where ranks are. */
enum placing { TOGETHER, APART, MIXED /* every other one's tensors on the host */ };

static struct harness harness;
static struct stage *stage;
static uint32_t ngpus;

/* Of the play, for those who are forked then. */
static enum placing placing;
static uint32_t nranks;

static int stop(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

static void open_stage(void)
{
    harness_start(&harness, NULL);
    stage = stage_open(&harness);
}

/* ---- an actor's memory */

struct own {
    struct ruccl_conn *conn;
    struct ruccl_comm comm;
    CUstream stream;
    bool on_host;
    struct {
        struct ruccl_region *region;
        CUdeviceptr ptr;
    } in, out;
};

static uint32_t gpu_of(const struct part *me)
{
    return placing == APART ? me->rank : 0;
}

static void register_memory(struct part *me, struct own *own, CUdeviceptr ptr, uint64_t bytes,
                            struct ruccl_region **ret)
{
    part_ok(me, ruccl_register_cuda(own->conn, (void *)(uintptr_t)ptr, bytes, ret), "register");
    part_check(me, !ruccl_region_is_staged(*ret), "the daemon working where it is");
}

/* Handles of one kind here, of the other there. */
static void make_memory(struct part *me, struct own *own, uint64_t bytes, CUdeviceptr *ret_ptr,
                        struct ruccl_region **ret)
{
    const uint64_t whole = div_up_u64(bytes, GPUS_GRANULE) * GPUS_GRANULE;

    if (own->on_host) {
        *ret = part_alloc(me, own->conn, bytes);
        *ret_ptr = (uintptr_t)ruccl_region_data(*ret);
        return;
    }
    *ret_ptr = me->rank % 2 ? gpus_create(gpu_of(me), whole, true) : gpus_allocate(bytes);
    register_memory(me, own, *ret_ptr, bytes, ret);
}

static void own_open(struct stage *s, struct part *me, struct own *own, uint32_t id, uint64_t bytes)
{
    *own = (struct own){ .on_host = placing == MIXED && me->rank % 2 };
    gpus.alone = true;
    part_check(me, gpus_open(GPUS_MAX) == 0, "a GPU");
    gpus_enter(gpu_of(me));
    CU(cuStreamCreate(&own->stream, CU_STREAM_NON_BLOCKING));
    own->conn = part_connect(s, me);
    own->comm =
        ruccl_on_stream(part_join(s, me, own->conn, id, me->rank, nranks, NULL), own->stream);
    make_memory(me, own, bytes, &own->in.ptr, &own->in.region);
    make_memory(me, own, bytes, &own->out.ptr, &own->out.region);
}

static void own_close(struct part *me, struct own *own)
{
    part_ok(me, ruccl_leave(own->comm), "leave");
    ruccl_close(own->conn);
}

static void own_write(const struct own *own, CUdeviceptr to, const void *from, uint64_t bytes)
{
    if (own->on_host)
        memcpy((void *)(uintptr_t)to, from, bytes);
    else
        gpus_write(to, from, bytes);
}

static void own_read(const struct own *own, void *to, CUdeviceptr from, uint64_t bytes)
{
    if (own->on_host)
        memcpy(to, (void *)(uintptr_t)from, bytes);
    else
        gpus_read(to, from, bytes);
}

/* ---- exactness */

struct sample {
    enum ruccl_dtype dtype;
    enum ruccl_op op;
    uint64_t count, shift; /* elements */
};

static void compare(struct part *me, const struct own *own, const struct sample *s)
{
    static uint8_t given[HARNESS_RANKS][SLAB_BYTES], expected[SLAB_BYTES], got[SLAB_BYTES];
    const uint64_t width = ruccl_dtype_bytes(s->dtype), bytes = s->count * width;
    const struct ruccl_tensor in = { .dtype = s->dtype,
                                     .naxes = 1,
                                     .shape = { s->count },
                                     .region = own->in.region,
                                     .offset = s->shift * width };
    struct ruccl_tensor out = in;
    const void *inputs[HARNESS_RANKS];

    out.region = own->out.region;
    out.offset = GUARD + s->shift * width;
    for (uint32_t r = 0; r < nranks; r++) {
        fill_values(s->dtype, 100 * (uint64_t)s->dtype + r + 1, in.offset + bytes + 8, given[r]);
        inputs[r] = given[r] + in.offset;
    }
    memset(got, POISON, out.offset + bytes + GUARD);
    own_write(own, own->in.ptr, given[me->rank], in.offset + bytes);
    own_write(own, own->out.ptr, got, out.offset + bytes + GUARD);
    part_ok(me, ruccl_all_reduce(own->comm, &in, &out, s->op), "all_reduce");

    own_read(own, got, own->out.ptr, out.offset + bytes + GUARD);
    reference_reduce(s->dtype, s->op, inputs, nranks, s->count, expected);
    part_check(me, reference_difference(s->dtype, expected, got + out.offset, s->count) == s->count,
               ruccl_dtype_name(s->dtype));
    for (uint64_t i = 0; i < out.offset + bytes + GUARD; i++)
        if (i == out.offset)
            i += bytes - 1;
        else
            part_check(me, got[i] == POISON, "nothing else being written");
}

static void play_exact(struct stage *s, struct part *me)
{
    static const uint64_t counts[] = { 1009, 1, 8191, 4096, 37 };
    unsigned number = 0;
    struct own own;

    own_open(s, me, &own, 0, SLAB_BYTES);
    for (unsigned dtype = RUCCL_F32; dtype < REFERENCE_DTYPES; dtype++)
        for (unsigned op = RUCCL_SUM; op < REFERENCE_OPS; op++) {
            const struct sample sample = { (enum ruccl_dtype)dtype, (enum ruccl_op)op,
                                           counts[number % ARRAY_SIZE(counts)], number % 3 };

            if (!reference_legal(sample.dtype, sample.op))
                continue;
            compare(me, &own, &sample);
            number++;
            part_reach(me, number);
        }
    part_reach(me, END);
    own_close(me, &own);
}

static void try_exact(enum placing how, uint32_t n)
{
    placing = how;
    nranks = n;
    open_stage();
    for (uint32_t rank = 0; rank < n; rank++)
        stage_add(stage, rank, play_exact);
    for (uint32_t at = 10; at <= 50; at += 10) /* each with its own deadline */
        stage_await_all(stage, at);
    stage_await_all(stage, END);
    stage_dismiss_all(stage);
    gpus_expect_usage(&harness, stage->before);
    stop(NULL);
}

TEST(processes_on_one_gpu_give_the_bits_of_the_reference)
{
    try_exact(TOGETHER, 2);
    try_exact(TOGETHER, 3);
    try_exact(TOGETHER, HARNESS_RANKS);
}

TEST(processes_on_several_gpus_give_the_bits_of_the_reference)
{
    if (ngpus < 2)
        skip();
    try_exact(APART, 2);
    try_exact(APART, HARNESS_RANKS);
}

TEST(processes_with_memory_here_and_there_give_the_bits_of_the_reference)
{
    try_exact(MIXED, 2);
    try_exact(MIXED, 5);
}

/* ---- ranks that die */

#define LARGE_BYTES (8u << 20)

/* Goes on until it fails; every operation is in many chunks. */
static void play_endless(struct stage *s, struct part *me)
{
    struct ruccl_tensor in = { .dtype = RUCCL_F32,
                               .naxes = 1,
                               .shape = { LARGE_BYTES / sizeof(float) } };
    struct ruccl_tensor out = in;
    struct own own;
    uint32_t n = 0;
    int r;

    own_open(s, me, &own, 0, LARGE_BYTES);
    in.region = own.in.region;
    out.region = own.out.region;
    do {
        r = ruccl_all_reduce(ruccl_bounded(own.comm, 1u << 20), &in, &out, RUCCL_SUM);
        part_reach(me, ++n);
    } while (r == 0);
    part_report(me, r);
    CU(cuStreamSynchronize(own.stream)); /* nobody keeps the stream */
    part_reach(me, END);
    ruccl_close(own.conn);
}

TEST(a_rank_killed_in_an_operation_is_named_to_the_others)
{
    struct part *parts[3];
    int64_t since;

    placing = TOGETHER;
    nranks = ARRAY_SIZE(parts);
    open_stage();
    for (uint32_t rank = 0; rank < nranks; rank++)
        parts[rank] = stage_add(stage, rank, play_endless);
    stage_await_all(stage, 3);
    since = stage_now_us();
    stage_kill(parts[1]);
    for (uint32_t rank = 0; rank < nranks; rank += 2) {
        stage_await(parts[rank], END);
        stage_expect(parts[rank], 0, RUCCL_RANK_LOST, "rank 1", since);
    }
    stage_dismiss_all(stage);
    gpus_expect_usage(&harness, stage->before);
}

/* ---- clients that come and go */

#define CYCLES     60 /* of two processes each */
#define CYCLE_ID   1
#define KEPT_BYTES (32u << 20) /* of the GPU's memory, by chance */

/* Tells how much is free, whenever asked. */
static void play_watch(struct stage *s, struct part *me)
{
    size_t free_bytes, total;

    (void)s;
    gpus.alone = true;
    part_check(me, gpus_open(1) == 0, "a GPU");
    for (uint32_t cue = 1; cue <= 2; cue++) {
        part_wait(me, cue);
        CU(cuMemGetInfo_v2(&free_bytes, &total));
        atomic_store(cue == 1 ? &me->total : &me->done, free_bytes);
        part_reach(me, cue);
    }
}

/* One of them leaves without a word. */
static void play_visit(struct stage *s, struct part *me)
{
    struct ruccl_tensor in = { .dtype = RUCCL_F32, .naxes = 1, .shape = { 1000 } }, out = in;
    struct own own;

    own_open(s, me, &own, CYCLE_ID, LARGE_BYTES);
    in.region = own.in.region;
    out.region = own.out.region;
    part_ok(me, ruccl_all_reduce(own.comm, &in, &out, RUCCL_SUM), "all_reduce");
    if (me->rank == 0)
        own_close(me, &own);
}

static void visit(struct part *parts[2])
{
    atomic_store(&stage->ids[CYCLE_ID].ready, false);
    for (int i = 0; i < 2; i++)
        stage_play(stage, parts[i], play_visit);
    for (int i = 0; i < 2; i++)
        stage_dismiss(parts[i]);
}

TEST(the_daemon_keeps_no_memory_of_processes_that_left)
{
    struct harness_usage before;
    struct part *watch, *parts[2];

    placing = TOGETHER;
    nranks = 2;
    open_stage();
    watch = stage_add(stage, 0, play_watch);
    for (uint32_t rank = 0; rank < 2; rank++)
        parts[rank] = stage_reserve(stage, rank);
    for (int i = 0; i < 3; i++) /* what the daemon and the driver keep for good */
        visit(parts);
    before = harness_usage(&harness);
    stage_cue(watch, 1);
    stage_await(watch, 1);
    for (int i = 0; i < CYCLES; i++)
        visit(parts);
    gpus_expect_usage(&harness, before);
    stage_cue(watch, 2);
    stage_dismiss(watch);
    if (atomic_load(&watch->done) + KEPT_BYTES < atomic_load(&watch->total))
        fail_msg("of the GPU's memory, %llu bytes were free, and %llu are",
                 (unsigned long long)atomic_load(&watch->total),
                 (unsigned long long)atomic_load(&watch->done));
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop)
    const struct CMUnitTest tests[] = {
        CLAIM(processes_on_one_gpu_give_the_bits_of_the_reference),
        CLAIM(processes_on_several_gpus_give_the_bits_of_the_reference),
        CLAIM(processes_with_memory_here_and_there_give_the_bits_of_the_reference),
        CLAIM(a_rank_killed_in_an_operation_is_named_to_the_others),
        CLAIM(the_daemon_keeps_no_memory_of_processes_that_left),
    };

    ngpus = gpus_probe(GPUS_MAX);
    return ngpus ? cmocka_run_group_tests(tests, NULL, NULL) : GPUS_SKIP;
}
