/* Regions of GPU memory: what an address belongs to, and how the daemon gets at it. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/gpu.h"
#include "client/region.h"
#include "client/report.h"

/* What is registered, and what is found out about it. */
struct finding {
    const struct cuda *cuda;
    uintptr_t ptr;
    uint64_t bytes;

    struct gpu *gpu;
    CUdeviceptr base; /* of the allocation around it */
    size_t size;
    enum region_kind kind;
    CUipcMemHandle ipc; /* of REGION_CUDA_IPC */
    int fd;             /* of REGION_CUDA_FD, else -1 */
    const char *staged; /* why the daemon cannot have it; NULL: it can */
};

static unsigned attribute(const struct finding *f, CUpointer_attribute which)
{
    return gpu_attribute(f->cuda, which, f->ptr);
}

/* ---------------------------------------------------------------- where it is */

static int find_gpu(struct gpus *s, struct finding *f, struct error *e)
{
    const unsigned type = attribute(f, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    int ordinal = 0, r;
    CUdevice device;

    if (type != CU_MEMORYTYPE_DEVICE && !attribute(f, CU_POINTER_ATTRIBUTE_IS_MANAGED))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register_cuda: %p is no address of a GPU's memory%s", (void *)f->ptr,
                         type == CU_MEMORYTYPE_HOST ? ", but of pinned memory of the host" : "");
    r = gpu_check(
        f->cuda,
        f->cuda->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, f->ptr),
        "register_cuda: cuPointerGetAttribute", e);
    if (r == 0)
        r = gpu_check(f->cuda, f->cuda->cuDeviceGet(&device, ordinal), "register_cuda: cuDeviceGet",
                      e);
    return r < 0 ? r : gpu_of_device(s, device, &f->gpu, e);
}

/* Its default stream would be another one than the caller means. */
static int check_context(const struct finding *f, struct error *e)
{
    CUcontext context = NULL;
    CUdevice device;

    if (f->cuda->cuCtxGetCurrent(&context) || !context || context == f->gpu->context ||
        f->cuda->cuCtxGetDevice(&device) || device != f->gpu->device)
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "register_cuda: the thread's current context is not the primary one of GPU "
                     "%d, which is the one that works with ruccl",
                     device);
}

/* ---------------------------------------------------------------- what it is part of */

static int beyond(const struct finding *f, uint64_t end, struct error *e)
{
    return error_set(e, ERROR_OUT_OF_RANGE,
                     "register_cuda: %llu bytes at %p end %llu bytes behind their allocation",
                     (unsigned long long)f->bytes, (void *)f->ptr,
                     (unsigned long long)(f->ptr + f->bytes - end));
}

/* Whether what lies behind the first allocation is GPU memory too, up to the end. */
static int find_several(const struct finding *f, struct error *e)
{
    CUdeviceptr at = f->base + f->size, base;
    size_t size;

    while (at < f->ptr + f->bytes) {
        if (f->cuda->cuMemGetAddressRange_v2(&base, &size, at))
            return beyond(f, at, e);
        at = base + size;
    }
    return 0;
}

