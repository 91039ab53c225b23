/* libruccl against a daemon that is a thread of this process. */
#include "tests/unit/fake_daemon.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- connecting */

static void connect_says_that_no_daemon_is_there(void **state)
{
    struct ruccl_conn *conn;

    (void)state;
    assert_int_equal(ruccl_connect("/tmp/ruccl-nowhere/sock", NULL, &conn), -RUCCL_SYSTEM);
    assert_int_equal(ruccl_last_error()->code, RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, "/tmp/ruccl-nowhere/sock"));
    assert_non_null(strstr(ruccl_last_error()->text, "is ruccld running?"));
}

static void connect_carries_a_refusal(void **state)
{
    struct fake_daemon *d = fake_start((struct behaviour){ .refuse_version = true });
    struct ruccl_conn *conn;

    (void)state;
    assert_int_equal(ruccl_connect(d->path, NULL, &conn), -RUCCL_VERSION);
    assert_string_equal(ruccl_last_error()->text, "speaks 7 only");
    fake_stop(d);
}

static void connections_leave_no_descriptor_and_no_region_behind(void **state)
{
    int before = count_fds();

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct pair p = pair_start((struct behaviour){ 0 });
        struct ruccl_region *region;
        uint8_t in[3] = { 0 }, out[3];
        struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 3);

        assert_true(ruccl_fd(p.conn) >= 0);
        assert_int_equal(ruccl_alloc(p.conn, 1, &region), 0);
        assert_int_equal(ruccl_alloc(p.conn, (5u << 20) + 1, &region), 0);
        assert_int_equal((uintptr_t)ruccl_region_data(region) % (2u << 20), 0);
        assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), 0);
        pair_stop(&p);
    }
    assert_int_equal(count_fds(), before);
}

/* ---------------------------------------------------------------- waiting */

struct waiting {
    struct ruccl_work *work;
    int result;
    pthread_t thread;
};

static void *wait_for_work(void *arg)
{
    struct waiting *w = arg;

    w->result = ruccl_work_wait(w->work, -1);
    return NULL;
}

static void waiters_get_their_own_answers_in_any_order(void **state)
{
    static const int order[] = { 2, 0, 3, 1 };
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct waiting w[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(ruccl_barrier_async(p.comm, &w[i].work), 0);
        pthread_create(&w[i].thread, NULL, wait_for_work, &w[i]);
    }
    sleep_ms(20);
    for (int i = 0; i < 4; i++) {
        struct request q = fake_await(p.daemon, REQUEST_POST, (uint32_t)order[i]);

        assert_int_equal(q.post.sequence, order[i] + 1);
        fake_complete(p.daemon, &q, order[i] ? (enum error_code)order[i] : ERROR_NONE, "told");
        pthread_join(w[order[i]].thread, NULL);
        assert_int_equal(w[order[i]].result, -order[i]);
    }
    for (int i = 0; i < 4; i++)
        ruccl_work_release(w[i].work);
    pair_stop(&p);
}

static void wait_gives_up_at_its_deadline(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_work *work;
    struct ruccl_stats stats;
    struct request q;

    (void)state;
    assert_int_equal(ruccl_barrier_async(p.comm, &work), 0);
    assert_int_equal(ruccl_work_test(work), RUCCL_PENDING);
    assert_int_equal(ruccl_work_wait(work, 0), RUCCL_PENDING);
    assert_int_equal(ruccl_work_wait(work, 10000), RUCCL_PENDING);
    assert_int_equal(ruccl_work_stats(work, &stats), -RUCCL_INVALID_ARGUMENT);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, 20000000), 0);
    assert_int_equal(ruccl_work_test(work), 0);
    assert_int_equal(ruccl_work_stats(work, &stats), 0);
    assert_int_equal(stats.sequence, 1);
    assert_string_equal(stats.algorithm, "echo");
    ruccl_work_release(work);
    pair_stop(&p);
}

static void a_loop_learns_of_what_others_read(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct pollfd fd = { .fd = ruccl_fd(p.conn), .events = POLLIN };
    struct ruccl_work *work, *other;
    struct request q;

    (void)state;
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);
    assert_int_equal(ruccl_barrier_async(p.comm, &work), 0);
    assert_int_equal(ruccl_barrier_async(p.comm, &other), 0);

    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(poll(&fd, 1, 5000), 1);
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    assert_int_equal(ruccl_work_test(work), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);

    q = fake_await(p.daemon, REQUEST_POST, 1);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_drop_id(p.conn, "x"), 0); /* reads the completion in passing */
    assert_int_equal(poll(&fd, 1, 0), 1);
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    assert_int_equal(ruccl_work_test(other), 0);
    assert_int_equal(poll(&fd, 1, 0), 0);

    fake_die(p.daemon);
    assert_int_equal(poll(&fd, 1, 5000), 1);
    assert_int_equal(ruccl_dispatch(p.conn), -RUCCL_DAEMON_LOST);
    ruccl_work_release(work);
    ruccl_work_release(other);
    pair_stop(&p);
}

