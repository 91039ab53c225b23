/*
 * Fences and signals at the level of packets, by a daemon without a GPU: what is told, and what of
 * it ends a session.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

struct signals {
    int fd;
    uint64_t bytes;
    _Atomic uint32_t *cells;
};

static void signals_make(struct signals *s, uint64_t bytes)
{
    s->bytes = bytes;
    s->fd = raw_memfd(bytes);
    s->cells = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    assert_ptr_not_equal(s->cells, MAP_FAILED);
}

static void signals_fini(struct signals *s)
{
    munmap((void *)s->cells, s->bytes);
    close(s->fd);
}

static void signals_open(struct signals *s, struct raw *c)
{
    struct request r = { .kind = REQUEST_SIGNALS_OPEN };

    signals_make(s, c->slots * sizeof(uint32_t));
    raw_ask(c, &r, s->fd, ERROR_NONE, NULL);
}

static uint32_t signal_of(const struct signals *s, uint32_t slot)
{
    return atomic_load_explicit(&s->cells[slot], memory_order_acquire);
}

static struct request barrier(uint32_t comm, uint64_t sequence, uint32_t slot, uint32_t signal)
{
    struct request r = { .kind = REQUEST_POST };

    r.post.comm = comm;
    r.post.sequence = sequence;
    r.post.slot = slot;
    r.post.signal = signal;
    r.post.d.kind = COLLECTIVE_BARRIER;
    r.post.d.budget = BUDGET_NONE;
    return r;
}

static void expect_error(struct raw *c, enum error_code code, const char *text)
{
    const struct error *e = raw_expect_completion(c, 0);

    if (e->code != code || !strstr(e->text, text))
        fail_msg("%s: '%s'", error_name(e->code), e->text);
}

#define run_without_gpus(d) daemon_run(d, "--set=gpus=none")

TEST(a_daemon_without_gpus_says_so)
{
    struct request open = { .kind = REQUEST_REGION_OPEN }, fence = { .kind = REQUEST_FENCE_OPEN };
    int fd = raw_memfd(4096);
    struct daemon d;
    struct raw c;

    run_without_gpus(&d);
    raw_open(&c, d.socket);
    assert_false(c.reply.welcome.gpus);
    open.region_open.region = 1;
    open.region_open.bytes = 4096;
    open.region_open.kind = REGION_CUDA_IPC;
    raw_ask(&c, &open, -1, ERROR_INVALID_ARGUMENT, "this daemon has no GPU");
    open.region_open.kind = REGION_CUDA_FD;
    raw_ask(&c, &open, fd, ERROR_INVALID_ARGUMENT, "this daemon has no GPU");
    fence.fence_open.fence = 1;
    raw_ask(&c, &fence, -1, ERROR_INVALID_ARGUMENT, "this daemon has no GPU");
    raw_open_region(&c, 1, fd, 4096); /* nothing of them is left */
    raw_ask_status(&c);
    assert_int_equal(c.reply.status_page.items[0].daemon.regions, 1);
    assert_int_equal(c.reply.status_page.items[0].daemon.region_bytes, 4096);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(a_signal_is_there_before_its_completion)
{
    struct signals a, b;
    struct raw_pair p;
    struct request r;
    struct daemon d;

    run_without_gpus(&d);
    raw_pair_open(&p, d.socket, 60000000); /* one by its ring, one by the socket */
    signals_open(&a, &p.a);
    signals_open(&b, &p.b);
    for (uint32_t n = 1; n <= 100; n++) {
        const uint32_t slot = p.b.slots - n;

        r = barrier(1, n, slot, n);
        raw_send(&p.a, &r, -1);
        r = barrier(1, n, slot, UINT32_MAX - n);
        raw_send(&p.b, &r, -1);
        raw_expect_success(&p.a, 0);
        assert_int_equal(signal_of(&a, slot), n);
        raw_expect_success(&p.b, 0);
        assert_int_equal(signal_of(&b, slot), UINT32_MAX - n);
    }
    r = barrier(1, 101, p.b.slots - 1, 0); /* none */
    raw_send(&p.a, &r, -1);
    raw_send(&p.b, &r, -1);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);
    assert_int_equal(signal_of(&a, p.a.slots - 1), 1);
    assert_int_equal(signal_of(&a, 0), 0);
    signals_fini(&a);
    signals_fini(&b);
    raw_pair_close(&p);
    daemon_stop(&d);
}

