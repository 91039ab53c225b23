/*
 * Host kernels: one fused pass over one contiguous interval, on the calling thread.
 * A row per instruction set, all compiled from host_kernels.c; the best the CPU has is chosen once.
 */
#ifndef DAEMON_DEVICE_HOST_KERNELS_H
#define DAEMON_DEVICE_HOST_KERNELS_H

#include "daemon/device/device.h"

/*
 * Reduces `count` elements (any count, also 0) of `nsrc` >= 1 sources in the canonical tree order
 * and writes the result to `ndst` >= 1 destinations. As struct task says; pointers unaligned.
 * Every buffer is used from its element `first` on, so that a block of it needs no new pointers.
 */
struct kernel_args {
    const void *const *src;
    void *const *dst;
    uint32_t nsrc, ndst;
    uint64_t first, count;
    uint32_t divisor; /* 0: none */
    bool src_wide, dst_wide;
    const struct source_group *groups; /* as struct task */
    uint32_t ngroups;
    bool stream; /* past the caches where that can be done; the same bytes */
};

typedef void (*kernel_fn)(const struct kernel_args *args);

struct kernel_row {
    const char *name; /* "plain", "x86-64-v3", "x86-64-v4", "x86-64-v4 bf16" */
    bool (*supported)(void);
    kernel_fn reduce[DTYPE_END][OPERATOR_END]; /* NULL where the type has no such operator */
};

/* host_kernels.c compiled once more each; what they need of the CPU is in host_rows.c. */
extern const struct kernel_row kernel_row_plain, kernel_row_v3, kernel_row_v4, kernel_row_v4_bf16;
bool kernel_supported_plain(void);
bool kernel_supported_v3(void);
bool kernel_supported_v4(void);
bool kernel_supported_v4_bf16(void);

/* Slowest first; the plain row is rows[0] and runs everywhere. NULL at the end. */
extern const struct kernel_row *const kernel_rows[];

/* The last supported row. */
const struct kernel_row *kernel_row_best(void);

#endif
