/* What only the row `cuda` does: memory of GPUs, and tasks over it, the host's and several GPUs'.
 */
#include "tests/contract/cuda_world.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Opening ---- */

static int open_gpus(const char *gpus, struct device **ret, struct error *e)
{
    *e = (struct error){ 0 };
    return device_cuda.open(&(struct device_config){ .gpus = gpus }, ret, e);
}

TEST(gpus_are_chosen_by_their_uuids)
{
    char first[CUDA_UUID_TEXT], second[CUDA_UUID_TEXT], both[128];
    struct device_gpu gpu;
    struct device *d;
    struct error e;

    cuda_uuid_text(world_uuids[0], first);
    cuda_uuid_text(world_uuids[1], second);
    assert_int_equal(open_gpus(second, &d, &e), 0);
    assert_true(d->ops->gpu(d, 0, &gpu));
    assert_memory_equal(gpu.uuid, world_uuids[1], sizeof(gpu.uuid));
    assert_string_equal(gpu.name, "Fake GPU 1");
    assert_false(d->ops->gpu(d, 1, &gpu));
    d->ops->close(d);

    snprintf(both, sizeof(both), "%s, %s", second, first);
    assert_int_equal(open_gpus(both, &d, &e), 0);
    assert_true(d->ops->gpu(d, 1, &gpu));
    d->ops->close(d);
}

TEST(a_gpu_that_is_not_there_is_named_with_those_that_are)
{
    static const char absent[] = "GPU-01234567-89ab-cdef-0123-456789abcdef";
    char first[CUDA_UUID_TEXT];
    struct device *d;
    struct error e;

    cuda_uuid_text(world_uuids[0], first);
    assert_int_equal(open_gpus(absent, &d, &e), -ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.text, absent));
    assert_non_null(strstr(e.text, first));
    assert_int_equal(open_gpus("0", &d, &e), -ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.text, "by its UUID"));
    assert_int_equal(open_gpus(",", &d, &e), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(open_gpus("", &d, &e), -ERROR_INVALID_ARGUMENT);
}

TEST(a_driver_that_fails_at_the_start_leaves_nothing)
{
    static const char *const calls[] = { "cuDevicePrimaryCtxRetain", "cuStreamCreate",
                                         "cuModuleLoadData", "cuModuleGetFunction" };

    for (unsigned i = 0; i < ARRAY_SIZE(calls); i++) {
        const unsigned before = world_live();
        struct device *d;
        struct error e;

        fake_cuda_fail(calls[i], 3, CUDA_ERROR_OUT_OF_MEMORY);
        if (i == 0 || i == 2) { /* once a GPU */
            fake_cuda_fail(NULL, 0, 0);
            fake_cuda_fail(calls[i], 2, CUDA_ERROR_OUT_OF_MEMORY);
        }
        assert_int_equal(open_gpus("all", &d, &e), -ERROR_NO_MEMORY);
        fake_cuda_fail(NULL, 0, 0);
        assert_int_equal(world_live(), before);
    }
}

TEST(without_kernels_that_the_driver_takes_there_is_no_such_device)
{
    struct device *d;
    struct error e;
    int r;

    fake_cuda_fail("cuModuleLoadData", 1, CUDA_ERROR_INVALID_IMAGE);
    r = open_gpus("all", &d, &e);
    assert_true(r == -ERROR_NOT_FOUND || r == -ERROR_SYSTEM); /* built without nvcc, or with */
    assert_non_null(strstr(e.text, "nvcc"));
}

/* ---- Memory ---- */

static void assert_refused(const struct memory_handle *h, int code, const char *says)
{
    const unsigned before = world_live();
    struct mapping *m = NULL;
    struct error e = { 0 };

    assert_int_equal(world->ops->import(world, h, &m, &e), -code);
    assert_null(m);
    assert_int_equal(world_live(), before);
    if (!strstr(e.text, says))
        fail_msg("\"%s\" does not say \"%s\"", e.text, says);
}

