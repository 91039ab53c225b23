#include <errno.h>
#include <stdlib.h>

#include "daemon/device/cuda.h"

#define BOUNCE_BYTES    (2u << 20)
#define SLOT_ALIGN      256u
#define SLICE_BYTES_MIN (128u << 10) /* of the output, a GPU; with less, one does it all */
#define TABLE_BYTES_MIN (64u << 10)

/* ---- Life ---- */

int cuda_works_new(struct cuda_device *d)
{
    const uint32_t n = d->ngpus * CUDA_LANES;

    d->works = calloc(n, sizeof(d->works[0]));
    if (!d->works)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        list_append(&d->idle, &d->works[i].link);
    return 0;
}

void cuda_works_free(struct cuda_device *d)
{
    for (uint32_t i = 0; d->works && i < d->ngpus * CUDA_LANES; i++) {
        cuda_host_free(d->works[i].table);
        cuda_host_free(d->works[i].bounce);
        free(d->works[i].places);
    }
    free(d->works);
}

bool cuda_works_touch(const struct cuda_device *d, const struct cuda_gpu *g)
{
    const struct cuda_work *w;

    list_for_each(w, &d->running, link)
        if (w->touched & cuda_bit(g))
            return true;
    return false;
}

/* ---- Where its pointers lead ---- */

static int make_room(struct cuda_work *w, uint64_t nplaces)
{
    struct cuda_place *places;

    if (nplaces <= w->places_room)
        return 0;
    places = realloc(w->places, nplaces * sizeof(places[0]));
    if (!places)
        return -ENOMEM;
    w->places = places;
    w->places_room = nplaces;
    return 0;
}

/* `align`: what the address must be a multiple of. */
static int add_place(struct cuda_device *d, struct cuda_work *w, const void *p, uint32_t width,
                     uint32_t align, uint32_t *hint)
{
    struct cuda_place *place = &w->places[w->nplaces];
    uint64_t bytes;
    int r;

    if (!mul_u64(w->count, width, &bytes) || (uintptr_t)p % align)
        return -EINVAL;
    r = cuda_locate(d, w->task, p, bytes, hint, place);
    if (r < 0)
        return r;
    place->width = width;
    w->nplaces++;
    return 0;
}

/* One read, and a write to each that is not the source itself. */
static int place_copy(struct cuda_device *d, struct cuda_work *w)
{
    const struct task *t = w->task;
    uint32_t hint = 0;
    int r;

    if (!mul_u64(t->count, dtype_get(t->dtype)->width, &w->count))
        return -EINVAL;
    r = add_place(d, w, t->src[0], 1, 1, &hint);
    for (uint32_t i = 0; i < t->ndst && r == 0; i++)
        if (t->dst[i] != t->src[0])
            r = add_place(d, w, t->dst[i], 1, 1, &hint);
    w->nsrc = 1;
    w->ndst = (uint32_t)w->nplaces - 1;
    return r;
}

static int place_reduction(struct cuda_device *d, struct cuda_work *w)
{
    const struct task *t = w->task;
    const struct source_group all = { t->nsrc, t->src_wide };
    const struct source_group *groups = t->ngroups ? t->groups : &all;
    const uint32_t narrow = dtype_get(t->dtype)->width;
    const uint32_t wide = dtype_get(dtype_get(t->dtype)->accumulator)->width;
    uint32_t width, hint = 0, n = 0;
    int r;

    w->count = t->count;
    if (t->ngroups > CUDA_GROUPS_MAX)
        return -E2BIG;
    for (uint32_t i = 0; i < MAX(t->ngroups, 1); i++) {
        if (groups[i].nsrc > CUDA_SOURCES_MAX)
            return -E2BIG;
        if (groups[i].nsrc > t->nsrc - n)
            return -EINVAL;
        width = groups[i].wide ? wide : narrow;
        for (uint32_t end = n + groups[i].nsrc; n < end; n++) {
            r = add_place(d, w, t->src[n], width, width, &hint);
            if (r < 0)
                return r;
        }
    }
    width = t->dst_wide ? wide : narrow;
    for (uint32_t i = 0; i < t->ndst; i++) {
        r = add_place(d, w, t->dst[i], width, width, &hint);
        if (r < 0)
            return r;
    }
    w->nsrc = t->nsrc;
    w->ndst = t->ndst;
    return n == t->nsrc ? 0 : -EINVAL;
}

