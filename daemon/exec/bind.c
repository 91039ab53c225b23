#include "daemon/exec/bind.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/bounce.h"

/* An operation that touches no more than this runs at once: a wake-up costs more than the work. */
#define SMALL_RUN_BYTES (1024u * 1024)

/* So does a step of a larger one that is not worth handing over. */
#define SMALL_STEP_BYTES (64u * 1024)

/* ---- spans */

/* As how many sources or destinations, one of each rank, it counts. */
static uint32_t span_parts(const struct run *run, const struct span *span)
{
    return span_is_tensor(span) && span->rank == SPAN_EACH ? run->spec.nparts : 1;
}

static bool span_is_wide(const struct run *run, const struct span *span)
{
    return span->buffer == BUFFER_PARTIAL && run->wide > run->width;
}

static uint32_t span_width(const struct run *run, const struct span *span)
{
    return span->buffer == BUFFER_PARTIAL ? run->wide : run->width;
}

static uint32_t part_of_rank(const struct run *run, uint32_t rank)
{
    const struct run_network *n = run->spec.network;

    return n && n->nodes ? n->nodes->index[rank] : rank;
}

/* Of a tensor's span that of the i-th part here, if it is a SPAN_EACH. */
static uint32_t part_of(const struct run *run, const struct span *span, uint32_t i)
{
    return span->rank == SPAN_EACH ? i : part_of_rank(run, span->rank);
}

/* The place in run::far. */
static uint32_t tensor_of(const struct run *run, const struct span *span, uint32_t i)
{
    return 2 * part_of(run, span, i) + (span->buffer == BUFFER_OUT);
}

static bool span_is_far(const struct run *run, const struct span *span, uint32_t i)
{
    return run->bounces && span_is_tensor(span) && run->far[tensor_of(run, span, i)];
}

/* Where an element of a part is from the first byte of its buffer. */
static uint64_t place_of(const struct run *run, enum buffer buffer, uint32_t part, uint64_t element)
{
    const struct run_stage *s = run->spec.memory->stages[part];
    const uint64_t window = !s ? 0 : buffer == BUFFER_IN ? s->in_window : s->out_window;
    const uint64_t block = run->spec.chunking.n;

    if (window)
        element = element / block * window + element % block % window;
    return element * run->width;
}

/* Its first byte; of a SPAN_EACH that of the i-th part here. */
static void *span_at(const struct run *run, const struct slot *s, const struct span *span,
                     uint32_t i)
{
    const struct run_memory *m = run->spec.memory;
    const bool in = span->buffer == BUFFER_IN;
    uint32_t part;

    if (span->buffer == BUFFER_SCRATCH)
        return s->scratch + span->offset * run->width;
    if (span->buffer == BUFFER_PARTIAL)
        return s->partials + span->offset * run->wide;
    part = part_of(run, span, i);
    return (char *)(in ? m->in : m->out)[part] +
           place_of(run, span->buffer, part, s->first + span->offset);
}

/* ---- tasks */

static uint32_t parts_of(const struct run *run, const struct span *spans, uint32_t nspans)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < nspans; i++)
        n += span_parts(run, &spans[i]);
    return n;
}

static int task_reserve(struct run *run, struct run_task *t, uint32_t npointers, uint32_t ngroups)
{
    if (npointers > t->pointers_room) {
        const uint32_t room = MAX(npointers, 2 * run->nparts);
        void **pointers = realloc(t->pointers, room * sizeof(*pointers));

        if (!pointers)
            return -ENOMEM;
        t->pointers = pointers;
        t->pointers_room = room;
    }
    if (ngroups > t->groups_room) {
        struct source_group *groups = realloc(t->groups, ngroups * sizeof(*groups));

        if (!groups)
            return -ENOMEM;
        t->groups = groups;
        t->groups_room = ngroups;
    }
    return 0;
}

