/* Who is told what when ranks disagree: each field, each order of precedence, by name. */
#include "tests/unit/unit.h"

#include <string.h>

#include "daemon/comm/agreement.h"
#include "daemon/comm/arrival.h"

#define RANKS 3u
#define MANY  40u

static struct arrival arrivals[RANKS];
static struct arrival *pointers[RANKS];
static struct mapping memory[RANKS];
static struct error e;

/* Three ranks that agree on everything, each in memory of its own. */
static int setup(void **state)
{
    (void)state;
    memset(&e, 0, sizeof(e));
    for (uint32_t r = 0; r < RANKS; r++) {
        memory[r] = (struct mapping){ .bytes = 1 << 20, .dev = 1, .ino = 10 + r };
        arrivals[r] = (struct arrival){
            .rank = r,
            .d = { .kind = COLLECTIVE_ALL_REDUCE,
                   .op = OPERATOR_SUM,
                   .dtype = DTYPE_F32,
                   .shape = { 2, { 4, 8 } },
                   .budget = BUDGET_NONE,
                   .nranks = RANKS },
            .in = { &memory[r], 0 },
            .out = { &memory[r], 4096 },
            .in_bytes = 128,
            .out_bytes = 128,
        };
        pointers[r] = &arrivals[r];
    }
    return 0;
}

/* All that is checked on one node, in its order. */
static int check_parts(struct arrival *const *parts, uint32_t n)
{
    struct view views[MANY];
    int r = 0;

    for (uint32_t i = 0; i < n; i++)
        views[i] = view_of(parts[i]);
    if (!arrivals_alike(parts, n))
        r = agreement_check(views, n, &e);
    if (r == 0 && !parts[0]->starts)
        r = agreement_check_memory(parts, n, &e);
    return r < 0 ? r : agreement_check_counts(views, n, &e);
}

static int check(void)
{
    return check_parts(pointers, RANKS);
}

static void expect(enum error_code code, const char *text)
{
    assert_int_equal(check(), -(int)code);
    assert_int_equal(e.code, code);
    assert_string_equal(e.text, text);
}

static void expect_ranks(uint32_t n, uint32_t first)
{
    assert_int_equal(e.nranks, n);
    assert_int_equal(e.ranks[0], first);
}

TEST(ranks_that_agree_pass)
{
    assert_int_equal(check(), 0);
    assert_int_equal(e.code, ERROR_NONE);
}

TEST(a_different_kind_is_named)
{
    arrivals[2].d.kind = COLLECTIVE_BARRIER;
    expect(ERROR_MISMATCH, "ranks disagree on the collective: ranks 0, 1 said "
                           "all_reduce; rank 2 said barrier");
    expect_ranks(1, 2);
}

TEST(a_different_op_is_named)
{
    arrivals[0].d.op = OPERATOR_MAX;
    expect(ERROR_MISMATCH, "ranks disagree on the op: rank 0 said max; ranks 1, 2 said sum");
    expect_ranks(1, 0);
}

TEST(a_different_dtype_is_named)
{
    arrivals[1].d.dtype = DTYPE_F16;
    expect(ERROR_MISMATCH, "ranks disagree on the dtype: ranks 0, 2 said f32; rank 1 said f16");
    expect_ranks(1, 1);
}

TEST(every_answer_is_named)
{
    arrivals[1].d.dtype = DTYPE_F16;
    arrivals[2].d.dtype = DTYPE_I8;
    expect(ERROR_MISMATCH, "ranks disagree on the dtype: rank 0 said f32; rank 1 said "
                           "f16; rank 2 said i8");
    expect_ranks(2, 1);
}

TEST(a_different_number_of_axes_is_named)
{
    arrivals[1].d.shape = (struct shape){ 1, { 32 } };
    expect(ERROR_MISMATCH,
           "ranks disagree on the number of axes: ranks 0, 2 said 2; rank 1 said 1");
}

