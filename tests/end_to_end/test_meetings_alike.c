/* Meetings give the same bytes, and the same counts of rows, as the daemon does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/slate.h"
#include "tests/end_to_end/crew.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/scene.h"
#include "tests/unit/unit.h"

/* Most meetings come about, also on a machine that has other things to do. */
static const char *const patient[] = { "--set=spin=2ms", NULL };

static struct harness harness;
static struct crew crew;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- bytes */

#define TRIES        3u /* blocking calls for each asynchronous one */
#define REDUCE_BYTES (128u << 10)
#define SIZES        6u

struct attempt {
    struct tensors *t;
    struct trial trial; /* of rank 0; others' tensors are shifted otherwise */
    uint8_t *other[HARNESS_RANKS];
    uint32_t met;
};

static bool same_output(const struct scene *s, uint32_t rank, const uint8_t *a, const uint8_t *b)
{
    const struct span used = scene_used_span(s, rank), out = scene_out_span(s, rank);

    if (!scene_reduces(s->trial->kind) || s->nranks == 1 || !scene_writes(s, rank))
        return memcmp(a, b, used.at + used.bytes + TENSORS_GUARD) == 0;
    return scene_kept_guards(s, rank, a) &&
           reference_difference(s->dtype, b + out.at, a + out.at, out.bytes / s->width) ==
               out.bytes / s->width;
}

static int play_attempt(struct crew_rank *me)
{
    struct attempt *a = me->context;
    struct slab *in = &a->t->in[me->rank], *out = &a->t->out[me->rank];
    struct trial trial = a->trial;
    struct ruccl_work *work;
    struct scene s;
    int r;

    trial.shift = (trial.shift + me->rank) % 4;
    s = scene_of(&trial, a->t->dtype, me->world->nranks);
    scene_prepare(&s, me->rank, a->t->given[me->rank], out->bytes);
    r = scene_call(&s, me->rank, me->comm, in, out, &work);
    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    if (r != 0)
        return -RUCCL_TIMEOUT;
    memcpy(a->other[me->rank], out->bytes, a->t->bytes);
    for (uint32_t i = 1; i <= TRIES; i++) {
        scene_prepare(&s, me->rank, a->t->given[me->rank], out->bytes);
        r = scene_call_blocking(&s, me->rank, me->comm, in, out);
        if (r < 0)
            return r;
        crew_check(me, same_output(&s, me->rank, out->bytes, a->other[me->rank]),
                   "other bytes than by the asynchronous call");
        me->done += crew_has_met(me->world->nranks, me->world->sequence + 1 + i);
    }
    return 0;
}

static void expect_alike(const struct attempt *a)
{
    const uint32_t nranks = a->t->world->nranks;

    for (uint32_t r = 1; r < nranks && a->trial.kind == TRIAL_ALL_REDUCE; r++) {
        struct trial mine = a->trial, first = a->trial;
        struct scene s0, s;

        first.shift %= 4;
        mine.shift = (mine.shift + r) % 4;
        s0 = scene_of(&first, a->t->dtype, nranks);
        s = scene_of(&mine, a->t->dtype, nranks);
        assert_memory_equal(a->t->out[r].bytes + scene_out_span(&s, r).at,
                            a->t->out[0].bytes + scene_out_span(&s0, 0).at,
                            scene_out_span(&s, r).bytes);
    }
}

static void try_trial(struct attempt *a)
{
    char what[160];

    snprintf(what, sizeof(what), "%s of %llu %s (op %d%s) among %u ranks",
             scene_kind_name(a->trial.kind), (unsigned long long)a->trial.count,
             ruccl_dtype_name(a->t->dtype), (int)a->trial.op, a->trial.in_place ? ", in place" : "",
             a->t->world->nranks);
    crew_start(&crew, a->t->world, play_attempt, a);
    if (!crew_ends(&crew, HARNESS_PATIENCE_US / 1000))
        fail_msg("%s: does not end", what);
    crew_expect_success(&crew, what);
    expect_alike(a);
    a->t->world->sequence += 1 + TRIES;
    a->met += crew.ranks[0].done > 0;
}

