/* What workers.h promises of who does the work, for how long, and how its end is found. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/workers.h"

#define NBLOCKS 64u
#define WAIT_MS 20000
#define TRIES   100u
#define LONG_US 1000000000u /* longer than a test takes */

/* One task whose elements are blocks; run_block() looks here, since it may know nothing else. */
static struct {
    pthread_t loop;
    atomic_uint runs[NBLOCKS], by_loop, by_workers;
    unsigned block_us;
    bool held;  /* workers' blocks wait for `gate`, the loop thread's for a worker */
    bool opens; /* the loop thread's blocks open it */
    atomic_bool gate;
    uint64_t stop_block; /* where `cancel` is raised, or that fails */
    int stop_r;
    atomic_bool cancel;
    unsigned ndone;
    int r;
} story;

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void work(unsigned us)
{
    const uint64_t until = now_us() + us;

    while (now_us() < until)
        ;
}

static void wait_for(const atomic_bool *flag, const atomic_uint *count)
{
    for (unsigned ms = 0; ms < WAIT_MS; ms++) {
        if (flag ? atomic_load(flag) : atomic_load(count) > 0)
            return;
        usleep(1000);
    }
}

static int run_block(const struct task *task, uint64_t first, uint64_t count)
{
    const bool by_loop = pthread_equal(pthread_self(), story.loop);

    (void)task;
    for (uint64_t i = first; i < first + count; i++)
        atomic_fetch_add(&story.runs[i], 1);
    atomic_fetch_add(by_loop ? &story.by_loop : &story.by_workers, 1);
    work(story.block_us);
    if (story.stop_r == -ECANCELED && first > story.stop_block)
        wait_for(&story.cancel, NULL); /* else these may be the last ones by then */
    if (by_loop && story.opens)
        atomic_store(&story.gate, true);
    if (story.held)
        wait_for(by_loop ? NULL : &story.gate, &story.by_workers);
    if (first == story.stop_block && story.stop_r == -ECANCELED)
        atomic_store(&story.cancel, true);
    else if (first == story.stop_block)
        return story.stop_r;
    return 0;
}

static void record_done(struct task *task, int r)
{
    (void)task;
    story.ndone++;
    story.r = r;
}

static struct workers *open_lookers(unsigned nworkers, unsigned ncpus, uint64_t look_us)
{
    struct workers *w = NULL;

    memset(&story, 0, sizeof(story));
    story.loop = pthread_self();
    story.stop_block = UINT64_MAX;
    assert_int_equal(workers_new(nworkers, ncpus, look_us, run_block, &w), 0);
    return w;
}

static struct workers *open_workers(unsigned nworkers, unsigned ncpus)
{
    return open_lookers(nworkers, ncpus, 0);
}

static struct task new_task(uint64_t nblocks)
{
    return (struct task){ .count = nblocks, .cancel = &story.cancel, .done = record_done };
}

static bool readable(const struct workers *w, int timeout_ms)
{
    struct pollfd p = { .fd = workers_fd(w), .events = POLLIN };

    return poll(&p, 1, timeout_ms) == 1;
}

static void finish(struct workers *w)
{
    while (story.ndone == 0) {
        if (!workers_wants_turn(w))
            assert_true(readable(w, WAIT_MS));
        workers_poll(w);
    }
    assert_int_equal(story.ndone, 1);
}

static void assert_each_once(uint64_t nblocks)
{
    for (unsigned i = 0; i < NBLOCKS; i++)
        assert_int_equal(story.runs[i], i < nblocks);
}

TEST(a_short_task_without_helpers_is_the_loop_threads)
{
    for (unsigned ncpus = 1; ncpus < 4; ncpus++) {
        struct workers *w = open_workers(2, ncpus);
        struct task t = new_task(NBLOCKS);

        assert_true(workers_submit(w, &t, 1, ncpus == 1 ? WORKERS_HELP : WORKERS_NONE));
        assert_true(workers_wants_turn(w));
        finish(w);
        assert_int_equal(story.r, 0);
        assert_int_equal(story.by_workers, 0);
        assert_each_once(NBLOCKS);
        assert_false(workers_wants_turn(w));
        assert_false(readable(w, 0));
        workers_free(w);
    }
}

