/*
 * Posting: from a public call's arguments to one Post message and its work. What this library alone
 * can see (pointers, handles, plain memory) is checked before; what is found wrong is posted too,
 * as a rejection in the call's slot, so that every rank is told.
 */
#ifndef CLIENT_POST_H
#define CLIENT_POST_H

#include "client/ruccl.h"
#include "shared/collective.h"

struct gpu_place;
struct ruccl_member;

/* A call's arguments, as they came. What its kind does not have is left out. */
struct call {
    enum collective_id kind;
    const struct ruccl_tensor *in, *out;
    uint32_t op;
    uint32_t root;
    uint32_t peer, tag;
    const uint64_t *send_counts, *expected_counts;
    int32_t color, key;
    struct ruccl_member *child;  /* of a split; NULL: none is wanted */
    uint32_t *ret_persistent;    /* to be made ready, not run; NULL: to be run */
    struct gpu_place *ret_place; /* then where its starts take part in a stream */
};

/* The asynchronous form. Return: 0, or -code (last error set) where no message could be sent. */
int post_call(struct ruccl_comm comm, const struct call *call, struct ruccl_work **ret);

/* The blocking form: posts, waits, releases. ret_counts may be NULL. */
int post_and_wait(struct ruccl_comm comm, const struct call *call, uint64_t *ret_counts);

#endif
