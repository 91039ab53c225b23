/*
 * pairwise: as direct, but one partner at a time: one message out and one in, then the next turn.
 *
 * The fewest bytes between nodes of what everyone tells everyone, and the least staging; a turn
 * costs a message's latency. For a chunk of c elements, N nodes of M ranks, u as for direct:
 *
 * | collective     | turns    | sent by every node | staged               | under way in tensors |
 * |----------------|----------|--------------------|----------------------|----------------------|
 * | all_reduce     | N-1      | (N-1)*u*c          | (N-1)*u*c, and u*c   | c for M = 1          |
 * | reduce_scatter | (N-1)*M  | (N-1)*M*u*c        | (N-1)*u*c, and u*c   | c for M = 1          |
 * | all_gather     | N-1      | (N-1)*M*c          |                      | 2*M*c                |
 * | all_to_all     | N-1      | (N-1)*M*c          |                      | 2*M*c, of one source |
 *
 * reduce_scatter takes the first ranks of all nodes, then the second ones: what waits to be added
 * is one block, not M, and is used again.
 */
#include "daemon/plan/mesh.h"

int pairwise_all_reduce(struct plan *p, const struct plan_args *a)
{
    return mesh_all_reduce(p, a, 1);
}

struct cost pairwise_all_reduce_cost(const struct load *l)
{
    return mesh_all_reduce_cost(l, 1);
}

int pairwise_reduce_scatter(struct plan *p, const struct plan_args *a)
{
    return mesh_reduce_scatter(p, a, 1, 1);
}

struct cost pairwise_reduce_scatter_cost(const struct load *l)
{
    return mesh_reduce_scatter_cost(l, 1, 1);
}

int pairwise_all_gather(struct plan *p, const struct plan_args *a)
{
    return mesh_all_gather(p, a, 1);
}

struct cost pairwise_all_gather_cost(const struct load *l)
{
    return mesh_all_gather_cost(l, 1);
}

int pairwise_exchange(struct plan *p, const struct plan_args *a)
{
    return mesh_exchange(p, a, 1);
}

struct cost pairwise_exchange_cost(const struct load *l)
{
    return mesh_exchange_cost(l, 1);
}
