#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/device/cuda.h"

#define TURN_NS      100000u /* in which the next end is looked for without sleeping */
#define PATIENCE     16u     /* after that it is found late by this part of what it takes ... */
#define DELAY_MIN_NS 10000u
#define DELAY_MAX_NS 1000000u /* ... and by no more than this */

struct cuda_fence {
    struct fence base;
    struct cuda_gpu *gpu;
    CUipcEventHandle handle;
    uint64_t generation; /* of the GPU's context that `event` was opened in */
    CUevent event;
    bool asked;
};

static struct cuda_fence *fence_of(struct fence *f)
{
    return container_of(f, struct cuda_fence, base);
}

/* ---- When to look again ---- */

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* 0: never; what it has to say is forgotten either way. */
static void set_timer(struct cuda_device *d, uint64_t ns)
{
    const struct itimerspec at = { .it_value = { .tv_nsec = (long)ns } };

    if (ns == 0 && !d->timer_armed)
        return;
    timerfd_settime(d->timer_fd, 0, &at, NULL);
    d->timer_armed = ns != 0;
}

int cuda_watch_open(struct cuda_device *d)
{
    d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return d->timer_fd < 0 ? -errno : 0;
}

void cuda_watch_close(struct cuda_device *d)
{
    if (d->timer_fd >= 0)
        close(d->timer_fd);
}

void cuda_watch_stir(struct cuda_device *d)
{
    d->stirred_ns = now_ns();
}

void cuda_watch_turn(struct cuda_device *d)
{
    cuda_watch_stir(d);
    d->turning = true;
    set_timer(d, 0);
}

void cuda_watch_wake(struct cuda_device *d)
{
    if (!d->turning && !d->timer_armed)
        set_timer(d, DELAY_MIN_NS);
}

bool cuda_watch_begin(struct cuda_device *d)
{
    const bool asked = d->fence_asked;

    d->fence_asked = false;
    return asked;
}

void cuda_watch_end(struct cuda_device *d, bool left)
{
    const uint64_t waited = now_ns() - d->stirred_ns;

    left = left || d->fence_asked;
    d->turning = left && waited < TURN_NS;
    if (d->turning || !left)
        set_timer(d, 0);
    else
        set_timer(d, MIN(MAX(waited / PATIENCE, DELAY_MIN_NS), DELAY_MAX_NS));
}

/* ---- Fences ---- */

static CUresult open_event(struct cuda_fence *f)
{
    CUresult error = f->gpu->device->api->cuIpcOpenEventHandle(&f->event, f->handle);

    if (!error)
        f->generation = f->gpu->generation;
    return error;
}

int cuda_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                      const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret, struct error *e)
{
    struct cuda_device *d = cuda_of(device);
    struct cuda_fence *f;
    struct cuda_gpu *g;
    CUresult error;
    int r;

    r = cuda_gpu_wanted(d, gpu, "the event", &g, e);
    if (r < 0)
        return r;
    f = calloc(1, sizeof(*f));
    if (!f)
        return error_set_errno(e, ENOMEM, "opening the event");

    f->gpu = g;
    memcpy(f->handle.reserved, handle, GPU_HANDLE_BYTES);
    error = cuda_gpu_enter(g);
    if (!error)
        error = open_event(f);
    r = cuda_check(g, error, "cuIpcOpenEventHandle");
    if (r < 0) {
        free(f);
        return error_set(e, r == -ENOMEM ? ERROR_NO_MEMORY : ERROR_INVALID_ARGUMENT,
                         "%s does not open the event's handle: %s; pass that of a live event made "
                         "with CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING by another process",
                         g->text, cuda_error_name(d->api, error));
    }
    f->base = (struct fence){ .device = device, .refs = 1 };
    *ret = &f->base;
    return 0;
}

int cuda_fence_passed(struct fence *fence)
{
    struct cuda_fence *f = fence_of(fence);
    struct cuda_gpu *g = f->gpu;
    struct cuda_device *d = g->device;
    CUresult error;

    if (g->failed)
        return -EIO;
    error = cuda_gpu_enter(g);
    if (!error && f->generation != g->generation) { /* the client's event outlives our context */
        error = open_event(f);
        if (error)
            return cuda_check_work(g, error, "cuIpcOpenEventHandle");
    }
    if (!error)
        error = d->api->cuEventQuery(f->event);
    if (error != CUDA_ERROR_NOT_READY) {
        f->asked = false;
        return error ? cuda_check_work(g, error, "cuEventQuery") : 1;
    }

    if (!f->asked)
        cuda_watch_turn(d);
    f->asked = d->fence_asked = true;
    cuda_watch_wake(d);
    return 0;
}

void cuda_fence_free(struct fence *fence)
{
    struct cuda_fence *f = fence_of(fence);
    struct cuda_gpu *g = f->gpu;

    if (!g->failed && f->generation == g->generation && cuda_gpu_enter(g) == CUDA_SUCCESS)
        cuda_check(g, g->device->api->cuEventDestroy_v2(f->event), "cuEventDestroy");
    free(f);
}
