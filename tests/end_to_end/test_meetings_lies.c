/*
 * A rank that writes into its slate what it likes, or says to the daemon something else, harms its
 * communicator and nobody besides.
 */
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/slate.h"
#include "tests/end_to_end/crew.h"
#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define LIE_TIMEOUT_US 100000
#define CALLS          6u
#define ROUNDS         8u
#define OUT_BYTES      256u
#define GUARD          64u
#define POISON         0xa5
#define PATIENCE_MS    10000u /* for all calls of a round, of which each has its timeout */

static struct crew crew, others;
static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

struct lied_to {
    struct world world; /* of the one rank */
    struct raw liar;
    struct slate *slate;
    uint64_t seed;
    uint64_t choices; /* the seed of rank 0's calls */
    uint64_t asked;   /* the last request before the lies begin */
};

/* False: somebody was held up so long that the communicator did not form. */
static bool form(struct lied_to *l)
{
    const struct ruccl_join_options options = { NULL, LIE_TIMEOUT_US, NULL };
    struct ruccl_work *work;
    char id[RUCCL_ID_BYTES];
    bool formed;
    int r;

    assert_int_equal(ruccl_new_id(l->world.conns[0], id), 0);
    assert_int_equal(
        ruccl_join_async(l->world.conns[0], id, 0, 2, &options, &l->world.comms[0], &work), 0);
    raw_join_as(&l->liar, 1, id, 1, 2, "", LIE_TIMEOUT_US);
    formed = raw_expect(&l->liar, REPLY_DONE)->done.code == ERROR_NONE;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return formed && r == 0;
}

static void lied_to_close(struct lied_to *l)
{
    ruccl_close(l->world.conns[0]);
    raw_close(&l->liar);
    if (l->slate)
        munmap(l->slate, slate_size(2));
}

