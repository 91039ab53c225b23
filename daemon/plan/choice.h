/*
 * Choices: by which algorithm, in which chunks and pieces, and how many at once an operation moves.
 * They follow from what all ranks have agreed on, where the ranks are, and the communicator's
 * table; never from one node's view. So all nodes choose alike, each by itself.
 */
#ifndef DAEMON_PLAN_CHOICE_H
#define DAEMON_PLAN_CHOICE_H

#include "daemon/plan/chunk.h"
#include "daemon/plan/table.h"

struct choice {
    const struct algorithm *algorithm; /* NULL where nothing moves */
    struct chunking chunking;
    /* elements; chunks are cut into pieces of it, the last of each shorter. Rows, and not cut, for
     * the exchanges. chunking.length: not cut */
    uint64_t piece_length;
    uint32_t depth;  /* pieces (of the exchanges: one source's part of a round) in flight; >= 1 */
    uint64_t digest; /* of all the above, equal where it is; 0 where all ranks are on one node */
};

/* What is to be chosen for. */
struct choice_spec {
    const struct descriptor *d; /* checked */
    uint64_t rows_max;          /* M, of the exchanges */
    uint64_t chunk_length;      /* elements of a chunk where there is no budget; 0: as tuned */
};

/*
 * Chooses for what is not a barrier or a split. On one node: the row that fits, in whole chunks.
 * Between nodes: the forced row; or that of the table's rule, if it fits; or the cheapest. No piece
 * is staged or under way with more than the budget on any node, nor are `depth` of them; without a
 * budget the limit is what would give chunks this length. A pair is always on one node here, and
 * nothing is forced on it.
 * Return: 0, -ERROR_UNSUPPORTED_ALGORITHM naming the rows that fit, -ERROR_BUDGET_TOO_SMALL naming
 * the least budget that works and the rows that this one is enough for, or -ERROR_NO_MEMORY.
 */
int choice_make(const struct choice_spec *s, const struct frame *f, struct choice *ret,
                struct error *e);

/* The job that its rows are priced for (price.h). Return: as choice_make(). */
int choice_job(const struct choice_spec *s, const struct frame *f, struct job *ret,
               struct error *e);

/* The most that any choice by `f` has in flight. */
uint32_t choice_depth_max(const struct frame *f);

#endif
