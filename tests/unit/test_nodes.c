/*
 * Plans between nodes: every row of the table, over small worlds of several nodes, proved by the
 * checker and run by the simulator.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/plan/check.h"
#include "daemon/plan/chunk.h"
#include "daemon/plan/contents.h"
#include "daemon/plan/price.h"
#include "tests/unit/nodes.h"

TEST(nodes_are_numbered_by_their_lowest_rank)
{
    static const uint32_t hosts[] = { 4, 0, 4, 2, 0, 4 };
    _cleanup_(placement_freep) struct placement *p = NULL;

    assert_int_equal(placement_new(6, hosts, &p), 0);
    assert_int_equal(p->nnodes, 3);
    assert_memory_equal(p->nodes, ((uint32_t[]){ 0, 1, 0, 2, 1, 0 }), sizeof(hosts));
    assert_memory_equal(p->ranks, ((uint32_t[]){ 0, 2, 5, 1, 4, 3 }), sizeof(hosts));
    assert_memory_equal(p->index, ((uint32_t[]){ 0, 0, 1, 0, 1, 2 }), sizeof(hosts));
    assert_int_equal(placement_count(p, 1), 2);
    assert_int_equal(placement_rank(p, 1, 1), 4);
}

TEST(placements_of_nothing_or_beyond_are_refused)
{
    static const uint32_t beyond[] = { 0, 2 };
    struct placement *p = NULL;

    assert_int_equal(placement_new(0, beyond, &p), -EINVAL);
    assert_int_equal(placement_new(2, beyond, &p), -EINVAL);
    assert_int_equal(placement_new_even(0, 3, &p), -EINVAL);
    assert_int_equal(placement_new_even(RANKS_MAX, 2, &p), -EINVAL);
    assert_null(p);
    assert_null(placement_free(NULL));
}

static struct step step_of(enum step_kind kind, uint32_t channel, uint32_t after)
{
    return (struct step){ .kind = kind, .channel = channel, .after = after };
}

/* A reduction of the inputs into `buffer`, and a send after it. */
static void plan_reduce_and_send(struct plan *p, enum buffer buffer, uint32_t channel,
                                 uint32_t after)
{
    plan_clear(p);
    plan_step(p, step_of(STEP_REDUCE, 0, STEP_NONE));
    plan_source(p, (struct span){ BUFFER_IN, SPAN_EACH, 0, 1 });
    plan_destination(p, (struct span){ buffer, 0, 0, 1 });
    plan_step(p, step_of(STEP_SEND, channel, after));
    plan_source(p, (struct span){ buffer, 0, 0, 1 });
}

static bool sends_first(const struct plan *p)
{
    bool first;

    assert_int_equal(plan_sends_first(p, &first), 0);
    return first;
}

TEST(a_plan_sends_first_unless_a_send_waits_for_a_message_or_an_output)
{
    struct plan p;

    plan_init(&p, 2);
    assert_true(sends_first(&p));
    plan_reduce_and_send(&p, BUFFER_PARTIAL, 0, STEP_NONE);
    plan_step(&p, step_of(STEP_RECV, 0, STEP_ALL));
    assert_true(sends_first(&p));
    plan_step(&p, step_of(STEP_SEND, 1, STEP_NONE));
    assert_true(sends_first(&p));
    plan_step(&p, step_of(STEP_SEND, 0, STEP_NONE));
    assert_false(sends_first(&p));

    plan_reduce_and_send(&p, BUFFER_OUT, 0, STEP_NONE);
    assert_false(sends_first(&p));
    plan_reduce_and_send(&p, BUFFER_OUT, 1, STEP_NONE);
    assert_true(sends_first(&p));
    plan_reduce_and_send(&p, BUFFER_OUT, 1, 0);
    assert_false(sends_first(&p));
    plan_reduce_and_send(&p, BUFFER_OUT, 1, STEP_ALL);
    assert_false(sends_first(&p));
    plan_fini(&p);
}

/* ---------------------------------------------------------------- worlds of blocks */

static bool kind_has_in_place(enum collective_id kind)
{
    return kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_REDUCE ||
           kind == COLLECTIVE_BROADCAST || kind == COLLECTIVE_ALL_GATHER ||
           kind == COLLECTIVE_REDUCE_SCATTER;
}