TEST(a_different_shape_is_named)
{
    arrivals[1].d.shape.axes[0] = 8;
    arrivals[1].d.shape.axes[1] = 4;
    expect(ERROR_MISMATCH, "ranks disagree on the shape: ranks 0, 2 said [4, 8]; rank "
                           "1 said [8, 4]");
}

TEST(a_different_root_is_named)
{
    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].d.kind = COLLECTIVE_REDUCE;
    arrivals[2].d.root = 1;
    expect(ERROR_MISMATCH, "ranks disagree on the root: ranks 0, 1 said 0; rank 2 said 1");
}

TEST(a_different_budget_is_named)
{
    arrivals[1].d.budget = 4096;
    expect(ERROR_MISMATCH, "ranks disagree on the budget: ranks 0, 2 said none; rank "
                           "1 said 4096 bytes");
}

TEST(the_first_field_that_differs_is_the_one_named)
{
    arrivals[1].d.budget = 4096;
    arrivals[1].d.dtype = DTYPE_F64;
    assert_int_equal(check(), -ERROR_MISMATCH);
    assert_non_null(strstr(e.text, "the dtype"));
}

TEST(fields_a_kind_does_not_have_are_not_compared)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        arrivals[r].d.kind = COLLECTIVE_BARRIER;
        arrivals[r].d.dtype = (enum dtype_id)(r + 1);
        arrivals[r].d.root = r;
        arrivals[r].d.budget = r;
    }
    assert_int_equal(check(), 0);
}

TEST(a_rejection_comes_before_any_mismatch_and_names_its_rank)
{
    struct error wrong = { .code = ERROR_INVALID_SHAPE, .text = "all_reduce: something is wrong" };

    arrivals[0].d.dtype = DTYPE_F64;
    arrivals[1].rejection = &wrong;
    expect(ERROR_INVALID_SHAPE, "rank 1: something is wrong");
    expect_ranks(1, 1);
}

TEST(what_every_rank_rejects_names_no_rank)
{
    struct error mean = { .code = ERROR_INVALID_OPERATION, .text = "mean of i32" };

    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].rejection = &mean;
    expect(ERROR_INVALID_OPERATION, "mean of i32");
    expect_ranks(3, 0);
}

TEST(in_place_is_no_overlap)
{
    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].out = arrivals[r].in;
    assert_int_equal(check(), 0);
}

TEST(in_place_of_gather_and_scatter_is_their_own_block)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        arrivals[r].d.kind = COLLECTIVE_ALL_GATHER;
        arrivals[r].out.offset = 0;
        arrivals[r].out_bytes = 3 * 128;
        arrivals[r].in.offset = r * 128;
    }
    assert_int_equal(check(), 0);
    arrivals[2].in.offset = 128;
    assert_int_equal(check(), -ERROR_OVERLAP);

    setup(NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        arrivals[r].d.kind = COLLECTIVE_REDUCE_SCATTER;
        arrivals[r].in_bytes = 3 * 128;
        arrivals[r].out.offset = r * 128;
    }
    assert_int_equal(check(), 0);
    arrivals[1].out.offset = 0;
    assert_int_equal(check(), -ERROR_OVERLAP);
}

TEST(partial_overlap_of_one_rank_is_refused)
{
    arrivals[1].out.offset = 64;
    expect(ERROR_OVERLAP, "input and output of rank 1 overlap in a way that is not in place");
    expect_ranks(1, 1);
}

TEST(overlap_between_ranks_is_found_by_memory_not_by_mapping)
{
    memory[2].ino = memory[0].ino; /* another mapping of the same memory */
    expect(ERROR_OVERLAP, "tensors of ranks 0 and 2 share memory");
    expect_ranks(2, 0);
}

TEST(an_extent_inside_a_wider_one_is_found)
{
    memory[1].ino = memory[2].ino = memory[0].ino;
    arrivals[0].in_bytes = 1 << 16; /* 0..65536 */
    arrivals[0].out.offset = 1 << 18;
    arrivals[1].in.offset = 1 << 17;
    arrivals[1].out.offset = (1 << 17) + 4096;
    arrivals[2].in.offset = 1 << 19;
    arrivals[2].out.offset = 40000; /* behind the start of others, inside rank 0's input */
    assert_int_equal(check(), -ERROR_OVERLAP);
    assert_non_null(strstr(e.text, "ranks 0 and 2"));
}

