#include "client/carry.h"

#include <string.h>

#include "client/comm.h"
#include "client/copy.h"
#include "shared/kernels.h"

static const struct slate_seat *seat_of(const struct meeting *g, uint32_t rank)
{
    return slate_seat(g->slate, g->nranks, g->sequence, rank);
}

static uint8_t *output(const struct meeting *g)
{
    return (uint8_t *)g->p->out.address;
}

/* In the order that every other way of reducing keeps, too: of every rank, what is `skip` bytes
 * behind the start. */
static void reduce(const struct meeting *g, uint64_t skip)
{
    const struct descriptor *d = &g->p->q.post.d;
    const bool mean = d->op == OPERATOR_MEAN;
    const void *sources[SLATE_RANKS_MAX];
    void *to = output(g);

    for (uint32_t r = 0; r < g->nranks; r++)
        sources[r] = seat_of(g, r)->bytes + skip;
    kernel_row_best()->reduce[d->dtype][mean ? OPERATOR_SUM : d->op](
        &(struct kernel_args){ .src = sources,
                               .dst = &to,
                               .nsrc = g->nranks,
                               .ndst = 1,
                               .count = g->p->out.bytes / dtype_get(d->dtype)->width,
                               .divisor = mean ? g->nranks : 0 });
}

/* Of every rank, its block that is `skip` bytes behind the start. */
static void gather(const struct meeting *g, uint64_t skip)
{
    const uint64_t block = g->p->out.bytes / g->nranks;

    for (uint32_t r = 0; r < g->nranks; r++)
        copy_bytes(output(g) + r * block, seat_of(g, r)->bytes + skip, block);
}

/* The counts of all, copied before they are believed. */
struct counts {
    uint64_t rows[SLATE_RANKS_MAX][SLATE_RANKS_MAX]; /* [from][to] */
    uint64_t room[SLATE_RANKS_MAX];
};

static void counts_copy(const struct meeting *g, struct counts *ret)
{
    for (uint32_t r = 0; r < g->nranks; r++) {
        memcpy(ret->rows[r], seat_of(g, r)->counts, g->nranks * sizeof(ret->rows[r][0]));
        ret->room[r] = seat_of(g, r)->room;
    }
}

/* Whether `nrows` in all lie in a seat, and every rank has room for those that come to it. */
static bool counts_fit(const struct counts *c, uint32_t nranks, uint64_t nrows)
{
    for (uint32_t i = 0; i < nranks; i++) {
        uint64_t sent = 0, received = 0;

        for (uint32_t k = 0; k < nranks; k++) {
            if (c->rows[i][k] > nrows || c->rows[k][i] > nrows)
                return false;
            sent += c->rows[i][k];
            received += c->rows[k][i];
        }
        if (sent > nrows || received > c->room[i])
            return false;
    }
    return true;
}

static bool exchange(const struct meeting *g, uint64_t *ret_counts)
{
    const struct descriptor *d = &g->p->q.post.d;
    const uint32_t width = dtype_get(d->dtype)->width;
    uint64_t row, at = 0;
    struct counts c;

    if (!shape_row_count(&d->shape, &row) || row == 0 || row > SLATE_BYTES / width)
        return false;
    row *= width;
    counts_copy(g, &c);
    if (!counts_fit(&c, g->nranks, SLATE_BYTES / row))
        return false;
    for (uint32_t r = 0; r < g->nranks; r++) {
        const uint64_t bytes = c.rows[r][g->rank] * row;
        uint64_t skip = 0;

        for (uint32_t k = 0; k < g->rank; k++)
            skip += c.rows[r][k] * row;
        copy_bytes(output(g) + at, seat_of(g, r)->bytes + skip, bytes);
        at += bytes;
        ret_counts[r] = c.rows[r][g->rank];
    }
    return true;
}

bool carry_out(const struct meeting *g, uint64_t *ret_counts)
{
    const struct posting *p = g->p;
    const struct descriptor *d = &p->q.post.d;

    if (d->kind == COLLECTIVE_ALL_TO_ALL_V)
        return exchange(g, ret_counts);
    if (!p->out.t || !p->out.bytes)
        return true;
    switch (d->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        reduce(g, 0);
        break;
    case COLLECTIVE_REDUCE_SCATTER:
        reduce(g, g->rank * p->out.bytes);
        break;
    case COLLECTIVE_BROADCAST:
        copy_bytes(output(g), seat_of(g, d->root)->bytes, p->out.bytes);
        break;
    case COLLECTIVE_SCATTER:
        copy_bytes(output(g), seat_of(g, d->root)->bytes + g->rank * p->out.bytes, p->out.bytes);
        break;
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        gather(g, 0);
        break;
    default: /* all_to_all */
        gather(g, g->rank * (p->out.bytes / g->nranks));
    }
    return true;
}
