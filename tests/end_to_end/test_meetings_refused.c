/*
 * Meetings of calls that do not fit together, or are wrong: told as for every other call, by the
 * daemon, with the same numbers.
 */
#include <stdio.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/crew.h"
#include "tests/unit/unit.h"

#define RANKS  3u
#define BYTES  4096u
#define POISON 0xa5

static struct harness harness;
static struct crew crew;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- calls that do not fit together */

/* One rank's call. */
struct asked {
    enum {
        ALL_REDUCE,
        REDUCE,
        BROADCAST,
        ALL_GATHER,
        BARRIER,
    } kind;
    enum ruccl_dtype dtype;
    enum ruccl_op op;
    uint32_t root, naxes;
    uint64_t shape[2], budget; /* budget 0: none */
    uint64_t skip;             /* bytes that the output lies farther behind */
    bool without_in;
};

#define ASKED(k, t, o, ...)                                                                        \
    {                                                                                              \
        .kind = k, .dtype = RUCCL_##t, .op = RUCCL_##o, __VA_ARGS__                                \
    }
#define EIGHT .naxes = 1, .shape = { 8 }

static const struct asked sum = ASKED(ALL_REDUCE, I32, SUM, EIGHT);

struct disagreement {
    const char *words;
    enum ruccl_code code;
    struct asked first, others; /* of rank 0, and of the rest */
};

static const struct disagreement disagreements[] = {
    { "sum|max", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_REDUCE, I32, MAX, EIGHT) },
    { "i32|f32", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_REDUCE, F32, SUM, EIGHT) },
    { "[8]|[9]", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_REDUCE, I32, SUM, .naxes = 1, .shape = { 9 }) },
    { "number of axes|1|2", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_REDUCE, I32, SUM, .naxes = 2, .shape = { 4, 2 }) },
    { "budget", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_REDUCE, I32, SUM, EIGHT, .budget = 256) },
    { "all_reduce|barrier",
      RUCCL_MISMATCH,
      ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      { .kind = BARRIER } },
    { "all_reduce|all_gather", RUCCL_MISMATCH, ASKED(ALL_REDUCE, I32, SUM, EIGHT),
      ASKED(ALL_GATHER, I32, SUM, EIGHT) },
    { "root|0|1", RUCCL_MISMATCH, ASKED(REDUCE, I32, SUM, EIGHT),
      ASKED(REDUCE, I32, SUM, EIGHT, .root = 1) },
    { "root|2|1", RUCCL_MISMATCH, ASKED(BROADCAST, I32, SUM, EIGHT, .root = 2),
      ASKED(BROADCAST, I32, SUM, EIGHT, .root = 1) },
    { "rank 0", RUCCL_MISALIGNED, ASKED(ALL_REDUCE, I32, SUM, EIGHT, .skip = 2),
      ASKED(ALL_REDUCE, I32, SUM, EIGHT) },
    { "rank 0|behind its region", RUCCL_OUT_OF_RANGE,
      ASKED(ALL_REDUCE, I32, SUM, EIGHT, .skip = BYTES), ASKED(ALL_REDUCE, I32, SUM, EIGHT) },
    { "in is NULL", RUCCL_INVALID_ARGUMENT, ASKED(ALL_REDUCE, I32, SUM, EIGHT, .without_in = true),
      ASKED(ALL_REDUCE, I32, SUM, EIGHT) },
    { "root", RUCCL_INVALID_ROOT, ASKED(REDUCE, I32, SUM, EIGHT, .root = 9),
      ASKED(REDUCE, I32, SUM, EIGHT, .root = 9) },
    { "mean", RUCCL_INVALID_OPERATION, ASKED(ALL_REDUCE, I32, MEAN, EIGHT),
      ASKED(ALL_REDUCE, I32, MEAN, EIGHT) },
    { "xor", RUCCL_INVALID_OPERATION, ASKED(ALL_REDUCE, F16, XOR, EIGHT),
      ASKED(ALL_REDUCE, F16, XOR, EIGHT) },
    { "packed_u8", RUCCL_UNSUPPORTED_DTYPE, ASKED(ALL_REDUCE, PACKED_U8, SUM, EIGHT),
      ASKED(ALL_REDUCE, PACKED_U8, SUM, EIGHT) },
    { "budget", RUCCL_BUDGET_TOO_SMALL, ASKED(ALL_REDUCE, I32, SUM, EIGHT, .budget = 5),
      ASKED(ALL_REDUCE, I32, SUM, EIGHT, .budget = 5) },
};

struct tiff {
    const struct disagreement *d;
    struct ruccl_region *regions[RANKS];
    bool blocking;
};

static struct ruccl_tensor tensor_of(const struct asked *a, struct ruccl_region *region,
                                     uint64_t offset)
{
    return (struct ruccl_tensor){ .dtype = a->dtype,
                                  .naxes = a->naxes,
                                  .shape = { a->shape[0], a->shape[1] },
                                  .region = region,
                                  .offset = offset };
}