TEST(memory_is_refused_that_is_not_what_it_is_said_to_be)
{
    struct memory_handle ipc = client_memory(0, 8192), fd = { .kind = MEMORY_CUDA_FD }, h;

    fd.bytes = 4 * MIB;
    fd.fd = gpu_export(0, fd.bytes);
    memcpy(fd.gpu, world_uuids[0], sizeof(fd.gpu));

    h = fd;
    h.kind = MEMORY_MEMFD;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "not memory of a GPU");
    h = ipc;
    h.bytes = 0;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "no bytes");
    h = ipc;
    h.gpu[0] ^= 1;
    assert_refused(&h, ERROR_NOT_FOUND, "does not use");
    h = ipc;
    h.bytes = 8193;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "its allocation has 8192");
    h.bytes = UINT64_MAX;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "its allocation has 8192");
    h = ipc;
    memset(h.ipc, 0x5a, sizeof(h.ipc));
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "CUDA_ERROR_INVALID_HANDLE");
    h = fd;
    h.bytes = 6 * MIB;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "whole allocation of cuMemCreate");
    h.bytes = 4 * MIB + 1;
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "whole allocation of cuMemCreate");
    h = fd;
    h.fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_refused(&h, ERROR_INVALID_ARGUMENT, "cuMemExportToShareableHandle");
    close(h.fd);
    close(fd.fd);
}

TEST(the_same_handle_is_the_same_mapping)
{
    const struct memory_handle one = client_memory(1, 5000), two = client_memory(1, 5000);
    struct mapping *a, *again, *b;
    struct device_gpu gpu;
    struct memory_handle more = one;

    assert_int_equal(world->ops->import(world, &one, &a, NULL), 0);
    assert_int_equal(world->ops->import(world, &one, &again, NULL), 0);
    assert_int_equal(world->ops->import(world, &two, &b, NULL), 0);
    assert_ptr_equal(a, again);
    assert_true(a->dev == b->dev && a->ino != b->ino);
    assert_int_equal(a->bytes, 5000);
    assert_false(a->fault);

    assert_true(world->ops->gpu(world, 1, &gpu));
    assert_int_equal(gpu.mappings, 2);
    assert_int_equal(gpu.mapped_bytes, 10000);
    mapping_unref(a);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 2);
    more.bytes++;
    assert_refused(&more, ERROR_INVALID_ARGUMENT, "registered with 5000");
    mapping_unref(again);
    mapping_unref(b);
    assert_true(world->ops->gpu(world, 1, &gpu));
    assert_true(gpu.mappings == 0 && gpu.mapped_bytes == 0);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_IMPORTS), 0);
}

TEST(memory_that_comes_and_goes_leaves_nothing)
{
    const struct memory_handle ipc = client_memory(0, MIB);
    struct memory_handle fd = { .kind = MEMORY_CUDA_FD, .bytes = 2 * MIB };
    const unsigned before = world_live();

    fd.fd = gpu_export(1, fd.bytes);
    memcpy(fd.gpu, world_uuids[1], sizeof(fd.gpu));
    for (unsigned i = 0; i < 1000; i++) {
        struct mapping *m;

        assert_int_equal(world->ops->import(world, i % 2 ? &ipc : &fd, &m, NULL), 0);
        mapping_unref(m);
    }
    close(fd.fd);
    assert_int_equal(world_live(), before);
}

/* ---- Work ---- */

#define PLACES 5u

/* One buffer on each GPU, twice on the first, a client's on the host and the daemon's own. */
struct places {
    struct mapping *mappings[PLACES - 1];
    void *at[PLACES];
};

static struct places places_new(uint64_t bytes)
{
    struct places p;

    p.mappings[0] = gpu_memory(0, bytes);
    p.mappings[1] = host_memory(bytes);
    p.mappings[2] = gpu_memory(1, bytes);
    p.mappings[3] = gpu_memory(0, bytes);
    for (unsigned i = 0; i < PLACES - 1; i++)
        p.at[i] = p.mappings[i]->base;
    p.at[PLACES - 1] = own_memory(bytes);
    return p;
}

static void places_free(struct places *p)
{
    for (unsigned i = 0; i < PLACES - 1; i++)
        mapping_unref(p->mappings[i]);
}

static void use(struct task *t, struct places *p)
{
    t->mappings = p->mappings;
    t->nmappings = PLACES - 1;
}

