/*
 * Rings misused at the level of packets: whoever lies, dies or does not do its part is dealt with,
 * and nobody else harmed.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

/* Until the daemon waits for this client's bell; it will not be rung by itself then. */
static void wait_for_sleep(struct raw *c)
{
    uint64_t end = test_now_ms() + 10000;

    while (!ring_take_bell(&c->requests)) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(1);
    }
}

static void ring_bell(struct raw *c)
{
    struct request bell = { .kind = REQUEST_BELL };

    raw_send_by_socket(c, &bell, -1);
}

/* ---- what ends a session, and no other */

static void open_rings_twice(struct raw *c)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };

    raw_send(c, &r, c->rings_fd);
}

static void open_a_region_through_the_ring(struct raw *c)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = 1;
    r.region_open.bytes = 4096;
    raw_send(c, &r, -1);
}

static void open_rings_through_the_ring(struct raw *c)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };

    raw_send(c, &r, -1);
}

static void say_hello_through_the_ring(struct raw *c)
{
    raw_hello(c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, -1);
}

static void put_garbage(struct raw *c)
{
    assert_int_equal(ring_put(&c->requests, "\xff\xff\xff\xff garbage", 12), 0);
    ring_bell(c);
}

/* As if one more message of `len` bytes were there, in so many bytes. */
static void lie(struct raw *c, uint64_t bytes, uint32_t len)
{
    uint64_t tail = c->requests.tail;

    for (uint32_t i = 0; i < sizeof(len); i++)
        c->rings->requests.bytes[(tail + i) % RING_BYTES] = ((uint8_t *)&len)[i];
    atomic_store(&c->rings->requests.tail, tail + bytes);
    ring_bell(c);
}

static void put_nothing(struct raw *c)
{
    lie(c, 8, 0);
}

static void put_too_much(struct raw *c)
{
    lie(c, RING_BYTES, RING_MESSAGE_MAX + 1);
}

static void put_more_than_is_there(struct raw *c)
{
    lie(c, 16, 100);
}

static void put_a_crooked_tail(struct raw *c)
{
    lie(c, 13, 4);
}

static void put_more_than_a_ring(struct raw *c)
{
    lie(c, RING_BYTES + 8, 4);
}

static void take_back_what_was_taken(struct raw *c)
{
    lie(c, (uint64_t)-8, 4);
}

static void punch_holes(struct raw *c)
{
    assert_int_equal(fallocate(c->rings_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                               sizeof(struct client_rings)),
                     0);
    ring_bell(c);
}

struct offence {
    void (*commit)(struct raw *c);
    const char *answer;
};

/* The offender is told why, its peer at once that it is gone, and all others nothing. */
static void commit(const struct daemon *d, const struct offence *offence)
{
    struct raw_pair p;
    uint64_t start;

    raw_pair_open(&p, d->socket, 60000000);
    raw_barrier(&p.a, 1, 1, 0);
    raw_barrier(&p.b, 1, 1, 0);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);
    raw_barrier(&p.b, 1, 2, 0);
    start = test_now_ms();
    offence->commit(&p.a);
    raw_expect_goodbye(&p.a, ERROR_PROTOCOL, offence->answer);
    assert_int_equal(raw_expect_completion(&p.b, 0)->code, ERROR_RANK_LOST);
    assert_non_null(strstr(p.b.reply.completion.error.text, "rank 0"));
    assert_non_null(strstr(p.b.reply.completion.error.text, "broke the protocol"));
    assert_true(test_now_ms() - start < TOLD_MS);
    raw_ask_status(&p.b);
    raw_pair_close(&p);
}

