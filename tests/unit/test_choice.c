/*
 * Choices between nodes: alike on all of them, within every budget, by rule, by name and by price;
 * and the recipes and digests that come of them.
 */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/recipe.h"
#include "tests/unit/nodes.h"

static struct table table;

static int make_table(void **state)
{
    (void)state;
    table_init(&table, 1 << 20);
    return 0;
}

/* ---------------------------------------------------------------- operations and placements */

static struct descriptor of_bytes(enum collective_id kind, const struct placement *nodes,
                                  uint64_t bytes)
{
    const bool blocks = kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
    const uint64_t n = bytes / 4;

    return (struct descriptor){ .kind = kind,
                                .op = OPERATOR_SUM,
                                .dtype = DTYPE_F32,
                                .shape = { 1, { blocks ? n * nodes->nranks : n } },
                                .budget = BUDGET_NONE,
                                .nranks = nodes->nranks };
}

static bool kind_is_chosen(enum collective_id kind)
{
    const struct collective *c = collective_get(kind);

    return c->shape != SHAPE_NONE && !(c->flags & COLLECTIVE_PAIR);
}

static bool kind_is_exchange(enum collective_id kind)
{
    return collective_get(kind)->shape == SHAPE_EXCHANGE;
}

static struct frame frame_of(const struct placement *nodes, uint32_t node, const char *forced)
{
    return (struct frame){ &table, nodes, node, forced };
}

static int choose(const struct descriptor *d, const struct placement *nodes, const char *forced,
                  uint64_t rows, struct choice *ret, struct error *e)
{
    const struct frame f = frame_of(nodes, 0, forced);

    return choice_make(&(struct choice_spec){ .d = d, .rows_max = rows }, &f, ret, e);
}

/* Every placement of up to `most` ranks a node on 2 to 4 nodes, in order or dealt out. */
static void walk_placements(uint32_t most, void (*visit)(const struct placement *nodes))
{
    for (uint32_t nnodes = 2; nnodes <= 4; nnodes++)
        for (uint32_t code = 0; code < most * most * most * most; code++)
            for (int dealt = 0; dealt <= 1; dealt++) {
                uint32_t left[4], hosts[16], n = 0, rest = code;
                _cleanup_(placement_freep) struct placement *p = NULL;

                for (uint32_t i = 0; i < 4; i++, rest /= most)
                    left[i] = i < nnodes ? rest % most + 1 : 0;
                if (code / (most * most) && nnodes == 2)
                    continue;
                if (code / (most * most * most) && nnodes == 3)
                    continue;
                for (bool any = true; any;) {
                    any = false;
                    for (uint32_t i = 0; i < nnodes; i++)
                        for (bool take = left[i]; take; take = !dealt && left[i]) {
                            hosts[n++] = i;
                            left[i]--;
                            any = true;
                        }
                }
                assert_int_equal(placement_new(n, hosts, &p), 0);
                visit(p);
            }
}

/* ---------------------------------------------------------------- exact peaks */

static const struct {
    enum dtype_id dtype;
    enum operator_id op;
} types[] = {
    { DTYPE_F32, OPERATOR_SUM },    { DTYPE_BF16, OPERATOR_MEAN }, { DTYPE_I64, OPERATOR_SUM },
    { DTYPE_F8E4M3, OPERATOR_SUM }, { DTYPE_F16, OPERATOR_MAX },   { DTYPE_U8, OPERATOR_XOR },
};

static uint32_t wide_of(const struct descriptor *d)
{
    const bool sums = collective_get(d->kind)->flags & COLLECTIVE_HAS_OP;

    return sums ? price_wide(d->op, d->dtype) : 1;
}

/* The most that the plans of any node for so long a piece stage, in elements. */
static uint64_t peak_of(const struct choice *c, const struct descriptor *d,
                        const struct placement *nodes, uint64_t count)
{
    struct plan_args args = { .kind = d->kind,
                              .nranks = d->nranks,
                              .root = d->root,
                              .stride = c->chunking.n,
                              .count = count,
                              .nodes = nodes };
    uint64_t most = 0;

    for (; args.node < nodes->nnodes; args.node++) {
        struct plan p;

        plan_init(&p, placement_count(nodes, args.node));
        assert_int_equal(c->algorithm->emit(&p, &args), 0);
        most = MAX(most, plan_peak(&p, wide_of(d)));
        plan_fini(&p);
    }
    return most;
}

