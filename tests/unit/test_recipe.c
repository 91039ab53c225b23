/* Recipes: what follows from a descriptor, kept for the next that is the same, and how long. */
#include "tests/unit/unit.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/plan/placement.h"
#include "daemon/plan/recipe.h"

/* The linker sends the planner's allocations here. */
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_reallocarray(void *old, size_t n, size_t bytes);
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_reallocarray(void *old, size_t n, size_t bytes);

static unsigned until_refused; /* which one from now on is refused; 0: none */

static bool is_refused(void)
{
    return until_refused && --until_refused == 0;
}

void *__wrap_malloc(size_t bytes)
{
    return is_refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return is_refused() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_reallocarray(void *old, size_t n, size_t bytes)
{
    return is_refused() ? NULL : __real_reallocarray(old, n, bytes);
}

#define TUNED (1u << 20)

static struct recipes recipes;
static struct table table;
static const struct frame frame = { .table = &table };
static struct error e;

static int open_recipes(void **state)
{
    (void)state;
    memset(&e, 0, sizeof(e));
    recipes_init(&recipes);
    table_init(&table, TUNED);
    return 0;
}

static int close_recipes(void **state)
{
    (void)state;
    recipes_fini(&recipes);
    return 0;
}

static struct descriptor of_count(enum collective_id kind, uint64_t n)
{
    return (struct descriptor){ .kind = kind,
                                .op = OPERATOR_SUM,
                                .dtype = DTYPE_F32,
                                .shape = { 1, { n } },
                                .budget = BUDGET_NONE,
                                .nranks = 4 };
}

static struct recipe *find(const struct descriptor *d)
{
    struct recipe *r;

    assert_int_equal(recipes_find(&recipes, d, 0, &r, &e), 0);
    return r;
}

static bool finds_the_same(const struct descriptor *a, const struct descriptor *b)
{
    struct recipe *x = find(a), *y = find(b);
    bool same = x == y;

    recipe_unref(x);
    recipe_unref(y);
    return same;
}

TEST(what_is_asked_for_again_is_the_same_one)
{
    struct descriptor d = of_count(COLLECTIVE_ALL_REDUCE, 12);

    assert_true(finds_the_same(&d, &d));
    assert_int_equal(recipes.n, 1);
}

TEST(whatever_differs_is_another)
{
    const struct descriptor d = of_count(COLLECTIVE_REDUCE, 12);
    struct descriptor others[8];

    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        others[i] = d;
    others[0].kind = COLLECTIVE_BROADCAST;
    others[1].op = OPERATOR_MAX;
    others[2].dtype = DTYPE_F16;
    others[3].shape.axes[0] = 16;
    others[4].shape = (struct shape){ 2, { 12, 1 } };
    others[5].root = 1;
    others[6].budget = 64;
    others[7].nranks = 3;
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        assert_false(finds_the_same(&d, &others[i]));
    assert_int_equal(recipes.n, 9);
}

TEST(axes_behind_the_last_do_not_count)
{
    struct descriptor a = of_count(COLLECTIVE_ALL_REDUCE, 12), b = a;

    b.shape.axes[5] = 77;
    assert_true(finds_the_same(&a, &b));
}

TEST(a_wrong_descriptor_is_refused_in_its_words_and_not_kept)
{
    struct descriptor d = of_count(COLLECTIVE_REDUCE_SCATTER, 13);
    struct error same = { 0 };
    struct recipe *r;

    assert_int_equal(recipes_find(&recipes, &d, 0, &r, &e), -ERROR_INVALID_SHAPE);
    assert_int_equal(descriptor_check(&d, &same), -ERROR_INVALID_SHAPE);
    assert_string_equal(e.text, same.text);
    assert_int_equal(recipes.n, 0);
}

TEST(tensors_are_measured_by_the_rule_of_their_kind)
{
    static const struct {
        enum collective_id kind;
        uint64_t in, out;
    } rows[] = {
        { COLLECTIVE_ALL_REDUCE, 48, 48 },     { COLLECTIVE_ALL_GATHER, 48, 192 },
        { COLLECTIVE_REDUCE_SCATTER, 48, 12 }, { COLLECTIVE_BROADCAST, 48, 48 },
        { COLLECTIVE_GATHER, 48, 192 },        { COLLECTIVE_SCATTER, 192, 48 },
        { COLLECTIVE_SEND, 48, 48 },           { COLLECTIVE_BARRIER, 0, 0 },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct descriptor d = of_count(rows[i].kind, 12);
        struct recipe *r = find(&d);

        assert_int_equal(r->in_bytes, rows[i].in);
        assert_int_equal(r->out_bytes, rows[i].out);
        recipe_unref(r);
    }
}

static void assert_plan(const struct recipe *r, const struct plan *p, uint64_t count)
{
    const struct plan_args args = { .kind = r->d.kind,
                                    .nranks = r->d.nranks,
                                    .root = r->d.root,
                                    .stride = r->choice.chunking.n,
                                    .count = count };
    _cleanup_(plan_fini) struct plan fresh;

    plan_init(&fresh, r->d.nranks);
    assert_int_equal(r->choice.algorithm->emit(&fresh, &args), 0);
    assert_int_equal(p->nranks, fresh.nranks);
    assert_int_equal(p->nsteps, fresh.nsteps);
    assert_int_equal(p->nspans, fresh.nspans);
    assert_memory_equal(p->steps, fresh.steps, fresh.nsteps * sizeof(*p->steps));
    assert_memory_equal(p->spans, fresh.spans, fresh.nspans * sizeof(*p->spans));
}

TEST(its_plans_are_those_of_a_full_chunk_and_of_the_last)
{
    struct descriptor d = of_count(COLLECTIVE_ALL_GATHER, 101);
    struct chunking c;
    struct recipe *r;

    d.budget = 16 * 4 * 4;
    r = find(&d);
    assert_int_equal(recipe_decide(r, &frame, &e), 0);
    assert_int_equal(chunk_plan(&d, 0, TUNED, &c, &e), 0);
    assert_memory_equal(&c, &r->choice.chunking, sizeof(c));
    assert_int_equal(c.chunks, 7);
    assert_plan(r, r->full, 16);
    assert_plan(r, r->tail, 5);
    assert_ptr_equal(r->last, r->full);

    /* once decided it stays so: the same steps, not the same again behind them */
    assert_int_equal(recipe_decide(r, &frame, &e), 0);
    assert_plan(r, r->full, 16);
    recipe_unref(r);
}

/* Of four ranks, on two nodes or (`alone`) on one. */
static bool has_contents(enum collective_id kind, uint64_t n, uint64_t budget, bool alone)
{
    _cleanup_(placement_freep) struct placement *two = NULL;
    struct frame f = { .table = &table };
    struct descriptor d = of_count(kind, n);
    struct recipe *r;
    bool has;

    assert_int_equal(placement_new_even(2, 2, &two), 0);
    f.nodes = alone ? NULL : two;
    d.budget = budget;
    recipes_fini(&recipes);
    r = find(&d);
    assert_int_equal(recipe_decide(r, &f, &e), 0);
    has = r->contents != NULL;
    recipe_unref(r);
    return has;
}

TEST(only_a_single_piece_between_nodes_has_contents_of_letters)
{
    assert_true(has_contents(COLLECTIVE_ALL_REDUCE, 17, BUDGET_NONE, false));
    assert_false(has_contents(COLLECTIVE_ALL_REDUCE, 17, 4 * 4 * 16, false));
    assert_false(has_contents(COLLECTIVE_ALL_REDUCE, 17, BUDGET_NONE, true));
    assert_false(has_contents(COLLECTIVE_ALL_REDUCE, 0, BUDGET_NONE, false));
    assert_false(has_contents(COLLECTIVE_SEND, 17, BUDGET_NONE, false));
}

TEST(a_pair_is_planned_for_two_however_many_there_are)
{
    const struct frame ring = { .table = &table, .forced = "ring" };
    struct descriptor d = of_count(COLLECTIVE_SEND, 3);
    struct recipe *r = find(&d);

    assert_int_equal(recipe_decide(r, &ring, &e), 0); /* what is forced is for the others */
    assert_int_equal(r->full->nranks, 2);
    assert_int_equal(r->full->nsteps, 1);
    recipe_unref(r);
}

TEST(nothing_to_move_is_decided_too)
{
    struct descriptor barrier = of_count(COLLECTIVE_BARRIER, 0),
                      empty = of_count(COLLECTIVE_ALL_REDUCE, 0);
    struct recipe *b = find(&barrier), *r = find(&empty);

    assert_int_equal(recipe_decide(b, &frame, &e), 0);
    assert_null(b->choice.algorithm);
    assert_int_equal(recipe_decide(r, &frame, &e), 0);
    assert_non_null(r->choice.algorithm);
    assert_int_equal(r->choice.chunking.chunks, 0);
    recipe_unref(b);
    recipe_unref(r);
}

TEST(what_cannot_be_decided_says_so_each_time)
{
    struct descriptor d = of_count(COLLECTIVE_ALL_REDUCE, 5);
    struct recipe *r;

    d.budget = 15;
    r = find(&d);
    for (int i = 0; i < 2; i++) {
        struct error own = { 0 };

        assert_int_equal(recipe_decide(r, &frame, &own), -ERROR_BUDGET_TOO_SMALL);
        assert_int_equal(own.code, ERROR_BUDGET_TOO_SMALL);
    }
    recipe_unref(r);
}

/* Of an undecided recipe, with that allocation refused. Return: whether there is one. */
static bool try_without(unsigned allocation, struct recipe *r, const struct frame *f)
{
    struct error own = { 0 };
    bool was_refused;
    int result;

    until_refused = allocation;
    result = recipe_decide(r, f, &own);
    was_refused = until_refused == 0;
    until_refused = 0;
    assert_int_equal(result, was_refused ? -ERROR_NO_MEMORY : 0);
    assert_int_equal(r->decided, !was_refused);
    return was_refused;
}

TEST(what_there_was_no_memory_for_is_found_out_the_next_time)
{
    _cleanup_(placement_freep) struct placement *two = NULL;
    struct descriptor d = of_count(COLLECTIVE_ALL_REDUCE, 17);
    struct frame f = { .table = &table };
    unsigned allocation = 0;
    bool was_refused;

    assert_int_equal(placement_new_even(2, 2, &two), 0);
    f.nodes = two;
    do {
        struct recipe *r;

        recipes_fini(&recipes);
        r = find(&d);
        was_refused = try_without(++allocation, r, &f);
        assert_int_equal(recipe_decide(r, &f, &e), 0);
        assert_true(r->contents->sends_first);
        assert_int_equal(r->contents->nsends, 1);
        recipe_unref(r);
    } while (was_refused);
    assert_true(allocation > 3); /* a plan, its contents, and which sends come first */
}

TEST(the_least_recently_used_go_first)
{
    struct descriptor first = of_count(COLLECTIVE_ALL_REDUCE, 1), second = first;
    struct recipe *kept = find(&first), *gone;

    second.shape.axes[0] = 2;
    recipe_unref(find(&second));
    for (uint64_t n = 3; n <= RECIPES_MAX; n++) {
        struct descriptor d = of_count(COLLECTIVE_ALL_REDUCE, n);

        recipe_unref(find(&d));
    }
    assert_int_equal(recipes.n, RECIPES_MAX);
    assert_true(finds_the_same(&first, &first)); /* used again: now `second` is the oldest */

    struct descriptor one_more = of_count(COLLECTIVE_ALL_REDUCE, 1000);

    recipe_unref(find(&one_more));
    assert_int_equal(recipes.n, RECIPES_MAX);
    gone = container_of(recipes.list.prev, struct recipe, link);
    assert_int_equal(gone->d.shape.axes[0], 3);
    assert_ptr_equal(find(&first), kept);
    recipe_unref(kept);
    recipe_unref(kept);
}

TEST(large_plans_are_kept_as_far_as_there_is_room)
{
    for (uint64_t n = 1; n <= 20; n++) {
        struct descriptor d = of_count(COLLECTIVE_ALL_GATHER, n);
        struct recipe *r;

        d.nranks = RANKS_MAX;
        r = find(&d);
        assert_int_equal(recipe_decide(r, &frame, &e), 0);
        recipe_unref(r);
        /* the last one is counted when the next comes */
        assert_true(recipes.n <= RECIPES_STEPS_MAX / RANKS_MAX + 1);
    }
    assert_true(recipes.n >= 2);
}

TEST(who_holds_one_keeps_it)
{
    struct descriptor d = of_count(COLLECTIVE_ALL_GATHER, 1);
    struct recipe *r = find(&d);

    assert_int_equal(recipe_decide(r, &frame, &e), 0);
    for (uint64_t n = 2; n <= RECIPES_MAX + 2; n++) {
        struct descriptor other = of_count(COLLECTIVE_ALL_REDUCE, n);

        recipe_unref(find(&other));
    }
    assert_plan(r, r->full, 1);
    assert_int_equal(r->refs, 1);
    recipe_unref(r);
}

#define CASE(claim) cmocka_unit_test_setup_teardown(claim, open_recipes, close_recipes)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_is_asked_for_again_is_the_same_one),
        CASE(whatever_differs_is_another),
        CASE(axes_behind_the_last_do_not_count),
        CASE(a_wrong_descriptor_is_refused_in_its_words_and_not_kept),
        CASE(tensors_are_measured_by_the_rule_of_their_kind),
        CASE(its_plans_are_those_of_a_full_chunk_and_of_the_last),
        CASE(only_a_single_piece_between_nodes_has_contents_of_letters),
        CASE(a_pair_is_planned_for_two_however_many_there_are),
        CASE(nothing_to_move_is_decided_too),
        CASE(what_cannot_be_decided_says_so_each_time),
        CASE(what_there_was_no_memory_for_is_found_out_the_next_time),
        CASE(the_least_recently_used_go_first),
        CASE(large_plans_are_kept_as_far_as_there_is_room),
        CASE(who_holds_one_keeps_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