TEST(misuse_of_a_ring_ends_that_session_and_no_other)
{
    static const char no_message[] = "its ring holds what no message is";
    static const struct offence offences[] = {
        { open_rings_twice, "a second rings_open" },
        { open_a_region_through_the_ring, "region_open came with 0 file descriptors" },
        { open_rings_through_the_ring, "rings_open came with 0 file descriptors" },
        { say_hello_through_the_ring, "a second hello" },
        { put_garbage, NULL },
        { put_nothing, no_message },
        { put_too_much, no_message },
        { put_more_than_is_there, no_message },
        { put_a_crooked_tail, no_message },
        { put_more_than_a_ring, no_message },
        { take_back_what_was_taken, no_message },
        { punch_holes, no_message },
    };
    struct daemon d;
    struct raw_pair bystanders;

    daemon_run(&d);
    raw_pair_open(&bystanders, d.socket, 60000000);
    for (size_t i = 0; i < ARRAY_SIZE(offences); i++) {
        commit(&d, &offences[i]);
        raw_wait_for_sessions(&bystanders.a, 2);
        raw_barrier(&bystanders.a, 1, i + 1, 0);
        raw_barrier(&bystanders.b, 1, i + 1, 0);
        raw_expect_success(&bystanders.a, 0);
        raw_expect_success(&bystanders.b, 0);
    }
    raw_pair_close(&bystanders);
    daemon_stop(&d);
}

TEST(a_bell_needs_rings)
{
    struct daemon d;
    struct raw c, witness;

    daemon_run(&d);
    raw_open(&witness, d.socket);
    raw_open(&c, d.socket);
    ring_bell(&c);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "a bell without rings");
    raw_wait_for_sessions(&witness, 1);
    raw_close(&c);
    raw_close(&witness);
    daemon_stop(&d);
}

/* Before anything was put they read as what is there already: zeros. */
TEST(holes_in_an_unused_ring_change_nothing)
{
    struct request r = { .kind = REQUEST_STATUS };
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    punch_holes(&c);
    raw_ask_status(&c);
    raw_send_by_socket(&c, &r, -1);
    raw_expect(&c, REPLY_STATUS_PAGE);
    raw_close(&c);
    daemon_stop(&d);
}

/* Numbers of the client that change all the time: bells for nothing, replies in the wrong place. */
TEST(lies_about_replies_harm_nobody_else)
{
    struct request r = { .kind = REQUEST_STATUS };
    uint64_t seed = 5;
    struct daemon d;
    struct raw c, other;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open(&other, d.socket);
    raw_open_rings(&c);
    for (int i = 0; i < 1000; i++) {
        atomic_store(&c.rings->replies.head, unit_random(&seed) >> (i % 64));
        atomic_store(&c.rings->replies.armed, unit_random(&seed));
        raw_send(&c, &r, -1);
        if (i % 100 == 0)
            raw_ask_status(&other);
    }
    raw_ask_status(&other);
    raw_close(&c);
    raw_wait_for_sessions(&other, 1);
    raw_close(&other);
    daemon_stop(&d);
}

/* ---- death */

#define MANY 2000u

static struct request barrier(uint64_t sequence, uint32_t slot)
{
    struct request r = { .kind = REQUEST_POST };

    r.post.comm = 1;
    r.post.sequence = sequence;
    r.post.slot = slot;
    r.post.d.kind = COLLECTIVE_BARRIER;
    r.post.d.budget = BUDGET_NONE;
    return r;
}

static int ready[2]; /* a pipe: the member has put what it wanted to */

static void be_ready_and_wait(void)
{
    assert_int_equal(write(ready[1], "", 1), 1);
    for (;;)
        pause();
}

static void put_one_and_wait(struct raw *c)
{
    struct request r = barrier(1, 0);

    raw_open_rings(c);
    wait_for_sleep(c);
    raw_put(c, &r);
    be_ready_and_wait();
}

static void put_many_and_wait(struct raw *c)
{
    raw_open_rings(c);
    wait_for_sleep(c);
    for (uint32_t n = 1; n <= MANY; n++) {
        struct request r = barrier(n, n);

        raw_put(c, &r);
    }
    be_ready_and_wait();
}

/*
 * What it put before it died still counts, although it never rang; then it is lost. The other member
 * has no rings: a bell of its own would wake those of the one that it waits for.
 */
