/* Splits: the communicators that come of one that all have agreed on. For comm's own files. */
#ifndef DAEMON_COMM_SPLIT_H
#define DAEMON_COMM_SPLIT_H

#include "daemon/comm/group.h"

struct split_part {
    int32_t color, key;
    struct member *parent; /* NULL: the rank is on another node */
    struct member *child;  /* out: NULL for a negative color, and for ranks of other nodes */
};

/* Makes those that have a rank here. `parts` by rank. Return: 0, or -code worded in `e`, and there
 * are none. */
int split_make(struct comm *parent, uint64_t sequence, struct split_part *parts, struct error *e);

/* Takes them back; nobody here has heard of them. */
void split_discard(struct split_part *parts, uint32_t n);

#endif
