/* The words both sides speak: types, collectives and their shapes, errors and their sentences,
 * lists. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shared/collective.h"
#include "shared/list.h"

/* ---------------------------------------------------------------- element types */

TEST(every_type_is_found_by_number_and_by_name)
{
    for (uint32_t id = 1; id < DTYPE_END; id++) {
        const struct dtype *t = dtype_get(id);

        assert_non_null(t);
        assert_int_equal(dtype_by_name(t->name), id);
        assert_true(t->width == 1 || t->width == 2 || t->width == 4 || t->width == 8 ||
                    t->width == 16);
    }
}

TEST(numbers_and_names_of_no_type_find_nothing)
{
    static const uint32_t ids[] = { DTYPE_NONE, DTYPE_END, DTYPE_END + 1, INT32_MAX, UINT32_MAX };

    for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
        assert_null(dtype_get(ids[i]));
    assert_int_equal(dtype_by_name("f33"), DTYPE_NONE);
    assert_int_equal(dtype_by_name(""), DTYPE_NONE);
    assert_int_equal(dtype_by_name("F32"), DTYPE_NONE);
}

TEST(accumulators_are_wider_only_for_small_floats_and_accumulate_in_themselves)
{
    for (uint32_t id = 1; id < DTYPE_END; id++) {
        const struct dtype *t = dtype_get(id), *acc = dtype_get(t->accumulator);

        assert_int_equal(acc->accumulator, t->accumulator);
        assert_int_equal(acc->class, t->class);
        if (t->class == DTYPE_CLASS_FLOAT && t->width < 4)
            assert_int_equal(t->accumulator, DTYPE_F32);
        else
            assert_int_equal(t->accumulator, id);
    }
}

/* ---------------------------------------------------------------- collectives and operators */

TEST(every_collective_and_operator_is_found_by_number_and_by_name)
{
    for (uint32_t id = 1; id < COLLECTIVE_END; id++)
        assert_int_equal(collective_by_name(collective_get(id)->name), id);
    for (uint32_t id = 1; id < OPERATOR_END; id++)
        assert_int_equal(operator_by_name(operator_name(id)), id);

    assert_null(collective_get(COLLECTIVE_NONE));
    assert_null(collective_get(COLLECTIVE_END));
    assert_null(collective_get(UINT32_MAX));
    assert_null(operator_name(OPERATOR_NONE));
    assert_null(operator_name(OPERATOR_END));
    assert_null(operator_name(UINT32_MAX));
    assert_int_equal(collective_by_name("all_reduc"), COLLECTIVE_NONE);
    assert_int_equal(operator_by_name("avg"), OPERATOR_NONE);
}

static struct shape shape2(uint64_t a, uint64_t b)
{
    return (struct shape){ 2, { a, b } };
}

TEST(a_shape_counts_what_it_holds)
{
    const struct shape scalar = { 0 }, huge = shape2(1ull << 32, 1ull << 32);
    struct shape s = { 3, { 2, 3, 5 } };
    uint64_t n;

    assert_true(shape_count(&scalar, &n));
    assert_int_equal(n, 1);
    assert_true(shape_row_count(&scalar, &n));
    assert_int_equal(n, 1);
    assert_true(shape_count(&s, &n));
    assert_int_equal(n, 30);
    assert_true(shape_row_count(&s, &n));
    assert_int_equal(n, 15);
    n = 7;
    assert_false(shape_count(&huge, &n));
    assert_int_equal(n, 7);
    assert_true(shape_row_count(&huge, &n));
    assert_true(n == 1ull << 32);
}

TEST(one_zero_axis_empties_a_shape_however_large_the_others)
{
    uint64_t n;

    for (uint32_t zero = 0; zero < 3; zero++) {
        struct shape s = { 3, { UINT64_MAX, UINT64_MAX, UINT64_MAX } };

        s.axes[zero] = 0;
        assert_true(shape_count(&s, &n));
        assert_int_equal(n, 0);
    }
}