/* Elements of a block: the last but one is the most that meets, the last is more. */
static uint64_t count_of(const struct attempt *a, unsigned size)
{
    static const uint64_t some[SIZES] = { 0, 1, 45, 1009 };
    const uint32_t nranks = a->t->world->nranks;
    const enum trial_kind kind = a->trial.kind;
    uint64_t most = SLATE_BYTES;

    if (size < 4)
        return some[size];
    if (scene_reduces(kind))
        most = MIN(most, REDUCE_BYTES / nranks);
    if (kind == TRIAL_REDUCE_SCATTER || kind == TRIAL_SCATTER || kind == TRIAL_ALL_TO_ALL)
        most /= nranks;
    return most / ruccl_dtype_bytes(a->t->dtype) + (size == 5);
}

static void try_sizes(struct attempt *a)
{
    for (unsigned size = 0; size < SIZES; size++)
        for (int in_place = 0; in_place <= scene_has_in_place(a->trial.kind); in_place++) {
            a->trial.count = count_of(a, size);
            a->trial.row = size == 2 ? 3 : 1;
            a->trial.in_place = in_place;
            a->trial.spare = size == 3; /* what only the root has is left out */
            a->trial.shift++;
            a->trial.root = (uint32_t)a->trial.shift % a->t->world->nranks;
            try_trial(a);
        }
}

static void try_ops(struct attempt *a)
{
    for (unsigned op = RUCCL_SUM; op < REFERENCE_OPS; op++)
        if (reference_legal(a->t->dtype, (enum ruccl_op)op)) {
            a->trial.op = (enum ruccl_op)op;
            try_sizes(a);
        }
}

/* Memory of the library and plain one, by turns; each kind has met somewhere. */
static void try_kinds(struct world *w, const enum ruccl_dtype *dtypes, size_t ndtypes)
{
    uint32_t met[TRIAL_KINDS] = { 0 };

    for (size_t i = 0; i < ndtypes; i++) {
        struct tensors t;
        struct attempt a = { .t = &t, .trial.budget = RUCCL_NO_BUDGET };

        tensors_init(&t, w, w->nranks * (SLATE_BYTES + 1024), i % 2);
        for (uint32_t r = 0; r < w->nranks; r++)
            a.other[r] = malloc(t.bytes);
        tensors_fill(&t, dtypes[i], 1000 * (i + 1));
        for (unsigned kind = 0; kind < TRIAL_ALL_TO_ALL_V; kind++) {
            a.trial.kind = (enum trial_kind)kind;
            a.trial.op = TRIAL_NO_OP;
            a.met = 0;
            if (scene_reduces(a.trial.kind))
                try_ops(&a);
            else
                try_sizes(&a);
            met[kind] += a.met;
        }
        tensors_expect_unchanged(&t);
        for (uint32_t r = 0; r < w->nranks; r++)
            free(a.other[r]);
        tensors_fini(&t);
    }
    for (unsigned kind = 0; kind < TRIAL_ALL_TO_ALL_V; kind++)
        if (met[kind] == 0)
            fail_msg("no %s has met", scene_kind_name((enum trial_kind)kind));
}

static void try_among(uint32_t nranks, const enum ruccl_dtype *dtypes, size_t ndtypes)
{
    struct world w;

    harness_start(&harness, patient);
    world_open(&w, &harness, nranks, nranks);
    try_kinds(&w, dtypes, ndtypes);
    world_close(&w);
}

TEST(two_ranks_get_the_same_bytes_as_by_the_daemon)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_F32,  RUCCL_BF16,     RUCCL_F8E5M2, RUCCL_F64,
                                               RUCCL_I8,   RUCCL_U16,      RUCCL_I32,    RUCCL_U64,
                                               RUCCL_C128, RUCCL_PACKED_U8 };

    try_among(2, dtypes, ARRAY_SIZE(dtypes));
}

TEST(three_ranks_get_the_same_bytes_as_by_the_daemon)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_F16, RUCCL_F32, RUCCL_F8E4M3, RUCCL_I64,
                                               RUCCL_BOOL };

    try_among(3, dtypes, harness_full() ? ARRAY_SIZE(dtypes) : 2);
}

TEST(five_ranks_get_the_same_bytes_as_by_the_daemon)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_BF16, RUCCL_I16 };

    try_among(5, dtypes, harness_full() ? ARRAY_SIZE(dtypes) : 1);
}

TEST(one_rank_gets_the_same_bytes_as_by_the_daemon)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_F16,  RUCCL_F8E4M3, RUCCL_F32,
                                               RUCCL_BF16, RUCCL_U32,    RUCCL_C64 };

    try_among(1, dtypes, ARRAY_SIZE(dtypes));
}

/* ---- rows of all_to_all_v */

#define ROWS_MAX       9u
#define EXCHANGES      200u
#define EXCHANGE_BYTES 4096u

