#include <assert.h>

#include "daemon/device/cuda.h"

#define BLOCKS_PER_PROCESSOR 2u   /* half of what it holds at once: another task has room beside */
#define THREAD_BYTES         16u  /* of each buffer, that a thread moves at a time, at the least */
#define SLICE_STEP           128u /* elements: no two slices share a line of any cache */

static CUstream lane_of(const struct cuda_work *w, const struct cuda_gpu *g)
{
    return g->lanes[w->lane[g->index]];
}

/* Elements of this piece. */
static uint64_t piece_of(const struct cuda_work *w)
{
    return MIN(w->piece, w->count - w->first);
}

/* Of element w->first, to who combines. */
static uint64_t address_of(const struct cuda_work *w, const struct cuda_place *p, uint64_t slot)
{
    return p->foreign ? w->bounce->address + slot * w->slot_bytes
                      : p->address + w->first * p->width;
}

static int queue_copy(struct cuda_work *w, struct cuda_gpu *g, uint64_t dst, uint64_t src,
                      uint64_t bytes)
{
    CUresult error = cuda_gpu_enter(g);

    if (!error)
        error = g->device->api->cuMemcpyAsync(dst, src, bytes, lane_of(w, g));
    if (!error)
        w->awaited |= cuda_bit(g);
    return cuda_check_work(g, error, "cuMemcpyAsync");
}

/* ---- Foreign memory ---- */