/* The longest piece of a chunk that stays within the budget; 0: there is none. */
static uint64_t piece_within(struct chunk *c, const struct world *w, const struct algorithm *a,
                             uint64_t length, uint64_t budget)
{
    const uint32_t wide = price_wide(w->d.op, w->d.dtype);

    for (; length; length--) {
        chunk_emit(c, a, args_of(w, length));
        if (chunk_peak(c, wide) <= budget)
            return length;
    }
    return 0;
}

/* Chunks of `length` under the budget that makes them so long. False: the row needs more. */
static bool world_try(struct world *w, const struct algorithm *a, uint64_t length)
{
    const uint64_t budget = w->d.kind == COLLECTIVE_BROADCAST ? length : length * w->nranks;
    const uint32_t wide = price_wide(w->d.op, w->d.dtype);
    _cleanup_(chunk_fini) struct chunk c;
    uint64_t written[WORLD_RANKS], piece;

    chunk_init(&c, w->nodes);
    piece = piece_within(&c, w, a, MIN(length, w->n), budget);
    if (!piece)
        return false;
    world_fill(w);
    for (uint64_t first = 0; first < w->n; first += piece) {
        const uint64_t count = MIN(piece, w->n - first);

        chunk_emit(&c, a, args_of(w, count));
        chunk_move(&c, first);
        written_of(w, count, written);
        world_prove_nodes(w, c.plans, wide, budget, written);
        world_run(w, c.plans);
    }
    world_compare(w);
    world_fini(w);
    return true;
}

/* Each of the types with one of its operators, which a row without one does not look at. */
static const struct {
    enum dtype_id dtype;
    enum operator_id op;
} types[] = {
    { DTYPE_I64, OPERATOR_SUM },   { DTYPE_F32, OPERATOR_MEAN }, { DTYPE_BF16, OPERATOR_SUM },
    { DTYPE_BF16, OPERATOR_MEAN }, { DTYPE_I64, OPERATOR_MAX },  { DTYPE_BF16, OPERATOR_MAX },
};

static void walk_blocks(const struct algorithm *a, const struct placement *nodes)
{
    static const uint64_t counts[] = { 1, 3, 17 }, lengths[] = { 1, 2, 7, 100 };

    for (size_t t = 0; t < ARRAY_SIZE(types); t++)
        for (size_t i = 0; i < ARRAY_SIZE(counts); i++)
            for (size_t k = 0; k < ARRAY_SIZE(lengths); k++) {
                struct world w = world_of(a->kind, types[t].dtype, types[t].op, nodes, counts[i]);

                w.in_place = kind_has_in_place(a->kind) && any_below(2);
                if (a->fits(&w.d, nodes->nnodes))
                    world_try(&w, a, lengths[k]);
            }
}

TEST(every_row_is_sound_and_gives_the_canonical_bits)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        const struct collective *c = collective_get(a->kind);

        if (c->shape == SHAPE_EXCHANGE || c->flags & COLLECTIVE_PAIR)
            continue;
        for (uint32_t nnodes = 1; nnodes <= WORLD_NODES; nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++) {
                _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);

                walk_blocks(a, p);
            }
    }
}

/* Floats narrower by more than two to one (f8) may need more where two or three ranks share a node.
 */
TEST(within_the_least_budget_there_is_a_row)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
        for (uint32_t nnodes = 2; nnodes <= WORLD_NODES; nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++) {
                const struct collective *c = collective_get(kind);

                if (c->shape == SHAPE_NONE || c->shape == SHAPE_EXCHANGE ||
                    c->flags & COLLECTIVE_PAIR)
                    continue;

                _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);
                bool found = false;

                for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
                    struct world w = world_of(kind, DTYPE_BF16, OPERATOR_SUM, p, 2);

                    if (a->kind == kind && a->fits(&w.d, nnodes))
                        found |= world_try(&w, a, 1);
                }
                if (!found)
                    fail_msg("%s on %u nodes of %u ranks", c->name, nnodes, ranks);
            }
}

/* ---------------------------------------------------------------- worlds of rows */

static struct exchange *exchange_random(uint64_t counts[WORLD_RANKS][WORLD_RANKS], uint32_t n,
                                        bool equal)
{
    const uint64_t *rows[WORLD_RANKS];
    const uint32_t mute = any_below(2 * n), deaf = any_below(2 * n), one = any_below(5);
    struct exchange *x;

    for (uint32_t s = 0; s < n; s++) {
        rows[s] = counts[s];
        for (uint32_t d = 0; d < n; d++) {
            counts[s][d] = any_below(3) ? any_below(5) : 0;
            if (s == mute || d == deaf)
                counts[s][d] = 0;
            if (equal)
                counts[s][d] = one;
        }
    }
    assert_int_equal(exchange_new(n, rows, &x), 0);
    return x;
}

