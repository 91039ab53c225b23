/*
 * Clients that part, stop, fork, misbehave or are many: who is told what, and who notices nothing.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/cost.h"
#include "tests/unit/unit.h"

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

/* ---- other ways to go */

struct way {
    const char *name;
    role_fn go; /* of rank 2, after it has joined */
    enum ruccl_code code;
    const char *words;
};

/* Static, so that the forked actors find it. */
static const struct way *way;

#define OTHERS_ID 1u

/* Blocked in the communicator of three when the third goes; another one of two lives on. */
static void play_left_behind(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm three = part_join(s, me, conn, 0, me->rank, 3, NULL);
    struct ruccl_comm two = part_join(s, me, conn, OTHERS_ID, me->rank, 2, NULL);
    struct ruccl_region *region = part_alloc(me, conn, 4000);

    part_reach(me, 1);
    part_report(me, ruccl_barrier(three));
    part_report(me, ruccl_barrier(three));
    part_compute(me, two, region, 1);
    part_ok(me, ruccl_leave(three), "leave of a failed communicator");
    part_ok(me, ruccl_leave(two), "leave");
    ruccl_close(conn);
}

struct goer {
    struct ruccl_conn *conn;
    struct ruccl_comm comm;
};

static struct goer part_join_to_go(struct stage *s, struct part *me)
{
    struct goer g = { .conn = part_connect(s, me) };

    g.comm = part_join(s, me, g.conn, 0, 2, 3, NULL);
    part_reach(me, 1);
    part_wait(me, 1);
    return g;
}

static void go_exit(struct stage *s, struct part *me)
{
    part_join_to_go(s, me);
    _exit(0);
}

static void go_close(struct stage *s, struct part *me)
{
    struct goer g = part_join_to_go(s, me);
    struct ruccl_work *work;

    part_ok(me, ruccl_recv_async(g.comm, &(struct ruccl_tensor){ RUCCL_I32 }, 0, 0, &work), "recv");
    ruccl_close(g.conn);
    part_check(me, ruccl_work_wait(work, 0) == -RUCCL_CLOSED, "closing ends own work");
    ruccl_work_release(work);
    part_wait(me, 2);
}

static void go_leave(struct stage *s, struct part *me)
{
    struct goer g = part_join_to_go(s, me);

    part_ok(me, ruccl_leave(g.comm), "leave");
    part_wait(me, 2);
    ruccl_close(g.conn);
}

static void go_abort(struct stage *s, struct part *me)
{
    struct goer g = part_join_to_go(s, me);

    part_ok(me, ruccl_abort(g.comm, "the loss is not a number"), "abort");
    part_wait(me, 2);
    part_check(me, ruccl_barrier(g.comm) == -RUCCL_ABORTED, "an abort holds for its caller too");
    ruccl_close(g.conn);
}

static const struct way ways[] = {
    { "exit without close", go_exit, RUCCL_RANK_LOST, "rank 2 (pid | died|last: joined" },
    { "close", go_close, RUCCL_RANK_LOST, "rank 2 (pid | disconnected|last: recv" },
    { "leave", go_leave, RUCCL_RANK_LEFT, "rank 2 (pid | left while others need it" },
    { "abort", go_abort, RUCCL_ABORTED, "aborted by rank 2: the loss is not a number" },
};

/* The two, by the one that has not gone yet. */
static void await_blocked(void)
{
    const pid_t pids[] = { harness.pid, stage->parts[0].pid, stage->parts[1].pid };

    cost_await_rest(pids, ARRAY_SIZE(pids));
}

