/* Persistent operations through the library: made by all, started often, and every way to end. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/tensors.h"
#include "tests/unit/unit.h"

#define RANKS 3u
#define COUNT 5003u /* elements of a block */
#define MOST  1024u

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, KINDS };

static struct harness harness;
static struct stage *stage;
static struct world world;

static int stop(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

static void open_all(void)
{
    harness_start(&harness, NULL);
    world_open(&world, &harness, RANKS, RANKS);
}

/* ---- memory: all ranks' tensors of one operation, as long as any kind needs */

struct set {
    struct ruccl_region *in[RANKS], *out[RANKS];
};

static void set_alloc(struct set *s)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const uint64_t bytes = RANKS * COUNT * sizeof(int32_t);

        assert_int_equal(ruccl_alloc(world_conn(&world, r), bytes, &s->in[r]), 0);
        assert_int_equal(ruccl_alloc(world_conn(&world, r), bytes, &s->out[r]), 0);
    }
}

static void set_free(struct set *s)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        ruccl_free(s->in[r]);
        ruccl_free(s->out[r]);
    }
}

static int32_t given(uint32_t rank, uint64_t i, uint32_t round)
{
    return (int32_t)((rank + 1) * (i + 1 + 31 * round));
}

static void set_fill(const struct set *s, uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        int32_t *in = ruccl_region_data(s->in[r]);

        for (uint64_t i = 0; i < RANKS * COUNT; i++)
            in[i] = given(r, i, round);
        memset(ruccl_region_data(s->out[r]), 0, RANKS * COUNT * sizeof(int32_t));
    }
}

/* ---- what is right: element i of rank's output */

static bool has_output(enum kind kind, uint32_t rank, uint32_t root)
{
    return rank == root || (kind != REDUCE && kind != GATHER);
}

static uint64_t output_blocks(enum kind kind)
{
    return kind == ALL_GATHER || kind == GATHER ? RANKS : 1;
}

static int32_t expected(enum kind kind, uint32_t rank, uint32_t root, uint64_t i, uint32_t round)
{
    switch (kind) {
    case ALL_REDUCE:
    case REDUCE:
        return 6 * given(0, i, round);
    case REDUCE_SCATTER:
        return 6 * given(0, rank * COUNT + i, round);
    case ALL_GATHER:
    case GATHER:
        return given((uint32_t)(i / COUNT), i % COUNT, round);
    case BROADCAST:
        return given(root, i, round);
    default:
        return given(root, rank * COUNT + i, round);
    }
}

static void expect_outputs(const struct set *s, enum kind kind, uint32_t root, uint32_t round)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const int32_t *out = ruccl_region_data(s->out[r]);
        const uint64_t n = output_blocks(kind) * COUNT;

        for (uint64_t i = 0; i < RANKS * COUNT; i++)
            if (out[i] !=
                (i < n && has_output(kind, r, root) ? expected(kind, r, root, i, round) : 0))
                fail_msg("kind %d, start %u, rank %u: element %llu is %d", (int)kind, round, r,
                         (unsigned long long)i, out[i]);
    }
}

/* ---- making: it waits for the others, so each rank has a thread */

struct maker {
    pthread_t thread;
    struct ruccl_comm comm;
    enum kind kind;
    uint32_t root;
    struct ruccl_tensor in, out;
    struct ruccl_persistent *made;
    int result;
    struct ruccl_error error;
};

static int make_one(const struct maker *m, struct ruccl_persistent **ret)
{
    switch (m->kind) {
    case ALL_REDUCE:
        return ruccl_all_reduce_init(m->comm, &m->in, &m->out, RUCCL_SUM, ret);
    case ALL_GATHER:
        return ruccl_all_gather_init(m->comm, &m->in, &m->out, ret);
    case REDUCE_SCATTER:
        return ruccl_reduce_scatter_init(m->comm, &m->in, &m->out, RUCCL_SUM, ret);
    case BROADCAST:
        return ruccl_broadcast_init(m->comm, &m->in, &m->out, m->root, ret);
    case REDUCE:
        return ruccl_reduce_init(m->comm, &m->in, &m->out, RUCCL_SUM, m->root, ret);
    case GATHER:
        return ruccl_gather_init(m->comm, &m->in, &m->out, m->root, ret);
    default:
        return ruccl_scatter_init(m->comm, &m->in, &m->out, m->root, ret);
    }
}

