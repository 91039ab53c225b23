/* The row `cuda`: GPUs that fail, and clients' events. */
#include "tests/contract/cuda_world.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Two buffers of a megabyte on one GPU. */
struct pair {
    struct mapping *m;
    void *src, *dst;
    struct task copy;
};

static struct pair *pair_init(struct pair *p, unsigned gpu)
{
    p->m = gpu_memory(gpu, 2 * MIB);
    p->src = p->m->base;
    p->dst = (uint8_t *)p->m->base + MIB;
    memset(p->src, 0x11 + (int)gpu, MIB);
    p->copy = copy_of(&p->src, &p->dst, 1, MIB);
    p->copy.mappings = &p->m;
    p->copy.nmappings = 1;
    return p;
}

static void assert_works(unsigned gpu)
{
    struct pair p;

    pair_init(&p, gpu);
    assert_int_equal(run(&p.copy), 0);
    assert_memory_equal(p.src, p.dst, MIB);
    mapping_unref(p.m);
}

static struct device_gpu state_of(unsigned gpu)
{
    struct device_gpu state;

    assert_true(world->ops->gpu(world, gpu, &state));
    return state;
}

static void assert_explained(unsigned gpu, const char *says)
{
    char name[CUDA_UUID_TEXT];
    struct text t = { 0 };

    cuda_uuid_text(world_uuids[gpu], name);
    world->ops->explain(world, &t);
    if (!strstr(t.s, name) || !strstr(t.s, says))
        fail_msg("\"%s\" does not say \"%s\" of %s", t.s, says, name);
}

static void poison(unsigned gpu, CUresult code)
{
    fake_cuda_fail("poison", gpu, code);
}

/* ---- Failures ---- */

TEST(a_gpu_that_fails_ends_its_tasks_and_is_made_anew)
{
    struct pair p;
    void *dst[2];
    struct task t;

    pair_init(&p, 0);
    dst[0] = (uint8_t *)p.src + 1000;
    dst[1] = p.dst;
    t = copy_of(&p.src, dst, 2, 1000);
    t.mappings = &p.m;
    t.nmappings = 1;
    fake_cuda_fail("kernel", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(run(&t), -EIO);
    assert_explained(0, "failed with CUDA_ERROR_ILLEGAL_ADDRESS; its context was rebuilt; register "
                        "its memory again");
    assert_true(p.m->fault);
    assert_int_equal(state_of(0).failures, 1);
    assert_false(state_of(0).failed);
    assert_int_equal(state_of(1).failures, 0);

    assert_int_equal(run(&t), -EIO); /* lost for good */
    assert_works(0);
    mapping_unref(p.m);
    assert_int_equal(state_of(0).mappings, 0);
}

TEST(memory_of_both_kinds_that_was_lost_is_let_go_of_in_silence)
{
    const struct memory_handle h = client_memory(0, MIB);
    struct mapping *before, *again;
    struct pair p;

    pair_init(&p, 0);
    assert_int_equal(world->ops->import(world, &h, &before, NULL), 0);
    fake_cuda_fail("cuMemcpyAsync", 1, CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(run(&p.copy), -EIO);
    assert_true(before->fault && p.m->fault);
    assert_int_equal(world->ops->import(world, &h, &again, NULL), 0);
    assert_ptr_not_equal(before, again);
    assert_true(before->ino != again->ino);
    mapping_unref(before);
    mapping_unref(p.m);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 1);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_MAPPINGS), 0);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_RESERVATIONS), 0);
    mapping_unref(again);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 0);
}

TEST(a_failure_ends_every_task_of_its_gpu_and_no_other)
{
    struct pair first[3], other;
    struct outcome o = { 0 }, alive = { 0 };

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(begin(&pair_init(&first[i], 0)->copy, &o), DEVICE_PENDING);
    assert_int_equal(begin(&pair_init(&other, 1)->copy, &alive), DEVICE_PENDING);
    poison(0, CUDA_ERROR_ECC_UNCORRECTABLE);
    wait_for(&o, 3);
    assert_int_equal(o.r, -EIO);
    assert_int_equal(alive.ndone, 0);
    assert_false(other.m->fault);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&alive, 1);
    assert_int_equal(alive.r, 0);
    assert_memory_equal(other.src, other.dst, MIB);
    assert_works(0);
    for (unsigned i = 0; i < 3; i++)
        mapping_unref(first[i].m);
    mapping_unref(other.m);
}

