/*
 * Walks: operations of every row of the table that has blocks, by every type and placement that it
 * fits, for something to be tried on each.
 */
#ifndef TESTS_UNIT_WALK_H
#define TESTS_UNIT_WALK_H

#include "tests/unit/unit.h"

#include "tests/unit/daemons.h"

/* `type`: a number to hand on. */
typedef void (*try_fn)(const struct algorithm *a, const struct placement *nodes, size_t type);

/* On 2 to `most_nodes` nodes. */
void walk(try_fn try, uint32_t most_nodes);

/* Of `n` elements in chunks of `length`; what else can differ is left to chance. */
struct operation operation_of(const struct algorithm *a, const struct placement *nodes, size_t type,
                              uint64_t n, uint64_t length);
bool fits(const struct algorithm *a, const struct placement *nodes, size_t type);
/* One that is there. */
const struct algorithm *find_algorithm(enum collective_id kind, const char *name);

/* The tests in host memory, and once more, as far as it goes, with some of it on GPUs, whose memory
 * the transport then moves too. Return: how many failed. */
int walk_run_group(const struct CMUnitTest *tests, size_t n);

#endif