static void bind_spans(const struct run *run, const struct slot *s, const struct span *spans,
                       uint32_t nspans, struct run_task *t, void **ret)
{
    for (uint32_t i = 0; i < nspans; i++) {
        const uint32_t n = span_parts(run, &spans[i]);

        for (uint32_t k = 0; k < n; k++)
            *ret++ = span_at(run, s, &spans[i], k);
        t->touched += n * span_width(run, &spans[i]) * spans[i].count;
    }
}

/* Whether the canonical tree over the sources is not the one over all pointers, of one width. */
static bool needs_groups(const struct run *run, const struct span *src, uint32_t nsrc)
{
    for (uint32_t i = 0; i < nsrc && nsrc > 1; i++)
        if (span_parts(run, &src[i]) > 1 || span_is_wide(run, &src[i]) != span_is_wide(run, src))
            return true;
    return false;
}

/* Windows let a unit pass at a time, however many there are. */
static uint64_t units_at_once(const struct run *run)
{
    return run->spec.memory->nstages ? 1 : MIN(run->units, UINT32_MAX);
}

static void bind_reduction(const struct run *run, const struct span *src, const struct step *step,
                           struct run_task *t)
{
    const struct descriptor *d = run->spec.d;
    const bool mean = d->op == OPERATOR_MEAN;
    const struct span *dst = src + step->nsrc;

    t->task.op = mean ? OPERATOR_SUM : d->op;
    t->task.divisor = mean && dst->buffer == BUFFER_OUT ? d->nranks : 0;
    t->task.src_wide = span_is_wide(run, src);
    t->task.dst_wide = span_is_wide(run, dst);
    if (needs_groups(run, src, step->nsrc)) {
        t->task.groups = t->groups;
        t->task.ngroups = step->nsrc;
        for (uint32_t i = 0; i < step->nsrc; i++)
            t->groups[i] =
                (struct source_group){ span_parts(run, &src[i]), span_is_wide(run, &src[i]) };
    }
    /* One rank alone: its reduction is its input, bit for bit. */
    if (t->task.nsrc == 1 && t->task.src_wide == t->task.dst_wide && t->task.divisor <= 1) {
        assert(!t->task.src_wide);
        t->task.kind = TASK_COPY;
    }
}

static void task_small(struct run *run, const struct slot *s, struct run_task *t)
{
    t->task.ntasks = units_at_once(run) * s->plan->nsteps;
    t->task.small = run->device == run->means->device &&
                    (t->touched <= SMALL_STEP_BYTES ||
                     t->touched <= SMALL_RUN_BYTES / t->task.ntasks || run->enclosure.waiting);
}

int bind_task(struct run *run, struct slot *s, uint32_t index, struct run_task *t)
{
    const struct step *step = &s->plan->steps[index];
    const struct span *src = &s->plan->spans[step->first_span], *dst = src + step->nsrc;
    const uint32_t nsrc = parts_of(run, src, step->nsrc), ndst = parts_of(run, dst, step->ndst);
    int r;

    r = task_reserve(run, t, nsrc + ndst, step->nsrc);
    if (r < 0)
        return r;
    t->slot = s;
    t->step = index;
    t->touched = 0;
    t->task = (struct task){
        .kind = step->kind == STEP_REDUCE ? TASK_REDUCE : TASK_COPY,
        .dtype = run->spec.d->dtype,
        .nsrc = nsrc,
        .ndst = ndst,
        .src = t->pointers,
        .dst = t->pointers + nsrc,
        .count = src->count,
        .cancel = &run->cancel,
        .mappings = run->area.mappings,
        .nmappings = run->area.nmappings,
        .owner = t,
    };
    bind_spans(run, s, src, step->nsrc, t, t->task.src);
    bind_spans(run, s, dst, step->ndst, t, t->task.dst);
    if (step->kind == STEP_REDUCE)
        bind_reduction(run, src, step, t);
    task_small(run, s, t);
    return 0;
}

/* ---- messages */

