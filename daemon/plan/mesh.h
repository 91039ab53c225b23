/*
 * What direct and pairwise share: in turn k = 1 .. N-1 node i sends to i+k and receives from i-k,
 * around the circle, so that no receiver is everyone's first. So many `lanes` of turns are under
 * way at once, turn k in lane k-1 modulo their number: all of them, or one after the other.
 */
#ifndef DAEMON_PLAN_MESH_H
#define DAEMON_PLAN_MESH_H

#include "daemon/plan/algorithms.h"

int mesh_all_reduce(struct plan *p, const struct plan_args *a, uint32_t lanes);
/* The blocks of `blocks` ranks of every node at a time. */
int mesh_reduce_scatter(struct plan *p, const struct plan_args *a, uint32_t lanes, uint32_t blocks);
int mesh_all_gather(struct plan *p, const struct plan_args *a, uint32_t lanes);
int mesh_exchange(struct plan *p, const struct plan_args *a, uint32_t lanes);

struct cost mesh_all_reduce_cost(const struct load *l, uint32_t lanes);
struct cost mesh_reduce_scatter_cost(const struct load *l, uint32_t lanes, uint32_t blocks);
struct cost mesh_all_gather_cost(const struct load *l, uint32_t lanes);
struct cost mesh_exchange_cost(const struct load *l, uint32_t lanes);

/* ---- parts, for what has a root */

static inline uint32_t mesh_others(const struct plan_args *a)
{
    return a->nodes->nnodes - 1;
}

static inline uint32_t mesh_receiver(const struct plan_args *a, uint32_t turn)
{
    return (a->node + turn) % a->nodes->nnodes;
}

static inline uint32_t mesh_sender(const struct plan_args *a, uint32_t turn)
{
    return (a->node + a->nodes->nnodes - turn) % a->nodes->nnodes;
}

/* Channel 0 is for what is done here; each lane has two more. */
static inline uint32_t mesh_send_channel(uint32_t turn, uint32_t lanes)
{
    return 1 + (turn - 1) % lanes;
}

static inline uint32_t mesh_recv_channel(uint32_t turn, uint32_t lanes)
{
    return 1 + lanes + (turn - 1) % lanes;
}

/* This node's part of a sum as it is sent: a single rank's input, or staged, done on channel 0. */
struct span mesh_own(struct plan *p, const struct plan_args *a, uint32_t *ret_ready);

/* Where the part of another node waits to be added: slots of `blocks` blocks, in node order. */
struct span mesh_inbox(const struct plan_args *a, uint64_t first_partial, uint32_t node,
                       uint32_t blocks);
void mesh_stage_inbox(struct plan *p, const struct plan_args *a, uint32_t blocks);

/* Adds all parts of one block, the b-th of what waits in the inbox, once every step before is done.
 * Return: the step. */
uint32_t mesh_add_up(struct plan *p, const struct plan_args *a, uint64_t first_partial,
                     uint32_t blocks, uint32_t b, struct span own, struct span to);

/* Of every node `sent` elements to each other, for one of the chunk: messages and bytes only. */
struct cost mesh_cost(const struct load *l, uint32_t lanes, double sent);
/* A node's own part of a sum made ready to be sent, read and written. */
double mesh_own_part(const struct load *l);

#endif