/* Sums of f32 depend on order in their last bits. */
static void check_sum(struct places *in, struct places *out, uint64_t count)
{
    float *const *s = (float *const *)in->at;
    struct mapping *all[2 * (PLACES - 1)];
    struct task t = sum_of(DTYPE_F32, in->at, PLACES, out->at, PLACES, count);
    uint64_t seed = count + 1;

    memcpy(all, in->mappings, sizeof(in->mappings));
    memcpy(all + PLACES - 1, out->mappings, sizeof(out->mappings));
    t.mappings = all;
    t.nmappings = ARRAY_SIZE(all);
    t.divisor = 3;
    for (unsigned i = 0; i < PLACES; i++) {
        for (uint64_t j = 0; j < count; j++)
            s[i][j] = (float)(int32_t)unit_random(&seed) * 0x1p-20f;
        ((float *)out->at[i])[count] = 0.5f;
    }
    assert_int_equal(run(&t), 0);
    for (unsigned i = 0; i < PLACES; i++) {
        const float *got = out->at[i];

        for (uint64_t j = 0; j < count; j++)
            if (got[j] != (((s[0][j] + s[1][j]) + (s[2][j] + s[3][j])) + s[4][j]) / 3)
                fail_msg("place %u, element %u of %u", i, (unsigned)j, (unsigned)count);
        assert_true(got[count] == 0.5f);
    }
}

TEST(a_sum_over_gpus_and_the_host_has_the_same_bits_everywhere)
{
    static const uint64_t counts[] = { 1, 3, 129, 65537, 300007 };
    struct places in = places_new(2 * MIB), out = places_new(2 * MIB);

    for (unsigned i = 0; i < ARRAY_SIZE(counts); i++)
        check_sum(&in, &out, counts[i]);
    places_free(&in);
    places_free(&out);
}

TEST(gpus_that_reach_each_other_share_a_large_sum)
{
    struct places in = places_new(2 * MIB), out = places_new(2 * MIB);
    uint64_t before = fake_cuda_kernels();

    check_sum(&in, &out, 1000);
    assert_int_equal(fake_cuda_kernels() - before, 1);
    before = fake_cuda_kernels();
    check_sum(&in, &out, 300007);
    assert_true(fake_cuda_kernels() - before >= 2); /* or it goes piece by piece */
    places_free(&in);
    places_free(&out);
}

TEST(a_sum_may_be_taken_in_place)
{
    enum { N = 70001 };
    struct places p = places_new(MIB);
    struct task t = sum_of(DTYPE_BF16, p.at, PLACES, p.at, PLACES, N);

    use(&t, &p);
    for (unsigned i = 0; i < PLACES; i++)
        for (unsigned j = 0; j < N; j++)
            ((uint16_t *)p.at[i])[j] = j % 2 ? 0x3f80 : 0x4000; /* 1, 2 */
    assert_int_equal(run(&t), 0);
    for (unsigned i = 0; i < PLACES; i++)
        for (unsigned j = 0; j < N; j++)
            assert_int_equal(((uint16_t *)p.at[i])[j], j % 2 ? 0x40a0 : 0x4120); /* 5, 10 */
    places_free(&p);
}

static void check_copy(struct places *p, unsigned from, unsigned set, uint64_t bytes)
{
    void *dst[PLACES];
    uint32_t n = 0;
    struct task t;
    uint64_t seed = from + 8 * set + bytes;

    for (unsigned i = 0; i < PLACES; i++) {
        memset((uint8_t *)p->at[i], 0x55, bytes + 1);
        if (set & 1u << i)
            dst[n++] = p->at[i];
    }
    for (uint64_t i = 0; i < bytes; i++)
        ((uint8_t *)p->at[from])[i] = (uint8_t)(unit_random(&seed) >> 56);
    t = copy_of(&p->at[from], dst, n, bytes);
    use(&t, p);
    assert_int_equal(run(&t), 0);
    for (unsigned i = 0; i < PLACES; i++) {
        const uint8_t *at = p->at[i];

        if (set & 1u << i)
            assert_memory_equal(at, p->at[from], bytes);
        else
            assert_true(i == from || (at[0] == 0x55 && at[bytes - 1] == 0x55));
        assert_int_equal(at[bytes], 0x55);
    }
}

TEST(a_copy_goes_from_anywhere_to_anywhere)
{
    struct places p = places_new(5 * MIB);

    for (unsigned from = 0; from < PLACES; from++)
        for (unsigned set = 1; set < 1u << PLACES; set++)
            check_copy(&p, from, set, 12345);
    for (unsigned from = 0; from < PLACES; from++)
        check_copy(&p, from, (1u << PLACES) - 1, 5 * MIB - 3);
    places_free(&p);
}

