/*
 * halving-doubling: with a partner at distance 1, then 2, 4, ... half of what is left to be added;
 * then, backwards, what is complete. For powers of two of nodes.
 *
 * The pairs are those of the canonical tree, and so are its bits. Nothing is sent twice, and there
 * are log N messages one way. For a chunk of c elements, N nodes of M ranks, L = log2 N, u = 1
 * where M = 1, else w, the elements an accumulator is wide:
 *
 * | collective     | messages | sent by every node        | staged, at most | in tensors, under way
 * |
 * |----------------|----------|---------------------------|-----------------|-----------------------|
 * | all_reduce     | 2*L      | c/2*u + c/2*w, and c      | 3/2*c*w         | c | | reduce_scatter
 * | L        | (N/2*u + (N/2-1)*w) * M*c | 3/2*N*M*c*w     | N*M*c/2 for M = 1     | | all_gather
 * | L        | (N-1)*M*c                 |                 | N*M*c                 |
 *
 * all_reduce halves the chunk itself, however odd; an empty half is not sent. reduce_scatter halves
 * the nodes: after r rounds it has to do with those whose lowest r bits are its own.
 */
#include "daemon/plan/algorithms.h"

#include "daemon/plan/mesh.h"

bool halving_fits(const struct descriptor *d, uint32_t nnodes)
{
    return between_nodes_fits(d, nnodes) && !(nnodes & (nnodes - 1));
}

static uint32_t rounds_of(uint32_t nnodes)
{
    return (uint32_t)__builtin_ctz(nnodes);
}

/* The last steps of the channels: 0 receives and adds, 1 sends. */
struct rounds {
    uint32_t last[2];
};

static struct span inputs_here(const struct plan_args *a, uint32_t block)
{
    return span_in(a, ranks_here(a) == 1 ? leader(a) : SPAN_EACH, block);
}

static void add_two(struct plan *p, const struct plan_args *a, uint32_t partner, struct span own,
                    struct span part, struct span to)
{
    plan_source(p, partner < a->node ? part : own);
    plan_source(p, partner < a->node ? own : part);
    plan_destination(p, to);
}

/* ---- all_reduce */

struct interval {
    uint64_t first, count;
};

/* What a node has to do with after so many rounds. */
static struct interval kept(const struct plan_args *a, uint32_t node, uint32_t rounds)
{
    struct interval i = { 0, a->count };

    for (uint32_t r = 0; r < rounds; r++) {
        const uint64_t upper = i.count / 2, lower = i.count - upper;

        if (node >> r & 1)
            i.first += lower;
        i.count = node >> r & 1 ? upper : lower;
    }
    return i;
}

/* Where sums are made (`first`: of what element the first is), and what is to be added to them. */
struct halves {
    struct span sum, part, elements;
    uint64_t first;
};

static struct span within(struct span s, struct interval i)
{
    return span_part(s, i.first, i.count);
}

static struct halves stage_halves(struct plan *p, const struct plan_args *a)
{
    const struct interval mine = kept(a, a->node, 1);
    const bool once = a->nodes->nnodes == 2;
    struct halves h = { .first = ranks_here(a) == 1 ? mine.first : 0 };

    h.sum = stage_partial(p, ranks_here(a) > 1 ? a->count : once ? 0 : mine.count);
    h.part = stage_partial(p, ranks_of(a, a->node ^ 1) > 1 ? mine.count
                              : once                       ? 0
                                                           : kept(a, a->node, 2).count);
    h.elements = stage_elements(p, ranks_of(a, a->node ^ 1) == 1 ? mine.count : 0);
    return h;
}

/* One round of sums: the partner's half of them goes, and ours comes. */
static void halve(struct plan *p, const struct plan_args *a, const struct halves *h, uint32_t r,
                  struct rounds *s)
{
    const uint32_t partner = a->node ^ 1u << r;
    const struct interval mine = kept(a, a->node, r + 1), theirs = kept(a, partner, r + 1);
    const bool inputs = r == 0, last = 2u << r == a->nodes->nnodes;
    const struct span sum = { BUFFER_PARTIAL, 0, h->sum.offset - h->first, 0 };
    struct span own = inputs ? inputs_here(a, 0) : sum, send = own;
    struct span part = inputs && ranks_of(a, partner) == 1 ? h->elements : h->part;

    if (theirs.count && inputs && ranks_here(a) > 1) {
        send = sum;
        s->last[0] = add_local(p, STEP_REDUCE, 0, STEP_NONE);
        plan_source(p, within(own, theirs));
        plan_destination(p, within(send, theirs));
    }
    if (theirs.count) {
        s->last[1] = add_send(p, 1, s->last[0], partner, 2 * r);
        plan_source(p, within(send, theirs));
    }
    if (!mine.count)
        return;
    part.count = mine.count;
    add_recv(p, 0, STEP_NONE, partner, 2 * r);
    plan_destination(p, part);
    s->last[0] = add_local(p, STEP_REDUCE, 0, STEP_NONE);
    add_two(p, a, partner, within(own, mine), part,
            within(last ? span_out(a, leader(a), 0) : sum, mine));
}