static void die_after(void (*then)(struct raw *c), uint32_t nputs)
{
    struct daemon d;
    struct raw c;
    char id[CODEC_ID_MAX + 1], byte;
    uint64_t start;
    pid_t pid;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_new_id(&c, id);
    raw_join(&c, 1, id, 0, 2);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    pid = raw_fork_member(d.socket, id, then);
    raw_expect_done(&c, ERROR_NONE, NULL);
    for (uint32_t n = 1; n <= nputs + 1; n++)
        raw_barrier(&c, 1, n, n);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    daemon_settle(&d);

    start = test_now_ms();
    kill(pid, SIGKILL);
    for (uint32_t n = 1; n <= nputs; n++)
        raw_expect_success(&c, 0);
    assert_int_equal(raw_expect_completion(&c, 0)->code, ERROR_RANK_LOST);
    assert_int_equal(c.reply.completion.sequence, nputs + 1);
    assert_non_null(strstr(c.reply.completion.error.text, "died"));
    assert_true(test_now_ms() - start < TOLD_MS);
    waitpid(pid, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(what_a_client_put_before_it_died_still_counts)
{
    die_after(put_one_and_wait, 1);
}

TEST(however_much_it_put)
{
    die_after(put_many_and_wait, MANY);
}

/* ---- those who do not do their part */

TEST(a_client_that_takes_no_replies_is_let_go)
{
    struct request r = { .kind = REQUEST_STATUS, .serial = 1 };
    static uint8_t bytes[PACKET_BYTES_MAX];
    uint64_t end = test_now_ms() + 20000;
    struct daemon d;
    struct raw slow, other;
    struct pollfd over;
    int len;

    daemon_run(&d, "--set=max_in_flight=256", "--set=log_level=info");
    raw_open(&slow, d.socket);
    raw_open(&other, d.socket);
    raw_open_rings(&slow);
    len = codec_encode_request(&r, bytes);
    over = (struct pollfd){ .fd = slow.socket, .events = POLLRDHUP };
    while (poll(&over, 1, 0) == 0 && test_now_ms() < end) {
        if (ring_put(&slow.requests, bytes, (uint32_t)len) == RING_FULL)
            test_sleep_ms(1);
        if (ring_take_bell(&slow.requests))
            ring_bell(&slow);
    }
    assert_true(over.revents & POLLRDHUP);
    raw_wait_for_sessions(&other, 1);
    assert_true(daemon_logged(&d, "the client does not read them"));
    raw_close(&slow);
    raw_close(&other);
    daemon_stop(&d);
}

#define TIMEOUT_MS 3000u
#define IDLE_MS    500u

TEST(a_member_that_never_rings_is_missing_on_schedule_and_costs_nothing)
{
    struct request r = barrier(1, 0);
    uint64_t start, cpu;
    struct daemon d;
    struct raw_pair p;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, TIMEOUT_MS * 1000);
    start = test_now_ms();
    raw_barrier(&p.b, 1, 1, 0);
    wait_for_sleep(&p.a);
    raw_put(&p.a, &r);
    daemon_settle(&d);
    cpu = daemon_cpu_us(&d);
    test_sleep_ms(IDLE_MS);
    cpu = daemon_cpu_us(&d) - cpu;
    if (test_now_ms() - start < TIMEOUT_MS)
        assert_int_equal(cpu, 0);

    assert_int_equal(raw_expect_completion(&p.b, 0)->code, ERROR_TIMEOUT);
    assert_in_range(test_now_ms() - start, TIMEOUT_MS, TIMEOUT_MS + TOLD_MS);
    assert_non_null(strstr(p.b.reply.completion.error.text, "rank 0 did not"));
    ring_bell(&p.a); /* late, and answered all the same */
    assert_int_not_equal(raw_expect_completion(&p.a, r.serial)->code, ERROR_NONE);
    raw_pair_close(&p);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(misuse_of_a_ring_ends_that_session_and_no_other),
        daemon_test(a_bell_needs_rings),
        daemon_test(holes_in_an_unused_ring_change_nothing),
        daemon_test(lies_about_replies_harm_nobody_else),
        daemon_test(what_a_client_put_before_it_died_still_counts),
        daemon_test(however_much_it_put),
        daemon_test(a_client_that_takes_no_replies_is_let_go),
        daemon_test(a_member_that_never_rings_is_missing_on_schedule_and_costs_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
