/*
 * direct: every node sends each other node what it needs of it, all at once.
 *
 * One message's latency, whatever the number of nodes; the most staging. In turn k = 1 .. N-1 node
 * i sends to i+k and receives from i-k, around the circle, so that no receiver is everyone's first.
 * For a chunk of c elements, N nodes of M ranks, R = N*M, u = 1 where M = 1, else an accumulator:
 *
 * | collective     | sent by the busiest node | staged              | in tensors, under way |
 * |----------------|--------------------------|---------------------|-----------------------|
 * | all_reduce     | (N-1)*u*c                | (N-1)*u*c, and u*c  | (N-1)*c for M = 1     |
 * | reduce         | u*c; received (N-1)*u*c  | (N-1)*u*c           |                       |
 * | reduce_scatter | (N-1)*M*u*c              | 2*(N-1)*M*u*c       | (N-1)*c for M = 1     |
 * | all_gather     | (N-1)*M*c                |                     | 2*(N-1)*M*c           |
 * | broadcast      | (N-1)*c                  |                     | (N-1)*c               |
 * | gather         | M*c; received (N-1)*M*c  |                     | (N-1)*M*c             |
 * | scatter        | (N-1)*M*c                |                     | (N-1)*M*c             |
 * | all_to_all     | (N-1)*M*c, of one source |                     | 2*(N-1)*M*c           |
 *
 * A sum is made once all parts are there, over the nodes in their order: the canonical tree itself.
 * What is for several ranks of a node travels once and is copied there; rows between ranks of one
 * node never travel. An exchange is planned from the matrix that all nodes share, so both sides
 * know which messages would be empty: there are none of those.
 */
#include "daemon/plan/mesh.h"

bool between_nodes_fits(const struct descriptor *d, uint32_t nnodes)
{
    return nnodes > 1 && !(collective_get(d->kind)->flags & COLLECTIVE_PAIR);
}

int direct_reduce(struct plan *p, const struct plan_args *a)
{
    const uint32_t lanes = mesh_others(a), root = root_node(a);

    if (a->node == root) {
        mesh_stage_inbox(p, a, 1);
        for (uint32_t k = 1; k <= lanes; k++) {
            add_recv(p, mesh_recv_channel(k, lanes), STEP_NONE, mesh_sender(a, k), 0);
            plan_destination(p, mesh_inbox(a, 0, mesh_sender(a, k), 1));
        }
        mesh_add_up(p, a, 0, 1, 0, span_in(a, SPAN_EACH, 0), span_out(a, a->root, 0));
        return p->error;
    }

    uint32_t ready;
    const struct span own = mesh_own(p, a, &ready);

    add_send(p, 0, STEP_NONE, root, 0);
    plan_source(p, own);
    return p->error;
}

int direct_broadcast(struct plan *p, const struct plan_args *a)
{
    const uint32_t lanes = mesh_others(a), root = root_node(a);

    if (a->node != root) {
        add_recv(p, 0, STEP_NONE, root, 0);
        plan_destination(p, span_out(a, leader(a), 0));
        pass_on(p, a, 0, STEP_NONE, span_out(a, leader(a), 0));
        return p->error;
    }
    for (uint32_t k = 1; k <= lanes; k++) {
        add_send(p, mesh_send_channel(k, lanes), STEP_NONE, mesh_receiver(a, k), 0);
        plan_source(p, span_in(a, a->root, 0));
    }
    add_copy(p, 0, STEP_NONE, span_in(a, a->root, 0), span_out(a, SPAN_EACH, 0));
    return p->error;
}

