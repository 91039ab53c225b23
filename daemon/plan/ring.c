/*
 * ring: every node sends to the next and receives from the one before, N-1 times.
 *
 * The fewest bytes, a neighbour at a time; a message's latency for every node. What is added on the
 * way is added in the ring's order, so sums fit only where no order shows: integers, min and max,
 * whose accumulators are as wide as their elements. For a chunk of c elements, N nodes of M ranks:
 *
 * | collective     | messages | sent by every node | staged        | under way in tensors |
 * |----------------|----------|--------------------|---------------|----------------------|
 * | all_reduce     | 2*(N-1)  | 2*(N-1)/N*c        | 3*c/N at most | 2*c/N                |
 * | reduce_scatter | N-1      | (N-1)*M*c          | 3*M*c at most | M*c for M = 1        |
 * | all_gather     | N-1      | (N-1)*M*c          |               | 2*M*c                |
 *
 * The sum of segment g sets out at node g+1 and is complete at g. In an all_reduce the segments are
 * N parts of the chunk, an empty one is not sent, and they travel round once more when complete; in
 * a reduce_scatter segment g is the blocks of node g's ranks.
 */
#include "daemon/plan/mesh.h"

bool ring_fits(const struct descriptor *d, uint32_t nnodes)
{
    const bool sums = collective_get(d->kind)->flags & COLLECTIVE_HAS_OP;

    return between_nodes_fits(d, nnodes) && (!sums || dtype_is_integer(dtype_get(d->dtype)) ||
                                             d->op == OPERATOR_MIN || d->op == OPERATOR_MAX);
}

/* The node so many places before this one. */
static uint32_t before(const struct plan_args *a, uint32_t places)
{
    return (a->node + 2 * a->nodes->nnodes - places) % a->nodes->nnodes;
}

static uint32_t next(const struct plan_args *a)
{
    return (a->node + 1) % a->nodes->nnodes;
}

/* ---- sums */

/* How many blocks a segment has, and which part of a rank's input each is. */
static uint32_t segment_blocks(const struct plan_args *a, uint32_t g)
{
    if (a->kind == COLLECTIVE_REDUCE_SCATTER)
        return ranks_of(a, g);
    return a->count * (g + 1) / a->nodes->nnodes > a->count * g / a->nodes->nnodes;
}

static struct span segment_in(const struct plan_args *a, uint32_t g, uint32_t i)
{
    const struct span whole = span_in(a, SPAN_EACH, 0);
    const uint64_t first = a->count * g / a->nodes->nnodes;

    if (a->kind == COLLECTIVE_REDUCE_SCATTER)
        return span_in(a, SPAN_EACH, rank_of(a, g, i));
    return span_part(whole, first, a->count * (g + 1) / a->nodes->nnodes - first);
}

static struct span segment_out(const struct plan_args *a, uint32_t i)
{
    struct span out = segment_in(a, a->node, i);

    if (a->kind == COLLECTIVE_REDUCE_SCATTER)
        return span_out(a, rank_of(a, a->node, i), 0);
    out.buffer = BUFFER_OUT;
    out.rank = leader(a);
    return out;
}

static uint64_t segment_most(const struct plan_args *a)
{
    uint64_t most = 0;

    if (a->kind != COLLECTIVE_REDUCE_SCATTER)
        return div_up_u64(a->count, a->nodes->nnodes);
    for (uint32_t g = 0; g < a->nodes->nnodes; g++)
        most = MAX(most, ranks_of(a, g));
    return most * a->count;
}

/* The i-th block of a staged segment. */
static struct span staged(struct span stage, const struct plan_args *a, uint32_t g, uint32_t i)
{
    const uint64_t count = segment_in(a, g, i).count;

    return span_part(stage, i * count, count);
}

/* Reduces this node's inputs, and `part` where there is one, block by block. Return: the last. */
static uint32_t add_segment(struct plan *p, const struct plan_args *a, uint32_t g, uint32_t after,
                            const struct span *part, const struct span *sum)
{
    uint32_t step = STEP_NONE;

    for (uint32_t i = 0; i < segment_blocks(a, g); i++) {
        step = add_local(p, STEP_REDUCE, 0, after);
        if (part)
            plan_source(p, staged(*part, a, g, i));
        plan_source(p, segment_in(a, g, i));
        plan_destination(p, sum ? staged(*sum, a, g, i) : segment_out(a, i));
    }
    return step;
}

/* A segment of the whole message, as one span per block. */
static void segment_spans(struct plan *p, const struct plan_args *a, uint32_t g, bool source,
                          const struct span *stage)
{
    for (uint32_t i = 0; i < segment_blocks(a, g); i++) {
        if (source)
            plan_source(p, stage ? staged(*stage, a, g, i) : segment_in(a, g, i));
        else
            plan_destination(p, staged(*stage, a, g, i));
    }
}

