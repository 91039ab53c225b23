#include "tests/unit/cuda_scene.h"

void cuda_scene_start(struct cuda_scene *s)
{
    *s = (struct cuda_scene){ 0 };
    CU(cuInit(0));
    for (int i = 0; i < CUDA_SCENE_GPUS; i++)
        CU(cuDevicePrimaryCtxRetain(&s->contexts[i], i));
    CU(cuCtxSetCurrent(s->contexts[0]));
    CU(cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING));
}

void cuda_scene_stop(struct cuda_scene *s)
{
    CUcontext current;

    fake_cuda_fail(NULL, 0, 0);
    fake_cuda_delay_us(FAKE_CUDA_ALL, 0);
    CU(cuCtxGetCurrent(&current));
    assert_ptr_equal(current, s->contexts[0]);
    CU(cuStreamDestroy_v2(s->stream));
    for (int what = 0; what < FAKE_CUDA_LIVE_END; what++)
        if (what != FAKE_CUDA_CONTEXTS && what != FAKE_CUDA_STREAMS)
            assert_int_equal(fake_cuda_live((enum fake_cuda_live)what), 0);
    CU(cuCtxSetCurrent(NULL));
    for (int i = 0; i < CUDA_SCENE_GPUS; i++)
        CU(cuDevicePrimaryCtxRelease_v2(i));
    assert_int_equal(fake_cuda_live(FAKE_CUDA_CONTEXTS), 0);
}

CUdeviceptr cuda_alloc(struct cuda_scene *s, unsigned gpu, uint64_t bytes)
{
    CUcontext ignored;
    CUdeviceptr ptr;

    CU(cuCtxPushCurrent_v2(s->contexts[gpu]));
    CU(cuMemAlloc_v2(&ptr, bytes));
    CU(cuCtxPopCurrent_v2(&ignored));
    return ptr;
}

void cuda_free(CUdeviceptr ptr)
{
    CU(cuMemFree_v2(ptr));
}

void cuda_virtual_map(struct cuda_virtual *v, unsigned nhandles, bool exportable)
{
    const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
                                     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };

    if (exportable)
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    *v = (struct cuda_virtual){ .bytes = nhandles * CUDA_GRANULE, .nhandles = nhandles };
    CU(cuMemAddressReserve(&v->base, v->bytes, 0, 0, 0));
    for (unsigned i = 0; i < nhandles; i++) {
        CU(cuMemCreate(&v->handles[i], CUDA_GRANULE, &prop, 0));
        CU(cuMemMap(v->base + i * CUDA_GRANULE, CUDA_GRANULE, 0, v->handles[i], 0));
    }
    CU(cuMemSetAccess(v->base, v->bytes, &access, 1));
}

void cuda_virtual_unmap(struct cuda_virtual *v)
{
    for (unsigned i = 0; i < v->nhandles; i++) {
        CU(cuMemUnmap(v->base + i * CUDA_GRANULE, CUDA_GRANULE));
        CU(cuMemRelease(v->handles[i]));
    }
    CU(cuMemAddressFree(v->base, v->bytes));
}

struct ruccl_region *cuda_register(struct pair *p, CUdeviceptr ptr, uint64_t bytes)
{
    struct ruccl_region *region;

    if (ruccl_register_cuda(p->conn, (void *)(uintptr_t)ptr, bytes, &region) < 0)
        fail_msg("%s", ruccl_last_error()->text);
    return region;
}

struct ruccl_tensor cuda_tensor(struct ruccl_region *region, uint64_t n)
{
    return (struct ruccl_tensor){ .dtype = RUCCL_U8, .naxes = 1, .shape = { n }, .region = region };
}

bool cuda_stream_waits(CUstream stream)
{
    const CUresult r = cuStreamQuery(stream);

    if (r != CUDA_ERROR_NOT_READY)
        CU(r);
    return r == CUDA_ERROR_NOT_READY;
}

void cuda_stream_settle(CUstream stream)
{
    for (int i = 0; i < 10000; i++) {
        if (!cuda_stream_waits(stream))
            return;
        sleep_ms(1);
    }
    fail_msg("the stream waits for ever");
}
