/* What a connection may say at the level of packets: first of all, and never. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

/* ---- hello ---- */

TEST(a_welcome_brings_cells_that_only_the_daemon_writes)
{
    struct daemon d;
    struct raw c;
    int writable;
    char path[64];

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

TEST(a_version_gap_names_both_ranges)
{
    struct daemon d;
    struct raw c;
    int pidfd = raw_pidfd(getpid());

    daemon_run(&d);
    raw_connect(&c, d.socket);
    raw_hello(&c, 7, 9, pidfd);
    raw_expect_done(&c, ERROR_VERSION, "versions 7 to 9");
    raw_expect_goodbye(&c, ERROR_VERSION, "3 to 3");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, 1, 9, pidfd); /* a newer library that still speaks ours */
    assert_int_equal(raw_expect(&c, REPLY_WELCOME)->welcome.version, CODEC_VERSION_MAX);
    raw_close(&c);
    close(pidfd);
    daemon_stop(&d);
}

TEST(a_stranger_must_say_hello_in_time)
{
    struct daemon d;
    struct raw c;
    uint64_t start = test_now_ms();

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

    raw_hello(c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, pidfd);
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

    raw_join_both(c);
    raw_new_id(c, id);
    raw_join(c, 1, id, 0, 1);
}

static void post_to_a_slot_out_of_range(struct raw *c)
{
    raw_join_both(c);
    raw_barrier(c, 1, 1, 4096);
}

static void post_to_a_slot_in_use(struct raw *c)
{
    raw_join_both(c);
    raw_barrier(c, 1, 1, 3);
    raw_barrier(c, 2, 1, 3);
}

static void post_out_of_sequence(struct raw *c)
{
    raw_join_both(c);
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

    raw_join_both(c);
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

TEST(breaking_the_protocol_ends_that_session_and_no_other)
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

TEST(the_first_message_must_be_a_true_hello)
{
    struct daemon d;
    struct raw c;
    int child_pidfd, self = raw_pidfd(getpid()), memfd = raw_memfd(4096);
    pid_t child = fork();

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
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, -1);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "hello came with 0 file descriptors");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, memfd);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "no pidfd");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, child_pidfd);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "connected");
    raw_close(&c);

    raw_connect(&c, d.socket);
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, self);
    raw_expect(&c, REPLY_WELCOME);
    raw_close(&c);

    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    close(child_pidfd);
    close(self);
    close(memfd);
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