/* The rows that the m-th ranks of all nodes have for every other one in a round. */
static void rows_written(const struct world *w, const struct plan_args *args, uint64_t *ret)
{
    for (uint32_t d = 0; d < w->nranks; d++) {
        ret[d] = 0;
        for (uint32_t j = 0; j < w->nodes->nnodes; j++) {
            struct span in, out;

            if (args->source < placement_count(w->nodes, j) &&
                exchange_part(
                    w->exchange, placement_rank(w->nodes, j, args->source), d,
                    &(struct exchange_round){ args->round, args->rows, args->row_elements }, &in,
                    &out))
                ret[d] += out.count;
        }
    }
}

/* Messages are between nodes only: what stays on one is copied there. */
static void assert_no_message_home(const struct chunk *c)
{
    for (uint32_t i = 0; i < c->nnodes; i++)
        for (uint32_t k = 0; k < c->plans[i].nsteps; k++) {
            const struct step *s = &c->plans[i].steps[k];

            assert_true(s->kind == STEP_COPY || s->peer != i);
            assert_true(s->nsrc + s->ndst > 0);
        }
}

static void exchange_try(const struct algorithm *a, const struct placement *nodes,
                         const struct exchange *x, uint64_t rows, uint64_t row)
{
    struct world w = { .d = { .kind = a->kind,
                              .dtype = DTYPE_I64,
                              .shape = { 2, { exchange_rows_sent(x, 0), row } },
                              .nranks = nodes->nranks },
                       .nranks = nodes->nranks,
                       .exchange = x,
                       .nodes = nodes };
    struct plan_args args = args_of(&w, 0);
    _cleanup_(chunk_fini) struct chunk c;
    uint64_t written[WORLD_RANKS], budget;

    args.exchange = x;
    args.rows = rows;
    args.row_elements = row;
    /* one partner at a time is within what makes the rounds as long as they are */
    budget = strcmp(a->name, "pairwise") ? UINT64_MAX : rows * row * nodes->nranks;
    for (uint32_t r = 0; r < nodes->nranks; r++) {
        w.in_count[r] = exchange_rows_sent(x, r) * row;
        w.out_count[r] = exchange_rows_received(x, r) * row;
    }
    world_fill(&w);
    chunk_init(&c, nodes);
    for (; args.round < div_up_u64(exchange_rows_max(x), rows); args.round++)
        for (args.source = 0; args.source < 3; args.source++) {
            chunk_emit(&c, a, args);
            rows_written(&w, &args, written);
            world_prove_nodes(&w, c.plans, 1, budget, written);
            assert_no_message_home(&c);
            world_run(&w, c.plans);
        }
    world_compare(&w);
    world_fini(&w);
}

TEST(every_exchange_row_moves_whole_rows_to_their_places)
{
    uint64_t counts[WORLD_RANKS][WORLD_RANKS];

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= WORLD_NODES; nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++)
                for (uint64_t rows = 1; rows <= 5; rows += 2) {
                    const struct descriptor d = { .kind = a->kind };

                    if (collective_get(a->kind)->shape != SHAPE_EXCHANGE || !a->fits(&d, nnodes))
                        continue;

                    _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);
                    _cleanup_(exchange_freep) struct exchange *x =
                        exchange_random(counts, p->nranks, a->kind == COLLECTIVE_ALL_TO_ALL);

                    exchange_try(a, p, x, rows, 1 + any_below(3));
                }
}

/* ---------------------------------------------------------------- claims: letters */

static void plan_message(struct plan *p, enum step_kind kind, uint32_t peer, uint32_t tag,
                         struct span span)
{
    plan_step(p, (struct step){ kind, p->nchannels, STEP_NONE, .peer = peer, .tag = tag });
    (kind == STEP_SEND ? plan_source : plan_destination)(p, span);
}

