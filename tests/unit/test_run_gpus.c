/*
 * Runs that touch memory of GPUs: what they wait for, how they end, and what they leave. That they
 * move what they should is said of every row by test_run_nodes.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/bounce.h"
#include "tests/contract/flaky_device.h"
#include "tests/contract/flaky_gpus.h"
#include "tests/unit/daemons.h"

#define TURNS 50u

static const struct algorithm *find_algorithm(enum collective_id kind, const char *name)
{
    const struct algorithm *a = algorithms;

    while (a->kind != kind || strcmp(a->name, name) != 0)
        a++;
    return a;
}

/* Of f32 on two nodes, in one piece. */
static struct operation operation_of(enum collective_id kind, const char *name,
                                     const struct placement *nodes, uint64_t n)
{
    struct operation o = { .algorithm = find_algorithm(kind, name),
                           .nodes = nodes,
                           .chunking = { n, n, 1 },
                           .piece = n,
                           .depth = 1,
                           .width = 4,
                           .budget = UINT64_MAX };

    o.w = world_of(kind, DTYPE_F32, OPERATOR_SUM, nodes, n);
    return o;
}

static void prepare(struct operation *o, enum run_start start)
{
    sequence++;
    for (uint32_t i = 0; i < o->nodes->nnodes; i++) {
        operation_emit(o, i);
        operation_prepare(o, i, start, NULL);
    }
}

static void poll_all(uint32_t turns)
{
    while (turns--)
        for (uint32_t i = 0; i < NODES_MAX; i++)
            engine_poll(daemons[i].engine);
}

static uint64_t tasks_taken(uint32_t node)
{
    return flaky_taken(flaky_gpus_tasks(daemons[node].gpus)) +
           (daemons[node].device->ops == &device_flaky ? flaky_taken(daemons[node].device) : 0);
}

static void expect_nothing_issued(const struct operation *o, uint32_t node)
{
    assert_int_equal(o->parts[node].ndone, 0);
    assert_int_equal(tasks_taken(node), 0);
    assert_int_equal(local_pending(daemons[node].transport), 0);
    assert_int_equal(run_peak_bytes(o->parts[node].run), 0);
    assert_true(run_is_fenced(o->parts[node].run));
}

static void end_the_others(struct operation *o)
{
    for (uint32_t i = 0; i < o->nodes->nnodes; i++)
        if (!o->parts[i].ndone)
            operation_over(o, i, engine_cancel(daemons[i].engine, o->parts[i].run));
    for (uint32_t n = 0; !operation_is_over(o) && n < POLLS_MAX; n++)
        poll_all(1);
    operation_finish(o);
    links_close();
    links_open();
}

/* ---- bounces */

TEST(pieces_are_copied_at_once_in_one_tensor_alone)
{
    static uint8_t near[256], far[256];
    struct step step = { .channel = 0 };
    const struct plan plan = { .steps = &step, .nsteps = 1, .nchannels = 1 };
    uint64_t bounce_at = 0;
    struct slot slot = { .plan = &plan, .bounce = near, .bounce_at = &bounce_at };
    struct message m = { .slot = &slot };

    assert_int_equal(bounce_reserve(&m, 4), 0);
    assert_ptr_equal(bounce_add(&m, 0, far, 64), near);
    assert_ptr_equal(bounce_add(&m, 0, far + 64, 64), near + 64);
    assert_ptr_equal(bounce_add(&m, 2, far + 128, 64), near + 128);
    assert_ptr_equal(bounce_add(&m, 3, far + 192, 64), near + 192);
    assert_int_equal(m.bounce.ncopies, 3);
    assert_int_equal(m.bounce.copies[0].task.count, 128);
    assert_ptr_equal(m.bounce.copies[1].far, far + 128);
    free(m.bounce.copies);
}

/* ---- fences */

