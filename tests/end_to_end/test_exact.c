/*
 * Exactness: every collective, type, operator, world size, size, budget and form that is legal,
 * compared bit for bit with the reference, through a daemon of its own.
 *
 *     test_exact floats | integers | moves | forms
 *
 * A full matrix tries all combinations; a covering one only so many that every pair of choices
 * meets. Sanitizers get covering ones everywhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/trial.h"
#include "tests/unit/unit.h"

#define MIB (1024u * 1024)

static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- what is chosen */

/* What shows most comes first: a covering matrix meets its pairs there. */
static const uint32_t world_sizes[] = { 3, 7, 8, 4, 2, 1 };

enum size_choice { SIZE_PRIME, SIZE_LARGE, SIZE_ODD, SIZE_ONE, SIZE_ZERO, SIZES };
enum budget_choice { BUDGET_NONE, BUDGET_LEAST, BUDGET_ODD, BUDGET_MEDIUM, BUDGET_HUGE, BUDGETS };

struct choice {
    unsigned world; /* index of world_sizes */
    enum ruccl_dtype dtype;
    enum ruccl_op op;
    enum trial_kind kind;
    enum size_choice size;
    enum budget_choice budget;
    bool alternative; /* in place; for kinds that have no such form, with room to spare */
};

#define FACTORS      7
#define FACTOR_WIDTH 32 /* no factor has more choices */

/* Which pairs of choices have met. */
struct cover {
    bool met[FACTORS * FACTOR_WIDTH][FACTORS * FACTOR_WIDTH];
};

/* Whether the choice brings a pair together that had not met; from now on they have. */
static bool cover_gains(struct cover *cover, const struct choice *c)
{
    const unsigned factors[FACTORS] = { c->world,      (unsigned)c->dtype, (unsigned)c->op,
                                        c->kind,       (unsigned)c->size,  (unsigned)c->budget,
                                        c->alternative };
    bool gains = false;

    for (unsigned i = 0; i < FACTORS; i++)
        for (unsigned k = i + 1; k < FACTORS; k++) {
            bool *met = &cover->met[i * FACTOR_WIDTH + factors[i]][k * FACTOR_WIDTH + factors[k]];

            gains = gains || !*met;
            *met = true;
        }
    return gains;
}

/* The full matrix, or the covering one where `cover` is given. */
struct matrix {
    struct cover *cover;
    uint32_t nconns; /* 0: a connection a rank */
    bool plain;
    bool moves, floats, integers;
    uint64_t ntrials;
};

/* A few MiB, or what sanitizers still manage: enough for workers to share it. */
#define LARGE_BYTES  (HARNESS_SANITIZED ? MIB / 4 : 4 * MIB)
#define TENSOR_BYTES (LARGE_BYTES + MIB / 16)

/* Less of what costs more time to compute again. */
static uint64_t large_bytes(uint32_t nranks, const struct choice *c)
{
    const bool usual = c->dtype == RUCCL_F32 || c->dtype == RUCCL_BF16 || c->dtype == RUCCL_I32;

    return usual && nranks <= 4 && c->op <= RUCCL_SUM ? LARGE_BYTES : MIN(LARGE_BYTES, MIB / 2);
}

static void choose_size(uint32_t nranks, const struct choice *c, struct trial *ret)
{
    static const uint64_t counts[SIZES] = { [SIZE_PRIME] = 1009, [SIZE_ODD] = 45, [SIZE_ONE] = 1 };
    const uint64_t blocks = scene_has_blocks(c->kind) ? nranks : 1;

    ret->count = counts[c->size];
    ret->row = c->size == SIZE_ODD ? 3 : 1;
    if (c->size == SIZE_LARGE) {
        ret->row = 7;
        ret->count = large_bytes(nranks, c) / ruccl_dtype_bytes(c->dtype) / blocks;
        ret->count -= ret->count % ret->row;
    }
}

/* From chunks of one element, where those are not too many, to one chunk. */
static uint64_t choose_budget(enum budget_choice budget, uint64_t least, uint64_t count)
{
    switch (budget) {
    case BUDGET_NONE:
        return RUCCL_NO_BUDGET;
    case BUDGET_LEAST:
        return least;
    case BUDGET_ODD:
        return least * (count / 97 + 2) + least / 2 + 1;
    case BUDGET_MEDIUM:
        return least * (count / 3 + 1) + least - 1;
    default:
        return 1ull << 40;
    }
}