TEST(more_pointers_and_groups_than_the_arguments_hold)
{
    enum { SOURCES = 200, GROUPS = 50, N = 999 };
    struct places p = places_new(MIB);
    struct source_group groups[GROUPS];
    void *src[SOURCES], *dst[PLACES];
    struct task t;

    for (unsigned i = 0; i < SOURCES; i++) {
        src[i] = (int32_t *)p.at[i % PLACES] + N * (i / PLACES);
        for (unsigned j = 0; j < N; j++)
            ((int32_t *)src[i])[j] = (int32_t)(i * j);
    }
    for (unsigned i = 0; i < GROUPS; i++)
        groups[i] = (struct source_group){ SOURCES / GROUPS, i % 2 };
    for (unsigned i = 0; i < PLACES; i++)
        dst[i] = (int32_t *)p.at[i] + N * (SOURCES / PLACES);
    t = sum_of(DTYPE_I32, src, SOURCES, dst, PLACES, N);
    use(&t, &p);
    for (unsigned pass = 0; pass < 2; pass++) {
        t.groups = groups;
        t.ngroups = pass ? GROUPS : 0;
        memset(dst[2], 0, N * sizeof(int32_t));
        assert_int_equal(run(&t), 0);
        for (unsigned i = 0; i < PLACES; i++)
            for (unsigned j = 0; j < N; j++)
                assert_int_equal(((int32_t *)dst[i])[j], SOURCES * (SOURCES - 1) / 2 * j);
    }
    places_free(&p);
}

TEST(host_memory_is_registered_while_it_is_mapped)
{
    struct places p = places_new(MIB);
    struct task t = copy_of(&p.at[0], &p.at[1], 4, 1000);
    unsigned before;

    use(&t, &p);
    before = fake_cuda_live(FAKE_CUDA_REGISTRATIONS);
    assert_int_equal(run(&t), 0);
    assert_true(fake_cuda_live(FAKE_CUDA_REGISTRATIONS) >= before + 2);
    before = fake_cuda_live(FAKE_CUDA_REGISTRATIONS);
    assert_int_equal(run(&t), 0);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), before);
    places_free(&p);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), before - 1);
}

TEST(host_memory_may_outlive_the_device)
{
    struct mapping *m = host_memory(4096);
    void *from = m->base, *to = (uint8_t *)m->base + 2048;
    struct task t = copy_of(&from, &to, 1, 2048);

    t.mappings = &m;
    t.nmappings = 1;
    memset(m->base, 7, 2048);
    assert_int_equal(run(&t), 0);
    assert_memory_equal(from, to, 2048);
    world->ops->close(world);
    mapping_unref(m);
    assert_int_equal(device_cuda.open(&(struct device_config){ 0 }, &world, NULL), 0);
}

/* ---- What is turned down ---- */

static void assert_wrong(struct task *t)
{
    const uint64_t before = fake_cuda_kernels();
    struct device_gpu gpu;

    t->small = !t->small;
    assert_int_equal(run(t), -EINVAL);
    assert_int_equal(fake_cuda_kernels(), before);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(world->ops->gpu(world, i, &gpu));
        assert_false(gpu.failed || gpu.failures);
    }
}

TEST(a_wrong_address_never_reaches_a_gpu)
{
    struct places p = places_new(2 * MIB);
    uint8_t *base = p.at[0];
    void *src[2] = { p.at[0], p.at[1] }, *dst[1] = { p.at[2] };
    struct task t = sum_of(DTYPE_F32, src, 2, dst, 1, 1024);
    static uint8_t stray[8192];

    use(&t, &p);
    assert_int_equal(run(&t), 0);
    src[0] = base + 2 * MIB - 4096 + 4; /* the last element is not there */
    assert_wrong(&t);
    src[0] = base - 4;
    assert_wrong(&t);
    src[0] = base + 2;
    assert_wrong(&t);
    src[0] = NULL;
    assert_wrong(&t);
    src[0] = stray;
    assert_wrong(&t);
    src[0] = base;
    dst[0] = stray;
    assert_wrong(&t);
    dst[0] = (uint8_t *)p.at[PLACES - 1] + 2 * MIB - 8;
    assert_wrong(&t);
    dst[0] = p.at[2];
    t.count = UINT64_MAX / 4 + 2; /* times four it is four */
    assert_wrong(&t);
    t.count = 1024;
    t.nmappings = 1; /* the others are somebody else's */
    assert_wrong(&t);
    t.kind = TASK_COPY;
    t.nsrc = 1;
    t.count = UINT64_MAX;
    use(&t, &p);
    assert_wrong(&t);
    places_free(&p);
}

TEST(a_cancelled_task_is_not_begun)
{
    struct places p = places_new(MIB);
    struct task t = copy_of(&p.at[0], &p.at[1], 4, MIB);
    atomic_bool cancel = true;
    const uint64_t before = fake_cuda_kernels();

    use(&t, &p);
    t.cancel = &cancel;
    assert_int_equal(run(&t), -ECANCELED);
    assert_int_equal(fake_cuda_kernels(), before);
    places_free(&p);
}