static uint64_t exchange_peak(const struct choice *c, const struct descriptor *d,
                              const struct placement *nodes, uint64_t rows)
{
    const uint64_t *all[16], counts[16] = { [0 ... 15] = rows };
    _cleanup_(exchange_freep) struct exchange *x = NULL;
    struct plan_args args = {
        .kind = d->kind, .nranks = d->nranks, .nodes = nodes, .rows = rows, .row_elements = 1
    };
    uint64_t most = 0;

    for (uint32_t i = 0; i < 16; i++)
        all[i] = counts;
    assert_int_equal(exchange_new(d->nranks, all, &x), 0);
    args.exchange = x;
    for (; args.source < 4; args.source++)
        for (args.node = 0; args.node < nodes->nnodes; args.node++) {
            struct plan p;

            plan_init(&p, placement_count(nodes, args.node));
            assert_int_equal(c->algorithm->emit(&p, &args), 0);
            most = MAX(most, plan_peak(&p, 1));
            plan_fini(&p);
        }
    return most;
}

static void assert_within(const struct choice *c, const struct descriptor *d,
                          const struct placement *nodes)
{
    const uint32_t width = dtype_get(d->dtype)->width;
    const uint64_t longest = MIN(c->piece_length, c->chunking.n);

    assert_true(c->depth >= 1);
    assert_true(c->piece_length >= 1 && c->piece_length <= c->chunking.length);
    if (kind_is_exchange(d->kind)) {
        assert_true(c->depth * exchange_peak(c, d, nodes, longest) * width <= d->budget);
        return;
    }
    for (uint64_t n = longest > 100 ? longest - 20 : 1; n <= longest; n++)
        if (c->depth * peak_of(c, d, nodes, n) * width > d->budget)
            fail_msg("%s by %s: a piece of %llu is above %llu bytes", collective_get(d->kind)->name,
                     c->algorithm->name, (unsigned long long)n, (unsigned long long)d->budget);
}

/* Narrow floats whose sums are four times as wide: where some node has more ranks than one. */
static bool may_need_more(const struct descriptor *d, const struct placement *nodes)
{
    return wide_of(d) > 2 && nodes->nranks > nodes->nnodes;
}

/* The least budget of the chunk table, and some above; where it is not enough, the one named. */
static void try_budgets(struct descriptor d, const struct placement *nodes)
{
    const bool once = d.kind == COLLECTIVE_BROADCAST;
    const uint64_t least = dtype_get(d.dtype)->width * (once ? 1 : d.nranks);

    for (uint64_t times = 1; times <= 100; times = times * 3 + 1)
        for (uint64_t more = 0; more <= 3; more += 3) {
            struct choice c;
            struct error e = { 0 };
            unsigned long long named;

            d.budget = least * times + more;
            if (choose(&d, nodes, NULL, 37, &c, &e) == 0) {
                assert_within(&c, &d, nodes);
                continue;
            }
            if (!may_need_more(&d, nodes))
                fail_msg("%s, %u ranks: %s", dtype_get(d.dtype)->name, d.nranks, e.text);
            assert_int_equal(e.code, ERROR_BUDGET_TOO_SMALL);
            assert_int_equal(sscanf(strstr(e.text, "works is"), "works is %llu", &named), 1);
            assert_true(named > d.budget);
            d.budget = named;
            assert_int_equal(choose(&d, nodes, NULL, 37, &c, &e), 0);
            assert_within(&c, &d, nodes);
            d.budget--;
            assert_int_equal(choose(&d, nodes, NULL, 37, &c, &e), -ERROR_BUDGET_TOO_SMALL);
        }
}

static void try_all_budgets(const struct placement *nodes)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (size_t t = 0; t < ARRAY_SIZE(types) && kind_is_chosen(kind); t++) {
            struct descriptor d = of_bytes(kind, nodes, 37 * 4);

            d.dtype = types[t].dtype;
            d.op = types[t].op;
            d.root = any_below(nodes->nranks);
            try_budgets(d, nodes);
        }
}

TEST(every_least_budget_works_and_none_is_exceeded)
{
    walk_placements(3, try_all_budgets);
}

