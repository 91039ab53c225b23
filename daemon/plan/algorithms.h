/* What the rows of algorithms.c are made of: a file per family, an emitter per collective. */
#ifndef DAEMON_PLAN_ALGORITHMS_H
#define DAEMON_PLAN_ALGORITHMS_H

#include "daemon/plan/placement.h"
#include "daemon/plan/plan.h"

#define ALGORITHM(name)                                                                            \
    struct cost name##_cost(const struct load *l);                                                 \
    int name(struct plan *p, const struct plan_args *a)

/* hierarchical.c */
bool hierarchical_fits(const struct descriptor *d, uint32_t nnodes);
struct cost hierarchical_cost(const struct load *l);
int hierarchical_all_reduce(struct plan *p, const struct plan_args *a);
int hierarchical_all_gather(struct plan *p, const struct plan_args *a);
int hierarchical_reduce_scatter(struct plan *p, const struct plan_args *a);
int hierarchical_broadcast(struct plan *p, const struct plan_args *a);
int hierarchical_reduce(struct plan *p, const struct plan_args *a);
int hierarchical_gather(struct plan *p, const struct plan_args *a);
int hierarchical_scatter(struct plan *p, const struct plan_args *a);
int hierarchical_exchange(struct plan *p, const struct plan_args *a);
int hierarchical_pair(struct plan *p, const struct plan_args *a);

/* direct.c: fits any number of nodes but one, as the tree does */
bool between_nodes_fits(const struct descriptor *d, uint32_t nnodes);
ALGORITHM(direct_all_reduce);
ALGORITHM(direct_all_gather);
ALGORITHM(direct_reduce_scatter);
ALGORITHM(direct_broadcast);
ALGORITHM(direct_reduce);
ALGORITHM(direct_gather);
ALGORITHM(direct_scatter);
ALGORITHM(direct_exchange);

/* pairwise.c */
ALGORITHM(pairwise_all_reduce);
ALGORITHM(pairwise_all_gather);
ALGORITHM(pairwise_reduce_scatter);
ALGORITHM(pairwise_exchange);

/* tree.c */
ALGORITHM(tree_all_reduce);
ALGORITHM(tree_broadcast);
ALGORITHM(tree_reduce);
ALGORITHM(tree_gather);
ALGORITHM(tree_scatter);

/* halving.c: powers of two only */
bool halving_fits(const struct descriptor *d, uint32_t nnodes);
ALGORITHM(halving_all_reduce);
ALGORITHM(halving_reduce_scatter);
ALGORITHM(halving_all_gather);

/* ring.c: moves, and what comes out the same in any order */
bool ring_fits(const struct descriptor *d, uint32_t nnodes);
ALGORITHM(ring_all_reduce);
ALGORITHM(ring_reduce_scatter);
ALGORITHM(ring_all_gather);

#undef ALGORITHM

/* ---- words they share */

/* The chunk's part of a rank's block. */
static inline struct span span_in(const struct plan_args *a, uint32_t rank, uint32_t block)
{
    return (struct span){ BUFFER_IN, rank, block * a->stride, a->count };
}

static inline struct span span_out(const struct plan_args *a, uint32_t rank, uint32_t block)
{
    return (struct span){ BUFFER_OUT, rank, block * a->stride, a->count };
}

/* `count` from `offset` of a span on. */
static inline struct span span_part(struct span s, uint64_t offset, uint64_t count)
{
    s.offset += offset;
    s.count = count;
    return s;
}

/* How many ranks a node has, and which is its i-th. */
static inline uint32_t ranks_of(const struct plan_args *a, uint32_t node)
{
    return placement_count(a->nodes, node);
}

static inline uint32_t rank_of(const struct plan_args *a, uint32_t node, uint32_t i)
{
    return placement_rank(a->nodes, node, i);
}

static inline uint32_t ranks_here(const struct plan_args *a)
{
    return ranks_of(a, a->node);
}

/* The rank of this node through whose tensors messages come and go. */
static inline uint32_t leader(const struct plan_args *a)
{
    return rank_of(a, a->node, 0);
}

static inline uint32_t root_node(const struct plan_args *a)
{
    return a->nodes->nodes[a->root];
}

static inline uint32_t add_local(struct plan *p, enum step_kind kind, uint32_t channel,
                                 uint32_t after)
{
    return plan_step(p, (struct step){ .kind = kind, .channel = channel, .after = after });
}

static inline uint32_t add_send(struct plan *p, uint32_t channel, uint32_t after, uint32_t peer,
                                uint32_t tag)
{
    return plan_step(p, (struct step){ STEP_SEND, channel, after, .peer = peer, .tag = tag });
}

static inline uint32_t add_recv(struct plan *p, uint32_t channel, uint32_t after, uint32_t peer,
                                uint32_t tag)
{
    return plan_step(p, (struct step){ STEP_RECV, channel, after, .peer = peer, .tag = tag });
}

static inline uint32_t add_copy(struct plan *p, uint32_t channel, uint32_t after, struct span src,
                                struct span dst)
{
    const uint32_t step = add_local(p, STEP_COPY, channel, after);

    plan_source(p, src);
    plan_destination(p, dst);
    return step;
}

/* Staging of its own for `count` accumulators, or elements. */
static inline struct span stage_partial(struct plan *p, uint64_t count)
{
    p->partials += count;
    return (struct span){ BUFFER_PARTIAL, 0, p->partials - count, count };
}

static inline struct span stage_elements(struct plan *p, uint64_t count)
{
    p->scratch += count;
    return (struct span){ BUFFER_SCRATCH, 0, p->scratch - count, count };
}

/*
 * How many elements wide is what a node sends of a sum before anything is added to it: one rank
 * sends its elements, more of them a partial sum.
 */
static inline uint64_t first_width(const struct load *l)
{
    return l->ranks == 1 ? 1 : l->wide;
}

/* What the leader has received for everyone goes to the node's other ranks. */
static inline void pass_on(struct plan *p, const struct plan_args *a, uint32_t channel,
                           uint32_t after, struct span out)
{
    struct span each = out;

    each.rank = SPAN_EACH;
    if (ranks_here(a) > 1)
        add_copy(p, channel, after, out, each);
}

#endif