/* From or to its slot, by its own GPU. */
static int move_foreign(struct cuda_work *w, bool fetch)
{
    struct cuda_device *d = w->main->device;
    uint64_t slot = 0;

    for (uint64_t i = 0; i < w->nplaces && w->nforeign; i++) {
        const struct cuda_place *p = &w->places[i];
        const uint64_t bytes = piece_of(w) * p->width;
        uint64_t home, away;
        int r;

        if (!p->foreign)
            continue;
        home = p->address + w->first * p->width;
        away = address_of(w, p, slot++);
        if (fetch != (i < w->nsrc))
            continue;
        r = fetch ? queue_copy(w, &d->gpus[p->gpu], away, home, bytes)
                  : queue_copy(w, &d->gpus[p->gpu], home, away, bytes);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---- Kernels ---- */

static void fill_groups(const struct cuda_work *w, struct cuda_group *groups)
{
    const struct task *t = w->task;

    if (t->ngroups == 0)
        groups[0] = (struct cuda_group){ t->nsrc, t->src_wide };
    for (uint32_t i = 0; i < t->ngroups; i++)
        groups[i] = (struct cuda_group){ t->groups[i].nsrc, t->groups[i].wide };
}

static void fill_pointers(const struct cuda_work *w, uint64_t *pointers)
{
    uint64_t slot = 0;

    for (uint64_t i = 0; i < w->nplaces; i++) {
        const struct cuda_place *p = &w->places[i];

        pointers[i] = address_of(w, p, slot);
        slot += p->foreign;
    }
}

/* All but the slice. What is large is in the table, pointers first. */
static void fill_args(struct cuda_work *w, struct cuda_args *a)
{
    const struct task *t = w->task;
    const uint64_t pointer_bytes = w->nplaces * sizeof(uint64_t);

    *a = (struct cuda_args){ .nsrc = w->nsrc, .ndst = w->ndst };
    if (w->nplaces > CUDA_INLINE_POINTERS) {
        a->pointer_table = (const uint64_t *)(uintptr_t)w->table->address;
        fill_pointers(w, (uint64_t *)(void *)w->table->base);
    } else {
        fill_pointers(w, a->pointers);
    }
    if (t->kind == TASK_COPY)
        return;

    a->divisor = t->divisor;
    a->dst_wide = t->dst_wide;
    a->ngroups = MAX(t->ngroups, 1);
    if (a->ngroups > CUDA_INLINE_GROUPS) {
        a->group_table = (const struct cuda_group *)(uintptr_t)(w->table->address + pointer_bytes);
        fill_groups(w, (struct cuda_group *)(void *)(w->table->base + pointer_bytes));
    } else {
        fill_groups(w, a->groups);
    }
}

static int launch(struct cuda_work *w, struct cuda_gpu *g, struct cuda_args *a)
{
    const struct task *t = w->task;
    const uint64_t at_once = (uint64_t)CUDA_KERNEL_THREADS * THREAD_BYTES;
    const uint64_t useful = div_up_u64(a->count * w->places[0].width, at_once);
    const unsigned nblocks = (unsigned)MIN(useful, BLOCKS_PER_PROCESSOR * g->nprocessors);
    CUfunction f = t->kind == TASK_COPY ? g->copy : g->reduce[t->dtype][t->op];
    void *parameters[] = { a };
    CUresult error = cuda_gpu_enter(g);

    assert(f);
    if (!error)
        error = g->device->api->cuLaunchKernel(f, nblocks, 1, 1, CUDA_KERNEL_THREADS, 1, 1, 0,
                                               lane_of(w, g), parameters, NULL);
    if (!error)
        w->awaited |= cuda_bit(g);
    return cuda_check_work(g, error, "cuLaunchKernel");
}

/* Where a slice begins; the last ends where the one behind it would begin. */
static uint64_t slice_start(uint64_t count, unsigned i, unsigned n)
{
    uint64_t step;

    if (i == n)
        return count;
    step = count / n;
    return i * (step - step % SLICE_STEP);
}

/* Copies between GPUs, and between them and the host, are what copy engines are for; a driver may
 * do those within the host itself, at once. */
static bool is_plain_copy(const struct cuda_work *w)
{
    return w->task->kind == TASK_COPY && w->ndst == 1 &&
           (w->places[0].gpu != CUDA_ON_HOST || w->places[1].gpu != CUDA_ON_HOST);
}

static int combine(struct cuda_work *w)
{
    struct cuda_device *d = w->main->device;
    const unsigned n = (unsigned)__builtin_popcount(w->runners);
    const uint64_t count = piece_of(w);
    struct cuda_args a;
    unsigned nth = 0;
    int r = 0;

    if (is_plain_copy(w))
        return queue_copy(w, w->main, address_of(w, &w->places[1], w->places[0].foreign),
                          address_of(w, &w->places[0], 0), count);
    fill_args(w, &a);
    for (uint32_t i = 0; i < d->ngpus && r == 0; i++) {
        if (!(w->runners & cuda_bit(&d->gpus[i])))
            continue;
        a.first = slice_start(count, nth, n);
        a.count = slice_start(count, ++nth, n) - a.first;
        r = launch(w, &d->gpus[i], &a);
    }
    return r;
}

/* ---- Signals ---- */

/* Behind what was queued. What the driver does not take, it need not. */
static void write_signals(struct cuda_work *w)
{
    struct cuda_gpu *g = w->main;
    const struct cuda *api = g->device->api;

    for (uint32_t i = 0; i < w->task->nsignals; i++) {
        const struct signal *s = &w->task->signals[i];
        const struct cuda_host *h = cuda_host_of(g->device, s->cells);

        if (!h || !h->registrar || h->registrar->failed)
            continue;
        assert(s->offset % sizeof(s->value) == 0 && s->offset < h->bytes);
        cuda_check(g,
                   api->cuStreamWriteValue32_v2(lane_of(w, g), h->address + s->offset, s->value,
                                                CU_STREAM_WRITE_VALUE_DEFAULT),
                   "cuStreamWriteValue32");
    }
}

int cuda_launch_step(struct cuda_work *w)
{
    int r;

    switch (w->step) {
    case CUDA_FETCH:
        return move_foreign(w, true);
    case CUDA_COMBINE:
        r = combine(w);
        if (r == 0 && w->signals)
            write_signals(w);
        return r;
    default:
        return move_foreign(w, false);
    }
}
