/*
 * Runs between nodes: every row of the table by engines with real devices, joined by the transport
 * within this process, in every order that chance brings.
 */
#include "tests/unit/walk.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/plan/price.h"

static void try_any(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    static const uint64_t counts[] = { 1, 3, 17, 64 }, lengths[] = { 1, 5, 100 };
    const uint64_t n = counts[any_below(ARRAY_SIZE(counts))];
    struct operation o =
        operation_of(a, nodes, type, n, MIN(n, lengths[any_below(ARRAY_SIZE(lengths))]));

    daemons_any_weather();
    operation_fill(&o);
    operation_start(&o, false);
    operation_run(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++) {
        assert_int_equal(o.parts[i].result, 0);
        assert_int_equal(local_pending(daemons[i].transport), 0);
    }
    assert_int_equal(o.progress, o.chunking.chunks);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(every_row_gives_the_canonical_bits_however_it_goes)
{
    walk(try_any, NODES_MAX);
}

static void try_budget(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    const bool one = any_below(3) == 0; /* unit, which may be enclosed */
    struct operation o = operation_of(a, nodes, type, one ? 8 : 40, 8);
    uint64_t most = 0;

    o.piece = one ? 8 : o.piece;

    daemons_any_weather();
    operation_fill(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++) {
        operation_emit(&o, i);
        most = MAX(most, o.parts[i].piece_peak);
        plan_fini(&o.parts[i].full);
        plan_fini(&o.parts[i].last);
        plan_fini(&o.parts[i].tail);
    }
    o.budget = most * (1 + any_below(2)) + any_below(2) * most / 2;
    o.depth = DEPTH_MAX;
    operation_start(&o, false);
    operation_run(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++)
        assert_true(run_peak_bytes(o.parts[i].run) <= o.budget);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(what_is_staged_and_under_way_is_never_above_the_budget)
{
    walk(try_budget, 4);
}

static void try_held(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    struct operation o = operation_of(a, nodes, type, 9, 9);

    daemons_any_weather();
    operation_fill(&o);
    operation_start(&o, true);
    for (uint32_t i = 0; i < 10; i++)
        engine_poll(daemons[any_below(nodes->nnodes)].engine);
    operation_assert_untouched(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++)
        assert_int_equal(local_pending(daemons[i].transport), 0);
    operation_run(&o);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(a_held_run_sends_nothing_and_writes_no_output)
{
    walk(try_held, 3);
}

static bool all_send_first(const struct operation *o)
{
    bool first = true;

    for (uint32_t i = 0; first && i < o->nodes->nnodes; i++)
        assert_int_equal(plan_sends_first(&o->parts[i].tail, &first), 0);
    return first;
}

/* Whether anything has to be sent by the transport: it was not ready when all agreed. */
static bool any_is_far(const struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (operation_is_far(o, i) || o->parts[i].fence)
            return true;
    return false;
}

static bool waits_for(const struct operation *o, uint32_t node)
{
    struct fence *f = o->parts[node].fence;

    return f && f->device->ops->fence_passed(f) == 0;
}

static void try_enclosed(const struct algorithm *a, const struct placement *nodes, size_t type)
{
    struct operation o = operation_of(a, nodes, type, 5, 5);

    o.piece = 5;
    daemons_any_weather();
    daemons_honest_devices();
    operation_fill(&o);
    sequence++;
    for (uint32_t i = 0; i < nodes->nnodes; i++) {
        operation_emit(&o, i);
        operation_prepare(&o, i, RUN_ENCLOSING, NULL);
        operation_over(&o, i, engine_submit(daemons[i].engine, o.parts[i].run));
    }
    for (uint32_t i = 0; i < nodes->nnodes && all_send_first(&o); i++) {
        const bool waits = operation_is_far(&o, i) || waits_for(&o, i);

        for (uint32_t k = 0; k < nodes->nnodes; k++)
            assert_true(operation_enclose(&o, i, k) ? !waits || !o.parts[k].letters[i].len : waits);
        /* the first would fail */
        if (!any_is_far(&o))
            local_configure(daemons[i].transport,
                            &(struct local_config){ .fail_transfer = 1, .fail_errno = EIO });
    }
    operation_run(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++)
        assert_int_equal(o.parts[i].result, 0);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(what_was_enclosed_never_touches_the_transport)
{
    walk(try_enclosed, 4);
}

/* A direct all_reduce of nothing, of one rank on each of two nodes. */
TEST(a_held_run_of_nothing_is_over_when_it_is_released)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
    struct operation o = operation_of(find_algorithm(COLLECTIVE_ALL_REDUCE, "direct"), p, 0, 1, 1);

    o.at_home = true;
    operation_fill(&o);
    o.piece = 0;
    o.chunking = (struct chunking){ 0, 0, 0 };
    sequence++;
    for (uint32_t i = 0; i < 2; i++) {
        o.parts[i].full.nranks = 1;
        operation_prepare(&o, i, RUN_ENCLOSING, NULL);
        assert_int_equal(engine_submit(daemons[i].engine, o.parts[i].run), ENGINE_PENDING);
        assert_true(operation_enclose(&o, i, !i));
        engine_poll(daemons[i].engine);
        assert_int_equal(o.parts[i].ndone, 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(o.parts[!i].letters[i].len, 0);
        operation_release(&o, i);
        assert_int_equal(o.parts[i].result, 0);
    }
    operation_finish(&o);
}

/* In chunks of five elements. */
static void refuse_letter(uint64_t count)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
    struct operation o =
        operation_of(find_algorithm(COLLECTIVE_ALL_REDUCE, "direct"), p, 0, count, 5);

    operation_fill(&o);
    operation_start(&o, true);
    o.parts[0].letters[1].bytes = "too short";
    o.parts[0].letters[1].len = 9;
    operation_release(&o, 0);
    assert_int_equal(o.parts[0].ndone, 1);
    assert_int_equal(o.parts[0].result, -EPROTO);
    operation_over(&o, 1, engine_cancel(daemons[1].engine, o.parts[1].run));
    while (!operation_is_over(&o))
        daemons_turn(2);
    assert_int_equal(o.parts[1].result, -ECANCELED);
    operation_finish(&o);
    links_close();
    links_open();
}

TEST(a_letter_of_another_length_fails_its_run)
{
    refuse_letter(5);
}

TEST(a_letter_where_none_may_come_fails_its_run)
{
    refuse_letter(20);
}

/* ---------------------------------------------------------------- claims: rows */

static struct exchange *exchange_random(uint32_t n, bool equal)
{
    static uint64_t counts[WORLD_RANKS][WORLD_RANKS];
    const uint64_t *rows[WORLD_RANKS];
    const uint32_t one = 1 + any_below(4);
    struct exchange *x;

    for (uint32_t s = 0; s < n; s++) {
        rows[s] = counts[s];
        for (uint32_t d = 0; d < n; d++)
            counts[s][d] = equal ? one : any_below(3) ? any_below(5) : 0;
    }
    assert_int_equal(exchange_new(n, rows, &x), 0);
    return x;
}

static void try_exchange(const struct algorithm *a, const struct placement *nodes,
                         const struct exchange *x, uint64_t rows, uint64_t row)
{
    struct operation o = { .algorithm = a,
                           .nodes = nodes,
                           .depth = 1 + any_below(DEPTH_MAX),
                           .width = 4,
                           .budget = UINT64_MAX };
    const uint64_t most = exchange_rows_max(x);

    o.w = (struct world){ .d = { .kind = a->kind,
                                 .dtype = DTYPE_I32,
                                 .shape = { 2, { exchange_rows_sent(x, 0), row } },
                                 .nranks = nodes->nranks },
                          .nranks = nodes->nranks,
                          .exchange = x,
                          .nodes = nodes };
    o.chunking = (struct chunking){ most, rows, div_up_u64(most, rows) };
    if (strcmp(a->name, "pairwise") == 0)
        o.budget = rows * row * nodes->nranks * 4;
    for (uint32_t r = 0; r < nodes->nranks; r++) {
        o.w.in_count[r] = exchange_rows_sent(x, r) * row;
        o.w.out_count[r] = exchange_rows_received(x, r) * row;
    }
    daemons_any_weather();
    operation_fill(&o);
    operation_start(&o, false);
    operation_run(&o);
    for (uint32_t i = 0; i < nodes->nnodes; i++) {
        assert_int_equal(o.parts[i].result, 0);
        assert_true(run_peak_bytes(o.parts[i].run) <= o.budget);
    }
    assert_int_equal(o.progress, o.chunking.chunks);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(every_exchange_moves_whole_rows_within_its_budget)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        for (uint32_t nnodes = 2; nnodes <= NODES_MAX; nnodes++)
            for (uint32_t ranks = 0; ranks <= 3; ranks++) {
                const struct descriptor d = { .kind = a->kind };

                if (collective_get(a->kind)->shape != SHAPE_EXCHANGE || !a->fits(&d, nnodes))
                    continue;

                _cleanup_(placement_freep) struct placement *p = placement_of(nnodes, ranks);
                _cleanup_(exchange_freep) struct exchange *x =
                    exchange_random(p->nranks, a->kind == COLLECTIVE_ALL_TO_ALL);

                for (uint64_t rows = 1; rows <= 5; rows += 2)
                    try_exchange(a, p, x, rows, 1 + any_below(3));
            }
}

/* ---------------------------------------------------------------- claims: pairs */

static void emit_pair(struct plan *p, bool send, uint64_t count)
{
    plan_init(p, 2);
    plan_step(p, (struct step){ .kind = send ? STEP_SEND : STEP_RECV,
                                .after = STEP_NONE,
                                .peer = send ? 1 : 0 });
    if (send)
        plan_source(p, (struct span){ BUFFER_IN, 0, 0, count });
    else
        plan_destination(p, (struct span){ BUFFER_OUT, 1, 0, count });
    assert_int_equal(p->error, 0);
}

static void pair_done(struct run *run, int r)
{
    int *result = run_owner(run);

    *result = r;
}

static void pair_progress(struct run *run, uint64_t chunks)
{
    (void)run;
    (void)chunks;
}

/* Nothing is due, and no descriptor says so either. */
static void assert_asleep(uint32_t node)
{
    struct engine *e = daemons[node].engine;
    struct pollfd fds[3] = { { engine_fd(e), POLLIN, 0 },
                             { engine_transport_fd(e), POLLIN, 0 },
                             { engine_gpu_fd(e), POLLIN, 0 } };

    for (uint32_t i = 0; i < POLLS_MAX && engine_wants_turn(e); i++)
        engine_poll(e);
    assert_false(engine_wants_turn(e));
    assert_int_equal(poll(fds, 3, 0), 0);
}

TEST(a_pair_is_one_message_and_who_waits_for_it_sleeps)
{
    static uint8_t from[1000], to[1000];
    const struct descriptor d = { .kind = COLLECTIVE_SEND, .dtype = DTYPE_U8, .nranks = 2 };
    struct run *runs[2];
    struct plan plans[2];
    int results[2] = { 1, 1 };

    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)any_below(256);
    for (uint32_t i = 2; i-- > 0;) {
        static struct run_network networks[2];

        networks[i] = (struct run_network){ daemons[i].channel, daemons[i].peers, NULL, i, 77 };
        emit_pair(&plans[i], i == 0, sizeof(from));
        assert_int_equal(run_new(2, 1, &runs[i]), 0);
        run_memory(runs[i])->in[0] = i == 0 ? from : NULL;
        run_memory(runs[i])->out[1] = i == 0 ? NULL : to;
        assert_int_equal(run_prepare(runs[i], &(struct run_spec){ .d = &d,
                                                                  .nparts = 2,
                                                                  .chunking = { 1000, 1000, 1 },
                                                                  .piece_length = 1000,
                                                                  .full = &plans[i],
                                                                  .tail = &plans[i],
                                                                  .memory = run_memory(runs[i]),
                                                                  .depth = 1,
                                                                  .network = &networks[i],
                                                                  .budget_bytes = UINT64_MAX,
                                                                  .progress = pair_progress,
                                                                  .done = pair_done,
                                                                  .owner = &results[i] }),
                         0);
        if (engine_submit(daemons[i].engine, runs[i]) == 0)
            results[i] = run_result(runs[i]);
        else if (i == 1)
            assert_asleep(i);
    }
    while (results[0] > 0 || results[1] > 0)
        daemons_turn(2);
    assert_int_equal(results[0], 0);
    assert_int_equal(results[1], 0);
    assert_memory_equal(from, to, sizeof(from));
    for (uint32_t i = 0; i < 2; i++) {
        plan_fini(&plans[i]);
        run_free(runs[i]);
    }
}

/* ---------------------------------------------------------------- claims: large */

TEST(pieces_that_workers_take_come_out_right)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(3, 2);
    const uint64_t n = 400003;

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        if (a->kind != COLLECTIVE_ALL_REDUCE || !fits(a, p, 5))
            continue;

        struct operation o = operation_of(a, p, 5, n, 200000);

        o.piece = 70000;
        daemons_any_weather();
        operation_fill(&o);
        operation_start(&o, false);
        operation_run(&o);
        operation_compare(&o);
        operation_finish(&o);
    }
}

