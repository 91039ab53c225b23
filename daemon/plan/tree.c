/*
 * tree: a binomial tree of nodes; log N messages deep, few messages in all.
 *
 * Sums: at level k = 1, 2, 4 ... nodes stand in groups of 2k, and what holds the upper half's sum
 * sends it to what holds the lower half's, or the other way round where the upper half has the
 * root: halves as the canonical tree cuts them, for any number of nodes, lower ranks on the left.
 * A partial sum travels as accumulators, what is one rank's as elements; the last addition rounds.
 * Moves: the same tree with the root as node 0, from the root down, largest half first, or up.
 * For a chunk of c elements, N nodes of M ranks, L = ceil(log2 N), w elements an accumulator:
 *
 * | collective | deep | through the busiest link | staged        | under way in tensors |
 * |------------|------|--------------------------|---------------|----------------------|
 * | all_reduce | 2*L  | L*w*c, and L*c           | 2*w*c         | c                    |
 * | reduce     | L    | L*w*c                    | 2*w*c         | c for M = 1          |
 * | broadcast  | L    | L*c                      |               | c                    |
 * | gather     | L    | (N-1)*M*c                | below N*M*c/2 | N*M*c/2 at the root  |
 * | scatter    | L    | (N-1)*M*c                | below N*M*c/2 | N*M*c/2 at the root  |
 *
 * A node does one thing after the other: staging is least, and chunks in flight hide the waiting.
 */
#include "daemon/plan/algorithms.h"

/* ---- sums */

/* A node's sum on its way up the tree: what it holds so far, and where the next part is put. */
struct climb {
    struct span held;
    bool inputs;         /* held is still the ranks' inputs, and nothing is staged */
    struct span sum;     /* where held goes once it is a sum */
    struct span part[2]; /* of accumulators, of elements */
};

/* Which node of [first, first + n) holds its sum: the one sums are for, or the lowest. */
static uint32_t holder(uint32_t first, uint32_t n, uint32_t root)
{
    return root >= first && root < first + n ? root : first;
}

/* Whether a node that holds the sum of n others' sends it on as elements. */
static bool sends_elements(const struct plan_args *a, uint32_t node, uint32_t n)
{
    return n == 1 && ranks_of(a, node) == 1;
}

/* Staging comes with its first use. */
static struct span climb_stage(struct plan *p, struct span *s, uint64_t count, bool elements)
{
    if (!s->count)
        *s = elements ? stage_elements(p, count) : stage_partial(p, count);
    return *s;
}

static void climb_send(struct plan *p, const struct plan_args *a, struct climb *c, uint32_t to)
{
    if (c->inputs && ranks_here(a) > 1) {
        add_local(p, STEP_REDUCE, 0, STEP_NONE);
        plan_source(p, c->held);
        plan_destination(p, climb_stage(p, &c->sum, a->count, false));
        c->held = c->sum;
    }
    add_send(p, 0, STEP_NONE, to, 0);
    plan_source(p, c->held);
}

/* Adds a part from above or below in node order; into `out` where it is the last. */
static void climb_add(struct plan *p, const struct plan_args *a, struct climb *c, uint32_t from,
                      bool elements, const struct span *out)
{
    const struct span part = climb_stage(p, &c->part[elements], a->count, elements);
    const struct span to = out ? *out : climb_stage(p, &c->sum, a->count, false);

    add_recv(p, 0, STEP_NONE, from, 0);
    plan_destination(p, part);
    add_local(p, STEP_REDUCE, 0, STEP_NONE);
    plan_source(p, from < a->node ? part : c->held);
    plan_source(p, from < a->node ? c->held : part);
    plan_destination(p, to);
    c->held = to;
    c->inputs = false;
}

static void climb(struct plan *p, const struct plan_args *a, uint32_t root, struct span out)
{
    const uint32_t n = a->nodes->nnodes;
    struct climb c = { .held = span_in(a, ranks_here(a) == 1 ? leader(a) : SPAN_EACH, 0),
                       .inputs = true };

    for (uint32_t k = 1; k < n; k *= 2) {
        const uint32_t first = a->node / (2 * k) * (2 * k), middle = first + k;

        if (middle >= n)
            continue;

        const uint32_t upper = MIN(k, n - middle), both = k + upper;
        const uint32_t low = holder(first, k, root), high = holder(middle, upper, root);
        const uint32_t to = holder(first, both, root), from = to == low ? high : low;

        if (a->node == from) {
            climb_send(p, a, &c, to);
            return;
        }
        climb_add(p, a, &c, from, sends_elements(a, from, from == low ? k : upper),
                  both == n ? &out : NULL);
    }
}

