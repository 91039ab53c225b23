#include "tests/contract/flaky_device.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/device/fault.h"
#include "shared/kernels.h"
#include "daemon/device/memfd.h"

#define FLAKY_HELD_MAX 64u

struct held {
    struct task *task;
    uint64_t number; /* of tasks taken, from 1 */
};

struct flaky {
    struct device base;
    struct flaky_config config;
    struct flaky_watch watch;
    uint64_t random;
    uint64_t taken;
    bool released;
    int event_fd;
    unsigned nheld;
    struct held held[FLAKY_HELD_MAX];
};

static struct flaky *flaky_of(struct device *device)
{
    return container_of(device, struct flaky, base);
}

/* splitmix64 */
static uint64_t flaky_random(struct flaky *f, uint64_t below)
{
    uint64_t z = (f->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

static bool flaky_chance(struct flaky *f, unsigned percent)
{
    return flaky_random(f, 100) < percent;
}

static bool flaky_cancelled(const struct task *t)
{
    return t->cancel && atomic_load(t->cancel);
}

/* The event descriptor counts 1 while tasks are held. */
static void flaky_set_event(struct flaky *f, bool held)
{
    uint64_t one = 1;
    ssize_t n;

    n = held ? write(f->event_fd, &one, sizeof(one)) : read(f->event_fd, &one, sizeof(one));
    assert(n == sizeof(one));
    (void)n;
}

static void flaky_copy(const struct task *t, uint64_t count)
{
    for (uint32_t i = 0; i < t->ndst; i++)
        if (t->dst[i] != t->src[0])
            memcpy(t->dst[i], t->src[0], count * dtype_get(t->dtype)->width);
}

static void flaky_reduce(const struct task *t, uint64_t count)
{
    kernel_rows[0]->reduce[t->dtype][t->op](&(struct kernel_args){
        .src = (const void *const *)t->src,
        .dst = t->dst,
        .nsrc = t->nsrc,
        .ndst = t->ndst,
        .count = count,
        .divisor = t->divisor,
        .src_wide = t->src_wide,
        .dst_wide = t->dst_wide,
        .groups = t->groups,
        .ngroups = t->ngroups,
    });
}

/* Runs the first `count` elements. */
static void flaky_run(const struct flaky *f, const struct task *t, uint64_t count)
{
    const struct fault_area area = fault_area_of(t), *before = fault_enter(&area);

    if (f->watch.enter)
        f->watch.enter(f->watch.context, t);
    if (t->kind == TASK_COPY)
        flaky_copy(t, count);
    else
        flaky_reduce(t, count);
    if (f->watch.leave)
        f->watch.leave(f->watch.context, t);
    fault_leave(before);
}

static void flaky_signal(struct flaky *f, const struct task *t)
{
    for (uint32_t i = 0; i < t->nsignals; i++) {
        const struct signal *s = &t->signals[i];

        if (!flaky_chance(f, f->config.mute_percent))
            memcpy((char *)s->cells->base + s->offset, &s->value, sizeof(s->value));
    }
}

static int flaky_complete(struct flaky *f, const struct task *t, uint64_t number)
{
    const struct fault_area area = fault_area_of(t);

    if (fault_found(&area))
        return -EFAULT;
    if (flaky_cancelled(t)) {
        flaky_run(f, t, flaky_random(f, t->count + 1));
        return -ECANCELED;
    }
    if (number == f->config.fail_task) {
        flaky_run(f, t, t->count / 2);
        if (f->config.fail_errno == EFAULT && t->nmappings > 0)
            atomic_store(&t->mappings[0]->fault, true);
        return -f->config.fail_errno;
    }
    flaky_run(f, t, t->count);
    if (fault_found(&area))
        return -EFAULT;
    flaky_signal(f, t);
    return 0;
}

static bool flaky_may_complete(const struct flaky *f, const struct held *h)
{
    return h->number != f->config.stuck_task || f->released || flaky_cancelled(h->task);
}

bool flaky_step(struct device *device)
{
    struct flaky *f = flaky_of(device);
    unsigned ready[FLAKY_HELD_MAX], nready = 0, i;
    struct held h;
    int r;

    for (i = 0; i < f->nheld; i++)
        if (flaky_may_complete(f, &f->held[i]))
            ready[nready++] = i;
    if (nready == 0)
        return false;

    i = ready[flaky_random(f, nready)];
    h = f->held[i];
    f->held[i] = f->held[--f->nheld];
    if (f->nheld == 0)
        flaky_set_event(f, false);

    r = flaky_complete(f, h.task, h.number);
    h.task->done(h.task, r);
    return true;
}

void flaky_release(struct device *device)
{
    flaky_of(device)->released = true;
}

unsigned flaky_pending(const struct device *device)
{
    return container_of(device, const struct flaky, base)->nheld;
}

void flaky_set_watch(struct device *device, const struct flaky_watch *watch)
{
    flaky_of(device)->watch = *watch;
}

bool flaky_touches(const struct device *device, const struct mapping *m)
{
    const struct flaky *f = container_of(device, const struct flaky, base);

    for (unsigned i = 0; i < f->nheld; i++)
        for (uint32_t j = 0; j < f->held[i].task->nmappings; j++)
            if (f->held[i].task->mappings[j] == m)
                return true;
    return false;
}

uint64_t flaky_taken(const struct device *device)
{
    return container_of(device, const struct flaky, base)->taken;
}

void flaky_configure(struct device *device, const struct flaky_config *config)
{
    struct flaky *f = flaky_of(device);

    assert(f->nheld == 0);
    f->config = *config;
    f->random = config->seed;
    f->taken = 0;
    f->released = false;
}

static int flaky_import(struct device *device, const struct memory_handle *handle,
                        struct mapping **ret, struct error *e)
{
    return memfd_map(device, handle->fd, handle->bytes, ret, e);
}

static int flaky_adopt(struct device *device, void *base, uint64_t bytes)
{
    (void)device, (void)base, (void)bytes;
    return 0;
}

static void flaky_disown(struct device *device, void *base)
{
    (void)device, (void)base;
}

static int flaky_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                              const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret,
                              struct error *e)
{
    (void)device, (void)gpu, (void)handle, (void)ret;
    return error_set(e, ERROR_INVALID_ARGUMENT, "the flaky device has no fences");
}

static int flaky_fence_passed(struct fence *fence)
{
    (void)fence;
    return 1;
}

static void flaky_fence_free(struct fence *fence)
{
    (void)fence;
}

static void flaky_explain(const struct device *device, struct text *t)
{
    (void)device, (void)t;
}

static bool flaky_gpu(const struct device *device, uint32_t index, struct device_gpu *ret)
{
    (void)device, (void)index, (void)ret;
    return false;
}

static int flaky_open(const struct device_config *config, struct device **ret, struct error *e)
{
    struct flaky *f;

    (void)config;
    f = calloc(1, sizeof(*f));
    if (!f)
        return error_set_errno(e, ENOMEM, "opening the flaky device");
    f->base.ops = &device_flaky;
    f->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (f->event_fd < 0 || fault_install() < 0) {
        free(f);
        return error_set(e, ERROR_SYSTEM, "the flaky device does not open");
    }
    *ret = &f->base;
    return 0;
}

static void flaky_close(struct device *device)
{
    struct flaky *f = flaky_of(device);

    assert(f->nheld == 0);
    fault_uninstall();
    close(f->event_fd);
    free(f);
}

/* Memory that a held task still touches must not go away. */
static void flaky_unmap(struct mapping *m)
{
    assert(!flaky_touches(m->device, m));
    memfd_unmap(m);
}

static int flaky_submit(struct device *device, struct task *task)
{
    const struct fault_area area = fault_area_of(task);
    struct flaky *f = flaky_of(device);

    if (fault_found(&area))
        return -EFAULT;
    if (flaky_chance(f, f->config.refuse_percent))
        return -ENOMEM;
    if (f->nheld == FLAKY_HELD_MAX || (f->nheld > 0 && flaky_chance(f, f->config.busy_percent)))
        return DEVICE_BUSY;

    f->taken++;
    if (task->small && f->taken != f->config.stuck_task &&
        flaky_chance(f, f->config.inline_percent))
        return flaky_complete(f, task, f->taken);

    if (f->nheld == 0)
        flaky_set_event(f, true);
    f->held[f->nheld++] = (struct held){ task, f->taken };
    return DEVICE_PENDING;
}

static void flaky_poll(struct device *device)
{
    if (!flaky_of(device)->config.manual)
        flaky_step(device);
}

static bool flaky_wants_turn(const struct device *device)
{
    (void)device;
    return false;
}

static int flaky_fd(const struct device *device)
{
    return container_of(device, const struct flaky, base)->event_fd;
}

const struct device_ops device_flaky = {
    .name = "flaky",
    .open = flaky_open,
    .close = flaky_close,
    .import = flaky_import,
    .unmap = flaky_unmap,
    .adopt = flaky_adopt,
    .disown = flaky_disown,
    .fence_import = flaky_fence_import,
    .fence_passed = flaky_fence_passed,
    .fence_free = flaky_fence_free,
    .explain = flaky_explain,
    .gpu = flaky_gpu,
    .submit = flaky_submit,
    .poll = flaky_poll,
    .wants_turn = flaky_wants_turn,
    .fd = flaky_fd,
};
