/*
 * Arenas: memory that is handed out in order and taken back all at once. A first block stays for
 * good; behind it, as far as each reset allows, come blocks that go at the next.
 */
#ifndef PROTO_ARENA_H
#define PROTO_ARENA_H

#include "shared/base.h"

struct arena_block;

struct arena {
    uint8_t *bytes; /* of the block that is handed out from */
    size_t size, used;
    size_t more;  /* bytes that further blocks may still have */
    bool starved; /* since the last reset: the system had no memory to give */
    uint8_t *first;
    size_t first_size;
    struct arena_block *blocks; /* the further ones, latest first */
};

/* Return: 0 or -ENOMEM. Of a large first block, pages that are not handed out are not touched. */
int arena_init(struct arena *a, size_t first_size);
void arena_fini(struct arena *a);

/* Frees the further blocks. */
void arena_drop(struct arena *a);

/* Takes everything back; from here on further blocks may have `more` bytes together. */
static inline void arena_reset(struct arena *a, size_t more)
{
    if (a->blocks)
        arena_drop(a);
    a->used = 0;
    a->more = more;
    a->starved = false;
}

/* Memory for any type, or NULL. `arena` is a struct arena: the form that an allocator wants. */
void *arena_alloc(void *arena, size_t bytes);

#endif
