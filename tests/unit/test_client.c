/* libruccl against a daemon that is a thread of this process: connecting, waiting, and endings. */
#include "tests/unit/fake_daemon.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- RUCCL_LOG */

/* What the library of a fresh process, by which RUCCL_LOG is read once, writes to stderr in three
 * calls that fail. It was not read before the fork: this comes before all other tests. */
static void log_of_failures(const char *level, char ret[4096])
{
    struct ruccl_conn *conn;
    ssize_t n, len = 0;
    int ends[2];
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        setenv("RUCCL_LOG", level, 1);
        for (int i = 0; i < 3; i++)
            ruccl_connect("/tmp/ruccl-nowhere/sock", NULL, &conn);
        _exit(0);
    }
    close(ends[1]);
    while ((n = read(ends[0], ret + len, 4095 - (size_t)len)) > 0)
        len += n;
    ret[len] = '\0';
    close(ends[0]);
    waitpid(pid, NULL, 0);
}

static unsigned count_lines(const char *text)
{
    unsigned n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

TEST(a_level_that_there_is_not_is_told_once)
{
    char text[4096];

    log_of_failures("loud", text);
    assert_int_equal(count_lines(text), 1);
    assert_non_null(strstr(text, "RUCCL_LOG is 'loud': it takes error, info, debug or nothing"));
    log_of_failures("", text);
    assert_string_equal(text, "");
    log_of_failures("nothing", text);
    assert_string_equal(text, "");
    log_of_failures("error", text);
    assert_int_equal(count_lines(text), 3);
}

/* ---------------------------------------------------------------- connecting */

TEST(connect_says_that_no_daemon_is_there)
{
    struct ruccl_conn *conn;

    assert_int_equal(ruccl_connect("/tmp/ruccl-nowhere/sock", NULL, &conn), -RUCCL_SYSTEM);
    assert_int_equal(ruccl_last_error()->code, RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, "/tmp/ruccl-nowhere/sock"));
    assert_non_null(strstr(ruccl_last_error()->text, "is ruccld running?"));
}

TEST(connect_says_what_is_no_socket)
{
    char path[] = "/tmp/ruccl-test-file-XXXXXX";
    struct ruccl_conn *conn;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(ruccl_connect(path, NULL, &conn), -RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, path));
    assert_non_null(strstr(ruccl_last_error()->text, "is no socket"));
    unlink(path);
    assert_int_equal(ruccl_connect("/tmp", NULL, &conn), -RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, "/tmp is no socket"));
}

/* A path that nobody listens at any more, or somebody who never looks. */
static int listen_at(struct sockaddr_un *address, bool alive)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(address->sun_path, sizeof(address->sun_path), "/tmp/ruccl-test-deaf-%d",
             (int)getpid());
    assert_int_equal(bind(fd, (struct sockaddr *)address, sizeof(*address)), 0);
    if (alive)
        assert_int_equal(listen(fd, 1), 0);
    return fd;
}

TEST(connect_says_that_the_daemon_has_ended)
{
    struct ruccl_conn *conn;
    struct sockaddr_un address;
    int fd = listen_at(&address, false);

    assert_int_equal(ruccl_connect(address.sun_path, NULL, &conn), -RUCCL_SYSTEM);
    assert_non_null(strstr(ruccl_last_error()->text, "nobody listens at /tmp/ruccl-test-deaf-"));
    close(fd);
    unlink(address.sun_path);
}

/* `text` says so of the daemon at `path`, which is this process. */
static void assert_hangs(const char *text, const char *path)
{
    char words[256];

    snprintf(words, sizeof(words), "the daemon at %s (pid %d) does not answer", path,
             (int)getpid());
    assert_non_null(strstr(text, words));
}

/* Its kernel takes connections and hello for it. */
TEST(connect_gives_up_on_a_daemon_that_hangs)
{
    struct ruccl_conn *conn;
    struct sockaddr_un address;
    int before = count_fds(), fd = listen_at(&address, true);

    assert_int_equal(ruccl_connect(address.sun_path, NULL, &conn), -RUCCL_TIMEOUT);
    assert_hangs(ruccl_last_error()->text, address.sun_path);
    close(fd);
    unlink(address.sun_path);
    assert_int_equal(count_fds(), before);
}

struct asker {
    int (*ask)(struct pair *p);
    struct pair *pair;
    int result;
    char text[512];
    pthread_t thread;
};

static int ask_for_an_id(struct pair *p)
{
    char id[RUCCL_ID_BYTES];

    return ruccl_new_id(p->conn, id);
}

static int give_an_id_back(struct pair *p)
{
    return ruccl_drop_id(p->conn, "rc1-new@here");
}

static int give_up(struct pair *p)
{
    return ruccl_abort(p->comm, "enough");
}

static void *ask(void *arg)
{
    struct asker *a = arg;

    a->result = a->ask(a->pair);
    snprintf(a->text, sizeof(a->text), "%s", ruccl_last_error()->text);
    return NULL;
}

