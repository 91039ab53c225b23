#include "tests/end_to_end/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A floating format: a sign, then E bits of exponent, then M of fraction. */
struct format {
    int exponent_bits, fraction_bits;
    uint64_t largest;  /* finite, without its sign */
    uint64_t overflow; /* what follows it: infinity, or NaN in a type that has none */
    uint64_t nan;      /* the NaN to write */
};

static const struct format formats[REFERENCE_DTYPES] = {
    [RUCCL_F64] = { 11, 52, 0x7fefffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000 },
    [RUCCL_F32] = { 8, 23, 0x7f7fffff, 0x7f800000, 0x7fc00000 },
    [RUCCL_F16] = { 5, 10, 0x7bff, 0x7c00, 0x7e00 },
    [RUCCL_BF16] = { 8, 7, 0x7f7f, 0x7f80, 0x7fc0 },
    [RUCCL_F8E5M2] = { 5, 2, 0x7b, 0x7c, 0x7e },
    [RUCCL_F8E4M3] = { 4, 3, 0x7e, 0x7f, 0x7f },
};

static int format_least_exponent(const struct format *f)
{
    return 2 - (1 << (f->exponent_bits - 1));
}

enum reference_class reference_class(enum ruccl_dtype dtype)
{
    switch (dtype) {
    case RUCCL_F32:
    case RUCCL_F64:
    case RUCCL_F16:
    case RUCCL_BF16:
    case RUCCL_F8E4M3:
    case RUCCL_F8E5M2:
        return REFERENCE_FLOAT;
    case RUCCL_I8:
    case RUCCL_I16:
    case RUCCL_I32:
    case RUCCL_I64:
        return REFERENCE_SIGNED;
    case RUCCL_U8:
    case RUCCL_U16:
    case RUCCL_U32:
    case RUCCL_U64:
        return REFERENCE_UNSIGNED;
    default:
        return REFERENCE_OPAQUE;
    }
}

bool reference_legal(enum ruccl_dtype dtype, enum ruccl_op op)
{
    switch (reference_class(dtype)) {
    case REFERENCE_OPAQUE:
        return false;
    case REFERENCE_FLOAT:
        return op <= RUCCL_MEAN;
    default:
        return op != RUCCL_MEAN;
    }
}

/* ---- bits <-> values */

static uint64_t read_bits(uint32_t width, const void *at)
{
    uint64_t bits = 0;

    memcpy(&bits, at, width); /* least significant byte first, as everywhere here */
    return bits;
}

static double decode(const struct format *f, uint64_t bits)
{
    const uint64_t hidden = 1ull << f->fraction_bits;
    const bool negative = bits >> (f->exponent_bits + f->fraction_bits);
    const uint64_t magnitude = bits & ((1ull << (f->exponent_bits + f->fraction_bits)) - 1);
    const int exponent = (int)(magnitude >> f->fraction_bits);
    const uint64_t fraction = magnitude & (hidden - 1);
    const int unit = format_least_exponent(f) - f->fraction_bits; /* of a subnormal's last bit */
    double value;

    if (magnitude > f->largest)
        value = magnitude == f->overflow && f->overflow != f->nan ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexp((double)fraction, unit);
    else
        value = ldexp((double)(hidden | fraction), unit + exponent - 1);
    return negative ? -value : value;
}

/* Rounds to nearest even; exact where `f` holds the value. */
static uint64_t encode(const struct format *f, double value)
{
    const int least = format_least_exponent(f);
    const uint64_t sign = signbit(value) ? 1ull << (f->exponent_bits + f->fraction_bits) : 0;
    const double magnitude = fabs(value);
    uint64_t bits = 0;

    if (isnan(value))
        return sign | f->nan;
    if (isinf(value))
        return sign | f->overflow;
    if (magnitude > 0) {
        int exponent = ilogb(magnitude);

        if (exponent < least)
            exponent = least;
        /* the hidden bit counts one exponent up, and so does a carry out of the fraction */
        bits = (uint64_t)(exponent - least) << f->fraction_bits;
        bits += (uint64_t)nearbyint(ldexp(magnitude, f->fraction_bits - exponent));
    }
    return sign | (bits > f->largest ? f->overflow : bits);
}

