#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/packet.h"

/* A connected pair, and how many fds were open before it: none may be left behind. */
struct fixture {
    int nfds;
    int ours, theirs;
    struct packet packet;
};

static int count_fds(void)
{
    int n = 0;

    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static int setup(void **state)
{
    static struct fixture f;
    int pair[2];

    f.nfds = count_fds();
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair),
                     0);
    f.ours = pair[0];
    f.theirs = pair[1];
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    close(f->ours);
    if (f->theirs >= 0)
        close(f->theirs);
    return count_fds() == f->nfds ? 0 : -1;
}

static void close_theirs(struct fixture *f)
{
    close(f->theirs);
    f->theirs = -1;
}

/* What packet_send() would not do: any length, any number of fds. */
static void send_raw(int socket, size_t len, size_t nfds)
{
    static uint8_t bytes[2 * PACKET_BYTES_MAX];
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(64 * sizeof(int))];
    } control = { 0 };
    struct iovec iov = { .iov_base = bytes, .iov_len = len };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
    int fds[64];

    for (size_t i = 0; i < nfds; i++)
        fds[i] = STDERR_FILENO;
    if (nfds > 0) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, nfds * sizeof(int));
    }
    assert_int_equal(sendmsg(socket, &m, 0), (ssize_t)len);
}

static void test_packet_carries_every_length(void **state)
{
    static const uint32_t lengths[] = {
        1, 2, 3, 4095, 4097, PACKET_BYTES_MAX - 1, PACKET_BYTES_MAX
    };
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 31 + i / 256);
    for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
        assert_int_equal(packet_send(f->theirs, bytes, lengths[i], -1), 0);
        assert_int_equal(packet_recv(f->ours, &f->packet), 0);
        assert_int_equal(f->packet.len, lengths[i]);
        assert_int_equal(f->packet.nfds, 0);
        assert_memory_equal(f->packet.bytes, bytes, lengths[i]);
    }
}

static void test_packet_carries_an_fd_that_is_close_on_exec(void **state)
{
    struct fixture *f = *state;
    char text[4] = "";
    int memfd = memfd_create("test", 0);

    assert_int_equal(write(memfd, "abc", 3), 3);
    assert_int_equal(packet_send(f->theirs, "x", 1, memfd), 0);
    close(memfd);

    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(f->packet.len, 1);
    assert_int_equal(f->packet.nfds, 1);

    int fd = packet_take_fd(&f->packet, 0);

    assert_true(fd >= 0);
    assert_int_equal(packet_take_fd(&f->packet, 0), -1);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(pread(fd, text, 3, 0), 3);
    assert_string_equal(text, "abc");
    packet_close_fds(&f->packet); /* leaves a taken fd alone */
    assert_int_equal(close(fd), 0);
}

static void test_packet_has_no_fd_where_none_was_sent(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_send(f->theirs, "x", 1, -1), 0);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(packet_take_fd(&f->packet, 0), -1);
    assert_int_equal(packet_take_fd(&f->packet, PACKET_FDS_MAX), -1);
}

static void test_packet_takes_as_many_fds_as_allowed(void **state)
{
    struct fixture *f = *state;

    send_raw(f->theirs, 1, PACKET_FDS_MAX);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(f->packet.nfds, PACKET_FDS_MAX);
    packet_close_fds(&f->packet);
    assert_int_equal(f->packet.nfds, 0);
}

static void test_packet_with_too_many_fds_is_refused_and_leaks_none(void **state)
{
    struct fixture *f = *state;
    int before = count_fds();

    for (size_t n = PACKET_FDS_MAX + 1; n < 64; n++) {
        send_raw(f->theirs, 1, n);
        assert_int_equal(packet_recv(f->ours, &f->packet), -EPROTO);
        assert_int_equal(f->packet.nfds, 0);
        assert_int_equal(count_fds(), before);
    }
}

static void test_packet_whose_fds_find_no_room_here_is_emfile(void **state)
{
    struct fixture *f = *state;
    struct rlimit limit, tight;
    int before = count_fds(), spare = dup(STDERR_FILENO);

    send_raw(f->theirs, 1, 3);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    tight = limit;
    tight.rlim_cur = (rlim_t)spare + 1;
    close(spare); /* room for one */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);

    int r = packet_recv(f->ours, &f->packet);

    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(r, -EMFILE);
    assert_int_equal(count_fds(), before);
}

static void test_packet_over_the_limit_is_refused_and_the_next_one_read(void **state)
{
    struct fixture *f = *state;
    int before = count_fds();

    send_raw(f->theirs, PACKET_BYTES_MAX + 1, 2);
    assert_int_equal(packet_send(f->theirs, "next", 4, -1), 0);
    assert_int_equal(packet_recv(f->ours, &f->packet), -EMSGSIZE);
    assert_int_equal(count_fds(), before);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_memory_equal(f->packet.bytes, "next", 4);
}