static void try_late(enum collective_id kind, const char *name, enum run_start start, bool far)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 2);
    struct operation o = operation_of(kind, name, p, 100);

    daemons_use_gpus(far ? 100 : 0);
    daemons_honest_devices();
    operation_fill(&o);
    o.parts[1].fence = flaky_gpus_fence(daemons[1].gpus, FENCE_NEVER);
    prepare(&o, start);
    operation_submit(&o, 1);
    operation_submit(&o, 0);
    poll_all(TURNS);
    expect_nothing_issued(&o, 1);
    for (uint32_t i = 0; i < 2; i++)
        if (o.parts[i].held)
            operation_release(&o, i);
    poll_all(TURNS);
    expect_nothing_issued(&o, 1);
    flaky_gpus_settle(o.parts[1].fence, 0);
    operation_run(&o);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(o.parts[i].result, 0);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(nothing_is_issued_before_the_fences_have_passed)
{
    static const enum run_start starts[] = { RUN_AT_ONCE, RUN_HELD, RUN_ENCLOSING, RUN_EARLY };

    for (uint32_t i = 0; i < 8; i++) {
        try_late(COLLECTIVE_ALL_REDUCE, "direct", starts[i / 2], i % 2);
        try_late(COLLECTIVE_ALL_GATHER, "ring", starts[i / 2], i % 2);
    }
}

TEST(a_fence_that_fails_fails_the_run)
{
    for (uint32_t held = 0; held < 2; held++) {
        _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
        struct operation o = operation_of(COLLECTIVE_ALL_REDUCE, "direct", p, 10);

        daemons_use_gpus(100);
        daemons_honest_devices();
        operation_fill(&o);
        o.parts[0].fence = flaky_gpus_fence(daemons[0].gpus, FENCE_NEVER);
        prepare(&o, held ? RUN_HELD : RUN_AT_ONCE);
        operation_submit(&o, 0);
        operation_submit(&o, 1);
        poll_all(TURNS);
        flaky_gpus_settle(o.parts[0].fence, -EIO);
        poll_all(1);
        assert_int_equal(o.parts[0].ndone, 1);
        assert_int_equal(o.parts[0].result, -EIO);
        assert_int_equal(tasks_taken(0), 0);
        operation_assert_untouched(&o);
        end_the_others(&o);
    }
}

TEST(a_run_that_waits_for_a_fence_is_cancelled_at_once)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 1);
    struct operation o = operation_of(COLLECTIVE_BROADCAST, "direct", p, 10);

    daemons_use_gpus(100);
    operation_fill(&o);
    for (uint32_t i = 0; i < 2; i++)
        o.parts[i].fence = flaky_gpus_fence(daemons[i].gpus, FENCE_NEVER);
    prepare(&o, RUN_AT_ONCE);
    for (uint32_t i = 0; i < 2; i++) {
        operation_submit(&o, i);
        assert_int_equal(engine_cancel(daemons[i].engine, o.parts[i].run), 0);
        operation_over(&o, i, 0);
        assert_int_equal(o.parts[i].result, -ECANCELED);
        assert_false(engine_wants_turn(daemons[i].engine));
    }
    operation_finish(&o);
}

/* ---- staging */

static uint32_t adopted(void)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < NODES_MAX; i++)
        n += flaky_gpus_adopted(daemons[i].gpus);
    return n;
}

static void move(const char *name, bool at_home)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 2);
    struct operation o = operation_of(COLLECTIVE_ALL_REDUCE, name, p, 1000);

    o.at_home = at_home;
    operation_fill(&o);
    operation_start(&o, false);
    operation_run(&o);
    assert_int_equal(o.parts[0].result, 0);
    operation_compare(&o);
    operation_finish(&o);
}

TEST(what_is_staged_is_adopted_once_and_let_go_of)
{
    uint32_t n;

    daemons_close(NULL);
    daemons_open(NULL);
    daemons_use_gpus(100);
    daemons_honest_devices();
    move("direct", true);
    assert_int_equal(adopted(), 0);
    move("direct", false);
    n = adopted();
    assert_true(n > 0);
    move("direct", false);
    move("direct", true);
    assert_int_equal(adopted(), n);
    daemons_close(NULL);
    daemons_open(NULL); /* a row closes with nothing adopted only */
    assert_int_equal(adopted(), 0);
}

TEST(a_run_on_host_memory_leaves_gpus_alone)
{
    daemons_use_gpus(100);
    daemons_honest_devices();
    move("direct", true);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(flaky_taken(flaky_gpus_tasks(daemons[i].gpus)), 0);
}