TEST(messages_lie_in_letters_by_node_and_by_tag)
{
    _cleanup_(plan_fini) struct plan p;
    struct contents *c;

    plan_init(&p, 2);
    plan_message(&p, STEP_SEND, 2, 1, (struct span){ BUFFER_PARTIAL, 0, 0, 3 });
    plan_message(&p, STEP_RECV, 0, 8, (struct span){ BUFFER_SCRATCH, 0, 0, 7 });
    plan_message(&p, STEP_SEND, 2, 0, (struct span){ BUFFER_IN, SPAN_EACH, 0, 5 });
    plan_message(&p, STEP_SEND, 0, 4, (struct span){ BUFFER_IN, 1, 0, 11 });
    plan_message(&p, STEP_RECV, 0, 2, (struct span){ BUFFER_OUT, 1, 0, 13 });
    plan_add(&p, STEP_COPY, (struct span){ BUFFER_IN, 0, 0, 1 },
             (struct span){ BUFFER_OUT, 0, 0, 1 });

    assert_int_equal(contents_new(&p, 3, 2, 4, &c), 0);
    assert_int_equal(c->nsends, 3);
    assert_true(c->sends_first);
    assert_memory_equal(c->bytes, ((uint64_t[]){ 12, 14, 20, 22, 26, 0 }), 6 * sizeof(uint64_t));
    assert_memory_equal(c->at, ((uint64_t[]){ 42, 26, 22, 0, 0, 0 }), 6 * sizeof(uint64_t));
    assert_memory_equal(c->leaves_at, ((uint64_t[]){ 0, 22, 22, 54 }), 4 * sizeof(uint64_t));
    assert_memory_equal(c->comes, ((uint64_t[]){ 40, 0, 0 }), 3 * sizeof(uint64_t));
    assert_null(contents_free(c));
}

/* Whether a message that comes to node `to` has been put where it is looked for. */
static bool lies_there(const struct plan *p, const struct contents *c, uint32_t to,
                       const struct plan *q, const struct contents *d, uint32_t i)
{
    for (uint32_t k = 0; k < p->nsteps; k++)
        if (p->steps[k].kind == STEP_SEND && p->steps[k].peer == to &&
            p->steps[k].tag == q->steps[i].tag)
            return c->at[k] - c->leaves_at[to] == d->at[i] && c->bytes[k] == d->bytes[i];
    return false;
}

/* All that node j sends node k. */
static void assert_alike(const struct chunk *chunk, struct contents *const *c, uint32_t j,
                         uint32_t k)
{
    const struct plan *q = &chunk->plans[k];

    assert_int_equal(c[j]->leaves_at[k + 1] - c[j]->leaves_at[k], c[k]->comes[j]);
    for (uint32_t i = 0; i < q->nsteps; i++)
        if (q->steps[i].kind == STEP_RECV && q->steps[i].peer == j)
            assert_true(lies_there(&chunk->plans[j], c[j], k, q, c[k], i));
}

static void letters_try(const struct algorithm *a, const struct placement *p)
{
    const struct world w = world_of(a->kind, DTYPE_BF16, OPERATOR_SUM, p, 5);
    struct contents *c[WORLD_NODES];
    _cleanup_(chunk_fini) struct chunk chunk;

    chunk_init(&chunk, p);
    if (!a->fits(&w.d, p->nnodes))
        return;
    chunk_emit(&chunk, a, args_of(&w, 5));
    for (uint32_t j = 0; j < p->nnodes; j++)
        assert_int_equal(contents_new(&chunk.plans[j], p->nnodes, 2, 4, &c[j]), 0);
    for (uint32_t j = 0; j < p->nnodes; j++)
        for (uint32_t k = 0; k < p->nnodes; k++)
            assert_alike(&chunk, c, j, k);
    for (uint32_t j = 0; j < p->nnodes; j++)
        contents_free(c[j]);
}

TEST(both_ends_of_a_letter_know_it_alike)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= 5; nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++) {
                const struct collective *c = collective_get(a->kind);

                if (c->shape == SHAPE_EXCHANGE || c->flags & COLLECTIVE_PAIR)
                    continue;

                _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);

                letters_try(a, p);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_are_numbered_by_their_lowest_rank),
        cmocka_unit_test(placements_of_nothing_or_beyond_are_refused),
        cmocka_unit_test(a_plan_sends_first_unless_a_send_waits_for_a_message_or_an_output),
        cmocka_unit_test(every_row_is_sound_and_gives_the_canonical_bits),
        cmocka_unit_test(within_the_least_budget_there_is_a_row),
        cmocka_unit_test(every_exchange_row_moves_whole_rows_to_their_places),
        cmocka_unit_test(messages_lie_in_letters_by_node_and_by_tag),
        cmocka_unit_test(both_ends_of_a_letter_know_it_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
