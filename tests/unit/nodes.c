#include "tests/unit/nodes.h"

#include "tests/unit/unit.h"

static uint64_t seed = 20240302;

uint32_t any_below(uint32_t n)
{
    return (uint32_t)(unit_random(&seed) % n);
}

/* ---------------------------------------------------------------- placements */

/* Up to three ranks on every node, anywhere. */
static struct placement *placement_random(uint32_t nnodes)
{
    uint32_t hosts[WORLD_RANKS], n = 0;
    struct placement *p;

    for (uint32_t i = 0; i < nnodes; i++)
        for (uint32_t k = any_below(3) + 1; k; k--)
            hosts[n++] = i;
    for (uint32_t i = n; i > 1; i--) {
        const uint32_t k = any_below(i), host = hosts[k];

        hosts[k] = hosts[i - 1];
        hosts[i - 1] = host;
    }
    assert_int_equal(placement_new(n, hosts, &p), 0);
    return p;
}

struct placement *placement_of(uint32_t nnodes, uint32_t ranks)
{
    struct placement *p;

    if (ranks == 0)
        return placement_random(nnodes);
    assert_int_equal(placement_new_even(nnodes, ranks, &p), 0);
    return p;
}

/* ---------------------------------------------------------------- one chunk of all nodes */

void chunk_init(struct chunk *c, const struct placement *nodes)
{
    c->nnodes = nodes->nnodes;
    for (uint32_t i = 0; i < c->nnodes; i++)
        plan_init(&c->plans[i], placement_count(nodes, i));
}

void chunk_fini(struct chunk *c)
{
    for (uint32_t i = 0; i < c->nnodes; i++)
        plan_fini(&c->plans[i]);
}

void chunk_emit(struct chunk *c, const struct algorithm *a, struct plan_args args)
{
    for (args.node = 0; args.node < c->nnodes; args.node++) {
        plan_clear(&c->plans[args.node]);
        assert_int_equal(a->emit(&c->plans[args.node], &args), 0);
    }
}

uint64_t chunk_peak(const struct chunk *c, uint32_t wide)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < c->nnodes; i++)
        most = MAX(most, plan_peak(&c->plans[i], wide));
    return most;
}

void chunk_move(struct chunk *c, uint64_t first)
{
    for (uint32_t i = 0; i < c->nnodes; i++)
        for (uint32_t k = 0; k < c->plans[i].nspans; k++) {
            struct span *s = &c->plans[i].spans[k];

            if (s->buffer == BUFFER_IN || s->buffer == BUFFER_OUT)
                s->offset += first;
        }
}

/* ---------------------------------------------------------------- worlds of blocks */

struct world world_of(enum collective_id kind, enum dtype_id dtype, enum operator_id op,
                      const struct placement *nodes, uint64_t n)
{
    const uint32_t nranks = nodes->nranks;
    struct world w = {
        .d = { .kind = kind,
               .op = op,
               .dtype = dtype,
               .shape = { 1, { kind == COLLECTIVE_REDUCE_SCATTER ? n * nranks : n } },
               .root = any_below(nranks),
               .nranks = nranks },
        .nranks = nranks,
        .n = n,
        .nodes = nodes,
    };
    struct shape in, out;

    assert_int_equal(descriptor_check(&w.d, NULL), 0);
    assert_int_equal(descriptor_shapes(&w.d, &in, &out, NULL), 0);
    for (uint32_t r = 0; r < nranks; r++) {
        w.in_count[r] = in.axes[0];
        w.out_count[r] = out.axes[0];
    }
    return w;
}

struct plan_args args_of(const struct world *w, uint64_t count)
{
    return (struct plan_args){ .kind = w->d.kind,
                               .nranks = w->nranks,
                               .root = w->d.root,
                               .stride = w->n,
                               .count = count,
                               .nodes = w->nodes };
}

void written_of(const struct world *w, uint64_t count, uint64_t *ret)
{
    const uint32_t flags = collective_get(w->d.kind)->flags;
    const bool all = w->out_count[0] == w->n * w->nranks;

    for (uint32_t r = 0; r < w->nranks; r++) {
        ret[r] = all ? count * w->nranks : count;
        if (flags & COLLECTIVE_OUT_AT_ROOT && r != w->d.root)
            ret[r] = 0;
        if (w->in_place && w->d.kind == COLLECTIVE_ALL_GATHER)
            ret[r] -= count;
        if (w->in_place && w->d.kind == COLLECTIVE_BROADCAST && r == w->d.root)
            ret[r] = 0;
    }
}
