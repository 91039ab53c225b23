/* The flaky devices tell one story for one seed, and keep to what their configuration says. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tests/contract/flaky_device.h"
#include "tests/contract/flaky_gpus.h"

#define NTASKS 20u

struct story {
    struct device *device;
    struct task tasks[NTASKS];
    uint8_t from[NTASKS], to[NTASKS];
    void *src[NTASKS], *dst[NTASKS];
    unsigned order[NTASKS], ndone;
    int results[NTASKS];
};

static void story_done(struct task *t, int r)
{
    struct story *s = t->owner;
    unsigned i = (unsigned)(t - s->tasks);

    s->order[s->ndone++] = i;
    s->results[i] = r;
}

static void story_open(struct story *s, const struct flaky_config *config)
{
    memset(s, 0, sizeof(*s));
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &s->device, NULL), 0);
    flaky_configure(s->device, config);
    for (unsigned i = 0; i < NTASKS; i++) {
        s->from[i] = 1;
        s->src[i] = &s->from[i];
        s->dst[i] = &s->to[i];
        s->tasks[i] = (struct task){ .kind = TASK_COPY,
                                     .dtype = DTYPE_U8,
                                     .nsrc = 1,
                                     .ndst = 1,
                                     .src = &s->src[i],
                                     .dst = &s->dst[i],
                                     .count = 1,
                                     .done = story_done,
                                     .owner = s };
    }
}

static void story_submit(struct story *s)
{
    for (unsigned i = 0; i < NTASKS; i++)
        assert_int_equal(device_submit(s->device, &s->tasks[i]), DEVICE_PENDING);
}

TEST(one_seed_tells_one_story)
{
    struct story a, b, c;

    story_open(&a, &(struct flaky_config){ .seed = 1 });
    story_open(&b, &(struct flaky_config){ .seed = 1 });
    story_open(&c, &(struct flaky_config){ .seed = 2 });
    story_submit(&a);
    story_submit(&b);
    story_submit(&c);
    while (flaky_step(a.device) && flaky_step(b.device) && flaky_step(c.device))
        ;
    assert_int_equal(a.ndone, NTASKS);
    assert_memory_equal(a.order, b.order, sizeof(a.order));
    assert_memory_not_equal(a.order, c.order, sizeof(a.order));
    device_flaky.close(a.device);
    device_flaky.close(b.device);
    device_flaky.close(c.device);
}

TEST(nothing_is_touched_before_its_step)
{
    struct story s;

    story_open(&s, &(struct flaky_config){ .seed = 3, .manual = true });
    story_submit(&s);
    device_poll(s.device);
    for (unsigned n = 0; n <= NTASKS; n++) {
        unsigned ncopied = 0;

        for (unsigned i = 0; i < NTASKS; i++)
            ncopied += s.to[i];
        assert_int_equal(ncopied, n);
        assert_int_equal(flaky_pending(s.device), NTASKS - n);
        assert_int_equal(flaky_step(s.device), n < NTASKS);
    }
    assert_int_equal(flaky_taken(s.device), NTASKS);
    device_flaky.close(s.device);
}

TEST(the_task_that_is_to_fail_fails_alone)
{
    struct story s;

    story_open(&s, &(struct flaky_config){ .seed = 4, .fail_task = 5, .fail_errno = EIO });
    story_submit(&s);
    while (flaky_step(s.device))
        ;
    for (unsigned i = 0; i < NTASKS; i++)
        assert_int_equal(s.results[i], i == 4 ? -EIO : 0);
    device_flaky.close(s.device);
}

TEST(a_stuck_task_waits_for_release_or_cancel)
{
    for (unsigned by_cancel = 0; by_cancel < 2; by_cancel++) {
        atomic_bool cancel = false;
        struct story s;

        story_open(&s, &(struct flaky_config){ .seed = 5, .stuck_task = 7 });
        s.tasks[6].cancel = &cancel;
        story_submit(&s);
        while (flaky_step(s.device))
            ;
        assert_int_equal(flaky_pending(s.device), 1);
        if (by_cancel)
            atomic_store(&cancel, true);
        else
            flaky_release(s.device);
        assert_true(flaky_step(s.device));
        assert_int_equal(s.order[NTASKS - 1], 6);
        assert_int_equal(s.results[6], by_cancel ? -ECANCELED : 0);
        device_flaky.close(s.device);
    }
}

TEST(busy_and_refusal_leave_the_task_to_its_owner)
{
    unsigned nbusy = 0, nrefused = 0, ntaken = 0;
    struct story s;

    story_open(&s, &(struct flaky_config){ .seed = 6, .busy_percent = 40, .refuse_percent = 40 });
    for (unsigned i = 0; i < NTASKS; i++) {
        int r = device_submit(s.device, &s.tasks[i]);

        assert_true(r != DEVICE_BUSY || flaky_pending(s.device) > 0);
        nbusy += r == DEVICE_BUSY;
        nrefused += r == -ENOMEM;
        ntaken += r == DEVICE_PENDING;
    }
    assert_true(nbusy > 0 && nrefused > 0 && ntaken > 0);
    assert_int_equal(nbusy + nrefused + ntaken, NTASKS);
    while (flaky_step(s.device))
        ;
    assert_int_equal(s.ndone, ntaken);
    device_flaky.close(s.device);
}

/* The kernel does for us what would kill us. */
static bool is_within_reach(const struct mapping *m)
{
    int fds[2];
    ssize_t n;

    assert_int_equal(pipe(fds), 0);
    n = write(fds[1], m->base, 1);
    assert_true(n == 1 || errno == EFAULT);
    close(fds[0]);
    close(fds[1]);
    return n == 1;
}

