/* What device.h promises of tasks, asked of every device there is and of the flaky one. */
#include "tests/contract/device_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What of a task is whose work, and which stores are used, hangs on the size of the whole. */
static const uint64_t operation_sizes[] = { 0, 10, MIB };

static const uint64_t counts[] = { 0, 1, 3, 64, 257, 4099, 300007, 2 * MIB + 1 };

TEST(a_copy_reaches_every_destination_and_nothing_else)
{
    const size_t room = 3 * MIB;
    uint8_t *from = memory_new(room), *to = memory_new(3 * room);

    fill(from, room, 1);
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);

        for (unsigned i = 0; i < 2 * ARRAY_SIZE(counts); i++) {
            const uint64_t count = counts[i / 2];
            void *src = from + i, *dst[] = { to + 1, to + room + 7, to + 2 * room, src };
            struct task t = copy_task(&src, dst, 4, count);

            t.small = i % 2;
            t.ntasks = operation_sizes[i % 3];
            memset(to, 0x55, 3 * room);
            assert_int_equal(run(d, &t), 0);
            for (unsigned j = 0; j < 3; j++) {
                assert_memory_equal(dst[j], src, count);
                assert_int_equal(((uint8_t *)dst[j])[count], 0x55);
            }
            assert_int_equal(to[0], 0x55);
        }
        close_device(d);
    }
    memory_free();
}

/* Sums of f32 depend on order in their last bits: equal bits mean the one order. */
static void check_sums(struct device *d, float *const *in, float *const *out, uint64_t count,
                       bool small)
{
    void *src[3] = { in[0], in[1], in[2] }, *dst[2] = { out[0], out[1] };
    struct task t = sum_task(DTYPE_F32, src, 3, dst, 2, count);

    t.small = small;
    t.ntasks = operation_sizes[count % 3];
    out[0][count] = out[1][count] = 0.5f;
    assert_int_equal(run(d, &t), 0);
    for (uint64_t i = 0; i < count; i++) {
        float want = (in[0][i] + in[1][i]) + in[2][i];

        if (out[0][i] != want || out[1][i] != want)
            fail_msg("%s: element %llu of %llu", d->ops->name, (unsigned long long)i,
                     (unsigned long long)count);
    }
    assert_true(out[0][count] == 0.5f && out[1][count] == 0.5f);
}

TEST(a_sum_has_the_same_bits_for_any_number_of_workers)
{
    const size_t room = 3 * MIB;
    float *buffers[5];
    uint64_t seed = 3;

    for (unsigned i = 0; i < 5; i++) {
        buffers[i] = memory_new(room * sizeof(float));
        for (size_t j = 0; j < room; j++)
            buffers[i][j] = (float)(int32_t)unit_random(&seed) * 0x1p-20f;
    }
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);

        for (unsigned i = 0; i < 2 * ARRAY_SIZE(counts); i++)
            check_sums(d, buffers, buffers + 3, counts[i / 2], i % 2);
        close_device(d);
    }
    memory_free();
}

TEST(a_sum_may_be_taken_in_place_and_divided)
{
    enum { N = 200003 };
    uint16_t *a = memory_new(N * sizeof(*a)), *b = memory_new(N * sizeof(*b));

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *both[2] = { a, b };
        struct task t = sum_task(DTYPE_BF16, both, 2, both, 2, N);

        for (unsigned i = 0; i < N; i++) {
            a[i] = 0x4040;                  /* 3 */
            b[i] = i % 2 ? 0x40a0 : 0xc040; /* 5, -3 */
        }
        t.divisor = 2;
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < N; i++)
            assert_true(a[i] == (i % 2 ? 0x4080 : 0) && b[i] == a[i]);
        close_device(d);
    }
    memory_free();
}

TEST(accumulators_pass_from_task_to_task)
{
    enum { N = 70001 };
    uint16_t *in = memory_new(N * sizeof(*in)), *out = memory_new(N * sizeof(*out));
    float *partial = memory_new(N * sizeof(*partial));

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src = in, *mid = partial, *dst = out;
        struct task first = sum_task(DTYPE_BF16, (void *[]){ src, src }, 2, &mid, 1, N);
        struct task last = sum_task(DTYPE_BF16, (void *[]){ mid, mid }, 2, &dst, 1, N);

        for (unsigned i = 0; i < N; i++)
            in[i] = 0x3f81; /* 1 + 2^-7 */
        first.dst_wide = true;
        last.src_wide = true;
        assert_int_equal(run(d, &first), 0);
        assert_int_equal(run(d, &last), 0);
        for (unsigned i = 0; i < N; i++)
            assert_true(partial[i] == 2 + 0x1p-6f && out[i] == 0x4081);
        close_device(d);
    }
    memory_free();
}