static void lied_to_open(struct lied_to *l, uint64_t seed)
{
    int fd;

    for (;;) {
        *l = (struct lied_to){ .world = { .nranks = 1, .nconns = 1 },
                               .seed = seed,
                               .choices = seed };
        assert_int_equal(ruccl_connect(harness.socket, "honest", &l->world.conns[0]), 0);
        raw_open(&l->liar, harness.socket);
        raw_open_rings(&l->liar);
        if (form(l))
            break;
        lied_to_close(l);
    }
    fd = raw_open_slate(&l->liar, 1);
    l->slate = mmap(NULL, slate_size(2), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(l->slate, MAP_FAILED);
    close(fd);
    l->asked = l->liar.serial;
}

static struct ruccl_tensor tensor_at(uint8_t *bytes, uint64_t count)
{
    return (
        struct ruccl_tensor){ .dtype = RUCCL_U8, .naxes = 1, .shape = { count }, .data = bytes };
}

static int call_any(struct ruccl_comm comm, uint64_t choice, uint8_t *in_bytes, uint8_t *out_bytes)
{
    const struct ruccl_tensor in = tensor_at(in_bytes, OUT_BYTES / 2);
    const struct ruccl_tensor out = tensor_at(out_bytes, OUT_BYTES / 2);
    const struct ruccl_tensor all = tensor_at(out_bytes, OUT_BYTES);
    const uint64_t send[2] = { OUT_BYTES / 4, OUT_BYTES / 4 };
    uint64_t counts[2];

    switch (choice % 6) {
    case 0:
        return ruccl_all_reduce(comm, &in, &out, RUCCL_SUM);
    case 1:
        return ruccl_all_gather(comm, &in, &all);
    case 2:
        return ruccl_broadcast(comm, &in, &out, 1);
    case 3:
        return ruccl_all_to_all(comm, &in, &out);
    case 4:
        return ruccl_barrier(comm);
    default:
        return ruccl_all_to_all_v(comm, &in, send, &all, NULL, counts);
    }
}

/* Whatever comes of a call, nothing is written beside its output. */
static int play_honest(struct crew_rank *me)
{
    uint8_t in[OUT_BYTES] = { 1, 2, 3 }, out[GUARD + OUT_BYTES + GUARD], guard[GUARD];
    uint64_t seed = *(uint64_t *)me->context;
    int r = 0;

    memset(guard, POISON, sizeof(guard));
    for (uint32_t i = 0; i < CALLS && r == 0; i++) {
        memset(out, POISON, sizeof(out));
        r = call_any(me->comm, unit_random(&seed), in, out + GUARD);
        crew_check(me, !memcmp(out, guard, GUARD) && !memcmp(out + GUARD + OUT_BYTES, guard, GUARD),
                   "bytes around the output were written");
    }
    return 0;
}

typedef void (*lie_fn)(struct lied_to *l);

/* As often as there is something to lie about. */
static void live_with(struct lied_to *l, lie_fn lie)
{
    const uint64_t end = test_now_ms() + PATIENCE_MS;

    crew_start(&crew, &l->world, play_honest, &l->choices);
    do {
        assert_true(test_now_ms() < end);
        lie(l);
    } while (!crew_ends(&crew, 0));
    crew_expect_success(&crew, "calls");
}

static uint64_t some_word(struct lied_to *l)
{
    const uint64_t sequence = unit_random(&l->seed) % (CALLS + 2);

    switch (unit_random(&l->seed) % 4) {
    case 0:
        return unit_random(&l->seed);
    case 1:
        return sequence << 8 | 2; /* both have come */
    case 2:
        return sequence << 8 | 0x80;
    default:
        return sequence << 8 | (unit_random(&l->seed) & 0xff);
    }
}

static void scribble(struct lied_to *l)
{
    for (int i = 0; i < 200; i++) {
        uint64_t *at = (uint64_t *)l->slate + unit_random(&l->seed) % (slate_size(2) / 8);
        struct slate_seat *seat = slate_seat(l->slate, 2, i / 2, i % 2);

        *(volatile uint64_t *)at = unit_random(&l->seed);
        seat->call = slate_seat(l->slate, 2, i / 2, 0)->call;
        seat->room = seat->counts[i % 4] = unit_random(&l->seed) % OUT_BYTES;
        atomic_store(&l->slate->shut, i % 3 == 0);
        atomic_store(&l->slate->meetings[i % 2].word, some_word(l));
    }
}

/* Comes to every meeting, asks for the same, and changes its mind all the time. */
static void meet_and_scribble(struct lied_to *l)
{
    for (uint64_t sequence = 1; sequence <= CALLS; sequence++) {
        struct slate_seat *ours = slate_seat(l->slate, 2, sequence, 1);
        const struct slate_seat *theirs = slate_seat(l->slate, 2, sequence, 0);

        if (slate_look(l->slate, 2, sequence) != SLATE_OPEN)
            continue;
        ours->call = theirs->call;
        ours->process = unit_random(&l->seed) % 2 ? theirs->process : 1;
        ours->in = ours->out = (struct slate_extent){ unit_random(&l->seed), UINT64_MAX };
        for (uint32_t i = 0; i < 4; i++)
            ours->counts[i] = unit_random(&l->seed) % 2 ? unit_random(&l->seed) : 64;
        ours->room = unit_random(&l->seed);
        slate_arrive(l->slate, 2, sequence);
        return;
    }
}

static void come_twice(struct lied_to *l)
{
    for (uint64_t sequence = 1; sequence <= CALLS; sequence++) {
        slate_arrive(l->slate, 2, sequence);
        slate_arrive(l->slate, 2, sequence);
        sched_yield();
    }
}

static void never_come(struct lied_to *l)
{
    (void)l;
    sched_yield();
}

static void shut_it(struct lied_to *l)
{
    slate_shut(l->slate);
}

static void post_once(struct lied_to *l, uint64_t first, uint64_t second)
{
    if (l->liar.serial > l->asked)
        return; /* that was it */
    raw_barrier(&l->liar, 1, first, 0);
    if (second)
        raw_barrier(&l->liar, 1, second, 1);
}

static void post_ahead(struct lied_to *l)
{
    post_once(l, 3, 0);
}

static void post_far_ahead(struct lied_to *l)
{
    post_once(l, 1ull << 40, 2);
}

static void post_the_last_number(struct lied_to *l)
{
    post_once(l, UINT64_MAX, 0);
}

static void post_the_last_number_and_the_first(struct lied_to *l)
{
    post_once(l, UINT64_MAX, 1);
}

static void post_nothings_number(struct lied_to *l)
{
    post_once(l, 0, 0);
}

static void post_one_twice(struct lied_to *l)
{
    post_once(l, 1, 1);
}

/* So that the daemon has all of them that it will ever have. */
static int play_by_daemon(struct crew_rank *me)
{
    int32_t values[3] = { 0 };
    const struct ruccl_tensor t = {
        .dtype = RUCCL_I32, .naxes = 1, .shape = { 3 }, .data = values
    };
    struct ruccl_work *work;
    int r = ruccl_all_reduce_async(me->comm, &t, &t, RUCCL_SUM, &work);

    if (r < 0)
        return r;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_release(work);
    return r == 0 ? ruccl_barrier(me->comm) : r;
}

/* Two who have nothing to do with it, until rank 0 is told to end. */
static int play_other(struct crew_rank *me)
{
    _Atomic bool *end = me->context;
    int32_t values[3];
    const struct ruccl_tensor t = {
        .dtype = RUCCL_I32, .naxes = 1, .shape = { 3 }, .data = values
    };
    int r;

    do {
        values[0] = (int32_t)me->rank + 1;
        values[1] = 7;
        values[2] = me->rank == 0 && atomic_load(end);
        r = ruccl_all_reduce(me->comm, &t, &t, RUCCL_SUM);
        crew_check(me, r < 0 || (values[0] == 3 && values[1] == 14), "a wrong sum");
    } while (r == 0 && values[2] == 0);
    return r;
}

TEST(a_liar_harms_its_communicator_and_nobody_besides)
{
    static const lie_fn lies[] = {
        scribble,
        meet_and_scribble,
        come_twice,
        never_come,
        shut_it,
        post_ahead,
        post_far_ahead,
        post_the_last_number,
        post_the_last_number_and_the_first,
        post_nothings_number,
        post_one_twice,
    };
    static _Atomic bool end;
    struct harness_usage before;
    struct world world;

    harness_start(&harness, NULL);
    world_open(&world, &harness, 2, 2);
    crew_run(&others, &world, play_by_daemon, NULL);
    crew_expect_success(&others, "all_reduce");
    before = harness_usage(&harness);
    atomic_store(&end, false);
    crew_start(&others, &world, play_other, &end);
    for (uint64_t i = 0; i < ROUNDS * ARRAY_SIZE(lies); i++) {
        struct lied_to l;

        lied_to_open(&l, i + 1);
        live_with(&l, lies[i % ARRAY_SIZE(lies)]);
        lied_to_close(&l);
    }
    harness_expect_usage(&harness, &before);
    atomic_store(&end, true);
    assert_true(crew_ends(&others, PATIENCE_MS));
    crew_expect_success(&others, "others' calls");
    world_close(&world);
}

/* ---- one who says that there is more room */

static int play_small_room(struct crew_rank *me)
{
    uint8_t in[2] = { 1, 2 }, out[2 * OUT_BYTES];
    const uint64_t send[2] = { 1, 1 };
    const struct ruccl_tensor i = tensor_at(in, 2), o = tensor_at(out, 2);

    memset(out, POISON, sizeof(out));
    me->result = ruccl_all_to_all_v(me->comm, &i, send, &o, NULL, NULL);
    for (uint32_t k = 2; k < sizeof(out); k++)
        crew_check(me, out[k] == POISON, "bytes behind the output were written");
    return 0;
}

static bool has_come(const struct lied_to *l)
{
    return (atomic_load(&l->slate->meetings[1].word) & 0x7f) == 1;
}

TEST(who_says_that_others_have_more_room_does_not_make_them_write_there)
{
    static const char *const patient[] = { "--set=spin=10ms", NULL };
    uint32_t met = 0;

    harness_start(&harness, patient);
    for (uint64_t i = 1; i <= 200 && met < 5; i++) {
        struct slate_seat *theirs, *ours;
        struct lied_to l;

        lied_to_open(&l, i);
        theirs = slate_seat(l.slate, 2, 1, 0);
        ours = slate_seat(l.slate, 2, 1, 1);
        crew_start(&crew, &l.world, play_small_room, NULL);
        while (!has_come(&l) && slate_look(l.slate, 2, 1) == SLATE_OPEN)
            sched_yield();
        ours->call = theirs->call;
        ours->process = 1;
        ours->counts[0] = OUT_BYTES;
        ours->room = theirs->room = 2 * OUT_BYTES;
        met += slate_arrive(l.slate, 2, 1) == SLATE_MET;
        assert_true(crew_ends(&crew, PATIENCE_MS));
        lied_to_close(&l);
    }
    assert_true(met > 0);
}

#define lie_test(f) cmocka_unit_test_teardown(f, stop_daemon)

int main(void)
{
    const struct CMUnitTest tests[] = {
        lie_test(a_liar_harms_its_communicator_and_nobody_besides),
        lie_test(who_says_that_others_have_more_room_does_not_make_them_write_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