TEST(staging_that_cannot_be_adopted_fails_the_run_alone)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, 2);
    struct operation o = operation_of(COLLECTIVE_ALL_REDUCE, "direct", p, 1000);

    daemons_close(NULL);
    daemons_open(NULL);
    daemons_use_gpus(100);
    daemons_honest_devices();
    operation_fill(&o);
    flaky_gpus_refuse_adoption(daemons[0].gpus, -ENOMEM);
    prepare(&o, RUN_AT_ONCE);
    operation_submit(&o, 0);
    operation_submit(&o, 1);
    for (uint32_t n = 0; !o.parts[0].ndone && n < POLLS_MAX; n++)
        poll_all(1);
    assert_int_equal(o.parts[0].result, -ENOMEM);
    end_the_others(&o);
    move("direct", true);
    flaky_gpus_refuse_adoption(daemons[0].gpus, 0);
    move("direct", false);
}

/* ---- straight */

/* Bytes of an all_gather on two nodes that go from and to GPUs as they are. */
static uint64_t copied_straight(uint64_t bytes_min, enum run_start start, uint32_t ranks)
{
    _cleanup_(placement_freep) struct placement *p = placement_of(2, ranks);
    struct operation o = operation_of(COLLECTIVE_ALL_GATHER, "ring", p, 1000);
    const uint64_t before = flaky_gpus_copied();

    daemons_move_gpus(bytes_min);
    daemons_calm();
    daemons_use_gpus(100);
    daemons_honest_devices();
    operation_fill(&o);
    prepare(&o, start);
    for (uint32_t i = 0; i < 2; i++)
        operation_submit(&o, i);
    operation_run(&o);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(o.parts[i].result, 0);
    operation_compare(&o);
    operation_finish(&o);
    daemons_move_gpus(TRANSPORT_NO_GPUS);
    daemons_calm();
    return flaky_gpus_copied() - before;
}

TEST(messages_go_straight_where_the_transport_moves_them)
{
    /* two messages of a tensor, each out of one GPU and into another */
    assert_int_equal(copied_straight(4000, RUN_AT_ONCE, 1), 4 * 4000);
    assert_int_equal(copied_straight(4000, RUN_EARLY, 1), 4 * 4000);
    assert_int_equal(copied_straight(4001, RUN_AT_ONCE, 1), 0);
    assert_int_equal(copied_straight(TRANSPORT_NO_GPUS, RUN_AT_ONCE, 1), 0);
}

TEST(what_could_be_enclosed_does_not_go_straight)
{
    assert_int_equal(copied_straight(1, RUN_HELD, 1), 0);
    assert_int_equal(copied_straight(1, RUN_ENCLOSING, 1), 0);
}

/* ---- signals */

enum { CHUNKS = 3, CHUNK = 1000, SIGNAL = 7 };

/* A run of one node: every chunk is copied by two steps, one after the other or not. */
struct copying {
    struct run *run;
    struct plan plan;
    struct mapping *from, *to, *cells;
    struct signal signal;
    unsigned ndone;
    int result;
};

static void copying_done(struct run *run, int r)
{
    struct copying *c = run_owner(run);

    c->ndone++;
    c->result = r;
}

static void copying_progress(struct run *run, uint64_t chunks)
{
    (void)run, (void)chunks;
}

static void copying_open(struct copying *c, bool in_turn)
{
    struct device *gpus = daemons[0].gpus;

    *c = (struct copying){ .from = flaky_memory(gpus, CHUNKS * CHUNK),
                           .to = flaky_memory(gpus, CHUNKS * CHUNK),
                           .cells = flaky_memory(daemons[0].device, sizeof(uint32_t)) };
    c->signal = (struct signal){ .cells = c->cells, .value = SIGNAL };
    memset(flaky_view(c->from), 0x5a, CHUNKS * CHUNK);
    plan_init(&c->plan, 2);
    for (uint32_t i = 0; i < 2; i++) {
        plan_step(&c->plan, (struct step){ .kind = STEP_COPY,
                                           .channel = i,
                                           .after = i && in_turn ? 0 : STEP_NONE });
        plan_source(&c->plan, (struct span){ BUFFER_IN, 0, i * CHUNK / 2, CHUNK / 2 });
        plan_destination(&c->plan, (struct span){ BUFFER_OUT, 1, i * CHUNK / 2, CHUNK / 2 });
    }
    assert_int_equal(c->plan.error, 0);
    assert_int_equal(run_new(2, 2, &c->run), 0);
}

static void copying_close(struct copying *c)
{
    plan_fini(&c->plan);
    run_free(c->run);
    mapping_unref(c->from);
    mapping_unref(c->to);
    mapping_unref(c->cells);
}