static void *make(void *arg)
{
    struct maker *m = arg;

    m->result = make_one(m, &m->made);
    if (m->result < 0)
        m->error = *ruccl_last_error();
    return NULL;
}

static void makers_init(struct maker makers[RANKS], const struct set *s, enum kind kind,
                        uint32_t root)
{
    const bool wide_in = kind == REDUCE_SCATTER || kind == SCATTER;

    for (uint32_t r = 0; r < RANKS; r++)
        makers[r] = (struct maker){
            .comm = world.comms[r],
            .kind = kind,
            .root = root,
            .in = vector_of(s->in[r], wide_in ? RANKS * COUNT : COUNT),
            .out = vector_of(s->out[r], output_blocks(kind) * COUNT),
        };
}

static void make_all(struct maker makers[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_create(&makers[r].thread, NULL, make, &makers[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(makers[r].thread, NULL);
}

/* One that must succeed. */
static void made_of(const struct set *s, enum kind kind, uint32_t root,
                    struct ruccl_persistent *ret[RANKS])
{
    struct maker makers[RANKS];

    makers_init(makers, s, kind, root);
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (makers[r].result < 0)
            fail_msg("init: %s", makers[r].error.text);
        ret[r] = makers[r].made;
    }
}

static struct ruccl_work *started(struct ruccl_persistent *p)
{
    struct ruccl_work *work;

    if (ruccl_start(p, &work) < 0)
        fail_msg("start: %s", ruccl_last_error()->text);
    return work;
}

static void start_all(struct ruccl_persistent *p[RANKS])
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++)
        works[r] = started(p[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "start");
}

static void release_all(struct ruccl_persistent *p[RANKS])
{
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_persistent_release(p[r]);
}

/* The communicator goes on: an ordinary call, and a start. */
static void expect_going_on(struct ruccl_persistent *p[RANKS], const struct set *s)
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(ruccl_barrier_async(world.comms[r], &works[r]), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "barrier");
    set_fill(s, 99);
    start_all(p);
    expect_outputs(s, ALL_REDUCE, 0, 99);
}

/* ---- starting */

TEST(every_kind_gives_what_its_call_gives_at_every_start)
{
    struct ruccl_persistent *p[KINDS][RANKS];
    struct set sets[KINDS], other;

    open_all();
    set_alloc(&other);
    for (int kind = 0; kind < KINDS; kind++) {
        set_alloc(&sets[kind]);
        made_of(&sets[kind], (enum kind)kind, (uint32_t)kind % RANKS, p[kind]);
    }
    for (uint32_t round = 0; round < 40; round++) {
        struct ruccl_work *works[KINDS][RANKS], *calls[RANKS];

        set_fill(&other, round);
        for (int kind = 0; kind < KINDS; kind++)
            set_fill(&sets[kind], round);
        for (uint32_t r = 0; r < RANKS; r++) { /* some before an ordinary call, some behind it */
            const struct ruccl_tensor in = vector_of(other.in[r], COUNT);
            const struct ruccl_tensor out = vector_of(other.out[r], COUNT);

            for (int kind = 0; kind < 3; kind++)
                works[kind][r] = started(p[kind][r]);
            assert_int_equal(ruccl_broadcast_async(world.comms[r], &in, &out, 1, &calls[r]), 0);
            for (int kind = 3; kind < KINDS; kind++)
                works[kind][r] = started(p[kind][r]);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            expect_done(calls[r], "broadcast");
            for (int kind = 0; kind < KINDS; kind++)
                expect_done(works[kind][r], "start");
        }
        expect_outputs(&other, BROADCAST, 1, round);
        for (int kind = 0; kind < KINDS; kind++)
            expect_outputs(&sets[kind], (enum kind)kind, (uint32_t)kind % RANKS, round);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        release_all(p[kind]);
        set_free(&sets[kind]);
    }
    set_free(&other);
    world_close(&world);
}

