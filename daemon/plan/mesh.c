#include "daemon/plan/mesh.h"

#include "daemon/plan/exchange.h"

/* ---- sums */

/* How many of a buffer's slots belong to nodes before `node`, a slot for each but this one. */
static uint64_t slots_before(const struct plan_args *a, uint32_t node, bool single)
{
    uint64_t n = 0;

    for (uint32_t j = 0; j < node; j++)
        n += j != a->node && (ranks_of(a, j) == 1) == single;
    return n;
}

struct span mesh_inbox(const struct plan_args *a, uint64_t first_partial, uint32_t node,
                       uint32_t blocks)
{
    const bool single = ranks_of(a, node) == 1;
    const uint64_t slot = slots_before(a, node, single) * blocks * a->count;

    return (struct span){ single ? BUFFER_SCRATCH : BUFFER_PARTIAL, 0,
                          slot + (single ? 0 : first_partial), a->count };
}

void mesh_stage_inbox(struct plan *p, const struct plan_args *a, uint32_t blocks)
{
    const uint64_t singles = slots_before(a, a->nodes->nnodes, true);

    p->scratch += singles * blocks * a->count;
    p->partials += (mesh_others(a) - singles) * blocks * a->count;
}

uint32_t mesh_add_up(struct plan *p, const struct plan_args *a, uint64_t first_partial,
                     uint32_t blocks, uint32_t b, struct span own, struct span to)
{
    uint64_t seen[2] = { 0 };
    const uint32_t step = add_local(p, STEP_REDUCE, 0, STEP_ALL);

    for (uint32_t j = 0; j < a->nodes->nnodes; j++) {
        const bool single = ranks_of(a, j) == 1;

        if (j == a->node) {
            plan_source(p, own);
            continue;
        }
        plan_source(p, (struct span){ single ? BUFFER_SCRATCH : BUFFER_PARTIAL, 0,
                                      (seen[single]++ * blocks + b) * a->count +
                                          (single ? 0 : first_partial),
                                      a->count });
    }
    plan_destination(p, to);
    return step;
}

struct span mesh_own(struct plan *p, const struct plan_args *a, uint32_t *ret_ready)
{
    *ret_ready = STEP_NONE;
    if (ranks_here(a) == 1)
        return span_in(a, leader(a), 0);

    const struct span own = stage_partial(p, a->count);

    *ret_ready = add_local(p, STEP_REDUCE, 0, STEP_NONE);
    plan_source(p, span_in(a, SPAN_EACH, 0));
    plan_destination(p, own);
    return own;
}

int mesh_all_reduce(struct plan *p, const struct plan_args *a, uint32_t lanes)
{
    uint32_t ready;
    const struct span own = mesh_own(p, a, &ready);
    const uint64_t first = p->partials;

    mesh_stage_inbox(p, a, 1);
    for (uint32_t k = 1; k <= mesh_others(a); k++) {
        add_send(p, mesh_send_channel(k, lanes), ready, mesh_receiver(a, k), 0);
        plan_source(p, own);
        add_recv(p, mesh_recv_channel(k, lanes), STEP_NONE, mesh_sender(a, k), 0);
        plan_destination(p, mesh_inbox(a, first, mesh_sender(a, k), 1));
    }
    mesh_add_up(p, a, first, 1, 0, own, span_out(a, SPAN_EACH, 0));
    return p->error;
}

/* Sends what this node has of every block in [from, from + n) of the receiver's ranks. */
static void send_blocks(struct plan *p, const struct plan_args *a, uint32_t channel, uint32_t to,
                        uint32_t from, uint32_t n, struct span slots)
{
    if (ranks_here(a) == 1) {
        add_send(p, channel, STEP_NONE, to, from);
        for (uint32_t i = 0; i < n; i++)
            plan_source(p, span_in(a, leader(a), rank_of(a, to, from + i)));
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        add_local(p, STEP_REDUCE, channel, STEP_NONE);
        plan_source(p, span_in(a, SPAN_EACH, rank_of(a, to, from + i)));
        plan_destination(p, span_part(slots, i * a->count, a->count));
    }
    add_send(p, channel, STEP_NONE, to, from);
    plan_source(p, span_part(slots, 0, n * a->count));
}

