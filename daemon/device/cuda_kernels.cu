/* Every kernel of cuda_args.h, as the image that cuda_kernels_image is. */
#include "daemon/device/cuda_reduce.h"

#define KERNEL  extern "C" __global__ void __launch_bounds__(CUDA_KERNEL_THREADS)
#define THREAD  ((uint64_t)blockIdx.x * CUDA_KERNEL_THREADS + threadIdx.x)
#define THREADS ((uint64_t)gridDim.x * CUDA_KERNEL_THREADS)

KERNEL copy(const __grid_constant__ struct cuda_args a)
{
    cuda_copy(a, THREAD, THREADS);
}

#define REDUCE(OP, op, type)                                                                       \
    KERNEL reduce_##op##_##type(const __grid_constant__ struct cuda_args a)                        \
    {                                                                                              \
        cuda_reduce<type, CUDA_##OP>(a, THREAD, THREADS);                                          \
    }
CUDA_KERNEL_LIST(REDUCE)