TEST(floats_are_exact_at_every_start)
{
    const uint64_t count = 100003;
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct tensors t;

    open_all();
    tensors_init(&t, &world, count * sizeof(float), false);
    for (uint32_t r = 0; r < RANKS; r++)
        makers[r] = (struct maker){
            .comm = ruccl_bounded(world.comms[r], 90000),
            .in = { .dtype = RUCCL_F32, .naxes = 1, .shape = { count }, .region = t.in[r].region },
            .out = { .dtype = RUCCL_F32, .naxes = 1, .shape = { count }, .region = t.out[r].region }
        };
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, 0);
        p[r] = makers[r].made;
    }
    for (uint64_t round = 0; round < 8; round++) {
        tensors_fill(&t, RUCCL_F32, 17 + round);
        tensors_expect_reduction(&t, RUCCL_SUM, count);
        start_all(p);
        tensors_expect_unchanged(&t);
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(reference_difference(RUCCL_F32, t.expected, t.out[r].bytes, count),
                             count);
    }
    release_all(p);
    tensors_fini(&t);
    world_close(&world);
}

TEST(different_starts_fail_for_all_and_no_more)
{
    struct ruccl_persistent *a[RANKS], *b[RANKS];
    struct ruccl_work *works[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, a);
    made_of(&s, ALL_REDUCE, 0, b);
    for (uint32_t r = 0; r < RANKS; r++)
        works[r] = started(r == 1 ? b[r] : a[r]);
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_failure(works[r], RUCCL_MISMATCH, "starts of two");
        assert_int_equal(ruccl_last_error()->ranks[0], 1);
    }
    expect_going_on(a, &s);

    for (uint32_t r = 0; r < RANKS; r++) {
        const struct ruccl_tensor t = vector_of(s.in[r], COUNT);

        if (r == 2)
            assert_int_equal(ruccl_all_reduce_async(world.comms[r], &t, &t, RUCCL_SUM, &works[r]),
                             0);
        else
            works[r] = started(b[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_failure(works[r], RUCCL_MISMATCH, "a start and a call");
        assert_int_equal(ruccl_last_error()->ranks[0], 2);
    }
    expect_going_on(b, &s);
    release_all(a);
    release_all(b);
    set_free(&s);
    world_close(&world);
}

/* ---- making what cannot be */

static void expect_not_made(struct maker makers[RANKS], enum ruccl_code code, const char *words)
{
    char missing[128];

    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, -(int)code);
        assert_null(makers[r].made);
        if (!words_in(makers[r].error.text, words, missing))
            fail_msg("no '%s' in: %s", missing, makers[r].error.text);
    }
}