/* Of a node's ranks those in [from, from + n). */
static uint32_t ranks_within(const struct plan_args *a, uint32_t node, uint32_t from, uint32_t n)
{
    const uint32_t ranks = ranks_of(a, node);

    return from >= ranks ? 0 : MIN(n, ranks - from);
}

static uint32_t most_ranks(const struct plan_args *a)
{
    uint32_t most = 0;

    for (uint32_t j = 0; j < a->nodes->nnodes; j++)
        most = MAX(most, ranks_of(a, j));
    return most;
}

/* The blocks of the ranks in [from, from + n) of every node; what waits for them is used again. */
static void scatter_blocks(struct plan *p, const struct plan_args *a, uint32_t lanes, uint32_t from,
                           uint32_t n, const struct span *slots, uint32_t *after)
{
    const uint32_t mine = ranks_within(a, a->node, from, n), waits = *after;
    const uint64_t first = slots->offset + slots->count;

    for (uint32_t k = 1; k <= mesh_others(a); k++) {
        const uint32_t to = mesh_receiver(a, k), theirs = ranks_within(a, to, from, n);
        const uint64_t slot = (k - 1) % lanes * n * a->count;
        struct span part;

        if (theirs)
            send_blocks(p, a, mesh_send_channel(k, lanes), to, from, theirs,
                        span_part(*slots, slot, 0));
        if (!mine)
            continue;
        part = mesh_inbox(a, first, mesh_sender(a, k), mine);
        add_recv(p, mesh_recv_channel(k, lanes), waits, mesh_sender(a, k), from);
        plan_destination(p, span_part(part, 0, mine * a->count));
    }
    for (uint32_t i = 0; i < mine; i++) {
        const uint32_t rank = rank_of(a, a->node, from + i);

        *after =
            mesh_add_up(p, a, first, mine, i, span_in(a, SPAN_EACH, rank), span_out(a, rank, 0));
    }
}

int mesh_reduce_scatter(struct plan *p, const struct plan_args *a, uint32_t lanes, uint32_t blocks)
{
    const uint32_t most = most_ranks(a), n = MIN(blocks, most);
    const struct span slots = stage_partial(p, ranks_here(a) == 1 ? 0 : lanes * n * a->count);
    uint32_t after = STEP_NONE;

    mesh_stage_inbox(p, a, MIN(n, ranks_here(a)));
    for (uint32_t from = 0; from < most; from += n)
        scatter_blocks(p, a, lanes, from, n, &slots, &after);
    return p->error;
}

/* ---- moves */

int mesh_all_gather(struct plan *p, const struct plan_args *a, uint32_t lanes)
{
    for (uint32_t k = 1; k <= mesh_others(a); k++) {
        const uint32_t from = mesh_sender(a, k), channel = mesh_recv_channel(k, lanes);

        add_send(p, mesh_send_channel(k, lanes), STEP_NONE, mesh_receiver(a, k), 0);
        plan_source(p, span_in(a, SPAN_EACH, 0));
        uint32_t got = add_recv(p, channel, STEP_NONE, from, 0);
        for (uint32_t i = 0; i < ranks_of(a, from); i++)
            plan_destination(p, span_out(a, leader(a), rank_of(a, from, i)));
        for (uint32_t i = 0; i < ranks_of(a, from); i++)
            pass_on(p, a, 0, got, span_out(a, leader(a), rank_of(a, from, i)));
    }
    for (uint32_t i = 0; i < ranks_here(a); i++) {
        const uint32_t rank = rank_of(a, a->node, i);

        add_copy(p, 1 + 2 * lanes, STEP_NONE, span_in(a, rank, 0), span_out(a, SPAN_EACH, rank));
    }
    return p->error;
}

/* The parts of one source for the ranks of one node, as spans of the last step. */
static void exchange_spans(struct plan *p, const struct plan_args *a, bool send, uint32_t s,
                           uint32_t node)
{
    const struct exchange_round t = { a->round, a->rows, a->row_elements };
    struct span in, out;

    for (uint32_t i = 0; i < ranks_of(a, node); i++)
        if (exchange_part(a->exchange, s, rank_of(a, node, i), &t, &in, &out)) {
            if (send)
                plan_source(p, in);
            else
                plan_destination(p, out);
        }
}