TEST(shapes_are_equal_by_their_axes_alone)
{
    struct shape a = shape2(2, 3), b = shape2(2, 3);

    b.axes[2] = 9; /* behind the last axis */
    assert_true(shape_equal(&a, &b));
    b.axes[1] = 4;
    assert_false(shape_equal(&a, &b));
    b = (struct shape){ 3, { 2, 3, 1 } };
    assert_false(shape_equal(&a, &b));
    a.naxes = b.naxes = 0;
    assert_true(shape_equal(&a, &b));
}

TEST(a_shape_reads_as_a_list)
{
    const struct shape scalar = { 0 }, s = shape2(0, UINT64_MAX);
    struct text t = { 0 };

    text_add_shape(&t, &scalar);
    text_add_shape(&t, &s);
    assert_string_equal(t.s, "[][0, 18446744073709551615]");
}

/* ---------------------------------------------------------------- descriptors */

/* One that passes, of whatever kind: 12 x 5 elements, 4 ranks. */
static struct descriptor good(enum collective_id kind)
{
    return (struct descriptor){ .kind = kind,
                                .op = OPERATOR_SUM,
                                .dtype = DTYPE_F32,
                                .shape = shape2(12, 5),
                                .root = 3,
                                .budget = BUDGET_NONE,
                                .nranks = 4 };
}

static void assert_refused(const struct descriptor *d, enum error_code code, const char *words)
{
    struct error e = { 0 };

    assert_int_equal(descriptor_check(d, &e), -(int)code);
    assert_int_equal(e.code, code);
    if (!strstr(e.text, words))
        fail_msg("\"%s\" does not say \"%s\"", e.text, words);
}

static void assert_passes(const struct descriptor *d)
{
    struct error e = { 0 };

    if (descriptor_check(d, &e))
        fail_msg("%s", e.text);
    assert_int_equal(e.code, ERROR_NONE);
}

TEST(shapes_follow_the_rule_of_each_collective)
{
    static const struct {
        enum collective_id kind;
        uint64_t in, out; /* axis 0 */
    } rows[] = {
        { COLLECTIVE_ALL_REDUCE, 12, 12 },    { COLLECTIVE_ALL_GATHER, 12, 48 },
        { COLLECTIVE_REDUCE_SCATTER, 12, 3 }, { COLLECTIVE_BROADCAST, 12, 12 },
        { COLLECTIVE_ALL_TO_ALL_V, 12, 12 },  { COLLECTIVE_REDUCE, 12, 12 },
        { COLLECTIVE_GATHER, 12, 48 },        { COLLECTIVE_SCATTER, 48, 12 },
        { COLLECTIVE_ALL_TO_ALL, 12, 12 },    { COLLECTIVE_SEND, 12, 12 },
        { COLLECTIVE_RECV, 12, 12 },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct descriptor d = good(rows[i].kind);
        struct shape in, out;

        assert_passes(&d);
        assert_int_equal(descriptor_shapes(&d, &in, &out, NULL), 0);
        assert_int_equal(in.naxes, 2);
        assert_int_equal(out.naxes, 2);
        assert_int_equal(in.axes[0], rows[i].in);
        assert_int_equal(out.axes[0], rows[i].out);
        assert_int_equal(in.axes[1], 5);
        assert_int_equal(out.axes[1], 5);
    }
}

static void assert_measures(const struct tensor_extent *x, const struct shape *s)
{
    uint64_t n;

    assert_true(shape_count(s, &n));
    assert_int_equal(x->bytes, n * sizeof(float));
    assert_int_equal(x->rows, s->naxes ? s->axes[0] : 0);
}

TEST(extents_are_those_of_the_shapes)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (uint32_t naxes = 0; naxes <= 2; naxes++)
            for (uint64_t rows = 0; rows <= 12; rows += 4) {
                struct descriptor d = good((enum collective_id)kind);
                struct tensor_extent x, y;
                struct shape in, out;

                d.shape.naxes = naxes;
                d.shape.axes[0] = rows;
                if (collective_get(kind)->shape == SHAPE_NONE ||
                    descriptor_shapes(&d, &in, &out, NULL) < 0)
                    continue;
                assert_int_equal(descriptor_measure(&d, &x, &y, NULL), 0);
                assert_measures(&x, &in);
                assert_measures(&y, &out);
            }
}

