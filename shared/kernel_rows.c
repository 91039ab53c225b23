#include "shared/kernels.h"

#include <stdatomic.h>

#ifdef __x86_64__
#include <cpuid.h>
#endif

/* Questions are asked here and not in kernels.c: that code may not run on this CPU at all. */

bool kernel_supported_plain(void)
{
    return true;
}

#ifdef __x86_64__
/* clang's __builtin_cpu_supports() does not know this one */
static bool kernel_has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool kernel_supported_v3(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && kernel_has_f16c();
}

bool kernel_supported_v4(void)
{
    return kernel_supported_v3() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool kernel_supported_v4_bf16(void)
{
    return kernel_supported_v4() && __builtin_cpu_supports("avx512bf16");
}
#endif

const struct kernel_row *const kernel_rows[] = {
    &kernel_row_plain,
#ifdef __x86_64__
    &kernel_row_v3,
    &kernel_row_v4,
    &kernel_row_v4_bf16,
#endif
    NULL,
};

const struct kernel_row *kernel_row_best(void)
{
    static const struct kernel_row *_Atomic found;
    const struct kernel_row *best = atomic_load_explicit(&found, memory_order_relaxed);

    if (best)
        return best;
    best = kernel_rows[0];
    for (unsigned i = 0; kernel_rows[i]; i++)
        if (kernel_rows[i]->supported())
            best = kernel_rows[i];
    atomic_store_explicit(&found, best, memory_order_relaxed);
    return best;
}
