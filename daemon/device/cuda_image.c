#include "daemon/device/cuda_args.h"

/* The driver reads it as numbers of eight bytes. */
extern const unsigned char cuda_kernels_image[] __attribute__((aligned(16)));

#ifdef CUDA_IMAGE
#include CUDA_IMAGE
#else
const unsigned char cuda_kernels_image[] = "built without nvcc";
#endif

const uint64_t cuda_kernels_image_bytes = sizeof(cuda_kernels_image);
