/* The row "tcp" against strangers at its port, and against a peer that says what no peer says. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#define PATIENCE_MS 20000

/* A transport with a peer whose other end is this test, by hand. */
static struct {
    struct transport *t;
    struct transport_peer *peer;
    struct channel *channel;
    int failure;
    unsigned nfailures;
} s;

static const uint8_t key[TRANSPORT_KEY_BYTES] = "the only channel";
static const uint8_t own_token[TOKEN_BYTES] = { 0xff, 0xff, 1 };

static void note_failure(void *owner, int err)
{
    (void)owner;
    s.nfailures++;
    s.failure = err;
}

static int open_transport(void **state)
{
    const struct transport_config config = { "", "127.0.0.1", "" };
    struct error e = { 0 };

    (void)state;
    memset(&s, 0, sizeof(s));
    assert_int_equal(transport_tcp.open(&config, &s.t, &e), 0);
    assert_int_equal(transport_tcp.channel_open(s.t, key, &s.channel), 0);
    assert_int_equal(transport_tcp.peer_new(s.t, &s.peer, &e), 0);
    transport_tcp.peer_watch(s.peer, note_failure, NULL);
    return 0;
}

static int close_transport(void **state)
{
    (void)state;
    transport_tcp.peer_free(s.peer);
    transport_tcp.channel_close(s.channel);
    transport_tcp.close(s.t);
    return 0;
}

static void turn(int ms)
{
    struct pollfd p = { .fd = transport_tcp.fd(s.t), .events = POLLIN };

    if (!transport_tcp.wants_turn(s.t))
        poll(&p, 1, ms);
    transport_tcp.poll(s.t);
}

static int call(void)
{
    const struct sockaddr_storage *a = &tcp_transport(s.t)->address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)a, sizeof(struct sockaddr_in)), 0);
    return fd;
}

/* What a caller says first; `to` the transport's own peer unless told otherwise. */
static void greet(int fd, const char *magic, const uint8_t *to)
{
    uint8_t bytes[8 + 2 * TOKEN_BYTES];

    memcpy(bytes, magic, 8);
    memcpy(bytes + 8, to, TOKEN_BYTES);
    memcpy(bytes + 8 + TOKEN_BYTES, own_token, TOKEN_BYTES);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), (ssize_t)sizeof(bytes));
}

/* Return: what is answered; 0: hung up. */
static char answer(int fd)
{
    char c = 0;

    for (int waited = 0; waited < PATIENCE_MS; waited++) {
        const ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

        if (n >= 0 || errno != EAGAIN)
            return n == 1 ? c : 0;
        turn(1);
    }
    fail_msg("neither an answer nor a hang-up");
    return 0;
}

static int become_the_peer(void)
{
    const int fd = call();

    greet(fd, "ruccl-1", tcp_peer(s.peer)->token);
    assert_int_equal(answer(fd), 'w');
    return fd;
}

TEST(strangers_are_sent_away_and_the_peer_is_still_welcome)
{
    const uint8_t wrong[TOKEN_BYTES] = { 0 };
    int fd;

    fd = call();
    greet(fd, "ruccl-1", wrong);
    assert_int_equal(answer(fd), 0);
    close(fd);
    fd = call();
    greet(fd, "ruccl-9", tcp_peer(s.peer)->token);
    assert_int_equal(answer(fd), 0);
    close(fd);
    fd = call();
    greet(fd, "GET / HT", (const uint8_t *)"TP/1.1 and so on");
    assert_int_equal(answer(fd), 0);
    close(fd);
    close(become_the_peer());
}

TEST(who_says_nothing_makes_room_for_who_comes_later)
{
    int silent[3 * STRANGERS_MAX];

    for (unsigned i = 0; i < ARRAY_SIZE(silent); i++) {
        silent[i] = call();
        turn(100);
        assert_in_range(tcp_transport(s.t)->nstrangers, 0, STRANGERS_MAX);
    }
    assert_int_equal(answer(silent[0]), 0);
    close(become_the_peer());
    for (unsigned i = 0; i < ARRAY_SIZE(silent); i++)
        close(silent[i]);
}

TEST(a_greeting_may_come_byte_by_byte)
{
    const int fd = call();
    uint8_t bytes[8 + 2 * TOKEN_BYTES];

    memcpy(bytes, "ruccl-1", 8);
    memcpy(bytes + 8, tcp_peer(s.peer)->token, TOKEN_BYTES);
    memcpy(bytes + 8 + TOKEN_BYTES, own_token, TOKEN_BYTES);
    for (unsigned i = 0; i < sizeof(bytes); i++) {
        assert_int_equal(send(fd, bytes + i, 1, MSG_NOSIGNAL), 1);
        turn(10);
    }
    assert_int_equal(answer(fd), 'w');
    close(fd);
}

TEST(a_second_connection_of_the_same_peer_is_sent_away)
{
    const int first = become_the_peer(), second = call();

    greet(second, "ruccl-1", tcp_peer(s.peer)->token);
    assert_int_equal(answer(second), 0);
    assert_int_equal(s.nfailures, 0);
    close(first);
    close(second);
}

/* ---- frames that no peer sends */

static struct frame frame_of(enum frame_kind kind, uint64_t sequence, uint64_t bytes)
{
    struct frame f = { .kind = kind, .sequence = sequence, .bytes = bytes };

    memcpy(f.key, key, sizeof(key));
    return f;
}

