/* Plans on one node: every row that is for one, over small worlds; and the choice among them. */
#include "tests/unit/unit.h"

#include <errno.h>

#include "daemon/plan/choice.h"
#include "tests/unit/world.h"

static bool kind_has_in_place(enum collective_id kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_ALL_GATHER ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

/* All chunks of an operation as one plan, each moved to its place. */
static void emit_chunks(struct plan *p, const struct world *w, const struct algorithm *a,
                        const struct chunking *c)
{
    for (uint64_t k = 0; k < c->chunks; k++) {
        const struct plan_args args = {
            .kind = w->d.kind,
            .nranks = w->nranks,
            .root = w->d.root,
            .stride = c->n,
            .count = chunk_count(c, k),
        };
        const uint32_t before = p->nspans;

        assert_int_equal(a->emit(p, &args), 0);
        for (uint32_t i = before; i < p->nspans; i++)
            p->spans[i].offset += chunk_first(c, k);
    }
}

static void assert_plans_equal(const struct plan *a, const struct plan *b)
{
    assert_int_equal(a->nchannels, b->nchannels);
    assert_int_equal(a->nsteps, b->nsteps);
    assert_int_equal(a->nspans, b->nspans);
    if (a->nsteps) {
        assert_memory_equal(a->steps, b->steps, a->nsteps * sizeof(*a->steps));
        assert_memory_equal(a->spans, b->spans, a->nspans * sizeof(*a->spans));
    }
}

static void world_try(struct world *w, const struct algorithm *a, uint64_t length)
{
    const uint64_t width = dtype_get(w->d.dtype)->width;
    const bool once = w->d.kind == COLLECTIVE_BROADCAST || a->kind == COLLECTIVE_SEND ||
                      a->kind == COLLECTIVE_RECV;
    _cleanup_(plan_fini) struct plan p, again;
    struct chunking c;

    w->d.budget = length * width * (once ? 1 : w->nranks);
    assert_int_equal(chunk_plan(&w->d, 0, 0, &c, NULL), 0);
    assert_int_equal(c.n, w->n);
    assert_int_equal(c.length, length);

    world_fill(w);
    plan_init(&p, w->nranks);
    emit_chunks(&p, w, a, &c);
    world_prove(w, &p);
    world_run(w, &p);
    world_compare(w);

    plan_init(&again, w->nranks);
    emit_chunks(&again, w, a, &c);
    plan_clear(&p);
    emit_chunks(&p, w, a, &c);
    assert_plans_equal(&p, &again);
    world_fini(w);
}

static struct world world_of(enum collective_id kind, enum dtype_id dtype, uint32_t nranks,
                             uint32_t root, uint64_t n)
{
    const bool over = kind == COLLECTIVE_REDUCE_SCATTER;
    struct world w = {
        .d = { .kind = kind,
               .op = OPERATOR_SUM,
               .dtype = dtype,
               .shape = { 1, { over ? n * nranks : n } },
               .root = root,
               .nranks = nranks },
        .nranks = nranks,
        .n = n,
    };
    struct shape in, out;

    assert_int_equal(descriptor_check(&w.d, NULL), 0);
    assert_int_equal(descriptor_shapes(&w.d, &in, &out, NULL), 0);
    for (uint32_t r = 0; r < nranks; r++) {
        w.in_count[r] = in.axes[0];
        w.out_count[r] = out.axes[0];
    }
    return w;
}

static void walk_blocks(const struct algorithm *a, enum dtype_id dtype, uint32_t nranks,
                        uint32_t root)
{
    static const uint64_t counts[] = { 1, 3, 17, 67 }, lengths[] = { 1, 2, 7, 64, 100 };

    for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
        for (size_t k = 0; k < ARRAY_SIZE(lengths); k++)
            for (int in_place = 0; in_place <= kind_has_in_place(a->kind); in_place++) {
                struct world w = world_of(a->kind, dtype, nranks, root, counts[i]);

                w.in_place = in_place;
                if (a->fits(&w.d, 1))
                    world_try(&w, a, lengths[k]);
            }
}

/* The row chosen on one node. */
static int choose(struct descriptor d, const char *forced, const struct algorithm **ret,
                  struct error *e)
{
    struct table table;
    struct choice choice = { .algorithm = *ret };
    int r;

    table_init(&table, 1 << 20);
    d.budget = BUDGET_NONE;
    r = choice_make(&(struct choice_spec){ .d = &d, .rows_max = 1 },
                    &(struct frame){ .table = &table, .forced = forced }, &choice, e);
    *ret = choice.algorithm;
    return r;
}

TEST(every_row_is_sound_and_gives_the_canonical_bits)
{
    static const uint32_t sizes[] = { 1, 2, 3, 4, 5, 7, 8, 9 };

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        const struct collective *c = collective_get(a->kind);

        if (c->shape == SHAPE_EXCHANGE)
            continue;
        for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
            const uint32_t n = sizes[i], roots[] = { 0, n / 2, n - 1 };

            if (c->flags & COLLECTIVE_PAIR && n != 2)
                continue;
            for (size_t k = 0; k < (c->flags & COLLECTIVE_HAS_ROOT ? ARRAY_SIZE(roots) : 1); k++) {
                walk_blocks(a, DTYPE_I64, n, roots[k]);
                walk_blocks(a, DTYPE_F32, n, roots[k]);
            }
        }
    }
}