static void try_choice(struct matrix *m, struct tensors *t, const struct choice *c)
{
    const uint32_t nranks = t->world->nranks;
    struct trial trial = {
        .kind = c->kind,
        .op = c->op,
        .root = (uint32_t)m->ntrials % nranks,
        .in_place = c->alternative && scene_has_in_place(c->kind),
        .spare = c->alternative && !scene_has_in_place(c->kind),
        .shift = m->ntrials % 4,
    };

    choose_size(nranks, c, &trial);
    trial.budget = choose_budget(c->budget, trial_least_budget(t, &trial), trial.count);
    if (c->size == SIZE_LARGE && c->budget == BUDGET_LEAST)
        return; /* a million chunks */
    if (scene_has_blocks(c->kind) && c->size == SIZE_ODD)
        trial.root = nranks - 1;
    if (m->cover && !cover_gains(m->cover, c))
        return;
    trial_run(t, &trial);
    m->ntrials++;
    if (c->budget != BUDGET_LEAST)
        return;

    trial.budget--;
    if (trial.count > 0)
        trial_run_refused(t, &trial);
    trial.budget = 0;
    trial.count = 0; /* for nothing any budget will do */
    trial_run(t, &trial);
}

static void try_op(struct matrix *m, struct tensors *t, struct choice c)
{
    for (unsigned kind = 0; kind < TRIAL_KINDS; kind++)
        for (unsigned size = 0; size < SIZES; size++)
            for (unsigned budget = 0; budget < BUDGETS; budget++)
                for (unsigned alternative = 0; alternative < 2; alternative++) {
                    c.kind = (enum trial_kind)kind;
                    c.size = (enum size_choice)size;
                    c.budget = (enum budget_choice)budget;
                    c.alternative = alternative;
                    if (scene_reduces(c.kind) == (c.op != TRIAL_NO_OP))
                        try_choice(m, t, &c);
                }
}

static void try_dtype(struct matrix *m, struct tensors *t, struct choice c)
{
    const bool reduces = reference_class(c.dtype) == REFERENCE_FLOAT ? m->floats : m->integers;

    tensors_fill(t, c.dtype, 1000 * (uint64_t)c.dtype);
    if (m->moves) {
        c.op = TRIAL_NO_OP;
        try_op(m, t, c);
    }
    for (unsigned op = RUCCL_SUM; op < REFERENCE_OPS; op++) {
        c.op = (enum ruccl_op)op;
        if (reduces && reference_legal(c.dtype, c.op))
            try_op(m, t, c);
    }
    tensors_expect_unchanged(t);
}

static void try_matrix(struct matrix *m)
{
    const struct harness_usage before = harness_usage(&harness);

    for (unsigned i = 0; i < ARRAY_SIZE(world_sizes); i++) {
        struct choice c = { .world = i };
        struct tensors tensors;
        struct world world;

        world_open(&world, &harness, world_sizes[i], m->nconns ? m->nconns : world_sizes[i]);
        tensors_init(&tensors, &world, TENSOR_BYTES, m->plain);
        for (unsigned dtype = RUCCL_F32; dtype < REFERENCE_DTYPES; dtype++) {
            const enum reference_class class = reference_class((enum ruccl_dtype)dtype);

            c.dtype = (enum ruccl_dtype)dtype;
            if (m->moves ||
                (class == REFERENCE_FLOAT ? m->floats : m->integers && class != REFERENCE_OPAQUE))
                try_dtype(m, &tensors, c);
        }
        tensors_fini(&tensors);
        world_close(&world);
    }
    harness_expect_usage(&harness, &before);
    printf("%llu trials\n", (unsigned long long)m->ntrials);
}

static void try_matrix_full(struct matrix m)
{
    static struct cover cover;

    cover = (struct cover){ 0 };
    if (!harness_full())
        m.cover = &cover;
    try_matrix(&m);
}

static void try_matrix_covering(struct matrix m)
{
    static struct cover cover;

    cover = (struct cover){ 0 };
    m.cover = &cover;
    try_matrix(&m);
}

/* ---- the matrices */

TEST(reductions_of_floats_are_exact)
{
    harness_start(&harness, NULL);
    try_matrix_full((struct matrix){ .floats = true });
}

TEST(reductions_of_integers_are_exact)
{
    harness_start(&harness, NULL);
    try_matrix_full((struct matrix){ .integers = true });
}

TEST(moves_are_exact)
{
    harness_start(&harness, NULL);
    try_matrix_full((struct matrix){ .moves = true });
}

