/*
 * Gathering: where nodes are many, what they ask of an operation does not go from each to each but
 * over a binomial tree of them. Up: each node sends its parent what its whole subtree asks, once
 * that is there. Down: node 0, which then has it all, sends it to its children and they to theirs.
 * What a node does not get by its own link it gets in the same order, operation by operation; other
 * messages still go by the links of each to each, and may overtake it. For comm's own files.
 */
#ifndef DAEMON_COMM_GATHER_H
#define DAEMON_COMM_GATHER_H

#include "daemon/comm/op.h"

/* The nodes from `first` to `end` - 1; the first is the root of them. */
struct subtree {
    uint32_t first, end;
};

/* Node i's parent is i without its lowest bit. */
struct subtree gather_subtree(uint32_t node, uint32_t nnodes);
uint32_t gather_parent(uint32_t node);

/*
 * Sends on what the subtree of this node asks, once: if it is all there and this node has told what
 * it asks itself. Nothing is done where nodes are few. Return: 0 or -ENOMEM.
 */
int gather_pass(struct op *op);

/* A PEER_GATHERED from `node` of the communicator, which is held. */
void gather_receive(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now);

#endif
