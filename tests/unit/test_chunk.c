/* Chunks under a budget: the table, its worked values, and numbers near the end of 64 bits. */
#include "tests/unit/unit.h"

#include <string.h>

#include "daemon/plan/chunk.h"

#define MIB (1024 * 1024ull)

static struct descriptor of(enum collective_id kind, enum dtype_id dtype, uint32_t nranks,
                            uint64_t axis0, uint64_t budget)
{
    return (struct descriptor){ .kind = kind,
                                .op = OPERATOR_SUM,
                                .dtype = dtype,
                                .shape = { 1, { axis0 } },
                                .budget = budget,
                                .nranks = nranks };
}

static struct chunking plan(const struct descriptor *d, uint64_t rows_max)
{
    struct chunking c;
    struct error e = { 0 };

    assert_int_equal(descriptor_check(d, &e), 0);
    if (chunk_plan(d, rows_max, 4 * MIB, &c, &e))
        fail_msg("%s", e.text);
    return c;
}

static void assert_too_small(const struct descriptor *d, uint64_t rows_max, const char *least)
{
    struct chunking c;
    struct error e = { 0 };

    assert_int_equal(chunk_plan(d, rows_max, 4 * MIB, &c, &e), -ERROR_BUDGET_TOO_SMALL);
    assert_int_equal(e.code, ERROR_BUDGET_TOO_SMALL);
    if (!strstr(e.text, least))
        fail_msg("\"%s\" does not name %s", e.text, least);
}

static const enum collective_id shared_kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,  COLLECTIVE_ALL_GATHER,
    COLLECTIVE_GATHER,     COLLECTIVE_SCATTER, COLLECTIVE_REDUCE_SCATTER,
};
static const enum collective_id single_kinds[] = { COLLECTIVE_BROADCAST, COLLECTIVE_SEND,
                                                   COLLECTIVE_RECV };

/* Axis 0 such that a block, the n of the table, has n elements. */
static uint64_t axis0_of(enum collective_id kind, uint64_t n, uint32_t nranks)
{
    return kind == COLLECTIVE_REDUCE_SCATTER ? n * nranks : n;
}

TEST(a_mebibyte_of_f16_is_cut_as_the_table_says)
{
    static const struct {
        uint32_t nranks;
        uint64_t length;
    } rows[] = { { 1, 524288 }, { 2, 262144 }, { 3, 174762 }, { 8, 65536 } };
    const uint64_t n = 10000001;

    for (size_t i = 0; i < ARRAY_SIZE(shared_kinds); i++)
        for (size_t k = 0; k < ARRAY_SIZE(rows); k++) {
            uint64_t axis0 = axis0_of(shared_kinds[i], n, rows[k].nranks);
            struct descriptor d = of(shared_kinds[i], DTYPE_F16, rows[k].nranks, axis0, MIB);
            struct chunking c = plan(&d, 0);

            assert_int_equal(c.n, n);
            assert_int_equal(c.length, rows[k].length);
            assert_int_equal(c.chunks, (n + c.length - 1) / c.length);
        }
    for (size_t i = 0; i < ARRAY_SIZE(single_kinds); i++) {
        struct descriptor d = of(single_kinds[i], DTYPE_F16, 8, n, MIB);

        assert_int_equal(plan(&d, 0).length, 524288);
    }
}

TEST(the_least_budget_works_and_one_byte_less_names_it)
{
    for (size_t i = 0; i < ARRAY_SIZE(shared_kinds); i++) {
        uint64_t axis0 = axis0_of(shared_kinds[i], 5, 8);
        struct descriptor d = of(shared_kinds[i], DTYPE_F16, 8, axis0, 15);

        assert_too_small(&d, 0, "the least that works is 16");
        d.budget = 0;
        assert_too_small(&d, 0, "the least that works is 16");
        d.budget = 16;
        assert_int_equal(plan(&d, 0).length, 1);
        d.budget = 17;
        assert_int_equal(plan(&d, 0).length, 1);
        assert_int_equal(plan(&d, 0).chunks, 5);
        d.budget = 32;
        assert_int_equal(plan(&d, 0).length, 2);
        assert_int_equal(plan(&d, 0).chunks, 3);
    }
    for (size_t i = 0; i < ARRAY_SIZE(single_kinds); i++) {
        struct descriptor d = of(single_kinds[i], DTYPE_F64, 8, 5, 7);

        assert_too_small(&d, 0, "the least that works is 8");
        d.budget = 8;
        assert_int_equal(plan(&d, 0).chunks, 5);
    }
}

TEST(an_exchange_is_cut_in_whole_rows_of_a_pair)
{
    struct descriptor d = of(COLLECTIVE_ALL_TO_ALL_V, DTYPE_F32, 3, 100, 0);
    struct chunking c;

    d.shape.naxes = 3;
    d.shape.axes[1] = 5;
    d.shape.axes[2] = 2; /* rows of 40 bytes */

    assert_too_small(&d, 7, "the least that works is 120");
    d.budget = 119;
    assert_too_small(&d, 7, "the least that works is 120");
    d.budget = 120;
    c = plan(&d, 7);
    assert_int_equal(c.n, 7);
    assert_int_equal(c.length, 1);
    assert_int_equal(c.chunks, 7);
    d.budget = 3 * 80 + 119;
    c = plan(&d, 7);
    assert_int_equal(c.length, 2);
    assert_int_equal(c.chunks, 4);

    d.kind = COLLECTIVE_ALL_TO_ALL;
    d.shape.axes[0] = 21;
    assert_int_equal(plan(&d, 7).length, 2);
}

