/*
 * Regions: memory that the daemon maps too. The caller's, found by their handles, and stages,
 * through which plain memory travels. What this library makes for either comes from one pool and
 * goes back there once neither the caller nor a work needs it, so that a program that repeats its
 * calls makes nothing. All with the connection's lock held.
 */
#ifndef CLIENT_REGION_H
#define CLIENT_REGION_H

#include "client/conn.h"

struct ruccl_region {
    struct ruccl_conn *conn;
    uint32_t number; /* 0: the daemon does not know it */
    unsigned refs;   /* the caller's handle, and works */
    bool pooled;     /* made here; false: registered by the caller */
    bool lost;       /* the daemon found it without pages, and takes it no more */
    uint8_t *data;
    uint64_t bytes;    /* as asked for */
    uint64_t capacity; /* as the daemon knows it */
    uint64_t dirty;    /* pooled: from here on, it has never been handed out and is zero */
    size_t mapped;     /* capacity rounded up to pages; 0: not by this library */
    struct gpu *gpu;   /* whose memory it is; NULL: the host's. Then `data` is a device pointer */
    uint64_t skip;     /* bytes in front of it, of the allocation that the daemon knows */
    struct gpu_allocation *allocation; /* that one, which has `number` too */
    bool staged;                       /* a GPU's, of which the daemon knows nothing */
    struct list link;  // ruccl_conn::regions or ::idle_by_size; of a stage in use: none
    struct list order; // ruccl_conn::idle or gpus::regions
};

/* Is this the handle of a live region of this connection? Does not look into it. */
bool region_is_live(const struct ruccl_conn *c, const struct ruccl_region *region);

/* Of memory that is not mapped here, one reference; NULL: out of memory. */
struct ruccl_region *region_new_bare(struct ruccl_conn *c, void *data, uint64_t bytes);

/*
 * Says to the daemon that there is one, under a number of its own; `q` says what it is. Return: 0,
 * or -code. Gives up the lock; the number is written before.
 */
int region_open(struct ruccl_conn *c, struct request *q, int fd, uint32_t *ret_number,
                struct error *e);

/* From now on it is the caller's, and found by its handle. */
void region_publish(struct ruccl_region *region);

/* Of one that was not published. */
void region_free(struct ruccl_region *region);

/* The arguments of a public call that makes one. Return: 0, or -code (last error set). */
int region_check_new(const struct ruccl_conn *c, uint64_t bytes, const void *ret, const char *what);

/* A region of at least `bytes` from the pool, whose contents are anything. Gives up the lock. */
int stage_get(struct ruccl_conn *c, uint64_t bytes, struct ruccl_region **ret, struct error *e);

/*
 * For a work that uses a live region: its memory is not handed out again before it is let go.
 * Return: `region`; NULL for a registered one, which is closed as soon as its caller says so and
 * which the daemon keeps mapped for its operations.
 */
struct ruccl_region *region_hold(struct ruccl_region *region);

/* Ends a work's use, of a stage too; NULL is allowed. Never sends. */
void region_let_go(struct ruccl_region *region);

/* The daemon may have found it without pages: it is not used again. NULL is allowed. */
void region_mark_lost(struct ruccl_region *region);

/* When the connection has ended: unmaps what it holds, but for stages that works still hold. */
void regions_free_all(struct ruccl_conn *c);

/* Zeroed memory that keeps its size; the descriptor is the caller's to close. Return: 0, or -code
 * worded in `e`. */
int memfd_new(uint64_t bytes, int *ret, struct error *e);

#endif