static void go_one_way(void)
{
    int64_t since_us;

    stage = stage_open(&harness);
    stage_add(stage, 0, play_left_behind);
    stage_add(stage, 1, play_left_behind);
    stage_add(stage, 2, way->go);
    stage_await_all(stage, 1);
    await_blocked();
    since_us = stage_now_us();
    stage_cue(&stage->parts[2], 1);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    for (uint32_t i = 0; i < 2; i++) {
        const struct report *reports = stage->parts[i].reports;

        stage_expect(&stage->parts[i], 0, way->code, way->words, since_us);
        stage_expect(&stage->parts[i], 1, way->code, way->words, since_us);
        assert_string_equal(reports[0].error.text, reports[1].error.text);
        assert_int_equal(reports[0].error.nranks, 1);
        assert_int_equal(reports[0].error.ranks[0], 2);
    }
    stage_cue(&stage->parts[2], 2);
    stage_expect_nothing_left(stage, &harness);
    stage = stage_close(stage);
}

TEST(whoever_goes_is_named_to_those_who_wait_for_it)
{
    raise_curtain();
    stage = stage_close(stage);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        way = &ways[i];
        print_message("           %s\n", way->name);
        go_one_way();
    }
}

/* ---- stopped */

/* Of joining and of each call; all have to begin within it on a machine that has much to do. */
#define SHORT_TIMEOUT_US 2000000

static void play_waiter_for_a_stopped_rank(struct stage *s, struct part *me)
{
    const struct ruccl_join_options options = { .timeout_us = SHORT_TIMEOUT_US };
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_alloc(me, conn, 4000);
    struct ruccl_comm comm;

    part_reach(me, 1);
    part_wait(me, 1);
    comm = part_join(s, me, conn, 0, me->rank, 3, &options);
    part_compute(me, comm, region, 1);
    part_reach(me, 2);
    part_wait(me, 2);
    part_report(me, ruccl_barrier(comm));
    part_report(me, ruccl_barrier(comm));
    ruccl_close(conn);
}

TEST(a_stopped_rank_times_out_by_name)
{
    struct part *stopped;
    char words[160];
    int64_t since_us;

    raise_curtain();
    for (uint32_t rank = 0; rank < 3; rank++)
        stage_add(stage, rank, play_waiter_for_a_stopped_rank);
    stage_add_bystanders(stage);
    stopped = &stage->parts[1];
    for (uint32_t i = 0; i < 3; i++)
        stage_await(&stage->parts[i], 1);
    for (uint32_t i = 0; i < 3; i++)
        stage_cue(&stage->parts[i], 1);
    for (uint32_t i = 0; i < 3; i++)
        stage_await(&stage->parts[i], 2);
    poll(NULL, 0, 3 * SHORT_TIMEOUT_US / 2000); /* an idle communicator does not time out */

    stage_freeze(stopped->pid);
    since_us = stage_now_us();
    for (uint32_t i = 0; i < 3; i++)
        stage_cue(&stage->parts[i], 2);
    stage_dismiss(&stage->parts[0]);
    kill(stopped->pid, SIGCONT);
    stage_dismiss(&stage->parts[2]);
    stage_dismiss(stopped);
    snprintf(words, sizeof(words),
             "barrier 2|timeout after 2 s|ranks 0, 2 arrived|rank 1 did not|rank 1 (pid %d on |"
             "last: all_reduce 1",
             (int)stopped->pid);
    for (uint32_t i = 0; i < 3; i++) {
        stage_expect(&stage->parts[i], 0, RUCCL_TIMEOUT, words, since_us + SHORT_TIMEOUT_US);
        stage_expect(&stage->parts[i], 1, RUCCL_TIMEOUT, words, since_us + SHORT_TIMEOUT_US);
        assert_true(stage->parts[i].reports[0].at_us >= since_us + SHORT_TIMEOUT_US);
        assert_int_equal(stage->parts[i].reports[0].error.nranks, 1);
        assert_int_equal(stage->parts[i].reports[0].error.ranks[0], 1);
    }
    stage_dismiss_bystanders(stage);
    stage_expect_nothing_left(stage, &harness);
}

/* More answers than a socket holds. */
#define POSTS 1000

