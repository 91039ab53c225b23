/*
 * Staging: memory of the daemon's own for what is under way between nodes. A pool with a limit:
 * what communicators have reserved is promised to them, and what is above it goes to whoever comes.
 * Loop thread only.
 */
#ifndef DAEMON_EXEC_STAGING_H
#define DAEMON_EXEC_STAGING_H

#include "shared/base.h"
#include "shared/list.h"

struct device;
struct staging;

/* Of `limit_bytes` at the most. Return: 0 or -ENOMEM. */
int staging_new(uint64_t limit_bytes, struct staging **ret);
/* No block may be taken. Returns NULL; NULL is allowed. */
struct staging *staging_free(struct staging *s);
DEFINE_CLEANUP(struct staging *, staging_free)

/*
 * Promises memory to a communicator: what one piece of its operations needs at the most, so that
 * it never waits for another. Return: 0, or -ENOMEM where that much has not been left unpromised.
 */
int staging_reserve(struct staging *s, uint64_t bytes);
/* With the last promise, what is kept for the next use goes back to the system. */
void staging_unreserve(struct staging *s, uint64_t bytes);

/* What could be reserved now. */
uint64_t staging_left(const struct staging *s);

/* Backed with pages, so that nothing is made when it is used; contents are what was there. */
struct staging_block {
    void *memory; /* on a page boundary */
    uint64_t bytes;
    bool spare;                /* beside what is promised */
    struct device *adopted_by; /* NULL: none */
    struct list link;          // staging::kept, while it is there
};

/*
 * Takes a block of `bytes` > 0 or more. `spare`: only from what is not promised to anyone;
 * otherwise it is what the caller has reserved. Return: NULL, no room (spare), or no memory.
 */
struct staging_block *staging_take(struct staging *s, uint64_t bytes, bool spare);
/* Lets tasks of the device name the block, until it goes back to the system: this and later uses.
 * Of one device, which must outlive staging. Return: 0, or -errno with the block as it was. */
int staging_adopt(struct staging_block *block, struct device *device);
/* Returns NULL; NULL is allowed. */
struct staging_block *staging_give(struct staging *s, struct staging_block *block);

#endif
