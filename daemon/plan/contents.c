#include "daemon/plan/contents.h"

#include <errno.h>
#include <stdlib.h>

/* The bytes of what goes the same way between the same nodes with a lower tag. */
static uint64_t bytes_before(const struct contents *c, const struct plan *p, const struct step *s)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->nsteps; i++)
        if (p->steps[i].kind == s->kind && p->steps[i].peer == s->peer && p->steps[i].tag < s->tag)
            bytes += c->bytes[i];
    return bytes;
}

/* One allocation. */
static struct contents *contents_room(uint32_t nsteps, uint32_t nnodes)
{
    const size_t n = 2 * ((size_t)nsteps + nnodes) + 1;
    struct contents *c = calloc(1, sizeof(*c) + n * sizeof(uint64_t));

    if (!c)
        return NULL;
    c->bytes = (uint64_t *)(c + 1);
    c->at = c->bytes + nsteps;
    c->leaves_at = c->at + nsteps;
    c->comes = c->leaves_at + nnodes + 1;
    return c;
}

int contents_new(const struct plan *p, uint32_t nnodes, uint32_t width, uint32_t wide,
                 struct contents **ret)
{
    struct contents *c = contents_room(p->nsteps, nnodes);

    if (!c || plan_sends_first(p, &c->sends_first) < 0) {
        contents_free(c);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct step *s = &p->steps[i];

        if (!step_is_message(s))
            continue;
        c->bytes[i] = step_bytes(p, s, width, wide);
        c->nsends += s->kind == STEP_SEND;
        *(s->kind == STEP_SEND ? &c->leaves_at[s->peer + 1] : &c->comes[s->peer]) += c->bytes[i];
    }
    for (uint32_t node = 0; node < nnodes; node++)
        c->leaves_at[node + 1] += c->leaves_at[node];
    for (uint32_t i = 0; i < p->nsteps; i++)
        if (step_is_message(&p->steps[i]))
            c->at[i] = bytes_before(c, p, &p->steps[i]) +
                       (p->steps[i].kind == STEP_SEND ? c->leaves_at[p->steps[i].peer] : 0);
    *ret = c;
    return 0;
}

struct contents *contents_free(struct contents *c)
{
    free(c);
    return NULL;
}