static void copying_start(struct copying *c, uint32_t depth)
{
    static const struct descriptor d = { .kind = COLLECTIVE_SEND, .dtype = DTYPE_U8, .nranks = 2 };
    struct run_memory *m = run_memory(c->run);
    const struct run_spec spec = { .d = &d,
                                   .nparts = 2,
                                   .chunking = { CHUNKS * CHUNK, CHUNK, CHUNKS },
                                   .piece_length = CHUNK,
                                   .full = &c->plan,
                                   .last = &c->plan,
                                   .tail = &c->plan,
                                   .memory = m,
                                   .signals = &c->signal,
                                   .nsignals = 1,
                                   .depth = depth,
                                   .budget_bytes = UINT64_MAX,
                                   .progress = copying_progress,
                                   .done = copying_done,
                                   .owner = c };

    m->in[0] = c->from->base;
    m->out[1] = c->to->base;
    m->mappings[0] = c->from;
    m->mappings[1] = c->to;
    m->nmappings = 2;
    assert_int_equal(run_prepare(c->run, &spec), 0);
    if (engine_submit(daemons[0].engine, c->run) == 0)
        copying_done(c->run, run_result(c->run));
}

static bool is_signalled(const struct copying *c)
{
    return *(const uint32_t *)flaky_view(c->cells) == SIGNAL;
}

/* What has been told is true. */
static void expect_honest(const struct copying *c)
{
    if (is_signalled(c))
        assert_memory_equal(flaky_view(c->from), flaky_view(c->to), CHUNKS * CHUNK);
}

/* To the end, or to some moment before it. Returns whether it was signalled. */
static bool copy_by(const struct flaky_config *config, uint32_t depth, bool in_turn, uint64_t turns)
{
    struct copying c;
    bool signalled;

    copying_open(&c, in_turn);
    flaky_configure(flaky_gpus_tasks(daemons[0].gpus), config);
    copying_start(&c, depth);
    for (; c.ndone == 0 && turns > 0; turns--) {
        engine_poll(daemons[0].engine);
        expect_honest(&c);
    }
    if (c.ndone == 0 && engine_cancel(daemons[0].engine, c.run) == 0)
        copying_done(c.run, run_result(c.run));
    while (c.ndone == 0)
        engine_poll(daemons[0].engine);
    expect_honest(&c);
    signalled = is_signalled(&c);
    if (c.result == 0 && config->mute_percent == 0 && depth == 1 && in_turn)
        assert_true(signalled);
    copying_close(&c);
    daemons_honest_devices();
    return signalled;
}

TEST(a_signal_is_not_written_before_all_is_done)
{
    unsigned signalled = 0;

    for (uint64_t seed = 0; seed < 400; seed++) {
        const struct flaky_config config = { .seed = seed,
                                             .busy_percent = seed % 3 * 30,
                                             .mute_percent = seed % 5 == 0 ? 50 : 0 };

        signalled += copy_by(&config, 1 + seed % 2, seed / 2 % 2, seed % 7 ? UINT64_MAX : seed % 9);
    }
    assert_true(signalled > 0);
}

TEST(a_run_that_fails_is_not_signalled)
{
    for (uint64_t seed = 0; seed < 400; seed++) {
        const struct flaky_config config = { .seed = seed,
                                             .fail_task = 1 + seed % (2 * CHUNKS),
                                             .fail_errno = EIO };

        assert_false(copy_by(&config, 1 + seed / 6 % 2, seed / 12 % 2, UINT64_MAX));
    }
}

/* ---- pairs */

struct pair {
    struct run *runs[2];
    struct plan plans[2];
    struct run_network networks[2];
    struct mapping *memory[2];
    int results[2];
};

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

static void emit_end(struct plan *p, uint32_t peer, bool sends, uint64_t count)
{
    plan_init(p, 2);
    plan_step(p, (struct step){
                     .kind = sends ? STEP_SEND : STEP_RECV, .after = STEP_NONE, .peer = peer });
    if (sends)
        plan_source(p, (struct span){ BUFFER_IN, 0, 0, count });
    else
        plan_destination(p, (struct span){ BUFFER_OUT, 1, 0, count });
    assert_int_equal(p->error, 0);
}

