/*
 * The machine of an operation, simulated: four ranks, a device that delays, refuses and fails, and
 * one thing that goes wrong, tried at every edge of the story; of some the memory is on GPUs.
 * Nothing here has sockets, threads or a clock; a seed is a story.
 */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/persistent.h"
#include "tests/contract/flaky_device.h"
#include "tests/contract/flaky_gpus.h"

#define RANKS   4u
#define COUNT   101u /* elements of one rank's block; prime */
#define STRIDE  4096u
#define TIMEOUT (300u * 1000000u)
#define CALLS   ARRAY_SIZE(script)

#define BLAME "GPU-0 failed with CUDA_ERROR_LAUNCH_FAILED"

#define UNTOUCHED 0x5a
#define LET_GO    0xee

struct call {
    enum collective_id kind;
    uint64_t budget;
    uint32_t root;
    bool makes;      /* a persistent operation of it */
    uint32_t starts; /* the one that this call has made; 0: none */
};

/* Long and short chunks, every shape of plan, one thing after the other and many at once. */
static const struct call script[] = {
    { COLLECTIVE_ALL_REDUCE, BUDGET_NONE, 0 },
    { COLLECTIVE_ALL_REDUCE, 64 * RANKS, 0 },
    { COLLECTIVE_BROADCAST, 128, 2 },
    { COLLECTIVE_ALL_REDUCE, 64 * RANKS, 0, true },
    { COLLECTIVE_BARRIER, BUDGET_NONE, 0 },
    { COLLECTIVE_ALL_REDUCE, 0, 0, .starts = 3 },
    { COLLECTIVE_ALL_GATHER, BUDGET_NONE, 0 },
    { COLLECTIVE_REDUCE, BUDGET_NONE, 3 },
    { COLLECTIVE_ALL_REDUCE, 0, 0, .starts = 3 },
    { COLLECTIVE_ALL_REDUCE, 0, 0, .starts = 3 },
    { COLLECTIVE_ALL_TO_ALL_V, 40 * RANKS, 0 },
    { COLLECTIVE_REDUCE_SCATTER, 80 * RANKS, 0 },
};

enum fault {
    FAULT_NONE,
    FAULT_KILL,     /* the victim's process dies */
    FAULT_LEAVE,    /* it leaves while the others go on */
    FAULT_ABORT,    /* it aborts */
    FAULT_STALL,    /* it stops calling: a timeout */
    FAULT_MISMATCH, /* its next call has another type */
    FAULT_REJECT,   /* its own checks refuse its next call */
    FAULT_DEVICE,   /* a task fails: `at` counts tasks */
    FAULT_MEMORY,   /* memory cannot be backed; likewise */
    FAULT_STUCK,    /* a task never ends by itself, and the victim dies; likewise */
    FAULT_END,
};

struct client {
    struct member *member;
    bool alive, joined, left, stalled, odd;
    uint32_t posted, answered;
    int codes[CALLS]; /* -1: not answered */
    uint32_t persistent;
    struct fence *fence; /* of its next post; NULL: chance has it */
    struct error errors[CALLS];
    struct mapping *memory;
};

struct world {
    uint64_t now;
    struct device *device, *gpus;
    struct engine *engine;
    struct comms *comms;
    struct client clients[RANKS];
    enum fault fault;
    uint32_t victim;
    uint64_t random;
};

static struct world *the; /* handlers get no context but the client */

static uint64_t clock_now(void)
{
    return the->now;
}

/* ---- memory */

static int32_t value(uint32_t rank, uint32_t call, uint32_t i)
{
    return (int32_t)(rank * 100000 + call * 1000 + i);
}

static void *buffer(const struct client *c, uint32_t call, bool out)
{
    return (char *)flaky_view(c->memory) + (2 * call + out) * STRIDE;
}

static uint64_t buffer_offset(uint32_t call, bool out)
{
    return (2 * (uint64_t)call + out) * STRIDE;
}

static bool all_bytes(const void *p, uint8_t byte)
{
    const uint8_t *bytes = p;

    for (uint32_t i = 0; i < STRIDE; i++)
        if (bytes[i] != byte)
            return false;
    return true;
}

/* Uneven, with zeros; the same on every rank. */
static uint64_t exchange_count(uint32_t from, uint32_t to)
{
    return (from + 1) * to % 5 * 3;
}

