/* Regions of GPU memory: what an address belongs to, and how the daemon gets at it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/gpu.h"
#include "client/region.h"
#include "client/report.h"

/*
 * Registered once a connection, however many regions lie in it: by this the daemon knows that they
 * do, since the driver gives a descriptor no identity. Here it has one: by driver's promise handles
 * of legacy IPC are never the same for two allocations, and a handle of cuMemCreate() that is held
 * belongs to nothing else.
 */
struct gpu_allocation {
    struct gpus *gpus;
    struct gpu *gpu;
    enum region_kind kind;
    size_t bytes;
    CUipcMemHandle ipc;                  /* of REGION_CUDA_IPC, else zero */
    CUmemGenericAllocationHandle handle; /* of REGION_CUDA_FD, held */
    uint32_t number;                     /* at the daemon */
    unsigned users;                      /* regions, and who registers them */
    bool opening;                        /* the daemon has not answered yet */
    bool refused;                        /* it has, with a no */
    struct list link;                    // gpus::allocations
};

/* What is registered, and what is found out about it. */
struct finding {
    const struct cuda *cuda;
    uintptr_t ptr;
    uint64_t bytes;

    struct gpu *gpu;
    CUdeviceptr base; /* of the allocation around it */
    size_t size;
    enum region_kind kind;
    CUipcMemHandle ipc;                  /* of REGION_CUDA_IPC */
    CUmemGenericAllocationHandle handle; /* of REGION_CUDA_FD, held; 0: not */
    const char *staged;                  /* why the daemon cannot have it; NULL: it can */
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

/* cuMemCreate()'s. */
static int find_handle(struct finding *f, struct error *e)
{
    if (f->cuda->cuMemRetainAllocationHandle(&f->handle, (void *)f->ptr)) {
        f->handle = 0;
        f->staged = "it is of a pool";
        return f->ptr + f->bytes > f->base + f->size ? beyond(f, f->base + f->size, e) : 0;
    }
    f->kind = REGION_CUDA_FD;
    if (f->ptr + f->bytes <= f->base + f->size)
        return 0;
    f->staged = "it is of several handles";
    return find_several(f, e);
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

/* ---------------------------------------------------------------- known to the daemon once */

static bool is_same(const struct gpu_allocation *a, const struct finding *f)
{
    return a->gpu == f->gpu && a->kind == f->kind && a->handle == f->handle &&
           memcmp(&a->ipc, &f->ipc, sizeof(a->ipc)) == 0;
}

static struct gpu_allocation *find_allocation_of(const struct finding *f)
{
    struct gpu_allocation *a;

    list_for_each(a, &f->gpu->gpus->allocations, link)
        if (is_same(a, f))
            return a;
    return NULL;
}

static void let_handle_go(const struct gpus *s, CUmemGenericAllocationHandle handle)
{
    if (handle && s->pid == getpid())
        s->cuda->cuMemRelease(handle);
}

bool gpu_allocation_let_go(struct gpu_allocation *a)
{
    if (!a || --a->users > 0)
        return false;
    let_handle_go(a->gpus, a->handle);
    list_remove(&a->link);
    free(a);
    return true;
}

static int ask_for_it(struct ruccl_conn *c, struct gpu_allocation *a, int fd, struct error *e)
{
    struct request q = { .region_open = { .bytes = a->bytes, .kind = a->kind } };

    memcpy(q.region_open.gpu, a->gpu->uuid, sizeof(q.region_open.gpu));
    memcpy(q.region_open.ipc, &a->ipc, sizeof(q.region_open.ipc));
    return region_open(c, &q, fd, &a->number, e);
}

/* Takes the handle. */
static struct gpu_allocation *allocation_new(struct finding *f)
{
    struct gpu_allocation *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->gpus = f->gpu->gpus;
    a->gpu = f->gpu;
    a->kind = f->kind;
    a->bytes = f->size;
    a->ipc = f->ipc;
    a->handle = f->handle;
    f->handle = 0;
    a->users = 1;
    list_prepend(&a->gpus->allocations, &a->link);
    return a;
}

static int allocation_open(struct ruccl_conn *c, struct finding *f, int fd,
                           struct gpu_allocation **ret, struct error *e)
{
    struct gpu_allocation *a = allocation_new(f);
    int r;

    if (!a)
        return error_set_errno(e, ENOMEM, "register_cuda");
    a->opening = true;
    r = ask_for_it(c, a, fd, e);
    a->opening = false;
    a->refused = r < 0;
    conn_wake(c);
    if (r < 0) {
        list_remove(&a->link); /* nobody finds it while some have yet to hear of it */
        gpu_allocation_let_go(a);
    } else {
        *ret = a;
    }
    return r;
}

static bool allocation_is_settled(const void *subject)
{
    return !((const struct gpu_allocation *)subject)->opening;
}

/* One that is there, once the daemon has said yes to it. Return: 0, -ENOENT: it said no, and is
 * asked again; or -code. */
static int allocation_join(struct ruccl_conn *c, struct gpu_allocation *a, const struct finding *f,
                           struct gpu_allocation **ret, struct error *e)
{
    int r;

    if (a->bytes != f->size)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "register_cuda: %p is mapped with %zu bytes, but elsewhere, where it is "
                         "registered already, with %zu",
                         (void *)f->ptr, f->size, a->bytes);
    a->users++;
    conn_wait(c, allocation_is_settled, a, CONN_NO_DEADLINE);
    r = conn_check(c, e);
    if (r == 0 && a->refused)
        r = -ENOENT;
    if (r < 0)
        gpu_allocation_let_go(a);
    else
        *ret = a;
    return r;
}

/* In the GPU's context. `*ret_fd`: what goes along with the request; -1: nothing. */
static bool export_it(struct finding *f, int *ret_fd)
{
    *ret_fd = -1;
    if (f->kind != REGION_CUDA_FD)
        return true;
    if (!f->cuda->cuMemExportToShareableHandle(ret_fd, f->handle,
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
        return true;
    f->staged = "its handle was not made to be exported as a descriptor";
    return false;
}

/* NULL where there turns out to be nothing that the daemon could have. */
static int allocation_get(struct ruccl_conn *c, struct finding *f, struct gpu_allocation **ret,
                          struct error *e)
{
    struct gpu_allocation *a;
    int r = -ENOENT, fd;
    bool exported;

    *ret = NULL;
    while (r == -ENOENT && (a = find_allocation_of(f)))
        r = allocation_join(c, a, f, ret, e);
    if (r != -ENOENT)
        return r;
    r = gpu_enter(f->gpu, e);
    if (r < 0)
        return r;
    exported = export_it(f, &fd);
    gpu_leave(f->gpu);
    if (!exported)
        return 0;
    r = allocation_open(c, f, fd, ret, e);
    if (fd >= 0)
        close(fd);
    return r;
}

/* ---------------------------------------------------------------- registering */

static int make(struct ruccl_conn *c, struct finding *f, struct ruccl_region **ret, struct error *e)
{
    struct ruccl_region *region = region_new_bare(c, (void *)f->ptr, f->bytes);
    int r = 0;

    if (!region)
        return error_set_errno(e, ENOMEM, "register_cuda");
    if (!f->staged)
        r = allocation_get(c, f, &region->allocation, e);
    if (r < 0) {
        region_free(region);
        return r;
    }
    if (f->staged)
        report_log(
            REPORT_INFO,
            "%llu bytes of GPU memory at %p cannot be shared with the daemon, since %s: calls "
            "copy them through host memory",
            (unsigned long long)f->bytes, (void *)f->ptr, f->staged);
    region->gpu = f->gpu;
    region->staged = f->staged;
    region->skip = f->ptr - f->base;
    region->number = region->allocation ? region->allocation->number : 0;
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
    if (r < 0)
        return r;
    r = find(s, f, e);
    if (r == 0)
        r = gpu_cells_get(c, f->gpu, e);
    if (r == 0)
        r = make(c, f, ret, e);
    let_handle_go(s, f->handle);
    return r;
}

int ruccl_register_cuda(struct ruccl_conn *c, void *ptr, uint64_t bytes, struct ruccl_region **ret)
{
    struct finding f = { .ptr = (uintptr_t)ptr, .bytes = bytes };
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