static void *post_one(void *arg)
{
    struct waiting *w = arg;
    struct pair *p = (struct pair *)w->work;

    w->result = ruccl_barrier_async(p->comm, &w->work);
    return NULL;
}

static void a_post_without_a_free_slot_waits_for_one(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true, .slots = 2 });
    struct ruccl_work *works[2];
    struct waiting third = { .work = (struct ruccl_work *)&p };
    struct request q[3];

    (void)state;
    assert_int_equal(ruccl_barrier_async(p.comm, &works[0]), 0);
    assert_int_equal(ruccl_barrier_async(p.comm, &works[1]), 0);
    q[0] = fake_await(p.daemon, REQUEST_POST, 0);
    q[1] = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_not_equal(q[0].post.slot, q[1].post.slot);
    pthread_create(&third.thread, NULL, post_one, &third);
    sleep_ms(20);
    assert_int_equal(fake_count(p.daemon, REQUEST_POST), 2);
    fake_complete(p.daemon, &q[1], ERROR_NONE, "");
    pthread_join(third.thread, NULL);
    assert_int_equal(third.result, 0);
    q[2] = fake_await(p.daemon, REQUEST_POST, 2);
    assert_int_equal(q[2].post.slot, q[1].post.slot);
    ruccl_work_release(works[0]);
    ruccl_work_release(works[1]);
    ruccl_work_release(third.work);
    pair_stop(&p);
}

static void a_flood_of_posts_does_not_lock_up_with_a_daemon_that_answers_each(void **state)
{
    enum { N = 3000 };
    static struct ruccl_work *works[N];
    struct pair p = pair_start((struct behaviour){ 0 });

    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(ruccl_barrier_async(p.comm, &works[i]), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(ruccl_work_wait(works[i], -1), 0);
        ruccl_work_release(works[i]);
    }
    pair_stop(&p);
}

static void *barriers(void *arg)
{
    struct pair *p = arg;

    for (int i = 0; i < 300; i++)
        assert_int_equal(ruccl_barrier(p->comm), 0);
    return NULL;
}

static void threads_number_their_calls_in_the_order_of_sending(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    pthread_t threads[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, barriers, &p);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 1200; i++)
        assert_int_equal(fake_await(p.daemon, REQUEST_POST, i).post.sequence, i + 1);
    pair_stop(&p);
}

static void progress_is_this_operations_own(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true, .slots = 1 });
    struct progress left_over = { .elements_done = 99 },
                    now = { .elements_done = 3, .elements_total = 5 };
    struct ruccl_progress seen;
    struct ruccl_work *work;
    struct request q;

    (void)state;
    progress_write(&p.daemon->cells[0], &left_over);
    assert_int_equal(ruccl_barrier_async(p.comm, &work), 0);
    assert_int_equal(ruccl_work_progress(work, &seen), 0);
    assert_int_equal(seen.elements_done, 0);
    progress_write(&p.daemon->cells[0], &now);
    assert_int_equal(ruccl_work_progress(work, &seen), 0);
    assert_int_equal(seen.elements_done, 3);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    progress_write(&p.daemon->cells[0], &left_over);
    assert_int_equal(ruccl_work_progress(work, &seen), 0);
    assert_int_equal(seen.elements_done, 3);
    ruccl_work_release(work);
    pair_stop(&p);
}

/* ---------------------------------------------------------------- endings */

struct victim {
    struct pair *pair;
    int result;
    pthread_t thread;
    _Atomic pid_t id; /* the thread's, once it is about to call */
};

static void *alloc_for_ever(void *arg)
{
    struct victim *v = arg;
    struct ruccl_region *region;

    v->id = gettid();
    v->result = ruccl_alloc(v->pair->conn, 4096, &region);
    return NULL;
}

static void *leave_for_ever(void *arg)
{
    struct victim *v = arg;

    v->id = gettid();
    v->result = ruccl_leave(v->pair->comm);
    return NULL;
}

static void *barrier_for_ever(void *arg)
{
    struct victim *v = arg;

    v->id = gettid();
    v->result = ruccl_barrier(v->pair->comm);
    return NULL;
}

static bool is_asleep(pid_t thread)
{
    char path[64], state = '?';
    FILE *f;

    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)thread);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d (%*[^)]) %c", &state), 1);
    fclose(f);
    return state == 'S';
}

