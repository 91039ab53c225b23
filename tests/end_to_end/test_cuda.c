/*
 * Memory of GPUs, end to end: the daemon and its clients with one driver, the tests' own or a real
 * one. Every rank is in a stream of its own, and the GPUs, one or two, take turns.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/gpus.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/trial.h"
#include "tests/unit/unit.h"

#define GPUS         2
#define TENSOR_BYTES (512u << 10)
#define BYTES        4096u

static struct harness harness;

/* A rank's: streams of its GPU; the second for what would wait for the first. */
static CUstream streams[HARNESS_RANKS][2];

/* ---- the scene */

static void settle(uint32_t rank)
{
    gpus_enter(rank);
    for (int i = 0; i < 2; i++)
        CU(cuStreamSynchronize(streams[rank][i]));
}

static int start_driver(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < HARNESS_RANKS; r++) {
        gpus_enter(r);
        for (int i = 0; i < 2; i++)
            CU(cuStreamCreate(&streams[r][i], CU_STREAM_NON_BLOCKING));
        gpus_hold_up(streams[r][0]); /* what it needs is there when streams wait */
        settle(r);
    }
    return 0;
}

/* Whatever the tests' driver does in this stream takes its time. */
static void delay(uint32_t rank, uint64_t us)
{
    if (gpus_are_fake())
        gpus.delay_us(streams[rank][0], us);
}

static int stop_daemon(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < HARNESS_RANKS; r++)
        delay(r, 0);
    return harness_stop(&harness);
}

static void open_world(struct world *w, uint32_t nranks)
{
    world_open(w, &harness, nranks, nranks);
    for (uint32_t r = 0; r < nranks; r++)
        w->comms[r] = ruccl_on_stream(w->comms[r], streams[r][0]);
}

/* What streams of a connection have not passed would be kept. */
static void close_world(struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++)
        settle(r);
    world_close(w);
}

/* ---- memory of every kind */

static void registered(struct slab *s, struct world *w, uint32_t rank, CUdeviceptr ptr,
                       uint64_t bytes, bool staged)
{
    if (ruccl_register_cuda(world_conn(w, rank), (void *)(uintptr_t)ptr, bytes, &s->region) < 0)
        fail_msg("register: %s", ruccl_last_error()->text);
    assert_int_equal(ruccl_region_is_staged(s->region), staged);
    s->away = ptr;
    s->bytes = calloc(1, bytes);
    assert_non_null(s->bytes);
}

static void end(struct slab *s)
{
    ruccl_release(s->region);
    free(s->bytes);
}

static void make_allocated(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    gpus_enter(rank);
    registered(s, w, rank, gpus_allocate(bytes), bytes, false);
}

static void end_allocated(struct slab *s)
{
    end(s);
    CU(cuMemFree_v2(s->away));
}

static void make_created(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    assert_true(bytes <= GPUS_GRANULE);
    gpus_enter(rank);
    registered(s, w, rank, gpus_create(rank, GPUS_GRANULE, true), bytes, false);
}

static void end_created(struct slab *s)
{
    end(s);
    gpus_uncreate(s->away, GPUS_GRANULE);
}

/* That cannot be handed over. */
static void make_staged(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    assert_true(bytes <= GPUS_GRANULE);
    gpus_enter(rank);
    registered(s, w, rank, gpus_create(rank, GPUS_GRANULE, false), bytes, true);
}

/* Some ranks, and some of their tensors, on the host. */
static void make_on_host(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    if (ruccl_alloc(world_conn(w, rank), bytes, &s->region) < 0)
        fail_msg("alloc: %s", ruccl_last_error()->text);
    s->bytes = ruccl_region_data(s->region);
}

static void make_mixed(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    static unsigned count;

    (count++ % 3 ? make_on_host : make_allocated)(s, w, rank, bytes);
}

/* Ranks on GPU 0, GPU 1, the host and GPU 1. */
static void make_by_rank(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes)
{
    (rank == 2 ? make_on_host : make_allocated)(s, w, rank, bytes);
}

static void end_mixed(struct slab *s)
{
    if (s->away)
        end_allocated(s);
    else
        ruccl_free(s->region);
}

static void write_away(const struct slab *s, uint64_t bytes)
{
    gpus_write(s->away, s->bytes, bytes);
}

static void read_away(const struct slab *s, uint64_t bytes)
{
    gpus_read(s->bytes, s->away, bytes);
}

