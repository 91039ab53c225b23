/*
 * Carrying out: what a rank does by itself once all have met at the slate, from everybody's bytes
 * to its own output. Without the connection's lock.
 */
#ifndef CLIENT_CARRY_H
#define CLIENT_CARRY_H

#include "client/posting.h"
#include "shared/slate.h"

/* A call in its meeting: what of it may be used without the lock. */
struct meeting {
    const struct posting *p;
    struct slate *slate;
    uint64_t sequence;
    uint32_t rank, nranks;
};

/*
 * The calls agree (slate_agrees()). ret_counts, of nranks, is for an all_to_all_v's receive counts,
 * else unused. Return: false, and nothing was written, where an all_to_all_v's counts do not fit
 * what some rank has or has room for: all find that, unless somebody writes there meanwhile.
 */
bool carry_out(const struct meeting *g, uint64_t *ret_counts);

#endif