TEST(a_poll_helps_for_a_bounded_time)
{
    struct workers *w = open_workers(1, 1);
    struct task t = new_task(NBLOCKS);
    unsigned npolls = 0;

    story.block_us = 60;
    assert_true(workers_submit(w, &t, 1, WORKERS_NONE));
    for (; story.ndone == 0; npolls++) {
        const unsigned before = story.by_loop;

        assert_true(workers_wants_turn(w));
        workers_poll(w);
        assert_true(story.by_loop - before <= 3); /* 100 us, and the block that was begun */
    }
    assert_true(npolls >= NBLOCKS / 3);
    assert_each_once(NBLOCKS);
    workers_free(w);
}

TEST(helpers_share_a_short_task_with_the_loop_thread)
{
    struct workers *w = open_workers(2, 3);
    struct task t = new_task(NBLOCKS);

    story.held = story.opens = true;
    assert_true(workers_submit(w, &t, 1, WORKERS_HELP));
    finish(w);
    assert_int_equal(story.r, 0);
    assert_true(story.by_loop > 0 && story.by_workers > 0);
    assert_each_once(NBLOCKS);
    workers_free(w);
}

TEST(a_long_task_is_not_the_loop_threads)
{
    struct workers *w = open_workers(3, 2);
    struct task t = new_task(NBLOCKS);

    story.block_us = 20;
    assert_true(workers_submit(w, &t, 1, WORKERS_ALONE));
    assert_false(workers_wants_turn(w));
    workers_poll(w);
    finish(w);
    assert_int_equal(story.by_loop, 0);
    assert_each_once(NBLOCKS);
    workers_free(w);
}

/* A poll that lost the CPU may come back without having helped. */
static void poll_until_helped(struct workers *w)
{
    const unsigned before = story.by_loop;

    for (unsigned ms = 0; story.by_loop == before && ms < WAIT_MS; ms++)
        workers_poll(w);
}

/* The loop thread has done its block, a worker is in the other one. */
static struct workers *open_held(struct task *t)
{
    struct workers *w = open_workers(1, 2);

    *t = new_task(2);
    story.held = true;
    assert_true(workers_submit(w, t, 1, WORKERS_HELP));
    poll_until_helped(w);
    assert_int_equal(story.by_loop, 1);
    assert_int_equal(story.by_workers, 1);
    assert_int_equal(story.ndone, 0);
    return w;
}

TEST(an_end_soon_after_is_found_without_the_descriptor)
{
    struct task t;
    struct workers *w = open_held(&t);

    /* where the CPU was lost on the way, it was not soon any more */
    for (unsigned tries = 0; !workers_wants_turn(w) && tries < TRIES; tries++) {
        atomic_store(&story.gate, true);
        finish(w);
        workers_free(w);
        w = open_held(&t);
    }
    assert_true(workers_wants_turn(w));
    atomic_store(&story.gate, true);
    assert_false(readable(w, 20));
    workers_poll(w);
    for (unsigned ms = 0; story.ndone == 0 && ms < WAIT_MS; ms++) {
        usleep(1000);
        workers_poll(w);
    }
    assert_int_equal(story.ndone, 1);
    assert_false(workers_wants_turn(w));
    workers_free(w);
}

TEST(a_late_end_is_told_by_the_descriptor)
{
    struct task t;
    struct workers *w = open_held(&t);

    for (unsigned ms = 0; workers_wants_turn(w) && ms < WAIT_MS; ms++) {
        usleep(1000);
        workers_poll(w);
    }
    assert_int_equal(story.ndone, 0);
    assert_false(workers_wants_turn(w));
    assert_false(readable(w, 0));
    atomic_store(&story.gate, true);
    assert_true(readable(w, WAIT_MS));
    workers_poll(w);
    assert_int_equal(story.ndone, 1);
    assert_false(readable(w, 0));
    workers_free(w);
}

