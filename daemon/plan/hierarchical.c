/*
 * hierarchical: on a node, one fused pass that reads every input once and writes every output once.
 *
 * The daemon sees all ranks' memory, so nothing is passed on from rank to rank and nothing is
 * staged. For a chunk of c elements and R ranks:
 *
 * | collective     | steps    | what each does                                 | reads | writes |
 * |----------------|----------|------------------------------------------------|-------|--------|
 * | all_reduce     | 1 REDUCE | everyone's input into everyone's output        | R*c   | R*c    |
 * | reduce         | 1 REDUCE | everyone's input into the root's output        | R*c   | c      |
 * | reduce_scatter | R REDUCE | everyone's block d into rank d's output        | R*R*c | R*c    |
 * | broadcast      | 1 COPY   | the root's input into everyone's output        | c     | R*c    |
 * | all_gather     | R COPY   | rank r's input into block r of everyone's out  | R*c   | R*R*c  |
 * | gather         | R COPY   | rank r's input into block r of the root's out  | R*c   | R*c    |
 * | scatter        | R COPY   | block r of the root's input into rank r's out  | R*c   | R*c    |
 * | send and recv  | 1 COPY   | rank 0's input into rank 1's output            | c     | c      |
 *
 * all_to_all(_v) is R COPY at most for one source and round, and every row is read and written
 * once. All steps of a chunk are independent: each has a channel of its own. In place, the copy of
 * a rank onto itself is nothing, and a reduction writes only what it alone reads.
 */
#include "daemon/plan/algorithms.h"
#include "daemon/plan/exchange.h"

/* A fused reduction takes the ranks in their order: it is the canonical tree itself. */
bool hierarchical_fits(const struct descriptor *d, uint32_t nnodes)
{
    return d->nranks > 0 && nnodes == 1;
}

struct cost hierarchical_cost(const struct load *l)
{
    const double ranks = l->ranks;
    double touched = 2 * ranks * ranks; /* the exchanges */

    switch (l->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER:
        touched = 2 * ranks;
        break;
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST:
        touched = ranks + 1;
        break;
    case COLLECTIVE_REDUCE_SCATTER:
    case COLLECTIVE_ALL_GATHER:
        touched = ranks * ranks + ranks;
        break;
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV:
        touched = 2;
        break;
    default:
        break;
    }
    return (struct cost){ .touched = touched * (double)l->count };
}

int hierarchical_all_reduce(struct plan *p, const struct plan_args *a)
{
    return plan_add(p, STEP_REDUCE, span_in(a, SPAN_EACH, 0), span_out(a, SPAN_EACH, 0));
}

int hierarchical_reduce(struct plan *p, const struct plan_args *a)
{
    return plan_add(p, STEP_REDUCE, span_in(a, SPAN_EACH, 0), span_out(a, a->root, 0));
}

int hierarchical_reduce_scatter(struct plan *p, const struct plan_args *a)
{
    int r = 0;

    for (uint32_t d = 0; d < a->nranks && r == 0; d++)
        r = plan_add(p, STEP_REDUCE, span_in(a, SPAN_EACH, d), span_out(a, d, 0));
    return r;
}

int hierarchical_broadcast(struct plan *p, const struct plan_args *a)
{
    return plan_add(p, STEP_COPY, span_in(a, a->root, 0), span_out(a, SPAN_EACH, 0));
}

int hierarchical_all_gather(struct plan *p, const struct plan_args *a)
{
    int r = 0;

    for (uint32_t s = 0; s < a->nranks && r == 0; s++)
        r = plan_add(p, STEP_COPY, span_in(a, s, 0), span_out(a, SPAN_EACH, s));
    return r;
}

int hierarchical_gather(struct plan *p, const struct plan_args *a)
{
    int r = 0;

    for (uint32_t s = 0; s < a->nranks && r == 0; s++)
        r = plan_add(p, STEP_COPY, span_in(a, s, 0), span_out(a, a->root, s));
    return r;
}

int hierarchical_scatter(struct plan *p, const struct plan_args *a)
{
    int r = 0;

    for (uint32_t d = 0; d < a->nranks && r == 0; d++)
        r = plan_add(p, STEP_COPY, span_in(a, a->root, d), span_out(a, d, 0));
    return r;
}

int hierarchical_exchange(struct plan *p, const struct plan_args *a)
{
    return exchange_emit(p, a->exchange, a->source, a->round, a->rows, a->row_elements);
}

int hierarchical_pair(struct plan *p, const struct plan_args *a)
{
    return plan_add(p, STEP_COPY, span_in(a, 0, 0), span_out(a, 1, 0));
}