void reference_encode(enum ruccl_dtype dtype, double value, void *to)
{
    const uint64_t bits = encode(&formats[dtype], value);

    memcpy(to, &bits, ruccl_dtype_bytes(dtype));
}

/* The values of all elements of a narrow type. */
static const float *values_of(enum ruccl_dtype dtype)
{
    static float *tables[REFERENCE_DTYPES];
    const uint64_t n = 1ull << (8 * ruccl_dtype_bytes(dtype));

    if (!tables[dtype]) {
        tables[dtype] = calloc(n, sizeof(float));
        if (!tables[dtype])
            abort();
        for (uint64_t bits = 0; bits < n; bits++)
            tables[dtype][bits] = (float)decode(&formats[dtype], bits);
    }
    return tables[dtype];
}

/* ---- operators and the tree */

/* m of T(lo,hi), less lo: the largest power of two below the number of ranks. */
static uint32_t split_of(uint32_t nranks)
{
    uint32_t m = 1;

    while (2 * m < nranks)
        m *= 2;
    return m;
}

/* How many ranks each node has, in the order of their lowest ranks. */
struct nodes {
    uint32_t count, total;
    uint32_t nranks[REFERENCE_RANKS];
};

/* IEEE 754-2019 minimum and maximum: NaN wins, and -0 is less than +0. */
#define DEFINE_FLOAT_TREE(T)                                                                       \
    static T T##_combine(enum ruccl_op op, T a, T b)                                               \
    {                                                                                              \
        if (op == RUCCL_SUM || op == RUCCL_MEAN)                                                   \
            return a + b;                                                                          \
        if (op == RUCCL_PRODUCT)                                                                   \
            return a * b;                                                                          \
        if (isnan(a) || isnan(b))                                                                  \
            return (T)NAN;                                                                         \
        if (a == b)                                                                                \
            return !signbit(a) == (op == RUCCL_MAX) ? a : b;                                       \
        return (a < b) == (op == RUCCL_MIN) ? a : b;                                               \
    }                                                                                              \
                                                                                                   \
    static T T##_tree(enum ruccl_op op, const T *x, uint32_t nranks)                               \
    {                                                                                              \
        const uint32_t m = split_of(nranks);                                                       \
                                                                                                   \
        if (nranks == 1)                                                                           \
            return x[0];                                                                           \
        return T##_combine(op, T##_tree(op, x, m), T##_tree(op, x + m, nranks - m));               \
    }                                                                                              \
                                                                                                   \
    static T T##_reduce(enum ruccl_op op, const T *x, const struct nodes *nodes)                   \
    {                                                                                              \
        T sums[REFERENCE_RANKS], sum;                                                              \
                                                                                                   \
        for (uint32_t i = 0; i < nodes->count; x += nodes->nranks[i++])                            \
            sums[i] = T##_tree(op, x, nodes->nranks[i]);                                           \
        sum = T##_tree(op, sums, nodes->count);                                                    \
        return op == RUCCL_MEAN ? sum / (T)nodes->total : sum;                                     \
    }

DEFINE_FLOAT_TREE(float)
DEFINE_FLOAT_TREE(double)

static bool integer_less(enum reference_class class, uint64_t a, uint64_t b)
{
    return class == REFERENCE_SIGNED ? (int64_t)a < (int64_t)b : a < b;
}

