/* Row exchanges on a node, and the matrix they are planned from; between nodes: test_nodes.c. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/plan/chunk.h"
#include "tests/unit/world.h"

static uint64_t seed = 20240301;

/* Counts of 0 to 6, each third one zero, and now and then a rank that sends or gets nothing. */
static void matrix_random(uint64_t counts[WORLD_RANKS][WORLD_RANKS], uint32_t n, bool equal)
{
    const uint64_t one = unit_random(&seed) % 7;
    const uint32_t mute = (uint32_t)(unit_random(&seed) % (2 * n));
    const uint32_t deaf = (uint32_t)(unit_random(&seed) % (2 * n));

    for (uint32_t s = 0; s < n; s++)
        for (uint32_t d = 0; d < n; d++) {
            counts[s][d] = unit_random(&seed) % 3 ? unit_random(&seed) % 7 : 0;
            if (s == mute || d == deaf)
                counts[s][d] = 0;
            if (equal)
                counts[s][d] = one;
        }
}

static struct exchange *exchange_of(uint64_t counts[WORLD_RANKS][WORLD_RANKS], uint32_t n)
{
    const uint64_t *rows[WORLD_RANKS];
    struct exchange *x;

    for (uint32_t s = 0; s < n; s++)
        rows[s] = counts[s];
    assert_int_equal(exchange_new(n, rows, &x), 0);
    return x;
}

/* One round of every source; what it moved is what the progress functions say. */
static void emit_round(struct plan *p, const struct world *w, const struct algorithm *a, uint64_t t,
                       uint64_t rows, uint64_t row)
{
    const struct exchange *x = w->exchange;
    uint64_t sent[WORLD_RANKS] = { 0 }, received[WORLD_RANKS] = { 0 };
    const uint32_t before = p->nsteps;

    for (uint32_t s = 0; s < w->nranks; s++) {
        const struct plan_args args = { .kind = w->d.kind,
                                        .nranks = w->nranks,
                                        .exchange = x,
                                        .source = s,
                                        .round = t,
                                        .rows = rows,
                                        .row_elements = row };

        assert_int_equal(a->emit(p, &args), 0);
    }
    for (uint32_t i = before; i < p->nsteps; i++) {
        const struct span *spans = &p->spans[p->steps[i].first_span];

        assert_in_range(spans[0].count, 1, rows * row);
        sent[spans[0].rank] += spans[0].count;
        received[spans[1].rank] += spans[1].count;
    }
    for (uint32_t r = 0; r < w->nranks; r++) {
        assert_int_equal(sent[r], row * (exchange_sent_after(x, r, t + 1, rows) -
                                         exchange_sent_after(x, r, t, rows)));
        assert_int_equal(received[r], row * (exchange_received_after(x, r, t + 1, rows) -
                                             exchange_received_after(x, r, t, rows)));
    }
}

static void exchange_try(const struct algorithm *a, const struct exchange *x, uint32_t nranks,
                         uint64_t rows, uint64_t row)
{
    struct world w = { .d = { .kind = a->kind,
                              .dtype = DTYPE_I64,
                              .shape = { 2, { exchange_rows_sent(x, 0), row } },
                              .budget = rows * nranks * row * 8 + 7,
                              .nranks = nranks },
                       .nranks = nranks,
                       .exchange = x };
    _cleanup_(plan_fini) struct plan p;
    struct chunking c;

    assert_int_equal(descriptor_check(&w.d, NULL), 0);
    assert_int_equal(chunk_plan(&w.d, exchange_rows_max(x), 0, &c, NULL), 0);
    assert_int_equal(c.chunks, div_up_u64(exchange_rows_max(x), rows));
    for (uint32_t r = 0; r < nranks; r++) {
        w.in_count[r] = exchange_rows_sent(x, r) * row;
        w.out_count[r] = exchange_rows_received(x, r) * row;
    }

    world_fill(&w);
    plan_init(&p, nranks);
    for (uint64_t t = 0; t < c.chunks; t++)
        emit_round(&p, &w, a, t, rows, row);
    for (uint32_t r = 0; r < nranks; r++) {
        assert_int_equal(exchange_sent_after(x, r, c.chunks, rows), exchange_rows_sent(x, r));
        assert_int_equal(exchange_received_after(x, r, c.chunks, rows),
                         exchange_rows_received(x, r));
    }
    world_prove(&w, &p);
    world_run(&w, &p);
    world_compare(&w);
    world_fini(&w);
}