static const struct slab_maker allocated = { make_allocated, end_allocated, write_away, read_away };
static const struct slab_maker created = { make_created, end_created, write_away, read_away };
static const struct slab_maker staged = { make_staged, end_created, write_away, read_away };
static const struct slab_maker by_rank = { make_by_rank, end_mixed, write_away, read_away };
static const struct slab_maker mixed = { make_mixed, end_mixed, write_away, read_away };

/* ---- exactness */

static uint64_t trial_number;

/* Sizes, budgets and forms take turns, each with a period of its own. */
static void try_one(struct tensors *t, enum trial_kind kind, enum ruccl_op op)
{
    static const uint64_t counts[] = { 1009, 1, 45, 6007, 0 };
    const uint64_t n = trial_number++;
    struct trial trial = {
        .kind = kind,
        .op = op,
        .root = (uint32_t)(n % t->world->nranks),
        .count = counts[n % ARRAY_SIZE(counts)],
        .row = 1,
        .budget = RUCCL_NO_BUDGET,
        .in_place = n % 2 && scene_has_in_place(kind),
        .spare = n % 2 && !scene_has_in_place(kind),
        .shift = n % 3,
    };

    if (n % 7 == 3)
        trial.budget = trial_least_budget(t, &trial) * (trial.count / 3 + 1) + 1;
    trial_run(t, &trial);
}

static void try_kinds(struct tensors *t, enum ruccl_op op)
{
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++)
        if (kind != TRIAL_RING && scene_reduces((enum trial_kind)kind) == (op != TRIAL_NO_OP))
            try_one(t, (enum trial_kind)kind, op);
}

static void try_world(uint32_t nranks, const struct slab_maker *maker)
{
    struct tensors tensors;
    struct world world;

    open_world(&world, nranks);
    tensors_init_made(&tensors, &world, TENSOR_BYTES, maker);
    for (unsigned dtype = RUCCL_F32; dtype < REFERENCE_DTYPES; dtype++) {
        tensors_fill(&tensors, (enum ruccl_dtype)dtype, 1000 * (uint64_t)dtype);
        try_kinds(&tensors, TRIAL_NO_OP);
        for (unsigned op = RUCCL_SUM; op < REFERENCE_OPS; op++)
            if (reference_legal((enum ruccl_dtype)dtype, (enum ruccl_op)op))
                try_kinds(&tensors, (enum ruccl_op)op);
        tensors_expect_unchanged(&tensors);
    }
    for (uint32_t r = 0; r < nranks; r++)
        settle(r);
    tensors_fini(&tensors);
    close_world(&world);
}

static void try_worlds(const struct slab_maker *maker)
{
    struct harness_usage before;

    try_world(2, maker); /* what the daemon makes once it has made */
    before = harness_usage(&harness);
    try_world(1, maker);
    try_world(3, maker);
    try_world(4, maker);
    gpus_expect_usage(&harness, before);
}

TEST(allocated_memory_gives_the_bits_of_the_reference)
{
    harness_start(&harness, NULL);
    try_worlds(&allocated);
}

TEST(created_memory_gives_the_bits_of_the_reference)
{
    harness_start(&harness, NULL);
    try_worlds(&created);
}

TEST(staged_memory_gives_the_bits_of_the_reference)
{
    harness_start(&harness, NULL);
    try_worlds(&staged);
}

TEST(memory_of_all_kinds_gives_the_bits_of_the_reference)
{
    harness_start(&harness, NULL);
    try_worlds(&mixed);
}

TEST(ranks_on_gpus_and_on_the_host_give_the_bits_of_the_reference)
{
    harness_start(&harness, NULL);
    try_worlds(&by_rank);
}

static void start_without_peers(void)
{
    if (!gpus_are_fake())
        skip();
    setenv("FAKE_CUDA_PEERS", "no", 1); /* the daemon's driver; ours has started */
    harness_start(&harness, NULL);
    unsetenv("FAKE_CUDA_PEERS");
}

TEST(gpus_that_do_not_reach_each_other_give_the_bits_of_the_reference)
{
    start_without_peers();
    try_worlds(&allocated);
}

TEST(gpus_that_do_not_reach_each_other_and_the_host_give_the_bits_of_the_reference)
{
    start_without_peers();
    try_worlds(&by_rank);
}

/* ---- overlap */

static struct ruccl_tensor tensor_of(const struct slab *s)
{
    return (struct ruccl_tensor){
        .dtype = RUCCL_U8, .naxes = 1, .shape = { BYTES }, .region = s->region
    };
}

