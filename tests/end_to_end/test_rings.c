/* Rings at the level of packets: what goes through them arrives, in order and by whichever way. */
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define MANY 3500u /* replies; more than a ring holds, fewer than may wait */

/* ---- what goes through them */

TEST(a_request_in_the_ring_is_answered_in_the_ring)
{
    struct daemon d;
    struct raw c;

    daemon_run(&d, "--set=spin=300us");
    raw_open(&c, d.socket);
    assert_true(c.reply.welcome.rings);
    assert_int_equal(c.reply.welcome.spin_us, 300);
    raw_open_rings(&c);
    assert_false(c.by_ring); /* the answer to that is the last by the socket */
    for (int i = 0; i < 20; i++) {
        raw_ask_status(&c);
        assert_true(c.by_ring);
        assert_int_equal(c.reply.serial, c.serial);
        test_sleep_ms(i % 3); /* asleep, or not yet */
    }
    raw_close(&c);
    daemon_stop(&d);
}

TEST(requests_by_the_socket_are_served_beside_rings)
{
    struct request status = { .kind = REQUEST_STATUS };
    struct request shut = { .kind = REQUEST_REGION_CLOSE, .region_close.region = 1 };
    struct daemon d;
    struct raw c;
    int fd = raw_memfd(4096);

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    for (int i = 0; i < 20; i++) {
        raw_open_region(&c, 1, fd, 4096);
        raw_send_by_socket(&c, &status, -1);
        raw_expect(&c, REPLY_STATUS_PAGE);
        raw_ask(&c, &shut, -1, ERROR_NONE, NULL);
    }
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(replies_that_find_the_ring_full_come_by_the_socket_and_none_is_lost)
{
    static bool seen[MANY];
    struct request r = { .kind = REQUEST_STATUS };
    uint32_t by_ring = 0;
    struct daemon d;
    struct raw c;
    uint64_t first;

    memset(seen, 0, sizeof(seen));
    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_open_rings(&c);
    first = raw_send(&c, &r, -1);
    for (uint32_t i = 1; i < MANY; i++)
        raw_send(&c, &r, -1);
    for (int i = 0; i < 1000 && atomic_load(&c.requests.state->head) != c.requests.tail; i++)
        test_sleep_ms(10); /* until all are answered */
    for (uint32_t i = 0; i < MANY; i++) {
        raw_expect(&c, REPLY_STATUS_PAGE);
        assert_in_range(c.reply.serial, first, first + MANY - 1);
        assert_false(seen[c.reply.serial - first]);
        seen[c.reply.serial - first] = true;
        by_ring += c.by_ring;
    }
    assert_in_range(by_ring, 1, MANY - 1);
    raw_ask_status(&c);
    assert_true(c.by_ring); /* there is room again */
    raw_close(&c);
    daemon_stop(&d);
}

/* One who sleeps after every arming, and one who looks for a time that is never the same. */
TEST(no_answer_is_lost_between_awake_and_asleep)
{
    uint64_t seed = 7;
    struct daemon d;
    struct raw_pair p;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    raw_open_rings(&p.b);
    for (uint64_t n = 1; n <= 4000; n++) {
        raw_barrier(&p.a, 1, n, 0);
        raw_barrier(&p.b, 1, n, 0);
        ring_disarm(&p.b.replies);
        for (uint64_t looks = unit_random(&seed) % 64; looks; looks--)
            if (!ring_is_empty(&p.b.replies))
                break;
            else
                sched_yield();
        raw_expect_success(&p.a, 0);
        raw_expect_success(&p.b, 0);
        assert_true(p.a.by_ring && p.b.by_ring);
    }
    raw_pair_close(&p);
    daemon_stop(&d);
}

static uint64_t looks_at(const struct raw *c)
{
    return atomic_load(&c->requests.state->looks) >> RING_CPU_BITS;
}

/* An answer that comes long after its request. */
TEST(who_is_answered_is_looked_at_for_a_while)
{
    struct daemon d;
    struct raw_pair p;
    uint64_t before;

    daemon_run(&d, "--set=spin=1ms");
    raw_pair_open(&p, d.socket, 60000000);
    raw_barrier(&p.a, 1, 1, 0);
    for (int i = 0; i < 1000 && !atomic_load(&p.a.requests.state->armed); i++)
        test_sleep_ms(10);
    before = looks_at(&p.a);
    raw_barrier(&p.b, 1, 1, 0);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);
    for (int i = 0; i < 1000 && looks_at(&p.a) < before + 2; i++)
        test_sleep_ms(10);
    assert_true(looks_at(&p.a) >= before + 2); /* the first did not let it fall asleep */
    raw_pair_close(&p);
    daemon_stop(&d);
}