#define EVERYTHING .moves = true, .floats = true, .integers = true

TEST(all_ranks_may_share_a_connection)
{
    harness_start(&harness, NULL);
    try_matrix_covering((struct matrix){ EVERYTHING, .nconns = 1 });
}

TEST(plain_memory_gives_the_same_bits)
{
    harness_start(&harness, NULL);
    try_matrix_covering((struct matrix){ EVERYTHING, .plain = true });
}

/* Against the same reference, hence the same as with any other number. */
static void try_workers(const char *workers)
{
    const char *const options[] = { "--workers", workers, "--set", "chunk_bytes=4096", NULL };

    harness_start(&harness, options);
    try_matrix_covering((struct matrix){ EVERYTHING });
}

TEST(one_worker_gives_the_same_bits)
{
    try_workers("1");
}

TEST(two_workers_give_the_same_bits)
{
    try_workers("2");
}

TEST(three_workers_give_the_same_bits)
{
    try_workers("3");
}

/* ---- communicators */

static const struct trial sample = {
    .kind = TRIAL_ALL_REDUCE, .op = RUCCL_SUM, .count = 30011, .row = 1, .budget = 4096, .shift = 1
};

/* Several communicators with the same connections keep their own order and their own budgets. */
TEST(communicators_are_independent)
{
    const struct harness_usage before = (harness_start(&harness, NULL), harness_usage(&harness));
    struct world worlds[3];
    struct tensors tensors[3];

    world_open(&worlds[0], &harness, 4, 2);
    for (int i = 1; i < 3; i++)
        world_join(&worlds[i], &worlds[0]);
    for (int i = 0; i < 3; i++) {
        tensors_init(&tensors[i], &worlds[i], MIB, false);
        tensors_fill(&tensors[i], i == 0 ? RUCCL_F16 : RUCCL_F32, 77 + (uint64_t)i);
    }
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 3; i++) {
            struct trial trial = sample;

            trial.kind = (enum trial_kind)((round + i) % TRIAL_KINDS);
            trial.op = scene_reduces(trial.kind) ? RUCCL_SUM : TRIAL_NO_OP;
            trial.budget += (uint64_t)(1000 * i + round);
            trial_run(&tensors[i], &trial);
        }
    for (int i = 0; i < 3; i++) {
        tensors_expect_unchanged(&tensors[i]);
        tensors_fini(&tensors[i]);
    }
    for (int i = 2; i > 0; i--)
        world_leave(&worlds[i]);
    world_close(&worlds[0]);
    harness_expect_usage(&harness, &before);
}

/* Posted on every rank before anything is waited for; each reads what the one before wrote. */
TEST(operations_of_a_communicator_run_in_order)
{
    enum { DEPTH = 24, COUNT = 10007 };
    struct ruccl_work *works[4][DEPTH];
    struct ruccl_region *regions[4];
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 4, 4);
    for (uint32_t r = 0; r < 4; r++) {
        int32_t *values;

        assert_int_equal(ruccl_alloc(world_conn(&w, r), COUNT * sizeof(*values), &regions[r]), 0);
        values = ruccl_region_data(regions[r]);
        for (int i = 0; i < COUNT; i++)
            values[i] = i + (int)r;
    }
    for (int k = 0; k < DEPTH; k++)
        for (uint32_t r = 0; r < 4; r++) {
            const struct ruccl_tensor t = {
                .dtype = RUCCL_I32, .naxes = 1, .shape = { COUNT }, .region = regions[r]
            };
            const struct ruccl_comm comm =
                ruccl_bounded(w.comms[r], k % 2 ? 8000 : RUCCL_NO_BUDGET);

            /* sum, then from the root; in wrapping arithmetic nothing is lost */
            if (k % 2)
                assert_int_equal(ruccl_broadcast_async(comm, &t, &t, (uint32_t)k % 4, &works[r][k]),
                                 0);
            else
                assert_int_equal(ruccl_all_reduce_async(comm, &t, &t, RUCCL_SUM, &works[r][k]), 0);
        }
    for (uint32_t r = 0; r < 4; r++)
        for (int k = 0; k < DEPTH; k++)
            expect_done(works[r][k], "one of many");
    for (uint32_t r = 0; r < 4; r++) {
        const int32_t *values = ruccl_region_data(regions[r]);

        for (int i = 0; i < COUNT; i++) {
            uint32_t expected = 4u * (uint32_t)i + 6;

            for (int k = 2; k < DEPTH; k += 2)
                expected *= 4;
            assert_int_equal((uint32_t)values[i], expected);
        }
        ruccl_free(regions[r]);
    }
    world_close(&w);
}