static uint64_t exchange_before(uint32_t from, uint32_t to)
{
    uint64_t n = 0;

    for (uint32_t d = 0; d < to; d++)
        n += exchange_count(from, d);
    return n;
}

static void expect_exchange(const int32_t *out, uint32_t rank, uint32_t call)
{
    uint32_t at = 0;

    for (uint32_t s = 0; s < RANKS; s++)
        for (uint32_t i = 0; i < exchange_count(s, rank); i++)
            assert_int_equal(out[at++], value(s, call, (uint32_t)exchange_before(s, rank) + i));
}

static int32_t sum(uint32_t call, uint32_t i)
{
    int32_t v = 0;

    for (uint32_t r = 0; r < RANKS; r++)
        v += value(r, call, i);
    return v;
}

static void expect_result(const struct client *c, uint32_t rank, uint32_t call)
{
    const int32_t *out = buffer(c, call, true);
    uint32_t block = COUNT / RANKS;

    for (uint32_t i = 0; i < COUNT; i++) {
        switch (script[call].kind) {
        case COLLECTIVE_ALL_REDUCE:
            assert_int_equal(out[i], sum(call, i));
            break;
        case COLLECTIVE_REDUCE:
            if (rank == script[call].root)
                assert_int_equal(out[i], sum(call, i));
            break;
        case COLLECTIVE_BROADCAST:
            assert_int_equal(out[i], value(script[call].root, call, i));
            break;
        case COLLECTIVE_ALL_GATHER:
            for (uint32_t r = 0; r < RANKS; r++)
                assert_int_equal(out[r * COUNT + i], value(r, call, i));
            break;
        case COLLECTIVE_REDUCE_SCATTER:
            if (i < block)
                assert_int_equal(out[i], sum(call, rank * block + i));
            break;
        default:
            break;
        }
    }
    if (script[call].kind == COLLECTIVE_ALL_TO_ALL_V)
        expect_exchange(out, rank, call);
}

/* ---- what the clients hear */

static void joined(void *owner, struct member *m, const struct error *e)
{
    struct client *c = owner;

    assert_null(e);
    assert_false(c->joined);
    c->member = m;
    c->joined = true;
}

/* Whether it waits for a start: then the persistent operation's memory is not its own. */
static bool has_start(const struct client *c)
{
    for (uint32_t call = 0; call < c->posted; call++)
        if (script[call].starts && c->codes[call] == -1)
            return true;
    return false;
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *done)
{
    struct client *c = owner;
    uint32_t call = (uint32_t)serial - 1, rank = (uint32_t)(c - the->clients);

    assert_true(c->alive && m == c->member && call < c->posted);
    assert_int_equal(c->codes[call], -1);
    assert_int_equal(done->sequence, call + 1);
    c->answered++;
    c->codes[call] = done->error ? (int)done->error->code : 0;
    assert_int_equal(done->persistent, script[call].makes && !done->error);
    c->persistent |= done->persistent;
    if (done->error)
        c->errors[call] = *done->error;
    else if (script[call].makes)
        assert_true(all_bytes(buffer(c, call, true), UNTOUCHED));
    else
        expect_result(c, rank, script[call].starts ? script[call].starts : call);
    /* From here on the memory is the client's again: nobody may write to it. */
    memset(buffer(c, call, true), LET_GO, STRIDE);
    if (script[call].starts && !has_start(c))
        memset(buffer(c, script[call].starts, true), LET_GO, STRIDE);
}

static void left(void *owner, struct member *m)
{
    struct client *c = owner;

    assert_true(m == c->member && !c->left);
    assert_int_equal(c->answered, c->posted);
    c->left = true;
    c->member = NULL;
}

static const struct comm_events events = { joined, completed, left };

/* ---- the world */

/* Every third story is of GPUs: of all ranks, or of some. */
static bool has_gpus(uint64_t seed)
{
    return seed % 3 == 0;
}

static bool is_far(uint64_t seed, uint32_t rank)
{
    return has_gpus(seed) && (seed % 2 || rank % 3 == 0);
}

/* Now and then a post of theirs waits for their own work. */
static struct fence *make_fence(struct world *w, const struct client *c)
{
    if (c->fence)
        return fence_ref(c->fence);
    return w->gpus && unit_random(&w->random) % 3 == 0
               ? flaky_gpus_fence(w->gpus, unit_random(&w->random) % 4)
               : NULL;
}