/* Rows from a rank to another in a round: uneven, often none. */
static uint64_t rows_of(uint32_t round, uint32_t from, uint32_t to)
{
    uint64_t seed = (round * 64 + from) * 64 + to + 1;

    unit_random(&seed);
    return unit_random(&seed) % 3 ? unit_random(&seed) % ROWS_MAX : 0;
}

struct exchange {
    struct ruccl_tensor in, out;
    uint64_t send[HARNESS_RANKS];
    uint8_t in_bytes[EXCHANGE_BYTES], out_bytes[EXCHANGE_BYTES];
};

static void exchange_set(struct exchange *x, uint32_t round, uint32_t rank, uint32_t nranks,
                         struct ruccl_region *region)
{
    const uint64_t row = 1 + round % 3;

    x->in = (struct ruccl_tensor){
        .dtype = RUCCL_I32, .naxes = 2, .shape = { 0, row }, .data = x->in_bytes
    };
    x->out = (struct ruccl_tensor){ .dtype = RUCCL_I32, .naxes = 2, .shape = { 0, row } };
    for (uint32_t r = 0; r < nranks; r++) {
        x->send[r] = rows_of(round, rank, r);
        x->in.shape[0] += x->send[r];
        x->out.shape[0] += rows_of(round, r, rank);
    }
    if (round % 4 == 3)
        x->out.shape[0] += 2; /* room to spare */
    if (round % 2)
        x->out.region = region;
    else
        x->out.data = x->out_bytes;
    for (uint32_t i = 0; i < EXCHANGE_BYTES; i++)
        x->in_bytes[i] = (uint8_t)(rank * 89 + round + i * 5 + (i >> 8));
}

static int play_exchanges(struct crew_rank *me)
{
    static struct exchange all[HARNESS_RANKS];
    const uint32_t nranks = me->world->nranks;
    struct exchange *x = &all[me->rank];
    struct ruccl_region *region;
    int r = ruccl_alloc(world_conn(me->world, me->rank), EXCHANGE_BYTES, &region);

    for (uint32_t round = 0; round < EXCHANGES && r == 0; round++) {
        uint64_t expected[HARNESS_RANKS], counts[HARNESS_RANKS];
        uint8_t copy[EXCHANGE_BYTES], *out;
        struct ruccl_work *work;

        exchange_set(x, round, me->rank, nranks, region);
        out = x->out.region ? ruccl_region_data(region) : x->out_bytes;
        memset(out, 0xa5, EXCHANGE_BYTES);
        r = ruccl_all_to_all_v_async(me->comm, &x->in, x->send, &x->out, NULL, &work);
        if (r < 0)
            break;
        r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
        ruccl_work_receive_counts(work, expected);
        ruccl_work_release(work);
        memcpy(copy, out, EXCHANGE_BYTES);
        memset(out, 0xa5, EXCHANGE_BYTES);
        if (r == 0)
            r = ruccl_all_to_all_v(me->comm, &x->in, x->send, &x->out, NULL,
                                   round % 5 ? counts : NULL);
        crew_check(me, memcmp(copy, out, EXCHANGE_BYTES) == 0, "other rows than by the daemon");
        crew_check(me, round % 5 == 0 || memcmp(counts, expected, nranks * sizeof(counts[0])) == 0,
                   "other receive counts than by the daemon");
        me->done += crew_has_met(nranks, 2 * round + 2);
    }
    ruccl_free(region);
    return r;
}

TEST(rows_and_their_counts_are_the_same_as_by_the_daemon)
{
    static const uint32_t sizes[] = { 2, 3, 5, 1 };

    harness_start(&harness, patient);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct world w;

        world_open(&w, &harness, sizes[i], sizes[i]);
        crew_run(&crew, &w, play_exchanges, NULL);
        crew_expect_success(&crew, "all_to_all_v");
        assert_true(crew.ranks[0].done > 0);
        world_close(&w);
    }
}

#define alike_test(f) cmocka_unit_test_teardown(f, stop_daemon)

int main(void)
{
    const struct CMUnitTest tests[] = {
        alike_test(two_ranks_get_the_same_bytes_as_by_the_daemon),
        alike_test(three_ranks_get_the_same_bytes_as_by_the_daemon),
        alike_test(five_ranks_get_the_same_bytes_as_by_the_daemon),
        alike_test(one_rank_gets_the_same_bytes_as_by_the_daemon),
        alike_test(rows_and_their_counts_are_the_same_as_by_the_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