/* ---- order */

static void fill_exchange(struct request *r, uint64_t sequence, const uint64_t counts[2])
{
    *r = (struct request){ .kind = REQUEST_POST };
    r->post.comm = 1;
    r->post.sequence = sequence;
    r->post.slot = (uint32_t)sequence;
    r->post.d.kind = COLLECTIVE_ALL_TO_ALL_V;
    r->post.d.dtype = DTYPE_I32;
    r->post.d.shape = (struct shape){ .naxes = 1, .axes = { counts[0] + counts[1] } };
    r->post.d.budget = BUDGET_NONE;
    r->post.in.region = r->post.out.region = 1;
    r->post.out.offset = 2048;
    r->post.out_rows = 16;
    r->post.counts = counts;
    r->post.ncounts = 2;
}

static void send_expect(struct raw *c, const uint64_t counts[2])
{
    struct request r = { .kind = REQUEST_EXPECT };

    r.expect.comm = 1;
    r.expect.counts = counts;
    r.expect.ncounts = 2;
    raw_send(c, &r, -1);
}

TEST(requests_keep_their_order_in_the_ring_and_around_the_socket)
{
    static const uint64_t counts[2] = { 2, 3 }, received[2][2] = { { 2, 2 }, { 3, 3 } };
    static const uint64_t never[2] = { 9, 9 };
    struct request r;
    struct daemon d;
    struct raw_pair p;
    int fds[2] = { raw_memfd(4096), raw_memfd(4096) };

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    raw_open_region(&p.a, 1, fds[0], 4096);
    raw_open_region(&p.b, 1, fds[1], 4096);
    for (uint64_t n = 1; n <= 4; n += 2) { /* met, then not */
        uint32_t region = 10 + (uint32_t)n;

        send_expect(&p.a, n == 1 ? received[0] : never);
        fill_exchange(&r, n, counts);
        raw_send(&p.a, &r, -1);
        raw_open_region(&p.a, region, fds[0], 4096);
        r = raw_sum(1, n + 1, (uint32_t)n + 1, region, 4);
        raw_send(&p.a, &r, -1);

        send_expect(&p.b, received[1]);
        fill_exchange(&r, n, counts);
        raw_send(&p.b, &r, -1);
        r = raw_sum(1, n + 1, (uint32_t)n + 1, 1, 4);
        raw_send(&p.b, &r, -1);

        for (int rank = 0; rank < 2; rank++) {
            struct raw *c = rank ? &p.b : &p.a;

            assert_int_equal(raw_expect_completion(c, 0)->code,
                             n == 1 ? ERROR_NONE : ERROR_UNEXPECTED_COUNTS);
            assert_int_equal(c->reply.completion.sequence, n);
            raw_expect_success(c, 0);
            assert_int_equal(c->reply.completion.sequence, n + 1);
        }
    }
    close(fds[0]);
    close(fds[1]);
    raw_pair_close(&p);
    daemon_stop(&d);
}

/* ---- what opens none */

static void expect_no_rings(struct raw *c, int fd, const char *why)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };

    raw_ask(c, &r, fd, ERROR_INVALID_ARGUMENT, why);
    assert_false(c->by_ring);
    close(fd);
}