TEST(cancelled_half_way_it_ends_once_the_gpus_have_let_go)
{
    struct places p = places_new(5 * MIB);
    struct task t = copy_of(&p.at[0], &p.at[1], 4, 5 * MIB);
    atomic_bool cancel = false;
    struct outcome o = { 0 };

    use(&t, &p);
    t.cancel = &cancel;
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&t, &o), DEVICE_PENDING);
    atomic_store(&cancel, true);
    for (unsigned i = 0; i < 20; i++)
        turn();
    assert_int_equal(o.ndone, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, 1);
    assert_int_equal(o.r, world_has_peers ? 0 : -ECANCELED);
    places_free(&p);
}

TEST(streams_that_are_all_taken_are_busy_until_something_ends)
{
    enum { MANY = 100 };
    struct mapping *m = gpu_memory(0, 2 * MIB);
    void *src = m->base, *dst[MANY];
    struct task tasks[MANY];
    struct outcome o = { 0 };
    unsigned n = 0;

    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    for (;;) {
        int r;

        assert_true(n < MANY);
        dst[n] = (uint8_t *)m->base + (n + 1) * 4096;
        tasks[n] = copy_of(&src, &dst[n], 1, 4096);
        tasks[n].mappings = &m;
        tasks[n].nmappings = 1;
        tasks[n].small = n % 2; /* which must not wait either */
        r = begin(&tasks[n], &o);
        if (r == DEVICE_BUSY)
            break;
        assert_int_equal(r, DEVICE_PENDING);
        n++;
    }
    assert_true(n >= 2);
    assert_int_equal(o.ndone, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, n);
    assert_int_equal(run(&tasks[n]), 0);
    mapping_unref(m);
}

/* ---- Waiting ---- */

static bool is_readable(void)
{
    struct pollfd p = { .fd = world->ops->fd(world), .events = POLLIN };

    return poll(&p, 1, 0) == 1;
}

static void assert_silent(void)
{
    struct pollfd p = { .fd = world->ops->fd(world), .events = POLLIN };

    assert_false(device_wants_turn(world));
    assert_int_equal(poll(&p, 1, 20), 0);
}

TEST(a_long_wait_is_a_sleep_and_an_idle_device_is_silent)
{
    struct mapping *m = gpu_memory(0, 2 * MIB);
    void *src = m->base, *dst = (uint8_t *)m->base + MIB;
    struct task t = copy_of(&src, &dst, 1, MIB);
    struct outcome o = { 0 };

    t.mappings = &m;
    t.nmappings = 1;
    assert_silent();
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&t, &o), DEVICE_PENDING);
    assert_true(device_wants_turn(world));
    assert_false(is_readable());
    while (device_wants_turn(world))
        device_poll(world);
    for (unsigned i = 0; i < 10; i++) {
        turn();
        assert_false(device_wants_turn(world));
    }
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, 1);
    device_poll(world);
    assert_silent();
    mapping_unref(m);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(gpus_are_chosen_by_their_uuids),
        CASE(a_gpu_that_is_not_there_is_named_with_those_that_are),
        CASE(a_driver_that_fails_at_the_start_leaves_nothing),
        CASE(without_kernels_that_the_driver_takes_there_is_no_such_device),
        CASE(memory_is_refused_that_is_not_what_it_is_said_to_be),
        CASE(the_same_handle_is_the_same_mapping),
        CASE(memory_that_comes_and_goes_leaves_nothing),
        CASE(a_sum_over_gpus_and_the_host_has_the_same_bits_everywhere),
        CASE(gpus_that_reach_each_other_share_a_large_sum),
        CASE(a_sum_may_be_taken_in_place),
        CASE(a_copy_goes_from_anywhere_to_anywhere),
        CASE(more_pointers_and_groups_than_the_arguments_hold),
        CASE(host_memory_is_registered_while_it_is_mapped),
        CASE(host_memory_may_outlive_the_device),
        CASE(a_wrong_address_never_reaches_a_gpu),
        CASE(a_cancelled_task_is_not_begun),
        CASE(cancelled_half_way_it_ends_once_the_gpus_have_let_go),
        CASE(streams_that_are_all_taken_are_busy_until_something_ends),
        CASE(a_long_wait_is_a_sleep_and_an_idle_device_is_silent),
    };
    int failed;

    world_start();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_end();
    return failed;
}
