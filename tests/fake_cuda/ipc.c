/* Allocations of other processes. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle *ret, CUdeviceptr ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct range *range;
    struct stat st;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find(ptr);
    if (!range || range->kind != RANGE_ALLOCATION || range->base != ptr || !range->exportable ||
        fstat(range->fd, &st) < 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!share_export(SHARE_MEMORY, range->gpu->number, range->fd, range->bytes, st.st_ino,
                      &range->id, ret))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

/* The same memory, opened by the same context before. */
static struct range *import_find(CUcontext context, uint64_t ino)
{
    struct range *range;

    list_for_each(range, &ranges, link)
        if (range->kind == RANGE_IMPORT && range->context == context && range->ino == ino)
            return range;
    return NULL;
}

static CUresult import_map(CUcontext context, const struct share_handle *h, int fd,
                           CUdeviceptr *ret)
{
    const uint64_t bytes = memfd_round(h->bytes);
    struct range *range = calloc(1, sizeof(*range));
    void *base;

    if (!range)
        return CUDA_ERROR_OUT_OF_MEMORY;
    base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->kind = RANGE_IMPORT;
    range->base = (uintptr_t)base;
    range->bytes = h->bytes;
    range->gpu = gpu_by_number(h->number);
    range->context = context;
    range->refs = 1;
    range->fd = -1;
    range->ino = h->ino;
    range_add(range);
    *ret = range->base;
    return CUDA_SUCCESS;
}

static CUresult import(CUcontext context, const struct share_handle *h, CUdeviceptr *ret)
{
    struct range *range;
    unsigned number;
    uint64_t ino;
    CUresult r = CUDA_ERROR_INVALID_HANDLE;
    int fd;

    /* is it still there? */
    fd = share_fetch(h);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (memfd_is(fd, "memory", h->bytes, &number, &ino) && number == h->number && ino == h->ino) {
        range = import_find(context, ino);
        if (range) {
            range->refs++;
            *ret = range->base;
            r = CUDA_SUCCESS;
        } else {
            r = import_map(context, h, fd, ret);
        }
    }
    close(fd);
    return r;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ret, CUipcMemHandle handle, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct gpu *gpu;
    struct share_handle h;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    if (!share_parse(&handle, SHARE_MEMORY, &h))
        return CUDA_ERROR_INVALID_HANDLE;
    if (share_is_ours(&h))
        return CUDA_ERROR_INVALID_CONTEXT;
    gpu = gpu_by_number(h.number);
    if (!gpu)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!gpu_reaches(call.context->gpu, gpu))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return import(call.context, &h, ret);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr ptr)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct range *range;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    range = range_find(ptr);
    if (!range || range->kind != RANGE_IMPORT || range->base != ptr)
        return CUDA_ERROR_INVALID_VALUE;
    if (--range->refs == 0)
        range_remove(range);
    return CUDA_SUCCESS;
}