/* In 64 bits, of which the type keeps the lower ones; min and max meet extended values only. */
static uint64_t integer_combine(enum reference_class class, enum ruccl_op op, uint64_t a,
                                uint64_t b)
{
    switch (op) {
    case RUCCL_SUM:
        return a + b;
    case RUCCL_PRODUCT:
        return a * b;
    case RUCCL_MIN:
        return integer_less(class, a, b) ? a : b;
    case RUCCL_MAX:
        return integer_less(class, a, b) ? b : a;
    case RUCCL_AND:
        return a & b;
    case RUCCL_OR:
        return a | b;
    default:
        return a ^ b;
    }
}

static uint64_t read_integer(enum reference_class class, uint32_t width, const void *at)
{
    const uint64_t bits = read_bits(width, at);
    const uint64_t sign = 1ull << (8 * width - 1);

    return class == REFERENCE_SIGNED ? (bits ^ sign) - sign : bits;
}

/* ---- a reduction */

static void reduce_integers(enum ruccl_dtype dtype, enum ruccl_op op, const uint8_t *const *in,
                            uint32_t nranks, uint64_t count, uint8_t *out)
{
    const enum reference_class class = reference_class(dtype);
    const uint32_t width = ruccl_dtype_bytes(dtype);

    for (uint64_t i = 0; i < count; i++) {
        uint64_t v = read_integer(class, width, in[0] + i * width);

        for (uint32_t r = 1; r < nranks; r++) /* the order does not show */
            v = integer_combine(class, op, v, read_integer(class, width, in[r] + i * width));
        memcpy(out + i * width, &v, width);
    }
}

static void reduce_f64(enum ruccl_op op, const uint8_t *const *in, const struct nodes *nodes,
                       uint64_t count, uint8_t *out)
{
    double x[REFERENCE_RANKS];

    for (uint64_t i = 0; i < count; i++) {
        for (uint32_t r = 0; r < nodes->total; r++)
            memcpy(&x[r], in[r] + i * sizeof(double), sizeof(double));
        x[0] = double_reduce(op, x, nodes);
        memcpy(out + i * sizeof(double), &x[0], sizeof(double));
    }
}

static void reduce_f32(enum ruccl_op op, const uint8_t *const *in, const struct nodes *nodes,
                       uint64_t count, uint8_t *out)
{
    float x[REFERENCE_RANKS];

    for (uint64_t i = 0; i < count; i++) {
        for (uint32_t r = 0; r < nodes->total; r++)
            memcpy(&x[r], in[r] + i * sizeof(float), sizeof(float));
        x[0] = float_reduce(op, x, nodes);
        memcpy(out + i * sizeof(float), &x[0], sizeof(float));
    }
}

static void reduce_narrow(enum ruccl_dtype dtype, enum ruccl_op op, const uint8_t *const *in,
                          const struct nodes *nodes, uint64_t count, uint8_t *out)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);
    const float *values = values_of(dtype);
    float x[REFERENCE_RANKS];

    for (uint64_t i = 0; i < count; i++) {
        for (uint32_t r = 0; r < nodes->total; r++)
            x[r] = values[read_bits(width, in[r] + i * width)];
        reference_encode(dtype, (double)float_reduce(op, x, nodes), out + i * width);
    }
}

/* Puts `in` in the order of the nodes. */
static struct nodes sort_by_node(const uint8_t *const *in, const uint32_t *node_of, uint32_t nranks,
                                 const uint8_t **ret)
{
    struct nodes nodes = { .total = nranks };
    bool sorted[REFERENCE_RANKS] = { false };
    uint32_t n = 0;

    for (uint32_t lowest = 0; lowest < nranks; lowest++) {
        const uint32_t before = n;

        for (uint32_t r = lowest; r < nranks; r++)
            if (!sorted[r] && node_of[r] == node_of[lowest]) {
                sorted[r] = true;
                ret[n++] = in[r];
            }
        if (n > before)
            nodes.nranks[nodes.count++] = n - before;
    }
    return nodes;
}

