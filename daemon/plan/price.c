#include "daemon/plan/price.h"

/* Steps handed to workers and back; and what one more piece takes for that, for the messages that
 * announce it, and for what it drives out of caches. */
#define STEPS_US 5.0
#define PIECE_US 250.0

const struct machine machine_default = {
    .latency_us = 120, .message_us = 100, .link_bytes_per_us = 3e3, .memory_bytes_per_us = 8e3
};

static double link_us(const struct cost *c, uint32_t width, const struct machine *m)
{
    return c->posted * m->message_us + c->sent * width / m->link_bytes_per_us;
}

static double memory_us(const struct cost *c, uint32_t width, const struct machine *m)
{
    return c->touched * width / m->memory_bytes_per_us;
}

double price_cost(const struct cost *c, uint32_t width, const struct machine *m)
{
    return c->messages * m->latency_us + link_us(c, width, m) + memory_us(c, width, m);
}

/* ---- peaks */

static bool exchanges(const struct job *j)
{
    return collective_get(j->load.kind)->shape == SHAPE_EXCHANGE;
}

/* Whether the closed forms are those of this placement. */
static bool is_even(const struct job *j)
{
    bool even = true;

    for (uint32_t i = 0; j->nodes && i < j->nodes->nnodes; i++)
        even &= placement_count(j->nodes, i) == j->load.ranks;
    return even;
}

/* The ranks of the node that has second most; as many as of the first where two have so many. */
static uint32_t second_most(const struct job *j)
{
    uint32_t first = 0, second = 0;

    for (uint32_t i = 0; i < j->nodes->nnodes; i++) {
        const uint32_t ranks = placement_count(j->nodes, i);

        second = MAX(second, MIN(ranks, first));
        first = MAX(first, ranks);
    }
    return second;
}

/* Of the plans themselves. */
static int peak_emitted(const struct algorithm *a, const struct job *j, uint64_t count,
                        uint64_t *ret)
{
    struct plan_args args = { .kind = j->load.kind,
                              .nranks = j->nodes->nranks,
                              .root = j->root,
                              .stride = j->load.count,
                              .count = count,
                              .nodes = j->nodes };
    struct plan plan;
    uint64_t most = 0;
    int r = 0;

    plan_init(&plan, 0);
    for (; args.node < j->nodes->nnodes && r == 0; args.node++) {
        plan_clear(&plan);
        plan.nranks = placement_count(j->nodes, args.node);
        r = a->emit(&plan, &args);
        most = MAX(most, plan_peak(&plan, j->load.wide));
    }
    plan_fini(&plan);
    if (r == 0)
        *ret = most;
    return r;
}

int price_peak(const struct algorithm *a, const struct job *j, uint64_t count, uint64_t *ret)
{
    struct load piece = j->load;

    piece.count = count;
    if (is_even(j)) {
        *ret = a->cost(&piece).peak;
        return 0;
    }
    if (!exchanges(j))
        return peak_emitted(a, j, count, ret);

    /* every message of an exchange is as long as its two nodes have ranks, together */
    *ret = a->cost(&piece).peak / (2ull * piece.ranks) * (piece.ranks + second_most(j));
    return 0;
}

/* Peaks are all but proportional: this is soon there, and looks at one element last. */
static uint64_t shorter(uint64_t length, double share)
{
    const uint64_t next = (uint64_t)((double)length * share);

    return length == 1 ? 0 : MAX(MIN(next, length - 1), 1);
}

/* The longest piece within the budget, or nearly, and its peak; 0: there is none. */
static int longest_piece(const struct algorithm *a, const struct job *j, uint64_t *ret_length,
                         uint64_t *ret_peak)
{
    uint64_t length = j->length, peak = 0;
    int r = price_peak(a, j, length, &peak);

    while (r == 0 && length && peak > j->budget) {
        length = j->whole ? 0 : shorter(length, (double)j->budget / (double)peak);
        r = length ? price_peak(a, j, length, &peak) : 0;
    }
    *ret_length = length;
    *ret_peak = peak;
    return r;
}

static uint32_t depth_within(const struct job *j, uint64_t peak)
{
    return (uint32_t)(peak ? MIN(j->budget / peak, j->depth) : j->depth);
}

/* ---- prices */

static void price_pieces(const struct algorithm *a, const struct job *j, const struct machine *m,
                         uint64_t length, uint64_t peak, struct price *ret)
{
    struct load piece = j->load;

    piece.count = length;
    ret->length = length;
    ret->cost = a->cost(&piece);
    ret->cost.peak = peak;
    ret->pieces = div_up_u64(j->load.count, j->length) * div_up_u64(j->length, length);
    ret->depth = depth_within(j, peak);

    const double one = STEPS_US + price_cost(&ret->cost, j->width, m);
    const double link = link_us(&ret->cost, j->width, m);
    const double memory = PIECE_US + memory_us(&ret->cost, j->width, m);

    /* the next one begins when link and memory are free for it, or a place in flight is */
    ret->us = one + (double)(ret->pieces - 1) * MAX(MAX(link, memory), one / ret->depth);
}

int price_job(const struct algorithm *a, const struct job *j, const struct machine *m,
              struct price *ret)
{
    uint64_t longest, peak;
    int r = longest_piece(a, j, &longest, &peak);

    if (r < 0)
        return r;
    if (!longest)
        return PRICE_NONE;
    price_pieces(a, j, m, longest, peak, ret);
    for (uint64_t length = longest / 2; length && !j->whole; length /= 2) {
        struct price p;

        r = price_peak(a, j, length, &peak);
        if (r < 0)
            return r;
        price_pieces(a, j, m, length, peak, &p);
        if (p.us < ret->us)
            *ret = p;
    }
    return 0;
}

double price_bound_latency(const struct job *j, const struct machine *m)
{
    return j->load.nnodes > 1 ? m->latency_us + m->message_us : 0;
}

double price_bound_link(const struct job *j, const struct machine *m)
{
    const double others = j->load.nnodes - 1.0, ranks = j->load.ranks;
    double blocks = others ? 1 : 0; /* broadcast, reduce */

    switch (j->load.kind) {
    case COLLECTIVE_ALL_REDUCE:
        blocks = 2 * others / j->load.nnodes;
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        blocks = others * ranks;
        break;
    case COLLECTIVE_ALL_TO_ALL:
    case COLLECTIVE_ALL_TO_ALL_V:
        blocks = others * ranks * ranks;
        break;
    default:
        break;
    }
    return blocks * (double)j->load.count * j->width / m->link_bytes_per_us;
}

uint32_t price_wide(enum operator_id op, enum dtype_id dtype)
{
    const struct dtype *t = dtype_get(dtype);
    const bool sums = op == OPERATOR_SUM || op == OPERATOR_PRODUCT || op == OPERATOR_MEAN;

    return sums ? dtype_get(t->accumulator)->width / t->width : 1u;
}