/* One end of a pair, of three pieces. */
static void submit_end(struct pair *pair, uint32_t from, bool sends, uint64_t number)
{
    static const struct descriptor d = { .kind = COLLECTIVE_SEND, .dtype = DTYPE_U8, .nranks = 2 };
    const uint32_t end = !sends, node = sends ? from : !from;
    const uint64_t piece = 1000;
    struct run_memory *m;

    pair->memory[end] = flaky_memory(daemons[node].gpus, 3 * piece);
    memset(flaky_view(pair->memory[end]), sends ? (int)number : 0, 3 * piece);
    pair->networks[end] =
        (struct run_network){ daemons[node].channel, daemons[node].peers, NULL, node, number };
    emit_end(&pair->plans[end], !node, sends, piece);
    assert_int_equal(run_new(2, 2, &pair->runs[end]), 0);
    m = run_memory(pair->runs[end]);
    m->in[0] = sends ? pair->memory[end]->base : NULL;
    m->out[1] = sends ? NULL : pair->memory[end]->base;
    m->mappings[0] = pair->memory[end];
    m->nmappings = 1;
    pair->results[end] = 1;
    assert_int_equal(
        run_prepare(pair->runs[end], &(struct run_spec){ .d = &d,
                                                         .nparts = 2,
                                                         .chunking = { 3 * piece, piece, 3 },
                                                         .piece_length = piece,
                                                         .full = &pair->plans[end],
                                                         .last = &pair->plans[end],
                                                         .tail = &pair->plans[end],
                                                         .memory = m,
                                                         .depth = 2,
                                                         .network = &pair->networks[end],
                                                         .budget_bytes = UINT64_MAX,
                                                         .progress = pair_progress,
                                                         .done = pair_done,
                                                         .owner = &pair->results[end] }),
        0);
    if (engine_submit(daemons[node].engine, pair->runs[end]) == 0)
        pair->results[end] = run_result(pair->runs[end]);
}

static void pair_free(struct pair *pair)
{
    for (uint32_t end = 0; end < 2; end++) {
        plan_fini(&pair->plans[end]);
        run_free(pair->runs[end]);
        mapping_unref(pair->memory[end]);
    }
}

static bool pairs_are_over(const struct pair *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (pairs[i].results[0] > 0 || pairs[i].results[1] > 0)
            return false;
    return true;
}

#define PAIRS 40u

/* Their ends come in opposite orders on the two nodes, and all memory is promised to others. */
TEST(pairs_of_gpus_never_wait_for_each_others_staging)
{
    static struct pair pairs[PAIRS];
    uint64_t left[2];

    daemons_honest_devices();
    for (uint32_t i = 0; i < 2; i++) {
        left[i] = staging_left(daemons[i].staging);
        assert_int_equal(staging_reserve(daemons[i].staging, left[i]), 0);
    }
    for (uint32_t i = 0; i < PAIRS; i++)
        submit_end(&pairs[i], i % 2, i % 2 == 0, 100 + i);
    for (uint32_t i = PAIRS; i-- > 0;)
        submit_end(&pairs[i], i % 2, i % 2 != 0, 100 + i);
    while (!pairs_are_over(pairs, PAIRS))
        daemons_turn(2);
    for (uint32_t i = 0; i < PAIRS; i++) {
        assert_int_equal(pairs[i].results[0], 0);
        assert_int_equal(pairs[i].results[1], 0);
        assert_memory_equal(flaky_view(pairs[i].memory[0]), flaky_view(pairs[i].memory[1]), 3000);
        pair_free(&pairs[i]);
    }
    for (uint32_t i = 0; i < 2; i++)
        staging_unreserve(daemons[i].staging, left[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_copied_at_once_in_one_tensor_alone),
        cmocka_unit_test(nothing_is_issued_before_the_fences_have_passed),
        cmocka_unit_test(a_fence_that_fails_fails_the_run),
        cmocka_unit_test(a_run_that_waits_for_a_fence_is_cancelled_at_once),
        cmocka_unit_test(what_is_staged_is_adopted_once_and_let_go_of),
        cmocka_unit_test(a_run_on_host_memory_leaves_gpus_alone),
        cmocka_unit_test(staging_that_cannot_be_adopted_fails_the_run_alone),
        cmocka_unit_test(messages_go_straight_where_the_transport_moves_them),
        cmocka_unit_test(what_could_be_enclosed_does_not_go_straight),
        cmocka_unit_test(a_signal_is_not_written_before_all_is_done),
        cmocka_unit_test(a_run_that_fails_is_not_signalled),
        cmocka_unit_test(pairs_of_gpus_never_wait_for_each_others_staging),
    };

    return cmocka_run_group_tests(tests, daemons_open, daemons_close);
}
