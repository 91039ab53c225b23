#include "daemon/plan/price.h"

#define PIECE_US 5.0 /* its tasks handed to workers and back */

/* A network of 100 Gb/s, and memory that one daemon's workers keep busy. */
const struct machine machine_default = {
    .latency_us = 5, .message_us = 1, .link_bytes_per_us = 12.5e3, .memory_bytes_per_us = 10e3
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

/* False where one piece is above the budget. */
static bool price_pieces(const struct algorithm *a, const struct job *j, const struct machine *m,
                         uint64_t length, struct price *ret)
{
    struct load piece = j->load;

    piece.count = length;
    ret->length = length;
    ret->cost = a->cost(&piece);
    if (ret->cost.peak > j->budget)
        return false;
    ret->pieces = div_up_u64(j->load.count, j->length) * div_up_u64(j->length, length);
    ret->depth = PRICE_DEPTH_MAX;
    if (ret->cost.peak)
        ret->depth = (uint32_t)MIN(j->budget / ret->cost.peak, PRICE_DEPTH_MAX);

    const double one = PIECE_US + price_cost(&ret->cost, j->width, m);
    const double link = link_us(&ret->cost, j->width, m);
    const double memory = PIECE_US + memory_us(&ret->cost, j->width, m);

    /* the next one begins when link and memory are free for it, or a place in flight is */
    ret->us = one + (double)(ret->pieces - 1) * MAX(MAX(link, memory), one / ret->depth);
    return true;
}

bool price_job(const struct algorithm *a, const struct job *j, const struct machine *m,
               struct price *ret)
{
    bool found = false;

    for (uint64_t length = j->length; length; length /= 2) {
        struct price p;

        if (price_pieces(a, j, m, length, &p) && (!found || p.us < ret->us)) {
            *ret = p;
            found = true;
        }
    }
    return found;
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
