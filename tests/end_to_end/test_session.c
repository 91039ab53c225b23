/* One connection at the level of packets: what it may say, what it holds, and what ends it. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"

/* A communicator with both ranks in `c`, as its numbers 1 and 2. */
static void join_pair(struct raw *c)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(c, id);
    raw_join(c, 1, id, 0, 2);
    raw_join(c, 2, id, 1, 2);
    raw_expect_done(c, ERROR_NONE, NULL);
    raw_expect_done(c, ERROR_NONE, NULL);
}

static void fill_post(struct request *r, uint32_t comm, uint64_t sequence, uint32_t slot,
                      uint32_t region, uint64_t n)
{
    *r = (struct request){ .kind = REQUEST_POST };
    r->post.comm = comm;
    r->post.sequence = sequence;
    r->post.slot = slot;
    r->post.d.kind = COLLECTIVE_ALL_REDUCE;
    r->post.d.op = OPERATOR_SUM;
    r->post.d.dtype = DTYPE_I32;
    r->post.d.shape = (struct shape){ .naxes = 1, .axes = { n } };
    r->post.d.budget = BUDGET_NONE;
    r->post.in.region = r->post.out.region = region;
    r->post.out.offset = r->post.in.offset = 0;
}

/* ---- hello ---- */

static void a_welcome_brings_cells_that_only_the_daemon_writes(void **state)
{
    struct daemon d;
    struct raw c;
    int writable;
    char path[64];

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    size_t bytes = c.slots * sizeof(struct progress_cell);

    assert_int_equal(c.slots, 4096);
    assert_ptr_equal(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c.cells, 0), MAP_FAILED);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", c.cells);
    writable = open(path, O_RDWR);
    if (writable >= 0) {
        assert_ptr_equal(mmap(NULL, bytes, PROT_WRITE, MAP_SHARED, writable, 0), MAP_FAILED);
        assert_int_equal(pwrite(writable, "x", 1, 0), -1);
        assert_int_equal(ftruncate(writable, 0), -1);
        close(writable);
    }
    void *cells = mmap(NULL, bytes, PROT_READ, MAP_SHARED, c.cells, 0);

    assert_ptr_not_equal(cells, MAP_FAILED);
    munmap(cells, bytes);
    raw_close(&c);
    daemon_stop(&d);
}

static void a_version_gap_names_both_ranges(void **state)
{
    struct daemon d;
    struct raw c;
    int pidfd = raw_pidfd(getpid());

    (void)state;
    daemon_run(&d);
    raw_connect(&c, d.socket);
    raw_hello(&c, 7, 9, pidfd);
    raw_expect_done(&c, ERROR_VERSION, "versions 7 to 9");
    raw_expect_goodbye(&c, ERROR_VERSION, "1 to 1");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 9, pidfd); /* a newer library that still speaks ours */
    assert_int_equal(raw_expect(&c, REPLY_WELCOME)->welcome.version, 1);
    raw_close(&c);
    close(pidfd);
    daemon_stop(&d);
}

static void a_stranger_must_say_hello_in_time(void **state)
{
    struct daemon d;
    struct raw c;
    uint64_t start = test_now_ms();

    (void)state;
    daemon_run(&d, "--set=hello_timeout=100ms");
    raw_connect(&c, d.socket);
    raw_expect_goodbye(&c, ERROR_TIMEOUT, "no hello within 100 ms");
    assert_in_range(test_now_ms() - start, 100, 5000);
    raw_close(&c);
    daemon_stop(&d);
}

/* ---- breaking the protocol ---- */

static void say_garbage(struct raw *c)
{
    raw_send_bytes(c, "\xff\xff\xff\xff garbage", 12, NULL, 0);
}

static void say_nothing_at_all(struct raw *c)
{
    raw_send_bytes(c, "", 0, NULL, 0);
}

static void say_too_much(struct raw *c)
{
    static char bytes[PACKET_BYTES_MAX + 1];

    raw_send_bytes(c, bytes, sizeof(bytes), NULL, 0);
}

static void bring_five_fds(struct raw *c)
{
    raw_send_bytes(c, "x", 1, (int[]){ 0, 0, 0, 0, 0 }, 5);
}

static void bring_a_fd_to_a_status(struct raw *c)
{
    struct request r = { .kind = REQUEST_STATUS };

    raw_send(c, &r, 0);
}

static void open_a_region_without_a_fd(struct raw *c)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = 1;
    r.region_open.bytes = 4096;
    raw_send(c, &r, -1);
}

