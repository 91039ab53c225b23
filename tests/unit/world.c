#include "tests/unit/world.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/plan/check.h"
#include "tests/unit/unit.h"

static uint64_t seed = 20240229;

static uint64_t cell_random(enum dtype_id dtype)
{
    uint64_t cell = unit_random(&seed);

    if (dtype != DTYPE_I64) {
        /* of many magnitudes, so that every other order of additions shows */
        float f = ((float)(cell % 2001) - 1000.0f) / 7.0f * (float)(1u << (cell >> 59));

        cell = 0;
        memcpy(&cell, &f, sizeof(f));
    }
    return dtype == DTYPE_BF16 ? cell & 0xffff0000u : cell;
}

static uint64_t cell_add(const struct world *w, uint64_t a, uint64_t b)
{
    float x, y;

    if (w->d.dtype == DTYPE_I64 && w->d.op == OPERATOR_MAX)
        return (int64_t)a > (int64_t)b ? a : b;
    if (w->d.dtype == DTYPE_I64)
        return a + b;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    x = w->d.op == OPERATOR_MAX ? MAX(x, y) : x + y;
    a = 0;
    memcpy(&a, &x, sizeof(x));
    return a;
}

/* T(lo, hi) as it is defined */
static uint64_t cells_tree(const struct world *w, const uint64_t *x, uint32_t lo, uint32_t hi)
{
    uint32_t half = 1;

    if (hi - lo == 1)
        return x[lo];
    while (2 * half < hi - lo)
        half *= 2;
    return cell_add(w, cells_tree(w, x, lo, lo + half), cells_tree(w, x, lo + half, hi));
}

/* What a sum becomes in an output: divided for mean, rounded to the even one of two as near. */
static uint64_t cell_finish(const struct world *w, uint64_t cell)
{
    float f;

    if (w->d.op == OPERATOR_MEAN) {
        memcpy(&f, &cell, sizeof(f));
        f /= (float)w->nranks;
        memcpy(&cell, &f, sizeof(f));
    }
    if (w->d.dtype == DTYPE_BF16)
        cell = (cell + 0x7fff + (cell >> 16 & 1)) & 0xffff0000u;
    return cell;
}

/* ---------------------------------------------------------------- references: element i of out(r)
 */

static uint64_t sum_of_node(const struct world *w, uint32_t node, uint64_t i)
{
    uint64_t x[WORLD_RANKS];
    const uint32_t n = placement_count(w->nodes, node);

    for (uint32_t k = 0; k < n; k++)
        x[k] = w->given[placement_rank(w->nodes, node, k)][i];
    return cells_tree(w, x, 0, n);
}

static uint64_t sum_of_all(const struct world *w, uint64_t i)
{
    uint64_t x[WORLD_RANKS];
    const uint32_t n = w->nodes ? w->nodes->nnodes : w->nranks;

    for (uint32_t k = 0; k < n; k++)
        x[k] = w->nodes ? sum_of_node(w, k, i) : w->given[k][i];
    return cell_finish(w, cells_tree(w, x, 0, n));
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

void world_prove_nodes(const struct world *w, const struct plan *plans, uint32_t wide,
                       uint64_t budget, const uint64_t *written)
{
    struct check_world c = { .root = w->d.root,
                             .in_place = w->in_place,
                             .kind = w->d.kind,
                             .nodes = w->nodes,
                             .written = written };
    struct text fault = { 0 };

    for (uint32_t r = 0; r < w->nranks; r++) {
        c.in_count = MAX(c.in_count, w->in_count[r]);
        c.out_count = MAX(c.out_count, w->out_count[r]);
    }
    if (plans_check(plans, &c, wide, budget, &fault))
        fail_msg("%s of %u ranks on %u nodes, n %llu, root %u%s: %s",
                 collective_get(w->d.kind)->name, w->nranks, w->nodes->nnodes,
                 (unsigned long long)w->n, w->d.root, w->in_place ? ", in place" : "", fault.s);
}

/* The first wrong element of a rank's output; its count where there is none. */
static uint64_t first_wrong(const struct world *w, uint32_t r)
{
    uint64_t i = 0;

    while (i < w->out_count[r] && w->out[r] && w->out[r][i] == references[w->d.kind](w, r, i))
        i++;
    return w->out[r] ? i : w->out_count[r];
}

bool world_agrees(const struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++)
        if (first_wrong(w, r) < w->out_count[r])
            return false;
    return true;
}