TEST(what_has_no_tensors_has_no_extent)
{
    const struct descriptor d = good(COLLECTIVE_BARRIER);
    struct tensor_extent x = { 1, 1 }, y = { 1, 1 };

    assert_int_equal(descriptor_measure(&d, &x, &y, NULL), 0);
    assert_int_equal(x.rows + x.bytes + y.rows + y.bytes, 0);
}

TEST(what_is_refused_is_not_measured)
{
    struct descriptor d = good(COLLECTIVE_ALL_GATHER);
    struct tensor_extent x = { 1, 2 }, y = { 3, 4 };
    struct error e = { 0 };

    d.shape = shape2(1ull << 60, 1);
    assert_int_equal(descriptor_measure(&d, &x, &y, &e), -ERROR_INVALID_SHAPE);
    assert_non_null(strstr(e.text, "shape [4611686018427387904, 1] has more bytes"));
    assert_true(x.rows == 1 && x.bytes == 2 && y.rows == 3 && y.bytes == 4);
}

TEST(a_scalar_goes_where_no_axis_is_cut_or_joined)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        struct descriptor d = good((enum collective_id)kind);
        const enum shape_rule rule = collective_get(kind)->shape;

        d.shape.naxes = 0;
        if (rule == SHAPE_SAME || rule == SHAPE_NONE)
            assert_passes(&d);
        else
            assert_refused(&d, ERROR_INVALID_SHAPE, "shape [] has no axis 0");
    }
}

TEST(unknown_numbers_are_refused_by_name)
{
    static const uint32_t unknown[] = { 0, 200, INT32_MAX, UINT32_MAX };

    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++) {
        struct descriptor d = good(COLLECTIVE_ALL_REDUCE);

        d.kind = (enum collective_id)unknown[i];
        assert_refused(&d, ERROR_INVALID_ARGUMENT, "is not known");
        d = good(COLLECTIVE_ALL_REDUCE);
        d.dtype = (enum dtype_id)unknown[i];
        assert_refused(&d, ERROR_UNSUPPORTED_DTYPE, "all_reduce: dtype");
        d = good(COLLECTIVE_ALL_REDUCE);
        d.op = (enum operator_id)unknown[i];
        assert_refused(&d, ERROR_INVALID_OPERATION, "all_reduce: op");
    }
}

TEST(a_world_of_none_or_too_many_is_refused)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        struct descriptor d = good((enum collective_id)kind);

        d.nranks = 0;
        assert_refused(&d, ERROR_INVALID_ARGUMENT, "world size 0");
        d.nranks = RANKS_MAX + 1;
        assert_refused(&d, ERROR_INVALID_ARGUMENT, "world size 4097");
    }
}

TEST(too_many_axes_are_refused_unread)
{
    static const uint32_t naxes[] = { AXES_MAX + 1, UINT32_MAX };

    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (size_t i = 0; i < ARRAY_SIZE(naxes); i++) {
            struct descriptor d = good((enum collective_id)kind);

            d.shape.naxes = naxes[i];
            if (collective_get(kind)->shape == SHAPE_NONE)
                assert_passes(&d);
            else
                assert_refused(&d, ERROR_INVALID_SHAPE, "more than 8");
        }
}

TEST(a_root_counts_only_where_there_is_one)
{
    static const uint32_t roots[] = { 4, UINT32_MAX };

    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (size_t i = 0; i < ARRAY_SIZE(roots); i++) {
            struct descriptor d = good((enum collective_id)kind);

            d.root = roots[i];
            if (collective_get(kind)->flags & COLLECTIVE_HAS_ROOT)
                assert_refused(&d, ERROR_INVALID_ROOT, "not below world size 4");
            else
                assert_passes(&d);
        }
}

