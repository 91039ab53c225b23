/*
 * Prices: every row's closed form beside what its emitted steps take, done one after the other as
 * soon as each can be; and how operations are cut.
 */
#include "tests/unit/unit.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/exchange.h"
#include "daemon/plan/placement.h"
#include "daemon/plan/price.h"

#define NODES_MAX 8u
#define RANKS_ALL 24u

/* ---------------------------------------------------------------- steps on a machine */

/* When each part of a node is free again, us. */
struct node_clock {
    double out, in, memory;
};

struct timing {
    const struct plan *plans;
    uint32_t nnodes, wide;
    const struct machine *m; /* bytes are elements here */
    struct node_clock clocks[NODES_MAX];
    double *ends[NODES_MAX]; /* of every step; negative: not done */
};

static double span_elements(const struct timing *t, uint32_t node, const struct span *s)
{
    if (s->buffer == BUFFER_PARTIAL)
        return (double)s->count * t->wide;
    if (s->buffer != BUFFER_SCRATCH && s->rank == SPAN_EACH)
        return (double)s->count * t->plans[node].nranks;
    return (double)s->count;
}

/* What a message weighs, or a local step touches; of a copy to everybody not its source itself. */
static double step_elements(const struct timing *t, uint32_t node, const struct step *s)
{
    const struct span *spans = &t->plans[node].spans[s->first_span];
    double n = 0;

    for (uint32_t k = 0; k < s->nsrc + s->ndst; k++)
        n += span_elements(t, node, &spans[k]);
    if (s->kind == STEP_COPY && spans[0].buffer == spans[1].buffer)
        n -= (double)spans[0].count;
    return n;
}

/* When a step can start as far as those before it go; negative: they are not all done. */
static double step_start(const struct timing *t, uint32_t node, uint32_t i)
{
    const struct plan *p = &t->plans[node];
    const struct step *s = &p->steps[i];
    double start = 0;

    for (uint32_t k = 0; k < i; k++) {
        if (p->steps[k].channel != s->channel && s->after != k && s->after != STEP_ALL)
            continue;
        if (t->ends[node][k] < 0)
            return -1;
        start = MAX(start, t->ends[node][k]);
    }
    return start;
}

static uint32_t find_recv(const struct plan *p, uint32_t peer, uint32_t tag)
{
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == STEP_RECV && p->steps[i].peer == peer && p->steps[i].tag == tag)
            return i;
    fail_msg("a message that nobody receives");
    return 0;
}

/* The soonest that a step, of a message the sending one, can begin; negative: not yet. */
static double step_soonest(const struct timing *t, uint32_t node, uint32_t i)
{
    const struct step *s = &t->plans[node].steps[i];
    double start = step_start(t, node, i);

    if (t->ends[node][i] >= 0 || s->kind == STEP_RECV || start < 0)
        return -1;
    if (s->kind != STEP_SEND)
        return MAX(start, t->clocks[node].memory);

    double there = step_start(t, s->peer, find_recv(&t->plans[s->peer], node, s->tag));

    if (there < 0)
        return -1;
    start = MAX(start, there);
    return MAX(start, MAX(t->clocks[node].out, t->clocks[s->peer].in));
}

static void step_do(struct timing *t, uint32_t node, uint32_t i, double start)
{
    const struct step *s = &t->plans[node].steps[i];
    const double n = step_elements(t, node, s);

    if (s->kind != STEP_SEND) {
        t->ends[node][i] = t->clocks[node].memory = start + n / t->m->memory_bytes_per_us;
        return;
    }

    const double sent = start + t->m->message_us + n / t->m->link_bytes_per_us;

    t->clocks[node].out = t->clocks[s->peer].in = sent;
    t->ends[node][i] = sent + t->m->latency_us;
    t->ends[s->peer][find_recv(&t->plans[s->peer], node, s->tag)] = t->ends[node][i];
}

