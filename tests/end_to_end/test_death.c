/*
 * Clients that die: what the others are told, how soon, and that nothing of the dead is left in the
 * daemon.
 */
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

#define MIB         (1024u * 1024)
#define LONG_BYTES  (32 * MIB) /* of a long operation's tensor */
#define PATIENCE_US (STAGE_PATIENCE_MS * 1000ll)

static struct harness harness;
static struct stage *stage;

static void raise_curtain(void)
{
    harness_start(&harness, NULL);
    stage = stage_open(&harness);
}

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* In place: by the loop thread, an element at a time; or by workers, in chunks worth a wake-up. */
enum pace { BY_ELEMENT, BY_WORKERS };

static uint64_t bytes_of(enum pace pace)
{
    return pace == BY_ELEMENT ? LONG_BYTES / 8 : LONG_BYTES;
}

static struct ruccl_work *part_post_long(struct part *me, struct ruccl_comm comm,
                                         struct ruccl_region *region, enum pace pace)
{
    const uint64_t share = pace == BY_ELEMENT ? sizeof(int32_t) : MIB / 4;
    const struct ruccl_tensor t = vector_of(region, bytes_of(pace) / sizeof(int32_t));
    struct ruccl_work *work;

    part_ok(me,
            ruccl_all_reduce_async(ruccl_bounded(comm, share * ruccl_world_size(comm)), &t, &t,
                                   RUCCL_SUM, &work),
            "all_reduce");
    return work;
}

/* ---- killed while data moves */

#define KILLS      50u
#define FAR_US     500000
#define AT_ONCE_US 1000000 /* for most; a few may have met a machine with other things to do */

struct tally {
    uint32_t kills, at_once;
    int64_t slowest_us;
};

static enum pace pace_of(uint32_t round)
{
    return round % 5 == 4 ? BY_WORKERS : BY_ELEMENT;
}

static void play_survivor(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_alloc(me, conn, LONG_BYTES);

    for (uint32_t round = 0;; round++) {
        struct ruccl_comm comm;
        struct ruccl_work *work;

        part_wait(me, round + 1);
        if (atomic_load(&me->cue) == UINT32_MAX)
            break;
        comm = part_join(s, me, conn, round, me->rank, 3, NULL);
        work = part_post_long(me, comm, region, pace_of(round));
        me->nreports = 0;
        part_report(me, part_watch(me, work));
        ruccl_work_release(work);
        part_report(me, ruccl_barrier(comm));
        part_ok(me, ruccl_leave(comm), "leave");
        part_reach(me, round + 1);
    }
    ruccl_close(conn);
}

static void take_part_in_long(struct stage *s, struct part *me, struct ruccl_conn *conn)
{
    const uint32_t round = atomic_load(&s->parts[0].cue) - 1;
    struct ruccl_region *region = part_alloc(me, conn, bytes_of(pace_of(round)));
    struct ruccl_comm comm = part_join(s, me, conn, round, me->rank, 3, NULL);

    ruccl_work_wait(part_post_long(me, comm, region, pace_of(round)), PATIENCE_US);
    part_wait(me, 1); /* to be killed */
}

static void play_victim(struct stage *s, struct part *me)
{
    take_part_in_long(s, me, part_connect(s, me));
}

/* Its child keeps the socket open after its death. */
static void play_victim_with_child(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    pid_t child = fork();

    if (child == 0) {
        alarm(60);
        pause();
        _exit(0);
    }
    me->child = child;
    take_part_in_long(s, me, conn);
}

static void rest(void)
{
    const struct timespec moment = { .tv_nsec = 100000 };

    nanosleep(&moment, NULL);
}

/* Until the operation is behind its first chunk: how far is the seed's to choose, as far as that
 * does not take long. */
static void await_middle(const struct part *part, const struct part *victim, uint64_t percent)
{
    const int64_t deadline = stage_now_us() + PATIENCE_US;
    int64_t enough;

    while (atomic_load(&part->done) == 0) {
        if (stage_now_us() > deadline)
            fail_msg("%s; the operation does not begin; %u reports, the first %d: %s",
                     victim->failure, part->nreports, part->reports[0].result,
                     part->reports[0].error.text);
        rest();
    }
    enough = stage_now_us() + FAR_US;
    while (atomic_load(&part->done) * 100 < atomic_load(&part->total) * percent &&
           stage_now_us() < enough)
        rest();
}

static void expect_told(uint32_t i, const char *words, int64_t killed_us)
{
    const struct part *survivor = &stage->parts[i];

    stage_expect(survivor, 0, RUCCL_RANK_LOST, words, killed_us);
    stage_expect(survivor, 1, RUCCL_RANK_LOST, words, killed_us);
    assert_string_equal(survivor->reports[0].error.text, survivor->reports[1].error.text);
    assert_int_equal(survivor->reports[0].error.nranks, 1);
    assert_int_equal(survivor->reports[0].error.ranks[0], 2);
    assert_true(survivor->done > 0);
}

static bool part_in_the_middle(const struct part *survivor)
{
    return survivor->reports[0].result != 0 && survivor->done < survivor->total;
}

/* Counts it if it was the middle. The operation may have been the faster one: it ended for one
 * survivor or both, or its last chunk was done when the death cut it short. */
static void kill_in_the_middle(struct part *victim, role_fn play, uint32_t round, uint64_t percent,
                               struct tally *tally)
{
    int64_t killed_us, told_us = 0;
    char words[64];
    bool middle;

    atomic_store(&stage->parts[0].done, 0);
    stage_cue(&stage->parts[0], round + 1);
    stage_cue(&stage->parts[1], round + 1);
    stage_play(stage, victim, play);
    await_middle(&stage->parts[0], victim, percent);

