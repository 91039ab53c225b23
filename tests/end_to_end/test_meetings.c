/*
 * Meetings: small blocking collectives that ranks carry out among themselves; without the daemon,
 * where it stands still, and in every mixture with what goes to it.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/crew.h"
#include "tests/unit/unit.h"

static struct harness harness;
static struct crew crew;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- without the daemon */

#define ROUNDS_STOPPED 60u
#define CALLS_STOPPED  40u

static int play_calls(struct crew_rank *me)
{
    int32_t in = (int32_t)me->rank + 1, out;
    const struct ruccl_tensor i = { .dtype = RUCCL_I32, .data = &in };
    const struct ruccl_tensor o = { .dtype = RUCCL_I32, .data = &out };
    _Atomic uint32_t *completed = me->context;
    int r = 0;

    for (uint32_t n = 0; n < CALLS_STOPPED && r == 0; n++) {
        out = 0;
        r = ruccl_all_reduce(me->comm, &i, &o, RUCCL_SUM);
        crew_check(me, r < 0 || out == 3, "a wrong sum");
        atomic_fetch_add(completed, 1);
    }
    return r;
}

/* A meeting that is closed waits for the daemon: then it goes on, and all is tried again. */
TEST(ranks_meet_while_the_daemon_stands_still)
{
    _Atomic uint32_t completed = 0;
    uint32_t while_stopped = 0;
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 2, 2);
    crew_run(&crew, &w, play_calls, &completed); /* and ask for the slate */
    for (uint32_t i = 0; i < ROUNDS_STOPPED && while_stopped < 2 * CALLS_STOPPED; i++) {
        atomic_store(&completed, 0);
        stage_freeze(harness.pid);
        crew_start(&crew, &w, play_calls, &completed);
        if (crew_ends(&crew, 500)) {
            while_stopped += atomic_load(&completed);
            kill(harness.pid, SIGCONT);
        } else {
            while_stopped += atomic_load(&completed);
            kill(harness.pid, SIGCONT);
            assert_true(crew_ends(&crew, HARNESS_PATIENCE_US / 1000));
        }
        crew_expect_success(&crew, "all_reduce");
    }
    assert_true(while_stopped > 0);
    crew_run(&crew, &w, play_calls, &completed);
    crew_expect_success(&crew, "all_reduce");
    world_close(&w);
}

/* ---- attended works */

#define ATTENDED_TRIES 1000u
#define ATTENDED_COUNT 5u

/* What a work tells, be it done at the slate or by the daemon. */
static void check_attended(struct crew_rank *me, struct ruccl_work *work, uint64_t sequence,
                           uint64_t count, uint64_t rows)
{
    struct ruccl_progress p;
    struct ruccl_stats stats;

    if (ruccl_work_stats(work, &stats) < 0 || ruccl_work_progress(work, &p) < 0) {
        crew_check(me, false, "a work that is done tells nothing");
        return;
    }
    crew_check(me, stats.sequence == sequence, "another sequence number");
    crew_check(me, stats.chunks == 1, "not one chunk");
    crew_check(me, p.elements_done == count && p.elements_total == count, "not all elements done");
    crew_check(me, p.chunks_done == 1 && p.chunks_total == 1, "not all chunks done");
    crew_check(me, p.rows_sent == rows && p.rows_to_send == rows, "not all rows sent");
    crew_check(me, p.rows_received == rows && p.rows_to_receive == rows, "not all rows received");
    if (!strcmp(stats.algorithm, "slate"))
        atomic_fetch_add((_Atomic uint32_t *)me->context, 1);
}

static int sum_attended(struct crew_rank *me, uint64_t sequence)
{
    int32_t values[ATTENDED_COUNT] = { (int32_t)me->rank + 1 };
    const struct ruccl_tensor t = {
        .dtype = RUCCL_I32, .naxes = 1, .shape = { ATTENDED_COUNT }, .data = values
    };
    struct ruccl_work *work;
    int r = ruccl_all_reduce_async(ruccl_attended(me->comm), &t, &t, RUCCL_SUM, &work);

    if (r < 0)
        return r;
    r = ruccl_work_wait(work, -1);
    crew_check(me, r < 0 || values[0] == 3, "a wrong sum");
    check_attended(me, work, sequence, ATTENDED_COUNT, 0);
    ruccl_work_release(work);
    return r;
}