TEST(the_exchange_on_a_node_moves_whole_rows_to_their_places)
{
    uint64_t counts[WORLD_RANKS][WORLD_RANKS];

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t n = 1; n <= 9 && !strcmp(a->name, "hierarchical") &&
                             collective_get(a->kind)->shape == SHAPE_EXCHANGE;
             n++)
            for (uint64_t rows = 1; rows <= 8; rows++)
                for (uint64_t row = 1; row <= 5; row += 2) {
                    matrix_random(counts, n, a->kind == COLLECTIVE_ALL_TO_ALL);

                    _cleanup_(exchange_freep) struct exchange *x = exchange_of(counts, n);

                    exchange_try(a, x, n, rows, row);
                }
}

TEST(an_exchange_knows_its_matrix)
{
    uint64_t counts[WORLD_RANKS][WORLD_RANKS] = { { 3, 0, 5 }, { 0, 0, 0 }, { 1, 9, 2 } };
    _cleanup_(exchange_freep) struct exchange *x = exchange_of(counts, 3);

    assert_int_equal(exchange_rows_max(x), 9);
    for (uint32_t s = 0; s < 3; s++)
        for (uint32_t d = 0; d < 3; d++)
            assert_int_equal(exchange_rows(x, s, d), counts[s][d]);
    assert_int_equal(exchange_rows_sent(x, 0), 8);
    assert_int_equal(exchange_rows_sent(x, 1), 0);
    assert_int_equal(exchange_rows_sent(x, 2), 12);
    assert_int_equal(exchange_rows_received(x, 0), 4);
    assert_int_equal(exchange_rows_received(x, 1), 9);
    assert_int_equal(exchange_rows_received(x, 2), 7);

    assert_int_equal(exchange_sent_after(x, 2, 0, 4), 0);
    assert_int_equal(exchange_sent_after(x, 2, 1, 4), 1 + 4 + 2);
    assert_int_equal(exchange_sent_after(x, 2, 2, 4), 1 + 8 + 2);
    assert_int_equal(exchange_received_after(x, 2, 1, 4), 4 + 2);
    assert_int_equal(exchange_received_after(x, 2, 1, UINT64_MAX), 7);
    assert_int_equal(exchange_received_after(x, 2, UINT64_MAX, UINT64_MAX), 7);
    assert_null(exchange_free(NULL));
}

TEST(an_exchange_of_nothing_has_no_steps)
{
    uint64_t counts[WORLD_RANKS][WORLD_RANKS] = { { 0 } };
    _cleanup_(exchange_freep) struct exchange *x = exchange_of(counts, 4);
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 4);
    assert_int_equal(exchange_rows_max(x), 0);
    assert_int_equal(exchange_emit(&p, x, 3, 0, 1, 1), 0);
    assert_int_equal(p.nsteps, 0);
}

TEST(an_exchange_refuses_sums_that_do_not_fit)
{
    const uint64_t huge[] = { UINT64_MAX, 0 }, two[] = { 0, 1 }, one[] = { 1, 1 };
    const uint64_t row[] = { UINT64_MAX, 1 };
    const uint64_t *fits[] = { huge, two }, *column[] = { huge, one }, *sum[] = { row, two };
    struct exchange *x = NULL;

    assert_int_equal(exchange_new(2, column, &x), -EOVERFLOW);
    assert_int_equal(exchange_new(2, sum, &x), -EOVERFLOW);
    assert_null(x);

    assert_int_equal(exchange_new(2, fits, &x), 0);
    assert_true(exchange_rows_sent(x, 0) == UINT64_MAX);
    assert_true(exchange_received_after(x, 0, 1ull << 40, 1ull << 40) == UINT64_MAX);
    exchange_free(x);
}

TEST(a_round_behind_the_last_is_empty_however_large)
{
    uint64_t counts[WORLD_RANKS][WORLD_RANKS] = { { 5 } };
    _cleanup_(exchange_freep) struct exchange *x = exchange_of(counts, 1);
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 1);
    assert_int_equal(exchange_emit(&p, x, 0, 5, 1, 3), 0);
    assert_int_equal(exchange_emit(&p, x, 0, UINT64_MAX, 2, 3), 0);
    assert_int_equal(exchange_emit(&p, x, 0, 1ull << 63, 2, 3), 0);
    assert_int_equal(p.nsteps, 0);
    assert_int_equal(exchange_emit(&p, x, 0, 0, UINT64_MAX, 3), 0);
    assert_int_equal(p.nsteps, 1);
    assert_int_equal(p.spans[0].count, 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_exchange_on_a_node_moves_whole_rows_to_their_places),
        cmocka_unit_test(an_exchange_knows_its_matrix),
        cmocka_unit_test(an_exchange_of_nothing_has_no_steps),
        cmocka_unit_test(an_exchange_refuses_sums_that_do_not_fit),
        cmocka_unit_test(a_round_behind_the_last_is_empty_however_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