int tree_reduce(struct plan *p, const struct plan_args *a)
{
    climb(p, a, root_node(a), span_out(a, a->root, 0));
    return p->error;
}

/* ---- moves: nodes as seen from the root */

static uint32_t node_of(const struct plan_args *a, uint32_t root, uint32_t seat)
{
    return (root + seat) % a->nodes->nnodes;
}

static uint32_t seat_of(const struct plan_args *a, uint32_t root)
{
    return (a->node + a->nodes->nnodes - root) % a->nodes->nnodes;
}

/* The seats that a seat speaks for: itself and those behind it. 0 speaks for all. */
static uint32_t seat_reach(uint32_t seat, uint32_t nnodes)
{
    uint32_t k = 1;

    while (k < nnodes && !(seat & k))
        k *= 2;
    return MIN(k, nnodes - seat);
}

/* The first child's distance: the largest power of two within the reach. */
static uint32_t farthest(uint32_t reach)
{
    uint32_t k = 1;

    while (2 * k < reach)
        k *= 2;
    return reach > 1 ? k : 0;
}

static uint32_t parent_of(uint32_t seat)
{
    return seat & (seat - 1);
}

/* From `src` at the root to the first rank of every other node, and to all ranks there. */
static void descend(struct plan *p, const struct plan_args *a, uint32_t root, struct span src,
                    uint32_t tag)
{
    const uint32_t seat = seat_of(a, root), reach = seat_reach(seat, a->nodes->nnodes);
    uint32_t got = STEP_NONE;

    if (seat) {
        src = span_out(a, leader(a), 0);
        got = add_recv(p, 0, STEP_NONE, node_of(a, root, parent_of(seat)), tag);
        plan_destination(p, src);
    }
    for (uint32_t k = farthest(reach); k; k /= 2) {
        add_send(p, 0, STEP_NONE, node_of(a, root, seat + k), tag);
        plan_source(p, src);
    }
    if (seat)
        pass_on(p, a, 1, got, src);
}

int tree_broadcast(struct plan *p, const struct plan_args *a)
{
    const uint32_t root = root_node(a);

    descend(p, a, root, span_in(a, a->root, 0), 0);
    if (a->node == root)
        add_copy(p, 1, STEP_NONE, span_in(a, a->root, 0), span_out(a, SPAN_EACH, 0));
    return p->error;
}

int tree_all_reduce(struct plan *p, const struct plan_args *a)
{
    climb(p, a, 0, span_out(a, SPAN_EACH, 0));
    descend(p, a, 0, span_out(a, leader(a), 0), 1);
    return p->error;
}

/* How many ranks the seats [seat, seat + n) have. */
static uint32_t seats_ranks(const struct plan_args *a, uint32_t root, uint32_t seat, uint32_t n)
{
    uint32_t ranks = 0;

    for (uint32_t i = 0; i < n; i++)
        ranks += ranks_of(a, node_of(a, root, seat + i));
    return ranks;
}

/* The root's blocks of the ranks of those seats, as spans of the last step, seat by seat. */
static void seats_spans(struct plan *p, const struct plan_args *a, enum buffer buffer,
                        uint32_t seat, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t node = node_of(a, a->node, seat + i);

        for (uint32_t m = 0; m < ranks_of(a, node); m++) {
            const uint32_t block = rank_of(a, node, m);

            if (buffer == BUFFER_IN)
                plan_source(p, span_in(a, a->root, block));
            else
                plan_destination(p, span_out(a, a->root, block));
        }
    }
}

/* Where the blocks of a child's seats stand among those of all seats behind this one. */
static struct span child_span(const struct plan_args *a, uint32_t root, struct span behind,
                              uint32_t seat, uint32_t k)
{
    const uint32_t reach = seat_reach(seat + k, a->nodes->nnodes);

    return span_part(behind, seats_ranks(a, root, seat + 1, k - 1) * a->count,
                     seats_ranks(a, root, seat + k, reach) * a->count);
}