void reference_reduce_placed(enum ruccl_dtype dtype, enum ruccl_op op, const void *const *in,
                             const uint32_t *node_of, uint32_t nranks, uint64_t count, void *out)
{
    const uint8_t *sorted[REFERENCE_RANKS];
    const struct nodes nodes = sort_by_node((const uint8_t *const *)in, node_of, nranks, sorted);

    if (nranks == 1) /* a copy, of a NaN's payload too */
        memcpy(out, in[0], count * ruccl_dtype_bytes(dtype));
    else if (reference_class(dtype) != REFERENCE_FLOAT)
        reduce_integers(dtype, op, sorted, nranks, count, out);
    else if (dtype == RUCCL_F64)
        reduce_f64(op, sorted, &nodes, count, out);
    else if (dtype == RUCCL_F32)
        reduce_f32(op, sorted, &nodes, count, out);
    else
        reduce_narrow(dtype, op, sorted, &nodes, count, out);
}

void reference_reduce(enum ruccl_dtype dtype, enum ruccl_op op, const void *const *in,
                      uint32_t nranks, uint64_t count, void *out)
{
    static const uint32_t one_node[REFERENCE_RANKS];

    reference_reduce_placed(dtype, op, in, one_node, nranks, count, out);
}

/* ---- judging */

static bool is_nan(enum ruccl_dtype dtype, uint64_t bits)
{
    const struct format *f = &formats[dtype];
    const uint64_t magnitude = bits & ((1ull << (f->exponent_bits + f->fraction_bits)) - 1);

    return reference_class(dtype) == REFERENCE_FLOAT &&
           (magnitude > f->overflow || magnitude == f->nan);
}

void reference_settle_nans(enum ruccl_dtype dtype, void *values, uint64_t count)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);
    uint8_t *at = values;

    for (uint64_t i = 0; i < count; i++, at += width)
        if (is_nan(dtype, read_bits(width, at)))
            memcpy(at, &formats[dtype].nan, width);
}

#define BLOCK 64u

uint64_t reference_difference(enum ruccl_dtype dtype, const void *expected, const void *got,
                              uint64_t count)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);
    const bool lenient = reference_class(dtype) == REFERENCE_FLOAT;
    const uint8_t *a = expected, *b = got;

    if (!memcmp(a, b, count * width))
        return count;
    for (uint64_t i = 0; i < count; i++) {
        if (i % BLOCK == 0 && count - i >= BLOCK &&
            !memcmp(a + i * width, b + i * width, (size_t)BLOCK * width)) {
            i += BLOCK - 1;
            continue;
        }
        if (!memcmp(a + i * width, b + i * width, width))
            continue;
        if (!lenient || !is_nan(dtype, read_bits(width, a + i * width)) ||
            !is_nan(dtype, read_bits(width, b + i * width)))
            return i;
    }
    return count;
}

uint64_t reference_out_of_bound(enum ruccl_dtype dtype, const void *const *in, uint32_t nranks,
                                uint64_t count, const void *sums)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);
    const struct format *f = &formats[dtype];

    for (uint64_t i = 0; i < count; i++) {
        const double got = decode(f, read_bits(width, (const uint8_t *)sums + i * width));
        double sum = 0, size = 0, half_unit = 0;
        int exponent;

        if (!isfinite(got))
            continue;
        for (uint32_t r = 0; r < nranks; r++) {
            double x = decode(f, read_bits(width, (const uint8_t *)in[r] + i * width));

            sum += x;
            size += fabs(x);
        }
        exponent = got == 0 ? format_least_exponent(f) : ilogb(got);
        if (exponent < format_least_exponent(f))
            exponent = format_least_exponent(f);
        if (dtype != RUCCL_F32) /* which accumulates in itself, and rounds no more */
            half_unit = ldexp(0.5, exponent - f->fraction_bits);
        /* of the f64 sum's own error, far below either, there is a share in the second term */
        if (fabs(got - sum) > half_unit + (nranks - 1) * ldexp(size, -24))
            return i;
    }
    return count;
}
