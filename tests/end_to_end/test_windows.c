/*
 * Blocking collectives on plain memory around and above the size that passes through a window,
 * compared bit for bit with the reference, in all mixtures with other ways of calling.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/tensors.h"
#include "tests/unit/unit.h"

#define MIB    (1024u * 1024)
#define WINDOW (2 * MIB) /* bytes from which on a tensor passes through one */
#define MOST   (HARNESS_SANITIZED ? 3 * MIB + 4096 : 8 * MIB + 4096)
#define RANKS  3u
#define GUARD  TENSORS_GUARD
#define POISON 0xa5

static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- one collective */

enum kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, REDUCE_SCATTER, SCATTER, KINDS };
enum manner { BLOCKING, ASYNC, SHARED, MANNERS }; /* the first two on plain memory */

struct scene {
    struct world *world;
    struct tensors plain, shared;
    enum kind kind;
    enum ruccl_op op;
    uint32_t root;
    uint64_t count;  /* of the longer tensor, if they differ: of a block for each rank */
    uint64_t budget; /* 0: none */
    bool in_place;
    uint64_t shift; /* bytes that plain tensors lie behind aligned addresses; below 16 */
    enum manner manners[RANKS];
};

struct player {
    pthread_t thread;
    struct scene *scene;
    uint32_t rank;
    int result;
    char text[512];
};

static const char *const names[] = { "all_reduce", "reduce",         "broadcast", "all_gather",
                                     "gather",     "reduce_scatter", "scatter" };

static void scene_fail(const struct scene *s, uint32_t rank, const char *what)
{
    fail_msg("%s %d of %llu %s%s, budget %llu, root %u, shift %llu, manners %d %d %d: rank %u: %s",
             names[s->kind], (int)s->op, (unsigned long long)s->count,
             ruccl_dtype_name(s->plain.dtype), s->in_place ? " in place" : "",
             (unsigned long long)s->budget, s->root, (unsigned long long)s->shift,
             (int)s->manners[0], (int)s->manners[1], (int)s->manners[2], rank, what);
}

static bool kind_gathers(enum kind kind)
{
    return kind == ALL_GATHER || kind == GATHER;
}

static bool kind_scatters(enum kind kind)
{
    return kind == REDUCE_SCATTER || kind == SCATTER;
}

static bool kind_reduces(enum kind kind)
{
    return kind == ALL_REDUCE || kind == REDUCE || kind == REDUCE_SCATTER;
}

static struct tensors *tensors_of(struct scene *s, uint32_t rank)
{
    return s->manners[rank] == SHARED ? &s->shared : &s->plain;
}

static uint64_t shift_of(const struct scene *s, uint32_t rank)
{
    return s->manners[rank] == SHARED ? 0 : s->shift;
}

/* Elements of a tensor. */
static uint64_t count_of(const struct scene *s, bool out)
{
    return (out ? kind_scatters(s->kind) : kind_gathers(s->kind)) ? s->count / RANKS : s->count;
}

static uint64_t bytes_of(const struct scene *s, bool out)
{
    return count_of(s, out) * ruccl_dtype_bytes(s->plain.dtype);
}

/* In place both are in the slab of the output, the shorter one where the rank's block is. */
static uint64_t out_at(const struct scene *s, uint32_t rank)
{
    const bool behind = s->in_place && kind_scatters(s->kind);

    return GUARD + shift_of(s, rank) + (behind ? rank * bytes_of(s, true) : 0);
}

static uint64_t in_at(const struct scene *s, uint32_t rank)
{
    const bool behind = s->in_place && kind_gathers(s->kind);

    return (s->in_place ? GUARD : 0) + shift_of(s, rank) + (behind ? rank * bytes_of(s, false) : 0);
}

static const struct slab *in_slab(const struct scene *s, const struct tensors *t, uint32_t rank)
{
    return s->in_place ? &t->out[rank] : &t->in[rank];
}

static struct ruccl_tensor tensor_at(const struct scene *s, const struct slab *slab, uint64_t at,
                                     uint64_t count)
{
    return (struct ruccl_tensor){ .dtype = s->plain.dtype,
                                  .naxes = 1,
                                  .shape = { count },
                                  .region = slab->region,
                                  .offset = slab->region ? at : 0,
                                  .data = slab->region ? NULL : slab->bytes + at };
}

