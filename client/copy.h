/* Copying between plain memory and stages. */
#ifndef CLIENT_COPY_H
#define CLIENT_COPY_H

#include <stdint.h>

/*
 * As memcpy(). The string instructions of some processors crawl, at a tenth of the speed, where the
 * target lies a few bytes behind the source but for whole pages: as what malloc() gives lies behind
 * a stage.
 */
void copy_bytes(void *to, const void *from, uint64_t bytes);

#endif