/* Forced, too: it either stays within the budget, or names the least that it works with. */
static void try_forced_budgets(const struct placement *nodes)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        struct descriptor d = of_bytes(a->kind, nodes, 37 * 4);
        struct error e = { 0 };
        struct choice c;
        unsigned long long named;

        d.dtype = DTYPE_BF16;
        if (!a->fits(&d, nodes->nnodes))
            continue;
        d.budget = 1;
        assert_int_equal(choose(&d, nodes, a->name, 37, &c, &e), -ERROR_BUDGET_TOO_SMALL);
        assert_non_null(strstr(e.text, a->name));
        assert_int_equal(sscanf(strstr(e.text, "works is"), "works is %llu", &named), 1);
        d.budget = named;
        assert_int_equal(choose(&d, nodes, a->name, 37, &c, &e), 0);
        assert_ptr_equal(c.algorithm, a);
        assert_within(&c, &d, nodes);
        d.budget = named - 1;
        assert_int_equal(choose(&d, nodes, a->name, 37, &c, &e), -ERROR_BUDGET_TOO_SMALL);
    }
}

TEST(a_forced_row_names_the_least_budget_that_it_works_with)
{
    walk_placements(3, try_forced_budgets);
}

TEST(an_exchange_that_fits_all_at_once_only_says_so_and_what_would_do)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(3, 2);
    struct descriptor d = of_bytes(COLLECTIVE_ALL_TO_ALL, nodes, 37 * 4);
    struct error e = { 0 };
    struct choice c;

    d.budget = 4 * 6 * 10; /* rounds of 10 rows; both other nodes take 8 of each at a time */
    assert_int_equal(choose(&d, nodes, "direct", 37, &c, &e), -ERROR_BUDGET_TOO_SMALL);
    assert_string_equal(e.text, "all_to_all by direct: a budget of 240 bytes is too small; the "
                                "least that works is 1184; it is enough for auto, pairwise");
    assert_int_equal(choose(&d, nodes, "pairwise", 37, &c, &e), 0);
    d.budget = 1184;
    assert_int_equal(choose(&d, nodes, "direct", 37, &c, &e), 0);
    assert_int_equal(c.chunking.chunks, 1);
    d.budget = 1; /* for nobody */
    e = (struct error){ 0 };
    assert_int_equal(choose(&d, nodes, "pairwise", 37, &c, &e), -ERROR_BUDGET_TOO_SMALL);
    assert_string_equal(e.text, "all_to_all by pairwise: a budget of 1 bytes is too small; the "
                                "least that works is 24");
}

/* ---------------------------------------------------------------- all nodes alike */

static struct recipe *recipe_of(struct recipes *l, const struct descriptor *d,
                                const struct frame *f)
{
    struct error e = { 0 };
    struct recipe *r;

    recipes_init(l);
    assert_int_equal(recipes_find(l, d, 0, &r, &e), 0);
    if (recipe_decide(r, f, &e) < 0)
        fail_msg("%s", e.text);
    return r;
}

static bool choices_equal(const struct choice *a, const struct choice *b)
{
    return a->algorithm == b->algorithm && a->piece_length == b->piece_length &&
           a->depth == b->depth && !memcmp(&a->chunking, &b->chunking, sizeof(a->chunking));
}

static void compare_nodes(const struct placement *nodes)
{
    static const uint64_t bytes[] = { 4, 1000, 70000, 9 << 20 };

    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (size_t i = 0; i < ARRAY_SIZE(bytes) && kind_is_chosen(kind); i++) {
            const struct descriptor d = of_bytes(kind, nodes, bytes[i]);
            struct choice first = { 0 };

            for (uint32_t node = 0; node < nodes->nnodes; node++) {
                const struct frame f = frame_of(nodes, node, NULL);
                struct choice c;

                assert_int_equal(
                    choice_make(&(struct choice_spec){ .d = &d, .rows_max = bytes[i] / 4 }, &f, &c,
                                NULL),
                    0);
                assert_true(c.digest != 0);
                if (node == 0)
                    first = c;
                assert_true(choices_equal(&c, &first));
                assert_true(c.digest == first.digest);
            }
        }
}

TEST(all_nodes_choose_alike)
{
    walk_placements(2, compare_nodes);
}

