#include "tests/unit/world.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/plan/check.h"
#include "tests/unit/unit.h"

static uint64_t seed = 20240229;

static uint64_t cell_random(enum dtype_id dtype)
{
    uint64_t cell = unit_random(&seed);

    if (dtype == DTYPE_F32) {
        /* of many magnitudes, so that every other order of additions shows */
        float f = ((float)(cell % 2001) - 1000.0f) / 7.0f * (float)(1u << (cell >> 59));

        cell = 0;
        memcpy(&cell, &f, sizeof(f));
    }
    return cell;
}

static uint64_t cell_add(enum dtype_id dtype, uint64_t a, uint64_t b)
{
    float x, y;

    if (dtype != DTYPE_F32)
        return a + b;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    x += y;
    memcpy(&a, &x, sizeof(x));
    return a;
}

/* T(lo, hi) as it is defined */
static uint64_t cells_tree(enum dtype_id dtype, const uint64_t *x, uint32_t lo, uint32_t hi)
{
    uint32_t half = 1;

    if (hi - lo == 1)
        return x[lo];
    while (2 * half < hi - lo)
        half *= 2;
    return cell_add(dtype, cells_tree(dtype, x, lo, lo + half),
                    cells_tree(dtype, x, lo + half, hi));
}

/* ---------------------------------------------------------------- references: element i of out(r)
 */

static uint64_t sum_of_all(const struct world *w, uint64_t i)
{
    uint64_t x[WORLD_RANKS];

    for (uint32_t s = 0; s < w->nranks; s++)
        x[s] = w->given[s][i];
    return cells_tree(w->d.dtype, x, 0, w->nranks);
}

static uint64_t reference_reduce(const struct world *w, uint32_t r, uint64_t i)
{
    (void)r;
    return sum_of_all(w, i);
}

static uint64_t reference_reduce_scatter(const struct world *w, uint32_t r, uint64_t i)
{
    return sum_of_all(w, r * w->n + i);
}

static uint64_t reference_gather(const struct world *w, uint32_t r, uint64_t i)
{
    (void)r;
    return w->given[i / w->n][i % w->n];
}

static uint64_t reference_broadcast(const struct world *w, uint32_t r, uint64_t i)
{
    (void)r;
    return w->given[w->d.root][i];
}

static uint64_t reference_scatter(const struct world *w, uint32_t r, uint64_t i)
{
    return w->given[w->d.root][r * w->n + i];
}

static uint64_t reference_pair(const struct world *w, uint32_t r, uint64_t i)
{
    (void)r;
    return w->given[0][i];
}

static uint64_t reference_exchange(const struct world *w, uint32_t r, uint64_t i)
{
    uint64_t row;

    assert_true(shape_row_count(&w->d.shape, &row));
    for (uint32_t s = 0; s < w->nranks; s++) {
        uint64_t before = 0, mine = exchange_rows(w->exchange, s, r) * row;

        for (uint32_t d = 0; d < r; d++)
            before += exchange_rows(w->exchange, s, d) * row;
        if (i < mine)
            return w->given[s][before + i];
        i -= mine;
    }
    fail_msg("more rows than were sent");
    return 0;
}

typedef uint64_t (*reference_fn)(const struct world *w, uint32_t r, uint64_t i);

static const reference_fn references[COLLECTIVE_END] = {
    [COLLECTIVE_ALL_REDUCE] = reference_reduce,
    [COLLECTIVE_ALL_GATHER] = reference_gather,
    [COLLECTIVE_REDUCE_SCATTER] = reference_reduce_scatter,
    [COLLECTIVE_BROADCAST] = reference_broadcast,
    [COLLECTIVE_ALL_TO_ALL_V] = reference_exchange,
    [COLLECTIVE_REDUCE] = reference_reduce,
    [COLLECTIVE_GATHER] = reference_gather,
    [COLLECTIVE_SCATTER] = reference_scatter,
    [COLLECTIVE_ALL_TO_ALL] = reference_exchange,
    [COLLECTIVE_SEND] = reference_pair,
    [COLLECTIVE_RECV] = reference_pair,
};

/* ---------------------------------------------------------------- worlds */

static bool world_has(const struct world *w, enum buffer buffer, uint32_t rank)
{
    const uint32_t flags = collective_get(w->d.kind)->flags;

    if (flags & COLLECTIVE_PAIR)
        return rank == (buffer == BUFFER_IN ? 0 : 1);
    if (flags & (buffer == BUFFER_IN ? COLLECTIVE_IN_AT_ROOT : COLLECTIVE_OUT_AT_ROOT))
        return rank == w->d.root;
    return true;
}

/* Exactly as many cells as said, so that a sanitizer sees one too far. */
static uint64_t *cells_new(uint64_t n)
{
    uint64_t *cells = malloc(n * sizeof(*cells));

    assert_true(cells || n == 0);
    for (uint64_t i = 0; i < n; i++)
        cells[i] = 0xdeadbeefdeadbeefull;
    return cells;
}