/* A descriptor has no identity, but its region has. */
static void try_overlap(const struct slab_maker *maker)
{
    struct slab first, second;
    struct ruccl_tensor in, out;
    struct world w;

    open_world(&w, 1);
    maker->make(&first, &w, 0, 3 * BYTES);
    registered(&second, &w, 0, first.away + BYTES / 2, 2 * BYTES, false);
    in = tensor_of(&first);
    out = tensor_of(&second);
    assert_int_equal(ruccl_all_reduce(w.comms[0], &in, &out, RUCCL_SUM), -RUCCL_OVERLAP);
    out.offset = BYTES / 2;
    assert_int_equal(ruccl_all_reduce(w.comms[0], &in, &out, RUCCL_SUM), 0);
    end(&second);
    maker->end(&first);
    close_world(&w);
}

TEST(tensors_that_overlap_are_found_across_regions_of_one_allocation)
{
    harness_start(&harness, NULL);
    try_overlap(&allocated);
    try_overlap(&created);
}

/* ---- order: nobody waits for works, and streams are late */

#define LATE_US 20000

struct part {
    struct slab in, out, seen;
};

/* Of a persistent operation, which waits for all. */
struct making {
    pthread_t thread;
    struct ruccl_comm comm;
    const struct part *part;
    struct ruccl_persistent *persistent;
    int r;
};

static void parts_open(struct world *w, struct part *parts)
{
    memset(parts, 0, w->nranks * sizeof(parts[0]));
    for (uint32_t r = 0; r < w->nranks; r++) {
        make_allocated(&parts[r].in, w, r, BYTES);
        make_allocated(&parts[r].out, w, r, BYTES);
        make_allocated(&parts[r].seen, w, r, BYTES);
        delay(r, LATE_US);
    }
}

static void parts_close(struct world *w, struct part *parts)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        delay(r, 0);
        settle(r);
        end_allocated(&parts[r].in);
        end_allocated(&parts[r].out);
        end_allocated(&parts[r].seen);
    }
    close_world(w);
}

static void set(const struct slab *s, uint32_t rank, uint8_t value)
{
    gpus_enter(rank);
    gpus_hold_up(streams[rank][0]);
    CU(cuMemsetD8Async(s->away, value, BYTES, streams[rank][0]));
}

static void copy(const struct slab *to, const struct slab *from, uint32_t rank)
{
    gpus_enter(rank);
    CU(cuMemcpyAsync(to->away, from->away, BYTES, streams[rank][0]));
}

static void expect_bytes(const struct slab *s, uint32_t rank, uint8_t value)
{
    gpus_enter(rank);
    read_away(s, BYTES);
    for (uint32_t i = 0; i < BYTES; i++)
        if (s->bytes[i] != value)
            fail_msg("rank %u: byte %u is %u, not %u", rank, i, s->bytes[i], value);
}

TEST(calls_see_what_the_stream_wrote_and_the_stream_what_they_wrote)
{
    enum { N = 4, SUM = 1 + 2 + 3 + 4 };
    struct ruccl_work *works[N];
    struct part parts[N];
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    for (uint32_t r = 0; r < N; r++) {
        const struct ruccl_tensor in = tensor_of(&parts[r].in), out = tensor_of(&parts[r].out);

        set(&parts[r].in, r, (uint8_t)(r + 1));
        assert_int_equal(ruccl_all_reduce_async(w.comms[r], &in, &out, RUCCL_SUM, &works[r]), 0);
        copy(&parts[r].seen, &parts[r].out, r);
        set(&parts[r].in, r, 77); /* not before it was read */
    }
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_bytes(&parts[r].seen, r, SUM);
        expect_done(works[r], "all_reduce");
        expect_bytes(&parts[r].out, r, SUM);
    }
    parts_close(&w, parts);
}

TEST(calls_of_a_stream_follow_each_other)
{
    enum { N = 3, DEPTH = 4 };
    struct ruccl_work *works[DEPTH][N];
    struct part parts[N];
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    for (uint32_t r = 0; r < N; r++)
        set(&parts[r].in, r, 1);
    for (int k = 0; k < DEPTH; k++)
        for (uint32_t r = 0; r < N; r++) {
            const struct ruccl_tensor in = tensor_of(&parts[r].in), out = tensor_of(&parts[r].out);

            assert_int_equal(ruccl_all_reduce_async(w.comms[r], &in, &out, RUCCL_SUM, &works[k][r]),
                             0);
            copy(&parts[r].in, &parts[r].out, r);
        }
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_bytes(&parts[r].in, r, N * N * N * N);
        for (int k = 0; k < DEPTH; k++)
            expect_done(works[k][r], "all_reduce");
    }
    parts_close(&w, parts);
}

