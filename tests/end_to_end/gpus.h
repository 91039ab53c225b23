/*
 * The GPUs of tests that run on whatever driver cuda_load() finds: the tests' own, or a real one.
 * What fails here fails the running test, or ends the process if that is `alone`.
 */
#ifndef TESTS_END_TO_END_GPUS_H
#define TESTS_END_TO_END_GPUS_H

#include <stdbool.h>

#include "shared/cuda.h"
#include "tests/end_to_end/harness.h"
#include "tests/unit/unit.h"

#define GPUS_MAX  8
#define GPUS_SKIP 77 /* a program's exit status where there is no GPU */

#define GPUS_GRANULE (2u << 20) /* cuMemCreate()'s sizes are multiples of it */

struct gpus {
    const struct cuda *cuda;
    uint32_t count; /* that are used */
    CUcontext contexts[GPUS_MAX];
    char name[64]; /* of the first */
    bool alone;    /* no test runs in this process */

    /* Of the tests' driver; NULL: it is a real one. */
    void (*delay_us)(CUstream stream, uint64_t us);
    void (*fail_call)(const char *name, unsigned nth, CUresult code);
};

extern struct gpus gpus;

#define CU(call) gpus_check(gpus.cuda->call, #call, __FILE__, __LINE__)
void gpus_check(CUresult error, const char *call, const char *file, int line);

/*
 * Opens up to `most` of them. Return: 0, or -1 where there is none; then it has said why. With the
 * environment's GPUS=real, the tests' driver is none.
 */
int gpus_open(uint32_t most);

/* The same in a process of its own, so that this one can still fork ranks. Return: how many there
 * are; 0: none, and it has said why. */
uint32_t gpus_probe(uint32_t most);

/* Makes a GPU the current one; they take turns. */
void gpus_enter(uint32_t number);

static inline bool gpus_are_fake(void)
{
    return gpus.delay_us != NULL;
}

/* As harness_expect_usage(); a real driver may keep a few for itself. */
void gpus_expect_usage(const struct harness *h, struct harness_usage before);

/* Memory of the current one; zeroed. `exported`: whether its handle can be. */
CUdeviceptr gpus_allocate(uint64_t bytes);
CUdeviceptr gpus_create(uint32_t number, uint64_t bytes, bool exported);
void gpus_uncreate(CUdeviceptr ptr, uint64_t bytes);

/* Of the current one; done on return. */
void gpus_write(CUdeviceptr to, const void *from, uint64_t bytes);
void gpus_read(void *to, CUdeviceptr from, uint64_t bytes);

/* Puts a kernel into the stream, of the current GPU: one without work, and, on a real one, one that
 * takes milliseconds. */
void gpus_launch_empty(CUstream stream);
void gpus_hold_up(CUstream stream);

#endif
