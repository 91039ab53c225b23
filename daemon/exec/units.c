#include "daemon/exec/units.h"

#include <errno.h>

/* Of an exchange's round: between nodes the m-th ranks of all nodes have their turn together. */
static uint32_t count_sources(const struct run_spec *s)
{
    uint32_t most = 0;

    if (!s->network)
        return s->nparts;
    for (uint32_t i = 0; i < s->network->nodes->nnodes; i++)
        most = MAX(most, placement_count(s->network->nodes, i));
    return most;
}

static bool is_cut(const struct run_spec *s)
{
    return !s->exchange && s->piece_length < s->chunking.length;
}

int units_count(struct run *run)
{
    const struct run_spec *s = &run->spec;
    const struct chunking *c = &s->chunking;
    uint64_t each = s->exchange ? count_sources(s)
                    : is_cut(s) ? div_up_u64(c->length, s->piece_length)
                                : 1;

    if (each > UINT32_MAX || !mul_u64(c->chunks, each, &run->units))
        return -EOVERFLOW;
    run->units_per_chunk = (uint32_t)each;
    if (is_cut(s) && c->chunks)
        run->units -= each - div_up_u64(chunk_count(c, c->chunks - 1), s->piece_length);
    return 0;
}

static uint64_t unit_first(const struct run *run, uint64_t unit)
{
    return chunk_first(&run->spec.chunking, unit / run->units_per_chunk) +
           unit % run->units_per_chunk * run->spec.piece_length;
}

uint64_t unit_end(const struct run *run, uint64_t unit)
{
    const struct chunking *c = &run->spec.chunking;
    const uint64_t chunk = unit / run->units_per_chunk;
    const uint64_t end = chunk_first(c, chunk) + chunk_count(c, chunk);

    return is_cut(&run->spec) ? MIN(end, unit_first(run, unit) + run->spec.piece_length) : end;
}

static int emit_exchange(const struct run *run, struct plan *plan, uint64_t round, uint32_t source)
{
    const struct run_spec *s = &run->spec;
    struct plan_args args = { .kind = s->d->kind,
                              .nranks = s->nparts,
                              .exchange = s->exchange,
                              .source = source,
                              .round = round,
                              .rows = s->chunking.length };

    if (s->network) {
        args.nranks = s->d->nranks;
        args.nodes = s->network->nodes;
        args.node = s->network->node;
    }
    if (!shape_row_count(&s->d->shape, &args.row_elements))
        return -EOVERFLOW;
    plan->nranks = s->nparts;
    plan_clear(plan);
    return s->algorithm->emit(plan, &args);
}

static const struct plan *plan_of(const struct run *run, uint64_t unit)
{
    if (unit + 1 == run->units)
        return run->spec.tail;
    if (run->units_per_chunk > 1 && unit % run->units_per_chunk == run->units_per_chunk - 1)
        return run->spec.last;
    return run->spec.full;
}

int unit_plan(struct run *run, uint64_t unit, struct slot **ret)
{
    struct slot *s = &run->slots[unit % run->depth];
    int r;

    *ret = s;
    if (s->planned && s->unit == unit)
        return 0;
    s->unit = unit;
    if (run->spec.exchange) {
        r = emit_exchange(run, &s->own, unit / run->units_per_chunk,
                          (uint32_t)(unit % run->units_per_chunk));
        if (r < 0)
            return r;
        s->plan = &s->own;
        s->first = 0; /* an exchange's spans count from the first row */
    } else {
        s->plan = plan_of(run, unit);
        s->first = unit_first(run, unit);
    }
    s->planned_bytes = run->spec.network && run->spec.budget_bytes != UINT64_MAX
                           ? plan_peak(s->plan, run->wide / run->width) * run->width
                           : 0;
    s->planned = true;
    return 0;
}
