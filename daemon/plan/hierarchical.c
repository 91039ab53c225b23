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

#define NODE_LATENCY_US   5.0  /* a task handed to a worker and back */
#define NODE_BYTES_PER_US 10e3 /* memory traffic, read and written */

static struct span span_in(const struct plan_args *a, uint32_t rank, uint32_t block)
{
    return (struct span){ BUFFER_IN, rank, block * a->stride, a->count };
}

static struct span span_out(const struct plan_args *a, uint32_t rank, uint32_t block)
{
    return (struct span){ BUFFER_OUT, rank, block * a->stride, a->count };
}

/* A fused reduction takes the ranks in their order: it is the canonical tree itself. */
bool hierarchical_fits(const struct descriptor *d)
{
    return d->nranks > 0;
}

double hierarchical_cost(const struct descriptor *d)
{
    const struct collective *c = collective_get(d->kind);
    const bool pair = c->flags & COLLECTIVE_PAIR;
    const double inputs = pair || c->flags & COLLECTIVE_IN_AT_ROOT ? 1 : d->nranks;
    const double outputs = pair || c->flags & COLLECTIVE_OUT_AT_ROOT ? 1 : d->nranks;
    uint64_t in_count, out_count;
    struct shape in, out;

    descriptor_shapes(d, &in, &out, NULL);
    shape_count(&in, &in_count);
    shape_count(&out, &out_count);
    return NODE_LATENCY_US + (inputs * (double)in_count + outputs * (double)out_count) *
                                 dtype_get(d->dtype)->width / NODE_BYTES_PER_US;
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