TEST(neighbours_that_touch_do_not_overlap)
{
    memory[1].ino = memory[2].ino = memory[0].ino;
    for (uint32_t r = 0; r < RANKS; r++) {
        arrivals[r].in.offset = r * 128;
        arrivals[r].out.offset = 4096 + r * 128;
    }
    assert_int_equal(check(), 0);
}

static bool overlap(const struct arrival *a, const struct arrival *b)
{
    return a->in.mapping->ino == b->in.mapping->ino && a->in.offset < b->in.offset + b->in_bytes &&
           b->in.offset < a->in.offset + a->in_bytes;
}

/* Compared with every pair looked at; few tensors and many, in any order of memory and offset. */
TEST(overlap_is_found_in_any_order_of_any_number)
{
    struct arrival many[MANY], *parts[MANY];
    struct mapping one[5];
    uint64_t seed = 3;
    uint32_t found = 0, clean = 0;

    for (uint32_t i = 0; i < ARRAY_SIZE(one); i++)
        one[i] = (struct mapping){ .bytes = 1 << 20, .dev = 1 + i % 2, .ino = 90 - i };
    for (uint32_t trial = 0; trial < 4000; trial++) {
        uint32_t n = 2 + (uint32_t)(unit_random(&seed) % (MANY - 1));
        bool any = false;

        for (uint32_t r = 0; r < n; r++) {
            many[r] = arrivals[0];
            parts[r] = &many[r];
            many[r].rank = r;
            many[r].in.mapping = &one[unit_random(&seed) % ARRAY_SIZE(one)];
            many[r].in.offset = unit_random(&seed) % (n * n * 40);
            many[r].out = many[r].in;
            for (uint32_t k = 0; k < r; k++)
                any = any || overlap(&many[k], &many[r]);
        }
        memset(&e, 0, sizeof(e));
        assert_int_equal(check_parts(parts, n), any ? -ERROR_OVERLAP : 0);
        if (any)
            assert_true(overlap(&many[e.ranks[0]], &many[e.ranks[1]]));
        found += any;
        clean += !any;
    }
    assert_true(found > 500 && clean > 500);
}

/* Parts of one recipe are not compared field by field; everything else still is. */
TEST(what_one_recipe_says_is_not_all_that_is_compared)
{
    struct recipe recipe = { .refs = 1 };
    struct error wrong = { .code = ERROR_QUOTA, .text = "too much" };

    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].recipe = &recipe;
    assert_int_equal(check(), 0);
    arrivals[2].makes_persistent = true;
    expect(ERROR_MISMATCH, "ranks disagree on the collective: ranks 0, 1 said all_reduce; rank 2 "
                           "said persistent all_reduce");
    arrivals[2].makes_persistent = false;
    memset(&e, 0, sizeof(e));
    arrivals[1].rejection = &wrong;
    expect(ERROR_QUOTA, "rank 1: too much");
    arrivals[1].rejection = NULL;
    memset(&e, 0, sizeof(e));
    arrivals[1].out.offset = 64;
    assert_int_equal(check(), -ERROR_OVERLAP);
}

TEST(parts_of_different_recipes_may_still_agree)
{
    struct recipe recipes[RANKS] = { 0 };

    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].recipe = &recipes[r];
    assert_int_equal(check(), 0);
    arrivals[1].d.dtype = DTYPE_F16;
    assert_int_equal(check(), -ERROR_MISMATCH);
}

TEST(starts_are_compared_by_their_number)
{
    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r] = (struct arrival){ .rank = r, .d.kind = COLLECTIVE_REDUCE, .starts = 3 };
    assert_int_equal(check(), 0);
    arrivals[2].starts = 4;
    expect(ERROR_MISMATCH, "ranks disagree on the collective: ranks 0, 1 said persistent operation "
                           "3; rank 2 said persistent operation 4");
    expect_ranks(1, 2);
}

