/*
 * What the kernels of cuda_kernels.cu are given: the arguments by value, as launcher, kernels and
 * the twins of the tests' driver see them. C and CUDA C.
 */
#ifndef DAEMON_DEVICE_CUDA_ARGS_H
#define DAEMON_DEVICE_CUDA_ARGS_H

#include <stdint.h>

#define CUDA_INLINE_POINTERS 96u /* that travel in the arguments */
#define CUDA_INLINE_GROUPS   32u

/* As struct source_group: some of the sources, one behind the other. */
struct cuda_group {
    uint32_t nsrc; /* >= 1 */
    uint32_t wide; /* they hold accumulators */
};

#define CUDA_SOURCES_MAX 8191u /* of one group */
#define CUDA_GROUPS_MAX  8191u

/*
 * Kernel "reduce_<operator>_<dtype>" (names of shared/dtype.h, shared/collective.h; mean has none
 * of its own, it is sum with a divisor): elements [first, first + count) of the sources in the
 * canonical tree order of struct task into every destination. Kernel "copy": one source to every
 * destination but itself, elements are bytes.
 * Pointers are those of the unified address space, of a GPU or of the host, and need not be aligned
 * to more than their element (a multiple of its bytes; an accumulator's in wide buffers); sources
 * come first, then destinations.
 * Block and thread numbers have no meaning: any grid does the whole interval.
 */
struct cuda_args {
    uint64_t first, count;
    uint32_t nsrc, ndst;
    uint32_t divisor; /* 0: none */
    uint32_t dst_wide;
    uint32_t ngroups; /* >= 1 for a reduction */
    uint32_t unused;
    const uint64_t *pointer_table;         /* NULL: inline; else [nsrc + ndst], readable by the GPU */
    const struct cuda_group *group_table;  /* NULL: inline; else [ngroups] */
    uint64_t pointers[CUDA_INLINE_POINTERS];
    struct cuda_group groups[CUDA_INLINE_GROUPS];
};

#define CUDA_KERNEL_THREADS 512u /* of a block, always */

/*
 * The fat binary, in the program's own memory. A build without nvcc has a text of a few bytes
 * instead, which no driver takes.
 */
extern const unsigned char cuda_kernels_image[];
extern const uint64_t cuda_kernels_image_bytes;

#endif
