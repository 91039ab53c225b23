#include "tests/unit/reference.h"

#include <math.h>
#include <string.h>

/* Sign, exponent and fraction bits from the top down; `ieee`: the highest exponent is special. */
struct format {
    int exponent, fraction;
    bool ieee;
};

static const struct format formats[DTYPE_END] = {
    [DTYPE_F16] = { 5, 10, true },
    [DTYPE_BF16] = { 8, 7, true },
    [DTYPE_F8E4M3] = { 4, 3, false },
    [DTYPE_F8E5M2] = { 5, 2, true },
};

static bool is_float(enum dtype_id type)
{
    return dtype_get(type)->class == DTYPE_CLASS_FLOAT;
}

static int format_bias(const struct format *f)
{
    return (1 << (f->exponent - 1)) - 1;
}

static double format_decode(const struct format *f, unsigned code)
{
    int exponent = (int)(code >> f->fraction) & ((1 << f->exponent) - 1);
    int fraction = (int)code & ((1 << f->fraction) - 1);
    double sign = code >> (f->exponent + f->fraction) ? -1 : 1;
    bool highest = exponent == (1 << f->exponent) - 1;

    if (f->ieee && highest)
        return fraction ? NAN : sign * INFINITY;
    if (!f->ieee && highest && fraction == (1 << f->fraction) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - format_bias(f) - f->fraction);
    return sign * ldexp(fraction + (1 << f->fraction), exponent - format_bias(f) - f->fraction);
}

static unsigned format_encode(const struct format *f, double v)
{
    unsigned sign = (signbit(v) ? 1u : 0u) << (f->exponent + f->fraction);
    unsigned nan = (1u << (f->exponent + f->fraction)) - 1;
    unsigned infinity = f->ieee ? nan - ((1u << f->fraction) - 1) : nan;
    int exponent, least = 1 - format_bias(f);
    double quanta;
    unsigned code;

    if (isnan(v))
        return nan;
    if (isinf(v))
        return sign | infinity;
    if (v == 0)
        return sign;

    exponent = MAX(ilogb(v), least);
    quanta = nearbyint(ldexp(fabs(v), f->fraction - exponent)); /* of the last fraction bit */
    if (quanta > 1e6)
        return sign | infinity;
    /* the leading one of a normal number, and any carry out of the fraction, add to the exponent */
    code = ((unsigned)(exponent - least) << f->fraction) + (unsigned)quanta;
    return sign | MIN(code, infinity);
}

struct reference_value reference_load(enum dtype_id type, const void *p)
{
    struct reference_value v = { 0 };
    float single;

    memcpy(&v.bits, p, dtype_get(type)->width);
    if (type == DTYPE_F32) {
        memcpy(&single, p, sizeof(single));
        v.number = (double)single;
    } else if (type == DTYPE_F64) {
        memcpy(&v.number, p, sizeof(v.number));
    } else if (is_float(type)) {
        v.number = format_decode(&formats[type], (unsigned)v.bits);
    }
    return v;
}

void reference_store(enum dtype_id type, void *p, struct reference_value v)
{
    float single = (float)v.number;

    if (type == DTYPE_F32)
        memcpy(&v.bits, &single, sizeof(single));
    else if (type == DTYPE_F64)
        memcpy(&v.bits, &v.number, sizeof(v.number));
    else if (is_float(type))
        v.bits = format_encode(&formats[type], v.number);
    memcpy(p, &v.bits, dtype_get(type)->width);
}

static double combine_floats(enum operator_id op, double a, double b)
{
    if (op == OPERATOR_SUM)
        return a + b;
    if (op == OPERATOR_PRODUCT)
        return a * b;
    if (isnan(a) || isnan(b))
        return NAN;
    if (a == b)
        return (op == OPERATOR_MIN) == (signbit(a) != 0) ? a : b;
    return (op == OPERATOR_MIN) == (a < b) ? a : b;
}

static uint64_t combine_integers(enum dtype_id type, enum operator_id op, uint64_t a, uint64_t b)
{
    int unused = 64 - 8 * dtype_get(type)->width;
    bool less;

    if (dtype_get(type)->class == DTYPE_CLASS_SIGNED)
        less = (int64_t)(a << unused) < (int64_t)(b << unused);
    else
        less = a << unused < b << unused;

    switch (op) {
    case OPERATOR_SUM:
        return a + b;
    case OPERATOR_PRODUCT:
        return a * b;
    case OPERATOR_MIN:
        return less ? a : b;
    case OPERATOR_MAX:
        return less ? b : a;
    case OPERATOR_AND:
        return a & b;
    case OPERATOR_OR:
        return a | b;
    default:
        return a ^ b;
    }
}

/* A double holds sums and products of two floats closely enough that rounding them once more is
 * right: 53 >= 2 * 24 + 2. */
static double round_accumulator(enum dtype_id type, double v)
{
    return type == DTYPE_F64 ? v : (double)(float)v;
}

static struct reference_value tree(enum dtype_id type, enum operator_id op,
                                   const struct reference_value *v, uint32_t n)
{
    struct reference_value l, r;
    uint32_t half = 1;

    if (n == 1)
        return v[0];
    while (2 * half < n)
        half *= 2;
    l = tree(type, op, v, half);
    r = tree(type, op, v + half, n - half);
    if (is_float(type))
        l.number = round_accumulator(type, combine_floats(op, l.number, r.number));
    else
        l.bits = combine_integers(type, op, l.bits, r.bits);
    return l;
}

struct reference_value reference_reduce(enum dtype_id type, enum operator_id op,
                                        const struct reference_value *v, uint32_t n,
                                        uint32_t divisor)
{
    struct reference_value r = tree(type, op == OPERATOR_MEAN ? OPERATOR_SUM : op, v, n);

    if (divisor)
        r.number = round_accumulator(type, r.number / divisor);
    return r;
}

bool reference_is_nan(enum dtype_id type, const void *p)
{
    return is_float(type) && isnan(reference_load(type, p).number);
}

bool reference_same(enum dtype_id type, const void *a, const void *b)
{
    return memcmp(a, b, dtype_get(type)->width) == 0 ||
           (reference_is_nan(type, a) && reference_is_nan(type, b));
}