static bool exchange_any(const struct plan_args *a, uint32_t s, uint32_t node)
{
    const struct exchange_round t = { a->round, a->rows, a->row_elements };
    struct span in, out;

    for (uint32_t i = 0; i < ranks_of(a, node); i++)
        if (exchange_part(a->exchange, s, rank_of(a, node, i), &t, &in, &out))
            return true;
    return false;
}

static void exchange_here(struct plan *p, const struct plan_args *a, uint32_t channel, uint32_t s)
{
    const struct exchange_round t = { a->round, a->rows, a->row_elements };
    struct span in, out;

    for (uint32_t i = 0; i < ranks_here(a); i++)
        if (exchange_part(a->exchange, s, rank_of(a, a->node, i), &t, &in, &out))
            add_copy(p, channel, STEP_NONE, in, out);
}

int mesh_exchange(struct plan *p, const struct plan_args *a, uint32_t lanes)
{
    const bool have = a->source < ranks_here(a);
    const uint32_t mine = have ? rank_of(a, a->node, a->source) : 0;

    for (uint32_t k = 1; k <= mesh_others(a); k++) {
        const uint32_t to = mesh_receiver(a, k), from = mesh_sender(a, k);

        if (have && exchange_any(a, mine, to)) {
            add_send(p, mesh_send_channel(k, lanes), STEP_NONE, to, a->source);
            exchange_spans(p, a, true, mine, to);
        }
        if (a->source >= ranks_of(a, from))
            continue;

        const uint32_t theirs = rank_of(a, from, a->source);

        if (exchange_any(a, theirs, a->node)) {
            add_recv(p, mesh_recv_channel(k, lanes), STEP_NONE, from, a->source);
            exchange_spans(p, a, false, theirs, a->node);
        }
    }
    if (have)
        exchange_here(p, a, 0, mine);
    return p->error;
}

/* ---- costs, of as many ranks M on each of N nodes */

struct cost mesh_cost(const struct load *l, uint32_t lanes, double sent)
{
    const uint32_t turns = div_up_u64(l->nnodes - 1, lanes);

    return (struct cost){ .messages = turns,
                          .posted = l->nnodes - 1,
                          .sent = sent * (l->nnodes - 1) * (double)l->count };
}

double mesh_own_part(const struct load *l)
{
    return l->ranks == 1 ? 0 : (double)(l->ranks + l->wide) * (double)l->count;
}

struct cost mesh_all_reduce_cost(const struct load *l, uint32_t lanes)
{
    const uint64_t first = first_width(l), others = l->nnodes - 1;
    struct cost c = mesh_cost(l, lanes, (double)first);

    c.touched = mesh_own_part(l) + (double)(l->nnodes * first + l->ranks) * (double)l->count;
    c.peak = (others * first + (l->ranks == 1 ? lanes : l->wide)) * l->count;
    return c;
}

struct cost mesh_reduce_scatter_cost(const struct load *l, uint32_t lanes, uint32_t blocks)
{
    const uint64_t first = first_width(l), others = l->nnodes - 1, n = MIN(blocks, l->ranks);
    struct cost c = mesh_cost(l, lanes, (double)(first * l->ranks));

    c.messages *= (double)div_up_u64(l->ranks, n);
    c.posted *= (double)div_up_u64(l->ranks, n);
    c.touched = l->ranks * ((double)others * mesh_own_part(l) +
                            (double)(others * first + l->ranks + 1) * (double)l->count);
    c.peak = (others * first * n + lanes * n * first) * l->count;
    return c;
}

struct cost mesh_all_gather_cost(const struct load *l, uint32_t lanes)
{
    struct cost c = mesh_cost(l, lanes, l->ranks);
    const double passed = l->ranks == 1 ? 0 : (double)(l->nnodes - 1) * l->ranks * l->ranks;

    c.touched = (l->ranks * (l->ranks + 1.0) + passed) * (double)l->count;
    c.peak = 2ull * lanes * l->ranks * l->count;
    return c;
}

struct cost mesh_exchange_cost(const struct load *l, uint32_t lanes)
{
    struct cost c = mesh_cost(l, lanes, (double)l->ranks * l->ranks);

    c.messages *= l->ranks;
    c.posted *= l->ranks;
    c.touched = 2.0 * l->ranks * l->ranks * (double)l->count;
    c.peak = 2ull * lanes * l->ranks * l->count;
    return c;
}