/* The plans of all nodes for each kind of piece, together as sound as the checker can tell. */
static void prove_recipes(const struct placement *nodes)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        struct recipes lists[4];
        struct recipe *all[4];
        struct plan plans[3][4];
        struct world w;

        if (!kind_is_chosen(kind) || kind_is_exchange(kind))
            continue;
        w = world_of(kind, DTYPE_BF16, OPERATOR_SUM, nodes, 23);
        w.d.budget = 2 * (kind == COLLECTIVE_BROADCAST ? 1 : w.nranks) * 7;
        world_fill(&w);
        for (uint32_t i = 0; i < nodes->nnodes; i++) {
            const struct frame f = frame_of(nodes, i, NULL);

            all[i] = recipe_of(&lists[i], &w.d, &f);
            plans[0][i] = *all[i]->full;
            plans[1][i] = *all[i]->last;
            plans[2][i] = *all[i]->tail;
            assert_int_equal(plans[0][i].nranks, placement_count(nodes, i));
        }
        for (int k = 0; k < 3; k++)
            world_prove_nodes(&w, plans[k], 2, w.d.budget / 2, NULL);
        for (uint32_t i = 0; i < nodes->nnodes; i++) {
            recipe_unref(all[i]);
            recipes_fini(&lists[i]);
        }
        world_fini(&w);
    }
}

TEST(recipes_of_all_nodes_are_sound_together)
{
    walk_placements(2, prove_recipes);
}

/* Elements that a plan of a broadcast moves. */
static uint64_t length_of(const struct plan *p)
{
    return p->nspans ? p->spans[0].count : 0;
}

TEST(a_recipe_has_a_plan_for_each_length_of_piece)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(3, 1);
    const struct frame f = frame_of(nodes, 1, "direct");
    struct descriptor d = of_bytes(COLLECTIVE_BROADCAST, nodes, 4 * 70);
    struct recipes l;
    struct recipe *r;

    /* chunks of 20, of which two sends have room for 10 */
    d.budget = 4 * 20;
    table.depth = 1;
    r = recipe_of(&l, &d, &f);
    assert_int_equal(r->choice.chunking.length, 20);
    assert_int_equal(r->choice.piece_length, 10);
    assert_int_equal(length_of(r->full), 10);
    assert_ptr_equal(r->last, r->full);
    assert_ptr_equal(r->tail, r->full);
    recipe_unref(r);
    recipes_fini(&l);

    d.shape.axes[0] = 52;
    d.budget = 4 * 21;
    r = recipe_of(&l, &d, &f);
    assert_int_equal(r->choice.piece_length, 10);
    assert_int_equal(length_of(r->full), 10);
    assert_int_equal(length_of(r->last), 1);  /* 21 is 10 and 10 and 1 */
    assert_int_equal(length_of(r->tail), 10); /* and 52 two of them and 10 */
    assert_ptr_equal(r->tail, r->full);
    recipe_unref(r);
    recipes_fini(&l);
}

TEST(digests_tell_whatever_differs)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(4, 1);
    struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 64 << 20);
    struct choice c[6];

    table.machine.link_bytes_per_us = 1; /* so that pieces are small */
    assert_int_equal(choose(&d, nodes, "direct", 0, &c[0], NULL), 0);
    assert_int_equal(choose(&d, nodes, "tree", 0, &c[1], NULL), 0);
    table.depth = 2;
    assert_int_equal(choose(&d, nodes, "direct", 0, &c[2], NULL), 0);
    table.depth = 8;
    table.chunk_bytes *= 2;
    assert_int_equal(choose(&d, nodes, "direct", 0, &c[3], NULL), 0);
    d.shape.axes[0]++;
    assert_int_equal(choose(&d, nodes, "direct", 0, &c[4], NULL), 0);
    d.budget = 1 << 20;
    assert_int_equal(choose(&d, nodes, "direct", 0, &c[5], NULL), 0);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++) {
            assert_false(choices_equal(&c[i], &c[k]));
            assert_true(c[i].digest != c[k].digest);
        }
}

/* ---------------------------------------------------------------- which row */

TEST(on_one_node_nothing_of_it_counts)
{
    _cleanup_(placement_freep) struct placement *one = placement_of(1, 3);
    const struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, one, 64 << 20);
    struct choice alone, placed;

    assert_int_equal(table_add(&table, COLLECTIVE_ALL_REDUCE, 0, "tree"), 0);
    assert_int_equal(choose(&d, NULL, NULL, 0, &alone, NULL), 0);
    assert_int_equal(choose(&d, one, NULL, 0, &placed, NULL), 0);
    assert_true(choices_equal(&alone, &placed));
    assert_string_equal(alone.algorithm->name, "hierarchical");
    assert_int_equal(alone.piece_length, alone.chunking.length);
    assert_int_equal(alone.digest, 0);
    assert_int_equal(placed.digest, 0);
}