TEST(nothing_to_move_passes_with_any_budget)
{
    static const uint64_t budgets[] = { 0, 1, 16, BUDGET_NONE };

    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (size_t i = 0; i < ARRAY_SIZE(budgets); i++) {
            struct descriptor d = of((enum collective_id)kind, DTYPE_F64, 8, 0, budgets[i]);
            struct chunking c = plan(&d, 0);

            assert_int_equal(c.n, 0);
            assert_int_equal(c.length, 0);
            assert_int_equal(c.chunks, 0);
            assert_int_equal(chunk_count(&c, 0), 0);
        }
}

TEST(a_barrier_has_no_chunks_whatever_its_other_fields)
{
    struct descriptor d = of(COLLECTIVE_BARRIER, DTYPE_NONE, 8, 5, 0);

    assert_int_equal(plan(&d, 0).chunks, 0);
    d.kind = COLLECTIVE_SPLIT;
    assert_int_equal(plan(&d, 0).chunks, 0);
}

TEST(a_scalar_is_one_chunk)
{
    struct descriptor d = of(COLLECTIVE_ALL_REDUCE, DTYPE_F32, 3, 0, 12);

    d.shape.naxes = 0;
    assert_int_equal(plan(&d, 0).n, 1);
    assert_int_equal(plan(&d, 0).chunks, 1);
    d.budget = 11;
    assert_too_small(&d, 0, "12");
}

TEST(chunks_tile_the_interval)
{
    for (uint64_t n = 1; n <= 40; n++)
        for (uint64_t length = 1; length <= 41; length++) {
            struct descriptor d = of(COLLECTIVE_BROADCAST, DTYPE_U8, 3, n, length);
            struct chunking c = plan(&d, 0);
            uint64_t next = 0;

            for (uint64_t k = 0; k < c.chunks; k++) {
                assert_int_equal(chunk_first(&c, k), next);
                assert_in_range(chunk_count(&c, k), 1, length);
                next += chunk_count(&c, k);
            }
            assert_int_equal(next, n);
            assert_int_equal(chunk_count(&c, c.chunks), 0);
        }
}

TEST(without_a_budget_the_tuned_bytes_cut)
{
    static const struct {
        uint64_t tuned, length;
    } rows[] = {
        { 0, 1 },    { 3, 1 },    { 4, 1 },        { 8, 2 },         { 63 * 4, 63 },
        { 256, 64 }, { 260, 64 }, { 127 * 4, 64 }, { 128 * 4, 128 }, { 4 * MIB + 5, MIB },
    };
    struct descriptor d = of(COLLECTIVE_ALL_REDUCE, DTYPE_F32, 8, 1u << 30, BUDGET_NONE);
    struct chunking c;

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        assert_int_equal(chunk_plan(&d, 0, rows[i].tuned, &c, NULL), 0);
        assert_int_equal(c.length, rows[i].length);
    }

    /* a row larger than that goes alone */
    d.kind = COLLECTIVE_ALL_TO_ALL_V;
    d.shape = (struct shape){ 2, { 9, 1000 } };
    assert_int_equal(chunk_plan(&d, 3, 256, &c, NULL), 0);
    assert_int_equal(c.length, 1);
    assert_int_equal(c.chunks, 3);
}

TEST(counts_near_63_bits_do_not_wrap)
{
    const uint64_t n = INT64_MAX;
    struct descriptor d = of(COLLECTIVE_ALL_REDUCE, DTYPE_U8, 7, n, 7);
    struct chunking c = plan(&d, 0);

    assert_true(c.n == n && c.length == 1 && c.chunks == n);
    assert_true(chunk_first(&c, n - 1) == n - 1);
    assert_int_equal(chunk_count(&c, n - 1), 1);
    assert_int_equal(chunk_count(&c, n), 0);

    d.budget = 21;
    c = plan(&d, 0);
    assert_true(c.length == 3 && c.chunks == n / 3 + 1); /* 2^63 - 1 is 1 more than 3 * k */
    assert_int_equal(chunk_count(&c, c.chunks - 1), 1);
    assert_int_equal(chunk_count(&c, c.chunks), 0);

    d.budget = BUDGET_NONE - 1;
    c = plan(&d, 0);
    assert_true(c.chunks == 4);
    d.kind = COLLECTIVE_BROADCAST;
    c = plan(&d, 0);
    assert_true(c.chunks == 1 && chunk_count(&c, 0) == n && chunk_count(&c, 1) == 0);
}

TEST(rows_too_large_for_any_budget_are_said_to_need_none)
{
    struct descriptor d = of(COLLECTIVE_ALL_TO_ALL_V, DTYPE_U8, 4096, 1, MIB);

    d.shape.naxes = 2;
    d.shape.axes[1] = 1ull << 62;
    assert_int_equal(descriptor_check(&d, NULL), 0);
    assert_too_small(&d, 1, "18446744073709551615");
    d.budget = BUDGET_NONE;
    assert_int_equal(plan(&d, 1).length, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mebibyte_of_f16_is_cut_as_the_table_says),
        cmocka_unit_test(the_least_budget_works_and_one_byte_less_names_it),
        cmocka_unit_test(an_exchange_is_cut_in_whole_rows_of_a_pair),
        cmocka_unit_test(nothing_to_move_passes_with_any_budget),
        cmocka_unit_test(a_barrier_has_no_chunks_whatever_its_other_fields),
        cmocka_unit_test(a_scalar_is_one_chunk),
        cmocka_unit_test(chunks_tile_the_interval),
        cmocka_unit_test(without_a_budget_the_tuned_bytes_cut),
        cmocka_unit_test(counts_near_63_bits_do_not_wrap),
        cmocka_unit_test(rows_too_large_for_any_budget_are_said_to_need_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
