/*
 * What the rank processes and their parent share: a meeting point and the results. Anonymous shared
 * memory made before the forks; nothing here outlives the processes.
 */
#ifndef CLIENT_PERF_BOARD_H
#define CLIENT_PERF_BOARD_H

#include <stdatomic.h>

#include "client/ruccl.h"
#include "shared/base.h"

/* One rank's corner: it writes, the parent reads. */
struct board_rank {
    uint64_t nwrong;   /* elements of outputs and kept inputs, over all calls at a size */
    const char *doing; /* a literal: what failed, if error.code is set */
    struct ruccl_error error;
};

struct board {
    uint32_t nranks;
    uint64_t iters_max;
    size_t len_bytes; /* of the whole mapping */

    _Alignas(64) _Atomic uint32_t narrived;
    _Alignas(64) _Atomic uint32_t generation; /* of meetings; a futex */
    _Atomic bool broken;                      /* some rank has failed: nobody waits any longer */

    /* Written by rank 0 before a meeting, read by all after it. */
    char id[RUCCL_ID_BYTES];
    _Atomic uint64_t stop_at; /* the call that is not made any more */
    uint64_t n;               /* the count at hand, and how many calls were timed */
    uint64_t niters;

    struct board_rank *ranks; /* [nranks] */
    uint64_t *times_ns;       /* [nranks][iters_max] */
};

/* NULL, with errno set, if there is no memory. */
struct board *board_new(uint32_t nranks, uint64_t iters_max);
struct board *board_free(struct board *b);

/* Returns when every rank has come here: 0, or -ECANCELED if the board was broken meanwhile. */
int board_meet(struct board *b);

/* Sends everyone home who meets now or later. */
void board_break(struct board *b);

/*
 * Keeps for the parent that a rank failed: by what the library said last, or for want of memory
 * (errno). Sends everyone home. Return: -EIO or -ENOMEM.
 */
int board_fail(struct board *b, uint32_t rank, const char *doing);
int board_fail_memory(struct board *b, uint32_t rank, const char *doing);

/* CLOCK_MONOTONIC, the same in all processes. */
uint64_t board_now_ns(void);

static inline uint64_t *board_times(const struct board *b, uint32_t rank)
{
    return b->times_ns + rank * b->iters_max;
}

DEFINE_CLEANUP(struct board *, board_free)

#endif