void world_compare(const struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++) {
        const uint64_t wrong = first_wrong(w, r);

        if (wrong < w->out_count[r])
            fail_msg("%s of %u ranks, n %llu, root %u%s: element %llu of rank %u is wrong",
                     collective_get(w->d.kind)->name, w->nranks, (unsigned long long)w->n,
                     w->d.root, w->in_place ? ", in place" : "", (unsigned long long)wrong, r);
        if (w->in[r] && !w->in_place && w->in_count[r])
            assert_memory_equal(w->in[r], w->given[r], w->in_count[r] * sizeof(uint64_t));
    }
}

/* ---------------------------------------------------------------- the simulator */

struct message {
    uint32_t from, to, tag;
    uint64_t *cells, n;
};

struct simulation {
    const struct world *w;
    const struct plan *plans;
    uint32_t nnodes, nsteps; /* of all nodes */
    bool *done[WORLD_NODES];
    uint64_t *scratch[WORLD_NODES], *partials[WORLD_NODES];
    bool patient;             /* nothing is sent before it is awaited */
    struct message *messages; /* on their way */
    uint32_t nmessages;
};

static uint32_t ranks_on(const struct world *w, uint32_t node)
{
    return w->nodes ? placement_count(w->nodes, node) : w->nranks;
}

/* A span's cells; of a SPAN_EACH those of the node's `each`-th rank. */
static uint64_t *span_cells(const struct simulation *s, uint32_t node, const struct span *span,
                            uint32_t each)
{
    const struct world *w = s->w;
    const bool in = span->buffer == BUFFER_IN;
    uint32_t rank = span->rank;

    if (span->buffer == BUFFER_SCRATCH)
        return s->scratch[node] + span->offset;
    if (span->buffer == BUFFER_PARTIAL)
        return s->partials[node] + span->offset;
    if (rank == SPAN_EACH)
        rank = w->nodes ? placement_rank(w->nodes, node, each) : each;
    assert_true(rank < w->nranks);
    assert_true(span->offset + span->count <= (in ? w->in_count[rank] : w->out_count[rank]));
    assert_non_null(in ? w->in[rank] : w->out[rank]);
    return (in ? w->in[rank] : w->out[rank]) + span->offset;
}

static uint32_t span_width(const struct simulation *s, uint32_t node, const struct span *span)
{
    const bool tensor = span->buffer == BUFFER_IN || span->buffer == BUFFER_OUT;

    return tensor && span->rank == SPAN_EACH ? ranks_on(s->w, node) : 1;
}

/* One source of a reduction at one element: of a SPAN_EACH the tree of the node's ranks. */
static uint64_t source_cell(const struct simulation *s, uint32_t node, const struct span *span,
                            uint64_t i)
{
    const uint32_t n = span_width(s, node, span);
    uint64_t x[WORLD_RANKS];

    for (uint32_t k = 0; k < n; k++)
        x[k] = span_cells(s, node, span, k)[i];
    return cells_tree(s->w, x, 0, n);
}

static void simulate_local(const struct simulation *s, uint32_t node, const struct step *step)
{
    const struct span *src = &s->plans[node].spans[step->first_span], *dst = src + step->nsrc;
    uint64_t x[WORLD_RANKS];

    assert_true(step->nsrc <= WORLD_RANKS);
    for (uint64_t i = 0; i < src->count; i++) {
        for (uint32_t k = 0; k < step->nsrc; k++)
            x[k] = source_cell(s, node, &src[k], i);
        if (step->kind == STEP_REDUCE) {
            x[0] = cells_tree(s->w, x, 0, step->nsrc);
            if (dst->buffer == BUFFER_OUT)
                x[0] = cell_finish(s->w, x[0]);
        }
        for (uint32_t k = 0; k < step->ndst; k++)
            for (uint32_t e = 0; e < span_width(s, node, &dst[k]); e++)
                span_cells(s, node, &dst[k], e)[i] = x[0];
    }
}

static bool step_ready(const struct plan *p, const bool *done, uint32_t i)
{
    const struct step *s = &p->steps[i];

    if (done[i] || (s->after < STEP_ALL && !done[s->after]))
        return false;
    for (uint32_t k = 0; k < i; k++)
        if ((p->steps[k].channel == s->channel || s->after == STEP_ALL) && !done[k])
            return false;
    return true;
}

