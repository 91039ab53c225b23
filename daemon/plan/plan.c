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
    p->scratch = p->partials = 0;
    p->error = 0;
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

/* Room for so many more; -ENOMEM, with the plan unchanged, if there is none. */
static int plan_reserve(struct plan *p, uint32_t nsteps, uint32_t nspans)
{
    struct step *steps =
        array_grow(p->steps, &p->steps_cap, (uint64_t)p->nsteps + nsteps, sizeof(*steps));

    if (!steps)
        return -ENOMEM;
    p->steps = steps;

    struct span *spans =
        array_grow(p->spans, &p->spans_cap, (uint64_t)p->nspans + nspans, sizeof(*spans));

    if (!spans)
        return -ENOMEM;
    p->spans = spans;
    return 0;
}

int plan_add(struct plan *p, enum step_kind kind, struct span src, struct span dst)
{
    if (plan_reserve(p, 1, 2) < 0)
        return -ENOMEM;
    p->steps[p->nsteps++] = (struct step){
        .kind = kind,
        .channel = p->nchannels++,
        .after = STEP_NONE,
        .first_span = p->nspans,
        .nsrc = 1,
        .ndst = 1,
    };
    p->spans[p->nspans++] = src;
    p->spans[p->nspans++] = dst;
    return 0;
}

uint32_t plan_step(struct plan *p, struct step step)
{
    /* a span along, since an array of none has no address */
    if (p->error || plan_reserve(p, 1, 1) < 0) {
        p->error = -ENOMEM;
        return STEP_NONE;
    }
    step.first_span = p->nspans;
    p->nchannels = MAX(p->nchannels, step.channel + 1);
    p->steps[p->nsteps] = step;
    return p->nsteps++;
}

static bool plan_span(struct plan *p, struct span span)
{
    if (p->error || plan_reserve(p, 0, 1) < 0) {
        p->error = -ENOMEM;
        return false;
    }
    p->spans[p->nspans++] = span;
    return true;
}

void plan_source(struct plan *p, struct span span)
{
    if (plan_span(p, span))
        p->steps[p->nsteps - 1].nsrc++;
}

void plan_destination(struct plan *p, struct span span)
{
    if (plan_span(p, span))
        p->steps[p->nsteps - 1].ndst++;
}

/* Elements of a message that lie in tensors. */
static uint64_t message_outside(const struct plan *p, const struct step *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->nsrc + s->ndst && step_is_message(s); i++) {
        const struct span *span = &p->spans[s->first_span + i];

        n += span_is_tensor(span) ? span_total(p, span) : 0;
    }
    return n;
}

uint64_t step_bytes(const struct plan *p, const struct step *s, uint32_t width, uint32_t wide)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < s->nsrc + s->ndst; i++) {
        const struct span *span = &p->spans[s->first_span + i];

        bytes += span_total(p, span) * (span->buffer == BUFFER_PARTIAL ? wide : width);
    }
    return bytes;
}

#define CHANNELS_AT_ONCE 512u

/* Of the channels from `first` on, what the largest message of each has in tensors. */
static uint64_t channels_peak(const struct plan *p, uint32_t first)
{
    uint64_t most[CHANNELS_AT_ONCE] = { 0 }, n = 0;
    const uint32_t end = MIN(CHANNELS_AT_ONCE, p->nchannels - first);

    for (uint32_t i = 0; i < p->nsteps; i++) {
        const uint32_t c = p->steps[i].channel - first;

        if (c < end)
            most[c] = MAX(most[c], message_outside(p, &p->steps[i]));
    }
    for (uint32_t c = 0; c < end; c++)
        n += most[c];
    return n;
}

uint64_t plan_peak(const struct plan *p, uint32_t wide)
{
    uint64_t n = p->scratch + wide * p->partials;

    for (uint32_t first = 0; first < p->nchannels; first += CHANNELS_AT_ONCE)
        n += channels_peak(p, first);
    return n;
}

static bool any_is_out(const struct plan *p, const struct step *s, uint32_t first)
{
    for (uint32_t i = first; i < s->nsrc + s->ndst; i++)
        if (p->spans[s->first_span + i].buffer == BUFFER_OUT)
            return true;
    return false;
}

bool step_writes_out(const struct plan *p, const struct step *s)
{
    return any_is_out(p, s, s->nsrc);
}

bool step_touches_out(const struct plan *p, const struct step *s)
{
    return any_is_out(p, s, 0);
}

/* late[c]: the first step of a channel that is done, or waits for what is done, later than sends
 * may be. */
static bool step_is_late(const struct plan *p, const uint32_t *late, uint32_t i)
{
    const struct step *s = &p->steps[i];

    if (s->kind == STEP_RECV || step_writes_out(p, s) || late[s->channel] < i)
        return true;
    if (s->after == STEP_ALL)
        for (uint32_t c = 0; c < p->nchannels; c++)
            if (late[c] < i)
                return true;
    return s->after < STEP_ALL && late[p->steps[s->after].channel] <= s->after;
}

int plan_sends_first(const struct plan *p, bool *ret)
{
    uint32_t *late = malloc((p->nchannels + (size_t)1) * sizeof(*late));
    bool first = true;

    if (!late)
        return -ENOMEM;
    for (uint32_t c = 0; c < p->nchannels; c++)
        late[c] = STEP_NONE;
    for (uint32_t i = 0; first && i < p->nsteps; i++) {
        if (!step_is_late(p, late, i))
            continue;
        first = p->steps[i].kind != STEP_SEND;
        late[p->steps[i].channel] = MIN(late[p->steps[i].channel], i);
    }
    free(late);
    *ret = first;
    return 0;
}
