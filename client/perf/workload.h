/*
 * The collectives ruccl-perf can measure: one row each, with sizes and factors as nccl-tests
 * defines them. n, here and there called the count, is the elements of the smaller of a rank's
 * tensors.
 */
#ifndef CLIENT_PERF_WORKLOAD_H
#define CLIENT_PERF_WORKLOAD_H

#include "client/ruccl.h"
#include "shared/collective.h"

#define WORKLOAD_ROOT 0u

/* Where the one buffer of an in-place call holds the rank's other tensor. */
enum in_place {
    IN_PLACE_NONE,        /* there is no such call */
    IN_PLACE_SAME,        /* out = in */
    IN_PLACE_IN_AT_RANK,  /* in = out + rank * n */
    IN_PLACE_OUT_AT_RANK, /* out = in + rank * n */
};

/* One rank's arguments of one call. */
struct call {
    struct ruccl_comm comm;
    const struct ruccl_tensor *in, *out; /* NULL where only the root has one */
    enum ruccl_op op;
    const uint64_t *send_counts, *receive_counts; /* all_to_all_v */
};

/* A stretch of one rank's output: elements [first, first + count) of what `source` put in. */
struct segment {
    bool reduced; /* of all ranks' reduction instead */
    uint32_t source;
    uint64_t first;
    uint64_t count;
};

struct workload {
    const char *name;
    enum collective_id kind; /* its row says the tensors' shapes; sendrecv stands on send's */
    enum in_place in_place;
    /* busbw = algbw * factor(R) */
    double (*factor)(uint32_t nranks);
    /* The s-th segment of `rank`'s output. */
    struct segment (*expect)(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s);
    int (*run)(const struct call *c);
};

const struct workload *workload_by_name(const char *name);

bool workload_has_op(const struct workload *w);
bool workload_has_data(const struct workload *w); /* false for barrier */

/* n for a size of `bytes`, rounded down, and the exact size of n. */
uint64_t workload_count(const struct workload *w, uint64_t bytes, uint32_t width, uint32_t nranks);
uint64_t workload_bytes(const struct workload *w, uint64_t n, uint32_t width, uint32_t nranks);

/* Elements of a rank's tensors; 0 where it has none. */
uint64_t workload_in_count(const struct workload *w, uint64_t n, uint32_t nranks, uint32_t rank);
uint64_t workload_out_count(const struct workload *w, uint64_t n, uint32_t nranks, uint32_t rank);
bool workload_has_in(const struct workload *w, uint32_t rank);
bool workload_has_out(const struct workload *w, uint32_t rank);

/* Segments of an output that is there. */
uint32_t workload_nsegments(const struct workload *w, uint32_t nranks);

/* all_to_all_v: rows from `source` to `destination`; every rank sends and receives R * n in all. */
uint64_t workload_pair_rows(uint64_t n, uint32_t nranks, uint32_t source, uint32_t destination);

#endif