static int ask(struct ruccl_comm unbounded, const struct asked *a, struct ruccl_region *region,
               struct ruccl_work **ret)
{
    const struct ruccl_comm comm = a->budget ? ruccl_bounded(unbounded, a->budget) : unbounded;
    const struct ruccl_tensor in = tensor_of(a, region, 0), *given = a->without_in ? NULL : &in;
    struct ruccl_tensor out = tensor_of(a, region, BYTES / 2 + a->skip);

    switch (a->kind) {
    case ALL_REDUCE:
        return ret ? ruccl_all_reduce_async(comm, given, &out, a->op, ret)
                   : ruccl_all_reduce(comm, given, &out, a->op);
    case REDUCE:
        return ret ? ruccl_reduce_async(comm, given, &out, a->op, a->root, ret)
                   : ruccl_reduce(comm, given, &out, a->op, a->root);
    case BROADCAST:
        return ret ? ruccl_broadcast_async(comm, given, &out, a->root, ret)
                   : ruccl_broadcast(comm, given, &out, a->root);
    case ALL_GATHER:
        out.shape[0] *= ruccl_world_size(comm);
        return ret ? ruccl_all_gather_async(comm, given, &out, ret)
                   : ruccl_all_gather(comm, given, &out);
    default:
        return ret ? ruccl_barrier_async(comm, ret) : ruccl_barrier(comm);
    }
}

static int ask_and_wait(struct ruccl_comm comm, const struct asked *a, struct ruccl_region *region)
{
    struct ruccl_work *work;
    int r = ask(comm, a, region, &work);

    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return r;
}

static int play_tiff(struct crew_rank *me)
{
    const struct tiff *t = me->context;
    const struct asked *a = me->rank == 0 ? &t->d->first : &t->d->others;
    struct ruccl_region *region = t->regions[me->rank];

    memset(ruccl_region_data(region), POISON, BYTES);
    return t->blocking ? ask(me->comm, a, region, NULL) : ask_and_wait(me->comm, a, region);
}

static int play_sum(struct crew_rank *me)
{
    const struct tiff *t = me->context;
    int32_t *values = ruccl_region_data(t->regions[me->rank]);
    int r;

    for (int i = 0; i < 8; i++)
        values[i] = (int32_t)me->rank + i;
    r = ask(me->comm, &sum, t->regions[me->rank], NULL);
    for (int i = 0; i < 8; i++)
        crew_check(me, r < 0 || values[BYTES / 2 / sizeof(int32_t) + i] == 3 + 3 * i,
                   "a wrong sum after a call that failed");
    return r;
}

/* Puts `to` in the place of the first " from" that is a whole number. */
static void renumber(char *text, size_t bytes, uint64_t from, uint64_t to)
{
    char number[24], copy[512];
    char *at = text;
    size_t len;

    len = (size_t)snprintf(number, sizeof(number), " %llu", (unsigned long long)from);
    while ((at = strstr(at, number)) && at[len] >= '0' && at[len] <= '9')
        at++;
    if (!at)
        fail_msg("no number %llu in: %s", (unsigned long long)from, text);
    snprintf(copy, sizeof(copy), "%.*s %llu%s", (int)(at - text), text, (unsigned long long)to,
             at + len);
    snprintf(text, bytes, "%s", copy);
}

static void expect_untouched(const struct tiff *t)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint8_t *bytes = ruccl_region_data(t->regions[r]);

        for (uint32_t i = 0; i < BYTES; i++)
            assert_int_equal(bytes[i], POISON);
    }
}

TEST(what_does_not_fit_together_is_told_as_by_asynchronous_calls)
{
    struct tiff t = { 0 };
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, RANKS, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ruccl_alloc(w.conns[r], BYTES, &t.regions[r]), 0);
    for (size_t i = 0; i < 5 * ARRAY_SIZE(disagreements); i++) {
        struct ruccl_error error;

        t.d = &disagreements[i % ARRAY_SIZE(disagreements)];
        t.blocking = false;
        crew_run(&crew, &w, play_tiff, &t);
        crew_expect_failure(&crew, t.d->code, t.d->words);
        w.sequence++;
        error = crew.ranks[0].error;
        renumber(error.text, sizeof(error.text), w.sequence, w.sequence + 1);

        t.blocking = true;
        crew_run(&crew, &w, play_tiff, &t);
        crew_expect_failure(&crew, t.d->code, t.d->words);
        w.sequence++;
        assert_string_equal(crew.ranks[0].error.text, error.text);
        expect_untouched(&t);
        crew_run(&crew, &w, play_sum, &t);
        crew_expect_success(&crew, "the sum after a call that failed");
        w.sequence++;
    }
    world_close(&w);
}

