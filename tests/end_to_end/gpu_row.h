/*
 * A GPU for tests of what stands on devices, of host memory: it is handed over as a GPU's is, and
 * maps every allocation once. What it holds shows in its status; a fence is a descriptor.
 */
#ifndef TESTS_END_TO_END_GPU_ROW_H
#define TESTS_END_TO_END_GPU_ROW_H

#include <string.h>

#include "daemon/device/device.h"

#define GPU_ROW_NAME "a test's GPU"

extern const struct device_ops device_gpu_row;

static inline void gpu_row_uuid(uint8_t ret[GPU_UUID_BYTES])
{
    for (uint32_t i = 0; i < GPU_UUID_BYTES; i++)
        ret[i] = (uint8_t)i;
}

/* What stands for allocation `number` of `bytes` bytes. */
static inline void gpu_row_handle(uint64_t number, uint64_t bytes, uint8_t ret[GPU_HANDLE_BYTES])
{
    memset(ret, 0, GPU_HANDLE_BYTES);
    memcpy(ret, &number, sizeof(number));
    memcpy(ret + sizeof(number), &bytes, sizeof(bytes));
}

#endif
