/* The order of calls and streams: fences before, signals behind. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/conn.h"
#include "client/gpu.h"
#include "client/region.h"

struct gpu_fence {
    struct gpu *gpu;
    uint32_t number;  /* at the daemon */
    unsigned uses;    /* the work's, and while it posts its thread's */
    CUevent before;   /* what the daemon waits for */
    CUevent behind;   /* recorded behind the last wait for a signal */
    struct list link; // gpu::fences
};

/* ---------------------------------------------------------------- cells */

static bool cells_are_settled(const void *subject)
{
    return !((const struct gpus *)subject)->opening;
}

void gpu_cells_free(struct gpus *s, bool ours)
{
    const struct gpu *gpu = list_first(&s->gpus, struct gpu, link); /* any; there is one */
    struct error ignored = { 0 };

    if (!s->cells)
        return;
    if (ours && gpu_enter(gpu, &ignored) == 0) {
        s->cuda->cuMemHostUnregister((void *)s->cells);
        gpu_leave(gpu);
    }
    munmap((void *)s->cells, s->cells_bytes);
    s->cells = NULL;
}

/* As memory that streams can wait at. */
static int cells_register(const struct gpu *gpu, void *cells, size_t bytes, struct error *e)
{
    const struct cuda *cuda = gpu->gpus->cuda;
    const unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    int r = gpu_enter(gpu, e);

    if (r < 0)
        return r;
    r = gpu_check(cuda, cuda->cuMemHostRegister_v2(cells, bytes, flags), "cuMemHostRegister", e);
    gpu_leave(gpu);
    return r;
}

static int cells_map(struct gpu *gpu, int memfd, struct error *e)
{
    struct gpus *s = gpu->gpus;
    void *cells = mmap(NULL, s->cells_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    int r;

    if (cells == MAP_FAILED)
        return error_set_errno(e, errno, "map the signals");
    r = cells_register(gpu, cells, s->cells_bytes, e);
    if (r < 0)
        munmap(cells, s->cells_bytes);
    else
        s->cells = cells;
    return r;
}

static int cells_make(struct ruccl_conn *c, struct gpu *gpu, struct error *e)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct gpus *s = gpu->gpus;
    struct request q = { .kind = REQUEST_SIGNALS_OPEN };
    int memfd, r;

    s->cells_bytes = (c->nslots * sizeof(*s->cells) + page - 1) & ~(page - 1);
    if (!s->signals)
        s->signals = calloc(c->nslots, sizeof(*s->signals));
    if (!s->signals)
        return error_set_errno(e, ENOMEM, "signals");
    r = memfd_new(s->cells_bytes, &memfd, e);
    if (r < 0)
        return r;
    r = cells_map(gpu, memfd, e);
    if (r == 0) {
        r = conn_ask(c, &q, memfd, CONN_NO_DEADLINE, NULL, e);
        if (r < 0)
            gpu_cells_free(s, true);
    }
    close(memfd);
    return r;
}

/* Where the stream waits for the signals; asked for once a GPU. */
static int find_cells(struct gpu *gpu, struct error *e)
{
    const struct cuda *cuda = gpu->gpus->cuda;
    int r;

    if (gpu->cells)
        return 0;
    r = gpu_enter(gpu, e);
    if (r < 0)
        return r;
    r = gpu_check(cuda,
                  cuda->cuMemHostGetDevicePointer_v2(&gpu->cells, (void *)gpu->gpus->cells, 0),
                  "cuMemHostGetDevicePointer", e);
    gpu_leave(gpu);
    return r;
}

/* By the first thread that comes. */
int gpu_cells_get(struct ruccl_conn *c, struct gpu *gpu, struct error *e)
{
    struct gpus *s = gpu->gpus;
    int r;

    conn_wait(c, cells_are_settled, s, CONN_NO_DEADLINE);
    r = conn_check(c, e);
    if (r < 0)
        return r;
    if (!s->cells) {
        s->opening = true;
        r = cells_make(c, gpu, e);
        s->opening = false;
        conn_wake(c);
    }
    return r < 0 ? r : find_cells(gpu, e);
}

/* ---------------------------------------------------------------- fences */

static void fence_free(struct gpu_fence *fence, bool entered)
{
    const struct cuda *cuda = fence->gpu->gpus->cuda;

    if (entered && fence->before)
        cuda->cuEventDestroy_v2(fence->before);
    if (entered && fence->behind)
        cuda->cuEventDestroy_v2(fence->behind);
    list_remove(&fence->link);
    free(fence);
}

static void fence_let_go(struct gpu_fence *fence)
{
    if (--fence->uses == 0)
        list_append(&fence->gpu->fences, &fence->link);
}

/* Of one that was never recorded, too. What fails once its GPU has failed waits for nothing. */
static bool fence_is_passed(const struct gpu_fence *fence)
{
    return fence->gpu->gpus->cuda->cuEventQuery(fence->behind) != CUDA_ERROR_NOT_READY;
}

bool gpu_fences_are_passed(const struct gpu *gpu)
{
    const struct gpu_fence *fence;
    struct error ignored = { 0 };
    bool passed = true;

    if (gpu_enter(gpu, &ignored) < 0)
        return true;
    list_for_each(fence, &gpu->fences, link)
        passed = passed && fence_is_passed(fence);
    gpu_leave(gpu);
    return passed;
}

void gpu_fences_free(struct gpu *gpu, bool entered)
{
    while (!list_empty(&gpu->fences))
        fence_free(list_first(&gpu->fences, struct gpu_fence, link), entered);
}

/* One whose last wait is over, so that `behind` tells of every wait there is. */
static struct gpu_fence *fence_find(struct gpu *gpu)
{
    struct gpu_fence *fence;

