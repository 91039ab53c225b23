/*
 * Actors with GPUs: each starts the tests' driver for itself, since what a process has of it is of
 * no use to its children. Its device memory is memory, so that actors look at it.
 */
#ifndef TESTS_END_TO_END_GPU_PART_H
#define TESTS_END_TO_END_GPU_PART_H

#include "tests/end_to_end/actors.h"
#include "tests/fake_cuda/fake_cuda.h"

#define PART_ON_HOST (-1)
#define PART_GRANULE (2u << 20)
#define PART_HELD_US (3600ull * 1000000) /* longer than any test */

void part_cu(struct part *me, CUresult result, const char *what);

/* Starts the driver, if need be, and makes that GPU's context current. */
void part_enter_gpu(struct part *me, int gpu);
/* One of the current GPU. */
CUstream part_stream(struct part *me);
void part_settle(struct part *me, CUstream stream);

/* Memory of that GPU, or PART_ON_HOST the library's. */
struct ruccl_region *part_region(struct part *me, struct ruccl_conn *conn, int gpu, uint64_t bytes);
/* PART_GRANULE bytes of cuMemCreate() on that GPU, and in its context. */
CUdeviceptr part_create(struct part *me, int gpu);
void part_drop_region(struct part *me, struct ruccl_region *region, int gpu);

#endif
