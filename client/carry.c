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
 * behind the start. Of one rank alone nothing is computed: it keeps its bits. */
static void reduce(const struct meeting *g, uint64_t skip)
{
    const struct descriptor *d = &g->p->q.post.d;
    const bool mean = d->op == OPERATOR_MEAN;
    const void *sources[SLATE_RANKS_MAX];
    void *to = output(g);

    if (g->nranks == 1) {
        copy_bytes(to, seat_of(g, 0)->bytes + skip, g->p->out.bytes);
        return;
    }
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

/* What an exchange's counts come to for this rank. */
struct rows {
    uint64_t skip[SLATE_RANKS_MAX];   /* of a rank's rows, those in front of what is for this one */
    uint64_t mine[SLATE_RANKS_MAX];   /* those that are */
    uint64_t coming[SLATE_RANKS_MAX]; /* to each rank, in all */
};

/* Adds what a rank sends, copied before it is believed; false: they are more than `most`. */
static bool rows_add(struct rows *rows, const struct meeting *g, uint32_t from, uint64_t most)
{
    const struct request_post *own = &g->p->q.post;
    uint64_t counts[SLATE_RANKS_MAX], sent = 0;

    memcpy(counts, from == g->rank ? own->counts : seat_of(g, from)->counts,
           g->nranks * sizeof(counts[0]));
    for (uint32_t to = 0; to < g->nranks; to++) {
        if (counts[to] > most - sent)
            return false;
        if (to == g->rank) {
            rows->skip[from] = sent;
            rows->mine[from] = counts[to];
        }
        sent += counts[to];
        rows->coming[to] += counts[to];
    }
    return true;
}

/* Whether all lie in their seats, and every rank has room for those that come to it. */
static bool rows_fit(struct rows *rows, const struct meeting *g, uint64_t most)
{
    for (uint32_t r = 0; r < g->nranks; r++)
        if (!rows_add(rows, g, r, most))
            return false;
    for (uint32_t r = 0; r < g->nranks; r++)
        if (rows->coming[r] > (r == g->rank ? g->p->q.post.out_rows : seat_of(g, r)->room))
            return false;
    return true;
}

static bool exchange(const struct meeting *g, uint64_t *ret_counts)
{
    const struct descriptor *d = &g->p->q.post.d;
    const uint32_t width = dtype_get(d->dtype)->width;
    struct rows rows = { 0 };
    uint64_t row, at = 0;

    if (!shape_row_count(&d->shape, &row) || row == 0 || row > SLATE_BYTES / width)
        return false;
    row *= width;
    if (!rows_fit(&rows, g, SLATE_BYTES / row))
        return false;
    for (uint32_t r = 0; r < g->nranks; r++) {
        copy_bytes(output(g) + at, seat_of(g, r)->bytes + rows.skip[r] * row, rows.mine[r] * row);
        at += rows.mine[r] * row;
        ret_counts[r] = rows.mine[r];
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
    case COLLECTIVE_ALL_TO_ALL:
        gather(g, g->rank * (p->out.bytes / g->nranks));
        break;
    default: /* it has not been taught here */
        return false;
    }
    return true;
}