TEST(memory_that_can_hold_no_rings_is_refused_and_the_session_lives)
{
    struct daemon d;
    struct raw c;
    int pipes[2], loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    daemon_run(&d);
    raw_open(&c, d.socket);
    assert_int_equal(ftruncate(loose, sizeof(struct client_rings)), 0);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    expect_no_rings(&c, loose, "SEAL");
    expect_no_rings(&c, raw_memfd(4096), NULL);
    expect_no_rings(&c, raw_memfd(sizeof(struct client_rings) - 4096), NULL);
    expect_no_rings(&c, pipes[1], NULL);
    expect_no_rings(&c, open("/dev/zero", O_RDWR | O_CLOEXEC), NULL);
    expect_no_rings(&c, open("/proc/self/exe", O_RDONLY | O_CLOEXEC), NULL);
    raw_open_rings(&c);
    raw_ask_status(&c);
    assert_true(c.by_ring);
    close(pipes[0]);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(where_rings_are_off_the_welcome_says_so)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };
    struct daemon d;
    struct raw c, witness;
    int fd = raw_memfd(sizeof(struct client_rings));

    daemon_run(&d, "--set=rings=no");
    raw_open(&witness, d.socket);
    raw_open(&c, d.socket);
    assert_false(c.reply.welcome.rings);
    raw_send(&c, &r, fd);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "rings are off");
    raw_close(&c);
    raw_wait_for_sessions(&witness, 1);
    raw_close(&witness);
    close(fd);
    daemon_stop(&d);
}

static void expect_no_more(const char *path)
{
    int pidfd = raw_pidfd(getpid());
    struct raw c;

    raw_connect(&c, path);
    raw_hello(&c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, pidfd);
    raw_expect_done(&c, ERROR_QUOTA, "max_fds");
    raw_close(&c);
    close(pidfd);
}

TEST(the_bells_of_a_uid_are_one_descriptor_of_its_quota)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };
    int fd = raw_memfd(sizeof(struct client_rings));
    struct daemon d;
    struct raw witness, a, b;

    daemon_run(&d, "--set=max_fds=6");
    raw_open(&witness, d.socket);
    raw_open(&a, d.socket);
    raw_open(&b, d.socket);
    raw_ask(&a, &r, fd, ERROR_QUOTA, "max_fds");
    raw_close(&b);
    raw_wait_for_sessions(&witness, 2);
    raw_open_rings(&a);
    expect_no_more(d.socket);
    raw_close(&a);
    raw_wait_for_sessions(&witness, 1);
    raw_open(&a, d.socket); /* the bells' has been given back, once */
    raw_open(&b, d.socket);
    expect_no_more(d.socket);
    raw_close(&a);
    raw_close(&b);
    raw_close(&witness);
    close(fd);
    daemon_stop(&d);
}

TEST(sessions_of_a_uid_share_the_descriptor_of_their_bells)
{
    struct daemon d;
    struct raw a, b;

    daemon_run(&d, "--set=max_fds=5");
    raw_open(&a, d.socket);
    raw_open(&b, d.socket);
    raw_open_rings(&a);
    raw_open_rings(&b);
    raw_close(&a);
    raw_wait_for_sessions(&b, 1);
    raw_open(&a, d.socket); /* it is still held, once */
    expect_no_more(d.socket);
    raw_close(&a);
    raw_close(&b);
    daemon_stop(&d);
}

TEST(clients_that_have_worked_and_wait_cost_nothing)
{
    uint64_t cpu;
    struct daemon d;
    struct raw_pair p;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    for (uint64_t n = 1; n <= 500; n++) {
        raw_barrier(&p.a, 1, n, 0);
        raw_barrier(&p.b, 1, n, 0);
        raw_expect_success(&p.a, 0);
        raw_expect_success(&p.b, 0);
    }
    daemon_settle(&d);
    cpu = daemon_cpu_us(&d);
    test_sleep_ms(500);
    assert_int_equal(daemon_cpu_us(&d), cpu);
    raw_pair_close(&p);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(a_request_in_the_ring_is_answered_in_the_ring),
        daemon_test(requests_by_the_socket_are_served_beside_rings),
        daemon_test(replies_that_find_the_ring_full_come_by_the_socket_and_none_is_lost),
        daemon_test(no_answer_is_lost_between_awake_and_asleep),
        daemon_test(who_is_answered_is_looked_at_for_a_while),
        daemon_test(requests_keep_their_order_in_the_ring_and_around_the_socket),
        daemon_test(memory_that_can_hold_no_rings_is_refused_and_the_session_lives),
        daemon_test(where_rings_are_off_the_welcome_says_so),
        daemon_test(the_bells_of_a_uid_are_one_descriptor_of_its_quota),
        daemon_test(sessions_of_a_uid_share_the_descriptor_of_their_bells),
        daemon_test(clients_that_have_worked_and_wait_cost_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
