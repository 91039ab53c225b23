#include "client/window.h"

#include "client/copy.h"
#include "client/work.h"

#ifdef __SSE2__
#include <emmintrin.h>

/*
 * Past the cache: of memory that is not looked at before all of it has been written, a cache would
 * first read every line. Both 16 bytes aligned, as is the length.
 */
static void copy_streaming(void *to, const void *from, size_t bytes)
{
    const __m128i *source = from;
    __m128i *target = to;

    for (size_t i = 0; i < bytes / sizeof(*target); i++)
        _mm_stream_si128(&target[i], _mm_load_si128(&source[i]));
    _mm_sfence();
}

static bool can_stream(const void *to, const void *from, size_t bytes)
{
    return (((uintptr_t)to | (uintptr_t)from | bytes) & 15) == 0;
}
#else
static void copy_streaming(void *to, const void *from, size_t bytes)
{
    copy_bytes(to, from, bytes);
}

static bool can_stream(const void *to, const void *from, size_t bytes)
{
    (void)to;
    (void)from;
    (void)bytes;
    return false;
}
#endif

/* Tensors below this fit into a cache, where whoever called will look for the output. */
#define STREAM_BYTES (8u << 20)

static void copy_out(const struct window *win, void *to, const void *from, size_t bytes)
{
    if (win->bytes * win->out.blocks >= STREAM_BYTES && can_stream(to, from, bytes))
        copy_streaming(to, from, bytes);
    else
        copy_bytes(to, from, bytes);
}

/* What is next from `at`, up to `limit`: within one piece, and so without wrapping around. */
static uint64_t next_bytes(const struct window *win, const struct window_side *side, uint64_t at,
                           uint64_t limit)
{
    return side->tensor && at < limit ? MIN(win->piece - at % win->piece, limit - at) : 0;
}

static bool take_out(struct ruccl_work *w)
{
    struct window *win = &w->window;
    const struct window_side *out = &win->out;
    const uint64_t at = win->taken, bytes = next_bytes(win, out, at, win->done);

    if (bytes == 0)
        return false;
    pthread_mutex_unlock(&w->conn->lock);
    for (uint32_t i = 0; i < out->blocks; i++)
        copy_out(win, out->tensor + i * win->bytes + at,
                 out->stage + i * win->length + at % win->length, bytes);
    pthread_mutex_lock(&w->conn->lock);
    win->taken += bytes;
    return true;
}

static bool put_in(struct ruccl_work *w)
{
    struct window *win = &w->window;
    const struct window_side *in = &win->in;
    const bool shares = win->out.tensor && win->out.stage == in->stage;
    const uint64_t room = (shares ? win->taken : win->done) + win->length;
    const uint64_t at = win->ready, bytes = next_bytes(win, in, at, MIN(win->bytes, room));

    if (bytes == 0)
        return false;
    pthread_mutex_unlock(&w->conn->lock);
    for (uint32_t i = 0; i < in->blocks; i++)
        copy_bytes(in->stage + i * win->length + at % win->length, in->tensor + i * win->bytes + at,
                   bytes);
    pthread_mutex_lock(&w->conn->lock);
    win->ready += bytes;
    return true;
}

/* In its turn, for the slot is another's once the work has ended. */
static void tell(struct ruccl_work *w)
{
    const struct window *win = &w->window;
    struct request q = { .kind = REQUEST_STAGED };
    struct error ignored = { 0 }; /* the work ends with it */

    if (conn_take_turn(w->conn, &ignored) < 0)
        return;
    if (w->state == WORK_UNFINISHED) {
        q.staged.comm = win->comm;
        q.staged.slot = w->slot;
        q.staged.in_ready = win->ready / win->width;
        q.staged.out_taken = win->taken / win->width;
        conn_send(w->conn, &q, -1, &ignored);
    }
    conn_give_turn(w->conn);
}

static bool copy_some(struct ruccl_work *w)
{
    bool moved = take_out(w);

    moved |= put_in(w);
    if (moved)
        tell(w);
    return moved;
}

static bool move(struct chore *k)
{
    struct ruccl_work *w = container_of(k, struct ruccl_work, window.chore);
    struct ruccl_conn *c = w->conn;
    bool moved;

    if (w->window.copying)
        return false;
    w->refs++;
    w->window.copying = true;
    moved = copy_some(w);
    w->window.copying = false;
    conn_wake(c);
    work_unref(w);
    return moved;
}

void window_begin(struct ruccl_work *w)
{
    w->window.chore.move = move;
    list_append(&w->conn->chores, &w->window.chore.link);
}

void window_end(struct ruccl_work *w)
{
    list_remove(&w->window.chore.link);
}

void window_take_rest(struct ruccl_work *w)
{
    w->window.done = w->window.bytes;
    while (!w->error.code && take_out(w))
        ;
}

static bool nobody_copies(const void *subject)
{
    const struct ruccl_work *w = subject;

    return !w->window.copying;
}

static bool needs_nobody(const struct ruccl_work *w)
{
    const struct window *win = &w->window;

    return w->state != WORK_UNFINISHED || (!win->out.tensor && win->ready == win->bytes);
}

void window_abandon(struct ruccl_work *w)
{
    struct request q = { .kind = REQUEST_ABORT };
    struct error ignored = { 0 }; /* then it has ended */

    window_end(w);
    conn_poll(w->conn); /* it may be done, and nobody have looked */
    conn_wait(w->conn, nobody_copies, w, CONN_NO_DEADLINE);
    if (needs_nobody(w) || conn_take_turn(w->conn, &ignored) < 0)
        return;
    q.abort.comm = w->window.comm;
    q.abort.text =
        "a work on plain memory was released before it was done, and nobody copies for it";
    if (w->state == WORK_UNFINISHED)
        conn_send(w->conn, &q, -1, &ignored);
    conn_give_turn(w->conn);
}