int direct_gather(struct plan *p, const struct plan_args *a)
{
    const uint32_t lanes = mesh_others(a), root = root_node(a);

    if (a->node != root) {
        add_send(p, 0, STEP_NONE, root, 0);
        plan_source(p, span_in(a, SPAN_EACH, 0));
        return p->error;
    }
    for (uint32_t k = 1; k <= lanes; k++) {
        const uint32_t from = mesh_sender(a, k);

        add_recv(p, mesh_recv_channel(k, lanes), STEP_NONE, from, 0);
        for (uint32_t i = 0; i < ranks_of(a, from); i++)
            plan_destination(p, span_out(a, a->root, rank_of(a, from, i)));
    }
    for (uint32_t i = 0; i < ranks_here(a); i++)
        add_copy(p, 0, STEP_NONE, span_in(a, rank_of(a, root, i), 0),
                 span_out(a, a->root, rank_of(a, root, i)));
    return p->error;
}

int direct_scatter(struct plan *p, const struct plan_args *a)
{
    const uint32_t lanes = mesh_others(a), root = root_node(a);

    if (a->node != root) {
        add_recv(p, 0, STEP_NONE, root, 0);
        plan_destination(p, span_out(a, SPAN_EACH, 0));
        return p->error;
    }
    for (uint32_t k = 1; k <= lanes; k++) {
        const uint32_t to = mesh_receiver(a, k);

        add_send(p, mesh_send_channel(k, lanes), STEP_NONE, to, 0);
        for (uint32_t i = 0; i < ranks_of(a, to); i++)
            plan_source(p, span_in(a, a->root, rank_of(a, to, i)));
    }
    for (uint32_t i = 0; i < ranks_here(a); i++)
        add_copy(p, 0, STEP_NONE, span_in(a, a->root, rank_of(a, root, i)),
                 span_out(a, rank_of(a, root, i), 0));
    return p->error;
}

/* ---- costs of these, of as many ranks M on each of N nodes */

struct cost direct_reduce_cost(const struct load *l)
{
    const uint64_t first = first_width(l), others = l->nnodes - 1;
    struct cost c = mesh_cost(l, (uint32_t)others, (double)first);

    c.touched = mesh_own_part(l) + (double)(others * first + l->ranks + 1) * (double)l->count;
    c.peak = others * first * l->count;
    return c;
}

struct cost direct_broadcast_cost(const struct load *l)
{
    struct cost c = mesh_cost(l, l->nnodes - 1, 1);

    c.touched = (l->ranks + 1.0) * (double)l->count;
    c.peak = (l->nnodes - 1) * l->count;
    return c;
}

struct cost direct_gather_cost(const struct load *l)
{
    struct cost c = mesh_cost(l, l->nnodes - 1, l->ranks);

    c.touched = 2.0 * l->ranks * (double)l->count;
    c.peak = (uint64_t)(l->nnodes - 1) * l->ranks * l->count;
    return c;
}

struct cost direct_scatter_cost(const struct load *l)
{
    return direct_gather_cost(l);
}

/* ---- all at once */

int direct_all_reduce(struct plan *p, const struct plan_args *a)
{
    return mesh_all_reduce(p, a, mesh_others(a));
}

struct cost direct_all_reduce_cost(const struct load *l)
{
    return mesh_all_reduce_cost(l, l->nnodes - 1);
}

int direct_reduce_scatter(struct plan *p, const struct plan_args *a)
{
    return mesh_reduce_scatter(p, a, mesh_others(a), UINT32_MAX);
}

struct cost direct_reduce_scatter_cost(const struct load *l)
{
    return mesh_reduce_scatter_cost(l, l->nnodes - 1, UINT32_MAX);
}

int direct_all_gather(struct plan *p, const struct plan_args *a)
{
    return mesh_all_gather(p, a, mesh_others(a));
}

struct cost direct_all_gather_cost(const struct load *l)
{
    return mesh_all_gather_cost(l, l->nnodes - 1);
}

int direct_exchange(struct plan *p, const struct plan_args *a)
{
    return mesh_exchange(p, a, mesh_others(a));
}

struct cost direct_exchange_cost(const struct load *l)
{
    return mesh_exchange_cost(l, l->nnodes - 1);
}