static void play_poster(struct stage *s, struct part *me)
{
    static struct ruccl_work *works[POSTS];
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);

    if (me->rank == 1)
        part_wait(me, 1);
    for (int i = 0; i < POSTS; i++)
        part_ok(me, ruccl_barrier_async(comm, &works[i]), "barrier");
    part_reach(me, 1);
    if (me->rank == 0)
        part_wait(me, 1);
    for (int i = 0; i < POSTS; i++) {
        part_ok(me, ruccl_work_wait(works[i], PATIENCE_US), "barrier");
        ruccl_work_release(works[i]);
    }
    part_reach(me, 2);
    part_wait(me, 2);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

TEST(a_rank_that_does_not_read_its_answers_delays_nobody)
{
    raise_curtain();
    stage_add(stage, 0, play_poster);
    stage_add(stage, 1, play_poster);
    stage_await(&stage->parts[0], 1);
    stage_freeze(stage->parts[0].pid);
    stage_cue(&stage->parts[1], 1);
    stage_await(&stage->parts[1], 2);
    kill(stage->parts[0].pid, SIGCONT);
    stage_cue_all(stage, 2);
    stage_expect_nothing_left(stage, &harness);
}

/* ---- holes in memory */

static int part_memfd(struct part *me, uint64_t bytes)
{
    int fd = memfd_create("holes", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    part_check(me,
               fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 &&
                   fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0,
               "a sealed memfd");
    return fd;
}

static void play_puncher(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, 2, NULL);
    const uint64_t bytes = 4u << 20;
    int fd = part_memfd(me, bytes);
    struct ruccl_region *region;
    struct ruccl_tensor t;
    struct ruccl_work *work;
    uint64_t seed = 1;
    int r;

    part_ok(me, ruccl_register(conn, fd, bytes, &region), "register");
    t = vector_of(region, bytes / sizeof(int32_t));
    part_ok(me, ruccl_all_reduce_async(ruccl_bounded(comm, 64), &t, &t, RUCCL_SUM, &work),
            "all_reduce");
    do {
        off_t at = (off_t)(unit_random(&seed) % bytes & ~4095ull);

        part_check(me, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, 65536) == 0,
                   "a hole");
        part_check(me, ftruncate(fd, 0) < 0, "the seals keep the size");
        r = ruccl_work_test(work);
    } while (r == RUCCL_PENDING);
    part_ok(me, r, "all_reduce of memory with holes");
    ruccl_work_release(work);

    /* what was punched is only zero, and can be used again */
    part_compute(me, comm, region, 7);
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
    close(fd);
}

TEST(holes_punched_into_memory_hurt_nobody_else)
{
    raise_curtain();
    stage_add(stage, 0, play_puncher);
    stage_add(stage, 1, play_puncher);
    stage_add_bystanders(stage);
    stage_dismiss(&stage->parts[0]);
    stage_dismiss(&stage->parts[1]);
    stage_dismiss_bystanders(stage);
    stage_expect_nothing_left(stage, &harness);
}

/* ---- forked */

static int use_in_child(struct goer g)
{
    char id[RUCCL_ID_BYTES];
    struct ruccl_region *region;
    int wrong = 0;

    wrong += ruccl_barrier(g.comm) != -RUCCL_FORKED;
    wrong += ruccl_leave(g.comm) != -RUCCL_FORKED;
    wrong += ruccl_new_id(g.conn, id) != -RUCCL_FORKED;
    wrong += ruccl_alloc(g.conn, 4096, &region) != -RUCCL_FORKED;
    wrong += ruccl_dispatch(g.conn) != -RUCCL_FORKED;
    wrong += !strstr(ruccl_last_error()->text, "connect again");
    ruccl_close(g.conn);
    return wrong;
}