/* Does the step that can begin soonest. False: all are done. */
static bool timing_step(struct timing *t)
{
    double soonest = DBL_MAX;
    uint32_t node = 0, step = 0;

    for (uint32_t j = 0; j < t->nnodes; j++)
        for (uint32_t i = 0; i < t->plans[j].nsteps; i++) {
            const double start = step_soonest(t, j, i);

            if (start < 0 || start >= soonest)
                continue;
            soonest = start;
            node = j;
            step = i;
        }
    if (soonest == DBL_MAX)
        return false;
    step_do(t, node, step, soonest);
    return true;
}

static double plans_time(const struct plan *plans, uint32_t nnodes, uint32_t wide,
                         const struct machine *m)
{
    struct timing t = { .plans = plans, .nnodes = nnodes, .wide = wide, .m = m };
    double last = 0;

    for (uint32_t j = 0; j < nnodes; j++) {
        t.ends[j] = malloc((plans[j].nsteps + 1u) * sizeof(double));
        assert_non_null(t.ends[j]);
        for (uint32_t i = 0; i < plans[j].nsteps; i++)
            t.ends[j][i] = -1;
    }
    while (timing_step(&t))
        ;
    for (uint32_t j = 0; j < nnodes; j++) {
        for (uint32_t i = 0; i < plans[j].nsteps; i++) {
            assert_true(t.ends[j][i] >= 0);
            last = MAX(last, t.ends[j][i]);
        }
        free(t.ends[j]);
    }
    return last;
}

/* ---------------------------------------------------------------- closed forms and steps */

static struct exchange *exchange_equal(uint32_t n, uint64_t rows)
{
    uint64_t counts[RANKS_ALL];
    const uint64_t *all[RANKS_ALL];
    struct exchange *x;

    for (uint32_t i = 0; i < n; i++) {
        counts[i] = rows;
        all[i] = counts;
    }
    assert_int_equal(exchange_new(n, all, &x), 0);
    return x;
}

/* Prices emitted plans, of an exchange those of every source in turn; and finds their peak. */
static double time_emitted(const struct algorithm *a, const struct load *l, const struct machine *m,
                           uint64_t *ret_peak)
{
    _cleanup_(placement_freep) struct placement *nodes = NULL;
    _cleanup_(exchange_freep) struct exchange *x = exchange_equal(l->nnodes * l->ranks, l->count);
    struct plan plans[NODES_MAX];
    double us = 0;

    assert_int_equal(placement_new_even(l->nnodes, l->ranks, &nodes), 0);
    struct plan_args args = { .kind = l->kind,
                              .nranks = nodes->nranks,
                              .stride = l->count,
                              .count = l->count,
                              .nodes = nodes,
                              .exchange = x,
                              .rows = l->count,
                              .row_elements = 1 };
    const bool exchange = collective_get(l->kind)->shape == SHAPE_EXCHANGE;

    *ret_peak = 0;
    for (; args.source < (exchange ? l->ranks : 1); args.source++) {
        for (args.node = 0; args.node < l->nnodes; args.node++) {
            plan_init(&plans[args.node], l->ranks);
            assert_int_equal(a->emit(&plans[args.node], &args), 0);
            *ret_peak = MAX(*ret_peak, plan_peak(&plans[args.node], l->wide));
        }
        us += plans_time(plans, l->nnodes, l->wide, m);
        for (uint32_t j = 0; j < l->nnodes; j++)
            plan_fini(&plans[j]);
    }
    return us;
}

/* A byte is an element here. The last takes its time of everything. */
static const struct machine latency_only = { 1, 1e-9, 1e12, 1e12 };
static const struct machine posts_only = { 1e-9, 1, 1e12, 1e12 };
static const struct machine link_only = { 1e-9, 1e-9, 1, 1e12 };
static const struct machine memory_only = { 1e-9, 1e-9, 1e12, 1 };
static const struct machine all_alike = { 200, 50, 1, 1 };