TEST(a_post_that_fails_is_signalled_like_any_other)
{
    struct signals a, b;
    struct raw_pair p;
    struct request r;
    struct daemon d;

    run_without_gpus(&d);
    raw_pair_open(&p, d.socket, 60000000);
    signals_open(&a, &p.a);
    signals_open(&b, &p.b);

    r = barrier(1, 1, 3, 11); /* a fence that is not open: both are told */
    r.post.fence = 9;
    raw_send(&p.a, &r, -1);
    r = barrier(1, 1, 3, 12);
    raw_send(&p.b, &r, -1);
    expect_error(&p.a, ERROR_NOT_FOUND, "fence 9 is not open");
    expect_error(&p.b, ERROR_NOT_FOUND, "fence 9 is not open");
    assert_int_equal(signal_of(&a, 3), 11);
    assert_int_equal(signal_of(&b, 3), 12);

    r = barrier(77, 1, 4, 13); /* nobody else would hear of it */
    raw_send(&p.a, &r, -1);
    expect_error(&p.a, ERROR_CLOSED, "communicator 77");
    assert_int_equal(signal_of(&a, 4), 13);

    r = barrier(1, 2, 5, 14); /* what waits when the other is lost */
    raw_send(&p.b, &r, -1);
    raw_close(&p.a);
    expect_error(&p.b, ERROR_RANK_LOST, "rank 0");
    assert_int_equal(signal_of(&b, 5), 14);
    signals_fini(&a);
    signals_fini(&b);
    raw_close(&p.b);
    daemon_stop(&d);
}

static struct request start(uint64_t sequence, uint32_t persistent, uint32_t fence, uint32_t signal)
{
    struct request r = { .kind = REQUEST_START };

    r.start.comm = 1;
    r.start.sequence = sequence;
    r.start.slot = 1;
    r.start.persistent = persistent;
    r.start.fence = fence;
    r.start.signal = signal;
    return r;
}

static uint32_t make_persistent(struct raw *c)
{
    struct request r = raw_sum(1, 1, 0, 1, 16);

    r.post.persistent = true;
    return (uint32_t)raw_send(c, &r, -1);
}

TEST(starts_have_fences_and_signals_too)
{
    int fds[2] = { raw_memfd(4096), raw_memfd(4096) };
    struct signals a;
    struct raw_pair p;
    struct request r;
    uint32_t number;
    struct daemon d;

    run_without_gpus(&d);
    raw_pair_open(&p, d.socket, 60000000);
    signals_open(&a, &p.a);
    raw_open_region(&p.a, 1, fds[0], 4096);
    raw_open_region(&p.b, 1, fds[1], 4096);
    make_persistent(&p.a);
    make_persistent(&p.b);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);
    number = p.b.reply.completion.persistent;

    r = start(2, number, 0, 21);
    raw_send(&p.a, &r, -1);
    r = start(2, number, 0, 0);
    raw_send(&p.b, &r, -1);
    raw_expect_success(&p.a, 0);
    assert_int_equal(signal_of(&a, 1), 21);
    raw_expect_success(&p.b, 0);

    r = start(3, number, 5, 22);
    raw_send(&p.a, &r, -1);
    r = start(3, number, 0, 0);
    raw_send(&p.b, &r, -1);
    expect_error(&p.a, ERROR_NOT_FOUND, "fence 5 is not open");
    assert_int_equal(signal_of(&a, 1), 22);
    expect_error(&p.b, ERROR_NOT_FOUND, "fence 5 is not open");

    raw_barrier(&p.a, 1, 4, 0); /* and the communicator goes on */
    raw_barrier(&p.b, 1, 4, 0);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);
    signals_fini(&a);
    close(fds[0]);
    close(fds[1]);
    raw_pair_close(&p);
    daemon_stop(&d);
}

TEST(memory_for_signals_is_checked)
{
    int loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct request r = { .kind = REQUEST_SIGNALS_OPEN };
    struct signals s;
    struct daemon d;
    struct raw c;

    run_without_gpus(&d);
    raw_open(&c, d.socket);
    assert_int_equal(ftruncate(loose, c.slots * sizeof(uint32_t)), 0);
    raw_ask(&c, &r, loose, ERROR_INVALID_ARGUMENT, "SEAL");
    signals_make(&s, c.slots * sizeof(uint32_t) - 1);
    raw_ask(&c, &r, s.fd, ERROR_INVALID_ARGUMENT, "its memory has");
    signals_fini(&s);
    signals_open(&s, &c);
    signals_fini(&s);
    close(loose);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(holes_in_the_memory_for_signals_harm_nobody)
{
    struct signals a;
    struct raw_pair p;
    struct request r;
    struct daemon d;

    run_without_gpus(&d);
    raw_pair_open(&p, d.socket, 60000000);
    signals_open(&a, &p.a);
    for (uint32_t n = 1; n <= 3; n++) {
        r = barrier(1, n, 0, n);
        raw_send(&p.a, &r, -1);
        assert_int_equal(
            fallocate(a.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)a.bytes), 0);
        raw_barrier(&p.b, 1, n, 0);
        raw_expect_success(&p.a, 0);
        raw_expect_success(&p.b, 0);
        assert_int_equal(signal_of(&a, 0), n);
    }
    signals_fini(&a);
    raw_pair_close(&p);
    daemon_stop(&d);
}