/* The sources of a message, one behind the other; or the message over its destinations. */
static uint64_t copy_spans(const struct simulation *s, uint32_t node, const struct step *step,
                           uint64_t *cells)
{
    const struct span *spans = &s->plans[node].spans[step->first_span];
    uint64_t n = 0;

    for (uint32_t k = 0; k < step->nsrc + step->ndst; k++)
        for (uint32_t e = 0; e < span_width(s, node, &spans[k]); e++) {
            const size_t bytes = spans[k].count * sizeof(*cells);
            uint64_t *at = span_cells(s, node, &spans[k], e);

            if (cells && bytes)
                memcpy(step->kind == STEP_SEND ? cells + n : at,
                       step->kind == STEP_SEND ? at : cells + n, bytes);
            n += spans[k].count;
        }
    return n;
}

static bool awaited(const struct simulation *s, uint32_t node, const struct step *step)
{
    const struct plan *p = &s->plans[step->peer];

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == STEP_RECV && p->steps[i].peer == node &&
            p->steps[i].tag == step->tag)
            return step_ready(p, s->done[step->peer], i);
    return false;
}

static bool simulate_send(struct simulation *s, uint32_t node, const struct step *step)
{
    struct message *m = &s->messages[s->nmessages];

    if (s->patient && !awaited(s, node, step))
        return false;
    *m = (struct message){ node, step->peer, step->tag, NULL, copy_spans(s, node, step, NULL) };
    m->cells = cells_new(m->n);
    copy_spans(s, node, step, m->cells);
    s->nmessages++;
    return true;
}

static bool simulate_recv(struct simulation *s, uint32_t node, const struct step *step)
{
    for (uint32_t i = 0; i < s->nmessages; i++) {
        struct message *m = &s->messages[i];

        if (m->from != step->peer || m->to != node || m->tag != step->tag)
            continue;
        assert_int_equal(m->n, copy_spans(s, node, step, NULL));
        copy_spans(s, node, step, m->cells);
        free(m->cells);
        *m = s->messages[--s->nmessages];
        return true;
    }
    return false;
}

static bool simulate_step(struct simulation *s, uint32_t node, uint32_t i)
{
    const struct step *step = &s->plans[node].steps[i];

    if (!step_ready(&s->plans[node], s->done[node], i))
        return false;
    if (step->kind == STEP_SEND)
        return simulate_send(s, node, step);
    if (step->kind == STEP_RECV)
        return simulate_recv(s, node, step);
    simulate_local(s, node, step);
    return true;
}

/* Some step that can be done, each as likely to be asked first. */
static bool simulate_any(struct simulation *s)
{
    const uint32_t first = (uint32_t)(unit_random(&seed) % s->nnodes);

    for (uint32_t k = 0; k < s->nnodes; k++) {
        const uint32_t node = (first + k) % s->nnodes, n = s->plans[node].nsteps;
        const uint32_t start = n ? (uint32_t)(unit_random(&seed) % n) : 0;

        for (uint32_t i = 0; i < n; i++)
            if (simulate_step(s, node, (start + i) % n)) {
                s->done[node][(start + i) % n] = true;
                return true;
            }
    }
    return false;
}

static void simulation_open(struct simulation *s)
{
    for (uint32_t node = 0; node < s->nnodes; node++) {
        const struct plan *p = &s->plans[node];

        s->nsteps += p->nsteps;
        s->done[node] = calloc(p->nsteps + 1u, sizeof(*s->done[node]));
        s->scratch[node] = cells_new(p->scratch);
        s->partials[node] = cells_new(p->partials);
        assert_non_null(s->done[node]);
    }
    s->messages = calloc(s->nsteps + 1u, sizeof(*s->messages));
    assert_non_null(s->messages);
}

static void simulation_close(struct simulation *s)
{
    assert_int_equal(s->nmessages, 0);
    free(s->messages);
    for (uint32_t node = 0; node < s->nnodes; node++) {
        free(s->done[node]);
        free(s->scratch[node]);
        free(s->partials[node]);
    }
}

void world_run(const struct world *w, const struct plan *plans)
{
    struct simulation s = { .w = w,
                            .plans = plans,
                            .nnodes = w->nodes ? w->nodes->nnodes : 1,
                            .patient = unit_random(&seed) & 1 };

    simulation_open(&s);
    for (uint32_t left = s.nsteps; left; left--)
        if (!simulate_any(&s))
            fail_msg("%u steps wait for ever", left);
    simulation_close(&s);
}
