#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#include "daemon/device/device.h"
#include "daemon/device/fault.h"
#include "daemon/device/memfd.h"
#include "daemon/device/workers.h"
#include "shared/kernels.h"

#define WORKERS_DEFAULT_MAX 8u           /* memory is busy before so many cores are */
#define BLOCK_BYTES         (256u << 10) /* that a block touches: a part of a core's own cache */
#define HELP_BYTES          (3u << 20)   /* that an operation touches; with less, help is late */
#define SHORT_BYTES         (256u << 20) /* with more, the loop thread serves others */
#define STREAM_BYTES        (64u << 20)  /* with more, caches are no use */
#define COPY_GROUP          8u           /* destinations written side by side */
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

/* Bytes that one element of every source and destination takes. */
static uint64_t host_touched(const struct task *t)
{
    const struct dtype *type = dtype_get(t->dtype), *acc = dtype_get(type->accumulator);
    uint64_t wide = t->ngroups == 0 && t->src_wide ? t->nsrc : 0;

    for (uint32_t i = 0; i < t->ngroups; i++)
        wide += t->groups[i].wide ? t->groups[i].nsrc : 0;
    return (t->nsrc - wide) * type->width + wide * acc->width +
           (uint64_t)t->ndst * (t->dst_wide ? acc : type)->width;
}

/* Rests on the whole operation: its first task may not be told from a small one. */
static uint64_t host_operation_bytes(const struct task *t)
{
    return t->count * host_touched(t) * MAX(t->ntasks, 1);
}

/* Stores go past the caches where nothing would be left of them there anyway, but not to what has
 * just been read, and what is small stays. Asks one destination for all: it is about speed alone.
 */
static bool host_streams(const struct task *t)
{
    if (t->small || host_operation_bytes(t) < STREAM_BYTES)
        return false;
    for (uint32_t i = 0; t->kind == TASK_REDUCE && i < t->nsrc; i++)
        if (t->src[i] == t->dst[0])
            return false;
    return true;
}

/* Elements are bytes here, and a sum over one source is a copy: one read, and a store to each. */
static void host_copy_to(const struct task *t, void *const *dst, uint32_t ndst, uint64_t first,
                         uint64_t count)
{
    const struct host *h = t->private;
    const uint64_t width = dtype_get(t->dtype)->width;

    h->kernels->reduce[DTYPE_U8][OPERATOR_SUM](&(struct kernel_args){
        .src = (const void *const *)t->src,
        .dst = dst,
        .nsrc = 1,
        .ndst = ndst,
        .first = first * width,
        .count = count * width,
        .stream = host_streams(t),
    });
}

static void host_copy(const struct task *t, uint64_t first, uint64_t count)
{
    void *dst[COPY_GROUP];
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->ndst; i++) {
        if (t->dst[i] != t->src[0])
            dst[n++] = t->dst[i];
        if (n == COPY_GROUP || (i + 1 == t->ndst && n > 0)) {
            host_copy_to(t, dst, n, first, count);
            n = 0;
        }
    }
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
        .groups = t->groups,
        .ngroups = t->ngroups,
        .stream = host_streams(t),
    });
}

/* On workers, or on the loop thread for small tasks. */
static int host_run(const struct task *t, uint64_t first, uint64_t count)
{
    const struct fault_area area = fault_area_of(t), *before = fault_enter(&area);

    if (t->kind == TASK_COPY)
        host_copy(t, first, count);
    else
        host_reduce(t, first, count);
    fault_leave(before);
    return fault_found(&area) ? -EFAULT : 0;
}

static uint64_t host_block(const struct task *t)
{
    uint64_t block = BLOCK_BYTES / host_touched(t);

    return MAX(block - block % BLOCK_STEP, BLOCK_STEP);
}

static enum workers_use host_use_of_workers(const struct task *t)
{
    const uint64_t bytes = host_operation_bytes(t);

    if (bytes < HELP_BYTES)
        return WORKERS_NONE;
    return bytes <= SHORT_BYTES ? WORKERS_HELP : WORKERS_ALONE;
}

static int host_submit(struct device *device, struct task *task)
{
    const struct fault_area area = fault_area_of(task);
    struct host *h = host_of(device);

    assert(task->kind == TASK_COPY || h->kernels->reduce[task->dtype][task->op]);
    if (fault_found(&area))
        return -EFAULT;

    task->private = h;
    if (task->small) {
        if (task->cancel && atomic_load(task->cancel))
            return -ECANCELED;
        return host_run(task, 0, task->count);
    }
    if (!workers_submit(h->workers, task, host_block(task), host_use_of_workers(task)))
        return DEVICE_BUSY;
    return DEVICE_PENDING;
}

static void host_poll(struct device *device)
{
    workers_poll(host_of(device)->workers);
}

static bool host_wants_turn(const struct device *device)
{
    return workers_wants_turn(container_of(device, const struct host, base)->workers);
}

static int host_fd(const struct device *device)
{
    return workers_fd(container_of(device, const struct host, base)->workers);
}

/* The CPUs that this process may use, not those of the machine. */
static unsigned host_count_cpus(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return 1;
    return (unsigned)CPU_COUNT(&set);
}

static int host_import(struct device *device, const struct memory_handle *handle,
                       struct mapping **ret, struct error *e)
{
    if (handle->kind != MEMORY_MEMFD)
        return error_set(e, ERROR_INVALID_ARGUMENT, "the region is not host memory");
    return memfd_map(device, handle->fd, handle->bytes, ret, e);
}

/* All host memory is within reach. */
static int host_adopt(struct device *device, void *base, uint64_t bytes)
{
    (void)device, (void)base, (void)bytes;
    return 0;
}

static void host_disown(struct device *device, void *base)
{
    (void)device, (void)base;
}

static int host_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                             const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret,
                             struct error *e)
{
    (void)device, (void)gpu, (void)handle, (void)ret;
    return error_set(e, ERROR_INVALID_ARGUMENT, "host memory has no fences");
}

static int host_fence_passed(struct fence *fence)
{
    (void)fence;
    return 1;
}

static void host_fence_free(struct fence *fence)
{
    (void)fence;
}

/* It has no failures of its own. */
static void host_explain(const struct device *device, struct text *t)
{
    (void)device, (void)t;
}

static bool host_gpu(const struct device *device, uint32_t index, struct device_gpu *ret)
{
    (void)device, (void)index, (void)ret;
    return false;
}

static int host_open(const struct device_config *config, struct device **ret, struct error *e)
{
    const unsigned ncpus = host_count_cpus();
    unsigned nworkers = config->nworkers;
    struct host *h;
    int r;

    if (nworkers == 0)
        nworkers = MIN(ncpus, WORKERS_DEFAULT_MAX);
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
    r = workers_new(nworkers, ncpus, config->spin_us, host_run, &h->workers);
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
    .import = host_import,
    .unmap = memfd_unmap,
    .adopt = host_adopt,
    .disown = host_disown,
    .fence_import = host_fence_import,
    .fence_passed = host_fence_passed,
    .fence_free = host_fence_free,
    .explain = host_explain,
    .gpu = host_gpu,
    .submit = host_submit,
    .poll = host_poll,
    .wants_turn = host_wants_turn,
    .fd = host_fd,
};