/* Until it waits in its call; what it calls next to others is in the order of these. */
static void await_blocked(const struct victim *v)
{
    for (int ms = 0; v->id == 0 || !is_asleep(v->id); ms++) {
        assert_true(ms < 20000);
        sleep_ms(1);
    }
}

static void everybody_wakes(void (*ending)(struct pair *p), int expected)
{
    /* The one slot goes to one barrier; the other waits for it. */
    void *(*const bodies[])(void *) = { barrier_for_ever, barrier_for_ever, alloc_for_ever,
                                        leave_for_ever };
    struct pair p =
        pair_start((struct behaviour){ .hold_posts = true, .hold_regions = true, .slots = 1 });
    struct victim victims[ARRAY_SIZE(bodies)];
    char id[RUCCL_ID_BYTES];

    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        victims[i] = (struct victim){ .pair = &p };
        pthread_create(&victims[i].thread, NULL, bodies[i], &victims[i]);
        await_blocked(&victims[i]);
    }
    fake_await(p.daemon, REQUEST_LEAVE, 0);
    ending(&p);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        pthread_join(victims[i].thread, NULL);
        assert_int_equal(victims[i].result, expected);
    }
    if (p.conn)
        assert_int_equal(ruccl_new_id(p.conn, id), expected);
    pair_stop(&p);
}

static void end_by_death(struct pair *p)
{
    fake_die(p->daemon);
}

static void end_by_goodbye(struct pair *p)
{
    struct reply goodbye = { .kind = REPLY_GOODBYE };

    error_set(&goodbye.done, ERROR_DAEMON_STOPPING, "told to stop");
    fake_answer(p->daemon, &goodbye, -1);
}

static void end_by_close(struct pair *p)
{
    ruccl_close(p->conn);
    p->conn = NULL;
}

static void a_daemons_death_wakes_every_kind_of_waiter(void **state)
{
    (void)state;
    everybody_wakes(end_by_death, -RUCCL_DAEMON_LOST);
}

static void a_goodbye_tells_everybody_why(void **state)
{
    (void)state;
    everybody_wakes(end_by_goodbye, -RUCCL_DAEMON_STOPPING);
}

static void close_wakes_every_kind_of_waiter(void **state)
{
    (void)state;
    everybody_wakes(end_by_close, -RUCCL_CLOSED);
}

static void works_outlive_their_connection(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[] = { 1, 2, 3 }, out[3] = { 0 };
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 3);
    struct ruccl_work *done, *unfinished;

    (void)state;
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &done), 0);
    fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    p.daemon->b.hold_posts = true;
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &unfinished), 0);
    ruccl_close(p.conn);
    assert_int_equal(ruccl_work_wait(unfinished, -1), -RUCCL_CLOSED);
    assert_int_equal(out[0], 0);
    assert_int_equal(ruccl_work_wait(done, -1), 0);
    assert_int_equal(out[2], 4);
    ruccl_work_release(unfinished);
    ruccl_work_release(done);
    fake_stop(p.daemon);
}

static void a_forked_child_is_told_and_the_parent_goes_on(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    int status;
    pid_t child;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 4096, &region), 0);
    child = fork();
    if (child == 0) {
        bool told = ruccl_barrier(p.comm) == -RUCCL_FORKED &&
                    ruccl_dispatch(p.conn) == -RUCCL_FORKED &&
                    strstr(ruccl_last_error()->text, "forked");

        ruccl_free(region);
        ruccl_close(p.conn);
        _exit(told ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    memset(ruccl_region_data(region), 1, 4096);
    assert_int_equal(ruccl_barrier(p.comm), 0);
    pair_stop(&p);
}

/* ---------------------------------------------------------------- what is posted */

struct gather_case {
    const struct ruccl_tensor *in, *out;
    enum ruccl_code code;
};

static void a_rejected_call_takes_its_number_and_is_told_to_all(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t bytes[16];
    int other_conn_region;
    struct ruccl_tensor good_in = bytes_tensor(bytes, 2), good_out = bytes_tensor(bytes + 8, 8);
    struct ruccl_tensor many = { .dtype = RUCCL_U8, .naxes = 9 };
    struct ruccl_tensor wide = good_out, short_out = good_out, no_data = good_in;
    struct ruccl_tensor stranger = good_in, over = bytes_tensor(bytes + 1, 8);
    const struct gather_case cases[] = {
        { NULL, &good_out, RUCCL_INVALID_ARGUMENT },
        { &good_in, NULL, RUCCL_INVALID_ARGUMENT },
        { &many, &good_out, RUCCL_INVALID_SHAPE },
        { &good_in, &many, RUCCL_INVALID_SHAPE },
        { &good_in, &wide, RUCCL_INVALID_ARGUMENT },
        { &good_in, &short_out, RUCCL_INVALID_SHAPE },
        { &no_data, &good_out, RUCCL_INVALID_ARGUMENT },
        { &stranger, &good_out, RUCCL_INVALID_ARGUMENT },
        { &good_in, &over, RUCCL_OVERLAP },
    };

    (void)state;
    wide.dtype = RUCCL_I8;
    short_out.shape[0] = 7;
    no_data.data = NULL;
    stranger.region = (struct ruccl_region *)&other_conn_region;
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct request q;

        assert_int_equal(ruccl_all_gather(p.comm, cases[i].in, cases[i].out), -(int)cases[i].code);
        q = fake_await(p.daemon, REQUEST_POST, i);
        assert_int_equal(q.post.sequence, i + 1);
        assert_int_equal(q.post.rejection.code, cases[i].code);
        assert_non_null(strstr(q.post.rejection.text, "all_gather: "));
        assert_int_equal(q.post.d.kind, COLLECTIVE_ALL_GATHER);
        assert_int_equal(q.post.in.region, 0);
    }
    assert_int_equal(ruccl_all_gather(p.comm, &good_in, &good_out), 0);
    pair_stop(&p);
}

