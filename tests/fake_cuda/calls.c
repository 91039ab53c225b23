#include "tests/fake_cuda/calls.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

CUcontext contexts[2];

CUresult fake_begin(void)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("FAKE_CUDA_DEVICES");
    return cuInit(0);
}

int fake_set_up(void **state __attribute__((unused)))
{
    for (int i = 0; i < 2; i++)
        if (cuDevicePrimaryCtxRetain(&contexts[i], i) != CUDA_SUCCESS)
            return -1;
    return cuCtxSetCurrent(contexts[0]);
}

int fake_tear_down(void **state __attribute__((unused)))
{
    fake_cuda_fail(NULL, 0, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    fake_cuda_exportable(true);
    fake_cuda_managed(false);
    for (int i = 0; i < 2; i++)
        if (cuDevicePrimaryCtxReset_v2(i) != CUDA_SUCCESS)
            return -1;
    for (int what = 0; what < FAKE_CUDA_LIVE_END; what++)
        if (fake_cuda_live(what) != 0 && what != FAKE_CUDA_RESERVATIONS)
            return -1;
    return cuCtxSetCurrent(NULL);
}

CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr ptr = 0;

    WELL(cuMemAlloc_v2(&ptr, bytes));
    return ptr;
}

CUstream new_stream(unsigned flags)
{
    CUstream stream = NULL;

    WELL(cuStreamCreate(&stream, flags));
    return stream;
}

CUevent new_event(unsigned flags)
{
    CUevent event = NULL;

    WELL(cuEventCreate(&event, flags));
    return event;
}

CUresult event_await(CUevent event)
{
    const struct timespec step = { .tv_nsec = 100000 };
    CUresult r;

    while ((r = cuEventQuery(event)) == CUDA_ERROR_NOT_READY)
        nanosleep(&step, NULL);
    return r;
}

void *pages(size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(base != MAP_FAILED);
    return base;
}