static void count_done(struct task *t, int r)
{
    assert_int_equal(r, 0);
    ++*(unsigned *)t->owner;
}

TEST(memory_of_gpus_is_reached_by_their_tasks_alone)
{
    struct mapping *m[2], *host;
    struct device *gpus, *other;
    unsigned ndone = 0;
    void *src, *dst;
    struct task task = { .kind = TASK_COPY,
                         .dtype = DTYPE_U8,
                         .nsrc = 1,
                         .ndst = 1,
                         .src = &src,
                         .dst = &dst,
                         .count = 100,
                         .mappings = m,
                         .nmappings = 2,
                         .done = count_done,
                         .owner = &ndone };

    assert_int_equal(device_flaky_gpus.open(&(struct device_config){ 0 }, &gpus, NULL), 0);
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &other, NULL), 0);
    host = flaky_memory(other, 100);
    for (unsigned i = 0; i < 2; i++)
        m[i] = flaky_memory(gpus, 100);
    memset(flaky_view(m[0]), 7, 100);
    src = m[0]->base;
    dst = m[1]->base;
    assert_int_equal(device_submit(gpus, &task), DEVICE_PENDING);
    assert_false(is_within_reach(m[0]) || is_within_reach(m[1]));
    assert_true(is_within_reach(host));
    device_poll(gpus);
    assert_int_equal(ndone, 1);
    assert_false(is_within_reach(m[0]) || is_within_reach(m[1]));
    assert_memory_equal(flaky_view(m[0]), flaky_view(m[1]), 100);
    assert_true(m[0]->ino != m[1]->ino);
    for (unsigned i = 0; i < 2; i++)
        mapping_unref(m[i]);
    mapping_unref(host);
    device_flaky.close(other);
    device_flaky_gpus.close(gpus);
}

TEST(fences_pass_by_polls_or_when_they_are_told_to)
{
    struct fence *after, *never;
    struct device *gpus;

    assert_int_equal(device_flaky_gpus.open(&(struct device_config){ 0 }, &gpus, NULL), 0);
    after = flaky_gpus_fence(gpus, 2);
    never = flaky_gpus_fence(gpus, FENCE_NEVER);
    assert_false(device_wants_turn(gpus));
    assert_int_equal(gpus->ops->fence_passed(never), 0);
    assert_false(device_wants_turn(gpus));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(gpus->ops->fence_passed(after), 0);
        assert_true(device_wants_turn(gpus));
        device_poll(gpus);
    }
    assert_int_equal(gpus->ops->fence_passed(after), 1);
    assert_int_equal(gpus->ops->fence_passed(never), 0);
    assert_false(device_wants_turn(gpus));
    flaky_gpus_settle(never, -EIO);
    assert_int_equal(gpus->ops->fence_passed(never), -EIO);
    fence_unref(after);
    fence_unref(never);
    device_flaky_gpus.close(gpus);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_seed_tells_one_story),
        cmocka_unit_test(nothing_is_touched_before_its_step),
        cmocka_unit_test(the_task_that_is_to_fail_fails_alone),
        cmocka_unit_test(a_stuck_task_waits_for_release_or_cancel),
        cmocka_unit_test(busy_and_refusal_leave_the_task_to_its_owner),
        cmocka_unit_test(memory_of_gpus_is_reached_by_their_tasks_alone),
        cmocka_unit_test(fences_pass_by_polls_or_when_they_are_told_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