static void what_the_daemon_judges_is_posted_as_it_is(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    uint8_t bytes[8];
    struct ruccl_tensor odd = bytes_tensor(bytes, 5), unknown = odd;
    struct ruccl_work *works[3];
    struct request q;

    (void)state;
    unknown.dtype = (enum ruccl_dtype)77;
    assert_int_equal(ruccl_all_reduce_async(p.comm, &unknown, &unknown, RUCCL_SUM, &works[0]), 0);
    assert_int_equal(ruccl_broadcast_async(p.comm, &odd, &odd, 9, &works[1]), 0);
    assert_int_equal(ruccl_reduce_scatter_async(p.comm, &odd, &odd, (enum ruccl_op)55, &works[2]),
                     0);
    for (uint32_t i = 0; i < 3; i++) {
        q = fake_await(p.daemon, REQUEST_POST, i);
        assert_int_equal(q.post.rejection.code, ERROR_NONE);
        assert_int_equal(q.post.sequence, i + 1);
        ruccl_work_release(works[i]);
    }
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.d.dtype, 77);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 1).post.d.root, 9);
    assert_int_equal(q.post.d.op, 55);
    assert_int_equal(fake_count(p.daemon, REQUEST_REGION_OPEN), 0);
    pair_stop(&p);
}

static void a_denied_stage_is_a_rejection(void **state)
{
    struct pair p = pair_start((struct behaviour){ .deny_regions = true });
    uint8_t in[1], out[1];
    struct ruccl_tensor ti = bytes_tensor(in, 1), to = bytes_tensor(out, 1);

    (void)state;
    assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), -RUCCL_QUOTA);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.rejection.code, ERROR_QUOTA);
    pair_stop(&p);
}

static void root_only_tensors_are_ignored_elsewhere(void **state)
{
    struct pair p = pair_start((struct behaviour){ .rank = 1 });
    uint8_t in[2], out[8];
    struct ruccl_tensor ti = bytes_tensor(in, 2), to = bytes_tensor(out, 8);
    struct request q;

    (void)state;
    assert_int_equal(ruccl_gather(p.comm, &ti, NULL, 0), 0);
    assert_int_equal(ruccl_gather(p.comm, &ti, &to, 1), 0);
    assert_int_equal(ruccl_broadcast(p.comm, NULL, &ti, 0), 0);
    assert_int_equal(ruccl_scatter(p.comm, &to, &ti, 0), 0);
    assert_int_equal(ruccl_reduce(p.comm, &ti, &to, RUCCL_SUM, 0), 0);
    q = fake_await(p.daemon, REQUEST_POST, 3);
    assert_int_equal(q.post.d.shape.axes[0], 2);
    assert_int_equal(q.post.in.region, 0);
    assert_int_not_equal(q.post.out.region, 0);
    pair_stop(&p);
}