/* One round back: what is complete here goes, what is complete there comes. */
static void double_back(struct plan *p, const struct plan_args *a, uint32_t r, struct rounds *s)
{
    const uint32_t partner = a->node ^ 1u << r, sent = s->last[1];
    const struct interval mine = kept(a, a->node, r + 1), theirs = kept(a, partner, r + 1);
    const struct span out = span_out(a, leader(a), 0);

    if (mine.count) {
        s->last[1] = add_send(p, 1, s->last[0], partner, 2 * r + 1);
        plan_source(p, within(out, mine));
    }
    if (theirs.count) {
        /* in place it lies where an earlier message has been read from */
        s->last[0] = add_recv(p, 0, sent, partner, 2 * r + 1);
        plan_destination(p, within(out, theirs));
    }
}

int halving_all_reduce(struct plan *p, const struct plan_args *a)
{
    const uint32_t rounds = rounds_of(a->nodes->nnodes);
    const struct halves h = stage_halves(p, a);
    struct rounds s = { { STEP_NONE, STEP_NONE } };

    for (uint32_t r = 0; r < rounds; r++)
        halve(p, a, &h, r, &s);
    for (uint32_t r = rounds; r-- > 0;)
        double_back(p, a, r, &s);
    pass_on(p, a, 0, STEP_NONE, span_out(a, leader(a), 0));
    return p->error;
}

/* ---- reduce_scatter */

/* The ranks of the nodes that are `node` in their lowest r bits, counted up to node `end`. */
static uint32_t ranks_alike(const struct plan_args *a, uint32_t node, uint32_t r, uint32_t end)
{
    uint32_t n = 0;

    for (uint32_t j = node & ((1u << r) - 1); j < end; j += 1u << r)
        n += ranks_of(a, j);
    return n;
}

static uint32_t all_alike(const struct plan_args *a, uint32_t node, uint32_t r)
{
    return ranks_alike(a, node, r, a->nodes->nnodes);
}

/* The i-th of the slots that hold a block each. */
static struct span slot(const struct plan_args *a, struct span slots, uint32_t i)
{
    return span_part(slots, i * a->count, a->count);
}

/* The sums of round r of what the partner keeps: raw, made now, or made in the rounds before. */
static void send_half(struct plan *p, const struct plan_args *a, uint32_t r, struct span sums,
                      struct span made, struct rounds *s)
{
    const uint32_t partner = a->node ^ 1u << r, step = 2u << r;
    const uint32_t first = partner & (step - 1);
    uint32_t i = 0;

    for (uint32_t j = first; j < a->nodes->nnodes && r == 0 && ranks_here(a) > 1; j += step)
        for (uint32_t m = 0; m < ranks_of(a, j); m++) {
            add_local(p, STEP_REDUCE, 1, STEP_NONE);
            plan_source(p, inputs_here(a, rank_of(a, j, m)));
            plan_destination(p, slot(a, made, i++));
        }
    s->last[1] = add_send(p, 1, s->last[0], partner, r);
    if (i) {
        plan_source(p, span_part(made, 0, i * a->count));
        return;
    }
    for (uint32_t j = first; j < a->nodes->nnodes; j += step)
        for (uint32_t m = 0; m < ranks_of(a, j); m++)
            plan_source(p, r == 0 ? inputs_here(a, rank_of(a, j, m))
                                  : slot(a, sums, ranks_alike(a, a->node, 1, j) + m));
}

static void add_half(struct plan *p, const struct plan_args *a, uint32_t r, struct span sums,
                     struct span parts, struct rounds *s)
{
    const uint32_t partner = a->node ^ 1u << r, step = 2u << r;
    const bool last = step == a->nodes->nnodes;
    uint32_t i = 0;

    add_recv(p, 0, STEP_NONE, partner, r);
    plan_destination(p, span_part(parts, 0, all_alike(a, a->node, r + 1) * a->count));
    for (uint32_t j = a->node & (step - 1); j < a->nodes->nnodes; j += step)
        for (uint32_t m = 0; m < ranks_of(a, j); m++) {
            const uint32_t rank = rank_of(a, j, m);
            const struct span sum = slot(a, sums, ranks_alike(a, a->node, 1, j) + m);

            s->last[0] = add_local(p, STEP_REDUCE, 0, STEP_NONE);
            add_two(p, a, partner, r == 0 ? inputs_here(a, rank) : sum, slot(a, parts, i++),
                    last ? span_out(a, rank, 0) : sum);
        }
}