/* ---- Who does it ---- */

static struct cuda_gpu *least_busy(struct cuda_device *d)
{
    struct cuda_gpu *best = NULL;

    for (uint32_t i = 0; i < d->ngpus; i++) {
        struct cuda_gpu *g = &d->gpus[i];

        if (!g->failed &&
            (!best || __builtin_popcount(g->lanes_taken) < __builtin_popcount(best->lanes_taken)))
            best = g;
    }
    return best;
}

/* Who of those involved has most of the memory. */
static struct cuda_gpu *choose_main(struct cuda_device *d, const struct cuda_work *w)
{
    uint64_t have[CUDA_GPUS_MAX] = { 0 };
    uint32_t best = 0;

    if (w->involved == 0)
        return least_busy(d);
    if (w->task->kind == TASK_COPY && w->places[0].gpu != CUDA_ON_HOST)
        return &d->gpus[w->places[0].gpu];
    for (uint64_t i = 0; i < w->nplaces; i++)
        if (w->places[i].gpu != CUDA_ON_HOST)
            have[w->places[i].gpu]++;
    for (uint32_t i = 1; i < d->ngpus; i++)
        if (have[i] > have[best])
            best = i;
    return &d->gpus[best];
}

/* Whether it is worth a slice for everybody, each of whom reaches all the memory. */
static bool can_slice(const struct cuda_device *d, const struct cuda_work *w)
{
    const uint64_t n = (uint64_t)__builtin_popcount(w->involved);

    if (w->task->kind == TASK_COPY || n < 2)
        return false;
    if (w->count * w->places[w->nsrc].width < n * SLICE_BYTES_MIN)
        return false;
    for (uint32_t i = 0; i < d->ngpus; i++)
        if ((w->involved & cuda_bit(&d->gpus[i])) && (w->involved & ~d->gpus[i].reach))
            return false;
    return true;
}

static int choose_runners(struct cuda_device *d, struct cuda_work *w)
{
    for (uint64_t i = 0; i < w->nplaces; i++)
        if (w->places[i].gpu != CUDA_ON_HOST)
            w->involved |= 1u << w->places[i].gpu;
    w->main = choose_main(d, w);
    if (!w->main)
        return -EIO;
    w->runners = can_slice(d, w) ? w->involved : cuda_bit(w->main);
    w->lanes = w->runners;
    for (uint64_t i = 0; i < w->nplaces; i++) {
        struct cuda_place *p = &w->places[i];

        p->foreign = p->gpu != CUDA_ON_HOST && !(w->main->reach & 1u << p->gpu);
        if (p->foreign) {
            w->lanes |= 1u << p->gpu;
            w->nforeign++;
        }
    }
    w->involved |= w->runners;
    w->touched = w->involved;
    return 0;
}

/* ---- What it takes ---- */

static int register_host(struct cuda_work *w, struct cuda_host *h)
{
    int r = cuda_host_register(w->main, h);

    if (r == 0)
        w->touched |= cuda_bit(h->registrar);
    return r;
}

/* A block of the work's own, kept for the next. */
static int provide(struct cuda_work *w, struct cuda_host **block, uint64_t bytes)
{
    if (*block && (*block)->bytes < bytes)
        *block = cuda_host_free(*block);
    if (!*block)
        *block = cuda_host_new(w->main->device, bytes);
    return *block ? register_host(w, *block) : -ENOMEM;
}

static int provide_table(struct cuda_work *w)
{
    const uint64_t bytes =
        w->nplaces * sizeof(uint64_t) + w->task->ngroups * sizeof(struct cuda_group);

    if (w->nplaces <= CUDA_INLINE_POINTERS && w->task->ngroups <= CUDA_INLINE_GROUPS)
        return 0;
    return provide(w, &w->table, MAX(bytes, TABLE_BYTES_MIN));
}

static int provide_bounce(struct cuda_work *w)
{
    uint32_t width = 1;

    w->piece = w->count;
    if (w->nforeign == 0)
        return 0;
    for (uint64_t i = 0; i < w->nplaces; i++)
        width = MAX(width, w->places[i].width);
    w->slot_bytes = BOUNCE_BYTES / w->nforeign;
    w->slot_bytes -= w->slot_bytes % SLOT_ALIGN;
    w->piece = w->slot_bytes / width;
    return w->piece ? provide(w, &w->bounce, BOUNCE_BYTES) : -E2BIG;
}

