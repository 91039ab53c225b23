#include "client/gpu.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/conn.h"

/* What is of the process, not of a connection. */
static struct {
    pthread_mutex_t lock;
    _Atomic(const struct cuda *) cuda; /* NULL: not loaded */
    struct list parting;               /* gpus that streams still look at */
} process = { .lock = PTHREAD_MUTEX_INITIALIZER, .parting = LIST_INIT(process.parting) };

int gpu_load(const struct cuda **ret, struct error *e)
{
    const struct cuda *cuda;
    int r;

    pthread_mutex_lock(&process.lock);
    r = cuda_load(&cuda, e);
    if (r == 0)
        atomic_store(&process.cuda, cuda);
    pthread_mutex_unlock(&process.lock);
    if (r == 0)
        *ret = cuda;
    return r;
}

int gpu_check(const struct cuda *cuda, CUresult result, const char *function, struct error *e)
{
    if (!result)
        return 0;
    return error_set(e, ERROR_SYSTEM, "%s: %s (%d)", function, cuda_error_name(cuda, result),
                     result);
}

/* ---------------------------------------------------------------- contexts */

int gpu_enter(const struct gpu *gpu, struct error *e)
{
    const struct cuda *cuda = gpu->gpus->cuda;

    return gpu_check(cuda, cuda->cuCtxPushCurrent_v2(gpu->context), "cuCtxPushCurrent", e);
}

void gpu_leave(const struct gpu *gpu)
{
    CUcontext ignored;

    gpu->gpus->cuda->cuCtxPopCurrent_v2(&ignored);
}

static struct gpu *find_gpu(struct gpus *s, CUdevice device)
{
    struct gpu *gpu;

    list_for_each(gpu, &s->gpus, link)
        if (gpu->device == device)
            return gpu;
    return NULL;
}

int gpu_of_device(struct gpus *s, CUdevice device, struct gpu **ret, struct error *e)
{
    const struct cuda *cuda = s->cuda;
    struct gpu *gpu = find_gpu(s, device);
    CUuuid uuid;
    int r;

    if (gpu) {
        *ret = gpu;
        return 0;
    }
    gpu = calloc(1, sizeof(*gpu));
    if (!gpu)
        return error_set_errno(e, ENOMEM, "GPU");
    gpu->gpus = s;
    gpu->device = device;
    list_init(&gpu->fences);
    r = gpu_check(cuda, cuda->cuDeviceGetUuid_v2(&uuid, device), "cuDeviceGetUuid", e);
    if (r == 0)
        r = gpu_check(cuda, cuda->cuDevicePrimaryCtxRetain(&gpu->context, device),
                      "cuDevicePrimaryCtxRetain", e);
    if (r < 0) {
        free(gpu);
        return r;
    }
    memcpy(gpu->uuid, uuid.bytes, sizeof(gpu->uuid));
    list_append(&s->gpus, &gpu->link);
    *ret = gpu;
    return 0;
}

static int device_of_context(const struct cuda *cuda, CUcontext context, CUdevice *ret,
                             struct error *e)
{
    CUcontext ignored;
    int r;

    r = gpu_check(cuda, cuda->cuCtxPushCurrent_v2(context), "cuCtxPushCurrent", e);
    if (r < 0)
        return r;
    r = gpu_check(cuda, cuda->cuCtxGetDevice(ret), "cuCtxGetDevice", e);
    cuda->cuCtxPopCurrent_v2(&ignored);
    return r;
}

int gpu_of_stream(CUstream stream, struct gpu **gpu, struct error *e)
{
    const struct cuda *cuda = (*gpu)->gpus->cuda;
    CUcontext context = NULL;
    CUdevice device;
    int r;

    r = gpu_enter(*gpu, e); /* that of streams which are anybody's, as the one per thread */
    if (r < 0)
        return r;
    r = gpu_check(cuda, cuda->cuStreamGetCtx(stream, &context), "cuStreamGetCtx", e);
    gpu_leave(*gpu);
    if (r == 0 && context != (*gpu)->context)
        r = device_of_context(cuda, context, &device, e);
    if (r < 0 || context == (*gpu)->context)
        return r;
    r = gpu_of_device((*gpu)->gpus, device, gpu, e);
    if (r == 0 && context != (*gpu)->context)
        r = error_set(e, ERROR_INVALID_ARGUMENT,
                      "the stream is of a context that is not the primary one of GPU %d", device);
    return r;
}