/* Which ops a type has, once more and by hand. */
static enum error_code op_verdict(const struct dtype *t, enum operator_id op)
{
    if (t->class == DTYPE_CLASS_OPAQUE)
        return ERROR_UNSUPPORTED_DTYPE;
    if (op == OPERATOR_MEAN)
        return t->class == DTYPE_CLASS_FLOAT ? ERROR_NONE : ERROR_INVALID_OPERATION;
    if (op == OPERATOR_AND || op == OPERATOR_OR || op == OPERATOR_XOR)
        return t->class == DTYPE_CLASS_FLOAT ? ERROR_INVALID_OPERATION : ERROR_NONE;
    return ERROR_NONE;
}

TEST(each_type_is_reduced_by_the_ops_it_has_and_moved_by_all)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (uint32_t dtype = 1; dtype < DTYPE_END; dtype++)
            for (uint32_t op = 1; op < OPERATOR_END; op++) {
                struct descriptor d = good((enum collective_id)kind);
                enum error_code want = op_verdict(dtype_get(dtype), (enum operator_id)op);

                d.dtype = (enum dtype_id)dtype;
                d.op = (enum operator_id)op;
                if (want && collective_get(kind)->flags & COLLECTIVE_HAS_OP)
                    assert_refused(&d, want, dtype_get(dtype)->name);
                else
                    assert_passes(&d);
            }
}

TEST(an_axis_that_the_world_does_not_divide_is_refused)
{
    struct descriptor d = good(COLLECTIVE_REDUCE_SCATTER);

    d.shape.axes[0] = 13;
    assert_refused(&d, ERROR_INVALID_SHAPE, "axis 0 is not divisible by world size 4");
    d.kind = COLLECTIVE_ALL_TO_ALL;
    assert_refused(&d, ERROR_INVALID_SHAPE, "world size does not divide");
    d.kind = COLLECTIVE_ALL_TO_ALL_V;
    assert_passes(&d);
    d.kind = COLLECTIVE_SCATTER;
    assert_passes(&d);
}

TEST(empty_tensors_pass_but_not_rows_of_nothing)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        struct descriptor d = good((enum collective_id)kind);

        d.shape.axes[0] = 0;
        assert_passes(&d);
        d.shape = shape2(12, 0);
        if (collective_get(kind)->shape == SHAPE_EXCHANGE)
            assert_refused(&d, ERROR_INVALID_SHAPE, "rows of no elements");
        else
            assert_passes(&d);
    }
}

TEST(sizes_end_at_63_bits_of_bytes_on_either_side)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        const struct collective *c = collective_get(kind);
        const bool times = c->shape == SHAPE_TIMES_R || kind == COLLECTIVE_SCATTER;
        struct descriptor d = good((enum collective_id)kind);

        if (c->shape == SHAPE_NONE)
            continue;
        /* 2^61 * 4 bytes are one too many, whichever tensor has them */
        d.shape = shape2(1ull << (times ? 57 : 59), 4);
        assert_refused(&d, ERROR_INVALID_SHAPE, "fit in 63 bits");
        d.shape = shape2((1ull << (times ? 57 : 59)) - 4, 4);
        assert_passes(&d);
        d.shape = shape2(UINT64_MAX - 3, UINT64_MAX);
        assert_refused(&d, ERROR_INVALID_SHAPE, "fit in 6");
        d.shape = (struct shape){ 1, { 1ull << 63 } };
        assert_refused(&d, ERROR_INVALID_SHAPE, "fit in 6");
    }
}

TEST(a_rank_without_rows_still_has_rows_of_a_sane_size)
{
    struct descriptor d = good(COLLECTIVE_ALL_TO_ALL_V);

    d.shape = shape2(0, 1ull << 62);
    assert_refused(&d, ERROR_INVALID_SHAPE, "rows of more bytes");
    d.shape = (struct shape){ 3, { 0, 1ull << 40, 1ull << 40 } };
    assert_refused(&d, ERROR_INVALID_SHAPE, "rows of more bytes");
    d.shape = shape2(0, 1ull << 60);
    assert_passes(&d);
}