    killed_us = stage_now_us();
    stage_kill(victim);
    snprintf(words, sizeof(words), "rank 2 (pid %d on |died", (int)victim->pid);
    stage_await(&stage->parts[0], round + 1);
    stage_await(&stage->parts[1], round + 1);
    stage_kill_child(victim);
    middle = part_in_the_middle(&stage->parts[0]) && part_in_the_middle(&stage->parts[1]);
    for (uint32_t i = 0; middle && i < 2; i++) {
        expect_told(i, words, killed_us);
        told_us = MAX(told_us, stage->parts[i].reports[0].at_us - killed_us);
    }
    tally->kills += middle;
    tally->at_once += middle && told_us < AT_ONCE_US;
    tally->slowest_us = MAX(tally->slowest_us, told_us);
}

static void kill_many(role_fn play)
{
    struct tally tally = { 0 };
    struct part *victim;
    uint64_t seed = 1;
    uint32_t round;

    raise_curtain();
    stage_add(stage, 0, play_survivor);
    stage_add(stage, 1, play_survivor);
    victim = stage_reserve(stage, 2);
    stage_add_bystanders(stage);
    for (round = 0; tally.kills < KILLS; round++) {
        if (round == 2 * KILLS)
            fail_msg("only %u of %u kills were in the middle of the operation", tally.kills, round);
        kill_in_the_middle(victim, play, round, unit_random(&seed) % 40, &tally);
    }
    print_message("           %u rounds, the slowest was told after %lld us\n", round,
                  (long long)tally.slowest_us);
    assert_true(tally.at_once > KILLS / 2);
    stage_cue(&stage->parts[0], UINT32_MAX);
    stage_cue(&stage->parts[1], UINT32_MAX);
    stage_dismiss_bystanders(stage);
    stage_expect_nothing_left(stage, &harness);
}

TEST(a_rank_killed_in_the_middle_of_an_operation_is_named_to_the_others)
{
    kill_many(play_victim);
}

TEST(a_child_that_holds_the_socket_of_a_killed_rank_hides_nothing)
{
    kill_many(play_victim_with_child);
}

/* ---- killed at any moment */

/* A little of everything, until the end. */
static void play_busy(struct stage *s, struct part *me)
{
    const uint32_t rank = me->rank, next = (rank + 1) % 3, previous = (rank + 2) % 3;
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, rank, 3, NULL);
    static int32_t plain[5000];

    for (;;) {
        struct ruccl_region *region = part_alloc(me, conn, 300000);
        const struct ruccl_tensor t = vector_of(region, 75000);
        const struct ruccl_tensor p = {
            .dtype = RUCCL_I32, .naxes = 1, .shape = { ARRAY_SIZE(plain) }, .data = plain
        };
        struct ruccl_work *works[3] = { NULL };
        struct ruccl_comm child;

        ruccl_all_reduce(ruccl_bounded(comm, 1200), &t, &t, RUCCL_SUM);
        ruccl_send_async(comm, &t, next, 0, &works[0]);
        ruccl_broadcast_async(comm, &p, &p, 1, &works[1]);
        ruccl_all_reduce_async(comm, &t, &t, RUCCL_MAX, &works[2]);
        ruccl_recv(comm, &p, previous, 0); /* of another shape: refused */
        ruccl_free(region);                /* its operations hold it */
        ruccl_work_release(works[2]);
        ruccl_work_release(works[1]);
        ruccl_work_release(works[0]);
        if (ruccl_split(comm, (int32_t)rank / 2, 0, &child) == 0 && child.member) {
            ruccl_barrier(child);
            ruccl_leave(child);
        }
    }
}

TEST(ranks_killed_at_any_moment_leave_nothing)
{
    enum { LIVES = HARNESS_SANITIZED ? 40 : 300 };
    uint64_t seed = 7;

    raise_curtain();
    for (uint32_t rank = 0; rank < 3; rank++)
        stage_reserve(stage, rank);
    stage_add_bystanders(stage);
    for (int life = 0; life < LIVES; life++) {
        atomic_store(&stage->ids[0].ready, false);
        for (uint32_t i = 0; i < 3; i++)
            stage_play(stage, &stage->parts[i], play_busy);
        for (uint32_t i = 0; i < 3; i++) {
            const struct timespec moment = { .tv_nsec = (long)(unit_random(&seed) % 6000000) };

            nanosleep(&moment, NULL);
            stage_kill(&stage->parts[(i + (uint32_t)life) % 3]);
        }
    }
    stage_dismiss_bystanders(stage);
    stage_expect_nothing_left(stage, &harness);
}

/* ---- many lives */

static void play_short_life(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);

    part_compute(me, comm, part_alloc(me, conn, 100000), 3);
    part_ok(me, ruccl_barrier(comm), "barrier");
    /* one in two without a farewell */
    if (me->rank == 0)
        _exit(0);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_thousand_lives_leave_nothing)
{
    enum { LIVES = HARNESS_SANITIZED ? 100 : 1000 };

    raise_curtain();
    stage_reserve(stage, 0);
    stage_reserve(stage, 1);
    for (int life = 0; life < LIVES; life += 2) {
        atomic_store(&stage->ids[0].ready, false);
        stage_play(stage, &stage->parts[0], play_short_life);
        stage_play(stage, &stage->parts[1], play_short_life);
        stage_dismiss_all(stage);
    }
    stage_expect_nothing_left(stage, &harness);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(a_rank_killed_in_the_middle_of_an_operation_is_named_to_the_others),
        CLAIM(a_child_that_holds_the_socket_of_a_killed_rank_hides_nothing),
        CLAIM(ranks_killed_at_any_moment_leave_nothing),
        CLAIM(a_thousand_lives_leave_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
