/* What tests/gpu/measure shares with the processes that it measures, and what they tell it. */
#ifndef TESTS_GPU_MEASURE_H
#define TESTS_GPU_MEASURE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/ruccl.h"

#define MEASURE_RANKS 8
#define MEASURE_SIZES 12
#define MEASURE_CALLS 200 /* of a size at most */

struct board {
    char socket[108];
    uint32_t ngpus, nranks, nsizes;
    uint64_t bytes[MEASURE_SIZES]; /* a rank, ascending */

    char id[RUCCL_ID_BYTES];
    pthread_barrier_t barrier; /* of the ranks */
    uint64_t call_ns[MEASURE_RANKS][MEASURE_CALLS];
    uint64_t median_ns[MEASURE_SIZES]; /* of the slowest rank of each call; 0: not measured */
    uint64_t wrong;                    /* elements that were looked at */

    char gpu[64];
    uint64_t free_bytes;
    double copy_rate;  /* bytes a second, read and written ones */
    uint64_t empty_ns; /* of a kernel without work, until the host knows */
    char peer[160];    /* why the peer did not run; "": it did */
    uint64_t peer_ns[MEASURE_SIZES];
};

uint64_t measure_now_ns(void);
uint64_t measure_median(uint64_t *values, uint32_t n);
uint32_t measure_calls(uint64_t bytes);

/* The same with NCCL, if there is one: all ranks in this process, GPUs taking turns. */
void measure_peer(struct board *b);

#endif