static void pairs_take_no_number_and_splits_do(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_comm child;
    uint8_t byte[1];
    struct ruccl_tensor t = bytes_tensor(byte, 1);
    struct request q;

    (void)state;
    assert_int_equal(ruccl_send(p.comm, &t, 2, 5), 0);
    assert_int_equal(ruccl_recv(p.comm, &t, 3, 6), 0);
    assert_int_equal(ruccl_split(p.comm, 1, -7, &child), 0);
    assert_int_equal(ruccl_rank(child), 1);
    assert_int_equal(ruccl_world_size(child), 2);
    assert_string_equal(ruccl_id(child), "rc1-child@here");
    assert_int_equal(ruccl_split(p.comm, RUCCL_COLOR_NONE, 0, &child), 0);
    assert_null(child.member);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.sequence, 0);
    assert_int_equal(q.post.peer, 2);
    assert_int_equal(q.post.tag, 5);
    q = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_not_equal(q.post.out.region, 0);
    q = fake_await(p.daemon, REQUEST_POST, 2);
    assert_int_equal(q.post.sequence, 1);
    assert_int_equal(q.post.key, -7);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 3).post.sequence, 2);
    pair_stop(&p);
}

static void budgets_wrap_and_unwrap(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });

    (void)state;
    assert_int_equal(ruccl_barrier(ruccl_bounded(p.comm, 0)), 0);
    assert_int_equal(ruccl_barrier(ruccl_unbounded(ruccl_bounded(p.comm, 5))), 0);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.d.budget, 0);
    assert_true(fake_await(p.daemon, REQUEST_POST, 1).post.d.budget == RUCCL_NO_BUDGET);
    pair_stop(&p);
}

/* ---------------------------------------------------------------- plain memory */

static void plain_memory_is_copied_there_and_back(void **state)
{
    static const uint64_t sizes[] = { 0, 1, 3, 7, 4099 };
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[4099], out[4099];

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct ruccl_tensor ti = bytes_tensor(in, sizes[i]), to = bytes_tensor(out, sizes[i]);

        memset(in, (int)i + 1, sizeof(in));
        memset(out, 0xee, sizeof(out));
        assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), 0);
        for (uint64_t k = 0; k < sizeof(out); k++)
            assert_int_equal(out[k], k < sizes[i] ? i + 2 : 0xee);
        assert_int_equal(ruccl_all_reduce(p.comm, &ti, &ti, RUCCL_SUM), 0);
        for (uint64_t k = 0; k < sizeof(in); k++)
            assert_int_equal(in[k], k < sizes[i] ? i + 2 : i + 1);
    }
    /* Two stages of one size served all. */
    assert_int_equal(p.daemon->regions_opened, 2);
    pair_stop(&p);
}

static void in_place_forms_of_plain_memory_alias_in_the_stage_too(void **state)
{
    struct pair p = pair_start((struct behaviour){ .rank = 2 });
    uint8_t bytes[12] = { 0, 0, 0, 0, 0, 0, 7, 8, 9 };
    struct ruccl_tensor whole = bytes_tensor(bytes, 12), block = bytes_tensor(bytes + 6, 3);
    struct request q;

    (void)state;
    assert_int_equal(ruccl_all_gather(p.comm, &block, &whole), 0);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.in.region, q.post.out.region);
    assert_int_equal(q.post.in.offset, 6);
    assert_int_equal(q.post.out.offset, 0);
    assert_int_equal(bytes[0], 8);
    assert_int_equal(bytes[6], 7);

    assert_int_equal(ruccl_reduce_scatter(p.comm, &whole, &block, RUCCL_SUM), 0);
    q = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_equal(q.post.in.region, q.post.out.region);
    assert_int_equal(q.post.in.offset, 0);
    assert_int_equal(q.post.out.offset, 6);
    assert_int_equal(p.daemon->regions_opened, 1);
    pair_stop(&p);
}

static void a_failed_or_released_work_leaves_plain_output_alone(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    uint8_t in[3] = { 1, 2, 3 }, out[3] = { 0 };
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 3);
    struct ruccl_work *failed, *released;
    struct request q;

    (void)state;
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &failed), 0);
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &released), 0);
    ruccl_work_release(released);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_MISMATCH, "ranks disagree");
    q = fake_await(p.daemon, REQUEST_POST, 1);
    fake_complete(p.daemon, &q, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(failed, -1), -RUCCL_MISMATCH);
    assert_string_equal(ruccl_last_error()->text, "ranks disagree");
    ruccl_work_release(failed);
    assert_int_equal(ruccl_dispatch(p.conn), 0);
    assert_int_equal(out[0], 0);

    /* Their stages are free again. */
    p.daemon->b.hold_posts = false;
    assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), 0);
    assert_int_equal(out[0], 2);
    assert_int_equal(p.daemon->regions_opened, 4);
    pair_stop(&p);
}

