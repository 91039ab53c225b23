#include "client/copy.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "shared/mem.h"

#define PAGE          4096u
#define LINE          64u        /* of a cache */
#define STEP          2048u      /* what memcpy() surely does not leave to string instructions */
#define CACHE_DEFAULT (2u << 20) /* where the system does not say */

/* memcpy() leaves less than this to string instructions: glibc goes by the second cache's size. */
static uint64_t string_limit(void)
{
    static _Atomic uint64_t known;
    uint64_t limit = atomic_load_explicit(&known, memory_order_relaxed);

    if (limit == 0) {
        const long size = sysconf(_SC_LEVEL2_CACHE_SIZE);

        limit = size > 0 ? (uint64_t)size : CACHE_DEFAULT;
        atomic_store_explicit(&known, limit, memory_order_relaxed);
    }
    return limit;
}

void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    const uintptr_t behind = ((uintptr_t)to - (uintptr_t)from) % PAGE;
    const bool crawls = behind > 0 && behind < LINE && bytes < string_limit();
    const uint64_t step = crawls ? STEP : bytes;

    for (uint64_t at = 0; at < bytes; at += step)
        memcpy((char *)to + at, (const char *)from + at, MIN(step, bytes - at));
}
