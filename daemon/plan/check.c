/*
 * Every step becomes the elements it touches, per memory; sorted, those that overlap are
 * neighbours, so only real overlaps are looked at: O(n log n) for n spans with each rank counted.
 */
#include "daemon/plan/check.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/plan/placement.h"

#define WIDE(n) ((unsigned long long)(n))

/* Memories that are no rank's: those number 2 * rank + buffer. */
#define MEMORY_SCRATCH  (UINT64_MAX - 1)
#define MEMORY_PARTIALS UINT64_MAX

/* Elements [first, end) of one memory, as one step uses them. */
struct access {
    uint64_t memory, first, end;
    uint32_t step;
    bool writes;
};

struct accesses {
    struct access *items;
    size_t n, cap;
};

static void accesses_fini(struct accesses *l)
{
    free(l->items);
}

static int accesses_add(struct accesses *l, struct access item)
{
    if (l->n == l->cap) {
        size_t cap = MAX(l->cap * 2, (size_t)64);
        struct access *items = reallocarray(l->items, cap, sizeof(*items));

        if (!items)
            return -ENOMEM;
        l->items = items;
        l->cap = cap;
    }
    l->items[l->n++] = item;
    return 0;
}

bool plan_ordered(const struct plan *p, uint32_t a, uint32_t b)
{
    if (a >= b)
        return false;

    /* Per channel the first step that waits for a; the channel's later ones wait for it in turn. */
    uint32_t *waits = malloc(p->nchannels * sizeof(*waits));

    if (!waits)
        return false;
    for (uint32_t i = 0; i < p->nchannels; i++)
        waits[i] = STEP_NONE;
    waits[p->steps[a].channel] = a;
    for (uint32_t i = a + 1; i <= b; i++) {
        const struct step *s = &p->steps[i];

        if (s->after == STEP_ALL ||
            (s->after != STEP_NONE && waits[p->steps[s->after].channel] <= s->after))
            waits[s->channel] = MIN(waits[s->channel], i);
    }

    bool ordered = waits[p->steps[b].channel] <= b;

    free(waits);
    return ordered;
}

static bool buffer_exists(const struct plan *p, const struct check_world *w, enum buffer buffer,
                          uint32_t rank)
{
    const uint32_t flags = collective_get(w->kind)->flags;
    const bool in = buffer == BUFFER_IN;

    if (w->nodes ? rank >= w->nodes->nranks || w->nodes->nodes[rank] != w->node : rank >= p->nranks)
        return false;
    if (flags & COLLECTIVE_PAIR)
        return rank == (in ? 0 : 1);
    if (flags & (in ? COLLECTIVE_IN_AT_ROOT : COLLECTIVE_OUT_AT_ROOT))
        return rank == w->root;
    return true;
}

/* Where a rank's buffer begins: in place the smaller tensor is the rank's block of the larger. */
static void buffer_place(const struct check_world *w, enum buffer buffer, uint32_t rank,
                         uint64_t *ret_memory, uint64_t *ret_first)
{
    *ret_first = 0;
    *ret_memory = 2 * (uint64_t)rank + (w->in_place ? BUFFER_IN : buffer);
    if (w->in_place && w->kind == COLLECTIVE_ALL_GATHER && buffer == BUFFER_IN)
        *ret_first = rank * w->in_count;
    if (w->in_place && w->kind == COLLECTIVE_REDUCE_SCATTER && buffer == BUFFER_OUT)
        *ret_first = rank * w->out_count;
}

static int check_buffer(const struct plan *p, const struct check_world *w, struct access item,
                        const struct span *span, uint32_t rank, struct accesses *l,
                        struct text *ret)
{
    const char *name = span->buffer == BUFFER_IN ? "in" : "out";
    const uint64_t size = span->buffer == BUFFER_IN ? w->in_count : w->out_count;
    uint64_t base;

    if (!buffer_exists(p, w, span->buffer, rank)) {
        text_add(ret, "step %u: there is no %s of rank %u", item.step, name, rank);
        return -EINVAL;
    }
    if (span->offset > size || span->count > size - span->offset) {
        text_add(ret, "step %u: %llu elements at %llu do not lie in the %llu of %s of rank %u",
                 item.step, WIDE(span->count), WIDE(span->offset), WIDE(size), name, rank);
        return -EINVAL;
    }
    buffer_place(w, span->buffer, rank, &item.memory, &base);
    item.first = base + span->offset;
    item.end = item.first + span->count;
    return accesses_add(l, item);
}