/* Return: the last step that adds. `ret_sent`: the last that sends. */
static uint32_t ring_sums(struct plan *p, const struct plan_args *a, uint32_t *ret_sent)
{
    const uint32_t n = a->nodes->nnodes, from = before(a, 1);
    const bool raw_out = ranks_here(a) == 1, raw_in = ranks_of(a, from) == 1, once = n == 2;
    const uint64_t most = segment_most(a);
    const struct span sum = stage_partial(p, raw_out && once ? 0 : most);
    const struct span part = stage_partial(p, raw_in && once ? 0 : most);
    const struct span elements = stage_elements(p, raw_in ? most : 0);
    uint32_t added = STEP_NONE, sent = STEP_NONE;

    if (!raw_out)
        added = add_segment(p, a, from, STEP_NONE, NULL, &sum);
    for (uint32_t s = 0; s + 1 < n; s++) {
        const uint32_t goes = before(a, 1 + s), comes = before(a, 2 + s);
        const struct span *stage = s == 0 && raw_in ? &elements : &part;

        if (segment_blocks(a, goes)) {
            sent = add_send(p, 1, added, next(a), s);
            segment_spans(p, a, goes, true, s == 0 && raw_out ? NULL : &sum);
        }
        if (segment_blocks(a, comes)) {
            add_recv(p, 0, STEP_NONE, from, s);
            segment_spans(p, a, comes, false, stage);
            added = add_segment(p, a, comes, sent, stage, s + 2 < n ? &sum : NULL);
        }
    }
    *ret_sent = sent;
    return added;
}

int ring_reduce_scatter(struct plan *p, const struct plan_args *a)
{
    uint32_t sent;

    ring_sums(p, a, &sent);
    return p->error;
}

static struct span segment_whole(const struct plan_args *a, uint32_t g)
{
    struct span s = segment_in(a, g, 0);

    s.buffer = BUFFER_OUT;
    s.rank = leader(a);
    return s;
}

int ring_all_reduce(struct plan *p, const struct plan_args *a)
{
    const uint32_t n = a->nodes->nnodes;
    uint32_t sent, got = ring_sums(p, a, &sent);

    for (uint32_t s = 0; s + 1 < n; s++) {
        const uint32_t goes = before(a, s), comes = before(a, 1 + s);

        if (segment_blocks(a, goes)) {
            add_send(p, 1, got, next(a), n + s);
            plan_source(p, segment_whole(a, goes));
        }
        if (segment_blocks(a, comes)) {
            /* in place it may lie where the first message has been read from */
            got = add_recv(p, 0, sent, before(a, 1), n + s);
            plan_destination(p, segment_whole(a, comes));
        }
    }
    pass_on(p, a, 0, STEP_NONE, span_out(a, leader(a), 0));
    return p->error;
}

/* ---- moves */

int ring_all_gather(struct plan *p, const struct plan_args *a)
{
    uint32_t got = STEP_NONE;

    for (uint32_t i = 0; i < ranks_here(a); i++) {
        const uint32_t rank = rank_of(a, a->node, i);

        add_copy(p, 2, STEP_NONE, span_in(a, rank, 0), span_out(a, SPAN_EACH, rank));
    }
    for (uint32_t s = 0; s + 1 < a->nodes->nnodes; s++) {
        const uint32_t goes = before(a, s), comes = before(a, 1 + s);

        add_send(p, 1, got, next(a), s);
        for (uint32_t i = 0; i < ranks_of(a, goes); i++)
            plan_source(p, s == 0 ? span_in(a, rank_of(a, goes, i), 0)
                                  : span_out(a, leader(a), rank_of(a, goes, i)));
        got = add_recv(p, 0, STEP_NONE, before(a, 1), s);
        for (uint32_t i = 0; i < ranks_of(a, comes); i++)
            plan_destination(p, span_out(a, leader(a), rank_of(a, comes, i)));
        for (uint32_t i = 0; i < ranks_of(a, comes); i++)
            pass_on(p, a, 2, got, span_out(a, leader(a), rank_of(a, comes, i)));
    }
    return p->error;
}

/* ---- costs, of as many ranks M on each of N nodes */

/* Sums of segments of so many elements go round once. */
static struct cost sums_cost(const struct load *l, double segment)
{
    const double turns = l->nnodes - 1.0;

    return (struct cost){ .messages = turns,
                          .posted = turns,
                          .sent = turns * segment,
                          .touched = segment * ((l->ranks == 1 ? 0 : l->ranks + 1) +
                                                turns * (l->ranks + 2.0)) };
}

/* How many segments are staged. */
static uint64_t sums_staged(const struct load *l)
{
    return l->ranks > 1 ? 2 : l->nnodes == 2 ? 1 : 3;
}

struct cost ring_all_reduce_cost(const struct load *l)
{
    struct cost c = sums_cost(l, (double)l->count / l->nnodes);
    const uint64_t most = div_up_u64(l->count, l->nnodes);
    const bool halves = l->nnodes == 2 && l->ranks > 1; /* one goes, the other comes */

    c.messages *= 2;
    c.posted *= 2;
    c.sent *= 2;
    c.touched += l->ranks == 1 ? 0 : (double)l->ranks * (double)l->count;
    c.peak = sums_staged(l) * most + (halves ? l->count : 2 * most);
    return c;
}

struct cost ring_reduce_scatter_cost(const struct load *l)
{
    const uint64_t segment = l->ranks * l->count;
    struct cost c = sums_cost(l, (double)segment);

    c.peak = (sums_staged(l) + (l->ranks == 1)) * segment;
    return c;
}

struct cost ring_all_gather_cost(const struct load *l)
{
    return mesh_all_gather_cost(l, 1);
}