/* The first GPU's context holds the registration that the second's task uses. */
TEST(a_context_is_not_rebuilt_under_a_task_of_another_gpu)
{
    struct mapping *host = host_memory(MIB), *both[2];
    struct pair a, b;
    struct outcome o = { 0 }, failed = { 0 };

    pair_init(&a, 0);
    pair_init(&b, 1);
    both[0] = host;
    both[1] = a.m;
    a.dst = host->base;
    a.copy.mappings = both;
    a.copy.nmappings = 2;
    assert_int_equal(run(&a.copy), 0);

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&a.copy, &failed), DEVICE_PENDING);
    both[1] = b.m;
    b.dst = host->base;
    b.copy.mappings = both;
    b.copy.nmappings = 2;
    assert_int_equal(begin(&b.copy, &o), DEVICE_PENDING);
    poison(0, CUDA_ERROR_ILLEGAL_ADDRESS);
    wait_for(&failed, 1);
    assert_int_equal(failed.r, -EIO);
    assert_true(state_of(0).failed);
    assert_explained(0, "is not usable yet");
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), 1);

    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, 1);
    assert_int_equal(o.r, 0);
    assert_memory_equal(b.src, host->base, MIB);
    assert_false(state_of(0).failed);
    assert_false(host->fault);
    assert_int_equal(run(&b.copy), 0);
    assert_works(0);
    mapping_unref(a.m);
    mapping_unref(b.m);
    mapping_unref(host);
}

TEST(a_failure_that_submit_meets_is_told_at_once)
{
    struct pair p;

    pair_init(&p, 1);
    poison(1, CUDA_ERROR_LAUNCH_TIMEOUT);
    assert_int_equal(run(&p.copy), -EIO);
    while (state_of(1).failed)
        turn();
    assert_explained(1, "CUDA_ERROR_LAUNCH_TIMEOUT; its context was rebuilt");
    assert_works(1);
    assert_works(0);
    mapping_unref(p.m);
}

/* One of two runners of a sum fails. */
TEST(a_task_over_two_gpus_ends_when_both_have)
{
    enum { N = 1 << 18 };
    struct mapping *m[2] = { gpu_memory(0, 2 * MIB), gpu_memory(1, 2 * MIB) };
    void *src[2] = { m[0]->base, m[1]->base }, *dst = (float *)m[0]->base + N;
    struct task t = sum_of(DTYPE_F32, src, 2, &dst, 1, N);
    struct outcome o = { 0 };

    t.mappings = m;
    t.nmappings = 2;
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&t, &o), DEVICE_PENDING);
    poison(1, CUDA_ERROR_ILLEGAL_ADDRESS);
    for (unsigned i = 0; i < 20 && o.ndone == 0; i++)
        turn();
    if (world_has_peers)
        assert_int_equal(o.ndone, 0); /* the first still works on its slice */
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, 1);
    assert_int_equal(o.r, -EIO);
    assert_false(m[0]->fault);
    assert_true(m[1]->fault);
    while (state_of(1).failed)
        turn();
    mapping_unref(m[1]);
    m[1] = gpu_memory(1, 2 * MIB);
    src[1] = m[1]->base;
    memset(m[0]->base, 0, 2 * MIB);
    ((float *)src[1])[N - 1] = 1;
    assert_int_equal(run(&t), 0);
    assert_true(((float *)dst)[N - 1] == 1);
    mapping_unref(m[0]);
    mapping_unref(m[1]);
}

