/* A doubly linked ring. A link member names its list in a comment: struct list link; // comm::ops */
#ifndef SHARED_LIST_H
#define SHARED_LIST_H

#include "shared/base.h"

struct list {
    struct list *next, *prev;
};

#define LIST_INIT(name)                                                                            \
    {                                                                                              \
        &(name), &(name)                                                                           \
    }

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Puts `e` at the end of the list `l`. */
static inline void list_append(struct list *l, struct list *e)
{
    e->prev = l->prev;
    e->next = l;
    l->prev->next = e;
    l->prev = e;
}

/* Puts `e` at the start of the list `l`. */
static inline void list_prepend(struct list *l, struct list *e)
{
    list_append(l->next, e);
}

/* Takes `e` out and leaves it an empty ring of its own, so taking it out twice is harmless. */
static inline void list_remove(struct list *e)
{
    e->prev->next = e->next;
    e->next->prev = e->prev;
    list_init(e);
}

#define list_first(l, type, member) container_of((l)->next, type, member)

#define list_for_each(it, l, member)                                                               \
    for (it = container_of((l)->next, __typeof__(*it), member); &it->member != (l);                \
         it = container_of(it->member.next, __typeof__(*it), member))

/* Safe against the removal of `it` itself, and of nothing else. */
#define list_for_each_safe(it, tmp, l, member)                                                     \
    for (it = container_of((l)->next, __typeof__(*it), member),                                    \
        tmp = container_of(it->member.next, __typeof__(*it), member);                              \
         &it->member != (l);                                                                       \
         it = tmp, tmp = container_of(it->member.next, __typeof__(*it), member))

#endif