static void regions_are_used_as_they_are(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    struct ruccl_tensor in, out;
    struct request q;
    uint8_t *data;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(ruccl_region_bytes(region), 100);
    data = ruccl_region_data(region);
    data[3] = 41;
    in = (struct ruccl_tensor){ RUCCL_U8, 0, { 0 }, region, 3, NULL };
    out = (struct ruccl_tensor){ RUCCL_U8, 0, { 0 }, region, 5, NULL };
    assert_int_equal(ruccl_all_reduce(p.comm, &in, &out, RUCCL_SUM), 0);
    assert_int_equal(data[5], 42);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.in.offset, 3);
    assert_int_equal(p.daemon->regions_opened, 1);
    ruccl_free(region);
    assert_int_equal(ruccl_all_reduce(p.comm, &in, &out, RUCCL_SUM), -RUCCL_INVALID_ARGUMENT);
    pair_stop(&p);
}

static void a_region_ends_where_it_was_asked_to(void **state)
{
    static const struct {
        uint64_t offset, bytes;
        enum ruccl_code code;
    } rows[] = {
        { 98, 2, RUCCL_OK },
        { 100, 0, RUCCL_OK },
        { 99, 2, RUCCL_OUT_OF_RANGE },
        { 101, 0, RUCCL_OUT_OF_RANGE },
        { UINT64_MAX, 2, RUCCL_OUT_OF_RANGE },
    };
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    for (uint32_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct ruccl_tensor t = { RUCCL_U8, 1, { rows[i].bytes }, region, rows[i].offset, NULL };

        assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), -(int)rows[i].code);
        assert_int_equal(fake_await(p.daemon, REQUEST_POST, i).post.rejection.code, rows[i].code);
    }
    assert_non_null(strstr(ruccl_last_error()->text, "region of 100 bytes"));
    pair_stop(&p);
}

/* ---------------------------------------------------------------- the pool */

static uint8_t *alloc_zeroed(struct pair *p, uint64_t bytes, struct ruccl_region **ret)
{
    uint8_t *data;

    assert_int_equal(ruccl_alloc(p->conn, bytes, ret), 0);
    assert_int_equal(ruccl_region_bytes(*ret), bytes);
    data = ruccl_region_data(*ret);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(data[i], 0);
    return data;
}

static void alloc_in_a_loop_makes_nothing(void **state)
{
    static const uint64_t sizes[] = { 1, 4096, 70000, (3u << 20) + 5 };
    struct pair p = pair_start((struct behaviour){ 0 });

    (void)state;
    for (int i = 0; i < 20; i++)
        for (size_t k = 0; k < ARRAY_SIZE(sizes); k++) {
            struct ruccl_region *region, *other;

            assert_int_equal(ruccl_alloc(p.conn, sizes[k], &region), 0);
            assert_int_equal(ruccl_alloc(p.conn, sizes[k], &other), 0);
            assert_ptr_not_equal(ruccl_region_data(region), ruccl_region_data(other));
            ruccl_free(region);
            ruccl_free(other);
        }
    /* Two of each, of which the first two share a page's size. */
    assert_int_equal(p.daemon->regions_opened, 2 * ARRAY_SIZE(sizes) - 2);
    assert_int_equal(p.daemon->regions_closed, 0);
    pair_stop(&p);
}

static void freed_memory_is_zero_when_it_is_handed_out_again(void **state)
{
    static const uint64_t sizes[] = { 8000, 4500, 8192, 1, 6000 };
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    uint8_t plain[500];
    struct ruccl_tensor t = bytes_tensor(plain, sizeof(plain));

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        memset(alloc_zeroed(&p, sizes[i], &region), 0xff, sizes[i]);
        ruccl_free(region);
    }
    assert_int_equal(p.daemon->regions_opened, 2);

    /* Also what was a stage before. */
    memset(plain, 0xee, sizeof(plain));
    assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), 0);
    alloc_zeroed(&p, 64u << 10, &region);
    assert_int_equal(p.daemon->regions_opened, 3);
    pair_stop(&p);
}

static void no_more_than_a_quarter_lies_fallow(void **state)
{
    static const uint64_t sizes[] = { 1, 4097, 33000, 65537, (1u << 20) + 1, (5u << 20) - 1 };
    struct pair p = pair_start((struct behaviour){ 0 });

    (void)state;
    for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        struct ruccl_region *region;
        struct request q;

        assert_int_equal(ruccl_alloc(p.conn, sizes[i], &region), 0);
        q = fake_await(p.daemon, REQUEST_REGION_OPEN, i);
        assert_in_range(q.region_open.bytes, sizes[i], MAX(sizes[i] / 4 * 5, sizes[i] + 4095));
    }
    pair_stop(&p);
}