TEST(nothing_moves_in_a_barrier_so_nothing_is_checked)
{
    struct descriptor d = { .kind = COLLECTIVE_BARRIER, .nranks = 1, .shape = { 77, { 0 } } };

    assert_passes(&d);
    d.kind = COLLECTIVE_SPLIT;
    assert_passes(&d);
}

/* ---------------------------------------------------------------- errors and their sentences */

TEST(every_code_has_a_name_of_its_own)
{
    for (uint32_t a = 1; a < ERROR_END; a++) {
        assert_string_not_equal(error_name(a), "unknown error");
        for (uint32_t b = 1; b < a; b++)
            assert_string_not_equal(error_name(a), error_name(b));
    }
    assert_string_equal(error_name(ERROR_RANK_LOST), "rank lost");
    assert_string_equal(error_name(ERROR_END), "unknown error");
    assert_string_equal(error_name(UINT32_MAX), "unknown error");
}

TEST(the_first_error_stays)
{
    struct error e = { 0 };

    assert_int_equal(error_set(&e, ERROR_TIMEOUT, "after %u s", 5u), -ERROR_TIMEOUT);
    assert_int_equal(error_set(&e, ERROR_RANK_LOST, "later"), -ERROR_RANK_LOST);
    assert_int_equal(e.code, ERROR_TIMEOUT);
    assert_string_equal(e.text, "after 5 s");
    assert_int_equal(error_set(NULL, ERROR_QUOTA, "nowhere"), -ERROR_QUOTA);
}

TEST(an_error_that_was_cleared_says_nothing_and_can_be_worded)
{
    struct error e;

    memset(&e, 0xff, sizeof(e));
    error_clear(&e);
    assert_int_equal(e.code, ERROR_NONE);
    assert_int_equal(e.nranks, 0);
    assert_string_equal(e.text, "");
    error_set(&e, ERROR_TIMEOUT, "after %u s", 5u);
    error_add_rank(&e, 3);
    assert_int_equal(e.code, ERROR_TIMEOUT);
    assert_string_equal(e.text, "after 5 s");
    assert_int_equal(e.nranks, 1);
    assert_int_equal(e.ranks[0], 3);
}

TEST(an_errno_becomes_a_sentence)
{
    struct error system = { 0 }, memory = { 0 };

    assert_int_equal(error_set_errno(&system, EBADF, "dup"), -ERROR_SYSTEM);
    assert_string_equal(system.text, "dup: Bad file descriptor");
    assert_int_equal(error_set_errno(&memory, ENOMEM, "mmap"), -ERROR_NO_MEMORY);
}

TEST(an_error_counts_more_ranks_than_it_holds)
{
    struct error e = { 0 };

    for (uint32_t r = 0; r < ERROR_RANKS_MAX + 3; r++)
        error_add_rank(&e, 2 * r);
    assert_int_equal(e.nranks, ERROR_RANKS_MAX + 3);
    assert_int_equal(e.ranks[ERROR_RANKS_MAX - 1], 2 * (ERROR_RANKS_MAX - 1));
    assert_string_equal(e.text, "");
    error_add_rank(NULL, 0);
}

TEST(a_sentence_too_long_ends_in_dots)
{
    char longest[ERROR_TEXT_BYTES + 1];
    struct error exact = { 0 }, cut = { 0 };

    memset(longest, 'x', sizeof(longest));
    longest[ERROR_TEXT_BYTES - 1] = '\0';
    error_set(&exact, ERROR_SYSTEM, "%s", longest);
    assert_string_equal(exact.text, longest);
    error_set(&cut, ERROR_SYSTEM, "%sy", longest);
    assert_int_equal(strlen(cut.text), ERROR_TEXT_BYTES - 1);
    assert_string_equal(cut.text + ERROR_TEXT_BYTES - 5, "x...");
}