static void world_place(struct world *w, uint32_t r)
{
    const uint64_t in = w->in_count[r], out = w->out_count[r];

    w->memory[BUFFER_IN][r] = cells_new(w->in_place ? MAX(in, out) : in);
    w->memory[BUFFER_OUT][r] = w->in_place ? NULL : cells_new(out);
    w->in[r] = w->memory[BUFFER_IN][r];
    w->out[r] = w->in_place ? w->in[r] : w->memory[BUFFER_OUT][r];
    if (w->in_place && w->d.kind == COLLECTIVE_ALL_GATHER)
        w->in[r] = w->out[r] + r * in;
    if (w->in_place && w->d.kind == COLLECTIVE_REDUCE_SCATTER)
        w->out[r] = w->in[r] + r * out;
}

void world_fill(struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        world_place(w, r);
        w->given[r] = cells_new(w->in_count[r]);
        for (uint64_t i = 0; i < w->in_count[r]; i++)
            w->given[r][i] = cell_random(w->d.dtype);
        if (world_has(w, BUFFER_IN, r) && w->in_count[r])
            memcpy(w->in[r], w->given[r], w->in_count[r] * sizeof(uint64_t));
    }
    for (uint32_t r = 0; r < w->nranks; r++) {
        if (!world_has(w, BUFFER_IN, r))
            w->in[r] = NULL;
        if (!world_has(w, BUFFER_OUT, r))
            w->out[r] = NULL;
    }
}

void world_fini(struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        free(w->memory[BUFFER_IN][r]);
        free(w->memory[BUFFER_OUT][r]);
        free(w->given[r]);
    }
}

void world_prove(const struct world *w, const struct plan *p)
{
    struct check_world c = { .root = w->d.root, .in_place = w->in_place, .kind = w->d.kind };
    struct text fault = { 0 };

    for (uint32_t r = 0; r < w->nranks; r++) {
        c.in_count = MAX(c.in_count, w->in_count[r]);
        c.out_count = MAX(c.out_count, w->out_count[r]);
    }
    if (plan_check(p, &c, &fault))
        fail_msg("%s of %u ranks, n %llu, root %u%s: %s", collective_get(w->d.kind)->name,
                 w->nranks, (unsigned long long)w->n, w->d.root, w->in_place ? ", in place" : "",
                 fault.s);
}

void world_compare(const struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        for (uint64_t i = 0; w->out[r] && i < w->out_count[r]; i++)
            if (w->out[r][i] != references[w->d.kind](w, r, i))
                fail_msg("%s of %u ranks, n %llu, root %u%s: element %llu of rank %u is wrong",
                         collective_get(w->d.kind)->name, w->nranks, (unsigned long long)w->n,
                         w->d.root, w->in_place ? ", in place" : "", (unsigned long long)i, r);
        if (w->in[r] && !w->in_place && w->in_count[r])
            assert_memory_equal(w->in[r], w->given[r], w->in_count[r] * sizeof(uint64_t));
    }
}

/* ---------------------------------------------------------------- the simulator */

/* Every buffer a run of spans stands for, in order. */
static uint32_t spans_expand(const struct world *w, const struct span *spans, uint32_t n,
                             uint64_t **ret)
{
    uint32_t filled = 0;

    for (uint32_t k = 0; k < n; k++) {
        const bool each = spans[k].rank == SPAN_EACH, in = spans[k].buffer == BUFFER_IN;

        for (uint32_t r = each ? 0 : spans[k].rank; r < (each ? w->nranks : spans[k].rank + 1);
             r++) {
            uint64_t *buffer = in ? w->in[r] : w->out[r];

            assert_true(spans[k].offset + spans[k].count <=
                        (in ? w->in_count[r] : w->out_count[r]));
            assert_true(buffer && filled < WORLD_RANKS);
            ret[filled++] = buffer + spans[k].offset;
        }
    }
    return filled;
}

static void simulate_step(const struct world *w, const struct plan *p, const struct step *s)
{
    const struct span *spans = &p->spans[s->first_span];
    uint64_t *src[WORLD_RANKS], *dst[WORLD_RANKS], x[WORLD_RANKS];
    uint32_t nsrc = spans_expand(w, spans, s->nsrc, src);
    uint32_t ndst = spans_expand(w, spans + s->nsrc, s->ndst, dst);

    for (uint64_t i = 0; i < spans->count; i++) {
        for (uint32_t k = 0; k < nsrc; k++)
            x[k] = src[k][i];
        if (s->kind == STEP_REDUCE)
            x[0] = cells_tree(w->d.dtype, x, 0, nsrc);
        for (uint32_t k = 0; k < ndst; k++)
            dst[k][i] = x[0];
    }
}

static bool step_ready(const struct plan *p, const bool *done, uint32_t i)
{
    const struct step *s = &p->steps[i];

    if (done[i] || (s->after != STEP_NONE && !done[s->after]))
        return false;
    for (uint32_t k = 0; k < i; k++)
        if (p->steps[k].channel == s->channel && !done[k])
            return false;
    return true;
}

void world_run(const struct world *w, const struct plan *p)
{
    bool *done = calloc(p->nsteps + 1u, sizeof(*done));

    assert_non_null(done);
    for (uint32_t left = p->nsteps; left; left--) {
        uint32_t i = (uint32_t)(unit_random(&seed) % p->nsteps), tried = 0;

        while (!step_ready(p, done, i) && tried++ < p->nsteps)
            i = (i + 1) % p->nsteps;
        assert_true(tried <= p->nsteps);
        simulate_step(w, p, &p->steps[i]);
        done[i] = true;
    }
    free(done);
}
