/* Streams: queues, each worked off in order by a thread of its own. */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "tests/fake_cuda/fake.h"

#define PAUSE_FIRST_NS 20000u
#define PAUSE_MOST_NS  1000000u

static struct list streams = LIST_INIT(streams);
static atomic_uint_fast64_t delay_all_us;

int thread_start(void *(*run)(void *argument), void *argument)
{
    pthread_attr_t detached;
    pthread_t thread;
    sigset_t all, before;
    int r;

    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&thread, &detached, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
    return r;
}

struct op *op_new(CUresult (*run)(struct stream *stream, struct op *op))
{
    struct op *op = calloc(1, sizeof(*op));

    if (op)
        op->run = run;
    return op;
}

static void op_free(struct op *op)
{
    if (op->page)
        event_page_unref(op->page);
    free(op->owned);
    free(op);
}

static struct op *stream_first(const struct stream *stream)
{
    return list_empty(&stream->ops) ? NULL : list_first(&stream->ops, struct op, link);
}

bool stream_gives_up(const struct stream *stream)
{
    return atomic_load(&stream->stop) || atomic_load(&stream->context->sticky) != CUDA_SUCCESS;
}

static void stream_free(struct stream *stream)
{
    while (!list_empty(&stream->ops)) {
        struct op *op = stream_first(stream);

        list_remove(&op->link);
        op_free(op);
    }
    list_remove(&stream->link);
    free(stream);
    pthread_cond_broadcast(&fake_changed);
}

/* The legacy stream and the blocking ones wait for each other. */
static bool streams_are_ordered(const struct stream *a, const struct stream *b)
{
    if (a->context != b->context || a == b)
        return false;
    return (a->id == 0 && !b->non_blocking) || (b->id == 0 && !a->non_blocking);
}

static bool stream_may_start(const struct stream *stream, const struct op *op)
{
    struct stream *other;

    list_for_each(other, &streams, link) {
        const struct op *first = stream_first(other);

        if (first && first->ticket < op->ticket && streams_are_ordered(stream, other))
            return false;
    }
    return true;
}

static void sleep_ns(uint64_t ns)
{
    const struct timespec t = { .tv_sec = 0, .tv_nsec = (long)ns };

    nanosleep(&t, NULL);
}

bool stream_pause(struct stream *stream, unsigned *pauses)
{
    const uint64_t ns = (uint64_t)PAUSE_FIRST_NS << MIN(*pauses, 6);

    if (stream_gives_up(stream))
        return false;
    sleep_ns(MIN(ns, PAUSE_MOST_NS));
    ++*pauses;
    return true;
}

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* The delay may change meanwhile. False: give up. */
static bool stream_delay(struct stream *stream)
{
    const uint64_t start = now_us();
    unsigned pauses = 0;

    while (now_us() - start < MAX(atomic_load(&delay_all_us), atomic_load(&stream->delay_us)))
        if (!stream_pause(stream, &pauses))
            return false;
    return !stream_gives_up(stream);
}

/* Under the lock, which it lets go of for the work itself. */
static void stream_step(struct stream *stream, struct op *op)
{
    CUresult r = CUDA_SUCCESS;

    pthread_mutex_unlock(&fake_lock);
    if (stream_delay(stream))
        r = op->run(stream, op);
    pthread_mutex_lock(&fake_lock);

    list_remove(&op->link);
    op_free(op);
    if (r != CUDA_SUCCESS)
        context_poison(stream->context, r);
    pthread_cond_broadcast(&fake_changed);
}

