/* libruccl with memory of GPUs: calls and streams wait for each other, and for nobody else. */
#include "tests/unit/cuda_scene.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* A registered buffer of GPU 0, and calls on it in the scene's stream. */
struct table {
    struct cuda_scene scene;
    struct pair p;
    struct ruccl_comm comm;
    CUdeviceptr ptr;
    struct ruccl_region *region;
    struct ruccl_tensor t;
};

static struct table t;

static void start(struct behaviour b)
{
    cuda_scene_start(&t.scene);
    t.p = pair_start(b);
    t.comm = ruccl_on_stream(t.p.comm, t.scene.stream);
    t.ptr = cuda_alloc(&t.scene, 0, 4096);
    t.region = cuda_register(&t.p, t.ptr, 4096);
    t.t = cuda_tensor(t.region, 64);
}

/* Posts are left to the test. */
static int start_held(void **state)
{
    (void)state;
    start((struct behaviour){ .hold_posts = true });
    return 0;
}

static int start_served(void **state)
{
    (void)state;
    start((struct behaviour){ 0 });
    return 0;
}

/* What streams still look at would stay. */
static void stop(void)
{
    cuda_stream_settle(t.scene.stream);
    pair_stop(&t.p);
    cuda_free(t.ptr);
    cuda_scene_stop(&t.scene);
}

static struct ruccl_work *start_call(void)
{
    struct ruccl_work *work;

    if (ruccl_all_reduce_async(t.comm, &t.t, &t.t, RUCCL_SUM, &work) < 0)
        fail_msg("%s", ruccl_last_error()->text);
    return work;
}

static void expect_context(void)
{
    CUcontext current;

    CU(cuCtxGetCurrent(&current));
    assert_ptr_equal(current, t.scene.contexts[0]);
}

/* ---- a call and its stream */

TEST(what_follows_in_the_stream_waits_for_the_call)
{
    struct ruccl_work *work = start_call();
    const struct request q = fake_await(t.p.daemon, REQUEST_POST, 0);

    expect_context();
    assert_int_equal(q.post.fence, 1);
    assert_int_equal(q.post.signal, 1);
    assert_int_equal(fake_await(t.p.daemon, REQUEST_FENCE_OPEN, 0).fence_open.fence, 1);
    CU(cuMemsetD8Async(t.ptr, 3, 1, t.scene.stream));
    sleep_ms(20);
    assert_true(cuda_stream_waits(t.scene.stream));
    assert_int_equal(cuda_bytes(t.ptr)[0], 0);

    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    cuda_stream_settle(t.scene.stream); /* and nobody asked the library */
    assert_int_equal(cuda_bytes(t.ptr)[0], 3);
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    stop();
}

/* The record is made before the post, whose failure then is told to all. */
TEST(a_call_whose_stream_cannot_be_recorded_is_rejected)
{
    struct ruccl_work *work;
    struct request q;

    fake_cuda_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
    work = start_call();
    q = fake_await(t.p.daemon, REQUEST_POST, 0);
    assert_non_null(strstr(q.post.rejection.text, "cuEventRecord: CUDA_ERROR_UNKNOWN (999)"));
    assert_int_equal(q.post.fence, 0);
    assert_int_equal(q.post.signal, 0);
    assert_false(cuda_stream_waits(t.scene.stream));
    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_SYSTEM);
    ruccl_work_release(work);
    stop();
}

TEST(a_call_that_is_refused_leaves_nothing_in_the_stream)
{
    struct ruccl_work *work;
    struct request q;

    t.t.offset = 4096;
    work = start_call();
    q = fake_await(t.p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.rejection.code, ERROR_OUT_OF_RANGE);
    assert_int_equal(q.post.fence, 0);
    assert_int_equal(q.post.signal, 0);
    assert_false(cuda_stream_waits(t.scene.stream));
    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_OUT_OF_RANGE);
    ruccl_work_release(work);
    stop();
}