/* The closed form adds up what steps may do at once: link and memory. */
static void compare_times(const struct algorithm *a, const struct load *l, const struct machine *m,
                          double at_most)
{
    const struct cost c = a->cost(l);
    uint64_t peak;
    const double emitted = time_emitted(a, l, m, &peak), closed = price_cost(&c, 1, m);

    if (closed < 0.999 * emitted || closed > at_most * emitted)
        fail_msg("%s, %s, %u nodes of %u ranks, wide %u: %g, not %g", collective_get(a->kind)->name,
                 a->name, l->nnodes, l->ranks, l->wide, closed, emitted);
}

static void compare_peaks(const struct algorithm *a, struct load l)
{
    static const uint64_t counts[] = { 1, 2, 3, 17, 840 };
    uint64_t peak;

    for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
        l.count = counts[i];
        time_emitted(a, &l, &all_alike, &peak);
        if (a->cost(&l).peak != peak)
            fail_msg("%s, %s, %u nodes of %u ranks, wide %u, count %llu: peak %llu, not %llu",
                     collective_get(a->kind)->name, a->name, l.nnodes, l.ranks, l.wide,
                     (unsigned long long)l.count, (unsigned long long)a->cost(&l).peak,
                     (unsigned long long)peak);
    }
}

/* Every row between nodes with what it can be asked for; 840 is a multiple of all that cut it. */
static void walk_rows(void (*compare)(const struct algorithm *a, const struct load *l))
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= NODES_MAX; nnodes++)
            for (uint32_t i = 0; i < 6; i++) {
                const struct load l = { a->kind, nnodes, 1 + i % 3, 840, 1 + i / 3 };
                const bool sums = collective_get(a->kind)->flags & COLLECTIVE_HAS_OP;
                const struct descriptor d = {
                    .kind = a->kind,
                    .dtype = l.wide > 1 ? DTYPE_BF16 : DTYPE_I64,
                    .op = OPERATOR_SUM,
                };

                if (a->fits(&d, nnodes) && (sums || l.wide == 1))
                    compare(a, &l);
            }
}

static void compare_alone(const struct algorithm *a, const struct load *l)
{
    compare_times(a, l, &latency_only, 1.001);
    compare_times(a, l, &posts_only, 1.001);
    compare_times(a, l, &link_only, 1.001);
    compare_times(a, l, &memory_only, 1.001);
}

static void compare_together(const struct algorithm *a, const struct load *l)
{
    compare_times(a, l, &all_alike, 2);
}

static void compare_staging(const struct algorithm *a, const struct load *l)
{
    compare_peaks(a, *l);
}

TEST(closed_forms_count_messages_bytes_and_memory_as_the_steps_take_them)
{
    walk_rows(compare_alone);
}

TEST(closed_forms_are_never_below_what_the_steps_take_and_at_most_twice_as_much)
{
    walk_rows(compare_together);
}

TEST(closed_forms_know_the_peak)
{
    walk_rows(compare_staging);
}

/* ---------------------------------------------------------------- operations */

static const struct algorithm *row_of(enum collective_id kind, const char *name)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        if (a->kind == kind && !strcmp(a->name, name))
            return a;
    fail_msg("no row \"%s\"", name);
    return NULL;
}

TEST(pieces_stay_within_the_budget_and_fill_the_chunks)
{
    const struct algorithm *a = row_of(COLLECTIVE_ALL_REDUCE, "direct");
    /* two chunks and a rest; direct stages 7 and sends 7 of what a chunk has room for 8 of */
    const struct job j = { .load = { COLLECTIVE_ALL_REDUCE, 8, 1, 2500, 1 },
                           .width = 4,
                           .length = 1000,
                           .budget = 8000,
                           .depth = 8 };
    struct price p;

    assert_int_equal(price_job(a, &j, &machine_default, &p), 0);
    assert_true(p.length < 1000 && p.length >= 1);
    assert_int_equal(p.cost.peak, 14 * p.length);
    assert_true(p.depth >= 1 && p.depth * p.cost.peak <= 8000);
    assert_int_equal(p.pieces, 3 * div_up_u64(1000, p.length));
}

