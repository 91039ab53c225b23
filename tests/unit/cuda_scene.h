/*
 * Tests of libruccl with the tests' driver: memory of every kind, a stream that can be held up, and
 * a daemon that is scripted. All functions fail the test where they fail.
 */
#ifndef TESTS_UNIT_CUDA_SCENE_H
#define TESTS_UNIT_CUDA_SCENE_H

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/unit/fake_daemon.h"

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)

#define CUDA_SCENE_GPUS 2
#define CUDA_GRANULE    (2u << 20) /* of cuMemCreate() */

/* The caller's context, current until the end, is that of GPU 0. */
struct cuda_scene {
    CUcontext contexts[CUDA_SCENE_GPUS];
    CUstream stream; /* of GPU 0 */
};

void cuda_scene_start(struct cuda_scene *s);
/* Nothing of the driver is left, and the current context is as it was. */
void cuda_scene_stop(struct cuda_scene *s);

CUdeviceptr cuda_alloc(struct cuda_scene *s, unsigned gpu, uint64_t bytes);
void cuda_free(CUdeviceptr ptr);

/* A place of `n` granules with a handle each, or one for all. */
struct cuda_virtual {
    CUdeviceptr base;
    uint64_t bytes;
    CUmemGenericAllocationHandle handles[4];
    unsigned nhandles;
};
void cuda_virtual_map(struct cuda_virtual *v, unsigned nhandles, bool exportable);
void cuda_virtual_unmap(struct cuda_virtual *v);

/* As the host sees a GPU's memory: the double's is the host's. */
static inline uint8_t *cuda_bytes(CUdeviceptr ptr)
{
    return (uint8_t *)(uintptr_t)ptr;
}

struct ruccl_region *cuda_register(struct pair *p, CUdeviceptr ptr, uint64_t bytes);
struct ruccl_tensor cuda_tensor(struct ruccl_region *region, uint64_t n);

bool cuda_stream_waits(CUstream stream);
/* Its work is done, within reason. */
void cuda_stream_settle(CUstream stream);

#endif