static int provide_hosts(struct cuda_work *w)
{
    for (uint64_t i = 0; i < w->nplaces; i++) {
        struct cuda_place *p = &w->places[i];
        int r;

        if (p->gpu != CUDA_ON_HOST)
            continue;
        r = register_host(w, p->host);
        if (r)
            return r;
        p->address = p->host->address + p->offset;
    }
    return 0;
}

/* Whether all it does is in one stream, on memory of that stream's GPU: what lies behind it there
 * is behind all of it. What comes to a GPU from another, or goes to the host, is not for a client's
 * stream to see because a value is. */
static bool is_at_home(const struct cuda_work *w)
{
    for (uint64_t i = 0; i < w->nplaces; i++)
        if (w->places[i].gpu != w->main->index)
            return false;
    return true;
}

/* Cells are made known before anything is queued, since that may wait for it. */
static void provide_signals(struct cuda_work *w)
{
    const struct task *t = w->task;

    w->signals = t->nsignals > 0 && w->main->signals && is_at_home(w);
    for (uint32_t i = 0; w->signals && i < t->nsignals; i++) {
        struct cuda_host *h = cuda_host_of(w->main->device, t->signals[i].cells);

        if (h && !h->refused)
            h->refused = register_host(w, h) < 0;
    }
}

static bool has_lanes(const struct cuda_device *d, uint32_t gpus)
{
    for (uint32_t i = 0; i < d->ngpus; i++)
        if ((gpus & cuda_bit(&d->gpus[i])) && d->gpus[i].lanes_taken == (1u << CUDA_LANES) - 1)
            return false;
    return true;
}

static void take_lanes(struct cuda_device *d, struct cuda_work *w)
{
    for (uint32_t i = 0; i < d->ngpus; i++) {
        struct cuda_gpu *g = &d->gpus[i];

        if (!(w->lanes & cuda_bit(g)))
            continue;
        w->lane[i] = (uint32_t)__builtin_ctz(~g->lanes_taken);
        g->lanes_taken |= 1u << w->lane[i];
    }
}

static void give_lanes(struct cuda_device *d, struct cuda_work *w)
{
    for (uint32_t i = 0; i < d->ngpus; i++)
        if (w->lanes & cuda_bit(&d->gpus[i]))
            d->gpus[i].lanes_taken &= ~(1u << w->lane[i]);
}

/* ---- Step by step ---- */

static bool is_cancelled(const struct task *t)
{
    return t->cancel && atomic_load(t->cancel);
}

/* Begins steps until one has something to wait for, or all is done or has failed. */
static void go_on(struct cuda_work *w)
{
    while (!w->awaited && w->r == 0 && w->first < w->count) {
        if ((w->step == CUDA_FETCH || w->nforeign) && is_cancelled(w->task)) {
            w->r = -ECANCELED;
            return;
        }
        w->r = cuda_launch_step(w);
        if (w->step == CUDA_STORE)
            w->first += MIN(w->piece, w->count - w->first);
        w->step = w->step == CUDA_STORE ? CUDA_FETCH : w->step + 1;
    }
}

static bool has_ended(const struct cuda_work *w)
{
    return !w->awaited && (w->r < 0 || w->first == w->count);
}

/* What has ended of what it waits for. Nothing is known of a GPU that has failed, and it does
 * nothing more. */
static void look_at(struct cuda_device *d, struct cuda_work *w)
{
    for (uint32_t i = 0; i < d->ngpus; i++) {
        struct cuda_gpu *g = &d->gpus[i];
        CUresult error;

        if (!(w->awaited & cuda_bit(g)) || g->failed)
            continue;
        error = cuda_gpu_enter(g);
        if (!error)
            error = d->api->cuStreamQuery(g->lanes[w->lane[i]]);
        if (error == CUDA_ERROR_NOT_READY)
            continue;
        if (error)
            cuda_gpu_fail(g, error, "cuStreamQuery");
        w->awaited &= ~cuda_bit(g);
    }
}

