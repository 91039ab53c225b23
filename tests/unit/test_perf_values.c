/* ruccl-perf: the values it puts in, and how it knows those that come out. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "client/perf/number.h"
#include "client/perf/pattern.h"

/* ---------------------------------------------------------------- numbers */

TEST(known_codes_are_encoded)
{
    static const struct {
        enum dtype_id dtype;
        double value;
        uint64_t code;
    } rows[] = {
        { DTYPE_F32, 1, 0x3f800000 },
        { DTYPE_F32, -0.0, 0x80000000 },
        { DTYPE_F64, -1.5, 0xbff8000000000000 },
        { DTYPE_F64, 4.9406564584124654e-324, 1 },
        { DTYPE_F16, 65504, 0x7bff },
        { DTYPE_F16, 65519.99, 0x7bff },
        { DTYPE_F16, 65520, 0x7c00 },
        { DTYPE_F16, 0x1p-24, 1 },
        { DTYPE_F16, 0x1p-25, 0 },
        { DTYPE_F16, 0x1.8p-24, 2 },
        { DTYPE_F16, 2049, 0x6800 },
        { DTYPE_F16, 2051, 0x6802 },
        { DTYPE_BF16, 1, 0x3f80 },
        { DTYPE_BF16, 257, 0x4380 },
        { DTYPE_F8E4M3, 448, 0x7e },
        { DTYPE_F8E4M3, 464, 0x7e },
        { DTYPE_F8E4M3, 464.1, 0x7f },
        { DTYPE_F8E4M3, -1e9, 0xff },
        { DTYPE_F8E4M3, 0x1p-9, 1 },
        { DTYPE_F8E4M3, 0x1p-10, 0 },
        { DTYPE_F8E5M2, 57344, 0x7b },
        { DTYPE_F8E5M2, 61440, 0x7c },
        { DTYPE_F8E5M2, 1e9, 0x7c },
        { DTYPE_F8E5M2, 0x1p-16, 1 },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(number_encode(number_format_get(rows[i].dtype), rows[i].value),
                         rows[i].code);
}

TEST(encoding_a_float_gives_the_compilers_bits)
{
    const struct number_format *f32 = number_format_get(DTYPE_F32);

    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t bits = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
        uint32_t narrow;
        double value;
        float rounded;

        memcpy(&value, &bits, sizeof(value));
        if (isnan(value))
            continue;
        value = ldexp(value, -(int)(i % 900)); /* many of them near and below the least float */
        rounded = (float)value;
        memcpy(&narrow, &rounded, sizeof(narrow));
        assert_int_equal(number_encode(f32, value), narrow);
    }
}

TEST(nans_are_told_from_numbers)
{
    const struct number_format *e4m3 = number_format_get(DTYPE_F8E4M3);
    const struct number_format *e5m2 = number_format_get(DTYPE_F8E5M2);

    assert_true(number_is_nan(e4m3, 0x7f) && number_is_nan(e4m3, 0xff));
    assert_false(number_is_nan(e4m3, 0x7e));
    assert_true(number_is_nan(e5m2, 0x7d) && number_is_nan(e5m2, 0xff));
    assert_false(number_is_nan(e5m2, 0x7c));
    assert_true(number_is_nan(e4m3, number_encode(e4m3, NAN)));
    assert_true(number_is_nan(e5m2, number_encode(e5m2, NAN)));
    assert_null(number_format_get(DTYPE_I32));
    assert_null(number_format_get(DTYPE_PACKED_U8));
}

/* ---------------------------------------------------------------- references */

static struct pattern_table a, b, c, expected;

#define TABLE(t, type) ((const type *)(const void *)(t).bytes)

/* Three ranks' inputs and their reduction. */
static void make_three(enum dtype_id dtype, enum operator_id op)
{
    const struct pattern p = { dtype, op, 3, 5 };

    pattern_input(&p, 0, PATTERN_PERIOD, &a);
    pattern_input(&p, 1, PATTERN_PERIOD, &b);
    pattern_input(&p, 2, PATTERN_PERIOD, &c);
    pattern_reduced(&p, PATTERN_PERIOD, &expected);
}

#define CHECK_THREE(dtype, op, type, formula)                                                      \
    do {                                                                                           \
        make_three(dtype, op);                                                                     \
        for (uint32_t i = 0; i < PATTERN_PERIOD; i++) {                                            \
            type x = TABLE(a, type)[i], y = TABLE(b, type)[i], z = TABLE(c, type)[i];              \
            type want = (type)(formula);                                                           \
            assert_memory_equal(&want, &TABLE(expected, type)[i], sizeof(want));                   \
        }                                                                                          \
    } while (0)

TEST(integers_reduce_as_c_does)
{
    CHECK_THREE(DTYPE_I8, OPERATOR_SUM, uint8_t, x + y + z);
    CHECK_THREE(DTYPE_U8, OPERATOR_PRODUCT, uint8_t, x * y * z);
    CHECK_THREE(DTYPE_I16, OPERATOR_MIN, int16_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_I16, OPERATOR_MAX, int16_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_U16, OPERATOR_MIN, uint16_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_U16, OPERATOR_MAX, uint16_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_I32, OPERATOR_PRODUCT, uint32_t, x * y * z);
    CHECK_THREE(DTYPE_U32, OPERATOR_AND, uint32_t, x & y & z);
    CHECK_THREE(DTYPE_I64, OPERATOR_OR, int64_t, x | y | z);
    CHECK_THREE(DTYPE_U64, OPERATOR_XOR, uint64_t, x ^ y ^ z);
    CHECK_THREE(DTYPE_U64, OPERATOR_MIN, uint64_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_I64, OPERATOR_MAX, int64_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_I64, OPERATOR_SUM, uint64_t, x + y + z);
}

