/*
 * Inputs and what must come of them: every element follows from (rank, index, round), and the
 * reference is plain scalar code that shares nothing with the daemon's kernels. Pure.
 *
 * Values repeat with a prime period, so a whole tensor is checked against one small table; a chunk
 * that lands in the wrong place is seen unless it is off by a multiple of that prime.
 *
 * What is only moved is random bits. What is reduced is random bits for integers, and for floats
 * multiples of a power of two, small enough that the accumulation type holds every partial result
 * exactly: the order of additions cannot show, the one rounding at the end does.
 */
#ifndef CLIENT_PERF_PATTERN_H
#define CLIENT_PERF_PATTERN_H

#include "shared/collective.h"
#include "shared/dtype.h"

struct number_format;

#define PATTERN_PERIOD    4093u
#define PATTERN_WIDTH_MAX 16u /* bytes of the widest element type */

/* What tells one run's values from another's. op is OPERATOR_NONE for a collective that moves. */
struct pattern {
    enum dtype_id dtype;
    enum operator_id op;
    uint32_t nranks;
    uint64_t round;
};

/* One period of values, encoded; entry i stands for the indices i, i + PATTERN_PERIOD, ... */
struct pattern_table {
    _Alignas(16) uint8_t bytes[PATTERN_PERIOD * PATTERN_WIDTH_MAX];
    uint32_t width;                      /* bytes of an element */
    const struct number_format *nans_of; /* all NaNs of this layout count as equal; NULL: bits do */
};

/* What `rank` puts in. `count` is the largest index that will be asked for, plus one. */
void pattern_input(const struct pattern *p, uint32_t rank, uint64_t count,
                   struct pattern_table *ret);

/* What the reduction over all ranks must give. */
void pattern_reduced(const struct pattern *p, uint64_t count, struct pattern_table *ret);

/* Writes elements [0, count) to `data`. */
void pattern_fill(const struct pattern_table *t, void *data, uint64_t count);

/* How many of the `count` elements at `data` are not the ones from index `first` on. */
uint64_t pattern_count_wrong(const struct pattern_table *t, const void *data, uint64_t first,
                             uint64_t count);

#endif