/* ---- rows that find no room */

static int play_crowd(struct crew_rank *me)
{
    static const uint64_t send[2][2] = { { 1, 3 }, { 2, 2 } };
    const bool blocking = *(bool *)me->context;
    uint8_t in[8] = { 1, 2, 3, 4 }, out[8], poison[8];
    const struct ruccl_tensor i = { .dtype = RUCCL_U8, .naxes = 1, .shape = { 4 }, .data = in };
    const struct ruccl_tensor o = {
        .dtype = RUCCL_U8, .naxes = 1, .data = out, .shape = { me->rank == 1 ? 4 : 3 }
    }; /* five come to rank 1 */
    uint64_t counts[2] = { 77, 77 };
    struct ruccl_work *work;
    int r;

    memset(out, POISON, sizeof(out));
    memset(poison, POISON, sizeof(poison));
    if (blocking) {
        r = ruccl_all_to_all_v(me->comm, &i, send[me->rank], &o, NULL, counts);
    } else {
        r = ruccl_all_to_all_v_async(me->comm, &i, send[me->rank], &o, NULL, &work);
        if (r < 0)
            return r;
        r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
        ruccl_work_release(work);
    }
    crew_check(me, memcmp(out, poison, sizeof(out)) == 0, "an output was written");
    crew_check(me, counts[0] == 77 && counts[1] == 77, "receive counts were written");
    return r;
}

TEST(rows_that_find_no_room_are_told_as_by_asynchronous_calls)
{
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 2, 2);
    for (int i = 0; i < 20; i++) {
        struct ruccl_error error;
        bool blocking = false;

        crew_run(&crew, &w, play_crowd, &blocking);
        crew_expect_failure(&crew, RUCCL_CAPACITY, "rank 1");
        error = crew.ranks[0].error;
        renumber(error.text, sizeof(error.text), w.sequence + 1, w.sequence + 2);
        blocking = true;
        crew_run(&crew, &w, play_crowd, &blocking);
        crew_expect_failure(&crew, RUCCL_CAPACITY, "rank 1");
        assert_string_equal(crew.ranks[0].error.text, error.text);
        w.sequence += 2;
    }
    world_close(&w);
}

/* ---- ranks of one process in one region */

struct shared {
    struct ruccl_region *region;
    uint64_t in[2], out[2]; /* offsets of each rank's */
    bool blocking;
};

static int play_shared(struct crew_rank *me)
{
    struct shared *s = me->context;
    struct ruccl_tensor in = vector_of(s->region, 16), out = in;
    struct ruccl_work *work;
    int r;

    in.offset = s->in[me->rank];
    out.offset = s->out[me->rank];
    if (s->blocking)
        return ruccl_all_reduce(me->comm, &in, &out, RUCCL_SUM);
    r = ruccl_all_reduce_async(me->comm, &in, &out, RUCCL_SUM, &work);
    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return r;
}

static void try_shared(struct world *w, struct shared *s, bool fits)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        s->blocking = blocking;
        memset(ruccl_region_data(s->region), POISON, BYTES);
        crew_run(&crew, w, play_shared, s);
        if (fits)
            crew_expect_success(&crew, "tensors apart in one region");
        else
            crew_expect_failure(&crew, RUCCL_OVERLAP, "ranks 0 and 1");
    }
}

TEST(tensors_of_two_ranks_in_the_same_bytes_overlap)
{
    struct shared s = { 0 };
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 2, 1);
    assert_int_equal(ruccl_alloc(w.conns[0], BYTES, &s.region), 0);
    for (int i = 0; i < 20; i++) {
        s = (struct shared){ s.region, { 0, 64 }, { 128, 192 }, false };
        try_shared(&w, &s, true);
        s = (struct shared){ s.region, { 0, 64 }, { 0, 64 }, false }; /* in place */
        try_shared(&w, &s, true);
        s = (struct shared){ s.region, { 0, 0 }, { 128, 192 }, false }; /* both only read it */
        try_shared(&w, &s, false);
        s = (struct shared){ s.region, { 0, 64 }, { 128, 188 }, false };
        try_shared(&w, &s, false);
        s = (struct shared){ s.region, { 0, 64 }, { 128, 0 }, false };
        try_shared(&w, &s, false);
        s = (struct shared){ s.region, { 0, 0 }, { 0, 0 }, false };
        try_shared(&w, &s, false);
    }
    world_close(&w);
}

#define refused_test(f) cmocka_unit_test_teardown(f, stop_daemon)

int main(void)
{
    const struct CMUnitTest tests[] = {
        refused_test(what_does_not_fit_together_is_told_as_by_asynchronous_calls),
        refused_test(rows_that_find_no_room_are_told_as_by_asynchronous_calls),
        refused_test(tensors_of_two_ranks_in_the_same_bytes_overlap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
