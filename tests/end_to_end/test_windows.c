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

enum kind { ALL_REDUCE, REDUCE, BROADCAST, KINDS };
enum manner { BLOCKING, ASYNC, SHARED, MANNERS }; /* the first two on plain memory */

struct scene {
    struct world *world;
    struct tensors plain, shared;
    enum kind kind;
    enum ruccl_op op;
    uint32_t root;
    uint64_t count;
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

static void scene_fail(const struct scene *s, uint32_t rank, const char *what)
{
    static const char *const names[] = { "all_reduce", "reduce", "broadcast" };

    fail_msg("%s %d of %llu %s%s, root %u, shift %llu, manners %d %d %d: rank %u: %s",
             names[s->kind], (int)s->op, (unsigned long long)s->count,
             ruccl_dtype_name(s->plain.dtype), s->in_place ? " in place" : "", s->root,
             (unsigned long long)s->shift, (int)s->manners[0], (int)s->manners[1],
             (int)s->manners[2], rank, what);
}

static struct tensors *tensors_of(struct scene *s, uint32_t rank)
{
    return s->manners[rank] == SHARED ? &s->shared : &s->plain;
}

static uint64_t shift_of(const struct scene *s, uint32_t rank)
{
    return s->manners[rank] == SHARED ? 0 : s->shift;
}

static uint64_t bytes_of(const struct scene *s)
{
    return s->count * ruccl_dtype_bytes(s->plain.dtype);
}

static uint64_t out_at(const struct scene *s, uint32_t rank)
{
    return GUARD + shift_of(s, rank);
}

static struct ruccl_tensor tensor_at(const struct scene *s, const struct slab *slab, uint64_t at)
{
    return (struct ruccl_tensor){ .dtype = s->plain.dtype,
                                  .naxes = 1,
                                  .shape = { s->count },
                                  .region = slab->region,
                                  .offset = slab->region ? at : 0,
                                  .data = slab->region ? NULL : slab->bytes + at };
}

static int call(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    const struct ruccl_comm comm = s->world->comms[rank];
    const struct ruccl_tensor out = tensor_at(s, &t->out[rank], out_at(s, rank));
    const struct ruccl_tensor in =
        s->in_place ? out : tensor_at(s, &t->in[rank], shift_of(s, rank));
    struct ruccl_work *work;
    int r;

    if (s->manners[rank] != ASYNC)
        return s->kind == ALL_REDUCE ? ruccl_all_reduce(comm, &in, &out, s->op)
               : s->kind == REDUCE   ? ruccl_reduce(comm, &in, &out, s->op, s->root)
                                     : ruccl_broadcast(comm, &in, &out, s->root);
    r = s->kind == ALL_REDUCE ? ruccl_all_reduce_async(comm, &in, &out, s->op, &work)
        : s->kind == REDUCE   ? ruccl_reduce_async(comm, &in, &out, s->op, s->root, &work)
                              : ruccl_broadcast_async(comm, &in, &out, s->root, &work);
    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return r;
}

static void prepare(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    uint8_t *out = t->out[rank].bytes;

    memset(out, POISON, out_at(s, rank) + bytes_of(s) + GUARD);
    memcpy(s->in_place ? out + out_at(s, rank) : t->in[rank].bytes + shift_of(s, rank),
           t->given[rank], bytes_of(s));
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

static void check_right(struct scene *s, uint32_t rank, const uint8_t *out)
{
    char where[64];
    uint64_t bad;

    if (s->kind == BROADCAST) {
        if (memcmp(out, s->plain.given[s->root], bytes_of(s)))
            scene_fail(s, rank, "other bytes than the root's");
        return;
    }
    bad = reference_difference(s->plain.dtype, s->plain.expected, out, s->count);
    snprintf(where, sizeof(where), "element %llu is wrong", (unsigned long long)bad);
    if (bad < s->count)
        scene_fail(s, rank, where);
}

static void check(struct scene *s, uint32_t rank)
{
    const struct tensors *t = tensors_of(s, rank);
    const uint8_t *slab = t->out[rank].bytes, *out = slab + out_at(s, rank);

    if (!is_poison(slab, out_at(s, rank)) || !is_poison(out + bytes_of(s), GUARD))
        scene_fail(s, rank, "bytes around the output were written");
    if (s->kind != REDUCE || rank == s->root)
        check_right(s, rank, out);
    else if (s->in_place ? memcmp(out, t->given[rank], bytes_of(s)) != 0
                         : !is_poison(out, bytes_of(s)))
        scene_fail(s, rank, "an output that only the root has was written");
    if (!s->in_place &&
        memcmp(t->in[rank].bytes + shift_of(s, rank), t->given[rank], bytes_of(s)) != 0)
        scene_fail(s, rank, "an input was written");
}

static void begin(struct scene *s, struct player players[RANKS])
{
    if (s->kind != BROADCAST)
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

    s->count = sizes[size];
    s->root = (uint32_t)(unit_random(seed) % RANKS);
    s->in_place = unit_random(seed) % 2;
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

    scene_fill(s, dtype, 100 * (uint64_t)dtype);
    s->kind = BROADCAST;
    try_sizes(s, seed, RANKS);
    for (unsigned i = 0; i < ARRAY_SIZE(ops); i++) {
        if (!reference_legal(dtype, ops[i]))
            continue;
        s->op = ops[i];
        s->kind = ALL_REDUCE;
        try_sizes(s, seed, 2);
        s->kind = REDUCE;
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
            choose(&scenes[i], round % 2 ? 3 : (unsigned)i, &seed);
            scenes[i].kind = (enum kind)((round + i) % KINDS);
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