static void say_hello_twice(struct raw *c)
{
    int pidfd = raw_pidfd(getpid());

    raw_hello(c, 1, 1, pidfd);
    close(pidfd);
}

static void reuse_a_region_number(struct raw *c)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };
    int fd = raw_memfd(4096);

    raw_open_region(c, 5, fd, 4096);
    r.region_open.region = 5;
    r.region_open.bytes = 4096;
    raw_send(c, &r, fd);
    close(fd);
}

static void reuse_a_communicator_number(struct raw *c)
{
    char id[CODEC_ID_MAX + 1];

    join_pair(c);
    raw_new_id(c, id);
    raw_join(c, 1, id, 0, 1);
}

static void post_to_a_slot_out_of_range(struct raw *c)
{
    join_pair(c);
    raw_barrier(c, 1, 1, 4096);
}

static void post_to_a_slot_in_use(struct raw *c)
{
    join_pair(c);
    raw_barrier(c, 1, 1, 3);
    raw_barrier(c, 2, 1, 3);
}

static void post_out_of_sequence(struct raw *c)
{
    join_pair(c);
    raw_barrier(c, 1, 7, 0);
}

static void post_before_the_join_is_done(struct raw *c)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(c, id);
    raw_join(c, 1, id, 0, 2);
    raw_barrier(c, 1, 1, 0);
}

static void split_into_a_number_in_use(struct raw *c)
{
    struct request r = { .kind = REQUEST_POST };

    join_pair(c);
    r.post.comm = 1;
    r.post.sequence = 1;
    r.post.d.kind = COLLECTIVE_SPLIT;
    r.post.child = 2;
    raw_send(c, &r, -1);
}

struct offence {
    const char *what;
    void (*commit)(struct raw *c);
    const char *answer;
};

static void breaking_the_protocol_ends_that_session_and_no_other(void **state)
{
    static const struct offence offences[] = {
        { "garbage", say_garbage, NULL },
        { "empty", say_nothing_at_all, "empty" },
        { "too much", say_too_much, "65536" },
        { "five fds", bring_five_fds, "more than 4" },
        { "fd", bring_a_fd_to_a_status, "status came with 1 file descriptors instead of 0" },
        { "no fd", open_a_region_without_a_fd, "region_open came with 0" },
        { "hello", say_hello_twice, "a second hello" },
        { "region", reuse_a_region_number, "number 5 is in use" },
        { "comm", reuse_a_communicator_number, "communicator number 1 is in use" },
        { "slot range", post_to_a_slot_out_of_range, "slot 4096 of 4096" },
        { "slot use", post_to_a_slot_in_use, "slot 3 is in use" },
        { "sequence", post_out_of_sequence, "operation 7 of communicator 1" },
        { "early", post_before_the_join_is_done, "has not been joined yet" },
        { "child", split_into_a_number_in_use, "communicator number 2 is in use" },
    };
    struct daemon d;
    struct raw witness, c;

    (void)state;
    daemon_run(&d);
    raw_open(&witness, d.socket);
    for (size_t i = 0; i < ARRAY_SIZE(offences); i++) {
        raw_open(&c, d.socket);
        offences[i].commit(&c);
        raw_expect_goodbye(&c, ERROR_PROTOCOL, offences[i].answer);
        raw_close(&c);
        raw_wait_for_sessions(&witness, 1);
    }
    raw_close(&witness);
    daemon_stop(&d);
}

static void the_first_message_must_be_a_true_hello(void **state)
{
    struct daemon d;
    struct raw c;
    int child_pidfd, self = raw_pidfd(getpid()), memfd = raw_memfd(4096);
    pid_t child = fork();

    (void)state;
    if (child == 0) {
        pause();
        _exit(0);
    }
    child_pidfd = raw_pidfd(child);
    daemon_run(&d);

    raw_connect(&c, d.socket);
    raw_barrier(&c, 1, 0, 0);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "post came before hello");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 1, -1);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "hello came with 0 file descriptors");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 1, memfd);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "no pidfd");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 1, child_pidfd);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "connected");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 1, self);
    raw_expect(&c, REPLY_WELCOME);
    raw_close(&c);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(child_pidfd);
    close(self);
    close(memfd);
    daemon_stop(&d);
}

/* ---- quotas ---- */