TEST(a_call_that_fails_lets_the_stream_go_on)
{
    struct ruccl_work *work = start_call();
    const struct request q = fake_await(t.p.daemon, REQUEST_POST, 0);

    fake_complete(t.p.daemon, &q, ERROR_MISMATCH, "no");
    cuda_stream_settle(t.scene.stream);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_MISMATCH);
    ruccl_work_release(work);
    stop();
}

struct helper {
    pthread_t thread;
    uint32_t index;
};

static void *complete_post(void *arg)
{
    const struct helper *h = arg;
    const struct request q = fake_await(t.p.daemon, REQUEST_POST, h->index);

    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    return NULL;
}

static void complete_in_background(struct helper *h, uint32_t index)
{
    h->index = index;
    assert_int_equal(pthread_create(&h->thread, NULL, complete_post, h), 0);
}

TEST(a_blocking_call_is_waited_for_by_its_caller)
{
    struct helper h;
    struct request q;

    complete_in_background(&h, 0);
    assert_int_equal(ruccl_all_reduce(t.comm, &t.t, &t.t, RUCCL_SUM), 0);
    pthread_join(h.thread, NULL);
    q = fake_await(t.p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.fence, 1);
    assert_int_equal(q.post.signal, 0);
    expect_context();
    stop();
}

TEST(where_streams_cannot_wait_the_call_does)
{
    struct helper h;
    struct ruccl_work *work;

    fake_cuda_fail("cuStreamWaitValue32_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
    complete_in_background(&h, 0);
    work = start_call();
    pthread_join(h.thread, NULL);
    assert_int_equal(ruccl_work_test(work), 0);
    ruccl_work_release(work);
    stop();
}

/* They are made before anything can wait for them: a driver may let that wait for its streams. */
TEST(signals_that_cannot_be_made_fail_the_registration)
{
    struct pair other = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;

    fake_cuda_fail("cuMemHostRegister_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(ruccl_register_cuda(other.conn, (void *)(uintptr_t)t.ptr, 64, &region),
                     -RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, "cuMemHostRegister"));
    expect_context();
    region = cuda_register(&other, t.ptr, 64); /* the next tries again */
    assert_int_equal(fake_count(other.daemon, REQUEST_SIGNALS_OPEN), 1);
    ruccl_release(region);
    pair_stop(&other);
    stop();
}

/* ---- many calls */

TEST(fences_and_signals_are_used_again)
{
    enum { ROUNDS = 5, DEPTH = 3 };
    uint32_t last[DEPTH * ROUNDS] = { 0 };

    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct ruccl_work *works[DEPTH];

        for (uint32_t i = 0; i < DEPTH; i++)
            works[i] = start_call();
        for (uint32_t i = 0; i < DEPTH; i++) {
            const struct request q = fake_await(t.p.daemon, REQUEST_POST, round * DEPTH + i);

            assert_true(q.post.slot < DEPTH * ROUNDS);
            assert_int_equal(q.post.signal, ++last[q.post.slot]);
            assert_true(cuda_stream_waits(t.scene.stream));
            fake_complete(t.p.daemon, &q, ERROR_NONE, "");
        }
        for (uint32_t i = 0; i < DEPTH; i++) {
            assert_int_equal(ruccl_work_wait(works[i], -1), 0);
            ruccl_work_release(works[i]);
        }
        cuda_stream_settle(t.scene.stream);
    }
    assert_int_equal(fake_count(t.p.daemon, REQUEST_FENCE_OPEN), DEPTH);
    assert_int_equal(fake_count(t.p.daemon, REQUEST_SIGNALS_OPEN), 1);
    stop();
}

/* Completed, but its wait is not reached yet: the fence would no longer tell of it. */
TEST(a_fence_is_not_used_again_before_its_stream_has_gone_on)
{
    struct ruccl_work *work;
    struct request q;

    fake_cuda_delay_us(t.scene.stream, 60000000);
    CU(cuMemsetD8Async(t.ptr, 1, 1, t.scene.stream));
    for (uint32_t i = 0; i < 2; i++) {
        work = start_call();
        q = fake_await(t.p.daemon, REQUEST_POST, i);
        assert_int_equal(q.post.fence, i + 1);
        fake_complete(t.p.daemon, &q, ERROR_MISMATCH, "at once");
        assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_MISMATCH);
        ruccl_work_release(work);
    }
    fake_cuda_delay_us(t.scene.stream, 0);
    cuda_stream_settle(t.scene.stream);
    stop();
}