static int call_and_wait(const struct scene *s, struct ruccl_comm comm,
                         const struct ruccl_tensor *in, const struct ruccl_tensor *out)
{
    switch (s->kind) {
    case ALL_REDUCE:
        return ruccl_all_reduce(comm, in, out, s->op);
    case REDUCE:
        return ruccl_reduce(comm, in, out, s->op, s->root);
    case BROADCAST:
        return ruccl_broadcast(comm, in, out, s->root);
    case ALL_GATHER:
        return ruccl_all_gather(comm, in, out);
    case GATHER:
        return ruccl_gather(comm, in, out, s->root);
    case REDUCE_SCATTER:
        return ruccl_reduce_scatter(comm, in, out, s->op);
    default:
        return ruccl_scatter(comm, in, out, s->root);
    }
}

static int post(const struct scene *s, struct ruccl_comm comm, const struct ruccl_tensor *in,
                const struct ruccl_tensor *out, struct ruccl_work **ret)
{
    switch (s->kind) {
    case ALL_REDUCE:
        return ruccl_all_reduce_async(comm, in, out, s->op, ret);
    case REDUCE:
        return ruccl_reduce_async(comm, in, out, s->op, s->root, ret);
    case BROADCAST:
        return ruccl_broadcast_async(comm, in, out, s->root, ret);
    case ALL_GATHER:
        return ruccl_all_gather_async(comm, in, out, ret);
    case GATHER:
        return ruccl_gather_async(comm, in, out, s->root, ret);
    case REDUCE_SCATTER:
        return ruccl_reduce_scatter_async(comm, in, out, s->op, ret);
    default:
        return ruccl_scatter_async(comm, in, out, s->root, ret);
    }
}

static int call(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    const struct ruccl_comm whole = s->world->comms[rank];
    const struct ruccl_comm comm = s->budget ? ruccl_bounded(whole, s->budget) : whole;
    const struct ruccl_tensor in =
        tensor_at(s, in_slab(s, t, rank), in_at(s, rank), count_of(s, false));
    const struct ruccl_tensor out = tensor_at(s, &t->out[rank], out_at(s, rank), count_of(s, true));
    struct ruccl_work *work;
    int r;

    if (s->manners[rank] != ASYNC)
        return call_and_wait(s, comm, &in, &out);
    r = post(s, comm, &in, &out, &work);
    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return r;
}

static void prepare(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    const uint64_t most = MAX(bytes_of(s, false), bytes_of(s, true));

    memset(t->out[rank].bytes, POISON, GUARD + shift_of(s, rank) + most + GUARD);
    memcpy(in_slab(s, t, rank)->bytes + in_at(s, rank), t->given[rank], bytes_of(s, false));
}

static void *play(void *arg)
{
    struct player *p = arg;

    p->result = call(p->scene, p->rank);
    if (p->result < 0)
        snprintf(p->text, sizeof(p->text), "%s", ruccl_last_error()->text);
    return NULL;
}

/* ---- checks; cmocka is the main thread's alone */

static bool is_poison(const uint8_t *p, uint64_t bytes)
{
    return p[0] == POISON && memcmp(p, p + 1, bytes - 1) == 0;
}

static bool is_moved(const struct scene *s, uint32_t rank, const uint8_t *out)
{
    const uint64_t block = bytes_of(s, false);

    if (!kind_gathers(s->kind))
        return !memcmp(
            out, s->plain.given[s->root] + (s->kind == SCATTER ? rank * bytes_of(s, true) : 0),
            bytes_of(s, true));
    for (uint32_t r = 0; r < RANKS; r++)
        if (memcmp(out + r * block, s->plain.given[r], block))
            return false;
    return true;
}

static void check_right(struct scene *s, uint32_t rank, const uint8_t *out)
{
    const uint64_t n = count_of(s, true);
    const uint8_t *expected =
        s->plain.expected + (s->kind == REDUCE_SCATTER ? rank * bytes_of(s, true) : 0);
    char where[64];
    uint64_t bad;

    if (!kind_reduces(s->kind)) {
        if (!is_moved(s, rank, out))
            scene_fail(s, rank, "other bytes than were given");
        return;
    }
    bad = reference_difference(s->plain.dtype, expected, out, n);
    snprintf(where, sizeof(where), "element %llu is wrong", (unsigned long long)bad);
    if (bad < n)
        scene_fail(s, rank, where);
}