/* ---------------------------------------------------------------- life */

static void gpu_free(struct gpu *gpu, bool ours)
{
    struct error ignored = { 0 };
    const bool entered = ours && gpu_enter(gpu, &ignored) == 0;

    gpu_fences_free(gpu, entered);
    if (entered)
        gpu_leave(gpu);
    if (ours)
        gpu->gpus->cuda->cuDevicePrimaryCtxRelease_v2(gpu->device);
    list_remove(&gpu->link);
    free(gpu);
}

static void gpus_destroy(struct gpus *s)
{
    const bool ours = s->pid == getpid();

    gpu_cells_free(s, ours);
    while (!list_empty(&s->gpus))
        gpu_free(list_first(&s->gpus, struct gpu, link), ours);
    free(s->signals);
    free(s);
}

static bool is_passed(const struct gpus *s)
{
    const struct gpu *gpu;

    list_for_each(gpu, &s->gpus, link)
        if (!gpu_fences_are_passed(gpu))
            return false;
    return true;
}

/* With the process's lock held. */
static void sweep(void)
{
    struct gpus *s, *tmp;

    list_for_each_safe(s, tmp, &process.parting, link)
        if (is_passed(s)) {
            list_remove(&s->link);
            gpus_destroy(s);
        }
}

void gpus_free(struct gpus *s)
{
    if (!s)
        return;
    if (s->pid != getpid()) {
        gpus_destroy(s);
        return;
    }
    pthread_mutex_lock(&process.lock);
    list_append(&process.parting, &s->link);
    sweep();
    pthread_mutex_unlock(&process.lock);
}

int gpus_get(struct ruccl_conn *c, const struct cuda *cuda, struct gpus **ret, struct error *e)
{
    struct gpus *s = c->gpus;

    pthread_mutex_lock(&process.lock);
    sweep();
    pthread_mutex_unlock(&process.lock);
    if (!s) {
        s = calloc(1, sizeof(*s));
        if (!s)
            return error_set_errno(e, ENOMEM, "GPUs");
        s->cuda = cuda;
        s->pid = c->pid;
        list_init(&s->gpus);
        list_init(&s->regions);
        list_init(&s->allocations);
        list_init(&s->link);
        c->gpus = s;
    }
    *ret = s;
    return 0;
}

/* ---------------------------------------------------------------- memory */

unsigned gpu_attribute(const struct cuda *cuda, CUpointer_attribute which, uintptr_t address)
{
    unsigned value = 0;

    return cuda->cuPointerGetAttribute(&value, which, address) ? 0 : value;
}

bool gpu_has_memory(uintptr_t address)
{
    const struct cuda *cuda = atomic_load_explicit(&process.cuda, memory_order_acquire);

    return cuda &&
           gpu_attribute(cuda, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CU_MEMORYTYPE_DEVICE &&
           !gpu_attribute(cuda, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
}

static int finish_copy(const struct gpu_place *at, CUresult copied, const char *function,
                       struct error *e)
{
    const struct cuda *cuda = at->gpu->gpus->cuda;
    int r = gpu_check(cuda, copied, function, e);

    if (r == 0)
        r = gpu_check(cuda, cuda->cuStreamSynchronize(at->stream), "cuStreamSynchronize", e);
    gpu_leave(at->gpu);
    return r;
}

int gpu_read(const struct gpu_place *at, void *to, uintptr_t from, uint64_t bytes, struct error *e)
{
    const struct cuda *cuda = at->gpu->gpus->cuda;
    int r = gpu_enter(at->gpu, e);

    if (r < 0)
        return r;
    return finish_copy(at, cuda->cuMemcpyDtoHAsync_v2(to, from, bytes, at->stream),
                       "cuMemcpyDtoHAsync", e);
}

int gpu_write(const struct gpu_place *at, uintptr_t to, const void *from, uint64_t bytes,
              struct error *e)
{
    const struct cuda *cuda = at->gpu->gpus->cuda;
    int r = gpu_enter(at->gpu, e);

    if (r < 0)
        return r;
    return finish_copy(at, cuda->cuMemcpyHtoDAsync_v2(to, from, bytes, at->stream),
                       "cuMemcpyHtoDAsync", e);
}