static void open_gpus(struct world *w, const struct flaky_config *flaky)
{
    assert_int_equal(device_flaky_gpus.open(&(struct device_config){ 0 }, &w->gpus, NULL), 0);
    flaky_configure(flaky_gpus_tasks(w->gpus), flaky);
    flaky_gpus_blame(w->gpus, BLAME);
    engine_add_device(w->engine, w->gpus);
}

static unsigned pending(const struct world *w)
{
    return flaky_pending(w->device) + (w->gpus ? flaky_pending(flaky_gpus_tasks(w->gpus)) : 0);
}

static uint64_t taken(const struct world *w)
{
    return flaky_taken(w->device) + (w->gpus ? flaky_taken(flaky_gpus_tasks(w->gpus)) : 0);
}

static void fill(struct client *c, uint32_t rank)
{
    for (uint32_t call = 0; call < CALLS; call++) {
        int32_t *in = buffer(c, call, false);

        for (uint32_t i = 0; i < STRIDE / sizeof(*in); i++)
            in[i] = value(rank, call, i);
        memset(buffer(c, call, true), UNTOUCHED, STRIDE);
    }
}

static void join_all(struct world *w)
{
    char id[COMM_ID_BYTES];
    struct error e = { 0 };

    assert_int_equal(comms_id_new(w->comms, 1000, w->now, id, &e), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct request_join request = { .id = id,
                                        .rank = r,
                                        .nranks = RANKS,
                                        .label = "sim",
                                        .timeout_us = TIMEOUT,
                                        .algorithm = "" };
        struct join join = { &request, &w->clients[r], r, 1000, (pid_t)(100 + r) };
        struct member *m;

        assert_int_equal(comms_join(w->comms, &join, w->now, &m, &e), 0);
    }
}

static void world_open(struct world *w, uint64_t seed, enum fault fault, uint32_t at,
                       uint32_t victim)
{
    struct flaky_config flaky = { .seed = seed,
                                  .busy_percent = 20,
                                  .inline_percent = (unsigned)(seed % 3) * 40 };
    struct comms_config config = { .now = clock_now,
                                   .host = "here",
                                   .node = "node",
                                   .overflow_uid = 65534,
                                   .id_lifetime_us = TIMEOUT,
                                   .chunk_bytes = 1 << 20,
                                   .max_comms = 4 };

    *w = (struct world){ .now = 1000, .fault = fault, .victim = victim, .random = seed * 2 + 1 };
    the = w;
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &w->device, NULL), 0);
    if (fault == FAULT_DEVICE || fault == FAULT_MEMORY) {
        flaky.fail_task = at;
        flaky.fail_errno = fault == FAULT_DEVICE ? EIO : EFAULT;
    }
    if (fault == FAULT_STUCK)
        flaky.stuck_task = at;
    flaky_configure(w->device, &flaky);
    assert_int_equal(engine_new(w->device, NULL, NULL, &w->engine), 0);
    if (has_gpus(seed))
        open_gpus(w, &flaky);
    config.engine = w->engine;
    assert_int_equal(comms_new(&config, &events, &w->comms), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct client *c = &w->clients[r];

        c->alive = true;
        c->memory = flaky_memory(is_far(seed, r) ? w->gpus : w->device, 2 * CALLS * STRIDE);
        for (uint32_t call = 0; call < CALLS; call++)
            c->codes[call] = -1;
        fill(c, r);
    }
    join_all(w);
}

/* What is odd about a start is another call in its place, or a number that stands for nothing. */
static void start(struct world *w, struct client *c)
{
    struct post other = { .serial = c->posted + 1, .d.kind = COLLECTIVE_BARRIER };
    uint32_t id = c->odd && w->fault == FAULT_REJECT ? 100 : c->persistent;
    bool differs = c->odd && w->fault == FAULT_MISMATCH;
    struct fence *fence = make_fence(w, c);
    const struct start this = { .id = id, .serial = c->posted + 1, .fence = fence };

    c->odd = false;
    c->posted++;
    assert_int_equal(differs ? member_post(c->member, &other, w->now)
                             : member_start(c->member, &this, w->now),
                     0);
    fence_unref(fence);
}