static uint64_t counts[RANKS][RANKS] = { { 1, 0, 2 }, { 3, 1, 0 }, { 0, 0, 5 } };

static void make_exchange(void)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        arrivals[r].d.kind = COLLECTIVE_ALL_TO_ALL_V;
        arrivals[r].d.shape.axes[0] = counts[r][0] + counts[r][1] + counts[r][2];
        arrivals[r].counts = counts[r];
        arrivals[r].out_rows = 7;
    }
}

TEST(rows_may_differ_between_ranks_and_rows_only)
{
    make_exchange();
    assert_int_equal(check(), 0);
    arrivals[1].d.shape.axes[1] = 9;
    assert_int_equal(check(), -ERROR_MISMATCH);
}

TEST(too_little_room_names_the_rows_needed)
{
    make_exchange();
    arrivals[2].out_rows = 6;
    expect(ERROR_CAPACITY, "the output of rank 2 has room for 6 rows and needs 7");
    expect_ranks(1, 2);
}

TEST(unexpected_counts_name_both_sides)
{
    uint64_t expected[RANKS] = { 0, 2, 0 };

    make_exchange();
    arrivals[1].expected = expected;
    expect(ERROR_UNEXPECTED_COUNTS, "rank 1 expected 2 rows from rank 1, which sends it 1");
    expect_ranks(1, 1);
}

TEST(sums_of_rows_do_not_wrap)
{
    uint64_t huge[RANKS] = { INT64_MAX, INT64_MAX, INT64_MAX };

    make_exchange();
    for (uint32_t r = 0; r < RANKS; r++)
        arrivals[r].counts = huge;
    assert_int_equal(check(), -ERROR_INVALID_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(ranks_that_agree_pass, setup),
        cmocka_unit_test_setup(a_different_kind_is_named, setup),
        cmocka_unit_test_setup(a_different_op_is_named, setup),
        cmocka_unit_test_setup(a_different_dtype_is_named, setup),
        cmocka_unit_test_setup(every_answer_is_named, setup),
        cmocka_unit_test_setup(a_different_number_of_axes_is_named, setup),
        cmocka_unit_test_setup(a_different_shape_is_named, setup),
        cmocka_unit_test_setup(a_different_root_is_named, setup),
        cmocka_unit_test_setup(a_different_budget_is_named, setup),
        cmocka_unit_test_setup(the_first_field_that_differs_is_the_one_named, setup),
        cmocka_unit_test_setup(fields_a_kind_does_not_have_are_not_compared, setup),
        cmocka_unit_test_setup(a_rejection_comes_before_any_mismatch_and_names_its_rank, setup),
        cmocka_unit_test_setup(what_every_rank_rejects_names_no_rank, setup),
        cmocka_unit_test_setup(in_place_is_no_overlap, setup),
        cmocka_unit_test_setup(in_place_of_gather_and_scatter_is_their_own_block, setup),
        cmocka_unit_test_setup(partial_overlap_of_one_rank_is_refused, setup),
        cmocka_unit_test_setup(overlap_between_ranks_is_found_by_memory_not_by_mapping, setup),
        cmocka_unit_test_setup(an_extent_inside_a_wider_one_is_found, setup),
        cmocka_unit_test_setup(neighbours_that_touch_do_not_overlap, setup),
        cmocka_unit_test_setup(overlap_is_found_in_any_order_of_any_number, setup),
        cmocka_unit_test_setup(what_one_recipe_says_is_not_all_that_is_compared, setup),
        cmocka_unit_test_setup(parts_of_different_recipes_may_still_agree, setup),
        cmocka_unit_test_setup(starts_are_compared_by_their_number, setup),
        cmocka_unit_test_setup(rows_may_differ_between_ranks_and_rows_only, setup),
        cmocka_unit_test_setup(too_little_room_names_the_rows_needed, setup),
        cmocka_unit_test_setup(unexpected_counts_name_both_sides, setup),
        cmocka_unit_test_setup(sums_of_rows_do_not_wrap, setup),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