static void test_empty_packet_is_no_end(void **state)
{
    struct fixture *f = *state;
    int before = count_fds();

    send_raw(f->theirs, 0, 0);
    assert_int_equal(packet_recv(f->ours, &f->packet), -EPROTO);
    send_raw(f->theirs, 0, 1);
    assert_int_equal(packet_recv(f->ours, &f->packet), -EPROTO);
    assert_int_equal(count_fds(), before);

    send_raw(f->theirs, 0, 0);
    assert_int_equal(packet_send(f->theirs, "x", 1, -1), 0);
    close_theirs(f);
    assert_int_equal(packet_recv(f->ours, &f->packet), -EPROTO);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_END);
}

static void test_end_comes_behind_all_data(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_send(f->theirs, "1", 1, -1), 0);
    assert_int_equal(packet_send(f->theirs, "2", 1, -1), 0);
    close_theirs(f);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(f->packet.bytes[0], '1');
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(f->packet.bytes[0], '2');
    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_END);
    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_END);
}

static void test_reset_by_a_peer_with_unread_data_comes_behind_its_own(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_send(f->ours, "unread", 6, -1), 0);
    assert_int_equal(packet_send(f->theirs, "1", 1, -1), 0);
    close_theirs(f);
    assert_int_equal(packet_recv(f->ours, &f->packet), 0);
    assert_int_equal(f->packet.bytes[0], '1');
    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_END);
}

static void test_shut_down_peer_is_the_end(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(shutdown(f->theirs, SHUT_WR), 0);
    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_END);
}

static void test_nothing_there_is_again(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_recv(f->ours, &f->packet), PACKET_AGAIN);
    assert_int_equal(f->packet.len, 0);
}

static void test_send_to_a_slow_reader_is_again_and_later_works(void **state)
{
    struct fixture *f = *state;
    int sent = 0, r;

    while ((r = packet_send(f->theirs, "x", 1, STDERR_FILENO)) == 0)
        sent++;
    assert_int_equal(r, PACKET_AGAIN);
    assert_true(sent > 10);
    for (int i = 0; i < sent; i++) {
        assert_int_equal(packet_recv(f->ours, &f->packet), 0);
        packet_close_fds(&f->packet);
    }
    assert_int_equal(packet_send(f->theirs, "x", 1, -1), 0);
}

static void test_send_to_nobody_is_the_end_without_a_signal(void **state)
{
    struct fixture *f = *state;

    close_theirs(f);
    assert_int_equal(packet_send(f->ours, "x", 1, -1), PACKET_END);
}

static void test_send_after_a_reset_is_the_end(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_send(f->ours, "unread", 6, -1), 0);
    close_theirs(f);
    assert_int_equal(packet_send(f->ours, "x", 1, -1), PACKET_END);
    assert_int_equal(packet_send(f->ours, "x", 1, -1), PACKET_END);
}

static void test_peer_is_named_by_its_pid(void **state)
{
    struct fixture *f = *state;
    char words[PACKET_PEER_BYTES], expected[PACKET_PEER_BYTES];

    snprintf(expected, sizeof(expected), " (pid %d)", (int)getpid());
    assert_string_equal(packet_peer(f->ours, words), expected);
    assert_string_equal(packet_peer(-1, words), "");
}

static void test_faults_keep_their_errno(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(packet_recv(-1, &f->packet), -EBADF);
    assert_int_equal(packet_send(-1, "x", 1, -1), -EBADF);
    assert_int_equal(packet_send(f->ours, "x", 1, 1023), -EBADF);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_packet_carries_every_length),
        TEST(test_packet_carries_an_fd_that_is_close_on_exec),
        TEST(test_packet_has_no_fd_where_none_was_sent),
        TEST(test_packet_takes_as_many_fds_as_allowed),
        TEST(test_packet_with_too_many_fds_is_refused_and_leaks_none),
        TEST(test_packet_whose_fds_find_no_room_here_is_emfile),
        TEST(test_packet_over_the_limit_is_refused_and_the_next_one_read),
        TEST(test_empty_packet_is_no_end),
        TEST(test_end_comes_behind_all_data),
        TEST(test_reset_by_a_peer_with_unread_data_comes_behind_its_own),
        TEST(test_shut_down_peer_is_the_end),
        TEST(test_nothing_there_is_again),
        TEST(test_send_to_a_slow_reader_is_again_and_later_works),
        TEST(test_send_to_nobody_is_the_end_without_a_signal),
        TEST(test_send_after_a_reset_is_the_end),
        TEST(test_peer_is_named_by_its_pid),
        TEST(test_faults_keep_their_errno),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
