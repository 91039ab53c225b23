/* Small floating types by their definition, through double: slow, short and easy to believe. */
#ifndef CLIENT_PERF_NUMBER_H
#define CLIENT_PERF_NUMBER_H

#include "shared/dtype.h"

/* The layout of a floating type: sign, `exponent` bits, `mantissa` bits. */
struct number_format {
    uint32_t exponent;
    uint32_t mantissa;
    bool has_infinity; /* false: only all ones is NaN, and overflow gives it (f8e4m3) */
};

/* The layout of a floating type with arithmetic, or NULL. */
const struct number_format *number_format_get(enum dtype_id dtype);

/* `value` rounded to nearest even, as the type's bits. */
uint64_t number_encode(const struct number_format *f, double value);

bool number_is_nan(const struct number_format *f, uint64_t bits);

#endif