    list_for_each(fence, &gpu->fences, link)
        if (fence_is_passed(fence)) {
            list_remove(&fence->link);
            return fence;
        }
    return NULL;
}

/* Its events, and in `ret` the handle of the one that the daemon waits for. */
static int fence_make_events(struct gpu_fence *fence, CUipcEventHandle *ret, struct error *e)
{
    const struct cuda *cuda = fence->gpu->gpus->cuda;
    const unsigned shared = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    int r;

    r = gpu_check(cuda, cuda->cuEventCreate(&fence->before, shared), "cuEventCreate", e);
    if (r == 0)
        r = gpu_check(cuda, cuda->cuEventCreate(&fence->behind, CU_EVENT_DISABLE_TIMING),
                      "cuEventCreate", e);
    if (r == 0)
        r = gpu_check(cuda, cuda->cuIpcGetEventHandle(ret, fence->before), "cuIpcGetEventHandle",
                      e);
    return r;
}

static int fence_open(struct ruccl_conn *c, struct gpu_fence *fence, const CUipcEventHandle *handle,
                      struct error *e)
{
    struct request q = { .kind = REQUEST_FENCE_OPEN };

    fence->number = ++fence->gpu->gpus->last_fence;
    q.fence_open.fence = fence->number;
    memcpy(q.fence_open.gpu, fence->gpu->uuid, sizeof(q.fence_open.gpu));
    memcpy(q.fence_open.handle, handle, sizeof(q.fence_open.handle));
    return conn_ask(c, &q, -1, CONN_NO_DEADLINE, NULL, e);
}

static int fence_new(struct gpu *gpu, CUipcEventHandle *ret_handle, struct gpu_fence **ret,
                     struct error *e)
{
    struct gpu_fence *fence = calloc(1, sizeof(*fence));
    int r;

    if (!fence)
        return error_set_errno(e, ENOMEM, "fence");
    fence->gpu = gpu;
    list_init(&fence->link);
    r = fence_make_events(fence, ret_handle, e);
    if (r < 0)
        fence_free(fence, true);
    else
        *ret = fence;
    return r;
}

/* In the GPU's context. */
static int fence_get(struct ruccl_conn *c, struct gpu *gpu, struct gpu_fence **ret, struct error *e)
{
    struct gpu_fence *fence = fence_find(gpu);
    CUipcEventHandle handle;
    int r;

    if (!fence) {
        r = fence_new(gpu, &handle, &fence, e);
        if (r < 0)
            return r;
        r = fence_open(c, fence, &handle, e);
        if (r < 0) {
            fence_free(fence, true);
            return r;
        }
    }
    *ret = fence;
    return 0;
}

/* ---------------------------------------------------------------- places */

/* A fence that is recorded in the stream. In the GPU's context. */
static int fence_take(struct ruccl_conn *c, struct gpu_place *at, struct error *e)
{
    const struct cuda *cuda = at->gpu->gpus->cuda;
    struct gpu_fence *fence;
    int r;

    r = fence_get(c, at->gpu, &fence, e);
    if (r < 0)
        return r;
    fence->uses = 1;
    pthread_mutex_unlock(&c->lock); /* a full stream takes its time */
    r = gpu_check(cuda, cuda->cuEventRecord(fence->before, at->stream), "cuEventRecord", e);
    pthread_mutex_lock(&c->lock);
    if (r < 0)
        fence_let_go(fence);
    else
        at->fence = fence;
    return r;
}

/* In the GPU's context. */
static int place_take(struct ruccl_conn *c, struct gpu_place *at, uint32_t slot, bool signalled,
                      struct error *e)
{
    uint32_t *signals;
    int r = 0;

    if (signalled)
        r = gpu_cells_get(c, at->gpu, e);
    if (r == 0)
        r = fence_take(c, at, e);
    if (r < 0)
        return r;
    signals = at->gpu->gpus->signals;
    at->slot = slot;
    if (signalled)
        at->signal = signals[slot] = gpu_next_signal(signals[slot]);
    return 0;
}

int gpu_place_take(struct ruccl_conn *c, struct gpu_place *at, uint32_t slot, bool signalled,
                   struct error *e)
{
    int r = gpu_enter(at->gpu, e);

    if (r < 0)
        return r;
    r = place_take(c, at, slot, signalled, e);
    gpu_leave(at->gpu);
    return r;
}

uint32_t gpu_place_fence(const struct gpu_place *at)
{
    return at->fence ? at->fence->number : 0;
}

struct gpu_place gpu_place_hold(const struct gpu_place *at)
{
    if (at->fence)
        at->fence->uses++;
    return *at;
}

void gpu_place_let_go(struct gpu_place *at)
{
    if (at->fence)
        fence_let_go(at->fence);
    at->fence = NULL;
}

int gpu_place_wait(const struct gpu_place *at, struct error *e)
{
    const struct cuda *cuda = at->gpu->gpus->cuda;
    const CUdeviceptr cell = at->gpu->cells + at->slot * sizeof(*at->gpu->gpus->cells);
    int r = gpu_enter(at->gpu, e);

    if (r < 0)
        return r;
    r = gpu_check(
        cuda, cuda->cuStreamWaitValue32_v2(at->stream, cell, at->signal, CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32", e);
    if (r == 0)
        r = gpu_check(cuda, cuda->cuEventRecord(at->fence->behind, at->stream), "cuEventRecord", e);
    gpu_leave(at->gpu);
    return r;
}

void gpu_place_end(struct gpu_place *at)
{
    if (at->signal)
        atomic_store_explicit(&at->gpu->gpus->cells[at->slot], at->signal, memory_order_release);
    at->signal = 0;
    gpu_place_let_go(at);
}