static void drop_failed(struct cuda_device *d, struct cuda_work *w)
{
    for (uint32_t i = 0; i < d->ngpus; i++) {
        if (!d->gpus[i].failed || !(w->involved & cuda_bit(&d->gpus[i])))
            continue;
        w->awaited &= ~cuda_bit(&d->gpus[i]);
        w->r = -EIO;
    }
}

/* ---- The row's ---- */

/* Memory that is lost; of a GPU, explain() says why. */
static int check_faults(const struct device *device, const struct task *t)
{
    for (uint32_t i = 0; i < t->nmappings; i++)
        if (atomic_load_explicit(&t->mappings[i]->fault, memory_order_relaxed))
            return t->mappings[i]->device == device ? -EIO : -EFAULT;
    return 0;
}

/* Return: 0, DEVICE_BUSY, or -errno; then nothing has begun. */
static int prepare(struct cuda_device *d, struct cuda_work *w, struct task *t)
{
    int r;

    w->task = t;
    w->nplaces = w->nforeign = w->involved = w->awaited = w->first = 0;
    w->step = CUDA_FETCH;
    w->r = 0;
    r = make_room(w, (uint64_t)t->nsrc + t->ndst);
    if (r == 0)
        r = t->kind == TASK_COPY ? place_copy(d, w) : place_reduction(d, w);
    if (r < 0 || w->ndst == 0)
        return r;

    r = choose_runners(d, w);
    if (r < 0)
        return r;
    if (!has_lanes(d, w->lanes))
        return DEVICE_BUSY;
    r = provide_bounce(w);
    if (r == 0)
        r = provide_table(w);
    if (r == 0)
        r = provide_hosts(w);
    if (r == 0)
        provide_signals(w);
    return r;
}

int cuda_submit(struct device *device, struct task *t)
{
    struct cuda_device *d = cuda_of(device);
    struct cuda_work *w;
    int r;

    if (is_cancelled(t))
        return -ECANCELED;
    r = check_faults(device, t);
    if (r < 0 || t->count == 0)
        return r;
    if (list_empty(&d->idle))
        return DEVICE_BUSY;
    w = list_first(&d->idle, struct cuda_work, link);
    r = prepare(d, w, t);
    if (r || w->ndst == 0)
        return r;

    take_lanes(d, w);
    go_on(w);
    if (has_ended(w)) {
        give_lanes(d, w);
        return w->r;
    }
    list_remove(&w->link);
    list_append(&d->running, &w->link);
    cuda_watch_turn(d);
    return DEVICE_PENDING;
}

static void finish(struct cuda_device *d, struct cuda_work *w)
{
    struct task *t = w->task;

    list_remove(&w->link);
    list_prepend(&d->idle, &w->link); /* its blocks are at hand */
    t->done(t, w->r);
}

/* Gathers in `ended` what has ended; GPUs that failed meanwhile end more. */
static void sort_out(struct cuda_device *d, struct list *ended)
{
    struct cuda_work *w, *tmp;

    list_for_each(w, &d->running, link) {
        look_at(d, w);
        drop_failed(d, w);
        go_on(w);
    }
    list_for_each_safe(w, tmp, &d->running, link) {
        drop_failed(d, w);
        if (!has_ended(w))
            continue;
        give_lanes(d, w);
        list_remove(&w->link);
        list_append(ended, &w->link);
    }
}

static bool waits_for_revival(const struct cuda_gpu *g)
{
    return g->failed && !g->unrevived;
}

static void revive_gpus(struct cuda_device *d)
{
    for (uint32_t i = 0; i < d->ngpus; i++)
        if (waits_for_revival(&d->gpus[i]))
            cuda_gpu_revive(&d->gpus[i]);
}

static bool is_reviving(const struct cuda_device *d)
{
    for (uint32_t i = 0; i < d->ngpus; i++)
        if (waits_for_revival(&d->gpus[i]))
            return true;
    return false;
}

void cuda_poll(struct device *device)
{
    struct cuda_device *d = cuda_of(device);
    const bool asked = cuda_watch_begin(d);
    struct list ended;

    list_init(&ended);
    sort_out(d, &ended);
    revive_gpus(d);
    d->round++;
    if (!list_empty(&ended))
        cuda_watch_stir(d);
    while (!list_empty(&ended))
        finish(d, list_first(&ended, struct cuda_work, link));
    cuda_watch_end(d, asked || is_reviving(d) || !list_empty(&d->running));
}