/* Even ranks in reverse order, odd ones in their own, rank 6 in none: 2, 3 and nobody. */
TEST(split_communicators_compute_among_their_own)
{
    const struct harness_usage before = (harness_start(&harness, NULL), harness_usage(&harness));
    struct world w, parts[2] = { { 0 } };
    struct ruccl_comm children[7];
    struct ruccl_work *works[7];

    world_open(&w, &harness, 7, 7);
    for (uint32_t r = 0; r < 7; r++) {
        const int32_t color = r == 6 ? RUCCL_COLOR_NONE : (int32_t)(r % 2);
        const int32_t key = r % 2 ? 0 : -(int32_t)r;

        assert_int_equal(ruccl_split_async(w.comms[r], color, key, &children[r], &works[r]), 0);
    }
    for (uint32_t r = 0; r < 7; r++)
        expect_done(works[r], "split");
    assert_null(children[6].member);
    for (uint32_t r = 0; r < 6; r++) {
        struct world *part = &parts[r % 2];
        const uint32_t rank = ruccl_rank(children[r]);

        assert_int_equal(ruccl_world_size(children[r]), 3);
        assert_int_equal(rank, r % 2 ? r / 2 : 2 - r / 2);
        part->nranks = part->nconns = 3;
        part->comms[rank] = children[r];
        part->conns[rank] = w.conns[r];
    }
    for (int i = 0; i < 2; i++) {
        struct tensors tensors;

        tensors_init(&tensors, &parts[i], MIB, false);
        tensors_fill(&tensors, RUCCL_BF16, 5);
        trial_run(&tensors, &sample);
        tensors_fini(&tensors);
        world_leave(&parts[i]);
    }
    world_close(&w);
    harness_expect_usage(&harness, &before);
}

/* What a daemon allocates while it works it gives back: the second half costs no more memory. */
TEST(the_daemon_does_not_grow)
{
    enum { ROUNDS = 200, GROWTH = 2 * MIB };
    struct harness_usage half, end;
    struct tensors tensors;
    struct world w;

    harness_start(&harness, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        if (round == ROUNDS / 2)
            half = harness_usage(&harness);
        world_open(&w, &harness, 3, 3);
        tensors_init(&tensors, &w, MIB, false);
        tensors_fill(&tensors, RUCCL_F32, 3);
        trial_run(&tensors, &sample);
        tensors_fini(&tensors);
        world_close(&w);
    }
    harness_expect_usage(&harness, &half);
    end = harness_usage(&harness);
    if (!HARNESS_SANITIZED && end.resident_bytes > half.resident_bytes + GROWTH)
        fail_msg("the daemon has grown from %llu to %llu bytes",
                 (unsigned long long)half.resident_bytes, (unsigned long long)end.resident_bytes);
}

int main(int argc, char **argv)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest floats[] = { CLAIM(reductions_of_floats_are_exact) };
    const struct CMUnitTest integers[] = { CLAIM(reductions_of_integers_are_exact) };
    const struct CMUnitTest moves[] = { CLAIM(moves_are_exact) };
    const struct CMUnitTest forms[] = {
        CLAIM(communicators_are_independent),
        CLAIM(operations_of_a_communicator_run_in_order),
        CLAIM(split_communicators_compute_among_their_own),
        CLAIM(the_daemon_does_not_grow),
        CLAIM(all_ranks_may_share_a_connection),
        CLAIM(plain_memory_gives_the_same_bits),
        CLAIM(one_worker_gives_the_same_bits),
        CLAIM(two_workers_give_the_same_bits),
        CLAIM(three_workers_give_the_same_bits),
    };
    const char *group = argc == 2 ? argv[1] : "";

    if (!strcmp(group, "floats"))
        return cmocka_run_group_tests(floats, NULL, NULL);
    if (!strcmp(group, "integers"))
        return cmocka_run_group_tests(integers, NULL, NULL);
    if (!strcmp(group, "moves"))
        return cmocka_run_group_tests(moves, NULL, NULL);
    if (!strcmp(group, "forms"))
        return cmocka_run_group_tests(forms, NULL, NULL);
    fprintf(stderr, "usage: test_exact floats | integers | moves | forms\n");
    return 2;
}
