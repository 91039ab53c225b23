#include "client/ctl/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STRINGS_MAX 6

/* Where the strings of an item are. */
static size_t item_strings(struct status_item *s, const char **ret[STRINGS_MAX])
{
    size_t n = 0;

    switch (s->kind) {
    case STATUS_DAEMON:
        ret[n++] = &s->daemon.version;
        ret[n++] = &s->daemon.node;
        ret[n++] = &s->daemon.state;
        ret[n++] = &s->daemon.kernels;
        break;
    case STATUS_SESSION:
        ret[n++] = &s->session.name;
        break;
    case STATUS_COMMUNICATOR:
        ret[n++] = &s->communicator.label;
        ret[n++] = &s->communicator.state;
        ret[n++] = &s->communicator.failure;
        ret[n++] = &s->communicator.oldest_state;
        ret[n++] = &s->communicator.oldest_arrived;
        ret[n++] = &s->communicator.oldest_missing;
        break;
    case STATUS_MEMBER:
        ret[n++] = &s->member.last;
        break;
    case STATUS_PEER:
        ret[n++] = &s->peer.node;
        ret[n++] = &s->peer.host;
        ret[n++] = &s->peer.address;
        ret[n++] = &s->peer.state;
        ret[n++] = &s->peer.transport;
        break;
    case STATUS_GPU:
        ret[n++] = &s->gpu.uuid;
        ret[n++] = &s->gpu.name;
        break;
    }
    return n;
}

static void item_fini(struct status_item *s)
{
    const char **strings[STRINGS_MAX];
    size_t n = item_strings(s, strings);

    for (size_t i = 0; i < n; i++)
        free((char *)*strings[i]);
}

static int item_copy(struct status_item *to, const struct status_item *from)
{
    const char **strings[STRINGS_MAX];
    bool complete = true;

    *to = *from;

    size_t n = item_strings(to, strings);

    for (size_t i = 0; i < n; i++) {
        *strings[i] = strdup(*strings[i] ? *strings[i] : "");
        complete &= *strings[i] != NULL;
    }
    if (complete)
        return 0;
    item_fini(to);
    return -ENOMEM;
}

void status_fini(struct status *s)
{
    for (size_t i = 0; i < s->nitems; i++)
        item_fini(&s->items[i]);
    free(s->items);
    *s = (struct status){ 0 };
}

int status_add(struct status *s, const struct status_item *item)
{
    if (s->nitems == s->room) {
        size_t room = s->room ? 2 * s->room : CODEC_STATUS_ITEMS;
        struct status_item *items = reallocarray(s->items, room, sizeof(*items));

        if (!items)
            return -ENOMEM;
        s->items = items;
        s->room = room;
    }

    int r = item_copy(&s->items[s->nitems], item);
    if (r < 0)
        return r;
    s->nitems++;
    return 0;
}

const struct status_item *status_next(const struct status *s, enum status_kind kind,
                                      const struct status_item *previous)
{
    size_t i = previous ? (size_t)(previous - s->items) + 1 : 0;

    for (; i < s->nitems; i++)
        if (s->items[i].kind == kind)
            return &s->items[i];
    return NULL;
}

const struct status_item *status_next_member(const struct status *s, uint64_t communicator,
                                             const struct status_item *previous)
{
    do {
        previous = status_next(s, STATUS_MEMBER, previous);
    } while (previous && previous->member.communicator != communicator);
    return previous;
}