static void post(struct world *w, uint32_t rank)
{
    struct client *c = &w->clients[rank];
    const struct call *call = &script[c->posted];
    const struct error reason = { .code = ERROR_INVALID_ARGUMENT, .text = "a reason" };
    uint64_t counts[RANKS], rows = 0;
    struct post p = {
        .serial = c->posted + 1,
        .d = { .kind = call->kind,
               .op = OPERATOR_SUM,
               .dtype = c->odd && w->fault == FAULT_MISMATCH ? DTYPE_F32 : DTYPE_I32,
               .shape = { 1, { COUNT } },
               .root = call->root,
               .budget = call->budget },
        .in = { c->memory, buffer_offset(c->posted, false) },
        .out = { c->memory, buffer_offset(c->posted, true) },
        .persistent = call->makes,
    };

    if (call->starts) {
        start(w, c);
        return;
    }
    if (call->kind == COLLECTIVE_REDUCE_SCATTER)
        p.d.shape.axes[0] = COUNT / RANKS * RANKS;
    if (call->kind == COLLECTIVE_ALL_TO_ALL_V) {
        for (uint32_t d = 0; d < RANKS; d++)
            rows += counts[d] = exchange_count(rank, d);
        p.d.shape.axes[0] = rows;
        p.counts = counts;
        p.ncounts = RANKS;
        p.out_rows = STRIDE / sizeof(int32_t);
    }
    if (c->odd && w->fault == FAULT_REJECT)
        p.rejection = &reason;
    c->odd = false;
    c->posted++;
    p.fence = make_fence(w, c);
    assert_int_equal(member_post(c->member, &p, w->now), 0);
    fence_unref(p.fence);
}

static void inject(struct world *w)
{
    struct client *c = &w->clients[w->victim];
    struct member *m = c->member;

    switch (w->fault) {
    case FAULT_KILL:
    case FAULT_STUCK:
        c->alive = false;
        c->member = NULL;
        member_lost(m, "died", w->now);
        break;
    case FAULT_LEAVE:
        c->stalled = true;
        member_leave(m, w->now);
        break;
    case FAULT_ABORT:
        member_abort(m, "had enough", w->now);
        break;
    case FAULT_STALL:
        c->stalled = true;
        break;
    case FAULT_MISMATCH:
    case FAULT_REJECT:
        c->odd = true;
        break;
    default:
        break;
    }
}

static bool may_post(const struct client *c)
{
    const uint32_t next = MIN(c->posted, CALLS - 1), made = script[next].starts;

    return c->alive && !c->stalled && c->joined && c->posted < CALLS &&
           c->posted - c->answered < 3 && (made == 0 || c->codes[made] != -1);
}

/* One random thing that may happen next; false when nothing can. */
static bool act(struct world *w)
{
    uint32_t choices[RANKS + 1], n = 0;

    for (uint32_t r = 0; r < RANKS; r++)
        if (may_post(&w->clients[r]))
            choices[n++] = r;
    if (pending(w) > 0 || engine_wants_turn(w->engine))
        choices[n++] = RANKS;
    if (n == 0)
        return false;

    uint32_t choice = choices[unit_random(&w->random) % n];

    w->now += 10;
    if (choice < RANKS) {
        post(w, choice);
    } else {
        const uint64_t taken_before = taken(w);
        const unsigned pending_before = pending(w);

        engine_poll(w->engine);
        /* A stuck task alone: nothing more happens until somebody cancels it. */
        if (n == 1 && pending_before == 1 && pending(w) == 1 && taken_before == taken(w) &&
            !engine_wants_turn(w->engine))
            return false;
    }
    return true;
}

static bool is_fatal(enum fault f)
{
    return f == FAULT_KILL || f == FAULT_LEAVE || f == FAULT_ABORT || f == FAULT_STALL ||
           f == FAULT_STUCK;
}

static int fault_code(enum fault f)
{
    static const int codes[] = {
        [FAULT_KILL] = ERROR_RANK_LOST,    [FAULT_LEAVE] = ERROR_RANK_LEFT,
        [FAULT_ABORT] = ERROR_ABORTED,     [FAULT_STALL] = ERROR_TIMEOUT,
        [FAULT_MISMATCH] = ERROR_MISMATCH, [FAULT_REJECT] = ERROR_INVALID_ARGUMENT,
        [FAULT_DEVICE] = ERROR_SYSTEM,     [FAULT_MEMORY] = ERROR_MEMORY_FAULT,
        [FAULT_STUCK] = ERROR_RANK_LOST,   [FAULT_END] = 0,
    };

    return codes[f];
}

