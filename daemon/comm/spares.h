/* Spares: memory of one size kept for the next of its kind, up to a number. What is in it is lost.
 */
#ifndef DAEMON_COMM_SPARES_H
#define DAEMON_COMM_SPARES_H

#include <stdlib.h>

#include "shared/base.h"

struct spare {
    struct spare *next;
};

struct spares {
    struct spare *first;
    uint32_t n, max;
};

/* NULL where there is none. */
static inline void *spares_take(struct spares *s)
{
    struct spare *spare = s->first;

    if (spare) {
        s->first = spare->next;
        s->n--;
    }
    return spare;
}

/* Keeps `memory`, or frees it where there are enough. */
static inline void spares_give(struct spares *s, void *memory)
{
    struct spare *spare = memory;

    if (s->n >= s->max) {
        free(memory);
        return;
    }
    spare->next = s->first;
    s->first = spare;
    s->n++;
}

static inline void spares_fini(struct spares *s)
{
    void *memory;

    while ((memory = spares_take(s)))
        free(memory);
}

#endif
