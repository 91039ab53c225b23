#include "daemon/exec/staging.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/device/device.h"

/* Blocks come in multiples of it, so that one serves runs of about its size. */
#define BLOCK_UNIT (64u * 1024)

struct staging {
    uint64_t limit;
    uint64_t reserved;    /* promised */
    uint64_t spare;       /* taken beside that */
    uint64_t taken, held; /* bytes of blocks that are taken, and that are kept */
    struct list kept;     /* struct staging_block, the latest first */
};

int staging_new(uint64_t limit_bytes, struct staging **ret)
{
    struct staging *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->limit = limit_bytes;
    list_init(&s->kept);
    *ret = s;
    return 0;
}

static void block_free(struct staging_block *b)
{
    if (b->adopted_by)
        b->adopted_by->ops->disown(b->adopted_by, b->memory);
    munmap(b->memory, b->bytes);
    free(b);
}

static struct staging_block *block_new(uint64_t bytes)
{
    struct staging_block *b = malloc(sizeof(*b));

    if (!b)
        return NULL;
    b->bytes = bytes;
    b->adopted_by = NULL;
    b->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (b->memory == MAP_FAILED) {
        free(b);
        return NULL;
    }
    list_init(&b->link);
    return b;
}

/* Of what is kept the least lately used go, until no more than `bytes` are left. */
static void staging_trim(struct staging *s, uint64_t bytes)
{
    while (s->held > bytes) {
        struct staging_block *b = container_of(s->kept.prev, struct staging_block, link);

        list_remove(&b->link);
        s->held -= b->bytes;
        block_free(b);
    }
}

struct staging *staging_free(struct staging *s)
{
    if (!s)
        return NULL;
    assert(s->taken == 0);
    staging_trim(s, 0);
    free(s);
    return NULL;
}

int staging_reserve(struct staging *s, uint64_t bytes)
{
    if (bytes > staging_left(s))
        return -ENOMEM;
    s->reserved += bytes;
    return 0;
}

void staging_unreserve(struct staging *s, uint64_t bytes)
{
    assert(bytes <= s->reserved);
    s->reserved -= bytes;
    if (s->reserved == 0)
        staging_trim(s, 0);
}

/* What is spare comes back by itself, and is not asked for. */
uint64_t staging_left(const struct staging *s)
{
    return s->limit - s->reserved;
}

/* The latest that is large enough, and not much larger. */
static struct staging_block *staging_find(struct staging *s, uint64_t bytes)
{
    struct staging_block *b;

    list_for_each(b, &s->kept, link)
        if (b->bytes >= bytes && b->bytes / 2 <= bytes) {
            list_remove(&b->link);
            s->held -= b->bytes;
            return b;
        }
    return NULL;
}

/* What is kept is never the reason why the limit is passed. */
static struct staging_block *staging_make(struct staging *s, uint64_t bytes)
{
    const uint64_t used = s->taken + bytes;

    staging_trim(s, used < s->limit ? s->limit - used : 0);
    return block_new(bytes);
}

struct staging_block *staging_take(struct staging *s, uint64_t bytes, bool spare)
{
    struct staging_block *b;
    uint64_t whole;

    if (!mul_u64(div_up_u64(bytes, BLOCK_UNIT), BLOCK_UNIT, &whole))
        return NULL;
    if (spare && (s->spare > staging_left(s) || whole > staging_left(s) - s->spare))
        return NULL;
    b = staging_find(s, whole);
    if (!b)
        b = staging_make(s, whole);
    if (!b)
        return NULL;
    b->spare = spare;
    s->taken += b->bytes;
    s->spare += spare ? b->bytes : 0;
    return b;
}

int staging_adopt(struct staging_block *b, struct device *device)
{
    int r;

    if (b->adopted_by) {
        assert(b->adopted_by == device);
        return 0;
    }
    r = device->ops->adopt(device, b->memory, b->bytes);
    if (r == 0)
        b->adopted_by = device;
    return r;
}

struct staging_block *staging_give(struct staging *s, struct staging_block *b)
{
    if (!b)
        return NULL;
    s->taken -= b->bytes;
    s->spare -= b->spare ? b->bytes : 0;
    s->held += b->bytes;
    list_prepend(&s->kept, &b->link);
    staging_trim(s, s->reserved ? s->held : 0);
    return NULL;
}
