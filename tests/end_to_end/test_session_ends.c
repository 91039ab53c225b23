/* What ends a connection, and what many, slow and idle ones cost. */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

/* ---- death ---- */

static void wait_to_be_killed(struct raw *c)
{
    (void)c;
    pause();
}

static int held_open[2]; /* the grandchild that keeps the socket lives until [1] is closed */

static void leave_a_child_behind_and_wait(struct raw *c)
{
    if (fork() == 0) {
        char byte;

        (void)c;
        close(held_open[1]);
        _exit((int)read(held_open[0], &byte, 1));
    }
    pause();
}

static void *be_traced(void *tid)
{
    atomic_store((_Atomic pid_t *)tid, gettid());
    pause();
    return NULL;
}

/* Until the tracer has seen its thread's end, a process has no end of its own, though its sockets
 * have theirs: as one that dies and is kept off the CPU. */
static void die_slowly(struct raw *c)
{
    _Atomic pid_t tid = 0;
    pthread_t thread;
    siginfo_t end;

    if (pthread_create(&thread, NULL, be_traced, (void *)&tid) != 0)
        _exit(1);
    while (!atomic_load(&tid))
        test_sleep_ms(1);
    if (fork() == 0) {
        close(c->socket);
        if (ptrace(PTRACE_SEIZE, atomic_load(&tid), NULL, NULL) != 0)
            _exit(1);
        kill(getppid(), SIGKILL);
        waitid(P_PID, (id_t)atomic_load(&tid), &end, WEXITED | WNOWAIT | __WALL);
        test_sleep_ms(300);
        _exit(0);
    }
    pause();
}

static void hang_up_and_wait(struct raw *c)
{
    raw_close(c);
    pause();
}

static void lose_a_member(void (*then)(struct raw *c), bool kill_it, const char *why)
{
    struct daemon d;
    struct raw c;
    char id[CODEC_ID_MAX + 1], pid_text[32];
    uint64_t start;
    pid_t pid;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_new_id(&c, id);
    raw_join(&c, 1, id, 0, 2);
    pid = raw_fork_member(d.socket, id, then);
    raw_expect_done(&c, ERROR_NONE, NULL);
    raw_barrier(&c, 1, 1, 0);
    if (kill_it)
        raw_ask_status(&c); /* until the barrier waits */
    start = test_now_ms();
    if (kill_it)
        kill(pid, SIGKILL);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_RANK_LOST);
    assert_true(test_now_ms() - start < TOLD_MS);
    snprintf(pid_text, sizeof(pid_text), "%d", pid);
    if (!strstr(c.reply.completion.error.text, why) ||
        !strstr(c.reply.completion.error.text, pid_text))
        fail_msg("'%s' says neither '%s' nor '%s'", c.reply.completion.error.text, why, pid_text);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_killed_process_is_lost_at_once)
{
    lose_a_member(wait_to_be_killed, true, "died");
}

TEST(a_living_child_with_the_socket_does_not_hide_a_death)
{
    assert_int_equal(pipe2(held_open, O_CLOEXEC), 0);
    lose_a_member(leave_a_child_behind_and_wait, true, "died");
    close(held_open[0]);
    close(held_open[1]);
}

TEST(a_process_that_dies_slowly_has_died)
{
    lose_a_member(die_slowly, false, "died");
}

TEST(a_process_that_hangs_up_and_lives_is_disconnected)
{
    lose_a_member(hang_up_and_wait, false, "disconnected");
}

static void expect_logged_end(const struct daemon *d, pid_t pid, const char *why)
{
    char line[100];
    uint64_t end = test_now_ms() + TOLD_MS;

    snprintf(line, sizeof(line), " of pid %d: %s", (int)pid, why);
    while (!daemon_logged(d, line)) {
        if (test_now_ms() >= end)
            fail_msg("the log has no '%s'", line);
        test_sleep_ms(5);
    }
}

/* Connects and ends in one way or the other; `joins`: in the middle of a communicator. */
static pid_t come_and_go(const struct daemon *d, bool closes, bool joins)
{
    struct raw c;
    pid_t pid = fork();

    if (pid)
        return pid;
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure here must not go on with the other tests */
    raw_open(&c, d->socket);
    if (joins)
        raw_join_both(&c);
    if (closes)
        raw_close(&c);
    _exit(0);
}