static void quotas_name_their_key(void **state)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };
    struct daemon d;
    struct raw a, b, c;
    char id[CODEC_ID_MAX + 1];
    int fd = raw_memfd(8192), pidfd = raw_pidfd(getpid());

    (void)state;
    daemon_run(&d, "--set=max_sessions=2", "--set=max_regions=2", "--set=max_region_bytes=16KiB",
               "--set=max_in_flight=1", "--set=max_communicators=3", "--set=max_strangers=2");
    raw_open(&a, d.socket);
    raw_open(&b, d.socket);
    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 1, pidfd);
    raw_expect_done(&c, ERROR_QUOTA, "max_sessions");
    raw_expect_goodbye(&c, ERROR_QUOTA, "max_sessions");
    raw_close(&c);

    raw_open_region(&a, 1, fd, 8192);
    raw_open_region(&b, 1, fd, 8192); /* the quota is the uid's, not the session's */
    r.region_open.region = 2;
    r.region_open.bytes = 8192;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_regions");
    raw_ask(&b, &(struct request){ .kind = REQUEST_REGION_CLOSE, .region_close.region = 1 }, -1,
            ERROR_NONE, NULL);
    r.region_open.bytes = 8193;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_region_bytes");
    r.region_open.bytes = UINT64_MAX;
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_region_bytes");
    raw_open_region(&a, 2, fd, 8192);

    raw_new_id(&a, id);
    raw_join(&a, 1, id, 0, 2);
    raw_join(&a, 2, id, 1, 2);
    raw_expect_done(&a, ERROR_QUOTA, "max_in_flight");

    close(pidfd);
    close(fd);
    raw_close(&a);
    raw_wait_for_sessions(&b, 1);
    raw_open(&a, d.socket); /* what a session held is free again */
    raw_close(&a);
    raw_close(&b);
    daemon_stop(&d);
}

static void strangers_of_one_user_are_few(void **state)
{
    struct daemon d;
    struct raw a, b, c;

    (void)state;
    daemon_run(&d, "--set=max_strangers=2");
    raw_connect(&a, d.socket);
    raw_connect(&b, d.socket);
    raw_connect(&c, d.socket);
    raw_expect_goodbye(&c, ERROR_QUOTA, "max_strangers");
    raw_close(&a);
    raw_close(&b);
    raw_close(&c);
    daemon_stop(&d);
}

/* ---- regions ---- */

