#include "tests/unit/cuda_host.h"

#include "daemon/device/cuda_reduce.h"

uint64_t cuda_host_misaligned, cuda_host_vectors;

void memory_check(uint64_t address, unsigned bytes)
{
    if (address % bytes != 0)
        cuda_host_misaligned++;
    if (bytes == VECTOR_BYTES)
        cuda_host_vectors++;
}

static void run_copy(const struct cuda_args *a, uint64_t nthreads)
{
    for (uint64_t t = 0; t < nthreads; t++)
        cuda_copy(*a, t, nthreads);
}

template <class T, cuda_operator OP>
static void run_reduce(const struct cuda_args *a, uint64_t nthreads)
{
    for (uint64_t t = 0; t < nthreads; t++)
        cuda_reduce<T, OP>(*a, t, nthreads);
}

static const struct {
    const char *name;
    cuda_host_fn run;
} kernels[] = {
#define ROW(OP, op, type) { "reduce_" #op "_" #type, run_reduce<type, CUDA_##OP> },
    CUDA_KERNEL_LIST(ROW)
#undef ROW
        { "copy", run_copy },
};

cuda_host_fn cuda_host_find(const char *name)
{
    for (unsigned i = 0; i < sizeof(kernels) / sizeof(kernels[0]); i++)
        if (!strcmp(kernels[i].name, name))
            return kernels[i].run;
    return nullptr;
}