/* ---- what ends a session */

static int memory = -1; /* any sealed memory */

static void open_ipc_with_a_descriptor(struct raw *c)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = 1;
    r.region_open.kind = REGION_CUDA_IPC;
    raw_send(c, &r, memory);
}

static void open_fd_without_a_descriptor(struct raw *c)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = 1;
    r.region_open.kind = REGION_CUDA_FD;
    raw_send(c, &r, -1);
}

static void open_fence_with_a_descriptor(struct raw *c)
{
    struct request r = { .kind = REQUEST_FENCE_OPEN, .fence_open.fence = 1 };

    raw_send(c, &r, memory);
}

static void open_signals_without_a_descriptor(struct raw *c)
{
    struct request r = { .kind = REQUEST_SIGNALS_OPEN };

    raw_send(c, &r, -1);
}

static void open_signals_twice(struct raw *c)
{
    struct request r = { .kind = REQUEST_SIGNALS_OPEN };

    raw_ask(c, &r, memory, ERROR_NONE, NULL);
    raw_send(c, &r, memory);
}

static void signal_without_memory(struct raw *c)
{
    struct request r = barrier(1, 1, 0, 1);

    raw_send(c, &r, -1);
}

static void start_with_a_signal_without_memory(struct raw *c)
{
    struct request r = start(1, 1, 0, 1);

    raw_send(c, &r, -1);
}

static void open_an_unknown_kind(struct raw *c)
{
    /* serial 1; region_open: region 1, kind 9 */
    static const uint8_t bytes[] = { 0x08, 1, 0x1a, 4, 0x08, 1, 0x18, 9 };

    raw_send_bytes(c, bytes, sizeof(bytes), NULL, 0);
}

static void open_a_fence_with_a_short_handle(struct raw *c)
{
    /* serial 1; fence_open: fence 1, gpu and handle of one byte each */
    static const uint8_t bytes[] = { 0x08, 1, 0x92, 0x01, 8, 0x08, 1, 0x12, 1, 0, 0x1a, 1, 0 };

    raw_send_bytes(c, bytes, sizeof(bytes), NULL, 0);
}

TEST(misuse_ends_that_session_and_no_other)
{
    static const struct {
        void (*commit)(struct raw *c);
        const char *answer;
    } offences[] = {
        { open_ipc_with_a_descriptor, "region_open came with 1 file descriptors instead of 0" },
        { open_fd_without_a_descriptor, "region_open came with 0 file descriptors instead of 1" },
        { open_fence_with_a_descriptor, "fence_open came with 1 file descriptors" },
        { open_signals_without_a_descriptor, "signals_open came with 0 file descriptors" },
        { open_signals_twice, "a second signals_open" },
        { signal_without_memory, "post: a signal, but no memory for signals" },
        { start_with_a_signal_without_memory, "start: a signal, but no memory for signals" },
        { open_an_unknown_kind, "memory of kind 9 is not known" },
        { open_a_fence_with_a_short_handle, "fence_open: gpu is not 16 bytes but 1" },
    };
    struct raw offender, witness;
    struct daemon d;

    run_without_gpus(&d);
    raw_open(&witness, d.socket);
    memory = raw_memfd(witness.slots * sizeof(uint32_t));
    for (size_t i = 0; i < ARRAY_SIZE(offences); i++) {
        raw_open(&offender, d.socket);
        offences[i].commit(&offender);
        raw_expect_goodbye(&offender, ERROR_PROTOCOL, offences[i].answer);
        raw_close(&offender);
        raw_wait_for_sessions(&witness, 1);
    }
    close(memory);
    raw_close(&witness);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(a_daemon_without_gpus_says_so),
        daemon_test(a_signal_is_there_before_its_completion),
        daemon_test(a_post_that_fails_is_signalled_like_any_other),
        daemon_test(starts_have_fences_and_signals_too),
        daemon_test(memory_for_signals_is_checked),
        daemon_test(holes_in_the_memory_for_signals_harm_nobody),
        daemon_test(misuse_ends_that_session_and_no_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