TEST(who_ends_without_a_communicator_is_not_said_to_have_died)
{
    struct daemon d;

    daemon_run(&d, "--log-level=info");
    for (unsigned i = 0; i < 20; i++) { /* the daemon may see either end first */
        pid_t pid = come_and_go(&d, i % 2, false);

        waitpid(pid, NULL, 0);
        expect_logged_end(&d, pid, "disconnected");
    }
    assert_false(daemon_logged(&d, "died"));
    daemon_stop(&d);
}

TEST(who_ends_with_a_communicator_died)
{
    struct daemon d;
    pid_t pid;

    daemon_run(&d, "--log-level=info");
    pid = come_and_go(&d, false, true);
    waitpid(pid, NULL, 0);
    expect_logged_end(&d, pid, "died");
    daemon_stop(&d);
}

/* ---- many, slow, idle ---- */

TEST(a_client_that_never_reads_is_let_go)
{
    struct request r = { .kind = REQUEST_STATUS };
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct daemon d;
    struct raw slow, other;
    int len, sent = 0, res = 0;

    daemon_run(&d, "--set=max_in_flight=256");
    raw_open(&slow, d.socket);
    raw_open(&other, d.socket);
    r.serial = 1;
    len = codec_encode_request(&r, bytes);
    fcntl(slow.socket, F_SETFL, O_NONBLOCK);
    while (res != PACKET_END && sent < 100000) {
        res = packet_send(slow.socket, bytes, (uint32_t)len, -1);
        assert_true(res >= 0);
        if (res == PACKET_AGAIN)
            poll(&(struct pollfd){ .fd = slow.socket, .events = POLLOUT }, 1, 1000);
        sent += res == 0;
    }
    assert_int_equal(res, PACKET_END);
    assert_in_range(sent, 256, 10000);
    raw_ask_status(&other);
    raw_close(&slow);
    raw_wait_for_sessions(&other, 1);
    raw_close(&other);
    daemon_stop(&d);
}

/* Windows of one page, of a tensor without an end, and never a look at how far it has come. */
TEST(a_client_that_lies_of_its_windows_is_let_go)
{
    struct request r, staged = { .kind = REQUEST_STAGED };
    struct daemon d;
    struct raw liar, other;

    daemon_run(&d, "--set=max_in_flight=256");
    raw_open(&liar, d.socket);
    raw_open(&other, d.socket);
    raw_join_both(&liar);
    for (uint32_t rank = 0; rank < 2; rank++) {
        raw_open_region(&liar, rank + 1, raw_memfd(4096), 4096);
        r = raw_sum(rank + 1, 1, rank, rank + 1, 1ull << 60);
        r.post.in.window = r.post.out.window = 1024;
        raw_send(&liar, &r, -1);
    }
    staged.staged.in_ready = staged.staged.out_taken = UINT64_MAX;
    for (uint32_t rank = 0; rank < 2; rank++) {
        staged.staged.comm = rank + 1;
        staged.staged.slot = rank;
        raw_send(&liar, &staged, -1);
    }
    raw_wait_for_sessions(&other, 1); /* served all along */
    raw_close(&liar);
    raw_close(&other);
    daemon_stop(&d);
}

TEST(a_slow_client_gets_all_its_replies)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct daemon d;
    struct raw c;
    uint64_t first = 0;

    daemon_run(&d);
    raw_open(&c, d.socket);
    for (int i = 0; i < 2000; i++) { /* a socket holds some hundreds */
        uint64_t serial = raw_send(&c, &r, -1);

        first = first ? first : serial;
    }
    test_sleep_ms(100);
    for (int i = 0; i < 2000; i++) {
        raw_expect(&c, REPLY_STATUS_PAGE);
        assert_int_equal(c.reply.serial, first + (uint64_t)i);
    }
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_thousand_clients_leave_nothing_behind)
{
    struct daemon d;
    struct raw witness, c;
    unsigned fds = 0;
    uint64_t kb = 0;
    int fd = raw_memfd(1 << 20);

    daemon_run(&d);
    raw_open(&witness, d.socket);
    for (int i = 0; i < 1100; i++) {
        raw_open(&c, d.socket);
        raw_open_region(&c, 1, fd, 1 << 20);
        if (i % 2)
            raw_join_both(&c);
        raw_close(&c);
        if (i % 50 == 0) /* those with communicators stay a moment, to see whether they died */
            raw_wait_for_sessions(&witness, 1);
        if (i == 100) {
            fds = daemon_fds(&d);
            kb = daemon_memory_kb(&d, "VmSize");
        }
    }
    raw_wait_for_sessions(&witness, 1);
    assert_int_equal(daemon_fds(&d), fds);
    assert_in_range(daemon_memory_kb(&d, "VmSize"), 0, kb + 1024);
    close(fd);
    raw_close(&witness);
    daemon_stop(&d);
}

