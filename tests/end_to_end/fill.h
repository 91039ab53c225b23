/* Elements to compute with: as random as they are the same in every run. */
#ifndef TESTS_END_TO_END_FILL_H
#define TESTS_END_TO_END_FILL_H

#include <stdint.h>

#include "client/ruccl.h"

#define FILL_WIDTH 16u /* bytes of the widest element */

/*
 * Fills `to` with elements of `dtype`: in turns of 64 random bits, tame values, and the values at
 * the type's edges. The same dtype, seed (not 0) and bytes give the same. Bytes behind the last
 * multiple of 8 may stay as they are.
 */
void fill_values(enum ruccl_dtype dtype, uint64_t seed, uint64_t bytes, uint8_t *to);

#endif
