/* Pairs: a send and the receive that it is matched with. */
#ifndef DAEMON_COMM_PAIRS_H
#define DAEMON_COMM_PAIRS_H

#include "daemon/comm/arrival.h"
#include "daemon/comm/group.h"

/*
 * The pair that `part` (0 the source's, 1 the destination's) of (source, destination, tag) belongs
 * to. Those of one kind that wait all wait for the same part, so the first of them says which: it
 * is matched, or all are joined. Return: 0 or -ENOMEM.
 */
int pairs_find(struct comm *c, uint32_t source, uint32_t destination, uint32_t tag, uint32_t part,
               uint64_t now, struct op **ret);

/* A send or receive of a member has come. `a` is taken unless this fails: -ENOMEM. */
int pairs_arrive(struct member *m, const struct post *post, struct arrival *a, uint64_t now);

#endif
