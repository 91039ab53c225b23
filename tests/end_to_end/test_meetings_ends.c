/*
 * Meetings that end badly: whoever goes, or does not come, is told of as after every other call;
 * and what the status says.
 */
#include <sched.h>
#include <stdio.h>

#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/crew.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define RANKS      3u
#define PROMPT_MS  (STAGE_PROMPT_US / 1000)
#define TIMEOUT_US 300000

static struct harness harness;
static struct crew crew;
static struct stage *stage;

static int stop_daemon(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* ---- failed communicators */

static int play_barrier(struct crew_rank *me)
{
    return ruccl_barrier(me->comm);
}

static int play_until_failure(struct crew_rank *me)
{
    int32_t value = 0;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };
    int r;

    do {
        r = ruccl_all_reduce(me->comm, &t, &t, RUCCL_MAX);
        atomic_fetch_add((_Atomic uint64_t *)me->context, 1);
    } while (r == 0);
    return r;
}

/* They have gone round some times. */
static void await_calls(_Atomic uint64_t *ncalls)
{
    const int64_t deadline = stage_now_us() + HARNESS_PATIENCE_US;

    while (atomic_load(ncalls) < 100) {
        assert_true(stage_now_us() < deadline);
        sched_yield();
    }
}

TEST(calls_after_an_abort_fail_at_once)
{
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, RANKS, RANKS);
    crew_run(&crew, &w, play_barrier, NULL);
    crew_expect_success(&crew, "barrier");
    assert_int_equal(ruccl_abort(w.comms[1], "enough of this"), 0);
    for (int i = 0; i < 20; i++) {
        crew_start(&crew, &w, play_barrier, NULL);
        assert_true(crew_ends(&crew, PROMPT_MS));
        crew_expect_failure(&crew, RUCCL_ABORTED, "enough of this");
    }
    assert_int_equal(ruccl_barrier(w.comms[2]), -RUCCL_ABORTED); /* by one alone, too */
    world_close(&w);
}

TEST(an_abort_ends_a_loop_of_meetings)
{
    harness_start(&harness, NULL);
    for (int i = 0; i < 10; i++) {
        _Atomic uint64_t ncalls = 0;
        struct world w;

        world_open(&w, &harness, RANKS, RANKS);
        crew_start(&crew, &w, play_until_failure, &ncalls);
        await_calls(&ncalls);
        assert_int_equal(ruccl_abort(w.comms[0], "enough of this"), 0);
        assert_true(crew_ends(&crew, PROMPT_MS));
        crew_expect_failure(&crew, RUCCL_ABORTED, "enough of this");
        world_close(&w);
    }
}

TEST(the_daemons_death_ends_a_loop_of_meetings)
{
    for (int i = 0; i < 3; i++) {
        _Atomic uint64_t ncalls = 0;
        struct world w;

        harness_start(&harness, NULL);
        world_open(&w, &harness, RANKS, RANKS);
        crew_start(&crew, &w, play_until_failure, &ncalls);
        await_calls(&ncalls);
        harness_kill(&harness);
        assert_true(crew_ends(&crew, PROMPT_MS));
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(crew.ranks[r].result, -RUCCL_DAEMON_LOST);
            ruccl_close(w.conns[r]);
        }
        assert_int_equal(harness_stop(&harness), 0);
    }
}

/* ---- a rank that is killed */

#define CALLS_BEFORE 200u

static void play_member(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, RANKS, NULL);

    for (uint32_t i = 0; i < CALLS_BEFORE; i++)
        part_ok(me, ruccl_barrier(comm), "barrier");
    part_reach(me, 1);
    part_wait(me, 1); /* the victim is killed here */
    part_report(me, ruccl_barrier(comm));
    part_report(me, ruccl_barrier(comm));
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
    part_reach(me, 2);
}

TEST(a_rank_that_is_killed_between_two_calls_is_named)
{
    struct part *parts[RANKS];
    char last[64];
    int64_t since;

    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    for (uint32_t r = 0; r < RANKS; r++)
        parts[r] = stage_add(stage, r, play_member);
    stage_await_all(stage, 1);
    since = stage_now_us();
    stage_kill(parts[2]);
    snprintf(last, sizeof(last), "rank 2|last: barrier %u", CALLS_BEFORE);
    for (uint32_t r = 0; r < 2; r++)
        stage_cue(parts[r], 1);
    for (uint32_t r = 0; r < 2; r++) {
        stage_await(parts[r], 2);
        stage_expect(parts[r], 0, RUCCL_RANK_LOST, last, since);
        stage_expect(parts[r], 1, RUCCL_RANK_LOST, last, since);
        stage_dismiss(parts[r]);
    }
    stage_expect_nothing_left(stage, &harness);
}

/* ---- a rank that has left */

static int play_without_rank_1(struct crew_rank *me)
{
    return me->rank == 1 ? 0 : ruccl_barrier(me->comm);
}