/* Plays the story with the fault after `at` actions; false if it ended before. */
static bool play(struct world *w, uint32_t at)
{
    bool injected = false;

    for (uint32_t n = 0;; n++) {
        if (n == at && w->fault != FAULT_STUCK) {
            inject(w);
            injected = true;
        }
        if (act(w))
            continue;
        if (w->fault == FAULT_STUCK && !injected && pending(w) > 0) {
            inject(w);
            injected = true;
            continue;
        }
        if (comms_unfinished(w->comms) == 0)
            return injected;
        assert_int_equal(w->fault, FAULT_STALL);
        w->now += TIMEOUT;
        comms_tick(w->comms, w->now);
    }
}

static bool was_not_made(const struct world *w, const struct client *c, uint32_t call)
{
    return script[call].starts && c->codes[script[call].starts] != 0 && !is_fatal(w->fault);
}

static int expected_code(const struct world *w, const struct client *c, uint32_t call)
{
    if (was_not_made(w, c, call) || (script[call].starts && w->fault == FAULT_REJECT))
        return ERROR_NOT_FOUND;
    return fault_code(w->fault);
}

/* Every rank that lives heard the same of every call, and of the failure by name. */
static void expect_answers(const struct world *w)
{
    uint32_t failed = 0;

    for (uint32_t r = 0; r < RANKS; r++) {
        const struct client *c = &w->clients[r];

        if (!c->alive)
            continue;
        assert_int_equal(c->answered, c->posted);
        if (!c->stalled)
            assert_int_equal(c->posted, CALLS);
        for (uint32_t call = 0; call < c->posted; call++) {
            const struct error *e = &c->errors[call];

            assert_true(all_bytes(buffer(c, call, true), LET_GO));
            if (c->codes[call] == 0)
                continue;
            failed++;
            assert_int_equal(e->code, expected_code(w, c, call));
            if (w->gpus && e->code == ERROR_SYSTEM)
                assert_non_null(strstr(e->text, ": moving its data: " BLAME));
            if (was_not_made(w, c, call))
                assert_int_equal(e->nranks, RANKS);
            else if (is_fatal(w->fault) || w->fault == FAULT_REJECT || w->fault == FAULT_MISMATCH) {
                assert_int_equal(e->nranks, 1);
                assert_int_equal(e->ranks[0], w->victim);
            }
            for (uint32_t other = 0; other < RANKS; other++) {
                const struct client *o = &w->clients[other];

                if (!o->alive || call >= o->posted)
                    continue;
                /* once it is decided, all that are still asked hear the same words */
                if (o->codes[call] != 0)
                    assert_string_equal(o->errors[call].text, e->text);
                else
                    fail_msg("call %u failed for rank %u only: %s", call, r, e->text);
            }
        }
    }
    if (w->fault == FAULT_NONE)
        assert_int_equal(failed, 0);
}

/* Nothing is left: members part, memory is held by nobody. */
static void world_close(struct world *w)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct client *c = &w->clients[r];

        if (c->member && c->persistent && r % 2) /* the others' go with them */
            assert_int_equal(member_persistent_free(c->member, c->persistent), 0);
        if (c->member)
            member_leave(c->member, w->now);
        assert_true(c->left || !c->alive);
    }
    assert_int_equal(comms_count(w->comms), 0);
    comms_free(w->comms);
    engine_free(w->engine);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w->clients[r].memory->refs, 1);
        mapping_unref(w->clients[r].memory);
    }
    w->device->ops->close(w->device);
    if (w->gpus)
        device_flaky_gpus.close(w->gpus);
}

static bool story(uint64_t seed, enum fault fault, uint32_t at, uint32_t victim)
{
    struct world w;
    bool injected;

    world_open(&w, seed, fault, at, victim);
    injected = play(&w, at);
    if (fault == FAULT_DEVICE || fault == FAULT_MEMORY)
        injected = flaky_taken(w.gpus ? flaky_gpus_tasks(w.gpus) : w.device) >= at;
    expect_answers(&w);
    world_close(&w);
    return injected;
}