TEST(floats_reduce_as_c_does)
{
    CHECK_THREE(DTYPE_F32, OPERATOR_SUM, float, x + y + z);
    CHECK_THREE(DTYPE_F32, OPERATOR_SUM, float, x + (y + z));
    CHECK_THREE(DTYPE_F32, OPERATOR_MEAN, float, (x + y + z) / 3);
    CHECK_THREE(DTYPE_F32, OPERATOR_PRODUCT, float, x *y *z);
    CHECK_THREE(DTYPE_F64, OPERATOR_SUM, double, x + (y + z));
    CHECK_THREE(DTYPE_F64, OPERATOR_MEAN, double, (x + y + z) / 3);
}

/* Each small type has few enough codes to invert the encoding by trying. */
static double decode(enum dtype_id dtype, const struct pattern_table *t, uint32_t i)
{
    static double values[65536];
    static enum dtype_id of;
    const struct number_format *f = number_format_get(dtype);
    uint64_t bits = 0;

    if (of != dtype)
        for (int exponent = -30; exponent <= 20; exponent++)
            for (int m = 0; m < 4096; m++) {
                double value = ldexp(m, exponent);

                values[number_encode(f, value)] = value;
                values[number_encode(f, -value)] = -value;
            }
    of = dtype;
    memcpy(&bits, t->bytes + (size_t)i * t->width, t->width);
    return values[bits];
}

TEST(small_floats_round_once_and_keep_their_zeros_apart)
{
    static const enum dtype_id types[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F8E4M3, DTYPE_F8E5M2 };
    unsigned int nzeros = 0;

    for (size_t k = 0; k < ARRAY_SIZE(types); k++) {
        make_three(types[k], OPERATOR_MAX);
        for (uint32_t i = 0; i < PATTERN_PERIOD; i++) {
            double x = decode(types[k], &a, i), y = decode(types[k], &b, i),
                   z = decode(types[k], &c, i), want = fmax(fmax(x, y), z);

            if (want == 0) {
                bool positive =
                    (x == 0 && !signbit(x)) || (y == 0 && !signbit(y)) || (z == 0 && !signbit(z));

                assert_int_equal(signbit(decode(types[k], &expected, i)) == 0, positive);
                nzeros++;
            }
            assert_true(want == decode(types[k], &expected, i));
        }
    }
    assert_true(nzeros > 10);
}

TEST(inputs_differ_by_rank_round_and_index)
{
    struct pattern p = { DTYPE_C128, OPERATOR_NONE, 2, 0 };

    pattern_input(&p, 0, PATTERN_PERIOD, &a);
    pattern_input(&p, 1, PATTERN_PERIOD, &b);
    p.round = 1;
    pattern_input(&p, 0, PATTERN_PERIOD, &c);
    assert_int_equal(pattern_count_wrong(&a, b.bytes, 0, PATTERN_PERIOD), PATTERN_PERIOD);
    assert_int_equal(pattern_count_wrong(&a, c.bytes, 0, PATTERN_PERIOD), PATTERN_PERIOD);
    assert_int_equal(pattern_count_wrong(&a, a.bytes + 16, 0, PATTERN_PERIOD - 1),
                     PATTERN_PERIOD - 1);
}

TEST(one_wrong_element_counts_as_one_wherever_it_is)
{
    static uint8_t data[3 * PATTERN_PERIOD * 2];
    const struct pattern p = { DTYPE_F16, OPERATOR_NONE, 2, 3 };
    const uint64_t total = ARRAY_SIZE(data) / 2;

    pattern_input(&p, 1, total, &a);
    pattern_fill(&a, data, total);
    assert_int_equal(pattern_count_wrong(&a, data, 0, total), 0);
    for (uint64_t first = 0; first < total; first += 613) {
        assert_int_equal(pattern_count_wrong(&a, data + 2 * first, first, total - first), 0);
        data[2 * first + 1] ^= 1;
        assert_int_equal(pattern_count_wrong(&a, data, 0, total), 1);
        assert_int_equal(pattern_count_wrong(&a, data, 0, first), 0);
        data[2 * first + 1] ^= 1;
    }
    assert_int_equal(pattern_count_wrong(&a, data, 1, total - 1), total - 1);
}

TEST(any_nan_will_do_for_a_reduction_but_not_for_a_move)
{
    const struct pattern moved = { DTYPE_F8E4M3, OPERATOR_NONE, 2, 0 };
    const struct pattern reduced = { DTYPE_F8E4M3, OPERATOR_SUM, 2, 0 };
    const uint8_t other_nan = 0xff;

    pattern_input(&moved, 0, 1, &a);
    a.bytes[0] = 0x7f;
    assert_int_equal(pattern_count_wrong(&a, &other_nan, 0, 1), 1);
    pattern_reduced(&reduced, 1, &a);
    a.bytes[0] = 0x7f;
    assert_int_equal(pattern_count_wrong(&a, &other_nan, 0, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_codes_are_encoded),
        cmocka_unit_test(encoding_a_float_gives_the_compilers_bits),
        cmocka_unit_test(nans_are_told_from_numbers),
        cmocka_unit_test(integers_reduce_as_c_does),
        cmocka_unit_test(floats_reduce_as_c_does),
        cmocka_unit_test(small_floats_round_once_and_keep_their_zeros_apart),
        cmocka_unit_test(inputs_differ_by_rank_round_and_index),
        cmocka_unit_test(one_wrong_element_counts_as_one_wherever_it_is),
        cmocka_unit_test(any_nan_will_do_for_a_reduction_but_not_for_a_move),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