static void play_forker(struct stage *s, struct part *me)
{
    struct goer g = { .conn = part_connect(s, me) };
    struct ruccl_region *region = part_alloc(me, g.conn, 4000);
    int status;

    g.comm = part_join(s, me, g.conn, 0, me->rank, 2, NULL);
    for (int32_t round = 0; round < 3; round++) {
        pid_t child = fork();

        if (child == 0)
            _exit(use_in_child(g));
        part_compute(me, g.comm, region, round);
        part_check(me, waitpid(child, &status, 0) == child && status == 0,
                   "the child being told that it is one");
        part_compute(me, g.comm, region, round);
    }
    part_ok(me, ruccl_leave(g.comm), "leave");
    ruccl_close(g.conn);
}

TEST(a_forked_child_is_told_and_its_parent_does_not_notice)
{
    raise_curtain();
    stage_add(stage, 0, play_forker);
    stage_add(stage, 1, play_forker);
    stage_expect_nothing_left(stage, &harness);
}

/* ---- many */

#define COMMS 50u

/* All at once, and every rank in an order of its own. */
static void play_collector(struct stage *s, struct part *me)
{
    static const uint32_t strides[] = { 1, 3, 7, 9 }; /* coprime to COMMS */
    static struct ruccl_comm comms[COMMS];
    static struct ruccl_work *works[COMMS];
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_region *region = part_alloc(me, conn, 40);

    for (uint32_t i = 0; i < COMMS; i++)
        part_id(s, me, conn, i, me->rank == 0);
    for (uint32_t n = 0; n < COMMS; n++) {
        uint32_t i = (n * strides[me->rank] + 7 * me->rank) % COMMS;

        part_ok(me, ruccl_join_async(conn, s->ids[i].text, me->rank, 4, NULL, &comms[i], &works[i]),
                "join");
    }
    for (uint32_t i = 0; i < COMMS; i++) {
        part_ok(me, ruccl_work_wait(works[i], PATIENCE_US), "join");
        ruccl_work_release(works[i]);
    }
    for (uint32_t i = 0; i < COMMS; i++)
        part_compute(me, comms[i], region, (int32_t)i);
    for (uint32_t i = 0; i < COMMS; i++)
        part_ok(me, ruccl_leave(comms[i]), "leave");
    ruccl_close(conn);
}

TEST(fifty_communicators_at_once)
{
    raise_curtain();
    for (uint32_t rank = 0; rank < 4; rank++)
        stage_add(stage, rank, play_collector);
    stage_expect_nothing_left(stage, &harness);
}

#define THREADS 4u

struct thread {
    struct stage *stage;
    struct part *me;
    struct ruccl_conn *conn;
    uint32_t number;
    pthread_t id;
};

static void *compute_in_thread(void *context)
{
    const struct thread *t = context;
    struct ruccl_comm comm = part_join(t->stage, t->me, t->conn, t->number, t->me->rank, 3, NULL);
    struct ruccl_region *region = part_alloc(t->me, t->conn, 400000);

    for (int32_t round = 0; round < 50; round++)
        part_compute(t->me, comm, region, round);
    part_ok(t->me, ruccl_leave(comm), "leave");
    ruccl_free(region);
    return NULL;
}

static void play_threads(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct thread threads[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) {
        threads[i] = (struct thread){ s, me, conn, i, 0 };
        pthread_create(&threads[i].id, NULL, compute_in_thread, &threads[i]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    ruccl_close(conn);
}

TEST(threads_of_one_connection_do_not_disturb_each_other)
{
    raise_curtain();
    for (uint32_t rank = 0; rank < 3; rank++)
        stage_add(stage, rank, play_threads);
    stage_expect_nothing_left(stage, &harness);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, drop_curtain)
    const struct CMUnitTest tests[] = {
        CLAIM(whoever_goes_is_named_to_those_who_wait_for_it),
        CLAIM(a_stopped_rank_times_out_by_name),
        CLAIM(a_rank_that_does_not_read_its_answers_delays_nobody),
        CLAIM(holes_punched_into_memory_hurt_nobody_else),
        CLAIM(a_forked_child_is_told_and_its_parent_does_not_notice),
        CLAIM(fifty_communicators_at_once),
        CLAIM(threads_of_one_connection_do_not_disturb_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
