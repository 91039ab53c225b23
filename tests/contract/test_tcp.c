/* The row "tcp" against strangers at its port, and against a peer that says what no peer says. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

TEST(who_comes_when_there_are_no_descriptors_is_sent_away)
{
    const int fd = call(), lowest = dup(fd);
    struct rlimit limit, none;

    assert_int_equal(close(lowest), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(answer(fd), 0);
    assert_int_equal(tcp_transport(s.t)->nstrangers, 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    close(fd);
    close(become_the_peer());
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

static void say_bytes(int fd, const struct frame *f, const void *bytes, enum verdict verdict)
{
    const uint8_t v = (uint8_t)verdict;

    say(fd, f);
    assert_int_equal(send(fd, bytes, f->bytes, MSG_NOSIGNAL), (ssize_t)f->bytes);
    assert_int_equal(send(fd, &v, 1, MSG_NOSIGNAL), 1);
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
    expect_refusal(frame_of(FRAME_PART, 1, PART_BYTES_MAX + 1), EPROTO);
    expect_refusal(frame_of(FRAME_PART, 1, UINT64_MAX), EPROTO);
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
    say_bytes(fd, &part, bytes, VERDICT_WHOLE);
    say_bytes(fd, &data, "abc", VERDICT_WHOLE);
    for (int waited = 0; r == 1 && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(r, 0);
    assert_memory_equal(memory, "abc", 3);
    close(fd);
}

/* ---- what a send leaves behind that has not gone well */