TEST(a_gpu_that_cannot_be_made_anew_is_tried_again_when_it_is_wanted)
{
    struct memory_handle h = client_memory(0, MIB);
    struct mapping *m;
    struct error e = { 0 };
    struct pair p;

    pair_init(&p, 0);
    fake_cuda_fail("cuMemcpyAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    fake_cuda_fail("cuModuleLoadData", 0, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(run(&p.copy), -EIO);
    device_poll(world);
    assert_true(state_of(0).failed);
    assert_false(device_wants_turn(world));
    assert_int_equal(poll(&(struct pollfd){ world->ops->fd(world), POLLIN, 0 }, 1, 20), 0);
    assert_int_equal(world->ops->import(world, &h, &m, &e), -ERROR_SYSTEM);
    assert_non_null(strstr(e.text, "cannot be used yet"));
    assert_works(1);

    fake_cuda_fail(NULL, 0, 0);
    assert_works(0);
    assert_false(state_of(0).failed);
    mapping_unref(p.m);
}

TEST(a_call_that_fails_fails_its_task_alone)
{
    struct pair p;

    pair_init(&p, 0);
    fake_cuda_fail("cuMemcpyAsync", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    assert_int_equal(run(&p.copy), -EIO);
    assert_explained(0, "cuMemcpyAsync failed with CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES");
    assert_false(p.m->fault);
    assert_int_equal(state_of(0).failures, 0);
    assert_int_equal(run(&p.copy), 0);
    mapping_unref(p.m);
}

TEST(host_memory_that_cannot_be_registered_fails_its_task)
{
    struct mapping *host = host_memory(4096);
    void *src = host->base, *dst = (uint8_t *)host->base + 2048;
    struct task t = copy_of(&src, &dst, 1, 2048);

    t.mappings = &host;
    t.nmappings = 1;
    fake_cuda_fail("cuMemHostRegister_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(run(&t), -EIO);
    assert_explained(0, "cuMemHostRegister failed with CUDA_ERROR_OUT_OF_MEMORY");
    fake_cuda_fail("cuMemHostGetDevicePointer_v2", 1, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(run(&t), -EIO);
    assert_int_equal(run(&t), 0);
    host->fault = true;
    assert_int_equal(run(&t), -EFAULT);
    mapping_unref(host);
}

TEST(memory_of_another_gpu_than_is_said_is_refused)
{
    struct memory_handle h[2] = { client_memory(0, MIB), { .kind = MEMORY_CUDA_FD } };
    struct mapping *m = NULL;
    struct error e = { 0 };
    unsigned before;

    h[1].bytes = 2 * MIB;
    h[1].fd = gpu_export(0, h[1].bytes);
    before = world_live();
    for (unsigned i = 0; i < ARRAY_SIZE(h); i++) {
        memcpy(h[i].gpu, world_uuids[1], sizeof(h[i].gpu));
        assert_int_equal(world->ops->import(world, &h[i], &m, &e), -ERROR_INVALID_ARGUMENT);
        assert_null(m);
        assert_int_equal(world_live(), before);
        if (world_has_peers)
            assert_non_null(strstr(e.text, "another GPU's"));
    }
    close(h[1].fd);
}

/* ---- Fences ---- */

static struct fence *fence_new(unsigned gpu)
{
    uint8_t handle[GPU_HANDLE_BYTES];
    struct error e = { 0 };
    struct fence *f;

    client_event(gpu, handle);
    if (world->ops->fence_import(world, world_uuids[gpu], handle, &f, &e) < 0)
        fail_msg("%s", e.text);
    return f;
}

TEST(a_fence_passes_when_the_clients_stream_gets_there)
{
    for (unsigned gpu = 0; gpu < 2; gpu++) {
        struct fence *f = fence_new(gpu);

        for (unsigned i = 0; i < 10; i++) {
            assert_int_equal(world->ops->fence_passed(f), 0);
            turn(); /* it says when to ask again */
        }
        client_release();
        while (world->ops->fence_passed(f) == 0)
            turn();
        assert_int_equal(world->ops->fence_passed(f), 1);
        assert_ptr_equal(fence_ref(f), f);
        fence_unref(f);
        assert_int_equal(fake_cuda_live(FAKE_CUDA_EVENTS), 1);
        fence_unref(f);
        assert_int_equal(fake_cuda_live(FAKE_CUDA_EVENTS), 0);
        client_forget();
    }
}

TEST(a_fence_that_is_new_is_looked_at_again_without_sleep)
{
    struct fence *f = fence_new(0);

    assert_false(device_wants_turn(world));
    assert_int_equal(world->ops->fence_passed(f), 0);
    assert_true(device_wants_turn(world));
    fence_unref(f);
    while (device_wants_turn(world))
        device_poll(world);
}

static struct fence *asked_when_done;

static void ask_when_done(struct task *t, int r)
{
    *(int *)t->owner = r;
    assert_int_equal(world->ops->fence_passed(asked_when_done), 0);
}

TEST(a_fence_that_is_asked_about_in_done_is_not_forgotten)
{
    struct pair p;
    int r = 1;

    pair_init(&p, 0);
    asked_when_done = fence_new(0);
    p.copy.done = ask_when_done;
    p.copy.owner = &r;
    assert_int_equal(device_submit(world, &p.copy), DEVICE_PENDING);
    while (r == 1)
        turn();
    assert_int_equal(r, 0);
    turn(); /* it would fail if nothing happened */
    fence_unref(asked_when_done);
    mapping_unref(p.m);
}

TEST(a_fence_that_nobody_asks_about_wakes_nobody)
{
    struct fence *f = fence_new(0);
    struct pollfd p = { .fd = world->ops->fd(world), .events = POLLIN };

    assert_int_equal(world->ops->fence_passed(f), 0);
    for (unsigned i = 0; i < 3; i++)
        if (device_wants_turn(world) || poll(&p, 1, 20) == 1)
            device_poll(world);
    while (device_wants_turn(world))
        device_poll(world);
    assert_int_equal(poll(&p, 1, 20), 0);
    fence_unref(f);
}

TEST(what_is_no_event_is_refused)
{
    const unsigned before = world_live();
    uint8_t handle[GPU_HANDLE_BYTES] = { 1 }, nowhere[GPU_UUID_BYTES] = { 1 };
    struct error e = { 0 };
    struct fence *f;

    assert_int_equal(world->ops->fence_import(world, world_uuids[0], handle, &f, &e),
                     -ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.text, "CU_EVENT_INTERPROCESS"));
    e.code = ERROR_NONE;
    assert_int_equal(world->ops->fence_import(world, nowhere, handle, &f, &e), -ERROR_NOT_FOUND);
    assert_non_null(strstr(e.text, "does not use"));
    assert_int_equal(world_live(), before);
}

TEST(a_fence_of_a_gpu_that_failed_passes_once_that_is_made_anew)
{
    struct fence *lost = fence_new(0);
    struct pair p;

    pair_init(&p, 0);
    assert_int_equal(world->ops->fence_passed(lost), 0);
    fake_cuda_fail("cuMemcpyAsync", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(run(&p.copy), -EIO);
    assert_int_equal(world->ops->fence_passed(lost), -EIO);
    while (state_of(0).failed)
        turn();
    assert_int_equal(world->ops->fence_passed(lost), 0);
    client_release();
    while (world->ops->fence_passed(lost) == 0)
        turn();
    assert_int_equal(world->ops->fence_passed(lost), 1);
    fence_unref(lost);
    mapping_unref(p.m);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_gpu_that_fails_ends_its_tasks_and_is_made_anew),
        CASE(memory_of_both_kinds_that_was_lost_is_let_go_of_in_silence),
        CASE(a_failure_ends_every_task_of_its_gpu_and_no_other),
        CASE(a_context_is_not_rebuilt_under_a_task_of_another_gpu),
        CASE(a_failure_that_submit_meets_is_told_at_once),
        CASE(a_task_over_two_gpus_ends_when_both_have),
        CASE(a_gpu_that_cannot_be_made_anew_is_tried_again_when_it_is_wanted),
        CASE(a_call_that_fails_fails_its_task_alone),
        CASE(host_memory_that_cannot_be_registered_fails_its_task),
        CASE(memory_of_another_gpu_than_is_said_is_refused),
        CASE(a_fence_passes_when_the_clients_stream_gets_there),
        CASE(a_fence_that_is_new_is_looked_at_again_without_sleep),
        CASE(a_fence_that_is_asked_about_in_done_is_not_forgotten),
        CASE(a_fence_that_nobody_asks_about_wakes_nobody),
        CASE(what_is_no_event_is_refused),
        CASE(a_fence_of_a_gpu_that_failed_passes_once_that_is_made_anew),
    };
    int failed;

    world_start();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_end();
    return failed;
}