static void *call_often(void *arg)
{
    (void)arg;
    CU(cuCtxSetCurrent(t.scene.contexts[0]));
    for (int i = 0; i < 50; i++) {
        struct ruccl_work *work = start_call();

        assert_int_equal(ruccl_work_wait(work, -1), 0);
        ruccl_work_release(work);
    }
    return NULL;
}

TEST(threads_may_share_a_stream)
{
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, call_often, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    cuda_stream_settle(t.scene.stream);
    assert_int_equal(fake_count(t.p.daemon, REQUEST_SIGNALS_OPEN), 1);
    stop();
}

/* ---- persistent operations */

TEST(starts_take_part_in_the_stream_of_the_making)
{
    struct ruccl_persistent *persistent;
    struct ruccl_work *work;
    struct helper h;
    struct request q;

    complete_in_background(&h, 0);
    assert_int_equal(ruccl_all_reduce_init(t.comm, &t.t, &t.t, RUCCL_SUM, &persistent), 0);
    pthread_join(h.thread, NULL);
    assert_int_equal(fake_await(t.p.daemon, REQUEST_POST, 0).post.fence, 0);

    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(ruccl_start(persistent, &work), 0);
        q = fake_await(t.p.daemon, REQUEST_START, i);
        assert_int_equal(q.start.fence, 1);
        assert_int_equal(q.start.signal, i + 1);
        assert_true(cuda_stream_waits(t.scene.stream));
        fake_complete_start(t.p.daemon, &q);
        cuda_stream_settle(t.scene.stream);
        assert_int_equal(ruccl_work_wait(work, -1), 0);
        ruccl_work_release(work);
    }
    ruccl_persistent_release(persistent);
    expect_context();
    stop();
}

/* As a post's failure is, it is told to all, in the start's place. */
TEST(a_start_whose_stream_cannot_be_recorded_is_rejected)
{
    struct ruccl_persistent *persistent;
    struct ruccl_work *work;
    struct helper h;
    struct request q;
    uint64_t sequence;

    complete_in_background(&h, 0);
    assert_int_equal(ruccl_all_reduce_init(t.comm, &t.t, &t.t, RUCCL_SUM, &persistent), 0);
    pthread_join(h.thread, NULL);
    sequence = fake_await(t.p.daemon, REQUEST_POST, 0).post.sequence;

    fake_cuda_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
    assert_int_equal(ruccl_start(persistent, &work), 0);
    q = fake_await(t.p.daemon, REQUEST_POST, 1);
    assert_non_null(strstr(q.post.rejection.text, "cuEventRecord: CUDA_ERROR_UNKNOWN (999)"));
    assert_int_equal(q.post.sequence, sequence + 1);
    assert_int_equal(q.post.fence, 0);
    assert_int_equal(q.post.signal, 0);
    assert_false(cuda_stream_waits(t.scene.stream));
    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_SYSTEM);
    ruccl_work_release(work);

    assert_int_equal(ruccl_start(persistent, &work), 0);
    q = fake_await(t.p.daemon, REQUEST_START, 0);
    assert_int_equal(q.start.sequence, sequence + 2);
    fake_complete_start(t.p.daemon, &q);
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    ruccl_persistent_release(persistent);
    stop();
}

TEST(persistent_operations_are_not_staged)
{
    struct ruccl_persistent *persistent;
    struct ruccl_region *staged;
    struct ruccl_tensor tensor;
    struct helper h;
    CUdeviceptr ptr;

    fake_cuda_exportable(false);
    ptr = cuda_alloc(&t.scene, 0, 64);
    fake_cuda_exportable(true);
    staged = cuda_register(&t.p, ptr, 64);
    tensor = cuda_tensor(staged, 64);
    complete_in_background(&h, 0);
    assert_int_equal(ruccl_all_reduce_init(t.comm, &t.t, &tensor, RUCCL_SUM, &persistent),
                     -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "not staged"));
    pthread_join(h.thread, NULL);
    ruccl_release(staged);
    cuda_free(ptr);
    stop();
}

