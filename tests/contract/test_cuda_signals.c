/* The row `cuda`: values that clients' streams wait for. */
#include "tests/contract/cuda_world.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define COUNT 1000u
#define CELLS 2u

/* A copy, or a sum, on GPU 0, and two clients' cells behind it. */
struct scene {
    struct mapping *memory, *cells[CELLS];
    void *src[2], *dst;
    struct signal signals[CELLS];
    struct task task;
};

static uint32_t value_of(const struct signal *s)
{
    return atomic_load((_Atomic uint32_t *)(void *)((char *)s->cells->base + s->offset));
}

static void scene_renew_memory(struct scene *s)
{
    uint8_t *base;

    s->memory = mapping_unref(s->memory);
    s->memory = gpu_memory(0, 2 * MIB);
    base = s->memory->base;
    for (unsigned i = 0; i < 2; i++) {
        s->src[i] = base + i * 4 * COUNT;
        for (uint32_t k = 0; k < COUNT; k++)
            ((uint32_t *)s->src[i])[k] = 5 * i + k;
    }
    s->dst = base + MIB;
}

static void scene_open(struct scene *s, bool sum)
{
    memset(s, 0, sizeof(*s));
    scene_renew_memory(s);
    s->task = sum ? sum_of(DTYPE_U32, s->src, 2, &s->dst, 1, COUNT)
                  : copy_of(s->src, &s->dst, 1, 4 * COUNT);
    s->task.mappings = &s->memory;
    s->task.nmappings = 1;
    s->task.signals = s->signals;
    s->task.nsignals = CELLS;
    for (uint32_t i = 0; i < CELLS; i++) {
        s->cells[i] = host_memory(4096 + 40);
        s->signals[i] = (struct signal){ s->cells[i], i ? 4096 + 36 : 8, 77 + i };
    }
}

static void scene_close(struct scene *s)
{
    mapping_unref(s->memory);
    for (uint32_t i = 0; i < CELLS; i++)
        mapping_unref(s->cells[i]);
}

static void expect_values(const struct scene *s, uint32_t first, uint32_t second)
{
    assert_int_equal(value_of(&s->signals[0]), first);
    assert_int_equal(value_of(&s->signals[1]), second);
}

static void expect_data(const struct scene *s)
{
    const uint32_t *dst = s->dst, sum = s->task.kind == TASK_REDUCE;

    for (uint32_t k = 0; k < COUNT; k++)
        assert_int_equal(dst[k], k + sum * (5 + k));
}

static void moment(void)
{
    const struct timespec ms = { .tv_nsec = 1000000 };

    nanosleep(&ms, NULL);
}

/* Without a look at the device. */
static void await_value(const struct signal *s)
{
    for (unsigned ms = 0; value_of(s) != s->value; ms++) {
        if (ms > 60000)
            fail_msg("the value does not come");
        moment();
    }
}

/* ---- By the stream */

static void write_behind(bool sum)
{
    struct outcome o = { 0 };
    struct scene s;

    scene_open(&s, sum);
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&s.task, &o), DEVICE_PENDING);
    for (unsigned i = 0; i < 20; i++)
        moment();
    expect_values(&s, 0, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    await_value(&s.signals[0]);
    expect_data(&s);
    await_value(&s.signals[1]);
    assert_int_equal(o.ndone, 0); /* nobody has looked */
    wait_for(&o, 1);
    assert_int_equal(o.r, 0);
    scene_close(&s);
}

TEST(values_are_written_behind_the_data_without_a_look_at_the_device)
{
    write_behind(false);
    write_behind(true);
}

/* What comes after a task that has ended is not overwritten by it. */
TEST(a_task_is_not_done_before_its_values_are_written)
{
    struct scene s;

    scene_open(&s, true);
    for (uint32_t value = 1; value < 200; value++) {
        s.signals[0].value = s.signals[1].value = value;
        assert_int_equal(run(&s.task), 0);
        expect_values(&s, value, value);
    }
    scene_close(&s);
}

TEST(cells_are_registered_once_and_while_they_are_mapped)
{
    const unsigned before = fake_cuda_live(FAKE_CUDA_REGISTRATIONS);
    struct scene s;

    scene_open(&s, false);
    assert_int_equal(run(&s.task), 0);
    assert_int_equal(run(&s.task), 0);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), before + CELLS);
    scene_close(&s);
    assert_int_equal(fake_cuda_live(FAKE_CUDA_REGISTRATIONS), before);
}

/* The first GPU's context holds the registration of the second's cells. */
TEST(cells_of_a_gpu_that_failed_are_written_by_another)
{
    struct mapping *other = gpu_memory(1, 2 * MIB);
    void *src = other->base, *dst = (uint8_t *)other->base + MIB;
    struct outcome o = { 0 }, failed = { 0 };
    struct scene s;
    struct task t;

    scene_open(&s, false);
    assert_int_equal(run(&s.task), 0);
    t = s.task;
    t.src = &src;
    t.dst = &dst;
    t.mappings = &other;
    s.task.nsignals = 0;
    s.signals[0].value = s.signals[1].value = 100;
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&t, &o), DEVICE_PENDING);
    assert_int_equal(begin(&s.task, &failed), DEVICE_PENDING);
    fake_cuda_fail("poison", 0, CUDA_ERROR_ILLEGAL_ADDRESS);
    wait_for(&failed, 1);
    assert_int_equal(failed.r, -EIO);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    wait_for(&o, 1);
    assert_int_equal(o.r, 0);
    expect_values(&s, 100, 100);
    s.signals[0].value = s.signals[1].value = 101;
    assert_int_equal(run(&t), 0);
    expect_values(&s, 101, 101);
    mapping_unref(other);
    scene_close(&s);
}

