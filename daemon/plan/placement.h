/* Placements: which ranks are on which node. Nodes are numbered by their lowest rank. */
#ifndef DAEMON_PLAN_PLACEMENT_H
#define DAEMON_PLAN_PLACEMENT_H

#include "shared/base.h"

/* Immutable once made. */
struct placement {
    uint32_t nnodes, nranks;
    uint32_t *first; /* [nnodes + 1]: where a node's ranks begin in `ranks` */
    uint32_t *ranks; /* [nranks]: node by node, ascending on each */
    uint32_t *nodes; /* [nranks]: the node of a rank */
    uint32_t *index; /* [nranks]: which of its node's ranks it is, 0 the lowest */
};

/*
 * hosts[r] names the node of rank r by a number below nranks; equal numbers are one node.
 * Return: 0, -EINVAL for no ranks or such a number, or -ENOMEM.
 */
int placement_new(uint32_t nranks, const uint32_t *hosts, struct placement **ret);
struct placement *placement_free(struct placement *p);
DEFINE_CLEANUP(struct placement *, placement_free)

/* As many ranks on every node, consecutive. Return: as above; nnodes * ranks at most RANKS_MAX. */
int placement_new_even(uint32_t nnodes, uint32_t ranks, struct placement **ret);

/* How many ranks a node has, and which is its i-th. */
static inline uint32_t placement_count(const struct placement *p, uint32_t node)
{
    return p->first[node + 1] - p->first[node];
}

static inline uint32_t placement_rank(const struct placement *p, uint32_t node, uint32_t i)
{
    return p->ranks[p->first[node] + i];
}

#endif
