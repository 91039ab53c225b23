#include "tests/end_to_end/gpus.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/device/cuda_args.h"
#include "shared/base.h"
#include "shared/error.h"

#define HOLD_BYTES (128ull << 20) /* copied by one block: slowly */

/* A GPU's own: made before anything waits, since a driver may make it wait too. */
static struct own {
    CUstream stream;
    CUfunction copy;    /* NULL: not loaded */
    CUdeviceptr memory; /* that the kernel which takes long copies */
} owns[GPUS_MAX], *current;

struct gpus gpus;

void gpus_check(CUresult error, const char *call, const char *file, int line)
{
    if (error == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s:%d: %s: %s (%d)\n", file, line, call, cuda_error_name(gpus.cuda, error),
            error);
    if (gpus.alone)
        _exit(1);
    fail();
}

static int none(const char *why)
{
    fprintf(stderr, "no GPU to test with: %s\n", why);
    return -1;
}

static void find_fake(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    *(void **)&gpus.delay_us = library ? dlsym(library, "fake_cuda_delay_us") : NULL;
    *(void **)&gpus.fail_call = library ? dlsym(library, "fake_cuda_fail") : NULL;
    if (library)
        dlclose(library);
}

int gpus_open(uint32_t most)
{
    const char *wanted = getenv("GPUS");
    struct error e = { 0 };
    CUdevice device;
    int count;

    /* A stream that waits must not hold up another, nor the loading of a kernel. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (cuda_load(&gpus.cuda, &e) < 0)
        return none(e.text);
    find_fake();
    if (wanted && strcmp(wanted, "real") == 0 && gpus_are_fake())
        return none("the driver is the tests' own");
    CU(cuDeviceGetCount(&count));
    if (count == 0)
        return none("the driver has none");
    gpus.count = MIN(MIN((uint32_t)count, most), GPUS_MAX);
    for (uint32_t i = 0; i < gpus.count; i++) {
        CU(cuDeviceGet(&device, (int)i));
        CU(cuDevicePrimaryCtxRetain(&gpus.contexts[i], device));
        gpus_enter(i);
        CU(cuStreamCreate(&current->stream, CU_STREAM_NON_BLOCKING));
        if (i == 0)
            CU(cuDeviceGetName(gpus.name, sizeof(gpus.name), device));
    }
    gpus_enter(0);
    return 0;
}

uint32_t gpus_probe(uint32_t most)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        gpus.alone = true;
        _exit(gpus_open(most) < 0 ? GPUS_SKIP : 100 + (int)gpus.count);
    }
    if (pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status)) {
        if (WEXITSTATUS(status) == GPUS_SKIP)
            return 0;
        if (WEXITSTATUS(status) > 100 && WEXITSTATUS(status) <= 100 + GPUS_MAX)
            return (uint32_t)WEXITSTATUS(status) - 100;
    }
    fprintf(stderr, "the driver does not start\n");
    exit(1);
}

void gpus_enter(uint32_t number)
{
    CU(cuCtxSetCurrent(gpus.contexts[number % gpus.count]));
    current = &owns[number % gpus.count];
}

#define KEPT 16 /* by a driver */

void gpus_expect_usage(const struct harness *h, struct harness_usage before)
{
    if (!gpus_are_fake()) {
        before.fds += KEPT;
        before.mappings += KEPT;
    }
    harness_expect_usage(h, &before);
}

/* ---- memory */

/* What goes through the stream of the current GPU has arrived. */
static void finish(void)
{
    CU(cuStreamSynchronize(current->stream));
}

static CUdeviceptr clear(CUdeviceptr ptr, uint64_t bytes)
{
    CU(cuMemsetD8Async(ptr, 0, bytes, current->stream));
    finish();
    return ptr;
}

CUdeviceptr gpus_allocate(uint64_t bytes)
{
    CUdeviceptr ptr;

    CU(cuMemAlloc_v2(&ptr, bytes));
    return clear(ptr, bytes);
}

CUdeviceptr gpus_create(uint32_t number, uint64_t bytes, bool exported)
{
    const CUmemLocation location = { CU_MEM_LOCATION_TYPE_DEVICE, (int)(number % gpus.count) };
    const CUmemAccessDesc access = { location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    if (exported)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CU(cuMemCreate(&handle, bytes, &prop, 0));
    CU(cuMemAddressReserve(&ptr, bytes, 0, 0, 0));
    CU(cuMemMap(ptr, bytes, 0, handle, 0));
    CU(cuMemRelease(handle));
    CU(cuMemSetAccess(ptr, bytes, &access, 1));
    return clear(ptr, bytes);
}

void gpus_uncreate(CUdeviceptr ptr, uint64_t bytes)
{
    CU(cuMemUnmap(ptr, bytes));
    CU(cuMemAddressFree(ptr, bytes));
}

void gpus_write(CUdeviceptr to, const void *from, uint64_t bytes)
{
    CU(cuMemcpyHtoDAsync_v2(to, from, bytes, current->stream));
    finish();
}

void gpus_read(void *to, CUdeviceptr from, uint64_t bytes)
{
    CU(cuMemcpyDtoHAsync_v2(to, from, bytes, current->stream));
    finish();
}

/* ---- kernels */

/* From the first half of what is copied to the second. */
static void launch(CUdeviceptr memory, uint64_t bytes, CUstream stream)
{
    struct cuda_args args = {
        .count = bytes, .nsrc = 1, .ndst = 1, .pointers = { memory, memory + bytes }
    };
    void *parameters[] = { &args };
    CUmodule module;

    if (!current->copy) {
        CU(cuModuleLoadData(&module, cuda_kernels_image));
        CU(cuModuleGetFunction(&current->copy, module, "copy"));
    }
    CU(cuLaunchKernel(current->copy, 1, 1, 1, CUDA_KERNEL_THREADS, 1, 1, 0, stream, parameters,
                      NULL));
}

void gpus_launch_empty(CUstream stream)
{
    launch(0, 0, stream);
}

void gpus_hold_up(CUstream stream)
{
    if (gpus_are_fake())
        return;
    if (!current->memory)
        current->memory = gpus_allocate(2 * HOLD_BYTES);
    launch(current->memory, HOLD_BYTES, stream);
}