/* At every edge: each action of the undisturbed story, or each task of it, once per victim. */
static void at_every_edge(enum fault fault)
{
    uint32_t edges = 0;

    for (uint64_t seed = 1; seed <= 6; seed++)
        for (uint32_t victim = 0; victim < RANKS; victim += has_gpus(seed) ? 3 : 1)
            for (uint32_t at = 1; story(seed, fault, at, victim); at++)
                edges++;
    assert_true(edges > 6 * RANKS * 10);
    print_message("%u edges\n", edges);
}

TEST(undisturbed_every_call_succeeds)
{
    for (uint64_t seed = 1; seed <= 200; seed++)
        story(seed, FAULT_NONE, UINT32_MAX, 0);
}

TEST(a_death_is_told_by_name_at_every_edge)
{
    at_every_edge(FAULT_KILL);
}

TEST(a_leave_is_told_by_name_at_every_edge)
{
    at_every_edge(FAULT_LEAVE);
}

TEST(an_abort_reaches_everyone_at_every_edge)
{
    at_every_edge(FAULT_ABORT);
}

TEST(a_rank_that_stops_calling_times_out_at_every_edge)
{
    at_every_edge(FAULT_STALL);
}

TEST(a_mismatch_fails_one_operation_at_every_edge)
{
    at_every_edge(FAULT_MISMATCH);
}

TEST(a_rejection_fails_one_operation_at_every_edge)
{
    at_every_edge(FAULT_REJECT);
}

TEST(a_failing_device_fails_one_operation_at_every_task)
{
    at_every_edge(FAULT_DEVICE);
}

TEST(lost_memory_is_told_at_every_task)
{
    at_every_edge(FAULT_MEMORY);
}

TEST(a_stuck_task_and_a_death_end_at_every_task)
{
    at_every_edge(FAULT_STUCK);
}

/* Rank 2's work before its first call does not end, or ends badly. */
static void story_of_fence(int r, enum error_code code, const char *text)
{
    struct world w;

    world_open(&w, 3, FAULT_NONE, UINT32_MAX, 0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        w.clients[rank].fence = flaky_gpus_fence(w.gpus, rank == 2 ? FENCE_NEVER : 0);
        post(&w, rank);
    }
    for (uint32_t n = 0; n < 20; n++)
        engine_poll(w.engine);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        assert_int_equal(w.clients[rank].answered, 0);
    if (r < 0) {
        flaky_gpus_settle(w.clients[2].fence, r);
        engine_poll(w.engine);
    } else {
        w.now += TIMEOUT;
        comms_tick(w.comms, w.now);
    }
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct client *c = &w.clients[rank];

        assert_int_equal(c->answered, 1);
        assert_int_equal(c->codes[0], code);
        assert_string_equal(c->errors[0].text, text);
        assert_true(code != ERROR_TIMEOUT ||
                    (c->errors[0].nranks == 1 && c->errors[0].ranks[0] == 2));
    }
    for (uint32_t rank = 0; rank < RANKS; rank++)
        w.clients[rank].fence = fence_unref(w.clients[rank].fence);
    world_close(&w);
}

TEST(work_that_does_not_end_times_out_by_name)
{
    story_of_fence(0, ERROR_TIMEOUT,
                   "all_reduce 1 of 'sim': timeout after 300 s of moving data; work on the GPU "
                   "before it is waited for: rank 2 (pid 102 on here)");
}

TEST(work_that_ends_badly_fails_what_waits_for_it)
{
    story_of_fence(-EIO, ERROR_SYSTEM, "all_reduce 1 of 'sim': moving its data: " BLAME);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(undisturbed_every_call_succeeds),
        cmocka_unit_test(a_death_is_told_by_name_at_every_edge),
        cmocka_unit_test(a_leave_is_told_by_name_at_every_edge),
        cmocka_unit_test(an_abort_reaches_everyone_at_every_edge),
        cmocka_unit_test(a_rank_that_stops_calling_times_out_at_every_edge),
        cmocka_unit_test(a_mismatch_fails_one_operation_at_every_edge),
        cmocka_unit_test(a_rejection_fails_one_operation_at_every_edge),
        cmocka_unit_test(a_failing_device_fails_one_operation_at_every_task),
        cmocka_unit_test(lost_memory_is_told_at_every_task),
        cmocka_unit_test(a_stuck_task_and_a_death_end_at_every_task),
        cmocka_unit_test(work_that_does_not_end_times_out_by_name),
        cmocka_unit_test(work_that_ends_badly_fails_what_waits_for_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
