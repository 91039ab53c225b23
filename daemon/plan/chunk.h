/* How an operation is cut into chunks under a byte budget. Arithmetic only. */
#ifndef DAEMON_PLAN_CHUNK_H
#define DAEMON_PLAN_CHUNK_H

#include "shared/collective.h"

/*
 * The flat interval [0, n) of every block in chunks of c elements, the last one shorter.
 * For all_to_all(_v): n = M, the largest entry of the count matrix, and c = p, both in rows.
 */
struct chunking {
    uint64_t n;      /* elements (rows) the chunks cut */
    uint64_t length; /* c (p); 0 only when there is nothing to move */
    uint64_t chunks; /* ceil(n / c) */
};

/*
 * The chunks of `d` (checked) by the table in chunk.c; `rows_max` is M, for the exchanges only.
 * Under BUDGET_NONE a chunk touches about `tuned_bytes` bytes (of one rank's block).
 * Return: 0, or -ERROR_BUDGET_TOO_SMALL naming the least budget that works.
 */
int chunk_plan(const struct descriptor *d, uint64_t rows_max, uint64_t tuned_bytes,
               struct chunking *ret, struct error *e);

/* First element and element count of chunk k. */
static inline uint64_t chunk_first(const struct chunking *c, uint64_t k)
{
    return k * c->length;
}

static inline uint64_t chunk_count(const struct chunking *c, uint64_t k)
{
    uint64_t first = chunk_first(c, k);

    return first >= c->n ? 0 : MIN(c->length, c->n - first);
}

#endif
