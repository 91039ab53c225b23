/*
 * Contents: how the messages of a plan lie in letters, of which nodes send each other one instead:
 * one message behind the other, ascending by tag. What all nodes are sent lies letter behind
 * letter, ascending by node. In bytes.
 */
#ifndef DAEMON_PLAN_CONTENTS_H
#define DAEMON_PLAN_CONTENTS_H

#include "daemon/plan/plan.h"

/* Immutable. */
struct contents {
    uint32_t nsends;     /* messages that leave */
    bool sends_first;    /* as plan_sends_first() */
    uint64_t *bytes;     /* [nsteps]: of a message */
    uint64_t *at;        /* [nsteps]: of a message where it is: in all that leaves, or in what comes
                          * from its node */
    uint64_t *leaves_at; /* [nnodes + 1]: where a node's letter begins; in the end, where all do */
    uint64_t *comes;     /* [nnodes]: in a node's letter */
};

/* Of one of `nnodes` nodes' plan, with so many bytes an element, and an accumulator. Return: 0 or
 * -ENOMEM. */
int contents_new(const struct plan *p, uint32_t nnodes, uint32_t width, uint32_t wide,
                 struct contents **ret);
/* Returns NULL; NULL is allowed. */
struct contents *contents_free(struct contents *c);

#endif
