/* Memory and fences of GPUs at the level of packets: who holds what, and for how long. */
#include <unistd.h>

#include "tests/end_to_end/daemon.h"
#include "tests/end_to_end/gpu_row.h"
#include "tests/end_to_end/raw.h"
#include "tests/unit/unit.h"

#define BYTES 65536u /* of an allocation */

static struct request region(uint32_t number, uint64_t allocation)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = number;
    r.region_open.bytes = BYTES;
    r.region_open.kind = REGION_CUDA_IPC;
    gpu_row_uuid(r.region_open.gpu);
    gpu_row_handle(allocation, BYTES, r.region_open.ipc);
    return r;
}

static void open_region(struct raw *c, uint32_t number, uint64_t allocation)
{
    struct request r = region(number, allocation);

    raw_ask(c, &r, -1, ERROR_NONE, NULL);
}

static void close_region(struct raw *c, uint32_t number)
{
    struct request r = { .kind = REQUEST_REGION_CLOSE, .region_close.region = number };

    raw_ask(c, &r, -1, ERROR_NONE, NULL);
}

static const struct status_item *status_item(struct raw *c, enum status_kind kind)
{
    raw_ask_status(c);
    for (uint32_t i = 0; i < c->reply.status_page.nitems; i++)
        if (c->reply.status_page.items[i].kind == kind)
            return &c->reply.status_page.items[i];
    fail_msg("no item of kind %d", kind);
    return NULL;
}

/* Allocations that the GPU has mapped, and that all sessions together are charged for. */
static void expect_held(struct raw *c, uint32_t mappings, uint32_t charged)
{
    assert_int_equal(status_item(c, STATUS_GPU)->gpu.mappings, mappings);
    assert_int_equal(status_item(c, STATUS_DAEMON)->daemon.region_bytes, charged * BYTES);
}

static uint32_t make_persistent(struct raw_pair *p, uint32_t a, uint32_t b)
{
    struct request mine = raw_sum(1, 1, 0, a, BYTES / 4), theirs = raw_sum(1, 1, 0, b, BYTES / 4);

    mine.post.persistent = theirs.post.persistent = true;
    raw_send(&p->a, &mine, -1);
    raw_send(&p->b, &theirs, -1);
    raw_expect_success(&p->a, 0);
    raw_expect_success(&p->b, 0);
    return p->b.reply.completion.persistent;
}

static void free_persistent(struct raw *c, uint32_t number)
{
    struct request r = { .kind = REQUEST_PERSISTENT_CLOSE, .persistent_close = { 1, number } };

    raw_ask(c, &r, -1, ERROR_NONE, NULL);
}