/* ---- ends */

static void lose_daemon(int (*notice)(struct ruccl_work *work), int result)
{
    struct ruccl_work *works[2] = { start_call(), start_call() };

    fake_await(t.p.daemon, REQUEST_POST, 1);
    fake_die(t.p.daemon);
    sleep_ms(20);
    assert_true(cuda_stream_waits(t.scene.stream));
    assert_int_equal(notice(works[1]), result);
    cuda_stream_settle(t.scene.stream);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ruccl_work_wait(works[i], -1), -RUCCL_DAEMON_LOST);
        ruccl_work_release(works[i]);
    }
    stop();
}

static int wait_without_limit(struct ruccl_work *work)
{
    return ruccl_work_wait(work, -1);
}

static int test_until_done(struct ruccl_work *work)
{
    int r;

    while ((r = ruccl_work_test(work)) == RUCCL_PENDING)
        sleep_ms(1);
    return r;
}

static int dispatch_until_lost(struct ruccl_work *work)
{
    int r;

    (void)work;
    while ((r = ruccl_dispatch(t.p.conn)) == 0)
        sleep_ms(1);
    return r;
}

TEST(a_lost_daemon_lets_streams_go_on_at_the_next_wait)
{
    lose_daemon(wait_without_limit, -RUCCL_DAEMON_LOST);
}

TEST(a_lost_daemon_lets_streams_go_on_at_the_next_test)
{
    lose_daemon(test_until_done, -RUCCL_DAEMON_LOST);
}

TEST(a_lost_daemon_lets_streams_go_on_at_the_next_dispatch)
{
    lose_daemon(dispatch_until_lost, -RUCCL_DAEMON_LOST);
}

TEST(closing_lets_streams_go_on)
{
    struct ruccl_work *work = start_call();

    fake_await(t.p.daemon, REQUEST_POST, 0);
    assert_true(cuda_stream_waits(t.scene.stream));
    ruccl_close(t.p.conn);
    t.p.conn = NULL;
    cuda_stream_settle(t.scene.stream);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_CLOSED);
    ruccl_work_release(work);
    stop();
}

/* What a stream has yet to look at is not taken from it; a later call frees it. */
TEST(closing_waits_for_no_stream)
{
    struct ruccl_work *work;
    struct pair later;

    fake_cuda_delay_us(t.scene.stream, 60000000);
    CU(cuMemsetD8Async(t.ptr, 1, 1, t.scene.stream));
    work = start_call();
    fake_await(t.p.daemon, REQUEST_POST, 0);
    ruccl_close(t.p.conn);
    t.p.conn = NULL;
    ruccl_work_release(work);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), 1);
    assert_true(cuda_stream_waits(t.scene.stream));

    fake_cuda_delay_us(t.scene.stream, 0);
    cuda_stream_settle(t.scene.stream); /* it went on, and found its signal */
    later = pair_start((struct behaviour){ 0 });
    ruccl_release(cuda_register(&later, t.ptr, 64));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), 1); /* its own */
    pair_stop(&later);
    stop();
}