TEST(starts_of_a_persistent_operation_follow_each_other)
{
    enum { DEPTH = 5 };
    struct ruccl_persistent *persistent;
    struct ruccl_work *works[DEPTH];
    struct ruccl_tensor in, out;
    struct part part;
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, 1); /* the making blocks: one rank, whose sum is its own */
    parts_open(&w, &part);
    in = tensor_of(&part.in);
    out = tensor_of(&part.out);
    assert_int_equal(ruccl_all_reduce_init(w.comms[0], &in, &out, RUCCL_SUM, &persistent), 0);
    for (int k = 0; k < DEPTH; k++) {
        set(&part.in, 0, (uint8_t)(k + 1));
        assert_int_equal(ruccl_start(persistent, &works[k]), 0);
        copy(&part.seen, &part.out, 0);
    }
    settle(0);
    expect_bytes(&part.seen, 0, DEPTH);
    for (int k = 0; k < DEPTH; k++)
        expect_done(works[k], "start");
    ruccl_persistent_release(persistent);
    parts_close(&w, &part);
}

TEST(an_exchange_takes_a_stream_each_way)
{
    enum { N = 4 };
    struct ruccl_work *sends[N], *recvs[N];
    struct part parts[N];
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    for (uint32_t r = 0; r < N; r++) {
        const struct ruccl_comm other = ruccl_on_stream(w.comms[r], streams[r][1]);
        const struct ruccl_tensor in = tensor_of(&parts[r].in), out = tensor_of(&parts[r].out);

        set(&parts[r].in, r, (uint8_t)(r + 1));
        assert_int_equal(ruccl_send_async(w.comms[r], &in, (r + 1) % N, 5, &sends[r]), 0);
        assert_int_equal(ruccl_recv_async(other, &out, (r + N - 1) % N, 5, &recvs[r]), 0);
    }
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_bytes(&parts[r].out, r, (uint8_t)((r + N - 1) % N + 1));
        expect_done(sends[r], "send");
        expect_done(recvs[r], "recv");
    }
    parts_close(&w, parts);
}

/* ---- failures */

TEST(a_mismatch_writes_nothing_and_stops_no_stream)
{
    enum { N = 2 };
    struct ruccl_work *works[N];
    struct part parts[N];
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    for (uint32_t r = 0; r < N; r++) {
        struct ruccl_tensor in = tensor_of(&parts[r].in), out = tensor_of(&parts[r].out);

        set(&parts[r].out, r, 9);
        in.shape[0] = out.shape[0] = BYTES - r;
        assert_int_equal(ruccl_all_reduce_async(w.comms[r], &in, &out, RUCCL_SUM, &works[r]), 0);
    }
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_failure(works[r], RUCCL_MISMATCH, "all_reduce");
        expect_bytes(&parts[r].out, r, 9);
    }
    parts_close(&w, parts);
}

static void start_all(struct ruccl_persistent *const *persistent, struct ruccl_work **works,
                      uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        assert_int_equal(ruccl_start(persistent[r], &works[r]), 0);
}

static void *make_persistent(void *arg)
{
    struct making *m = arg;
    const struct ruccl_tensor in = tensor_of(&m->part->in), out = tensor_of(&m->part->out);

    m->r = ruccl_all_reduce_init(m->comm, &in, &out, RUCCL_SUM, &m->persistent);
    return NULL;
}

static void make_all(struct world *w, struct part *parts, struct ruccl_persistent **ret)
{
    struct making makings[HARNESS_RANKS];

    for (uint32_t r = 0; r < w->nranks; r++) {
        makings[r] = (struct making){ .comm = w->comms[r], .part = &parts[r] };
        assert_int_equal(pthread_create(&makings[r].thread, NULL, make_persistent, &makings[r]), 0);
    }
    for (uint32_t r = 0; r < w->nranks; r++) {
        pthread_join(makings[r].thread, NULL);
        assert_int_equal(makings[r].r, 0);
        ret[r] = makings[r].persistent;
    }
}

