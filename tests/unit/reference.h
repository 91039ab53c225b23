/*
 * Arithmetic as the contract words it, one element at a time: conversions by ldexp() and
 * nearbyint(), the tree by its definition. Shares nothing with the kernels that it judges.
 */
#ifndef TESTS_UNIT_REFERENCE_H
#define TESTS_UNIT_REFERENCE_H

#include "shared/collective.h"

/* An accumulator: `number` for floating types, `bits` for integers, in the type's own width. */
struct reference_value {
    double number;
    uint64_t bits;
};

/* From and to memory, at any address; rounded to nearest even on the way out. */
struct reference_value reference_load(enum dtype_id type, const void *p);
void reference_store(enum dtype_id type, void *p, struct reference_value v);

/* T(0, n) over v, divided by `divisor` where that is not 0. */
struct reference_value reference_reduce(enum dtype_id type, enum operator_id op,
                                        const struct reference_value *v, uint32_t n,
                                        uint32_t divisor);

bool reference_is_nan(enum dtype_id type, const void *p);

/* The same bits, or both NaN: which NaN is not promised. */
bool reference_same(enum dtype_id type, const void *a, const void *b);

#endif
