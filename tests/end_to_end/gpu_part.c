#include "tests/end_to_end/gpu_part.h"

#include <stdio.h>

void part_cu(struct part *me, CUresult result, const char *what)
{
    char text[128];

    snprintf(text, sizeof(text), "%s without error %d", what, result);
    part_check(me, result == CUDA_SUCCESS, text);
}

void part_enter_gpu(struct part *me, int gpu)
{
    CUcontext context;

    part_cu(me, cuInit(0), "cuInit");
    part_cu(me, cuDevicePrimaryCtxRetain(&context, gpu), "cuDevicePrimaryCtxRetain");
    part_cu(me, cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

CUstream part_stream(struct part *me)
{
    CUstream stream;

    part_cu(me, cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

void part_settle(struct part *me, CUstream stream)
{
    part_cu(me, cuStreamSynchronize(stream), "cuStreamSynchronize");
}

struct ruccl_region *part_region(struct part *me, struct ruccl_conn *conn, int gpu, uint64_t bytes)
{
    struct ruccl_region *region;
    CUdeviceptr ptr;

    if (gpu == PART_ON_HOST)
        return part_alloc(me, conn, bytes);
    part_enter_gpu(me, gpu);
    part_cu(me, cuMemAlloc_v2(&ptr, bytes), "cuMemAlloc");
    part_ok(me, ruccl_register_cuda(conn, (void *)(uintptr_t)ptr, bytes, &region), "register_cuda");
    part_check(me, !ruccl_region_is_staged(region), "a region that is shared");
    return region;
}

CUdeviceptr part_create(struct part *me, int gpu)
{
    const CUmemLocation location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu };
    const CUmemAccessDesc access = { location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes =
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                       .location = location };
    CUmemGenericAllocationHandle handle;
    CUdeviceptr ptr;

    part_enter_gpu(me, gpu);
    part_cu(me, cuMemCreate(&handle, PART_GRANULE, &prop, 0), "cuMemCreate");
    part_cu(me, cuMemAddressReserve(&ptr, PART_GRANULE, 0, 0, 0), "cuMemAddressReserve");
    part_cu(me, cuMemMap(ptr, PART_GRANULE, 0, handle, 0), "cuMemMap");
    part_cu(me, cuMemSetAccess(ptr, PART_GRANULE, &access, 1), "cuMemSetAccess");
    return ptr;
}

void part_drop_region(struct part *me, struct ruccl_region *region, int gpu)
{
    const CUdeviceptr ptr = (uintptr_t)ruccl_region_data(region);

    if (gpu == PART_ON_HOST) {
        ruccl_free(region);
        return;
    }
    ruccl_release(region);
    part_enter_gpu(me, gpu);
    part_cu(me, cuMemFree_v2(ptr), "cuMemFree");
}