TEST(a_message_that_is_void_is_no_message)
{
    const struct frame data = frame_of(FRAME_DATA, 1, 3), early = frame_of(FRAME_DATA, 2, 3),
                       last = frame_of(FRAME_DATA, 3, 3);
    uint8_t memory[3][3] = { 0 };
    struct iovec place[3];
    struct transfer t[3];
    int r[3] = { 1, 1, 1 };
    const int fd = become_the_peer();

    for (unsigned i = 0; i < 3; i++) {
        place[i] = (struct iovec){ memory[i], 3 };
        t[i] = (struct transfer){ .name = { .sequence = i + 1 },
                                  .parts = &place[i],
                                  .nparts = 1,
                                  .bytes = 3,
                                  .done = note_done,
                                  .owner = &r[i] };
    }
    assert_int_equal(transport_tcp.recv(s.channel, s.peer, &t[0]), TRANSPORT_PENDING);
    assert_int_equal(transport_tcp.recv(s.channel, s.peer, &t[2]), TRANSPORT_PENDING);
    say_bytes(fd, &data, "abc", VERDICT_VOID);
    say_bytes(fd, &early, "abc", VERDICT_VOID);
    say_bytes(fd, &last, "abc", VERDICT_WHOLE);
    for (int waited = 0; r[2] == 1 && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(r[2], 0);
    assert_int_equal(transport_tcp.recv(s.channel, s.peer, &t[1]), TRANSPORT_PENDING);
    assert_int_equal(r[0], 1);
    transport_tcp.cancel(&t[0]);
    transport_tcp.cancel(&t[1]);
    assert_int_equal(r[0], -ECANCELED);
    assert_int_equal(r[1], -ECANCELED);
    assert_int_equal(tcp_peer(s.peer)->waiting, 0);
    close(fd);
}

/* So that the transport's end may send. */
static void tell_card(void)
{
    uint8_t card[TOKEN_BYTES + sizeof(struct sockaddr_storage)];
    struct error e = { 0 };

    memcpy(card, own_token, TOKEN_BYTES);
    memcpy(card + TOKEN_BYTES, &tcp_transport(s.t)->address, sizeof(struct sockaddr_storage));
    assert_int_equal(transport_tcp.peer_connect(s.peer, card, sizeof(card), &e), 0);
}

static void hear(int fd, void *bytes, size_t len)
{
    size_t have = 0;

    for (int waited = 0; have < len && waited < PATIENCE_MS; waited++) {
        const ssize_t n = recv(fd, (uint8_t *)bytes + have, len - have, MSG_DONTWAIT);

        if (n > 0)
            have += (size_t)n;
        else
            turn(1);
    }
    assert_int_equal(have, len);
}

TEST(what_a_cancelled_send_still_owes_is_void)
{
    enum { BYTES = 64 << 20 };
    static uint8_t body[PART_BYTES_MAX + VERDICT_BYTES];
    uint8_t *memory = malloc(BYTES);
    const struct iovec part = { memory, BYTES };
    int r = 1;
    struct transfer t = { .name = { .sequence = 1 },
                          .parts = &part,
                          .nparts = 1,
                          .bytes = BYTES,
                          .done = note_done,
                          .owner = &r };
    const struct frame ask = frame_of(FRAME_ASK, 1, BYTES);
    const int fd = become_the_peer();
    bool whole = true;
    struct frame f;

    assert_non_null(memory);
    memset(memory, 0xaa, BYTES);
    tell_card();
    say(fd, &ask);
    assert_int_equal(transport_tcp.send(s.channel, s.peer, &t), TRANSPORT_PENDING);
    for (int waited = 0; !tcp_peer(s.peer)->wants_out && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(r, 1);
    transport_tcp.cancel(&t);
    assert_int_equal(r, -ECANCELED);
    free(memory);

    while (whole) {
        hear(fd, &f, sizeof(f));
        if (f.kind != FRAME_PART)
            continue;
        assert_in_range(f.bytes, 1, PART_BYTES_MAX);
        hear(fd, body, f.bytes + VERDICT_BYTES);
        whole = body[f.bytes] == VERDICT_WHOLE;
        if (whole)
            assert_null(memchr(body, 0, f.bytes));
    }
    assert_false(tcp_peer(s.peer)->out.busy);
    close(fd);
}

TEST(memory_that_is_gone_ends_its_send_alone_and_leaves_it_void)
{
    enum { BYTES = 64 << 10 };
    static uint8_t body[BYTES + VERDICT_BYTES];
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const struct iovec part = { memory, BYTES };
    int r = 1;
    struct transfer t = { .name = { .sequence = 1 },
                          .parts = &part,
                          .nparts = 1,
                          .bytes = BYTES,
                          .done = note_done,
                          .owner = &r };
    const struct frame ask = frame_of(FRAME_ASK, 1, BYTES);
    const int fd = become_the_peer();
    struct frame f;

    assert_ptr_not_equal(memory, MAP_FAILED);
    assert_int_equal(mprotect(memory + BYTES / 2, BYTES / 2, PROT_NONE), 0);
    tell_card();
    say(fd, &ask);
    assert_int_equal(transport_tcp.send(s.channel, s.peer, &t), TRANSPORT_PENDING);
    do
        hear(fd, &f, sizeof(f));
    while (f.kind != FRAME_PART);
    assert_int_equal(f.bytes, BYTES);
    hear(fd, body, sizeof(body));
    assert_int_equal(body[BYTES], VERDICT_VOID);
    assert_int_equal(r, -EFAULT);
    assert_int_equal(s.nfailures, 0);
    munmap(memory, BYTES);
    close(fd);
}

/* ---- limits */

TEST(what_waits_for_receives_and_sends_has_a_limit)
{
    static uint8_t bytes[EAGER_BYTES_MAX];
    int fd = become_the_peer();

    for (uint64_t i = 1; !s.nfailures && i <= EAGER_WINDOW / EAGER_BYTES_MAX + 1; i++) {
        const struct frame f = frame_of(FRAME_DATA, i, sizeof(bytes));

        if (send(fd, &f, sizeof(f), MSG_NOSIGNAL) < 0 ||
            send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) < 0 ||
            send(fd, &(uint8_t){ VERDICT_WHOLE }, 1, MSG_NOSIGNAL) < 0)
            break;
        turn(1);
    }
    expect_failure(ENOBUFS);
    close(fd);
}

/* Says so many frames of a kind, each of a name of its own, and reads nothing. */
static void flood(int fd, struct frame f, uint64_t n)
{
    struct frame some[64];

    while (!s.nfailures && f.sequence <= n) {
        for (unsigned i = 0; i < ARRAY_SIZE(some); i++, f.sequence++)
            some[i] = f;
        if (send(fd, some, sizeof(some), MSG_NOSIGNAL) < 0)
            return;
        turn(0);
    }
}

TEST(asks_that_nobody_answers_have_a_limit)
{
    const int fd = become_the_peer();

    flood(fd, frame_of(FRAME_ASK, 1, 1 << 20), ASKS_MAX);
    assert_int_equal(s.nfailures, 0);
    flood(fd, frame_of(FRAME_ASK, ASKS_MAX + 1, 1 << 20), ASKS_MAX + 64);
    expect_failure(ENOBUFS);
    close(fd);
}

TEST(asks_that_are_taken_back_count_no_more)
{
    const int fd = become_the_peer();

    for (uint64_t i = 0; i < 3; i++) {
        flood(fd, frame_of(FRAME_ASK, 1, 1 << 20), ASKS_MAX);
        flood(fd, frame_of(FRAME_UNASK, 1, 0), ASKS_MAX);
    }
    for (int waited = 0; tcp_peer(s.peer)->nasks && waited < PATIENCE_MS; waited++)
        turn(1);
    assert_int_equal(tcp_peer(s.peer)->nasks, 0);
    assert_int_equal(s.nfailures, 0);
    close(fd);
}

TEST(offers_that_nobody_takes_have_a_limit)
{
    const int fd = become_the_peer();

    flood(fd, frame_of(FRAME_OFFER, 1, 1 << 20), OFFERS_MAX);
    flood(fd, frame_of(FRAME_WITHDRAW, 1, 0), OFFERS_MAX);
    flood(fd, frame_of(FRAME_OFFER, 1, 1 << 20), OFFERS_MAX);
    assert_int_equal(s.nfailures, 0);
    flood(fd, frame_of(FRAME_OFFER, OFFERS_MAX + 1, 1 << 20), OFFERS_MAX + 64);
    expect_failure(ENOBUFS);
    close(fd);
}

TEST(who_does_not_read_what_he_makes_us_say_is_left)
{
    const int fd = become_the_peer();
    struct frame f = frame_of(FRAME_OFFER, 1, 1 << 20);

    f.key[0] ^= 1; /* of no channel: each is answered */
    flood(fd, f, 1u << 24);
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
        WITH_TRANSPORT(who_comes_when_there_are_no_descriptors_is_sent_away),
        WITH_TRANSPORT(a_frame_of_no_kind_ends_the_peer),
        WITH_TRANSPORT(numbers_that_cannot_be_end_the_peer),
        WITH_TRANSPORT(more_bytes_than_were_asked_for_end_the_peer_and_are_not_written),
        WITH_TRANSPORT(bytes_that_nobody_asked_for_are_thrown_away),
        WITH_TRANSPORT(a_message_that_is_void_is_no_message),
        WITH_TRANSPORT(what_a_cancelled_send_still_owes_is_void),
        WITH_TRANSPORT(memory_that_is_gone_ends_its_send_alone_and_leaves_it_void),
        WITH_TRANSPORT(what_waits_for_receives_and_sends_has_a_limit),
        WITH_TRANSPORT(asks_that_nobody_answers_have_a_limit),
        WITH_TRANSPORT(asks_that_are_taken_back_count_no_more),
        WITH_TRANSPORT(offers_that_nobody_takes_have_a_limit),
        WITH_TRANSPORT(who_does_not_read_what_he_makes_us_say_is_left),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
