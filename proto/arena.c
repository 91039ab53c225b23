#include "proto/arena.h"

#include <errno.h>
#include <stdalign.h>
#include <stdlib.h>

#define BLOCK_BYTES (256u * 1024u) /* of a further block, unless more is asked for at once */
#define ALIGNMENT   alignof(max_align_t)

struct arena_block {
    struct arena_block *next;
    alignas(max_align_t) uint8_t bytes[];
};

static size_t round_up(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
}

int arena_init(struct arena *a, size_t first_size)
{
    size_t size = round_up(first_size);
    uint8_t *first = malloc(size); /* not zeroed: pages that nobody needs are never touched */

    if (!first)
        return -ENOMEM;
    *a = (struct arena){ .bytes = first, .size = size, .first = first, .first_size = size };
    return 0;
}

void arena_fini(struct arena *a)
{
    arena_drop(a);
    free(a->first);
}

void arena_drop(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *block = a->blocks;

        a->blocks = block->next;
        free(block);
    }
    a->bytes = a->first;
    a->size = a->first_size;
}

/* Goes on in a new block, and takes `bytes` from it. Out of line: arena_alloc() is on hot paths. */
static __attribute__((noinline)) void *alloc_from_new_block(struct arena *a, size_t bytes)
{
    if (bytes > a->more)
        return NULL;

    size_t size = round_up(MIN(MAX(bytes, BLOCK_BYTES), a->more));
    struct arena_block *block = malloc(sizeof(*block) + size);

    if (!block) {
        a->starved = true;
        return NULL;
    }
    block->next = a->blocks;
    a->blocks = block;
    a->bytes = block->bytes;
    a->size = size;
    a->used = round_up(bytes);
    a->more -= MIN(size, a->more);
    return block->bytes;
}

void *arena_alloc(void *arena, size_t bytes)
{
    struct arena *a = arena;

    if (bytes > a->size - a->used)
        return alloc_from_new_block(a, bytes);

    void *p = a->bytes + a->used;

    /* A block's size is a multiple of the alignment: rounding up stays inside. */
    a->used += round_up(bytes);
    return p;
}