/* ---- Left to others */

static void expect_left(struct scene *s, struct mapping *with)
{
    struct mapping *both[2] = { s->memory, with };

    s->task.mappings = both;
    s->task.nmappings = 2;
    assert_int_equal(run(&s->task), 0);
    expect_values(s, 0, 0);
    mapping_unref(with);
    scene_close(s);
}

TEST(where_a_task_is_more_than_one_gpus_memory_nothing_is_written)
{
    struct mapping *with;
    struct scene s;

    for (unsigned i = 0; i < 8; i++) {
        scene_open(&s, i % 2);
        with = i < 4 ? gpu_memory(1, 2 * MIB) : host_memory(2 * MIB);
        if (i / 2 % 2)
            s.dst = with->base;
        else
            s.src[0] = with->base;
        expect_left(&s, with);
    }
}

TEST(a_task_that_has_nothing_to_do_writes_nothing)
{
    struct scene s;

    scene_open(&s, false);
    s.dst = s.src[0];
    assert_int_equal(run(&s.task), 0);
    s.task.count = 0;
    assert_int_equal(run(&s.task), 0);
    expect_values(&s, 0, 0);
    scene_close(&s);
}

TEST(what_the_driver_does_not_write_harms_nobody)
{
    struct scene s;

    scene_open(&s, false);
    fake_cuda_fail("cuStreamWriteValue32_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(run(&s.task), 0);
    expect_data(&s);
    expect_values(&s, 0, 78);
    assert_int_equal(run(&s.task), 0);
    expect_values(&s, 77, 78);
    scene_close(&s);
}

TEST(cells_that_are_refused_once_are_not_offered_again)
{
    struct scene s;

    scene_open(&s, false);
    fake_cuda_fail("cuMemHostRegister_v2", 1, CUDA_ERROR_OUT_OF_MEMORY);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(run(&s.task), 0);
        expect_data(&s);
        expect_values(&s, 0, 78);
    }
    scene_close(&s);
}

TEST(a_gpu_whose_streams_write_no_values_does_all_else)
{
    struct scene s;

    world->ops->close(world);
    fake_cuda_fail("cuDeviceGetAttribute", 3, CUDA_ERROR_INVALID_VALUE); /* the first GPU's last */
    assert_int_equal(device_cuda.open(&(struct device_config){ 0 }, &world, NULL), 0);
    scene_open(&s, false);
    assert_int_equal(run(&s.task), 0);
    expect_data(&s);
    expect_values(&s, 0, 0);
    scene_close(&s);
}

/* ---- Failures */

static void expect_failure(struct scene *s, int r)
{
    assert_int_equal(run(&s->task), r);
    expect_values(s, 0, 0);
}

TEST(a_task_that_does_not_begin_writes_nothing)
{
    atomic_bool cancel = true;
    struct scene s;

    scene_open(&s, true);
    s.task.cancel = &cancel;
    expect_failure(&s, -ECANCELED);
    s.task.cancel = NULL;
    fake_cuda_fail("cuLaunchKernel", 1, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    expect_failure(&s, -EIO);
    assert_int_equal(run(&s.task), 0);
    expect_data(&s);
    expect_values(&s, 77, 78);
    scene_close(&s);
}

TEST(a_gpu_that_fails_writes_nothing_then_nor_later)
{
    struct outcome o = { 0 };
    struct scene s;

    scene_open(&s, true);
    fake_cuda_fail("kernel", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    expect_failure(&s, -EIO);
    scene_renew_memory(&s);
    fake_cuda_delay_us(FAKE_CUDA_ALL, HELD_US);
    assert_int_equal(begin(&s.task, &o), DEVICE_PENDING);
    fake_cuda_fail("poison", 0, CUDA_ERROR_ECC_UNCORRECTABLE);
    wait_for(&o, 1);
    assert_int_equal(o.r, -EIO);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    scene_renew_memory(&s);
    expect_values(&s, 0, 0);
    assert_int_equal(run(&s.task), 0);
    expect_data(&s);
    expect_values(&s, 77, 78);
    scene_close(&s);
}

TEST(a_gpu_that_fails_while_it_is_told_to_write_fails_the_task)
{
    struct scene s;

    scene_open(&s, false);
    fake_cuda_fail("cuStreamWriteValue32_v2", 2, CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(run(&s.task), -EIO);
    assert_int_equal(value_of(&s.signals[1]), 0);
    scene_close(&s);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, world_set_up, world_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(values_are_written_behind_the_data_without_a_look_at_the_device),
        CASE(a_task_is_not_done_before_its_values_are_written),
        CASE(cells_are_registered_once_and_while_they_are_mapped),
        CASE(cells_of_a_gpu_that_failed_are_written_by_another),
        CASE(where_a_task_is_more_than_one_gpus_memory_nothing_is_written),
        CASE(a_task_that_has_nothing_to_do_writes_nothing),
        CASE(what_the_driver_does_not_write_harms_nobody),
        CASE(cells_that_are_refused_once_are_not_offered_again),
        CASE(a_gpu_whose_streams_write_no_values_does_all_else),
        CASE(a_task_that_does_not_begin_writes_nothing),
        CASE(a_gpu_that_fails_writes_nothing_then_nor_later),
        CASE(a_gpu_that_fails_while_it_is_told_to_write_fails_the_task),
    };
    int failed;

    world_start();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    world_end();
    return failed;
}