static void *stream_work(void *argument)
{
    struct stream *stream = argument;

    pthread_mutex_lock(&fake_lock);
    while (!atomic_load(&stream->stop)) {
        struct op *op = stream_first(stream);

        if (op && (stream_gives_up(stream) || stream_may_start(stream, op)))
            stream_step(stream, op);
        else if (!op && stream->destroyed)
            break;
        else
            pthread_cond_wait(&fake_changed, &fake_lock);
    }
    stream_free(stream);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

static struct stream *stream_new(CUcontext context, uint64_t id, bool non_blocking)
{
    struct stream *stream = calloc(1, sizeof(*stream));

    if (!stream)
        return NULL;
    list_init(&stream->ops);
    stream->id = id;
    stream->context = context;
    stream->non_blocking = non_blocking;
    list_append(&streams, &stream->link);
    return stream;
}

struct stream *stream_find(CUcontext current, CUstream handle)
{
    const uint64_t id = (uintptr_t)handle;
    struct stream *stream;

    list_for_each(stream, &streams, link)
        if (stream->id == id && !stream->destroyed && !atomic_load(&stream->stop) &&
            (id != 0 || stream->context == current))
            return stream;
    return id == 0 ? stream_new(current, 0, false) : NULL;
}

struct call enter_stream(const char *name, CUstream handle, struct stream **ret)
{
    struct call call = enter(name, NEED_CONTEXT);

    if (call.r != CUDA_SUCCESS)
        return call;
    *ret = stream_find(call.context, handle);
    if (!*ret) {
        leave(&call);
        call.r = CUDA_ERROR_INVALID_HANDLE;
    }
    return call;
}

CUresult stream_push(struct stream *stream, struct op *op)
{
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!stream->working && thread_start(stream_work, stream) != 0) {
        op_free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->working = true;
    op->ticket = ++stream->context->tickets;
    list_append(&stream->ops, &op->link);
    pthread_cond_broadcast(&fake_changed);
    return CUDA_SUCCESS;
}

/* Whether it has something to do that it had when `ticket` was the last one. */
static bool stream_is_busy(CUcontext context, uint64_t id, uint64_t ticket)
{
    const struct stream *stream;

    list_for_each(stream, &streams, link) {
        const struct op *first = stream_first(stream);
        const bool counts = stream->id == id || (id == 0 && !stream->non_blocking);

        if (stream->context == context && counts && first && first->ticket <= ticket)
            return true;
    }
    return false;
}

/* Answers for its context too. */
static CUresult stream_state(CUcontext context, uint64_t id, uint64_t ticket)
{
    if (context->refs == 0)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (atomic_load(&context->sticky) != CUDA_SUCCESS)
        return atomic_load(&context->sticky);
    return stream_is_busy(context, id, ticket) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult stream_wait(struct stream *stream)
{
    const CUcontext context = stream->context;
    const uint64_t id = stream->id, ticket = context->tickets;
    CUresult r;

    while ((r = stream_state(context, id, ticket)) == CUDA_ERROR_NOT_READY)
        pthread_cond_wait(&fake_changed, &fake_lock);
    return r;
}

unsigned stream_count(void)
{
    const struct stream *stream;
    unsigned n = 0;

    list_for_each(stream, &streams, link)
        n += stream->id != 0 && !stream->destroyed;
    return n;
}

static bool streams_have(CUcontext context)
{
    const struct stream *stream;

    list_for_each(stream, &streams, link)
        if (stream->context == context)
            return true;
    return false;
}

void streams_end_context(CUcontext context)
{
    struct stream *stream, *next;

    list_for_each_safe(stream, next, &streams, link) {
        if (stream->context != context)
            continue;
        atomic_store(&stream->stop, true);
        if (!stream->working)
            stream_free(stream);
    }
    pthread_cond_broadcast(&fake_changed);
    while (streams_have(context))
        pthread_cond_wait(&fake_changed, &fake_lock);
}

void delay_set_all(uint64_t us)
{
    atomic_store(&delay_all_us, us);
}

void fake_cuda_delay_us(CUstream handle, uint64_t us)
{
    struct stream *stream;
    CUcontext context = NULL;

    if (handle == FAKE_CUDA_ALL) {
        delay_set_all(us);
        return;
    }
    if (cuCtxGetCurrent(&context) != CUDA_SUCCESS)
        return;
    pthread_mutex_lock(&fake_lock);
    stream = handle || context ? stream_find(context, handle) : NULL;
    if (stream)
        atomic_store(&stream->delay_us, us);
    pthread_mutex_unlock(&fake_lock);
}

CUresult cuStreamCreate(CUstream *ret, unsigned flags)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct stream *stream;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    stream = stream_new(call.context, fake_new_id(), flags != 0);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *ret = (CUstream)(uintptr_t)stream->id;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream handle)
{
    _cleanup_(leave) struct call call = enter(__func__, NEED_CONTEXT);
    struct stream *stream = NULL;

    if (call.r != CUDA_SUCCESS)
        return call.r;
    if (handle)
        stream = stream_find(call.context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    stream->destroyed = true;
    if (!stream->working)
        stream_free(stream);
    pthread_cond_broadcast(&fake_changed);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    return stream_state(stream->context, stream->id, stream->context->tickets);
}

CUresult cuStreamSynchronize(CUstream handle)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);

    return call.r == CUDA_SUCCESS ? stream_wait(stream) : call.r;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *ret)
{
    struct stream *stream = NULL;
    _cleanup_(leave) struct call call = enter_stream(__func__, handle, &stream);

    if (call.r != CUDA_SUCCESS)
        return call.r;
    *ret = stream->context;
    return CUDA_SUCCESS;
}
