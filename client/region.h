/*
 * Regions: memory that the daemon maps too. The user's, found by their handles, and the staging
 * pool, through which plain memory travels: its regions are kept and used again, so that a program
 * that repeats its calls allocates nothing. All with the connection's lock held.
 */
#ifndef CLIENT_REGION_H
#define CLIENT_REGION_H

#include "client/conn.h"

struct ruccl_region {
    struct ruccl_conn *conn;
    uint32_t number;
    uint8_t *data;
    uint64_t bytes;
    size_t mapped;    /* bytes rounded up to pages */
    struct list link; // ruccl_conn::regions or ::idle; of a stage in use: none
};

/* Is this the handle of a live region of this connection? Does not look into it. */
bool region_is_live(const struct ruccl_conn *c, const struct ruccl_region *region);

/* A region of at least `bytes` from the pool, whose contents are anything. Gives up the lock. */
int stage_get(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret, struct error *e);

/* Back to the pool; NULL is allowed. Never sends. */
void stage_put(struct ruccl_conn *c, struct ruccl_region *stage);

/* When the connection has ended: unmaps what it holds, but for stages that works still hold. */
void regions_free_all(struct ruccl_conn *c);

/* Zeroed memory that keeps its size; the descriptor is the caller's to close. Return: 0, or -code
 * worded in `e`. */
int memfd_new(uint64_t bytes, int *ret, struct error *e);

#endif