/* In place, bytes around the output are the input's. */
static void check_around(struct scene *s, uint32_t rank, const uint8_t *slab)
{
    const uint64_t from = GUARD + shift_of(s, rank);
    const uint64_t at = s->in_place ? from : out_at(s, rank);
    const uint64_t bytes =
        s->in_place ? MAX(bytes_of(s, false), bytes_of(s, true)) : bytes_of(s, true);

    if (!is_poison(slab, from) || !is_poison(slab + at + bytes, GUARD))
        scene_fail(s, rank, "bytes around the output were written");
}

static void check(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    const uint8_t *slab = t->out[rank].bytes, *out = slab + out_at(s, rank);
    const bool gets = (s->kind != REDUCE && s->kind != GATHER) || rank == s->root;

    check_around(s, rank, slab);
    if (gets)
        check_right(s, rank, out);
    else if (s->in_place ? memcmp(out, t->given[rank], bytes_of(s, true)) != 0
                         : !is_poison(out, bytes_of(s, true)))
        scene_fail(s, rank, "an output that only the root has was written");
    if (!s->in_place &&
        memcmp(t->in[rank].bytes + in_at(s, rank), t->given[rank], bytes_of(s, false)) != 0)
        scene_fail(s, rank, "an input was written");
}

static void begin(struct scene *s, struct player players[RANKS])
{
    if (kind_reduces(s->kind))
        tensors_expect_reduction(&s->plain, s->op, s->count);
    for (uint32_t r = 0; r < RANKS; r++)
        prepare(s, r);
    for (uint32_t r = 0; r < RANKS; r++) {
        players[r] = (struct player){ .scene = s, .rank = r };
        pthread_create(&players[r].thread, NULL, play, &players[r]);
    }
}

