/*
 * Kernels of the host: one fused pass over one contiguous interval, on the calling thread.
 * A row per instruction set, all compiled from kernels.c; the best the CPU has is chosen once.
 */
#ifndef SHARED_KERNELS_H
#define SHARED_KERNELS_H

#include "shared/collective.h"

/* Some of a reduction's sources, one behind the other. */
struct source_group {
    uint32_t nsrc; /* >= 1 */
    bool wide;     /* they hold accumulators */
};

/*
 * Reduces `count` elements (any count, also 0) of `nsrc` >= 1 sources in the canonical tree order
 * and writes the result to `ndst` >= 1 destinations, each of which may be a source too, but must
 * not overlap one otherwise. No pointer need be aligned.
 *
 * Values are widened to the type's accumulator, combined by T(lo,hi) = T(lo,m) op T(m,hi), m = lo +
 * the largest power of two below hi - lo, divided by `divisor` where that is not 0 (mean; floating
 * types), and rounded once, to nearest even. src_wide / dst_wide: those buffers hold accumulators
 * instead of elements. Sources in groups: each group is combined by itself, by T over its sources;
 * then T over groups.
 *
 * Every buffer is used from its element `first` on, so that a block of it needs no new pointers.
 */
struct kernel_args {
    const void *const *src;
    void *const *dst;
    uint32_t nsrc, ndst;
    uint64_t first, count;
    uint32_t divisor; /* 0: none */
    bool src_wide, dst_wide;
    const struct source_group *groups; /* of all sources in order, instead of src_wide */
    uint32_t ngroups;                  /* 0: all sources are one group */
    bool stream;                       /* past the caches where that can be done; the same bytes */
};

typedef void (*kernel_fn)(const struct kernel_args *args);

struct kernel_row {
    const char *name; /* "plain", "x86-64-v3", "x86-64-v4", "x86-64-v4 bf16" */
    bool (*supported)(void);
    kernel_fn reduce[DTYPE_END][OPERATOR_END]; /* NULL where the type has no such operator */
};

/* kernels.c compiled once more each; what they need of the CPU is in kernel_rows.c. */
extern const struct kernel_row kernel_row_plain, kernel_row_v3, kernel_row_v4, kernel_row_v4_bf16;
bool kernel_supported_plain(void);
bool kernel_supported_v3(void);
bool kernel_supported_v4(void);
bool kernel_supported_v4_bf16(void);

/* Slowest first; the plain row is rows[0] and runs everywhere. NULL at the end. */
extern const struct kernel_row *const kernel_rows[];

/* The last supported row. The CPU is asked once, which takes long in a virtual machine. */
const struct kernel_row *kernel_row_best(void);

#endif
