#include "client/perf/pattern.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "client/perf/number.h"

/* Ranks from here on put only 1 and -1 into a product: 2 to the power of 64 still fits in an f32.
 */
#define PRODUCT_RANKS 64u

/* 64 well-mixed bits (the finaliser of splitmix64) of one element; `salt` asks for further ones. */
static uint64_t random_bits(uint64_t round, uint32_t rank, uint64_t index, uint64_t salt)
{
    uint64_t x = index + (rank + 1) * UINT64_C(0x9e3779b97f4a7c15) +
                 (round + 1) * UINT64_C(0xd1b54a32d192ed03) + salt * UINT64_C(0x8cb92ba72f3d8dd7);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* ---------------------------------------------------------------- floats */

/* A float to be reduced: both zeros, both signs, few enough bits that sums of 4096 are exact. */
static double float_value(const struct pattern *p, uint32_t rank, uint64_t index)
{
    uint64_t bits = random_bits(p->round, rank, index, 0);
    double sign = bits >> 63 ? -1 : 1;

    if (p->op == OPERATOR_PRODUCT) {
        static const double factors[] = { 1, 2, 0.5, 1 };

        return sign * (rank < PRODUCT_RANKS ? factors[bits & 3] : 1);
    }

    int precision = (int)number_format_get(p->dtype)->mantissa + 1;

    if (p->dtype == DTYPE_F32)
        precision = 11;
    else if (p->dtype == DTYPE_F64)
        precision = 40;
    bits &= (UINT64_C(1) << precision) - 1;
    return sign * ldexp((double)bits, -precision / 2);
}

/* IEEE 754-2019 minimum and maximum, without NaN: -0 is below +0. */
static bool float_below(double a, double b)
{
    return a < b || (a == b && signbit(a) && !signbit(b));
}

static double float_combine(enum operator_id op, double a, double b)
{
    switch (op) {
    case OPERATOR_SUM:
    case OPERATOR_MEAN:
        return a + b;
    case OPERATOR_PRODUCT:
        return a * b;
    case OPERATOR_MIN:
        return float_below(b, a) ? b : a;
    case OPERATOR_MAX:
        return float_below(a, b) ? b : a;
    default:
        assert(!"an operator of integers only");
        return NAN;
    }
}

static uint64_t float_reduced(const struct pattern *p, uint64_t index)
{
    double result = float_value(p, 0, index);

    for (uint32_t rank = 1; rank < p->nranks; rank++)
        result = float_combine(p->op, result, float_value(p, rank, index));

    /* The quotient is rounded to the accumulation type, then to the element type. */
    if (p->op == OPERATOR_MEAN)
        result =
            p->dtype == DTYPE_F64 ? result / p->nranks : (double)((float)result / (float)p->nranks);
    return number_encode(number_format_get(p->dtype), result);
}

/* ---------------------------------------------------------------- integers */

/* An integer to be reduced, in the low bits: wherever eight ranks leave something to see. */
static uint64_t integer_value(const struct pattern *p, uint32_t rank, uint64_t index)
{
    uint64_t bits = random_bits(p->round, rank, index, 0);

    switch (p->op) {
    case OPERATOR_PRODUCT: /* odd, or the low bits would soon all be zero */
        return bits | 1;
    case OPERATOR_AND: /* three bits of four set */
        return bits | random_bits(p->round, rank, index, 1);
    case OPERATOR_OR: /* one bit of four set */
        return bits & random_bits(p->round, rank, index, 1);
    default:
        return bits;
    }
}

static int64_t sign_extend(uint64_t bits, uint32_t width)
{
    uint32_t unused = 64 - width * 8;

    return (int64_t)(bits << unused) >> unused;
}

static bool integer_below(uint64_t a, uint64_t b, const struct dtype *type)
{
    uint32_t unused = 64 - type->width * 8u;

    if (type->class == DTYPE_CLASS_SIGNED)
        return sign_extend(a, type->width) < sign_extend(b, type->width);
    return a << unused < b << unused;
}

/* Wrapping 64-bit arithmetic: its low bits are those of any narrower type. */
static uint64_t integer_combine(enum operator_id op, const struct dtype *type, uint64_t a,
                                uint64_t b)
{
    switch (op) {
    case OPERATOR_SUM:
        return a + b;
    case OPERATOR_PRODUCT:
        return a * b;
    case OPERATOR_MIN:
        return integer_below(b, a, type) ? b : a;
    case OPERATOR_MAX:
        return integer_below(a, b, type) ? b : a;
    case OPERATOR_AND:
        return a & b;
    case OPERATOR_OR:
        return a | b;
    case OPERATOR_XOR:
        return a ^ b;
    default:
        assert(!"an operator of floats only");
        return 0;
    }
}

static uint64_t integer_reduced(const struct pattern *p, uint64_t index)
{
    const struct dtype *type = dtype_get(p->dtype);
    uint64_t result = integer_value(p, 0, index);

    for (uint32_t rank = 1; rank < p->nranks; rank++)
        result = integer_combine(p->op, type, result, integer_value(p, rank, index));
    return result;
}

/* ---------------------------------------------------------------- tables */

static void table_init(struct pattern_table *t, const struct pattern *p)
{
    t->width = dtype_get(p->dtype)->width;
    t->nans_of = p->op ? number_format_get(p->dtype) : NULL;
}

/* Little endian: the low bytes of `bits` are the element, whatever its width. */
static void table_set(struct pattern_table *t, uint32_t i, uint64_t bits, uint64_t high_bits)
{
    uint64_t words[2] = { bits, high_bits };

    memcpy(t->bytes + (size_t)i * t->width, words, t->width);
}

void pattern_input(const struct pattern *p, uint32_t rank, uint64_t count,
                   struct pattern_table *ret)
{
    const struct number_format *format = number_format_get(p->dtype);
    uint32_t nentries = (uint32_t)MIN(count, PATTERN_PERIOD);

    table_init(ret, p);
    for (uint32_t i = 0; i < nentries; i++) {
        if (!p->op)
            table_set(ret, i, random_bits(p->round, rank, i, 0), random_bits(p->round, rank, i, 1));
        else if (format)
            table_set(ret, i, number_encode(format, float_value(p, rank, i)), 0);
        else
            table_set(ret, i, integer_value(p, rank, i), 0);
    }
}

void pattern_reduced(const struct pattern *p, uint64_t count, struct pattern_table *ret)
{
    bool is_float = number_format_get(p->dtype);
    uint32_t nentries = (uint32_t)MIN(count, PATTERN_PERIOD);

    table_init(ret, p);
    for (uint32_t i = 0; i < nentries; i++)
        table_set(ret, i, is_float ? float_reduced(p, i) : integer_reduced(p, i), 0);
}

void pattern_fill(const struct pattern_table *t, void *data, uint64_t count)
{
    uint8_t *to = data;

    while (count) {
        uint64_t n = MIN(count, PATTERN_PERIOD);

        memcpy(to, t->bytes, n * t->width);
        to += n * t->width;
        count -= n;
    }
}

static bool element_equal(const struct pattern_table *t, const uint8_t *a, const uint8_t *b)
{
    uint64_t x = 0, y = 0;

    if (!memcmp(a, b, t->width))
        return true;
    if (!t->nans_of)
        return false;
    memcpy(&x, a, t->width);
    memcpy(&y, b, t->width);
    return number_is_nan(t->nans_of, x) && number_is_nan(t->nans_of, y);
}

uint64_t pattern_count_wrong(const struct pattern_table *t, const void *data, uint64_t first,
                             uint64_t count)
{
    const uint8_t *at = data;
    uint64_t nwrong = 0;

    while (count) {
        uint64_t phase = first % PATTERN_PERIOD;
        uint64_t n = MIN(count, PATTERN_PERIOD - phase);
        const uint8_t *expected = t->bytes + phase * t->width;

        if (memcmp(at, expected, n * t->width))
            for (uint64_t i = 0; i < n; i++)
                nwrong += !element_equal(t, at + i * t->width, expected + i * t->width);
        at += n * t->width;
        first += n;
        count -= n;
    }
    return nwrong;
}