/* Two rows to each. */
static int exchange_attended(struct crew_rank *me, uint64_t sequence)
{
    const uint64_t counts[2] = { 2, 2 };
    int32_t in[4] = { (int32_t)me->rank, 1, 2, 3 }, out[4] = { 0 };
    const struct ruccl_tensor i = { .dtype = RUCCL_I32, .naxes = 1, .shape = { 4 }, .data = in };
    const struct ruccl_tensor o = { .dtype = RUCCL_I32, .naxes = 1, .shape = { 4 }, .data = out };
    struct ruccl_work *work;
    uint64_t got[2] = { 0 };
    int r = ruccl_all_to_all_v_async(ruccl_attended(me->comm), &i, counts, &o, NULL, &work);

    if (r < 0)
        return r;
    r = ruccl_work_wait(work, -1);
    if (r == 0)
        r = ruccl_work_receive_counts(work, got);
    crew_check(me, r < 0 || (got[0] == 2 && got[1] == 2), "wrong counts");
    crew_check(me, r < 0 || out[2] == (me->rank ? 2 : 1), "wrong rows");
    check_attended(me, work, sequence, 4, 4);
    ruccl_work_release(work);
    return r;
}

static int play_attended(struct crew_rank *me)
{
    int r = 0;

    for (uint64_t n = 0; n < ATTENDED_TRIES && r == 0; n += 2) {
        r = sum_attended(me, n + 1);
        if (r == 0)
            r = exchange_attended(me, n + 2);
    }
    return r;
}

TEST(attended_works_meet_too_and_tell_of_it)
{
    static const char *const patient[] = { "--set=spin=10ms", NULL };
    _Atomic uint32_t met = 0;
    struct world w;

    harness_start(&harness, patient);
    world_open(&w, &harness, 2, 2);
    crew_run(&crew, &w, play_attended, &met);
    crew_expect_success(&crew, "attended works");
    assert_true(met > 0);
    world_close(&w);
}

/* ---- every mixture */

#define MIXED_ROUNDS 1500u
#define MIXED_COUNT  33u
#define LARGE_COUNT  (300u << 10)

struct mixer {
    struct crew_rank *me;
    struct ruccl_region *region, *registered, *large, *steady;
    struct ruccl_persistent *persistent;
    struct ruccl_work *pending; /* the large one */
    uint64_t sequence;          /* of the last call */
    uint64_t shared, own;       /* seeds: of what all do, and of how this rank does it */
    uint32_t round;
    int32_t plain[MIXED_COUNT];
};

