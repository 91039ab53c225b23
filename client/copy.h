/* Copying between plain memory and stages. */
#ifndef CLIENT_COPY_H
#define CLIENT_COPY_H

#include <string.h>

#include "shared/mem.h"

#define COPY_PAGE 4096u
#define COPY_LINE 64u        /* of a cache */
#define COPY_MOST (2u << 20) /* what memcpy() may leave to the processor's string instructions */
#define COPY_STEP 2048u      /* what it surely does not */

/*
 * As memcpy(). The string instructions of some processors crawl, at a tenth of the speed, where the
 * target lies a few bytes behind the source but for whole pages: as what malloc() gives lies behind
 * a stage.
 */
static inline void copy_bytes(void *to, const void *from, uint64_t bytes)
{
    const uintptr_t behind = ((uintptr_t)to - (uintptr_t)from) % COPY_PAGE;
    const bool crawls = behind > 0 && behind < COPY_LINE && bytes <= COPY_MOST;
    const uint64_t step = crawls ? COPY_STEP : bytes;

    for (uint64_t at = 0; at < bytes; at += step)
        memcpy((char *)to + at, (const char *)from + at, MIN(step, bytes - at));
}

#endif