static const enum workers_use uses[] = { WORKERS_NONE, WORKERS_HELP, WORKERS_ALONE };

TEST(a_task_cancelled_or_failed_in_the_middle_ends_there)
{
    static const int results[] = { -ECANCELED, -EFAULT };

    for (unsigned i = 0; i < ARRAY_SIZE(uses) * ARRAY_SIZE(results); i++) {
        struct workers *w = open_workers(2, 3);
        struct task t = new_task(NBLOCKS);

        story.block_us = 20;
        story.stop_block = 2; /* of the first part, whoever has it */
        story.stop_r = results[i % 2];
        assert_true(workers_submit(w, &t, 1, uses[i / 2]));
        finish(w);
        assert_int_equal(story.r, story.stop_r);
        if (uses[i / 2] == WORKERS_NONE)
            assert_each_once(3);
        workers_free(w);
    }
}

/* Short tasks do not wait behind a long one. */
TEST(the_loop_thread_passes_a_long_task_by)
{
    struct workers *w = open_workers(1, 2);
    struct task slow = new_task(2), quick = new_task(2);

    story.held = true;
    assert_true(workers_submit(w, &slow, 1, WORKERS_ALONE));
    wait_for(NULL, &story.by_workers);
    assert_true(workers_submit(w, &quick, 1, WORKERS_HELP));
    for (unsigned ms = 0; story.ndone == 0 && ms < WAIT_MS; ms++)
        workers_poll(w);
    assert_int_equal(story.ndone, 1);
    atomic_store(&story.gate, true);
    while (story.ndone < 2) {
        if (!workers_wants_turn(w))
            assert_true(readable(w, WAIT_MS));
        workers_poll(w);
    }
    workers_free(w);
}

/* A task in which the loop thread waits for a worker, and a worker for it, to its end: with blocks
 * enough that workers, waiting in their first ones, leave it some. */
static void have_help(struct workers *w, enum workers_use use)
{
    struct task t = new_task(NBLOCKS);

    story.held = story.opens = true;
    story.ndone = story.by_loop = story.by_workers = 0;
    atomic_store(&story.gate, use == WORKERS_ALONE);
    assert_true(workers_submit(w, &t, 1, use));
    finish(w);
    assert_true(story.by_workers > 0);
}

TEST(who_looks_finds_the_next_task)
{
    struct workers *w = open_lookers(2, 3, LONG_US);

    for (unsigned i = 0; i < NBLOCKS; i++)
        have_help(w, i % 8 == 7 ? WORKERS_ALONE : WORKERS_HELP);
    workers_free(w);
}

static uint64_t cpu_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

TEST(looking_ends_and_long_tasks_are_not_looked_for)
{
    static const struct {
        enum workers_use use;
        uint64_t look_us;
    } cases[] = { { WORKERS_HELP, 1000 }, { WORKERS_HELP, 0 }, { WORKERS_ALONE, LONG_US } };

    for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
        struct workers *w = open_lookers(1, 2, cases[i].look_us);
        uint64_t before;

        have_help(w, cases[i].use);
        usleep(20000);
        before = cpu_us();
        usleep(100000);
        assert_true(cpu_us() - before < 20000);
        have_help(w, cases[i].use); /* and it wakes */
        workers_free(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_task_without_helpers_is_the_loop_threads),
        cmocka_unit_test(a_poll_helps_for_a_bounded_time),
        cmocka_unit_test(helpers_share_a_short_task_with_the_loop_thread),
        cmocka_unit_test(a_long_task_is_not_the_loop_threads),
        cmocka_unit_test(an_end_soon_after_is_found_without_the_descriptor),
        cmocka_unit_test(a_late_end_is_told_by_the_descriptor),
        cmocka_unit_test(a_task_cancelled_or_failed_in_the_middle_ends_there),
        cmocka_unit_test(the_loop_thread_passes_a_long_task_by),
        cmocka_unit_test(who_looks_finds_the_next_task),
        cmocka_unit_test(looking_ends_and_long_tasks_are_not_looked_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