TEST(a_forked_child_disturbs_no_stream)
{
    struct ruccl_work *work = start_call();
    const struct request q = fake_await(t.p.daemon, REQUEST_POST, 0);
    int status;
    pid_t child = fork();

    if (child == 0) {
        ruccl_close(t.p.conn);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(cuda_stream_waits(t.scene.stream));
    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    cuda_stream_settle(t.scene.stream);
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    stop();
}

TEST(a_gpu_that_has_failed_fails_calls_and_hangs_nobody)
{
    struct ruccl_work *works[2];
    struct request q;

    works[0] = start_call();
    q = fake_await(t.p.daemon, REQUEST_POST, 0);
    fake_cuda_fail("poison", 0, CUDA_ERROR_ILLEGAL_ADDRESS);
    works[1] = start_call();
    assert_non_null(strstr(fake_await(t.p.daemon, REQUEST_POST, 1).post.rejection.text,
                           "CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
    fake_complete(t.p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(works[0], -1), 0);
    for (int i = 0; i < 2; i++)
        ruccl_work_release(works[i]);
    pair_stop(&t.p);
    for (int i = 0; i < CUDA_SCENE_GPUS; i++)
        cuDevicePrimaryCtxReset_v2(i);
    for (int i = 0; i < CUDA_SCENE_GPUS; i++)
        cuDevicePrimaryCtxRelease_v2(i);
}

static void cycle(struct fake_daemon *daemon)
{
    struct pair p = { .daemon = daemon };
    struct ruccl_region *region;
    struct ruccl_work *work;
    struct ruccl_tensor tensor;

    assert_int_equal(ruccl_connect(daemon->path, "again", &p.conn), 0);
    assert_int_equal(ruccl_join(p.conn, "rc1-x@here", 0, NRANKS, NULL, &p.comm), 0);
    region = cuda_register(&p, t.ptr, 4096);
    tensor = cuda_tensor(region, 64);
    assert_int_equal(ruccl_all_reduce_async(ruccl_on_stream(p.comm, t.scene.stream), &tensor,
                                            &tensor, RUCCL_SUM, &work),
                     0);
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    cuda_stream_settle(t.scene.stream);
    ruccl_close(p.conn);
}

TEST(a_thousand_connections_leave_nothing_behind)
{
    unsigned before[FAKE_CUDA_LIVE_END];
    int fds;

    for (int i = 0; i < 1000; i++) {
        struct fake_daemon *daemon;

        if (i == 1) {
            fds = count_fds();
            for (int what = 0; what < FAKE_CUDA_LIVE_END; what++)
                before[what] = fake_cuda_live((enum fake_cuda_live)what);
        }
        daemon = fake_start((struct behaviour){ .slots = 8 });
        cycle(daemon);
        fake_stop(daemon);
    }
    assert_int_equal(count_fds(), fds);
    for (int what = 0; what < FAKE_CUDA_LIVE_END; what++)
        assert_int_equal(fake_cuda_live((enum fake_cuda_live)what), before[what]);
    stop();
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_setup(name, start_held)
    const struct CMUnitTest tests[] = {
        CLAIM(what_follows_in_the_stream_waits_for_the_call),
        CLAIM(a_call_whose_stream_cannot_be_recorded_is_rejected),
        CLAIM(a_call_that_is_refused_leaves_nothing_in_the_stream),
        CLAIM(a_call_that_fails_lets_the_stream_go_on),
        CLAIM(a_blocking_call_is_waited_for_by_its_caller),
        CLAIM(where_streams_cannot_wait_the_call_does),
        CLAIM(signals_that_cannot_be_made_fail_the_registration),
        CLAIM(fences_and_signals_are_used_again),
        CLAIM(a_fence_is_not_used_again_before_its_stream_has_gone_on),
        cmocka_unit_test_setup(threads_may_share_a_stream, start_served),
        CLAIM(starts_take_part_in_the_stream_of_the_making),
        CLAIM(a_start_whose_stream_cannot_be_recorded_is_rejected),
        CLAIM(persistent_operations_are_not_staged),
        CLAIM(a_lost_daemon_lets_streams_go_on_at_the_next_wait),
        CLAIM(a_lost_daemon_lets_streams_go_on_at_the_next_test),
        CLAIM(a_lost_daemon_lets_streams_go_on_at_the_next_dispatch),
        CLAIM(closing_lets_streams_go_on),
        CLAIM(closing_waits_for_no_stream),
        CLAIM(a_forked_child_disturbs_no_stream),
        CLAIM(a_thousand_connections_leave_nothing_behind),
        CLAIM(a_gpu_that_has_failed_fails_calls_and_hangs_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