static void regions_are_checked_opened_and_closed(void **state)
{
    struct request open = { .kind = REQUEST_REGION_OPEN };
    struct request shut = { .kind = REQUEST_REGION_CLOSE, .region_close.region = 1 };
    struct daemon d;
    struct raw c;
    int fd = raw_memfd(65536), loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    open.region_open.region = 1;
    open.region_open.bytes = 65536;
    assert_int_equal(ftruncate(loose, 65536), 0);
    raw_ask(&c, &open, loose, ERROR_INVALID_ARGUMENT, "SEAL");
    open.region_open.bytes = 65537;
    raw_ask(&c, &open, fd, ERROR_INVALID_ARGUMENT, NULL);

    for (int i = 0; i < 3; i++) {
        raw_open_region(&c, 1, fd, 65536);
        raw_open_region(&c, 2, fd, 65536); /* the same memory */
        raw_open_region(&c, 3, fd, 4096);  /* a part of it */
        for (uint32_t region = 1; region <= 3; region++) {
            shut.region_close.region = region;
            raw_ask(&c, &shut, -1, ERROR_NONE, NULL);
        }
    }
    raw_ask(&c, &shut, -1, ERROR_NOT_FOUND, "region 3 is not open");
    raw_open_region(&c, 1, fd, 65536); /* the end of the session closes it */
    close(loose);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

/* ---- operations ---- */

static void two_ranks_of_one_session_reduce(void **state)
{
    struct daemon d;
    struct raw c;
    struct request r;
    int fd0 = raw_memfd(4096), fd1 = raw_memfd(4096);
    int32_t values[2][5] = { { 1, 2, 3, 4, 5 }, { 10, 20, 30, 40, 50 } }, sums[5];
    struct progress progress;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_region(&c, 1, fd0, 4096);
    raw_open_region(&c, 2, fd1, 4096);
    assert_int_equal(pwrite(fd0, values[0], sizeof(values[0]), 0), sizeof(values[0]));
    assert_int_equal(pwrite(fd1, values[1], sizeof(values[1]), 0), sizeof(values[1]));
    join_pair(&c);

    fill_post(&r, 1, 1, 9, 1, 5);
    raw_send(&c, &r, -1);
    fill_post(&r, 2, 1, 8, 2, 5);
    raw_send(&c, &r, -1);
    for (int i = 0; i < 2; i++) {
        if (raw_expect_completion(&c, 0)->code)
            fail_msg("%s", c.reply.completion.error.text);
    }
    for (int rank = 0; rank < 2; rank++) {
        assert_int_equal(pread(rank ? fd1 : fd0, sums, sizeof(sums), 0), sizeof(sums));
        for (int i = 0; i < 5; i++)
            assert_int_equal(sums[i], values[0][i] + values[1][i]);
    }
    struct progress_cell *cells =
        mmap(NULL, c.slots * sizeof(*cells), PROT_READ, MAP_SHARED, c.cells, 0);

    assert_ptr_not_equal(cells, MAP_FAILED);
    assert_true(progress_read(&cells[9], &progress));
    assert_int_equal(progress.elements_done, 5);
    assert_int_equal(progress.elements_total, 5);
    munmap(cells, c.slots * sizeof(*cells));
    close(fd0);
    close(fd1);
    raw_close(&c);
    daemon_stop(&d);
}

static void an_unknown_region_fails_the_operation_for_all_and_no_more(void **state)
{
    struct daemon d;
    struct raw c;
    struct request r;
    int fd = raw_memfd(4096);

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_region(&c, 1, fd, 4096);
    join_pair(&c);
    fill_post(&r, 1, 1, 0, 1, 5);
    raw_send(&c, &r, -1);
    fill_post(&r, 2, 1, 1, 77, 5);
    raw_send(&c, &r, -1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NOT_FOUND);
        assert_non_null(strstr(c.reply.completion.error.text, "region 77 is not open"));
    }
    raw_barrier(&c, 1, 2, 0);
    raw_barrier(&c, 2, 2, 1);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

static void a_communicator_that_is_not_open_is_named(void **state)
{
    struct request leave = { .kind = REQUEST_LEAVE, .leave.comm = 9 };
    struct request abort = { .kind = REQUEST_ABORT, .abort.comm = 9, .abort.text = "x" };
    struct daemon d;
    struct raw c;
    uint64_t serial;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    serial = raw_barrier(&c, 9, 4, 0);
    assert_int_equal(raw_expect_completion(&c, serial)->code, ERROR_CLOSED);
    assert_int_equal(c.reply.completion.sequence, 4);
    raw_ask(&c, &leave, -1, ERROR_CLOSED, "communicator 9 is not open");
    raw_ask(&c, &abort, -1, ERROR_CLOSED, "communicator 9 is not open");
    raw_close(&c);
    daemon_stop(&d);
}

static void a_number_is_free_again_after_leaving(void **state)
{
    struct request leave = { .kind = REQUEST_LEAVE };
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    for (int i = 0; i < 3; i++) {
        join_pair(&c);
        leave.leave.comm = 1;
        raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
        leave.leave.comm = 2;
        raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
    }
    raw_close(&c);
    daemon_stop(&d);
}

static void a_split_gives_its_numbers_to_the_children(void **state)
{
    struct request r = { .kind = REQUEST_POST };
    struct request leave = { .kind = REQUEST_LEAVE, .leave.comm = 12 };
    struct daemon d;
    struct raw c;

    (void)state;
    daemon_run(&d);
    raw_open(&c, d.socket);
    join_pair(&c);
    r.post.sequence = 1;
    r.post.d.kind = COLLECTIVE_SPLIT;
    r.post.d.budget = BUDGET_NONE;
    for (uint32_t comm = 1; comm <= 2; comm++) {
        r.post.comm = comm;
        r.post.slot = comm;
        r.post.child = 10 + comm;
        r.post.color = comm == 1 ? -1 : 4; /* rank 0 takes part and gets none */
        raw_send(&c, &r, -1);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
        if (c.reply.completion.child_nranks) {
            assert_int_equal(c.reply.completion.child_nranks, 1);
            assert_int_equal(c.reply.completion.child_rank, 0);
            assert_int_equal(strncmp(c.reply.completion.child_id, "rc1-", 4), 0);
        }
    }
    raw_barrier(&c, 12, 1, 0);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_NONE);
    raw_barrier(&c, 11, 1, 0);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_CLOSED);
    raw_ask(&c, &leave, -1, ERROR_NONE, NULL);
    raw_close(&c);
    daemon_stop(&d);
}

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

static void a_killed_process_is_lost_at_once(void **state)
{
    (void)state;
    lose_a_member(wait_to_be_killed, true, "died");
}