static int message_reserve(struct message *m, uint32_t nparts)
{
    struct iovec *parts;

    if (nparts <= m->parts_room)
        return 0;
    parts = realloc(m->parts, nparts * sizeof(*parts));
    if (!parts)
        return -ENOMEM;
    m->parts = parts;
    m->parts_room = nparts;
    return 0;
}

/* What lies one behind the other is one part. */
static void message_add(struct message *m, void *base, uint64_t bytes)
{
    struct transfer *t = &m->transfer;
    struct iovec *last = t->nparts ? &m->parts[t->nparts - 1] : NULL;

    t->bytes += bytes;
    if (last && (char *)last->iov_base + last->iov_len == base)
        last->iov_len += bytes;
    else
        m->parts[t->nparts++] = (struct iovec){ base, bytes };
}

/* Those that lie on GPUs. */
static uint64_t message_far(const struct run *run, const struct plan *p, const struct step *step)
{
    const struct span *spans = &p->spans[step->first_span];
    uint64_t bytes = 0;

    for (uint32_t i = 0; run->bounces && i < step->nsrc + step->ndst; i++)
        for (uint32_t k = 0; k < span_parts(run, &spans[i]); k++)
            if (span_is_far(run, &spans[i], k))
                bytes += spans[i].count * span_width(run, &spans[i]);
    return bytes;
}

uint64_t bind_message_bounced(const struct run *run, const struct plan *p, const struct step *step)
{
    const uint64_t far = message_far(run, p, step);

    return far >= run->straight_min && far == step_bytes(p, step, run->width, run->wide) ? 0 : far;
}

int bind_message(struct run *run, struct slot *s, uint32_t index, struct message *m)
{
    const struct step *step = &s->plan->steps[index];
    const struct span *spans = &s->plan->spans[step->first_span];
    const struct run_network *network = run->spec.network;
    const uint32_t nspans = step->nsrc + step->ndst;
    const uint32_t nparts = parts_of(run, spans, nspans);
    const bool bounces = bind_message_bounced(run, s->plan, step) > 0;

    if (message_reserve(m, nparts) < 0 || bounce_reserve(m, bounces ? nparts : 0) < 0)
        return -ENOMEM;
    m->slot = s;
    m->step = index;
    m->counted = 0;
    m->transfer =
        (struct transfer){ .name = { network->sequence, network->first_unit + s->unit, step->tag },
                           .parts = m->parts,
                           .owner = m };
    for (uint32_t i = 0; i < nspans; i++) {
        const uint64_t bytes = spans[i].count * span_width(run, &spans[i]);
        const uint32_t n = span_parts(run, &spans[i]);

        for (uint32_t k = 0; k < n; k++) {
            void *at = span_at(run, s, &spans[i], k);

            if (bounces && span_is_far(run, &spans[i], k))
                at = bounce_add(m, tensor_of(run, &spans[i], k), at, bytes);
            message_add(m, at, bytes);
        }
        m->counted += span_is_tensor(&spans[i]) ? n * bytes : 0;
    }
    m->transfer.gpu = !bounces && message_far(run, s->plan, step) > 0;
    return 0;
}

void bind_copy(const struct run *run, const struct slot *s, uint32_t index, uint8_t *to,
               const uint8_t *from)
{
    const struct step *step = &s->plan->steps[index];
    const struct span *spans = &s->plan->spans[step->first_span];
    const struct fault_area *before = fault_enter(&run->area);

    for (uint32_t i = 0; i < step->nsrc + step->ndst; i++) {
        const uint64_t bytes = spans[i].count * span_width(run, &spans[i]);
        const uint32_t n = bytes ? span_parts(run, &spans[i]) : 0;

        for (uint32_t k = 0; k < n; k++) {
            void *at = span_at(run, s, &spans[i], k);

            if (to) {
                memcpy(to, at, bytes);
                to += bytes;
            } else {
                memcpy(at, from, bytes);
                from += bytes;
            }
        }
    }
    fault_leave(before);
}