static int mixer_open(struct mixer *m)
{
    struct ruccl_conn *conn = world_conn(m->me->world, m->me->rank);
    int memfd = memfd_create("mixed", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;
    struct ruccl_tensor t;

    if (ftruncate(memfd, 4096) < 0 || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
        abort();
    r = ruccl_register(conn, memfd, 4096, &m->registered);
    close(memfd);
    if (r < 0 || (r = ruccl_alloc(conn, 4096, &m->region)) < 0 ||
        (r = ruccl_alloc(conn, 4096, &m->steady)) < 0 ||
        (r = ruccl_alloc(conn, LARGE_COUNT * sizeof(int32_t), &m->large)) < 0)
        return r;
    t = vector_of(m->steady, MIXED_COUNT);
    m->sequence++;
    return ruccl_all_reduce_init(m->me->comm, &t, &t, RUCCL_SUM, &m->persistent);
}

static void mixer_close(struct mixer *m)
{
    ruccl_work_release(m->pending);
    ruccl_persistent_release(m->persistent);
    ruccl_free(m->region);
    ruccl_free(m->steady);
    ruccl_free(m->large);
    ruccl_release(m->registered);
}

static void give(struct mixer *m, int32_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = (int32_t)(m->me->rank * 1000 + m->round + i);
}

static void expect_sums(struct mixer *m, const int32_t *values, uint32_t count, uint32_t round)
{
    const uint32_t n = m->me->world->nranks;
    bool right = true;

    for (uint32_t i = 0; i < count; i++)
        right = right && values[i] == (int32_t)(1000 * (n * (n - 1) / 2) + n * (round + i));
    crew_check(m->me, right, "a wrong sum");
}

/* An asynchronous call's end; it has the number that comes next, however those before went. */
static int finish(struct mixer *m, struct ruccl_work *work, int posted)
{
    struct ruccl_stats stats = { 0 };
    int r;

    if (posted < 0)
        return posted;
    r = ruccl_work_wait(work, HARNESS_PATIENCE_US);
    ruccl_work_stats(work, &stats);
    ruccl_work_release(work);
    crew_check(m->me, r != 0 || stats.sequence == m->sequence, "not the next sequence number");
    return r;
}

static int mix_sum(struct mixer *m)
{
    static const uint64_t budgets[] = { RUCCL_NO_BUDGET, RUCCL_NO_BUDGET, 64, 4096 };
    const struct ruccl_comm comm = ruccl_bounded(m->me->comm, budgets[unit_random(&m->shared) % 4]);
    struct ruccl_tensor t = vector_of(NULL, MIXED_COUNT);
    int32_t *values = m->plain;
    struct ruccl_work *work;
    int r;

    switch (unit_random(&m->own) % 6) {
    case 0:
        t.region = m->registered;
        break;
    case 1:
    case 2:
        t.region = m->region;
    }
    if (t.region)
        values = ruccl_region_data(t.region);
    else
        t.data = values;
    give(m, values, MIXED_COUNT);
    m->sequence++;
    if (unit_random(&m->own) % 3) {
        r = ruccl_all_reduce(comm, &t, &t, RUCCL_SUM);
    } else {
        r = ruccl_all_reduce_async(comm, &t, &t, RUCCL_SUM, &work);
        r = finish(m, work, r);
    }
    if (r == 0)
        expect_sums(m, values, MIXED_COUNT, m->round);
    return r;
}

static int mix_barrier(struct mixer *m)
{
    struct ruccl_work *work;
    int r;

    m->sequence++;
    if (unit_random(&m->own) % 3)
        return ruccl_barrier(m->me->comm);
    r = ruccl_barrier_async(m->me->comm, &work);
    return finish(m, work, r);
}

static int mix_start(struct mixer *m)
{
    struct ruccl_work *work;
    int r;

    give(m, ruccl_region_data(m->steady), MIXED_COUNT);
    m->sequence++;
    r = ruccl_start(m->persistent, &work);
    r = finish(m, work, r);
    if (r == 0)
        expect_sums(m, ruccl_region_data(m->steady), MIXED_COUNT, m->round);
    return r;
}

/* Begins a large one, or ends the one that was begun some rounds before. */
static int mix_large(struct mixer *m)
{
    struct ruccl_tensor t = vector_of(m->large, LARGE_COUNT);
    static _Thread_local uint32_t begun;
    int r;

    if (!m->pending) {
        begun = m->round;
        give(m, ruccl_region_data(m->large), LARGE_COUNT);
        m->sequence++;
        return ruccl_all_reduce_async(m->me->comm, &t, &t, RUCCL_SUM, &m->pending);
    }
    r = ruccl_work_wait(m->pending, HARNESS_PATIENCE_US);
    ruccl_work_release(m->pending);
    m->pending = NULL;
    if (r == 0)
        expect_sums(m, ruccl_region_data(m->large), LARGE_COUNT, begun);
    return r;
}

static int play_mixed(struct crew_rank *me)
{
    struct mixer m = { .me = me, .shared = 5, .own = 77 + me->rank };
    int r = mixer_open(&m);

    for (; m.round < MIXED_ROUNDS && r == 0; m.round++) {
        switch (unit_random(&m.shared) % 16) {
        case 0:
        case 1:
        case 2:
            r = mix_barrier(&m);
            break;
        case 3:
        case 4:
            r = mix_start(&m);
            break;
        case 5:
            r = mix_large(&m);
            break;
        default:
            r = mix_sum(&m);
        }
        me->done += crew_has_met(me->world->nranks, m.sequence);
    }
    mixer_close(&m);
    return r;
}

TEST(blocking_and_other_calls_mix_in_every_order)
{
    static const uint32_t sizes[] = { 2, 4 };

    harness_start(&harness, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint32_t nconns = 1; nconns <= sizes[i]; nconns += sizes[i] - 1) {
            struct world w;

            world_open(&w, &harness, sizes[i], nconns);
            crew_run(&crew, &w, play_mixed, NULL);
            crew_expect_success(&crew, "mixed calls");
            world_close(&w);
        }
}

/* ---- several threads of one rank */

#define THREADS      3u
#define SHARED_CALLS 150u

struct helper {
    struct ruccl_comm comm;
    pthread_t thread;
    int result;
    bool wrong;
};

/* Whichever call of another rank's it meets, the sum is the same. */
static void *play_helper(void *arg)
{
    struct helper *h = arg;

    for (uint32_t i = 0; i < SHARED_CALLS && h->result == 0; i++) {
        int32_t value = 1;
        const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };
        struct ruccl_work *work;

        if (i % 8 == 7) {
            h->result = ruccl_all_reduce_async(h->comm, &t, &t, RUCCL_SUM, &work);
            if (h->result == 0) {
                h->result = ruccl_work_wait(work, HARNESS_PATIENCE_US);
                ruccl_work_release(work);
            }
        } else {
            h->result = ruccl_all_reduce(h->comm, &t, &t, RUCCL_SUM);
        }
        h->wrong = h->wrong || value != (int32_t)ruccl_world_size(h->comm);
    }
    return NULL;
}

static int play_threads(struct crew_rank *me)
{
    struct helper helpers[THREADS] = { 0 };
    int r = 0;

    for (uint32_t i = 0; i < THREADS; i++) {
        helpers[i].comm = me->comm;
        if (pthread_create(&helpers[i].thread, NULL, play_helper, &helpers[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(helpers[i].thread, NULL);
        crew_check(me, helpers[i].result == 0, "a thread's call failed");
        crew_check(me, !helpers[i].wrong, "a wrong sum");
    }
    for (uint32_t i = 0; i < SHARED_CALLS && r == 0; i++)
        r = ruccl_barrier(me->comm);
    return r;
}

TEST(threads_of_a_rank_call_at_the_same_time)
{
    harness_start(&harness, NULL);
    for (uint32_t nconns = 1; nconns <= 2; nconns++) {
        struct world w;

        world_open(&w, &harness, 2, nconns);
        crew_run(&crew, &w, play_threads, NULL);
        crew_expect_success(&crew, "barrier");
        world_close(&w);
    }
}

/* ---- other communicators, and none at all */

/* In a region: of plain memory the daemon would have a part only if a meeting is closed. */
static int play_split(struct crew_rank *me)
{
    const uint32_t color = me->rank / 2;
    struct ruccl_region *region;
    struct ruccl_comm child;
    struct ruccl_tensor t;
    int r = ruccl_split(me->comm, (int32_t)color, (int32_t)me->rank, &child);

    if (r < 0 || (r = ruccl_alloc(world_conn(me->world, me->rank), 4096, &region)) < 0)
        return r;
    t = vector_of(region, 1);
    for (uint32_t i = 0; i < 100 && r == 0; i++) {
        int32_t *value = ruccl_region_data(region), sum = i % 3 == 0 ? 6 : color ? 5 : 1;

        *value = (int32_t)me->rank;
        r = ruccl_all_reduce(i % 3 ? child : me->comm, &t, &t, RUCCL_SUM);
        crew_check(me, r < 0 || *value == sum, "a wrong sum");
    }
    ruccl_free(region);
    return r < 0 ? r : ruccl_leave(child);
}

TEST(communicators_of_a_split_meet_apart)
{
    struct harness_usage before;
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 4, 4);
    crew_run(&crew, &w, play_split, NULL);
    crew_expect_success(&crew, "split");
    before = harness_usage(&harness);
    for (int i = 0; i < 10; i++) {
        crew_run(&crew, &w, play_split, NULL);
        crew_expect_success(&crew, "split");
    }
    harness_expect_usage(&harness, &before);
    world_close(&w);
    assert_false(crew_has_slate());
}

static void expect_no_meeting(const char *setting, const char *algorithm)
{
    const char *const options[] = { setting, NULL };
    const struct ruccl_join_options how = { NULL, HARNESS_PATIENCE_US, algorithm };
    _Atomic uint32_t completed = 0;
    struct world w;

    harness_start(&harness, options);
    crew_join(&w, &harness, 2, &how);
    crew_run(&crew, &w, play_calls, &completed);
    crew_expect_success(&crew, "all_reduce");
    assert_false(crew_has_slate());
    world_close(&w);
    assert_int_equal(harness_stop(&harness), 0);
}

TEST(where_nobody_can_meet_all_works)
{
    expect_no_meeting("--set=rings=no", NULL);
    expect_no_meeting("--set=max_fds=5", NULL); /* two sessions and their bells */
    expect_no_meeting("--set=spin=1ms", "hierarchical");
}

#define meeting_test(f) cmocka_unit_test_teardown(f, stop_daemon)

int main(void)
{
    const struct CMUnitTest tests[] = {
        meeting_test(ranks_meet_while_the_daemon_stands_still),
        meeting_test(attended_works_meet_too_and_tell_of_it),
        meeting_test(blocking_and_other_calls_mix_in_every_order),
        meeting_test(threads_of_a_rank_call_at_the_same_time),
        meeting_test(communicators_of_a_split_meet_apart),
        meeting_test(where_nobody_can_meet_all_works),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