static int check_staging(struct access item, const struct span *span, uint64_t size,
                         struct accesses *l, struct text *ret)
{
    if (span->offset > size || span->count > size - span->offset) {
        text_add(ret, "step %u: %llu at %llu do not lie in the %llu that are staged", item.step,
                 WIDE(span->count), WIDE(span->offset), WIDE(size));
        return -EINVAL;
    }
    item.memory = span->buffer == BUFFER_SCRATCH ? MEMORY_SCRATCH : MEMORY_PARTIALS;
    item.first = span->offset;
    item.end = item.first + span->count;
    return accesses_add(l, item);
}

/* A span as what it stands for: one access, or one of every rank here. */
static int check_span(const struct plan *p, const struct check_world *w, struct access item,
                      const struct span *span, struct accesses *l, struct text *ret)
{
    const bool each = span->rank == SPAN_EACH;
    const uint32_t n = each ? p->nranks : 1;
    int r = 0;

    if (span->buffer == BUFFER_SCRATCH)
        return check_staging(item, span, p->scratch, l, ret);
    if (span->buffer == BUFFER_PARTIAL)
        return check_staging(item, span, p->partials, l, ret);
    for (uint32_t i = 0; i < n && r == 0; i++) {
        uint32_t rank = !each ? span->rank : w->nodes ? placement_rank(w->nodes, w->node, i) : i;

        r = check_buffer(p, w, item, span, rank, l, ret);
    }
    return r;
}

static const char *wrong_with_order(const struct plan *p, uint32_t i)
{
    const struct step *s = &p->steps[i];

    if (s->channel >= p->nchannels)
        return "is on a channel that does not exist";
    if (s->after == STEP_NONE || s->after == STEP_ALL)
        return NULL;
    if (s->after >= i)
        return "waits for a step that is not before it";
    if (p->steps[s->after].channel == s->channel)
        return "waits for a step of its own channel";
    return NULL;
}

static const char *wrong_with_ends(const struct plan *p, const struct check_world *w,
                                   const struct step *s)
{
    if (s->kind != STEP_RECV && s->nsrc == 0)
        return "has no source or no destination";
    if (s->kind != STEP_SEND && s->ndst == 0)
        return "has no source or no destination";
    if (step_is_message(s) && (s->nsrc && s->ndst))
        return "is a message with both a source and a destination";
    if (step_is_message(s) && (!w->nodes || s->peer >= w->nodes->nnodes || s->peer == w->node))
        return "is a message with no other node";
    if (s->first_span > p->nspans || (uint64_t)s->nsrc + s->ndst > p->nspans - s->first_span)
        return "has spans that the plan does not hold";
    return NULL;
}

/* What is as wide as what, what may be written, and how much of it. */
static const char *wrong_with_spans(const struct plan *p, const struct step *s)
{
    const struct span *first = &p->spans[s->first_span];
    const bool sum = s->ndst && first[s->nsrc].buffer == BUFFER_PARTIAL;

    for (uint32_t k = 0; k < s->nsrc + s->ndst; k++) {
        const bool partial = first[k].buffer == BUFFER_PARTIAL;

        if (!step_is_message(s) && first[k].count != first->count)
            return "has spans of different counts";
        if (s->kind != STEP_REDUCE && partial != (first->buffer == BUFFER_PARTIAL))
            return "mixes elements and accumulators";
        if (k < s->nsrc)
            continue;
        if (first[k].buffer == BUFFER_IN)
            return "writes to an input";
        if (s->kind == STEP_REDUCE && (partial != sum || first[k].buffer == BUFFER_SCRATCH))
            return "reduces neither into outputs nor into accumulators";
    }
    return NULL;
}

/* What can be said of a step by itself, before its spans are read as memory. */
static int check_form(const struct plan *p, const struct check_world *w, uint32_t i,
                      struct text *ret)
{
    const struct step *s = &p->steps[i];
    const char *wrong = s->kind > STEP_RECV ? "is of no known kind" : wrong_with_order(p, i);

    if (!wrong)
        wrong = wrong_with_ends(p, w, s);
    if (!wrong)
        wrong = wrong_with_spans(p, s);
    if (!wrong)
        return 0;
    text_add(ret, "step %u %s", i, wrong);
    return -EINVAL;
}

static bool access_same(const struct access *a, const struct access *b)
{
    return a->memory == b->memory && a->first == b->first && a->end == b->end;
}