TEST(a_start_whose_stream_has_failed_fails_for_every_rank_and_the_next_goes_on)
{
    enum { N = 2 };
    struct ruccl_persistent *persistent[N];
    struct ruccl_work *works[N];
    struct part parts[N];
    struct world w;

    if (!gpus_are_fake()) /* a real one fails on nobody's demand */
        skip();
    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    make_all(&w, parts, persistent);
    for (uint32_t r = 0; r < N; r++) {
        set(&parts[r].in, r, (uint8_t)(r + 1));
        set(&parts[r].out, r, 9);
    }
    gpus.fail_call("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
    start_all(persistent, works, N);
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_failure(works[r], RUCCL_SYSTEM, "cuEventRecord");
        expect_bytes(&parts[r].out, r, 9);
    }
    start_all(persistent, works, N);
    for (uint32_t r = 0; r < N; r++) {
        settle(r);
        expect_done(works[r], "start");
        expect_bytes(&parts[r].out, r, 1 + 2);
        ruccl_persistent_release(persistent[r]);
    }
    parts_close(&w, parts);
}

TEST(a_daemon_that_dies_stops_no_stream)
{
    enum { N = 2 };
    struct ruccl_tensor in, out;
    struct ruccl_work *work;
    struct part parts[N];
    struct world w;

    harness_start(&harness, NULL);
    open_world(&w, N);
    parts_open(&w, parts);
    in = tensor_of(&parts[0].in);
    out = tensor_of(&parts[0].out);
    assert_int_equal(ruccl_all_reduce_async(w.comms[0], &in, &out, RUCCL_SUM, &work), 0);
    harness_kill(&harness);
    expect_failure(work, RUCCL_DAEMON_LOST, "all_reduce");
    settle(0);
    for (uint32_t r = 0; r < N; r++) {
        end_allocated(&parts[r].in);
        end_allocated(&parts[r].out);
        end_allocated(&parts[r].seen);
        ruccl_close(w.conns[r]);
    }
}

/* ---- clients that come and go */

static void leave_without_a_word(struct world *w, struct part *parts)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        struct slab *const slabs[] = { &parts[r].in, &parts[r].out, &parts[r].seen };

        delay(r, 0);
        ruccl_close(w->conns[r]);
        for (int i = 0; i < 3; i++) {
            CU(cuMemFree_v2(slabs[i]->away));
            free(slabs[i]->bytes);
        }
    }
}

TEST(the_daemon_keeps_nothing_of_clients_that_left)
{
    struct harness_usage before;
    struct part parts[2];
    struct world w;

    harness_start(&harness, NULL);
    for (int round = 0; round < 30; round++) {
        if (round == 3)
            before = harness_usage(&harness);
        open_world(&w, 2);
        parts_open(&w, parts);
        if (round % 2)
            leave_without_a_word(&w, parts);
        else
            parts_close(&w, parts);
    }
    gpus_expect_usage(&harness, before);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest tests[] = {
        CLAIM(allocated_memory_gives_the_bits_of_the_reference),
        CLAIM(created_memory_gives_the_bits_of_the_reference),
        CLAIM(staged_memory_gives_the_bits_of_the_reference),
        CLAIM(memory_of_all_kinds_gives_the_bits_of_the_reference),
        CLAIM(ranks_on_gpus_and_on_the_host_give_the_bits_of_the_reference),
        CLAIM(gpus_that_do_not_reach_each_other_give_the_bits_of_the_reference),
        CLAIM(gpus_that_do_not_reach_each_other_and_the_host_give_the_bits_of_the_reference),
        CLAIM(tensors_that_overlap_are_found_across_regions_of_one_allocation),
        CLAIM(calls_see_what_the_stream_wrote_and_the_stream_what_they_wrote),
        CLAIM(calls_of_a_stream_follow_each_other),
        CLAIM(starts_of_a_persistent_operation_follow_each_other),
        CLAIM(an_exchange_takes_a_stream_each_way),
        CLAIM(a_mismatch_writes_nothing_and_stops_no_stream),
        CLAIM(a_start_whose_stream_has_failed_fails_for_every_rank_and_the_next_goes_on),
        CLAIM(a_daemon_that_dies_stops_no_stream),
        CLAIM(the_daemon_keeps_nothing_of_clients_that_left),
    };

    if (gpus_open(GPUS) < 0)
        return GPUS_SKIP;
    return cmocka_run_group_tests(tests, start_driver, NULL);
}
