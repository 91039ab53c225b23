/* What tests of the tests' driver stand on: two GPUs, both retained, the first one's context. */
#ifndef TESTS_FAKE_CUDA_CALLS_H
#define TESTS_FAKE_CUDA_CALLS_H

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/unit/unit.h"

#define WELL(call)        assert_int_equal(call, CUDA_SUCCESS)
#define FAILS(call, code) assert_int_equal(call, code)

#define HELD_US (3600ull * 1000000) /* longer than any test */

extern CUcontext contexts[2];

/* cuInit(), with two GPUs whatever the environment says. */
CUresult fake_begin(void);

/* Of each test. The second resets both GPUs and all failures, and sees that nothing is left. */
int fake_set_up(void **state);
int fake_tear_down(void **state);

CUdeviceptr allocate(size_t bytes);
CUstream new_stream(unsigned flags);
CUevent new_event(unsigned flags);
/* Until it is reached, here or elsewhere. Return: what cuEventQuery() says then. */
CUresult event_await(CUevent event);
/* Host memory, zeros. */
void *pages(size_t bytes);

static inline void *at(CUdeviceptr ptr)
{
    return (void *)(uintptr_t)ptr;
}

#endif
