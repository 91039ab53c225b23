#include "daemon/plan/plan.h"

#include <errno.h>
#include <stdlib.h>

void plan_init(struct plan *p, uint32_t nranks)
{
    *p = (struct plan){ .nranks = nranks };
}

void plan_fini(struct plan *p)
{
    free(p->steps);
    free(p->spans);
    *p = (struct plan){ 0 };
}

void plan_clear(struct plan *p)
{
    p->nchannels = p->nsteps = p->nspans = 0;
}

/* `items`, moved where it must be to hold `need` of `size` bytes; NULL, with `items` kept, if none.
 */
static void *array_grow(void *items, uint32_t *cap, uint64_t need, size_t size)
{
    if (need <= *cap)
        return items;

    uint64_t more = MIN(MAX(need, 2 * (uint64_t)*cap), UINT32_MAX);
    void *moved = need <= more ? reallocarray(items, more, size) : NULL;

    if (moved)
        *cap = (uint32_t)more;
    return moved;
}

int plan_add(struct plan *p, enum step_kind kind, struct span src, struct span dst)
{
    struct step *steps = array_grow(p->steps, &p->steps_cap, p->nsteps + 1ull, sizeof(*steps));

    if (!steps)
        return -ENOMEM;
    p->steps = steps;

    struct span *spans = array_grow(p->spans, &p->spans_cap, p->nspans + 2ull, sizeof(*spans));

    if (!spans)
        return -ENOMEM;
    p->spans = spans;

    steps[p->nsteps++] = (struct step){
        .kind = kind,
        .channel = p->nchannels++,
        .after = STEP_NONE,
        .first_span = p->nspans,
        .nsrc = 1,
        .ndst = 1,
    };
    spans[p->nspans++] = src;
    spans[p->nspans++] = dst;
    return 0;
}