TEST(who_has_left_is_not_waited_for)
{
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, RANKS, RANKS);
    crew_run(&crew, &w, play_barrier, NULL);
    crew_expect_success(&crew, "barrier");
    assert_int_equal(ruccl_leave(w.comms[1]), 0);
    for (int i = 0; i < 3; i++) {
        crew_start(&crew, &w, play_without_rank_1, NULL);
        assert_true(crew_ends(&crew, PROMPT_MS));
        crew.ranks[1] = crew.ranks[0];
        crew_expect_failure(&crew, RUCCL_RANK_LEFT, "rank 1 has left");
    }
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_close(w.conns[r]);
}

/* ---- a rank that does not come */

static int play_three_calls(struct crew_rank *me)
{
    int32_t value = 1;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };
    int r;

    r = ruccl_barrier(me->comm);
    if (r == 0)
        r = ruccl_all_reduce(me->comm, &t, &t, RUCCL_SUM);
    if (r == 0)
        r = ruccl_broadcast(me->comm, &t, &t, 1);
    return r;
}

/* The communicator and its members, by the daemon's word. */
static void expect_status(uint64_t completed, const char *last)
{
    uint32_t comms = 0, members = 0;
    struct raw c;

    raw_open(&c, harness.socket);
    raw_ask_status(&c);
    for (uint32_t i = 0; i < c.reply.status_page.nitems; i++) {
        const struct status_item *item = &c.reply.status_page.items[i];

        if (item->kind == STATUS_COMMUNICATOR) {
            assert_int_equal(item->communicator.sequence, completed);
            comms++;
        } else if (item->kind == STATUS_MEMBER) {
            assert_int_equal(item->member.sequence, completed + 1);
            assert_string_equal(item->member.last, last);
            assert_in_range(item->member.last_age_us, 0, HARNESS_PATIENCE_US);
            members++;
        }
    }
    assert_int_equal(comms, 1);
    assert_int_equal(members, RANKS);
    raw_close(&c);
}

TEST(the_status_counts_what_was_carried_out_at_the_slate)
{
    static const char *const patient[] = { "--set=spin=2ms", NULL };
    uint32_t met = 0, posted = 0;
    char last[64];
    struct world w;

    harness_start(&harness, patient);
    world_open(&w, &harness, RANKS, RANKS);
    expect_status(0, "joined");
    for (int i = 0; i < 1000 && (i < 50 || met == 0 || posted == 0); i++) {
        struct ruccl_work *works[RANKS];

        crew_run(&crew, &w, play_three_calls, NULL);
        crew_expect_success(&crew, "three calls");
        w.sequence += 3;
        met += crew_has_met(RANKS, w.sequence);
        snprintf(last, sizeof(last), "broadcast %llu", (unsigned long long)w.sequence);
        expect_status(w.sequence, last);
        if (i % 3)
            continue;
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(ruccl_barrier_async(w.comms[r], &works[r]), 0);
        for (uint32_t r = 0; r < RANKS; r++)
            expect_done(works[r], "barrier");
        w.sequence++;
        posted++;
        snprintf(last, sizeof(last), "barrier %llu", (unsigned long long)w.sequence);
        expect_status(w.sequence, last);
    }
    assert_true(met > 0);
    world_close(&w);
}

TEST(who_does_not_come_is_named_with_what_it_did_last)
{
    const struct ruccl_join_options options = { "late", TIMEOUT_US, NULL };
    uint32_t met = 0;

    harness_start(&harness, NULL);
    for (int i = 0; i < 200 && (i < 3 || met == 0); i++) {
        char words[96];
        struct world w;

        crew_join(&w, &harness, RANKS, &options);
        crew_run(&crew, &w, play_three_calls, NULL);
        crew_expect_success(&crew, "three calls");
        met += crew_has_met(RANKS, 3);
        crew_start(&crew, &w, play_without_rank_1, NULL);
        assert_true(crew_ends(&crew, PROMPT_MS + TIMEOUT_US / 1000));
        crew.ranks[1] = crew.ranks[0];
        snprintf(words, sizeof(words), "barrier 4|late|ranks 0, 2|rank 1|broadcast 3");
        crew_expect_failure(&crew, RUCCL_TIMEOUT, words);
        world_close(&w);
    }
    assert_true(met > 0);
}

#define end_test(f) cmocka_unit_test_teardown(f, stop_daemon)

int main(void)
{
    const struct CMUnitTest tests[] = {
        end_test(calls_after_an_abort_fail_at_once),
        end_test(an_abort_ends_a_loop_of_meetings),
        end_test(the_daemons_death_ends_a_loop_of_meetings),
        end_test(a_rank_that_is_killed_between_two_calls_is_named),
        end_test(who_has_left_is_not_waited_for),
        end_test(the_status_counts_what_was_carried_out_at_the_slate),
        end_test(who_does_not_come_is_named_with_what_it_did_last),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
