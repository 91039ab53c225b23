/* Ranks that sleep at bells: by the kernel's help and without it, and what ends their sleep. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

#define RANKS  4u
#define ROUNDS 300

#define SLEEP_US 100000 /* at the bells, when none rings */

static struct harness harness;
static struct stage *stage;

static int drop_curtain(void **state)
{
    (void)state;
    stage = stage_close(stage);
    return harness_stop(&harness);
}

/* As a kernel that is too old, or a container that does not know the call, would answer. */
static void refuse_to_wait(struct part *me, int err)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_futex_waitv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)err),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog program = { .len = 4, .filter = filter };

    part_check(me, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    part_check(me, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0, "a filter");
}

struct rounds {
    struct part *me;
    struct ruccl_comm comm;
};

/* A bell that is not heard costs a whole sleep at the bells, and others wait for who sleeps. */
static void *add_up(void *arg)
{
    struct rounds *r = arg;
    unsigned nslow = 0;
    int32_t sum;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &sum };

    for (int round = 0; round < ROUNDS; round++) {
        const int64_t begun_us = stage_now_us();

        sum = round;
        part_ok(r->me, ruccl_all_reduce(r->comm, &t, &t, RUCCL_SUM), "all_reduce");
        part_check(r->me, sum == (int32_t)RANKS * round, "the sum");
        nslow += stage_now_us() - begun_us >= SLEEP_US;
    }
    part_check(r->me, nslow < ROUNDS / 2, "hearing the bells");
    return NULL;
}

/* Two threads of one connection: one sleeps for both. */
static void play_rank(struct stage *s, struct part *me)
{
    struct rounds rounds[2] = { { .me = me }, { .me = me } };
    struct ruccl_conn *conn;
    pthread_t thread;

    if (me->rank < 2)
        refuse_to_wait(me, me->rank ? EPERM : ENOSYS);
    conn = part_connect(s, me);
    for (uint32_t i = 0; i < 2; i++)
        rounds[i].comm = part_join(s, me, conn, i, me->rank, RANKS, NULL);
    part_check(me, pthread_create(&thread, NULL, add_up, &rounds[1]) == 0, "a thread");
    add_up(&rounds[0]);
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < 2; i++)
        part_ok(me, ruccl_leave(rounds[i].comm), "leave");
    ruccl_close(conn);
}

static void play_with(const char *spin)
{
    const char *options[] = { spin, NULL };

    harness_start(&harness, options);
    stage = stage_open(&harness);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        stage_add(stage, rank, play_rank);
    stage_dismiss_all(stage);
}

/* Nobody looks, so everybody sleeps, every time. */
TEST(ranks_that_hear_bells_and_ranks_that_cannot_work_together)
{
    play_with("--set=spin=0us");
}

TEST(ranks_that_look_before_they_sleep_hear_them_too)
{
    play_with("--set=spin=20us");
}

static void play_sleeper(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, 0, me->rank, RANKS, NULL);
    int32_t value = 0;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };

    part_reach(me, 1);
    part_report(me, ruccl_recv(comm, &t, (me->rank + 1) % RANKS, 0));
    ruccl_close(conn);
}

/* A daemon that is killed rings nobody. */
TEST(a_daemon_that_dies_ends_the_sleep_of_all)
{
    int64_t killed_us;

    harness_start(&harness, NULL);
    stage = stage_open(&harness);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        stage_add(stage, rank, play_sleeper);
    stage_await_all(stage, 1);
    usleep(20000); /* asleep, and at the bells still */
    killed_us = stage_now_us();
    harness_kill(&harness);
    stage_dismiss_all(stage);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        stage_expect(&stage->parts[rank], 0, RUCCL_DAEMON_LOST, "died", killed_us);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(ranks_that_hear_bells_and_ranks_that_cannot_work_together,
                                  drop_curtain),
        cmocka_unit_test_teardown(ranks_that_look_before_they_sleep_hear_them_too, drop_curtain),
        cmocka_unit_test_teardown(a_daemon_that_dies_ends_the_sleep_of_all, drop_curtain),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