static void a_living_child_with_the_socket_does_not_hide_a_death(void **state)
{
    (void)state;
    assert_int_equal(pipe2(held_open, O_CLOEXEC), 0);
    lose_a_member(leave_a_child_behind_and_wait, true, "died");
    close(held_open[0]);
    close(held_open[1]);
}

static void a_process_that_hangs_up_and_lives_is_disconnected(void **state)
{
    (void)state;
    lose_a_member(hang_up_and_wait, false, "disconnected");
}

/* ---- many, slow, idle ---- */

static void a_client_that_never_reads_is_let_go(void **state)
{
    struct request r = { .kind = REQUEST_STATUS };
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct daemon d;
    struct raw slow, other;
    int len, sent = 0, res = 0;

    (void)state;
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
static void a_client_that_lies_of_its_windows_is_let_go(void **state)
{
    struct request r, staged = { .kind = REQUEST_STAGED };
    struct daemon d;
    struct raw liar, other;

    (void)state;
    daemon_run(&d, "--set=max_in_flight=256");
    raw_open(&liar, d.socket);
    raw_open(&other, d.socket);
    join_pair(&liar);
    for (uint32_t rank = 0; rank < 2; rank++) {
        raw_open_region(&liar, rank + 1, raw_memfd(4096), 4096);
        fill_post(&r, rank + 1, 1, rank, rank + 1, 1ull << 60);
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

static void a_slow_client_gets_all_its_replies(void **state)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct daemon d;
    struct raw c;
    uint64_t first = 0;

    (void)state;
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

static void a_thousand_clients_leave_nothing_behind(void **state)
{
    struct daemon d;
    struct raw witness, c;
    unsigned fds = 0;
    uint64_t kb = 0;
    int fd = raw_memfd(1 << 20);

    (void)state;
    daemon_run(&d);
    raw_open(&witness, d.socket);
    for (int i = 0; i < 1100; i++) {
        raw_open(&c, d.socket);
        raw_open_region(&c, 1, fd, 1 << 20);
        if (i % 2)
            join_pair(&c);
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

static void an_idle_daemon_with_clients_uses_no_cpu(void **state)
{
    struct daemon d;
    struct raw c[8];
    uint64_t cpu;

    (void)state;
    daemon_run(&d);
    for (int i = 0; i < 8; i++)
        raw_open(&c[i], d.socket);
    join_pair(&c[0]);
    raw_barrier(&c[0], 1, 1, 0); /* waits for its peer, with a timeout far away */
    daemon_settle(&d);
    cpu = daemon_cpu_us(&d);
    test_sleep_ms(1000);
    assert_int_equal(daemon_cpu_us(&d), cpu);
    for (int i = 0; i < 8; i++)
        raw_close(&c[i]);
    daemon_stop(&d);
}

static void status_comes_in_pages(void **state)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct daemon d;
    struct raw c[40];
    unsigned kinds[4] = { 0 }, pages = 0;

    (void)state;
    daemon_run(&d);
    for (size_t i = 0; i < ARRAY_SIZE(c); i++)
        raw_open(&c[i], d.socket);
    join_pair(&c[0]);
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
        daemon_test(a_welcome_brings_cells_that_only_the_daemon_writes),
        daemon_test(a_version_gap_names_both_ranges),
        daemon_test(a_stranger_must_say_hello_in_time),
        daemon_test(breaking_the_protocol_ends_that_session_and_no_other),
        daemon_test(the_first_message_must_be_a_true_hello),
        daemon_test(quotas_name_their_key),
        daemon_test(strangers_of_one_user_are_few),
        daemon_test(regions_are_checked_opened_and_closed),
        daemon_test(two_ranks_of_one_session_reduce),
        daemon_test(an_unknown_region_fails_the_operation_for_all_and_no_more),
        daemon_test(a_communicator_that_is_not_open_is_named),
        daemon_test(a_number_is_free_again_after_leaving),
        daemon_test(a_split_gives_its_numbers_to_the_children),
        daemon_test(a_killed_process_is_lost_at_once),
        daemon_test(a_living_child_with_the_socket_does_not_hide_a_death),
        daemon_test(a_process_that_hangs_up_and_lives_is_disconnected),
        daemon_test(a_client_that_never_reads_is_let_go),
        daemon_test(a_client_that_lies_of_its_windows_is_let_go),
        daemon_test(a_slow_client_gets_all_its_replies),
        daemon_test(a_thousand_clients_leave_nothing_behind),
        daemon_test(an_idle_daemon_with_clients_uses_no_cpu),
        daemon_test(status_comes_in_pages),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