static void idle_memory_is_bounded(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *small, *large;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 4096, &small), 0);
    assert_int_equal(ruccl_alloc(p.conn, 256u << 20, &large), 0);
    ruccl_free(large);
    assert_int_equal(fake_count(p.daemon, REQUEST_REGION_CLOSE), 0);
    ruccl_free(small);
    /* What has been idle longest went. */
    assert_int_equal(fake_await(p.daemon, REQUEST_REGION_CLOSE, 0).region_close.region,
                     fake_await(p.daemon, REQUEST_REGION_OPEN, 1).region_open.region);
    assert_int_equal(ruccl_alloc(p.conn, 4096, &small), 0);
    assert_int_equal(p.daemon->regions_opened, 2);
    pair_stop(&p);
}

static void a_quota_gets_idle_memory_back(void **state)
{
    struct pair p = pair_start((struct behaviour){ .regions_max = 2 });
    struct ruccl_region *regions[2], *more;
    uint8_t byte[1] = { 7 };
    struct ruccl_tensor t = bytes_tensor(byte, 1);

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(ruccl_alloc(p.conn, 4096, &regions[i]), 0);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), -RUCCL_QUOTA);
    ruccl_free(regions[0]);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), 0);
    ruccl_free(more);
    assert_int_equal(ruccl_all_reduce(p.comm, &t, &t, RUCCL_SUM), 0);
    assert_int_equal(byte[0], 8);
    assert_int_equal(ruccl_alloc(p.conn, 10000, &more), 0);
    assert_int_equal(p.daemon->regions_closed, 3);
    pair_stop(&p);
}

/* A work over memory that is freed at once. */
static struct ruccl_work *post_and_free(struct pair *p, struct ruccl_region *region, bool as_out)
{
    uint8_t byte[1];
    struct ruccl_tensor shared = { RUCCL_U8, 1, { 1 }, region, 0, NULL };
    struct ruccl_tensor plain = bytes_tensor(byte, 1);
    struct ruccl_work *work;

    assert_int_equal(ruccl_all_reduce_async(p->comm, as_out ? &plain : &shared,
                                            as_out ? &shared : &plain, RUCCL_SUM, &work),
                     0);
    ruccl_free(region);
    return work;
}

static void memory_is_not_handed_out_under_an_unfinished_operation(void **state)
{
    (void)state;
    for (int as_out = 0; as_out < 2; as_out++) {
        struct pair p = pair_start((struct behaviour){ .hold_posts = true });
        struct ruccl_region *region, *other, *again;
        struct request q;
        uint8_t *data;

        assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
        data = ruccl_region_data(region);
        ruccl_work_release(post_and_free(&p, region, as_out));
        assert_int_equal(ruccl_alloc(p.conn, 100, &other), 0);
        assert_ptr_not_equal(ruccl_region_data(other), data);
        assert_int_equal(fake_count(p.daemon, REQUEST_REGION_CLOSE), 0);

        q = fake_await(p.daemon, REQUEST_POST, 0);
        fake_complete(p.daemon, &q, ERROR_NONE, "");
        /* The barrier's answer comes behind that of the work. */
        p.daemon->b.hold_posts = false;
        assert_int_equal(ruccl_barrier(p.comm), 0);
        assert_int_equal(ruccl_alloc(p.conn, 100, &again), 0);
        assert_ptr_equal(ruccl_region_data(again), data);
        assert_int_equal(data[0], 0);
        pair_stop(&p);
    }
}

static void memory_freed_under_an_operation_goes_with_the_connection(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_region *region, *kept;
    struct ruccl_work *work;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(ruccl_alloc(p.conn, 100, &kept), 0);
    work = post_and_free(&p, region, false);
    fake_die(p.daemon);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_DAEMON_LOST);
    ruccl_work_release(work);
    ((uint8_t *)ruccl_region_data(kept))[0] = 1; /* stays its caller's */
    ruccl_free(kept);
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), -RUCCL_DAEMON_LOST);
    pair_stop(&p);
}

static void memory_without_pages_is_not_handed_out_again(void **state)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_region *region;
    struct ruccl_work *work;
    struct request q;

    (void)state;
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    work = post_and_free(&p, region, true);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    fake_complete(p.daemon, &q, ERROR_MEMORY_FAULT, "no pages");
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_MEMORY_FAULT);
    ruccl_work_release(work);
    assert_int_equal(ruccl_alloc(p.conn, 100, &region), 0);
    assert_int_equal(p.daemon->regions_opened, 3);
    /* Its stage went as well: nobody knows which of them it was. */
    assert_int_equal(fake_await(p.daemon, REQUEST_REGION_OPEN, 2).region_open.bytes, 4096);
    fake_await(p.daemon, REQUEST_REGION_CLOSE, 1);
    pair_stop(&p);
}