/* What a daemon says of the sessions when it meets the end of one and the question together. */
static uint32_t sessions_at_an_end(const struct daemon *d, struct raw *witness)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct raw c;

    raw_open(&c, d->socket);
    daemon_settle(d); /* it waits for both, not in the middle of reading what the one has sent */
    kill(d->pid, SIGSTOP);
    waitpid(d->pid, NULL, WUNTRACED);
    raw_close(&c);
    raw_send(witness, &r, -1);
    kill(d->pid, SIGCONT);
    raw_expect(witness, REPLY_STATUS_PAGE);
    return witness->reply.status_page.items[0].daemon.sessions;
}

TEST(a_session_is_counted_while_it_holds_anything)
{
    unsigned tries = 20; /* they may come one turn after the other all the same */
    struct daemon d;
    struct raw witness;

    daemon_run(&d);
    raw_open(&witness, d.socket);
    while (sessions_at_an_end(&d, &witness) != 2)
        assert_true(--tries > 0);
    raw_wait_for_sessions(&witness, 1);
    raw_close(&witness);
    daemon_stop(&d);
}

TEST(an_idle_daemon_with_clients_uses_no_cpu)
{
    struct daemon d;
    struct raw c[8];
    uint64_t cpu;

    daemon_run(&d);
    for (int i = 0; i < 8; i++)
        raw_open(&c[i], d.socket);
    raw_join_both(&c[0]);
    raw_barrier(&c[0], 1, 1, 0); /* waits for its peer, with a timeout far away */
    daemon_settle(&d);
    cpu = daemon_cpu_us(&d);
    test_sleep_ms(1000);
    assert_int_equal(daemon_cpu_us(&d), cpu);
    for (int i = 0; i < 8; i++)
        raw_close(&c[i]);
    daemon_stop(&d);
}

TEST(status_comes_in_pages)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct daemon d;
    struct raw c[40];
    unsigned kinds[4] = { 0 }, pages = 0;

    daemon_run(&d);
    for (size_t i = 0; i < ARRAY_SIZE(c); i++)
        raw_open(&c[i], d.socket);
    raw_join_both(&c[0]);
    do {
        raw_send(&c[0], &r, -1);
        raw_expect(&c[0], REPLY_STATUS_PAGE);
        for (uint32_t i = 0; i < c[0].reply.status_page.nitems; i++)
            kinds[c[0].reply.status_page.items[i].kind]++;
        r.status.cursor = c[0].reply.status_page.next_cursor;
        pages++;
    } while (r.status.cursor);
    assert_int_equal(pages, 2);
    assert_int_equal(kinds[STATUS_DAEMON], 1);
    assert_int_equal(kinds[STATUS_SESSION], 40);
    assert_int_equal(kinds[STATUS_COMMUNICATOR], 1);
    assert_int_equal(kinds[STATUS_MEMBER], 2);
    for (size_t i = 0; i < ARRAY_SIZE(c); i++)
        raw_close(&c[i]);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(a_killed_process_is_lost_at_once),
        daemon_test(a_living_child_with_the_socket_does_not_hide_a_death),
        daemon_test(a_process_that_dies_slowly_has_died),
        daemon_test(a_process_that_hangs_up_and_lives_is_disconnected),
        daemon_test(who_ends_without_a_communicator_is_not_said_to_have_died),
        daemon_test(who_ends_with_a_communicator_died),
        daemon_test(a_client_that_never_reads_is_let_go),
        daemon_test(a_client_that_lies_of_its_windows_is_let_go),
        daemon_test(a_slow_client_gets_all_its_replies),
        daemon_test(a_thousand_clients_leave_nothing_behind),
        daemon_test(a_session_is_counted_while_it_holds_anything),
        daemon_test(an_idle_daemon_with_clients_uses_no_cpu),
        daemon_test(status_comes_in_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