static void end(struct scene *s, struct player players[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(players[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        if (players[r].result != 0)
            scene_fail(s, r, players[r].text);
    for (uint32_t r = 0; r < RANKS; r++)
        check(s, r);
}

static void run(struct scene *s)
{
    struct player players[RANKS];

    begin(s, players);
    end(s, players);
}

/* ---- all that can be chosen */

static void scene_open(struct scene *s, struct world *w)
{
    *s = (struct scene){ .world = w };
    tensors_init(&s->plain, w, MOST + WINDOW, true);
    tensors_init(&s->shared, w, MOST + WINDOW, false);
}

static void scene_fill(struct scene *s, enum ruccl_dtype dtype, uint64_t seed)
{
    tensors_fill(&s->plain, dtype, seed);
    tensors_fill(&s->shared, dtype, seed);
}

static void scene_close(struct scene *s)
{
    tensors_fini(&s->plain);
    tensors_fini(&s->shared);
}

static void choose(struct scene *s, unsigned size, uint64_t *seed)
{
    const uint32_t width = ruccl_dtype_bytes(s->plain.dtype);
    const uint64_t sizes[] = { WINDOW / width - 1, WINDOW / width, WINDOW / width + 1,
                               MOST / width - 7 };
    static const uint64_t budgets[] = { 0, 0, 0, 40000, RANKS * 65536, 1000001, 3 * MIB };

    s->count = sizes[size];
    if (kind_gathers(s->kind) || kind_scatters(s->kind))
        s->count -= s->count % RANKS;
    s->root = (uint32_t)(unit_random(seed) % RANKS);
    s->in_place = s->kind != GATHER && s->kind != SCATTER && unit_random(seed) % 2;
    s->budget = budgets[unit_random(seed) % ARRAY_SIZE(budgets)];
    s->shift = unit_random(seed) % 3 ? unit_random(seed) % 16 : 0;
    for (uint32_t r = 0; r < RANKS; r++)
        s->manners[r] = (enum manner)(unit_random(seed) % 4 % MANNERS);
}

static void try_sizes(struct scene *s, uint64_t *seed, unsigned rounds)
{
    for (unsigned size = 0; size < 4; size++)
        for (unsigned round = 0; round < rounds; round++) {
            choose(s, size, seed);
            if (round == 0) /* at least once all of them through windows */
                memset(s->manners, 0, sizeof(s->manners));
            run(s);
        }
}

static void try_dtype(struct scene *s, enum ruccl_dtype dtype, uint64_t *seed)
{
    static const enum ruccl_op ops[] = { RUCCL_SUM, RUCCL_MEAN, RUCCL_MAX };

    static const enum kind moves[] = { BROADCAST, ALL_GATHER, GATHER, SCATTER };

    scene_fill(s, dtype, 100 * (uint64_t)dtype);
    for (unsigned i = 0; i < ARRAY_SIZE(moves); i++) {
        s->kind = moves[i];
        try_sizes(s, seed, 2);
    }
    for (unsigned i = 0; i < ARRAY_SIZE(ops); i++) {
        if (!reference_legal(dtype, ops[i]))
            continue;
        s->op = ops[i];
        s->kind = ALL_REDUCE;
        try_sizes(s, seed, 2);
        s->kind = REDUCE;
        try_sizes(s, seed, 2);
        s->kind = REDUCE_SCATTER;
        try_sizes(s, seed, 2);
    }
}

TEST(windows_give_the_same_bits)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_U8,  RUCCL_F8E4M3, RUCCL_BF16, RUCCL_F32,
                                               RUCCL_I64, RUCCL_F64,    RUCCL_C128 };
    struct harness_usage before;
    struct scene s;
    struct world w;
    uint64_t seed = 21;

    harness_start(&harness, NULL);
    before = harness_usage(&harness);
    world_open(&w, &harness, RANKS, RANKS);
    scene_open(&s, &w);
    for (unsigned i = 0; i < ARRAY_SIZE(dtypes); i++)
        if (!HARNESS_SANITIZED || i % 2 == 0)
            try_dtype(&s, dtypes[i], &seed);
    scene_close(&s);
    world_close(&w);
    harness_expect_usage(&harness, &before);
}

/* Chunks below a piece of the window, and one worker, or several. */
TEST(short_chunks_and_any_number_of_workers_give_the_same_bits)
{
    static const char *const workers[] = { "1", "3" };
    uint64_t seed = 22;

    for (unsigned i = 0; i < ARRAY_SIZE(workers); i++) {
        const char *const options[] = { "--workers", workers[i], "--set", "chunk_bytes=50000",
                                        NULL };
        struct scene s;
        struct world w;

        harness_start(&harness, options);
        world_open(&w, &harness, RANKS, RANKS);
        scene_open(&s, &w);
        scene_fill(&s, RUCCL_F32, 5);
        s.op = RUCCL_SUM;
        try_sizes(&s, &seed, 3);
        s.kind = BROADCAST;
        try_sizes(&s, &seed, 3);
        s.kind = ALL_GATHER;
        try_sizes(&s, &seed, 3);
        s.kind = REDUCE_SCATTER;
        try_sizes(&s, &seed, 3);
        scene_close(&s);
        world_close(&w);
        assert_int_equal(harness_stop(&harness), 0);
    }
}

/* Nine calls at once on one connection, each with a window of its own. */
TEST(threads_of_one_connection_do_not_disturb_each_other)
{
    enum { WORLDS = 3, ROUNDS = HARNESS_SANITIZED ? 3 : 12 };
    static const enum ruccl_dtype dtypes[WORLDS] = { RUCCL_F32, RUCCL_BF16, RUCCL_I64 };
    struct world worlds[WORLDS];
    struct scene scenes[WORLDS];
    uint64_t seed = 23;

    harness_start(&harness, NULL);
    world_open(&worlds[0], &harness, RANKS, 1);
    for (int i = 0; i < WORLDS; i++) {
        if (i > 0)
            world_join(&worlds[i], &worlds[0]);
        scene_open(&scenes[i], &worlds[i]);
        scene_fill(&scenes[i], dtypes[i], 50 + (uint64_t)i);
        scenes[i].op = RUCCL_SUM;
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct player players[WORLDS][RANKS];

        for (int i = 0; i < WORLDS; i++) {
            scenes[i].kind = (enum kind)((round + i) % KINDS);
            choose(&scenes[i], round % 2 ? 3 : (unsigned)i, &seed);
            if (round % 4)
                memset(scenes[i].manners, 0, sizeof(scenes[i].manners));
            begin(&scenes[i], players[i]);
        }
        for (int i = 0; i < WORLDS; i++)
            end(&scenes[i], players[i]);
    }
    for (int i = WORLDS; i-- > 0;) {
        scene_close(&scenes[i]);
        if (i > 0)
            world_leave(&worlds[i]);
    }
    world_close(&worlds[0]);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest tests[] = {
        CLAIM(windows_give_the_same_bits),
        CLAIM(short_chunks_and_any_number_of_workers_give_the_same_bits),
        CLAIM(threads_of_one_connection_do_not_disturb_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