TEST(what_needs_more_than_the_budget_has_no_price)
{
    const struct algorithm *direct = row_of(COLLECTIVE_ALL_REDUCE, "direct");
    const struct algorithm *pairwise = row_of(COLLECTIVE_ALL_REDUCE, "pairwise");
    const struct job j = { .load = { COLLECTIVE_ALL_REDUCE, 8, 1, 5, 1 },
                           .width = 4,
                           .length = 1,
                           .budget = 8,
                           .depth = 8 };
    struct price p;

    assert_int_equal(price_job(direct, &j, &machine_default, &p), PRICE_NONE);
    assert_int_equal(price_job(pairwise, &j, &machine_default, &p), 0);
    assert_int_equal(p.length, 1);
    assert_int_equal(p.pieces, 5);
    assert_int_equal(p.depth, 1);
}

TEST(long_messages_are_cut_so_that_a_tree_is_busy_on_all_levels)
{
    const struct algorithm *a = row_of(COLLECTIVE_BROADCAST, "tree");
    const struct job j = { .load = { COLLECTIVE_BROADCAST, 16, 1, 1 << 26, 1 },
                           .width = 4,
                           .length = 1 << 26,
                           .budget = UINT64_MAX,
                           .depth = 8 };
    struct price p;

    assert_int_equal(price_job(a, &j, &machine_default, &p), 0);
    assert_true(p.pieces > 4);
    assert_true(p.us < price_cost(&(struct cost){ 4, 4, 4.0 * (1 << 26), 2.0 * (1 << 26), 0 }, 4,
                                  &machine_default));
}

TEST(prices_are_above_the_bounds_for_thousands_of_nodes_too)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= 4096; nnodes *= 8) {
            const struct descriptor d = { .kind = a->kind, .dtype = DTYPE_I64, .op = OPERATOR_SUM };
            const struct job j = { .load = { a->kind, nnodes, 1, 1 << 20, 1 },
                                   .width = 8,
                                   .length = 1 << 20,
                                   .budget = UINT64_MAX,
                                   .depth = 8 };
            struct price p;

            if (!a->fits(&d, nnodes))
                continue;
            assert_int_equal(price_job(a, &j, &machine_default, &p), 0);
            assert_true(p.us >= price_bound_latency(&j, &machine_default));
            assert_true(p.us >= 0.999 * price_bound_link(&j, &machine_default));
        }
}

TEST(accumulators_are_wide_where_sums_are_made_in_a_wider_type)
{
    assert_int_equal(price_wide(OPERATOR_SUM, DTYPE_BF16), 2);
    assert_int_equal(price_wide(OPERATOR_MEAN, DTYPE_F8E4M3), 4);
    assert_int_equal(price_wide(OPERATOR_MAX, DTYPE_F16), 1);
    assert_int_equal(price_wide(OPERATOR_SUM, DTYPE_F32), 1);
    assert_int_equal(price_wide(OPERATOR_PRODUCT, DTYPE_I8), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_forms_count_messages_bytes_and_memory_as_the_steps_take_them),
        cmocka_unit_test(
            closed_forms_are_never_below_what_the_steps_take_and_at_most_twice_as_much),
        cmocka_unit_test(closed_forms_know_the_peak),
        cmocka_unit_test(pieces_stay_within_the_budget_and_fill_the_chunks),
        cmocka_unit_test(what_needs_more_than_the_budget_has_no_price),
        cmocka_unit_test(long_messages_are_cut_so_that_a_tree_is_busy_on_all_levels),
        cmocka_unit_test(prices_are_above_the_bounds_for_thousands_of_nodes_too),
        cmocka_unit_test(accumulators_are_wide_where_sums_are_made_in_a_wider_type),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
