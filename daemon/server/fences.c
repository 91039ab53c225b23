/* A session's order with its GPU work: fences that posts wait for, and signals that end them. */
#include "daemon/server/session_private.h"

#include <stdatomic.h>
#include <string.h>

/* ---- fences */

static int fence_open(struct session *s, const struct request *r, struct error *e)
{
    struct device *gpus = s->service->gpus;
    struct fence *fence;

    if (!gpus)
        return service_refuse_gpus(s->service, "the fence is", e);
    if (s->fences.count >= s->nslots)
        return error_set(e, ERROR_QUOTA,
                         "%zu fences are open and no more may be (max_in_flight in the daemon's "
                         "configuration)",
                         s->fences.count);
    if (map_reserve(&s->fences, s->fences.count + 1) < 0)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    if (gpus->ops->fence_import(gpus, r->fence_open.gpu, r->fence_open.handle, &fence, e) < 0)
        return -(int)e->code;
    return map_put(&s->fences, r->fence_open.fence, fence);
}

void session_fence_open(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };

    (void)p;
    if (map_get(&s->fences, r->fence_open.fence)) {
        session_refuse(s, "fence_open: number %u is in use", r->fence_open.fence);
        return;
    }
    fence_open(s, r, &e);
    session_reply_done(s, r->serial, &e);
}

void session_fence_close(struct session *s, const struct request *r, struct packet *p)
{
    struct fence *fence = map_take(&s->fences, r->fence_close.fence);
    struct error e = { 0 };

    (void)p;
    if (fence)
        fence_unref(fence);
    else
        error_set(&e, ERROR_NOT_FOUND, "fence %u is not open", r->fence_close.fence);
    session_reply_done(s, r->serial, &e);
}

struct fence *session_find_fence(const struct session *s, uint32_t number, struct error *rejection)
{
    struct fence *fence = number ? map_get(&s->fences, number) : NULL;

    if (number && !fence)
        error_set(rejection, ERROR_NOT_FOUND, "fence %u is not open", number);
    return fence;
}

/* ---- signals */

void session_signals_open(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };

    if (s->signals) {
        session_refuse(s, "a second signals_open");
        return;
    }
    if (device_import_memfd(s->service->device, p->fds[0], s->nslots * sizeof(uint32_t),
                            &s->signals, &e) == 0)
        s->signals_guard = (struct fault_area){ .mappings = &s->signals, .nmappings = 1 };
    session_reply_done(s, r->serial, &e);
}

struct signal session_signal_of(const struct session *s, uint32_t slot, uint32_t signal)
{
    if (!signal)
        return (struct signal){ 0 };
    return (struct signal){ s->signals, slot * sizeof(signal), signal };
}

/* Behind everything that the operation wrote; the client's memory may fail under us. */
void session_signal(struct session *s, uint32_t slot, uint32_t signal)
{
    const struct fault_area *before;

    if (!signal)
        return;
    before = fault_enter(&s->signals_guard);
    atomic_store_explicit((_Atomic uint32_t *)s->signals->base + slot, signal,
                          memory_order_release);
    fault_leave(before);
    if (fault_found(&s->signals_guard))
        session_give_up(s, ERROR_MEMORY_FAULT,
                        "the memory of the signals could not be backed with pages");
}

void session_undo_fences(struct session *s)
{
    struct fence *fence;
    size_t place = 0;

    while ((fence = map_next(&s->fences, &place)))
        fence_unref(fence);
    map_fini(&s->fences);
    s->signals = mapping_unref(s->signals);
}
