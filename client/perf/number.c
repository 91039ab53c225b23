#include "client/perf/number.h"

#include <math.h>

static const struct number_format formats[DTYPE_END] = {
    [DTYPE_F32] = { 8, 23, true },    [DTYPE_F64] = { 11, 52, true },
    [DTYPE_F16] = { 5, 10, true },    [DTYPE_BF16] = { 8, 7, true },
    [DTYPE_F8E4M3] = { 4, 3, false }, [DTYPE_F8E5M2] = { 5, 2, true },
};

const struct number_format *number_format_get(enum dtype_id dtype)
{
    return formats[dtype].exponent ? &formats[dtype] : NULL;
}

/* The first code that is no finite number, without its sign. */
static uint64_t first_special(const struct number_format *f)
{
    uint64_t all_ones = (UINT64_C(1) << (f->exponent + f->mantissa)) - 1;

    return f->has_infinity ? all_ones >> f->mantissa << f->mantissa : all_ones;
}

uint64_t number_encode(const struct number_format *f, double value)
{
    uint64_t sign = (uint64_t) !!signbit(value) << (f->exponent + f->mantissa);
    uint64_t special = first_special(f);
    int least = 2 - (1 << (f->exponent - 1)); /* the exponent of the smallest normal number */
    int exponent;
    uint64_t code;

    if (isnan(value))
        return sign | (f->has_infinity ? special + 1 : special);
    if (isinf(value))
        return sign | special;
    if (value == 0)
        return sign;

    frexp(value, &exponent);
    exponent = MAX(exponent - 1, least);

    /*
     * In units of the last place, a normal number counts its hidden bit as one step of the
     * exponent, a subnormal has none, and a carry out of the mantissa runs into the exponent: one
     * sum for all.
     */
    code = (uint64_t)rint(ldexp(fabs(value), (int)f->mantissa - exponent));
    code += (uint64_t)(exponent - least) << f->mantissa;
    return sign | MIN(code, special);
}

bool number_is_nan(const struct number_format *f, uint64_t bits)
{
    uint64_t magnitude = bits & ((UINT64_C(1) << (f->exponent + f->mantissa)) - 1);

    return f->has_infinity ? magnitude > first_special(f) : magnitude == first_special(f);
}