int tree_gather(struct plan *p, const struct plan_args *a)
{
    const uint32_t root = root_node(a), seat = seat_of(a, root);
    const uint32_t reach = seat_reach(seat, a->nodes->nnodes);
    struct span behind = { 0 };

    if (seat)
        behind = stage_elements(p, seats_ranks(a, root, seat + 1, reach - 1) * a->count);
    for (uint32_t k = 1; k < reach; k *= 2) {
        add_recv(p, 0, STEP_NONE, node_of(a, root, seat + k), 0);
        if (seat)
            plan_destination(p, child_span(a, root, behind, seat, k));
        else
            seats_spans(p, a, BUFFER_OUT, k, seat_reach(k, a->nodes->nnodes));
    }
    if (seat) {
        add_send(p, 0, STEP_NONE, node_of(a, root, parent_of(seat)), 0);
        plan_source(p, span_in(a, SPAN_EACH, 0));
        if (behind.count)
            plan_source(p, behind);
        return p->error;
    }
    for (uint32_t i = 0; i < ranks_here(a); i++)
        add_copy(p, 1, STEP_NONE, span_in(a, rank_of(a, root, i), 0),
                 span_out(a, a->root, rank_of(a, root, i)));
    return p->error;
}

int tree_scatter(struct plan *p, const struct plan_args *a)
{
    const uint32_t root = root_node(a), seat = seat_of(a, root);
    const uint32_t reach = seat_reach(seat, a->nodes->nnodes);
    struct span behind = { 0 };

    if (seat) {
        behind = stage_elements(p, seats_ranks(a, root, seat + 1, reach - 1) * a->count);
        add_recv(p, 0, STEP_NONE, node_of(a, root, parent_of(seat)), 0);
        plan_destination(p, span_out(a, SPAN_EACH, 0));
        if (behind.count)
            plan_destination(p, behind);
    }
    for (uint32_t k = farthest(reach); k; k /= 2) {
        add_send(p, 0, STEP_NONE, node_of(a, root, seat + k), 0);
        if (seat)
            plan_source(p, child_span(a, root, behind, seat, k));
        else
            seats_spans(p, a, BUFFER_IN, k, seat_reach(k, a->nodes->nnodes));
    }
    for (uint32_t i = 0; i < ranks_here(a) && !seat; i++)
        add_copy(p, 1, STEP_NONE, span_in(a, a->root, rank_of(a, root, i)),
                 span_out(a, rank_of(a, root, i), 0));
    return p->error;
}

/* ---- costs, of as many ranks M on each of N nodes */

static uint32_t levels(const struct load *l)
{
    uint32_t n = 0;

    while (l->nnodes > 1u << n)
        n++;
    return n;
}

/* Whether the last part that is added is one rank's input still. */
static bool last_is_input(const struct load *l)
{
    return l->ranks == 1 && l->nnodes - farthest(l->nnodes) == 1;
}

struct cost tree_reduce_cost(const struct load *l)
{
    const double count = (double)l->count, wide = l->wide, up = levels(l);
    const double first = (double)first_width(l);
    const double spared = l->nnodes > 2 && last_is_input(l) ? wide - 1 : 0;
    const uint64_t sums = (l->nnodes > 2) + (l->ranks == 1 ? l->nnodes > 3 : 1);
    double touched = l->ranks == 1 ? 0 : l->ranks + wide;

    /* the first addition reads the ranks, the others a sum; the last writes the output */
    touched += l->ranks + first + (up - 1) * 3 * wide + 1;
    return (struct cost){ .messages = up,
                          .posted = up,
                          .sent = (first + (up - 1) * wide - spared) * count,
                          .touched = (touched - spared) * count,
                          .peak = l->count * (sums * l->wide + (l->ranks == 1)) };
}

struct cost tree_broadcast_cost(const struct load *l)
{
    return (struct cost){ .messages = levels(l),
                          .posted = levels(l),
                          .sent = levels(l) * (double)l->count,
                          .touched = (l->ranks + 1.0) * (double)l->count,
                          .peak = l->count };
}

struct cost tree_all_reduce_cost(const struct load *l)
{
    const struct cost up = tree_reduce_cost(l), down = tree_broadcast_cost(l);
    const double passed = l->ranks == 1 ? 0 : 2 * l->ranks - 1; /* written at the top, and below */

    return (struct cost){ .messages = up.messages + down.messages,
                          .posted = up.posted + down.posted,
                          .sent = up.sent + down.sent,
                          .touched = up.touched + passed * (double)l->count,
                          .peak = up.peak + down.peak };
}

struct cost tree_gather_cost(const struct load *l)
{
    const uint32_t n = l->nnodes, last = farthest(n);
    const uint64_t most = MAX(last / 2, n - last); /* nodes that one child speaks for */

    return (struct cost){ .messages = levels(l),
                          .posted = levels(l),
                          .sent = (n - 1.0) * l->ranks * (double)l->count,
                          .touched = 2.0 * l->ranks * (double)l->count,
                          .peak = most * l->ranks * l->count };
}

struct cost tree_scatter_cost(const struct load *l)
{
    return tree_gather_cost(l);
}