/* (1 + 2^-7 twice, as elements) and 1 + 2^-6 as an accumulator: other trees round otherwise. */
TEST(elements_and_accumulators_meet_in_groups)
{
    enum { N = 70001 };
    uint16_t *a = memory_new(N * sizeof(*a)), *b = memory_new(N * sizeof(*b));
    uint16_t *out = memory_new(N * sizeof(*out));
    float *partial = memory_new(N * sizeof(*partial));
    static const struct source_group groups[] = { { 2, false }, { 1, true } };

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src[] = { a, b, partial }, *dst = out;
        struct task t = sum_task(DTYPE_BF16, src, 3, &dst, 1, N);

        for (unsigned i = 0; i < N; i++) {
            a[i] = 0x3f81;
            b[i] = i % 2 ? 0x3f81 : 0xbf80; /* -1 */
            partial[i] = 1 + 0x1p-6f;
        }
        t.groups = groups;
        t.ngroups = 2;
        assert_int_equal(run(d, &t), 0);
        for (unsigned i = 0; i < N; i++)
            assert_int_equal(out[i], i % 2 ? 0x4042 : 0x3f83);
        close_device(d);
    }
    memory_free();
}

/* Each done() submits the next, as an engine does. */
struct chain {
    struct device *device;
    struct task task;
    unsigned ndone;
};

#define CHAIN_TASKS 300u

static void chain_done(struct task *t, int r)
{
    struct chain *c = t->owner;

    assert_int_equal(r, 0);
    if (++c->ndone < CHAIN_TASKS)
        assert_int_equal(device_submit(c->device, t), DEVICE_PENDING);
}

TEST(done_may_submit_the_next_task)
{
    enum { BYTES = 1000 };
    uint8_t *from = memory_new(2 * BYTES), *to = from + BYTES;

    for_each_kind(k)
    {
        void *src = from, *dst = to;
        struct chain c = { .task = copy_task(&src, &dst, 1, BYTES) };

        c.device = open_kind(&k);
        c.task.done = chain_done;
        c.task.owner = &c;
        assert_int_equal(device_submit(c.device, &c.task), DEVICE_PENDING);
        while (c.ndone < CHAIN_TASKS)
            wait_once(c.device);
        close_device(c.device);
    }
    memory_free();
}

TEST(without_room_submit_says_busy_and_later_takes_it)
{
    enum { MANY = 2000 };
    uint8_t *from = memory_new(2 * MANY), *to = from + MANY;
    static void *src[MANY], *dst[MANY];
    static struct task tasks[MANY];

    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        struct outcome o = { 0 };
        unsigned ntaken = 0;
        int r = DEVICE_PENDING;

        while (ntaken < MANY) {
            src[ntaken] = &from[ntaken];
            dst[ntaken] = &to[ntaken];
            tasks[ntaken] = copy_task(&src[ntaken], &dst[ntaken], 1, 1);
            tasks[ntaken].done = record_done;
            tasks[ntaken].owner = &o;
            r = device_submit(d, &tasks[ntaken]);
            if (r != DEVICE_PENDING)
                break;
            ntaken++;
        }
        assert_int_equal(r, DEVICE_BUSY);
        assert_true(ntaken >= 1);
        assert_int_equal(o.ndone, 0);
        while (o.ndone < ntaken)
            wait_once(d);
        assert_int_equal(device_submit(d, &tasks[ntaken]), DEVICE_PENDING);
        while (o.ndone <= ntaken)
            wait_once(d);
        assert_int_equal(o.r, 0);
        close_device(d);
    }
    memory_free();
}

TEST(a_cancelled_task_ends_and_touches_nothing_afterwards)
{
    const size_t bytes = 32 * MIB;
    uint8_t *from = memory_new(bytes), *to = memory_new(bytes);

    memset(from, 1, bytes);
    memset(to, 2, bytes);
    for_each_kind(k)
    {
        struct device *d = open_kind(&k);
        void *src = from, *dst = to;
        atomic_bool cancel = true;
        struct outcome o = { 0 };
        struct task t = copy_task(&src, &dst, 1, bytes);

        t.cancel = &cancel;
        assert_int_equal(run(d, &t), -ECANCELED);
        t.small = true;
        assert_int_equal(run(d, &t), -ECANCELED);
        t.small = false;

        atomic_store(&cancel, false);
        t.done = record_done;
        t.owner = &o;
        assert_int_equal(submit(d, &t), DEVICE_PENDING);
        atomic_store(&cancel, true);
        while (o.ndone == 0)
            wait_once(d);
        assert_true(o.r == -ECANCELED || o.r == 0);
        memset(to, 2, bytes);
        usleep(2000);
        for (size_t i = 0; i < bytes; i += 4096)
            assert_int_equal(to[i], 2);
        close_device(d);
    }
    memory_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copy_reaches_every_destination_and_nothing_else),
        cmocka_unit_test(a_sum_has_the_same_bits_for_any_number_of_workers),
        cmocka_unit_test(a_sum_may_be_taken_in_place_and_divided),
        cmocka_unit_test(accumulators_pass_from_task_to_task),
        cmocka_unit_test(elements_and_accumulators_meet_in_groups),
        cmocka_unit_test(done_may_submit_the_next_task),
        cmocka_unit_test(without_room_submit_says_busy_and_later_takes_it),
        cmocka_unit_test(a_cancelled_task_ends_and_touches_nothing_afterwards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