TEST(hierarchical_and_auto_leave_the_choice)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(3, 2);
    const struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 1 << 20);
    struct choice free_, automatic, hierarchical;

    assert_int_equal(choose(&d, nodes, NULL, 0, &free_, NULL), 0);
    assert_int_equal(choose(&d, nodes, "auto", 0, &automatic, NULL), 0);
    assert_int_equal(choose(&d, nodes, "hierarchical", 0, &hierarchical, NULL), 0);
    assert_true(choices_equal(&free_, &automatic));
    assert_true(choices_equal(&free_, &hierarchical));
}

TEST(a_forced_row_that_does_not_fit_is_told_which_do)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(3, 2);
    struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 1 << 20);
    struct error e = { 0 };
    struct choice c;

    assert_int_equal(choose(&d, nodes, "ring", 0, &c, &e), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_string_equal(e.text, "all_reduce: algorithm \"ring\" does not fit this operation on 3 "
                                "nodes; use auto, direct, pairwise, tree");
    d.dtype = DTYPE_I32;
    assert_int_equal(choose(&d, nodes, "ring", 0, &c, &e), 0);
    assert_string_equal(c.algorithm->name, "ring");
    assert_int_equal(choose(&d, nodes, "halving-doubling", 0, &c, &e),
                     -ERROR_UNSUPPORTED_ALGORITHM);
    e = (struct error){ 0 };
    assert_int_equal(choose(&d, nodes, "rign", 0, &c, &e), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_non_null(strstr(e.text, "is not known"));
}

TEST(rules_count_from_their_bytes_on_and_prices_elsewhere)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(4, 1);
    struct choice c, priced;

    assert_int_equal(table_add(&table, COLLECTIVE_BROADCAST, 4096, "tree"), 0);
    assert_int_equal(table_add(&table, COLLECTIVE_BROADCAST, 8192, "direct"), 0);
    assert_int_equal(table_add(&table, COLLECTIVE_BROADCAST, 16384, "auto"), 0);
    for (uint64_t bytes = 1024; bytes <= 1 << 20; bytes *= 2) {
        const struct descriptor d = of_bytes(COLLECTIVE_BROADCAST, nodes, bytes);

        assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
        if (bytes == 4096)
            assert_string_equal(c.algorithm->name, "tree");
        if (bytes == 8192)
            assert_string_equal(c.algorithm->name, "direct");
        if (bytes >= 16384 || bytes < 4096) {
            const uint32_t rules = table.nrules;

            table.nrules = 0;
            assert_int_equal(choose(&d, nodes, NULL, 0, &priced, NULL), 0);
            table.nrules = rules;
            assert_true(choices_equal(&c, &priced));
        }
        /* a name that is forced goes before a rule */
        assert_int_equal(choose(&d, nodes, "tree", 0, &c, NULL), 0);
        assert_string_equal(c.algorithm->name, "tree");
    }
}

TEST(a_rule_that_does_not_fit_leaves_the_choice_to_prices)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(4, 1);
    struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 1 << 20);
    struct choice priced, c;

    assert_int_equal(choose(&d, nodes, NULL, 0, &priced, NULL), 0);
    assert_int_equal(table_add(&table, COLLECTIVE_ALL_REDUCE, 0, "ring"), 0);
    assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
    assert_true(choices_equal(&c, &priced));
    d.dtype = DTYPE_I32;
    assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
    assert_string_equal(c.algorithm->name, "ring");
}

TEST(a_rule_above_the_budget_leaves_the_choice_to_prices)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(8, 1);
    struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 1 << 20);
    struct choice c;

    d.budget = 8 * 4;
    assert_int_equal(table_add(&table, COLLECTIVE_ALL_REDUCE, 0, "direct"), 0);
    assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
    assert_string_not_equal(c.algorithm->name, "direct");
    assert_within(&c, &d, nodes);
}

TEST(latency_decides_for_little_and_bandwidth_for_much)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(8, 1);
    const struct descriptor little = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 4),
                            much = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 64 << 20);
    struct choice c;

    table.machine.message_us = 0.5;
    assert_int_equal(choose(&little, nodes, NULL, 0, &c, NULL), 0);
    assert_string_equal(c.algorithm->name, "direct");
    assert_int_equal(choose(&much, nodes, NULL, 0, &c, NULL), 0);
    assert_string_equal(c.algorithm->name, "halving-doubling");
    assert_true(c.depth > 1);
}

