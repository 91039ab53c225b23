/*
 * The arithmetic of ruccl.h once more, in the most obvious way: what outputs are compared with.
 * Shares no code with what it judges.
 */
#ifndef TESTS_END_TO_END_REFERENCE_H
#define TESTS_END_TO_END_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "client/ruccl.h"

#define REFERENCE_DTYPES (RUCCL_PACKED_U32 + 1) /* numbers of types are below this */
#define REFERENCE_OPS    (RUCCL_XOR + 1)        /* and those of operators below this */
#define REFERENCE_RANKS  16                     /* worlds are no larger */

enum reference_class {
    REFERENCE_FLOAT,
    REFERENCE_SIGNED,
    REFERENCE_UNSIGNED,
    REFERENCE_OPAQUE,
};

enum reference_class reference_class(enum ruccl_dtype dtype);

/* Whether `op` reduces `dtype`. */
bool reference_legal(enum ruccl_dtype dtype, enum ruccl_op op);

/*
 * Fills `out` with the reduction of every rank's `count` elements: widened, combined by the
 * canonical tree in the accumulation type, divided for a mean, rounded once.
 */
void reference_reduce(enum ruccl_dtype dtype, enum ruccl_op op, const void *const *in,
                      uint32_t nranks, uint64_t count, void *out);

/*
 * The same for ranks on several nodes, node_of[rank] naming each rank's: the tree over the ranks of
 * each node, then the tree over the nodes in the order of their lowest ranks.
 */
void reference_reduce_placed(enum ruccl_dtype dtype, enum ruccl_op op, const void *const *in,
                             const uint32_t *node_of, uint32_t nranks, uint64_t count, void *out);

/* Makes every NaN among `values` the same one. */
void reference_settle_nans(enum ruccl_dtype dtype, void *values, uint64_t count);

/* Values as the tests like to make them: a floating type's element nearest to `value`. */
void reference_encode(enum ruccl_dtype dtype, double value, void *to);

/*
 * The first element where `got` is not `expected` bit for bit, any NaN being as good as any other;
 * `count` if there is none.
 */
uint64_t reference_difference(enum ruccl_dtype dtype, const void *expected, const void *got,
                              uint64_t count);

/*
 * The first element of `sums` that is farther from the sum in f64 than half a unit of its last
 * place and what accumulating in f32 may cost, (R - 1) * 2^-24 * sum|x|; `count` if there is none.
 * Sums that are not finite are passed over. For floating types but f64.
 */
uint64_t reference_out_of_bound(enum ruccl_dtype dtype, const void *const *in, uint32_t nranks,
                                uint64_t count, const void *sums);

#endif