static void register_names_the_missing_property(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct ruccl_region *region;

    (void)state;
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "F_SEAL_SHRINK"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "F_SEAL_GROW"));
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
    assert_int_equal(ruccl_register(p.conn, fd, 4097, &region), -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_register(p.conn, fd, 0, &region), -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_register(p.conn, fd, 4096, &region), 0);
    close(fd);
    memset(ruccl_region_data(region), 1, 4096);
    ruccl_release(region);
    fake_await(p.daemon, REQUEST_REGION_CLOSE, 0);
    pair_stop(&p);
}

static void exchange_counts_are_checked_and_come_back(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[3] = { 1, 2, 3 }, out[5];
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 5);
    uint64_t good[NRANKS] = { 1, 0, 2, 0 }, few[NRANKS] = { 1 };
    uint64_t negative[NRANKS] = { (uint64_t)-1, 4 }, received[NRANKS];

    (void)state;
    memset(out, 0xee, sizeof(out));
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, few, &to, NULL, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, negative, &to, NULL, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "negative"));
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, good, &to, good, received), 0);
    assert_int_equal(received[1], 2);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 2).post.out_rows, 5);
    assert_int_equal(fake_count(p.daemon, REQUEST_EXPECT), 1);
    /* The two rows that came, and no more. */
    assert_int_equal(out[1], 3);
    assert_int_equal(out[2], 0xee);
    pair_stop(&p);
}

static void memory_of_gpus_needs_a_driver(void **state)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    struct ruccl_region *region = NULL;

    (void)state;
    if (driver) {
        dlclose(driver);
        pair_stop(&p);
        skip();
    }
    assert_int_equal(ruccl_register_cuda(p.conn, &p, 1, &region), -RUCCL_NOT_FOUND);
    assert_non_null(strstr(ruccl_last_error()->text, "no CUDA driver"));
    assert_null(region);
    assert_int_equal(ruccl_region_is_staged(NULL), 0);
    pair_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connect_says_that_no_daemon_is_there),
        cmocka_unit_test(connect_carries_a_refusal),
        cmocka_unit_test(connections_leave_no_descriptor_and_no_region_behind),
        cmocka_unit_test(waiters_get_their_own_answers_in_any_order),
        cmocka_unit_test(wait_gives_up_at_its_deadline),
        cmocka_unit_test(a_loop_learns_of_what_others_read),
        cmocka_unit_test(a_post_without_a_free_slot_waits_for_one),
        cmocka_unit_test(a_flood_of_posts_does_not_lock_up_with_a_daemon_that_answers_each),
        cmocka_unit_test(threads_number_their_calls_in_the_order_of_sending),
        cmocka_unit_test(progress_is_this_operations_own),
        cmocka_unit_test(a_daemons_death_wakes_every_kind_of_waiter),
        cmocka_unit_test(a_goodbye_tells_everybody_why),
        cmocka_unit_test(close_wakes_every_kind_of_waiter),
        cmocka_unit_test(works_outlive_their_connection),
        cmocka_unit_test(a_forked_child_is_told_and_the_parent_goes_on),
        cmocka_unit_test(a_rejected_call_takes_its_number_and_is_told_to_all),
        cmocka_unit_test(what_the_daemon_judges_is_posted_as_it_is),
        cmocka_unit_test(a_denied_stage_is_a_rejection),
        cmocka_unit_test(root_only_tensors_are_ignored_elsewhere),
        cmocka_unit_test(pairs_take_no_number_and_splits_do),
        cmocka_unit_test(budgets_wrap_and_unwrap),
        cmocka_unit_test(plain_memory_is_copied_there_and_back),
        cmocka_unit_test(in_place_forms_of_plain_memory_alias_in_the_stage_too),
        cmocka_unit_test(a_failed_or_released_work_leaves_plain_output_alone),
        cmocka_unit_test(regions_are_used_as_they_are),
        cmocka_unit_test(a_region_ends_where_it_was_asked_to),
        cmocka_unit_test(alloc_in_a_loop_makes_nothing),
        cmocka_unit_test(freed_memory_is_zero_when_it_is_handed_out_again),
        cmocka_unit_test(no_more_than_a_quarter_lies_fallow),
        cmocka_unit_test(idle_memory_is_bounded),
        cmocka_unit_test(a_quota_gets_idle_memory_back),
        cmocka_unit_test(memory_is_not_handed_out_under_an_unfinished_operation),
        cmocka_unit_test(memory_freed_under_an_operation_goes_with_the_connection),
        cmocka_unit_test(memory_without_pages_is_not_handed_out_again),
        cmocka_unit_test(register_names_the_missing_property),
        cmocka_unit_test(memory_of_gpus_needs_a_driver),
        cmocka_unit_test(exchange_counts_are_checked_and_come_back),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