TEST(a_text_too_long_ends_in_dots_wherever_it_is_cut)
{
    for (uint32_t step = 1; step <= 7; step++) {
        struct text t = { 0 };

        for (uint32_t i = 0; i < ERROR_TEXT_BYTES / step + 2; i++)
            text_add(&t, "%.*s", (int)step, "abcdefg");
        assert_int_equal(t.len, ERROR_TEXT_BYTES - 1);
        assert_int_equal(strlen(t.s), t.len);
        assert_string_equal(t.s + t.len - 3, "...");
    }
}

TEST(a_text_that_just_fits_is_whole)
{
    struct text t = { 0 };

    for (uint32_t i = 0; i < ERROR_TEXT_BYTES - 1; i++)
        text_add(&t, "a");
    assert_int_equal(t.len, ERROR_TEXT_BYTES - 1);
    assert_string_equal(t.s + t.len - 3, "aaa");
    text_add(&t, "%s", "");
    assert_string_equal(t.s + t.len - 3, "aaa");
}

TEST(ranks_read_as_runs)
{
    static const struct {
        uint32_t n, ranks[8];
        const char *text;
    } rows[] = {
        { 1, { 3 }, "rank 3" },
        { 2, { 0, 1 }, "ranks 0, 1" },
        { 2, { 0, 2 }, "ranks 0, 2" },
        { 3, { 0, 1, 2 }, "ranks 0-2" },
        { 5, { 0, 1, 2, 3, 5 }, "ranks 0-3, 5" },
        { 6, { 1, 3, 4, 6, 7, 8 }, "ranks 1, 3, 4, 6-8" },
        { 2, { 5, UINT32_MAX }, "ranks 5, 4294967295" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct text t = { 0 };

        text_add_ranks(&t, rows[i].ranks, rows[i].n);
        assert_string_equal(t.s, rows[i].text);
    }
}

TEST(thousands_of_single_ranks_are_cut_not_written_past_the_end)
{
    static uint32_t ranks[RANKS_MAX];
    struct text t = { 0 };

    for (uint32_t i = 0; i < RANKS_MAX; i++)
        ranks[i] = 2 * i;
    text_add_ranks(&t, ranks, RANKS_MAX);
    assert_int_equal(t.len, ERROR_TEXT_BYTES - 1);
    assert_string_equal(t.s + t.len - 3, "...");
}

/* ---------------------------------------------------------------- arithmetic and lists */

TEST(checked_arithmetic_leaves_its_result_alone_on_overflow)
{
    uint64_t v = 7;

    assert_false(mul_u64(1ull << 32, 1ull << 32, &v));
    assert_false(add_u64(UINT64_MAX, 1, &v));
    assert_int_equal(v, 7);
    assert_true(mul_u64(UINT64_MAX, 1, &v));
    assert_true(v == UINT64_MAX);
    assert_true(add_u64(UINT64_MAX - 1, 1, &v));
    assert_true(v == UINT64_MAX);
    assert_true(mul_u64(UINT64_MAX, 0, &v));
    assert_int_equal(v, 0);
    assert_true(div_up_u64(UINT64_MAX, UINT64_MAX - 1) == 2);
    assert_int_equal(div_up_u64(0, 3), 0);
    assert_int_equal(div_up_u64(6, 3), 2);
    assert_int_equal(div_up_u64(7, 3), 3);
}

struct item {
    int value;
    struct list link;
};

static void assert_items(struct list *l, const char *values)
{
    struct item *it;

    list_for_each (it, l, link) {
        assert_int_equal(it->value, *values);
        values++;
    }
    assert_int_equal(*values, '\0');
}

TEST(a_list_keeps_order_and_forgives_taking_out_twice)
{
    struct list l = LIST_INIT(l);
    struct item a = { 'a' }, b = { 'b' }, c = { 'c' };

    assert_true(list_empty(&l));
    assert_items(&l, "");
    list_append(&l, &a.link);
    list_append(&l, &b.link);
    list_append(&l, &c.link);
    assert_items(&l, "abc");
    assert_ptr_equal(list_first(&l, struct item, link), &a);
    list_remove(&b.link);
    list_remove(&b.link);
    assert_items(&l, "ac");
    list_append(&l, &b.link);
    assert_items(&l, "acb");
    list_remove(&a.link);
    list_remove(&c.link);
    list_remove(&b.link);
    assert_true(list_empty(&l));
}

TEST(a_list_can_be_emptied_while_it_is_walked)
{
    struct list l = LIST_INIT(l);
    struct item items[] = { { 'a' }, { 'b' }, { 'c' } }, *it, *next;
    int seen = 0;

    for (size_t i = 0; i < ARRAY_SIZE(items); i++)
        list_append(&l, &items[i].link);
    list_for_each_safe (it, next, &l, link) {
        list_remove(&it->link);
        seen++;
    }
    assert_int_equal(seen, 3);
    assert_true(list_empty(&l));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_is_found_by_number_and_by_name),
        cmocka_unit_test(numbers_and_names_of_no_type_find_nothing),
        cmocka_unit_test(accumulators_are_wider_only_for_small_floats_and_accumulate_in_themselves),
        cmocka_unit_test(every_collective_and_operator_is_found_by_number_and_by_name),
        cmocka_unit_test(a_shape_counts_what_it_holds),
        cmocka_unit_test(one_zero_axis_empties_a_shape_however_large_the_others),
        cmocka_unit_test(shapes_are_equal_by_their_axes_alone),
        cmocka_unit_test(a_shape_reads_as_a_list),
        cmocka_unit_test(shapes_follow_the_rule_of_each_collective),
        cmocka_unit_test(extents_are_those_of_the_shapes),
        cmocka_unit_test(what_has_no_tensors_has_no_extent),
        cmocka_unit_test(what_is_refused_is_not_measured),
        cmocka_unit_test(a_scalar_goes_where_no_axis_is_cut_or_joined),
        cmocka_unit_test(unknown_numbers_are_refused_by_name),
        cmocka_unit_test(a_world_of_none_or_too_many_is_refused),
        cmocka_unit_test(too_many_axes_are_refused_unread),
        cmocka_unit_test(a_root_counts_only_where_there_is_one),
        cmocka_unit_test(each_type_is_reduced_by_the_ops_it_has_and_moved_by_all),
        cmocka_unit_test(an_axis_that_the_world_does_not_divide_is_refused),
        cmocka_unit_test(empty_tensors_pass_but_not_rows_of_nothing),
        cmocka_unit_test(sizes_end_at_63_bits_of_bytes_on_either_side),
        cmocka_unit_test(a_rank_without_rows_still_has_rows_of_a_sane_size),
        cmocka_unit_test(nothing_moves_in_a_barrier_so_nothing_is_checked),
        cmocka_unit_test(every_code_has_a_name_of_its_own),
        cmocka_unit_test(the_first_error_stays),
        cmocka_unit_test(an_error_that_was_cleared_says_nothing_and_can_be_worded),
        cmocka_unit_test(an_errno_becomes_a_sentence),
        cmocka_unit_test(an_error_counts_more_ranks_than_it_holds),
        cmocka_unit_test(a_sentence_too_long_ends_in_dots),
        cmocka_unit_test(a_text_too_long_ends_in_dots_wherever_it_is_cut),
        cmocka_unit_test(a_text_that_just_fits_is_whole),
        cmocka_unit_test(ranks_read_as_runs),
        cmocka_unit_test(thousands_of_single_ranks_are_cut_not_written_past_the_end),
        cmocka_unit_test(checked_arithmetic_leaves_its_result_alone_on_overflow),
        cmocka_unit_test(a_list_keeps_order_and_forgives_taking_out_twice),
        cmocka_unit_test(a_list_can_be_emptied_while_it_is_walked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