TEST(what_one_rank_cannot_make_nobody_gets)
{
    static int32_t plain[COUNT];
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    makers_init(makers, &s, ALL_REDUCE, 0);
    makers[1].in.region = NULL;
    makers[1].in.data = plain;
    expect_not_made(makers, RUCCL_INVALID_ARGUMENT,
                    "rank 1: |in of a persistent operation must be in a region");
    makers_init(makers, &s, ALL_REDUCE, 0);
    makers[2].out.shape[0]--;
    expect_not_made(makers, RUCCL_INVALID_SHAPE, "rank 2: |out has shape [5002]");
    makers_init(makers, &s, BROADCAST, 0);
    makers[0].root = RANKS;
    expect_not_made(makers, RUCCL_INVALID_ROOT, "rank 0: |root 3 is not below");
    makers_init(makers, &s, GATHER, 0);
    makers[1].root = 1;
    expect_not_made(makers, RUCCL_MISMATCH, "ranks disagree on the root|rank 1 said 1");
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

TEST(tensors_that_only_the_root_has_may_be_anything_elsewhere)
{
    struct ruccl_persistent *p[2][RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    for (int i = 0; i < 2; i++) {
        makers_init(makers, &s, i ? SCATTER : REDUCE, 1);
        for (uint32_t r = 0; r < RANKS; r += 2) {
            struct ruccl_tensor *other = i ? &makers[r].in : &makers[r].out;

            other->region = (struct ruccl_region *)(uintptr_t)(r + 1);
        }
        make_all(makers);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(makers[r].result, 0);
            p[i][r] = makers[r].made;
        }
        set_fill(&s, 3);
        start_all(p[i]);
        expect_outputs(&s, i ? SCATTER : REDUCE, 1, 3);
    }
    release_all(p[0]);
    release_all(p[1]);
    set_free(&s);
    world_close(&world);
}

TEST(arguments_that_are_not_there_are_named)
{
    struct ruccl_work *work;

    open_all();
    assert_int_equal(ruccl_all_reduce_init(world.comms[0], NULL, NULL, RUCCL_SUM, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_string_equal(ruccl_last_error()->text, "all_reduce_init: ret is NULL");
    assert_int_equal(ruccl_gather_init((struct ruccl_comm){ 0 }, NULL, NULL, 0,
                                       &(struct ruccl_persistent *){ NULL }),
                     -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_start(NULL, &work), -RUCCL_INVALID_ARGUMENT);
    ruccl_persistent_release(NULL);
    world_close(&world);
}

static void *make_many(void *arg)
{
    struct maker *m = arg;
    static struct ruccl_persistent *made[RANKS][MOST];
    struct ruccl_persistent **mine = made[ruccl_rank(m->comm)];

    for (uint32_t i = 0; i < MOST && m->result == 0; i++)
        m->result = make_one(m, &mine[i]);
    if (m->result == 0)
        m->result = make_one(m, &m->made);
    m->error = *ruccl_last_error();
    ruccl_persistent_release(mine[5]);
    if (make_one(m, &mine[5]) < 0)
        m->result = -1;
    for (uint32_t i = 0; i < MOST; i++)
        ruccl_persistent_release(mine[i]);
    return NULL;
}

TEST(a_communicator_has_a_thousand_and_no_more)
{
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    makers_init(makers, &s, ALL_REDUCE, 0);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_create(&makers[r].thread, NULL, make_many, &makers[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(makers[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, -RUCCL_QUOTA);
        assert_non_null(strstr(makers[r].error.text, "1024"));
    }
    made_of(&s, ALL_REDUCE, 0, p);
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

/* ---- letting go */

TEST(freed_memory_serves_until_the_release_and_nobody_else)
{
    struct ruccl_persistent *p[RANKS];
    struct set s, other;
    int32_t *in[RANKS], *out[RANKS];

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    for (uint32_t r = 0; r < RANKS; r++) {
        in[r] = ruccl_region_data(s.in[r]);
        out[r] = ruccl_region_data(s.out[r]);
    }
    set_free(&s);
    set_alloc(&other); /* of the same size, so the first to be offered what was freed */
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_ptr_not_equal(ruccl_region_data(other.in[r]), in[r]);
        assert_ptr_not_equal(ruccl_region_data(other.in[r]), out[r]);
        for (uint32_t i = 0; i < COUNT; i++)
            in[r][i] = (int32_t)i;
    }
    start_all(p);
    for (uint32_t i = 0; i < COUNT; i++)
        assert_int_equal(out[2][i], 3 * i);
    release_all(p);
    set_free(&other);
    world_close(&world);
}

static struct ruccl_region *registered(uint32_t rank)
{
    const int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct ruccl_region *region;

    assert_true(fd >= 0 && ftruncate(fd, COUNT * sizeof(int32_t)) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    assert_int_equal(ruccl_register(world_conn(&world, rank), fd, COUNT * sizeof(int32_t), &region),
                     0);
    close(fd);
    return region;
}

TEST(the_daemon_keeps_released_memory_until_all_have_let_go)
{
    struct harness_usage before, during;
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];

    open_all();
    before = harness_usage(&harness);
    for (uint32_t r = 0; r < RANKS; r++) {
        makers[r] = (struct maker){ .comm = world.comms[r] };
        makers[r].in = makers[r].out = vector_of(registered(r), COUNT);
    }
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, 0);
        p[r] = makers[r].made;
        ruccl_release(makers[r].in.region);
    }
    start_all(p);
    during = harness_usage(&harness);
    assert_int_equal(during.mappings, before.mappings + RANKS);
    release_all(p);
    harness_expect_usage(&harness, &before);
    world_close(&world);
}

TEST(starts_under_way_outlive_the_release)
{
    struct ruccl_persistent *p[RANKS];
    struct ruccl_work *works[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    set_fill(&s, 7);
    for (uint32_t r = 0; r < RANKS; r++) {
        works[r] = started(p[r]);
        ruccl_persistent_release(p[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        expect_done(works[r], "start of what was released");
    expect_outputs(&s, ALL_REDUCE, 0, 7);
    set_free(&s);
    world_close(&world);
}

TEST(they_may_be_released_after_leaving_and_after_closing)
{
    struct ruccl_persistent *a[RANKS], *b[RANKS];
    struct harness_usage before;
    struct ruccl_work *work;
    struct set s;

    harness_start(&harness, NULL);
    before = harness_usage(&harness);
    world_open(&world, &harness, RANKS, RANKS);
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, a);
    made_of(&s, SCATTER, 1, b);
    world_leave(&world);
    expect_failure(started(a[0]), RUCCL_CLOSED, "start after leaving");
    release_all(a);
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_close(world.conns[r]);
    assert_int_equal(ruccl_start(b[0], &work), -RUCCL_CLOSED);
    release_all(b);
    harness_expect_usage(&harness, &before);
}

/* ---- forks and losses */

TEST(a_forked_child_is_told)
{
    struct ruccl_persistent *p[RANKS];
    struct set s;
    pid_t child;
    int status;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    child = fork();
    if (child == 0) {
        struct ruccl_work *work;
        const int r = ruccl_start(p[0], &work);

        ruccl_persistent_release(p[0]); /* the parent's stays */
        _exit(r == -RUCCL_FORKED ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

TEST(a_lost_daemon_ends_them)
{
    struct ruccl_persistent *p[RANKS];
    struct ruccl_work *work, *waiting;
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    waiting = started(p[0]);
    harness_kill(&harness);
    expect_failure(waiting, RUCCL_DAEMON_LOST, "a start that waits");
    assert_int_equal(ruccl_start(p[0], &work), -RUCCL_DAEMON_LOST);
    release_all(p);
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_close(world.conns[r]);
}

static void play_rank(struct stage *st, struct part *me)
{
    struct ruccl_conn *conn = part_connect(st, me);
    struct ruccl_comm comm = part_join(st, me, conn, 0, me->rank, 2, NULL);
    struct ruccl_region *region = part_alloc(me, conn, COUNT * sizeof(int32_t));
    const struct ruccl_tensor t = vector_of(region, COUNT);
    struct ruccl_persistent *p;
    struct ruccl_work *work;

    part_ok(me, ruccl_all_reduce_init(comm, &t, &t, RUCCL_SUM, &p), "init");
    for (int i = 0; i < 10; i++) {
        part_ok(me, ruccl_start(p, &work), "start");
        part_ok(me, ruccl_work_wait(work, -1), "wait");
        ruccl_work_release(work);
    }
    part_reach(me, 1);
    part_wait(me, 1);
    part_ok(me, ruccl_start(p, &work), "start");
    part_report(me, ruccl_work_wait(work, -1));
    ruccl_work_release(work);
    ruccl_persistent_release(p);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_death_between_starts_is_named)
{
    char words[64];
    int64_t killed_us;

    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    stage_add(stage, 0, play_rank);
    stage_add(stage, 1, play_rank);
    stage_await_all(stage, 1);
    killed_us = stage_now_us();
    stage_kill(&stage->parts[1]);
    stage_cue(&stage->parts[0], 1);
    stage_dismiss(&stage->parts[0]);
    snprintf(words, sizeof(words), "rank 1 (pid %d on |died", (int)stage->parts[1].pid);
    stage_expect(&stage->parts[0], 0, RUCCL_RANK_LOST, words, killed_us);
    stage_expect_nothing_left(stage, &harness);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop)
    const struct CMUnitTest tests[] = {
        CLAIM(every_kind_gives_what_its_call_gives_at_every_start),
        CLAIM(floats_are_exact_at_every_start),
        CLAIM(different_starts_fail_for_all_and_no_more),
        CLAIM(what_one_rank_cannot_make_nobody_gets),
        CLAIM(tensors_that_only_the_root_has_may_be_anything_elsewhere),
        CLAIM(arguments_that_are_not_there_are_named),
        CLAIM(a_communicator_has_a_thousand_and_no_more),
        CLAIM(freed_memory_serves_until_the_release_and_nobody_else),
        CLAIM(the_daemon_keeps_released_memory_until_all_have_let_go),
        CLAIM(starts_under_way_outlive_the_release),
        CLAIM(they_may_be_released_after_leaving_and_after_closing),
        CLAIM(a_forked_child_is_told),
        CLAIM(a_lost_daemon_ends_them),
        CLAIM(a_death_between_starts_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