/* All at once: each takes as long as connecting does. */
TEST(what_needs_no_other_rank_gives_up_on_a_daemon_that_hangs)
{
    static int (*const asks[])(struct pair * p) = { ask_for_an_id, give_an_id_back, give_up };
    struct pair p = pair_start((struct behaviour){ .hold_ids = true });
    struct asker askers[ARRAY_SIZE(asks)];

    for (size_t i = 0; i < ARRAY_SIZE(asks); i++) {
        askers[i] = (struct asker){ .ask = asks[i], .pair = &p };
        pthread_create(&askers[i].thread, NULL, ask, &askers[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(asks); i++) {
        pthread_join(askers[i].thread, NULL);
        assert_int_equal(askers[i].result, -RUCCL_TIMEOUT);
        assert_hangs(askers[i].text, p.daemon->path);
    }
    assert_int_equal(ruccl_barrier(p.comm), 0); /* the connection goes on */
    pair_stop(&p);
}

TEST(connect_carries_a_refusal)
{
    struct fake_daemon *d = fake_start((struct behaviour){ .refuse_version = true });
    struct ruccl_conn *conn;

    assert_int_equal(ruccl_connect(d->path, NULL, &conn), -RUCCL_VERSION);
    assert_string_equal(ruccl_last_error()->text, "speaks 7 only");
    fake_stop(d);
}

TEST(connections_leave_no_descriptor_and_no_region_behind)
{
    int before = count_fds();

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

TEST(waiters_get_their_own_answers_in_any_order)
{
    static const int order[] = { 2, 0, 3, 1 };
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct waiting w[4];

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

TEST(wait_gives_up_at_its_deadline)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_work *work;
    struct ruccl_stats stats;
    struct request q;

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

TEST(a_loop_learns_of_what_others_read)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct pollfd fd = { .fd = ruccl_fd(p.conn), .events = POLLIN };
    struct ruccl_work *work, *other;
    struct request q;

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

TEST(a_post_without_a_free_slot_waits_for_one)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true, .slots = 2 });
    struct ruccl_work *works[2];
    struct waiting third = { .work = (struct ruccl_work *)&p };
    struct request q[3];

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

TEST(a_flood_of_posts_does_not_lock_up_with_a_daemon_that_answers_each)
{
    enum { N = 3000 };
    static struct ruccl_work *works[N];
    struct pair p = pair_start((struct behaviour){ 0 });

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

TEST(threads_number_their_calls_in_the_order_of_sending)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    pthread_t threads[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, barriers, &p);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 1200; i++)
        assert_int_equal(fake_await(p.daemon, REQUEST_POST, i).post.sequence, i + 1);
    pair_stop(&p);
}

TEST(progress_is_this_operations_own)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true, .slots = 1 });
    struct progress left_over = { .elements_done = 99 },
                    now = { .elements_done = 3, .elements_total = 5 };
    struct ruccl_progress seen;
    struct ruccl_work *work;
    struct request q;

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

TEST(a_daemons_death_wakes_every_kind_of_waiter)
{
    everybody_wakes(end_by_death, -RUCCL_DAEMON_LOST);
}

TEST(a_goodbye_tells_everybody_why)
{
    everybody_wakes(end_by_goodbye, -RUCCL_DAEMON_STOPPING);
}

TEST(close_wakes_every_kind_of_waiter)
{
    everybody_wakes(end_by_close, -RUCCL_CLOSED);
}

TEST(works_outlive_their_connection)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[] = { 1, 2, 3 }, out[3] = { 0 };
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 3);
    struct ruccl_work *done, *unfinished;

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

TEST(a_call_that_fails_leaves_no_work_behind)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[] = { 1 }, out[1];
    struct ruccl_tensor ti = bytes_tensor(in, 1), to = bytes_tensor(out, 1);
    struct ruccl_work *work = NULL;

    fake_die(p.daemon);
    assert_int_equal(ruccl_all_reduce_async(p.comm, &ti, &to, RUCCL_SUM, &work),
                     -RUCCL_DAEMON_LOST);
    assert_null(work);
    pair_stop(&p);
}

TEST(a_forked_child_is_told_and_the_parent_goes_on)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_region *region;
    int status;
    pid_t child;

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_level_that_there_is_not_is_told_once),
        cmocka_unit_test(connect_says_that_no_daemon_is_there),
        cmocka_unit_test(connect_says_what_is_no_socket),
        cmocka_unit_test(connect_says_that_the_daemon_has_ended),
        cmocka_unit_test(connect_gives_up_on_a_daemon_that_hangs),
        cmocka_unit_test(what_needs_no_other_rank_gives_up_on_a_daemon_that_hangs),
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
        cmocka_unit_test(a_call_that_fails_leaves_no_work_behind),
        cmocka_unit_test(a_forked_child_is_told_and_the_parent_goes_on),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