/* Of a copy's destinations those that are its source are left alone: no access. */
static void drop_self_copies(struct accesses *l, size_t source)
{
    size_t n = source + 1;

    for (size_t i = n; i < l->n; i++)
        if (!access_same(&l->items[source], &l->items[i]))
            l->items[n++] = l->items[i];
    l->n = n;
}

static int check_step(const struct plan *p, const struct check_world *w, uint32_t i,
                      struct accesses *l, struct text *ret)
{
    const struct step *s = &p->steps[i];
    const size_t before = l->n;
    int r;

    r = check_form(p, w, i, ret);
    for (uint32_t k = 0; k < s->nsrc && r == 0; k++)
        r = check_span(p, w, (struct access){ .step = i }, &p->spans[s->first_span + k], l, ret);
    if (r < 0)
        return r;
    if (s->kind == STEP_COPY && l->n - before != 1) {
        text_add(ret, "step %u copies from more than one source", i);
        return -EINVAL;
    }
    for (uint32_t k = s->nsrc; k < s->nsrc + s->ndst && r == 0; k++)
        r = check_span(p, w, (struct access){ .step = i, .writes = true },
                       &p->spans[s->first_span + k], l, ret);
    if (r < 0)
        return r;
    if (s->kind == STEP_COPY)
        drop_self_copies(l, before);
    return 0;
}

static int access_compare(const void *left, const void *right)
{
    const struct access *a = left, *b = right;

    if (a->memory != b->memory)
        return a->memory < b->memory ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return 0;
}

/* Whether two accesses that share elements may both be in the plan. */
static bool accesses_agree(const struct plan *p, const struct access *a, const struct access *b)
{
    if (!a->writes && !b->writes)
        return true;
    if (a->step == b->step)
        return a->writes != b->writes && access_same(a, b);
    return plan_ordered(p, MIN(a->step, b->step), MAX(a->step, b->step));
}

static void add_memory(struct text *ret, uint64_t memory)
{
    if (memory == MEMORY_SCRATCH)
        text_add(ret, "scratch");
    else if (memory == MEMORY_PARTIALS)
        text_add(ret, "the partial sums");
    else
        text_add(ret, "rank %llu", WIDE(memory / 2));
}

static int check_overlaps(const struct plan *p, struct accesses *l, struct text *ret)
{
    if (l->n)
        qsort(l->items, l->n, sizeof(*l->items), access_compare);
    for (const struct access *a = l->items, *last = a + l->n; a < last; a++)
        for (const struct access *b = a + 1;
             b < last && b->memory == a->memory && b->first < a->end; b++) {
            if (b->end == b->first || accesses_agree(p, a, b))
                continue;
            text_add(ret, "steps %u and %u may touch element %llu of ", MIN(a->step, b->step),
                     MAX(a->step, b->step), WIDE(b->first));
            add_memory(ret, b->memory);
            text_add(ret, " at once, writing");
            return -EINVAL;
        }
    return 0;
}

/* Sorted accesses: what is written of one rank's output, each element once, and how much. */
static int check_written(const struct check_world *w, const struct accesses *l, uint32_t rank,
                         struct text *ret)
{
    uint64_t written = 0, end = 0;

    for (size_t i = 0; i < l->n; i++) {
        const struct access *a = &l->items[i];

        if (a->memory / 2 != rank || !a->writes || a->first == a->end)
            continue;
        if (a->first < end) {
            text_add(ret, "element %llu of the output of rank %u is written twice", WIDE(a->first),
                     rank);
            return -EINVAL;
        }
        end = a->end;
        written += a->end - a->first;
    }
    if (written == w->written[rank])
        return 0;
    text_add(ret, "%llu elements of the output of rank %u are written, not %llu", WIDE(written),
             rank, WIDE(w->written[rank]));
    return -EINVAL;
}

int plan_check(const struct plan *p, const struct check_world *w, struct text *ret)
{
    _cleanup_(accesses_fini) struct accesses l = { 0 };
    int r = 0;

    for (uint32_t i = 0; i < p->nsteps && r == 0; i++)
        r = check_step(p, w, i, &l, ret);
    if (r < 0)
        return r;
    r = check_overlaps(p, &l, ret);
    for (uint32_t i = 0; i < p->nranks && w->written && r == 0; i++)
        r = check_written(w, &l, w->nodes ? placement_rank(w->nodes, w->node, i) : i, ret);
    return r;
}