TEST(without_a_budget_staging_is_bounded_by_the_chunks)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(4, 3);

    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        struct descriptor d;
        struct choice c;

        if (!kind_is_chosen(kind) || kind_is_exchange(kind))
            continue;
        d = of_bytes(kind, nodes, 64 << 20);
        d.dtype = DTYPE_BF16;
        assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
        d.budget = table.chunk_bytes * (kind == COLLECTIVE_BROADCAST ? 1 : nodes->nranks);
        assert_within(&c, &d, nodes);
    }
}

TEST(nothing_to_move_is_chosen_for_too)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(2, 1);
    const struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 0);
    struct recipes l;
    const struct frame f = frame_of(nodes, 0, NULL);
    struct recipe *r = recipe_of(&l, &d, &f);

    assert_non_null(r->choice.algorithm);
    assert_int_equal(r->choice.chunking.chunks, 0);
    assert_int_equal(r->choice.depth, 1);
    assert_int_equal(r->full->nsteps, 0);
    recipe_unref(r);
    recipes_fini(&l);
}

TEST(a_run_needs_room_for_what_is_chosen)
{
    _cleanup_(placement_freep) struct placement *nodes = placement_of(2, 1);
    const struct frame here = { .table = &table }, between = frame_of(nodes, 0, NULL);
    const struct descriptor d = of_bytes(COLLECTIVE_ALL_REDUCE, nodes, 64 << 20);
    struct choice c;

    assert_int_equal(choose(&d, NULL, NULL, 0, &c, NULL), 0);
    assert_true(c.depth <= choice_depth_max(&here));
    assert_int_equal(choose(&d, nodes, NULL, 0, &c, NULL), 0);
    assert_true(c.depth <= choice_depth_max(&between));
}

/* ---------------------------------------------------------------- tables */

TEST(rules_are_kept_in_order_and_once)
{
    struct table t;

    table_init(&t, 4096);
    assert_null(table_find(&t, COLLECTIVE_REDUCE, 1));
    assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, 100, "tree"), 0);
    assert_int_equal(table_add(&t, COLLECTIVE_ALL_REDUCE, 7, "ring"), 0);
    assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, 10, "direct"), 0);
    assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, 10, "tree"), TABLE_TWICE);
    assert_int_equal(t.nrules, 3);
    assert_int_equal(t.rules[0].kind, COLLECTIVE_ALL_REDUCE);
    assert_null(table_find(&t, COLLECTIVE_REDUCE, 9));
    assert_string_equal(table_find(&t, COLLECTIVE_REDUCE, 10)->algorithm, "direct");
    assert_string_equal(table_find(&t, COLLECTIVE_REDUCE, 99)->algorithm, "direct");
    assert_string_equal(table_find(&t, COLLECTIVE_REDUCE, UINT64_MAX)->algorithm, "tree");
    assert_null(table_find(&t, COLLECTIVE_GATHER, 100));
}

TEST(a_full_table_takes_no_more)
{
    struct table t;

    table_init(&t, 4096);
    for (uint32_t i = 0; i < TABLE_RULES_MAX; i++)
        assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, i, "tree"), 0);
    assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, 1000, "tree"), TABLE_FULL);
    assert_int_equal(table_add(&t, COLLECTIVE_GATHER, 0, "tree"), TABLE_FULL);
    assert_int_equal(t.nrules, TABLE_RULES_MAX);
}

#define CASE(claim) cmocka_unit_test_setup(claim, make_table)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_least_budget_works_and_none_is_exceeded),
        CASE(a_forced_row_names_the_least_budget_that_it_works_with),
        CASE(an_exchange_that_fits_all_at_once_only_says_so_and_what_would_do),
        CASE(all_nodes_choose_alike),
        CASE(recipes_of_all_nodes_are_sound_together),
        CASE(a_recipe_has_a_plan_for_each_length_of_piece),
        CASE(digests_tell_whatever_differs),
        CASE(on_one_node_nothing_of_it_counts),
        CASE(hierarchical_and_auto_leave_the_choice),
        CASE(a_forced_row_that_does_not_fit_is_told_which_do),
        CASE(rules_count_from_their_bytes_on_and_prices_elsewhere),
        CASE(a_rule_that_does_not_fit_leaves_the_choice_to_prices),
        CASE(a_rule_above_the_budget_leaves_the_choice_to_prices),
        CASE(latency_decides_for_little_and_bandwidth_for_much),
        CASE(without_a_budget_staging_is_bounded_by_the_chunks),
        CASE(nothing_to_move_is_chosen_for_too),
        CASE(a_run_needs_room_for_what_is_chosen),
        CASE(rules_are_kept_in_order_and_once),
        CASE(a_full_table_takes_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