/* Outside of any poll. */
TEST(who_waits_for_a_peer_that_goes_has_a_turn)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
    struct operation o = operation_of(find_algorithm(COLLECTIVE_BROADCAST, "direct"), p, 0, 5, 5);

    o.w.d.root = 0;
    daemons_honest_devices();
    operation_fill(&o);
    sequence++;
    for (uint32_t i = 0; i < 2; i++) {
        operation_emit(&o, i);
        operation_prepare(&o, i, RUN_AT_ONCE, NULL);
    }
    operation_submit(&o, 1);
    assert_asleep(1);
    transport_local.peer_free(daemons[1].peers[0]);
    assert_int_equal(o.parts[1].ndone, 0);
    assert_true(engine_wants_turn(daemons[1].engine));
    engine_poll(daemons[1].engine);
    assert_int_equal(o.parts[1].ndone, 1);
    assert_int_equal(o.parts[1].result, -ECONNRESET);
    operation_submit(&o, 0);
    while (!operation_is_over(&o))
        daemons_turn(1);
    assert_int_equal(o.parts[0].result, -ECONNRESET);
    operation_finish(&o);
    transport_local.peer_free(daemons[0].peers[1]);
    links_join(0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_gives_the_canonical_bits_however_it_goes),
        cmocka_unit_test(what_is_staged_and_under_way_is_never_above_the_budget),
        cmocka_unit_test(a_held_run_sends_nothing_and_writes_no_output),
        cmocka_unit_test(what_was_enclosed_never_touches_the_transport),
        cmocka_unit_test(a_held_run_of_nothing_is_over_when_it_is_released),
        cmocka_unit_test(a_letter_of_another_length_fails_its_run),
        cmocka_unit_test(a_letter_where_none_may_come_fails_its_run),
        cmocka_unit_test(every_exchange_moves_whole_rows_within_its_budget),
        cmocka_unit_test(a_pair_is_one_message_and_who_waits_for_it_sleeps),
        cmocka_unit_test(pieces_that_workers_take_come_out_right),
        cmocka_unit_test(who_waits_for_a_peer_that_goes_has_a_turn),
    };

    return walk_run_group(tests, ARRAY_SIZE(tests));
}