int halving_reduce_scatter(struct plan *p, const struct plan_args *a)
{
    const uint32_t mine = all_alike(a, a->node, 1), theirs = all_alike(a, a->node ^ 1, 1);
    const bool single = ranks_of(a, a->node ^ 1) == 1, once = a->nodes->nnodes == 2;
    const struct span sums = stage_partial(p, once ? 0 : mine * a->count);
    const struct span made = stage_partial(p, ranks_here(a) == 1 ? 0 : theirs * a->count);
    const struct span elements = stage_elements(p, single ? mine * a->count : 0);
    const uint32_t most = !single ? mine : once ? 0 : all_alike(a, a->node, 2);
    const struct span parts = stage_partial(p, most * a->count);
    struct rounds s = { { STEP_NONE, STEP_NONE } };

    for (uint32_t r = 0; r < rounds_of(a->nodes->nnodes); r++) {
        send_half(p, a, r, sums, made, &s);
        add_half(p, a, r, sums, r == 0 && single ? elements : parts, &s);
    }
    return p->error;
}

/* ---- all_gather */

/* The block of a rank, where it is on this node before anything is copied. */
static struct span block_of(const struct plan_args *a, uint32_t rank)
{
    return a->nodes->nodes[rank] == a->node ? span_in(a, rank, 0) : span_out(a, leader(a), rank);
}

int halving_all_gather(struct plan *p, const struct plan_args *a)
{
    uint32_t got = STEP_NONE;

    for (uint32_t i = 0; i < ranks_here(a); i++) {
        const uint32_t rank = rank_of(a, a->node, i);

        add_copy(p, 2, STEP_NONE, span_in(a, rank, 0), span_out(a, SPAN_EACH, rank));
    }
    for (uint32_t n = 1; n < a->nodes->nnodes; n *= 2) {
        const uint32_t partner = a->node ^ n, ours = a->node & ~(n - 1),
                       theirs = partner & ~(n - 1);
        const uint32_t *first = a->nodes->first, *ranks = a->nodes->ranks;

        add_send(p, 1, got, partner, 0);
        for (uint32_t i = first[ours]; i < first[ours + n]; i++)
            plan_source(p, block_of(a, ranks[i]));
        got = add_recv(p, 0, STEP_NONE, partner, 0);
        for (uint32_t i = first[theirs]; i < first[theirs + n]; i++)
            plan_destination(p, span_out(a, leader(a), ranks[i]));
        for (uint32_t i = first[theirs]; i < first[theirs + n]; i++)
            pass_on(p, a, 2, got, span_out(a, leader(a), ranks[i]));
    }
    return p->error;
}

/* ---- costs, of as many ranks M on each of N nodes */

/* What is added up, of n blocks of which a node keeps one N-th, read and written. */
static double halving_added(const struct load *l, double n)
{
    const double half = n / 2, kept_in_the_end = n / l->nnodes;
    double touched = l->ranks == 1 ? 0 : half * (l->ranks + l->wide);

    touched += half * ((double)l->ranks + (double)first_width(l) + l->wide);
    touched += (half - kept_in_the_end) * 3 * l->wide;
    return touched - kept_in_the_end * (l->wide - 1.0);
}

static double halving_sent(const struct load *l, double n)
{
    return n / 2 * (double)first_width(l) + (n / 2 - n / l->nnodes) * l->wide;
}

struct cost halving_all_reduce_cost(const struct load *l)
{
    const uint64_t c = l->count, half = c - c / 2, quarter = half - half / 2;
    const bool more = l->nnodes > 2;
    const uint32_t messages = 2 * rounds_of(l->nnodes);
    struct cost cost = { .messages = messages, .posted = messages };

    cost.sent = halving_sent(l, (double)c) + (double)c * (l->nnodes - 1) / l->nnodes;
    cost.touched = halving_added(l, (double)c) + (l->ranks == 1 ? 0 : (double)c * l->ranks);
    /* of one element, the node that has it last sends it on as far as it came */
    if (l->ranks == 1)
        cost.peak = 2 * half + MAX(c - half, l->nnodes > 4 ? quarter - quarter / 2 : 0) +
                    (more ? (half + quarter) * l->wide : 0);
    else
        cost.peak = half + MAX(c - half, more ? quarter : 0) + (c + half) * l->wide;
    return cost;
}

struct cost halving_reduce_scatter_cost(const struct load *l)
{
    const uint64_t half = (uint64_t)l->nnodes / 2 * l->ranks * l->count;
    const bool more = l->nnodes > 2;
    struct cost c = { .messages = rounds_of(l->nnodes), .posted = rounds_of(l->nnodes) };

    c.sent = halving_sent(l, 2 * (double)half);
    c.touched = halving_added(l, 2 * (double)half);
    if (l->ranks == 1)
        c.peak = 2 * half + (more ? (half + half / 2) * l->wide : 0);
    else
        c.peak = (2 + more) * half * l->wide;
    return c;
}

struct cost halving_all_gather_cost(const struct load *l)
{
    struct cost c = mesh_all_gather_cost(l, 1);

    c.messages = c.posted = rounds_of(l->nnodes);
    c.peak = (uint64_t)l->nnodes * l->ranks * l->count;
    return c;
}