static void say(int fd, const struct frame *f)
{
    assert_int_equal(send(fd, f, sizeof(*f), MSG_NOSIGNAL), (ssize_t)sizeof(*f));
}

static void expect_failure(int err)
{
    for (int waited = 0; !s.nfailures && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(s.nfailures, 1);
    assert_int_equal(s.failure, err);
}

static void expect_refusal(struct frame f, int err)
{
    const int fd = become_the_peer();

    say(fd, &f);
    expect_failure(err);
    close(fd);
    close_transport(NULL);
    open_transport(NULL);
}

TEST(a_frame_of_no_kind_ends_the_peer)
{
    expect_refusal(frame_of(0, 1, 0), EPROTO);
    expect_refusal(frame_of(FRAME_CREDIT + 1, 1, 0), EPROTO);
    expect_refusal(frame_of(UINT32_MAX, 1, 0), EPROTO);
}

TEST(numbers_that_cannot_be_end_the_peer)
{
    expect_refusal(frame_of(FRAME_DATA, 1, EAGER_BYTES_MAX + 1), EPROTO);
    expect_refusal(frame_of(FRAME_DATA, 1, UINT64_MAX), EPROTO);
    expect_refusal(frame_of(FRAME_CREDIT, 1, 1), EPROTO);
}

static void note_done(struct transfer *t, int r)
{
    *(int *)t->owner = r;
}

TEST(more_bytes_than_were_asked_for_end_the_peer_and_are_not_written)
{
    static uint8_t memory[200000];
    static const struct iovec part = { memory, 100000 };
    static int r;
    static struct transfer t = { .name = { .sequence = 1 },
                                 .parts = &part,
                                 .nparts = 1,
                                 .bytes = 100000,
                                 .done = note_done,
                                 .owner = &r };
    const struct frame more = frame_of(FRAME_PART, 1, 100001);
    const int fd = become_the_peer();

    assert_int_equal(transport_tcp.recv(s.channel, s.peer, &t), TRANSPORT_PENDING);
    say(fd, &more);
    assert_int_equal(send(fd, memory, 1000, MSG_NOSIGNAL), 1000);
    expect_failure(EPROTO);
    assert_int_equal(r, 0);
    close(fd);
}

TEST(bytes_that_nobody_asked_for_are_thrown_away)
{
    static uint8_t bytes[50000];
    const struct frame part = frame_of(FRAME_PART, 7, sizeof(bytes));
    const struct frame data = frame_of(FRAME_DATA, 8, 3);
    uint8_t memory[3] = { 0 };
    const struct iovec place = { memory, 3 };
    int r = 1;
    struct transfer t = { .name = { .sequence = 8 },
                          .parts = &place,
                          .nparts = 1,
                          .bytes = 3,
                          .done = note_done,
                          .owner = &r };
    const int fd = become_the_peer();

    assert_int_equal(transport_tcp.recv(s.channel, s.peer, &t), TRANSPORT_PENDING);
    say(fd, &part);
    assert_int_equal(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL), (ssize_t)sizeof(bytes));
    say(fd, &data);
    assert_int_equal(send(fd, "abc", 3, MSG_NOSIGNAL), 3);
    for (int waited = 0; r == 1 && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(r, 0);
    assert_memory_equal(memory, "abc", 3);
    close(fd);
}

TEST(what_waits_for_receives_and_sends_has_a_limit)
{
    static uint8_t bytes[EAGER_BYTES_MAX];
    int fd = become_the_peer();

    for (uint64_t i = 1; !s.nfailures && i <= EAGER_WINDOW / EAGER_BYTES_MAX + 1; i++) {
        const struct frame f = frame_of(FRAME_DATA, i, sizeof(bytes));

        if (send(fd, &f, sizeof(f), MSG_NOSIGNAL) < 0 ||
            send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) < 0)
            break;
        turn(1);
    }
    expect_failure(ENOBUFS);
    close(fd);
    close_transport(NULL);
    open_transport(NULL);

    fd = become_the_peer();
    for (uint64_t i = 1; !s.nfailures && i <= ASKS_MAX + 1; i++) {
        const struct frame f = frame_of(FRAME_ASK, i, 1 << 20);

        if (send(fd, &f, sizeof(f), MSG_NOSIGNAL) < 0)
            break;
        if (i % 64 == 0)
            turn(0);
    }
    expect_failure(ENOBUFS);
    close(fd);
}

int main(void)
{
#define WITH_TRANSPORT(f) cmocka_unit_test_setup_teardown(f, open_transport, close_transport)
    const struct CMUnitTest tests[] = {
        WITH_TRANSPORT(strangers_are_sent_away_and_the_peer_is_still_welcome),
        WITH_TRANSPORT(who_says_nothing_makes_room_for_who_comes_later),
        WITH_TRANSPORT(a_greeting_may_come_byte_by_byte),
        WITH_TRANSPORT(a_second_connection_of_the_same_peer_is_sent_away),
        WITH_TRANSPORT(a_frame_of_no_kind_ends_the_peer),
        WITH_TRANSPORT(numbers_that_cannot_be_end_the_peer),
        WITH_TRANSPORT(more_bytes_than_were_asked_for_end_the_peer_and_are_not_written),
        WITH_TRANSPORT(bytes_that_nobody_asked_for_are_thrown_away),
        WITH_TRANSPORT(what_waits_for_receives_and_sends_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