TEST(a_daemon_tells_of_its_gpus)
{
    const struct status_item *i;
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    assert_true(c.reply.welcome.gpus);
    open_region(&c, 1, 1);
    i = status_item(&c, STATUS_GPU);
    assert_string_equal(i->gpu.uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_string_equal(i->gpu.name, GPU_ROW_NAME);
    assert_int_equal(i->gpu.mappings, 1);
    assert_int_equal(i->gpu.mapped_bytes, BYTES);
    assert_false(i->gpu.failed);
    assert_int_equal(i->gpu.failures, 3);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(memory_comes_by_handle_or_by_descriptor)
{
    int fd = raw_memfd(BYTES);
    struct request r = region(1, 1);
    struct daemon d;
    struct raw c;

    daemon_run(&d);
    raw_open(&c, d.socket);
    raw_ask(&c, &r, -1, ERROR_NONE, NULL);
    r.region_open.region = 2;
    r.region_open.kind = REGION_CUDA_FD;
    raw_ask(&c, &r, fd, ERROR_NONE, NULL);
    raw_open_region(&c, 3, fd, BYTES); /* the same file as host memory is another mapping */
    expect_held(&c, 2, 3);
    raw_open_rings(&c); /* a handle needs no socket */
    open_region(&c, 4, 4);
    expect_held(&c, 3, 4);
    close(fd);
    raw_close(&c);
    daemon_stop(&d);
}

TEST(an_allocation_is_mapped_once_and_charged_for_every_region)
{
    struct daemon d;
    struct raw a, b;

    daemon_run(&d);
    raw_open(&a, d.socket);
    raw_open(&b, d.socket);
    open_region(&a, 1, 7);
    open_region(&a, 2, 7);
    open_region(&b, 1, 7);
    expect_held(&b, 1, 3);
    close_region(&a, 1);
    expect_held(&b, 1, 2);
    close_region(&a, 2); /* b's hold on the mapping is not a's */
    expect_held(&b, 1, 1);
    open_region(&a, 1, 7);
    expect_held(&b, 1, 2);
    raw_close(&a);
    raw_wait_for_sessions(&b, 1);
    expect_held(&b, 1, 1);
    close_region(&b, 1);
    expect_held(&b, 0, 0);
    raw_close(&b);
    daemon_stop(&d);
}

TEST(a_region_that_is_refused_leaves_nothing)
{
    struct request r = region(1, 1);
    struct daemon d;
    struct raw c;

    daemon_run(&d, "--set=max_gpu_bytes=128KiB", "--set=max_region_bytes=1");
    raw_open(&c, d.socket);
    r.region_open.bytes = BYTES - 1;
    raw_ask(&c, &r, -1, ERROR_INVALID_ARGUMENT, "65535 bytes, but its allocation has 65536");
    r = region(1, 1);
    r.region_open.gpu[0] ^= 1;
    raw_ask(&c, &r, -1, ERROR_INVALID_ARGUMENT, "no such GPU");
    expect_held(&c, 0, 0);
    open_region(&c, 1, 1);
    open_region(&c, 2, 2);
    r = region(3, 3);
    raw_ask(&c, &r, -1, ERROR_QUOTA, "max_gpu_bytes");
    r = region(2, 3);
    raw_send(&c, &r, -1);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "region_open: number 2 is in use");
    raw_close(&c);
    daemon_stop(&d);
}

TEST(memory_is_charged_as_long_as_its_sessions_operations_hold_it)
{
    struct request r, cancel = { .kind = REQUEST_ABORT, .abort = { 1, "enough" } };
    struct raw_pair p;
    struct daemon d;

    daemon_run(&d, "--set=max_gpu_bytes=128KiB");
    raw_pair_open(&p, d.socket, 60000000);
    open_region(&p.a, 1, 7);
    open_region(&p.b, 1, 7);
    r = raw_sum(1, 1, 0, 1, BYTES / 4);
    raw_send(&p.a, &r, -1);
    close_region(&p.a, 1); /* its operation waits for b, with b's regions in the way */
    close_region(&p.b, 1);
    expect_held(&p.a, 1, 1);
    open_region(&p.b, 1, 8);
    r = region(2, 9);
    raw_ask(&p.b, &r, -1, ERROR_QUOTA, "max_gpu_bytes");

    raw_send(&p.b, &cancel, -1);
    assert_int_equal(raw_expect_completion(&p.a, 0)->code, ERROR_ABORTED);
    raw_expect_done(&p.b, ERROR_NONE, NULL);
    expect_held(&p.a, 1, 1);
    raw_ask(&p.b, &r, -1, ERROR_NONE, NULL);
    raw_pair_close(&p);
    daemon_stop(&d);
}

TEST(persistent_operations_hold_until_everybody_has_freed_them)
{
    struct raw_pair p;
    struct daemon d;
    uint32_t number;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    open_region(&p.a, 1, 7);
    open_region(&p.b, 1, 8);
    number = make_persistent(&p, 1, 1);
    assert_true(number);
    close_region(&p.a, 1);
    close_region(&p.b, 1);
    expect_held(&p.a, 2, 2);
    free_persistent(&p.a, number);
    expect_held(&p.a, 2, 2);
    free_persistent(&p.b, number);
    expect_held(&p.a, 0, 0);
    raw_pair_close(&p);
    daemon_stop(&d);
}

TEST(a_session_that_is_over_is_not_charged_for_what_others_still_hold)
{
    struct raw_pair p;
    struct daemon d;
    uint32_t number;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    open_region(&p.a, 1, 7);
    open_region(&p.b, 1, 8);
    number = make_persistent(&p, 1, 1);
    raw_close(&p.a);
    raw_wait_for_sessions(&p.b, 1);
    expect_held(&p.b, 2, 1);
    close_region(&p.b, 1);
    expect_held(&p.b, 2, 1);
    free_persistent(&p.b, number);
    expect_held(&p.b, 0, 0);
    raw_close(&p.b);
    daemon_stop(&d);
}

/* ---- fences */

static struct request fence(uint32_t number)
{
    struct request r = { .kind = REQUEST_FENCE_OPEN, .fence_open.fence = number };

    gpu_row_uuid(r.fence_open.gpu);
    return r;
}

static void close_fence(struct raw *c, uint32_t number, enum error_code code)
{
    struct request r = { .kind = REQUEST_FENCE_CLOSE, .fence_close.fence = number };

    raw_ask(c, &r, -1, code, code ? "is not open" : NULL);
}

TEST(fences_are_few_and_go_with_their_session)
{
    struct request r;
    struct daemon d;
    struct raw c, witness;
    unsigned before;

    daemon_run(&d, "--set=max_in_flight=2");
    raw_open(&witness, d.socket);
    raw_wait_for_sessions(&witness, 1);
    before = daemon_fds(&d);
    raw_open(&c, d.socket);
    r = fence(1);
    raw_ask(&c, &r, -1, ERROR_NONE, NULL);
    r = fence(UINT32_MAX);
    raw_ask(&c, &r, -1, ERROR_NONE, NULL);
    r = fence(3);
    raw_ask(&c, &r, -1, ERROR_QUOTA, "2 fences are open");
    close_fence(&c, 3, ERROR_NOT_FOUND);
    close_fence(&c, 1, ERROR_NONE);
    close_fence(&c, 1, ERROR_NOT_FOUND);
    raw_ask(&c, &r, -1, ERROR_NONE, NULL);
    r = fence(1);
    close_fence(&c, 3, ERROR_NONE);
    r.fence_open.gpu[3] ^= 1;
    raw_ask(&c, &r, -1, ERROR_INVALID_ARGUMENT, "no such GPU");
    r = fence(UINT32_MAX);
    raw_send(&c, &r, -1);
    raw_expect_goodbye(&c, ERROR_PROTOCOL, "fence_open: number 4294967295 is in use");
    raw_wait_for_sessions(&witness, 1);
    assert_int_equal(daemon_fds(&d), before);
    raw_close(&c);
    raw_close(&witness);
    daemon_stop(&d);
}

TEST(a_fence_is_the_sessions_that_opened_it)
{
    struct request r = fence(5), post = { .kind = REQUEST_POST };
    struct raw_pair p;
    struct daemon d;

    daemon_run(&d);
    raw_pair_open(&p, d.socket, 60000000);
    raw_ask(&p.a, &r, -1, ERROR_NONE, NULL);
    post.post = (struct request_post){ .comm = 1, .sequence = 1, .fence = 5 };
    post.post.d.kind = COLLECTIVE_BARRIER;
    post.post.d.budget = BUDGET_NONE;
    raw_send(&p.a, &post, -1);
    raw_barrier(&p.b, 1, 1, 0);
    raw_expect_success(&p.a, 0);
    raw_expect_success(&p.b, 0);

    post.post.sequence = 2;
    raw_barrier(&p.a, 1, 2, 0);
    raw_send(&p.b, &post, -1);
    assert_int_equal(raw_expect_completion(&p.a, 0)->code, ERROR_NOT_FOUND);
    assert_non_null(strstr(p.a.reply.completion.error.text, "fence 5 is not open"));
    assert_int_equal(raw_expect_completion(&p.b, 0)->code, ERROR_NOT_FOUND);
    raw_pair_close(&p);
    daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        daemon_test(a_daemon_tells_of_its_gpus),
        daemon_test(memory_comes_by_handle_or_by_descriptor),
        daemon_test(an_allocation_is_mapped_once_and_charged_for_every_region),
        daemon_test(a_region_that_is_refused_leaves_nothing),
        daemon_test(memory_is_charged_as_long_as_its_sessions_operations_hold_it),
        daemon_test(persistent_operations_hold_until_everybody_has_freed_them),
        daemon_test(a_session_that_is_over_is_not_charged_for_what_others_still_hold),
        daemon_test(fences_are_few_and_go_with_their_session),
        daemon_test(a_fence_is_the_sessions_that_opened_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
