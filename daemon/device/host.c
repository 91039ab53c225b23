#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/device/device.h"
#include "daemon/device/fault.h"
#include "daemon/device/host_kernels.h"
#include "daemon/device/memfd.h"
#include "daemon/device/workers.h"

#define WORKERS_DEFAULT_MAX 8u           /* memory is busy before so many cores are */
#define BLOCK_BYTES         (256u << 10) /* that a block touches: a part of a core's own cache */
#define BLOCK_STEP          64u          /* elements: no two blocks share a cache line */

struct host {
    struct device base;
    const struct kernel_row *kernels;
    struct workers *workers;
};

static struct host *host_of(struct device *device)
{
    return container_of(device, struct host, base);
}

static void host_copy(const struct task *t, uint64_t first, uint64_t count)
{
    const uint64_t width = dtype_get(t->dtype)->width;
    const uint8_t *src = t->src[0];

    for (uint32_t i = 0; i < t->ndst; i++)
        if (t->dst[i] != src)
            memcpy((uint8_t *)t->dst[i] + first * width, src + first * width, count * width);
}

static void host_reduce(const struct task *t, uint64_t first, uint64_t count)
{
    const struct host *h = t->private;

    h->kernels->reduce[t->dtype][t->op](&(struct kernel_args){
        .src = (const void *const *)t->src,
        .dst = t->dst,
        .nsrc = t->nsrc,
        .ndst = t->ndst,
        .first = first,
        .count = count,
        .divisor = t->divisor,
        .src_wide = t->src_wide,
        .dst_wide = t->dst_wide,
    });
}

/* On workers, or on the loop thread for small tasks. */
static int host_run(const struct task *t, uint64_t first, uint64_t count)
{
    fault_enter(t);
    if (t->kind == TASK_COPY)
        host_copy(t, first, count);
    else
        host_reduce(t, first, count);
    fault_leave();
    return fault_found(t) ? -EFAULT : 0;
}

static uint64_t host_block(const struct task *t)
{
    const struct dtype *type = dtype_get(t->dtype), *acc = dtype_get(type->accumulator);
    uint64_t touched = (uint64_t)t->nsrc * (t->src_wide ? acc : type)->width +
                       (uint64_t)t->ndst * (t->dst_wide ? acc : type)->width;
    uint64_t block = BLOCK_BYTES / touched;

    return MAX(block - block % BLOCK_STEP, BLOCK_STEP);
}

static int host_submit(struct device *device, struct task *task)
{
    struct host *h = host_of(device);

    assert(task->kind == TASK_COPY || h->kernels->reduce[task->dtype][task->op]);
    if (fault_found(task))
        return -EFAULT;

    task->private = h;
    if (task->small) {
        if (task->cancel && atomic_load(task->cancel))
            return -ECANCELED;
        return host_run(task, 0, task->count);
    }
    return workers_submit(h->workers, task, host_block(task)) ? DEVICE_PENDING : DEVICE_BUSY;
}

static void host_poll(struct device *device)
{
    workers_poll(host_of(device)->workers);
}

static int host_fd(const struct device *device)
{
    return workers_fd(container_of(device, const struct host, base)->workers);
}

/* The CPUs that this process may use, not those of the machine. */
static unsigned host_choose_nworkers(void)
{
    cpu_set_t set;
    int n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    return MIN((unsigned)n, WORKERS_DEFAULT_MAX);
}

static int host_open(unsigned nworkers, struct device **ret, struct error *e)
{
    struct host *h;
    int r;

    h = calloc(1, sizeof(*h));
    if (!h)
        return error_set_errno(e, ENOMEM, "opening the host device");
    h->base.ops = &device_host;
    h->kernels = kernel_row_best();

    r = fault_install();
    if (r < 0) {
        free(h);
        return error_set_errno(e, -r, "installing the SIGBUS handler");
    }
    r = workers_new(nworkers ? nworkers : host_choose_nworkers(), host_run, &h->workers);
    if (r < 0) {
        fault_uninstall();
        free(h);
        return error_set_errno(e, -r, "starting the host device's workers");
    }
    *ret = &h->base;
    return 0;
}

static void host_close(struct device *device)
{
    struct host *h = host_of(device);

    workers_free(h->workers);
    fault_uninstall();
    free(h);
}

const struct device_ops device_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .import = memfd_map,
    .unmap = memfd_unmap,
    .submit = host_submit,
    .poll = host_poll,
    .fd = host_fd,
};