TEST(a_chunk_is_one_pass_over_the_ranks)
{
    const struct plan_args args = {
        .kind = COLLECTIVE_ALL_REDUCE, .nranks = 5, .stride = 10, .count = 3
    };
    const struct descriptor d = { .kind = COLLECTIVE_ALL_REDUCE,
                                  .op = OPERATOR_SUM,
                                  .dtype = DTYPE_F32,
                                  .shape = { 1, { 10 } },
                                  .nranks = 5 };
    _cleanup_(plan_fini) struct plan p;
    const struct algorithm *a = NULL;

    plan_init(&p, 5);
    assert_int_equal(choose(d, NULL, &a, NULL), 0);
    assert_int_equal(a->emit(&p, &args), 0);
    assert_int_equal(p.nsteps, 1);
    assert_int_equal(p.steps[0].kind, STEP_REDUCE);
    assert_int_equal(p.spans[0].rank, SPAN_EACH);
    assert_int_equal(p.spans[1].rank, SPAN_EACH);
    assert_int_equal(p.spans[1].count, 3);
}

/* ---------------------------------------------------------------- plans and choices */

TEST(a_plan_that_cannot_grow_is_unchanged)
{
    const struct span span = { BUFFER_IN, 0, 0, 1 };
    struct plan p;

    plan_init(&p, 1);
    p.nspans = p.spans_cap = UINT32_MAX;
    assert_int_equal(plan_add(&p, STEP_COPY, span, span), -ENOMEM);
    assert_int_equal(p.nsteps, 0);
    assert_int_equal(p.nchannels, 0);
    assert_int_equal(p.nspans, UINT32_MAX);
    p.nspans = p.spans_cap = 0;
    plan_fini(&p);
}

TEST(a_plan_without_room_says_so_until_it_is_cleared)
{
    const struct span span = { BUFFER_IN, 0, 0, 1 };
    struct plan p;

    plan_init(&p, 1);
    assert_int_equal(plan_step(&p, (struct step){ STEP_SEND, 0, STEP_NONE }), 0);
    p.nspans = p.spans_cap = UINT32_MAX;
    plan_source(&p, span);
    assert_int_equal(p.error, -ENOMEM);
    p.nspans = p.spans_cap = 1;
    plan_source(&p, span);
    assert_int_equal(plan_step(&p, (struct step){ STEP_SEND, 0, STEP_NONE }), STEP_NONE);
    assert_int_equal(p.nsteps, 1);
    assert_int_equal(p.steps[0].nsrc, 0);
    plan_clear(&p);
    assert_int_equal(p.error, 0);
    assert_int_equal(plan_step(&p, (struct step){ STEP_SEND, 0, STEP_NONE }), 0);
    plan_fini(&p);
}

static struct descriptor all_reduce_of(uint64_t n, uint32_t nranks)
{
    return (struct descriptor){ .kind = COLLECTIVE_ALL_REDUCE,
                                .op = OPERATOR_SUM,
                                .dtype = DTYPE_F32,
                                .shape = { 1, { n } },
                                .nranks = nranks };
}

TEST(the_only_row_is_chosen_unforced_and_by_name)
{
    static const char *const forced[] = { NULL, "auto", "hierarchical" };
    const struct descriptor d = all_reduce_of(5, 3);

    for (size_t i = 0; i < ARRAY_SIZE(forced); i++) {
        const struct algorithm *a = NULL;

        assert_int_equal(choose(d, forced[i], &a, NULL), 0);
        assert_string_equal(a->name, "hierarchical");
        assert_int_equal(a->kind, COLLECTIVE_ALL_REDUCE);
    }
}

TEST(a_forced_name_that_does_not_fit_is_told_which_do)
{
    const struct descriptor d = all_reduce_of(5, 3);
    const struct algorithm *a = NULL;
    struct error known = { 0 }, unknown = { 0 };

    assert_int_equal(choose(d, "ring", &a, &known), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_string_equal(known.text, "all_reduce: algorithm \"ring\" does not fit this operation; "
                                    "use auto, hierarchical");
    assert_int_equal(choose(d, "rign", &a, &unknown), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_string_equal(unknown.text,
                        "all_reduce: algorithm \"rign\" is not known; use auto, hierarchical");
    assert_null(a);
}

TEST(the_names_are_the_fields)
{
    static const char *const known[] = { "auto", "hierarchical",     "direct", "pairwise",
                                         "ring", "halving-doubling", "tree" };

    for (size_t i = 0; i < ARRAY_SIZE(known); i++)
        assert_true(algorithm_name_known(known[i]));
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        assert_true(algorithm_name_known(a->name));
    assert_false(algorithm_name_known(""));
    assert_false(algorithm_name_known("Ring"));
}

TEST(whatever_moves_something_can_be_planned_and_priced)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        const struct load small = { kind, 1, 4, 12, 1 }, large = { kind, 1, 4, 12000, 1 };
        struct descriptor d = all_reduce_of(12, 4);
        const struct algorithm *a = NULL;

        d.kind = (enum collective_id)kind;
        if (collective_get(kind)->shape == SHAPE_NONE)
            continue;
        assert_int_equal(choose(d, NULL, &a, NULL), 0);
        assert_int_equal(a->kind, kind);
        assert_true(a->cost(&small).touched > 0);
        assert_true(a->cost(&large).touched > a->cost(&small).touched);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_sound_and_gives_the_canonical_bits),
        cmocka_unit_test(a_chunk_is_one_pass_over_the_ranks),
        cmocka_unit_test(a_plan_that_cannot_grow_is_unchanged),
        cmocka_unit_test(a_plan_without_room_says_so_until_it_is_cleared),
        cmocka_unit_test(the_only_row_is_chosen_unforced_and_by_name),
        cmocka_unit_test(a_forced_name_that_does_not_fit_is_told_which_do),
        cmocka_unit_test(the_names_are_the_fields),
        cmocka_unit_test(whatever_moves_something_can_be_planned_and_priced),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
