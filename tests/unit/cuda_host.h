/* The kernels of daemon/device/cuda_kernels.cu as a CPU runs them, thread by thread. */
#ifndef TESTS_UNIT_CUDA_HOST_H
#define TESTS_UNIT_CUDA_HOST_H

#include <stdint.h>

#include "daemon/device/cuda_args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void (*cuda_host_fn)(const struct cuda_args *a, uint64_t nthreads);

/* NULL where there is no kernel of this name. */
cuda_host_fn cuda_host_find(const char *name);

/* Accesses so far to an address that their bytes do not divide, which no GPU takes. */
extern uint64_t cuda_host_misaligned;

/* Of the vectors, words and bytes read and written so far, those of 16 bytes. */
extern uint64_t cuda_host_vectors;

#ifdef __cplusplus
}
#endif

#endif
