/*
 * Events. The records of one are numbered; a page, which other processes may see too, holds the
 * last number given out, and which of the last ones have been reached.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

#define PAGE_BYTES  4096u
#define RECORDS     500u
#define EVENT_KNOWN 7u /* flags, CU_EVENT_BLOCKING_SYNC among them */

struct event_cells {
    _Atomic uint64_t last;
    _Atomic uint64_t reached[RECORDS]; /* record n at n modulo RECORDS */
};

_Static_assert(sizeof(struct event_cells) <= PAGE_BYTES, "they are on a page");

struct event_page {
    unsigned refs; /* under fake_lock */
    struct event_cells *cells;
    int fd; /* -1: not for others */
};

struct event {
    struct list link; // events
    uint64_t id;
    CUcontext context;
    unsigned flags;
    struct event_page *page;
    uint64_t share; /* 0: not shared yet */
};

static struct list events = LIST_INIT(events);

/* Takes the descriptor on success; -1: memory of this process alone. */
static struct event_page *event_page_new(int fd)
{
    struct event_page *page = calloc(1, sizeof(*page));
    void *cells;

    if (!page)
        return NULL;
    cells = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE,
                 fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (cells == MAP_FAILED) {
        free(page);
        return NULL;
    }
    page->refs = 1;
    page->cells = cells;
    page->fd = fd;
    return page;
}

void event_page_unref(struct event_page *page)
{
    if (--page->refs > 0)
        return;
    munmap(page->cells, PAGE_BYTES);
    if (page->fd >= 0)
        close(page->fd);
    free(page);
}

static struct event_page *event_page_ref(struct event_page *page)
{
    page->refs++;
    return page;
}

static bool event_is_reached(const struct event_page *page)
{
    const uint64_t last = atomic_load(&page->cells->last);

    return last == 0 || atomic_load(&page->cells->reached[last % RECORDS]) >= last;
}

static struct event *event_find(CUevent handle)
{
    struct event *event;

    list_for_each(event, &events, link)
        if (event->id == (uintptr_t)handle)
            return event;
    return NULL;
}

unsigned event_count(void)
{
    const struct event *event;
    unsigned n = 0;

    list_for_each(event, &events, link)
        n++;
    return n;
}

static void event_free(struct event *event)
{
    share_remove(event->share);
    event_page_unref(event->page);
    list_remove(&event->link);
    free(event);
}

void events_end_context(CUcontext context)
{
    struct event *event, *next;

    list_for_each_safe(event, next, &events, link)
        if (event->context == context)
            event_free(event);
}

/* Takes the descriptor, whatever it returns. */
static CUresult event_new(CUcontext context, unsigned flags, int fd, CUevent *ret)
{
    struct event *event = calloc(1, sizeof(*event));
    struct event_page *page = event ? event_page_new(fd) : NULL;

    if (!page) {
        free(event);
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    event->id = fake_new_id();
    event->context = context;
    event->flags = flags;
    event->page = page;
    list_append(&events, &event->link);
    *ret = (CUevent)(uintptr_t)event->id;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *ret, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    int fd = -1;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags & ~EVENT_KNOWN ||
        (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) {
        fd = memfd_new("event", call.context->gpu->number, PAGE_BYTES);
        if (fd < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return event_new(call.context, flags, fd, ret);
}

CUresult cuEventDestroy_v2(CUevent handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct event *event;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    event = event_find(handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    event_free(event);
    return CUDA_SUCCESS;
}

static CUresult record_run(struct stream *stream __attribute__((unused)), struct op *op)
{
    _Atomic uint64_t *cell = &op->page->cells->reached[op->number % RECORDS];
    uint64_t before = atomic_load(cell);

    while (before < op->number && !atomic_compare_exchange_weak(cell, &before, op->number))
        ;
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct event *event;
    struct stream *stream;
    struct op *op;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    event = event_find(handle);
    stream = stream_find(call.context, stream_handle);
    if (!event || !stream || event->context != stream->context)
        return CUDA_ERROR_INVALID_HANDLE;
    op = op_new(record_run);
    if (op) {
        op->page = event_page_ref(event->page);
        op->number = atomic_fetch_add(&event->page->cells->last, 1) + 1;
    }
    return stream_push(stream, op);
}

CUresult cuEventQuery(CUevent handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    const struct event *event;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    event = event_find(handle);
    if (!event)
        return CUDA_ERROR_INVALID_HANDLE;
    return event_is_reached(event->page) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *ret, CUevent handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct event *event;
    struct stat st;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    event = event_find(handle);
    if (!event || !(event->flags & CU_EVENT_INTERPROCESS) || fstat(event->page->fd, &st) < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!share_export(SHARE_EVENT, event->context->gpu->number, event->page->fd, PAGE_BYTES,
                      st.st_ino, &event->share, ret))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *ret, CUipcEventHandle handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct share_handle h;
    unsigned number;
    uint64_t ino;
    int fd;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (!share_parse(&handle, SHARE_EVENT, &h))
        return CUDA_ERROR_INVALID_HANDLE;
    if (share_is_ours(&h))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!gpu_by_number(h.number))
        return CUDA_ERROR_INVALID_DEVICE;
    fd = share_fetch(&h);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!memfd_is(fd, "event", PAGE_BYTES, &number, &ino) || ino != h.ino) {
        close(fd);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    /* not to be handed on */
    return event_new(call.context, CU_EVENT_DISABLE_TIMING, fd, ret);
}