/* cuMemCreate()'s: by the descriptor it is exported as. */
static int find_handle(struct finding *f, struct error *e)
{
    CUmemGenericAllocationHandle handle;
    CUresult exported;

    if (f->cuda->cuMemRetainAllocationHandle(&handle, (void *)f->ptr)) {
        f->staged = "it is of a pool";
        return f->ptr + f->bytes > f->base + f->size ? beyond(f, f->base + f->size, e) : 0;
    }
    exported = CUDA_ERROR_NOT_SUPPORTED;
    if (f->ptr + f->bytes <= f->base + f->size)
        exported = f->cuda->cuMemExportToShareableHandle(
            &f->fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    else
        f->staged = "it is of several handles";
    f->cuda->cuMemRelease(handle);
    if (f->staged)
        return find_several(f, e);
    f->kind = REGION_CUDA_FD;
    if (exported) {
        f->fd = -1;
        f->staged = "its handle was not made to be exported as a descriptor";
    }
    return 0;
}

/* In the GPU's context. */
static int find_allocation(struct finding *f, struct error *e)
{
    int r;

    if (attribute(f, CU_POINTER_ATTRIBUTE_IS_MANAGED))
        f->staged = "it is managed";
    r = gpu_check(f->cuda, f->cuda->cuMemGetAddressRange_v2(&f->base, &f->size, f->ptr),
                  "register_cuda: cuMemGetAddressRange", e);
    if (r < 0)
        return r;
    if (!f->staged && !attribute(f, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE))
        return find_handle(f, e);
    if (f->ptr + f->bytes > f->base + f->size)
        return beyond(f, f->base + f->size, e);
    f->kind = REGION_CUDA_IPC;
    if (!f->staged && f->cuda->cuIpcGetMemHandle(&f->ipc, f->base))
        f->staged = "the driver gives no handle to it";
    return 0;
}

static int find(struct gpus *s, struct finding *f, struct error *e)
{
    int r;

    r = find_gpu(s, f, e);
    if (r == 0)
        r = check_context(f, e);
    if (r == 0)
        r = gpu_enter(f->gpu, e);
    if (r < 0)
        return r;
    r = find_allocation(f, e);
    gpu_leave(f->gpu);
    return r;
}

/* ---------------------------------------------------------------- registering */

static int open_at_daemon(struct ruccl_region *region, const struct finding *f, struct error *e)
{
    struct request q = { .region_open = { .bytes = f->size, .kind = f->kind } };

    memcpy(q.region_open.gpu, f->gpu->uuid, sizeof(q.region_open.gpu));
    if (f->kind == REGION_CUDA_IPC)
        memcpy(q.region_open.ipc, &f->ipc, sizeof(q.region_open.ipc));
    region->skip = f->ptr - f->base;
    return region_open(region, &q, f->fd, e);
}

static int make(struct ruccl_conn *c, const struct finding *f, struct ruccl_region **ret,
                struct error *e)
{
    struct ruccl_region *region = region_new_bare(c, (void *)f->ptr, f->bytes);
    int r = 0;

    if (!region)
        return error_set_errno(e, ENOMEM, "register_cuda");
    region->gpu = f->gpu;
    region->staged = f->staged;
    if (f->staged)
        report_log(
            REPORT_INFO,
            "%llu bytes of GPU memory at %p cannot be shared with the daemon, since %s: calls "
            "copy them through host memory",
            (unsigned long long)f->bytes, (void *)f->ptr, f->staged);
    else
        r = open_at_daemon(region, f, e);
    if (r < 0) {
        region_free(region);
        return r;
    }
    region_publish(region);
    list_prepend(&c->gpus->regions, &region->order);
    *ret = region;
    return 0;
}

static int register_cuda(struct ruccl_conn *c, struct finding *f, struct ruccl_region **ret,
                         struct error *e)
{
    struct gpus *s;
    int r;

    r = conn_check(c, e);
    if (r == 0 && !c->has_gpus)
        r = error_set(e, ERROR_NOT_FOUND,
                      "register_cuda: the daemon at %s uses no GPU; see `gpus` in ruccld.conf(5)",
                      c->path);
    if (r == 0)
        r = gpus_get(c, f->cuda, &s, e);
    if (r == 0)
        r = find(s, f, e);
    if (r < 0)
        return r;
    r = gpu_cells_get(c, f->gpu, e);
    if (r == 0)
        r = make(c, f, ret, e);
    if (f->fd >= 0)
        close(f->fd);
    return r;
}

int ruccl_register_cuda(struct ruccl_conn *c, void *ptr, uint64_t bytes, struct ruccl_region **ret)
{
    struct finding f = { .ptr = (uintptr_t)ptr, .bytes = bytes, .fd = -1 };
    struct error e = { 0 };
    int r;

    r = region_check_new(c, bytes, ret, "register_cuda");
    if (r < 0)
        return r;
    if (gpu_load(&f.cuda, &e) < 0)
        return report_error(&e);
    r = conn_enter(c);
    if (r < 0)
        return r;
    r = register_cuda(c, &f, ret, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

int ruccl_region_is_staged(const struct ruccl_region *region)
{
    return region && region->staged;
}

struct ruccl_region *gpu_find_region(const struct ruccl_conn *c, uintptr_t address)
{
    struct ruccl_region *region;

    if (!c->gpus)
        return NULL;
    list_for_each(region, &c->gpus->regions, order)
        if (address - (uintptr_t)region->data < region->bytes)
            return region;
    return NULL;
}
