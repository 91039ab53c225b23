#include "daemon/server/bells.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/device/publish.h"

static int belfry_new(struct list *belfries, uid_t uid, struct belfry **ret)
{
    struct belfry *b = calloc(1, sizeof(*b));
    void *memory;
    int r;

    if (!b)
        return -ENOMEM;
    r = publish("ruccl-bells", sizeof(*b->bells), PUBLISH_READABLE, &memory, &b->fd);
    if (r < 0) {
        free(b);
        return r;
    }
    b->bells = memory;
    b->uid = uid;
    list_init(&b->link);
    if (belfries)
        list_append(belfries, &b->link);
    *ret = b;
    return 0;
}

int belfry_get(struct list *belfries, uid_t uid, struct belfry **ret)
{
    struct belfry *b, *found = NULL;
    int r = 0;

    if (belfries)
        list_for_each(b, belfries, link)
            if (b->uid == uid)
                found = b;
    if (!found)
        r = belfry_new(belfries, uid, &found);
    if (r < 0)
        return r;
    found->refs++;
    *ret = found;
    return 0;
}

struct belfry *belfry_put(struct belfry *b)
{
    if (!b || --b->refs)
        return NULL;
    list_remove(&b->link);
    munmap(b->bells, sizeof(*b->bells));
    close(b->fd);
    free(b);
    return NULL;
}

void bell_ring(_Atomic uint32_t *bell, unsigned most)
{
    atomic_fetch_add_explicit(bell, 1, memory_order_release);
    syscall(SYS_futex, bell, FUTEX_WAKE, most, NULL, NULL, 0);
}
