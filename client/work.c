#include "client/work.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/comm.h"
#include "client/copy.h"
#include "client/region.h"
#include "client/report.h"

#define NO_SLOT  UINT32_MAX
#define IDLE_MAX 64u /* as many as a program may well have under way at a time */

/* ---------------------------------------------------------------- idle works */

static struct ruccl_work *work_alloc(struct ruccl_conn *c)
{
    struct ruccl_work *w;

    if (list_empty(&c->idle_works))
        return malloc(sizeof(*w));
    w = list_first(&c->idle_works, struct ruccl_work, pending.link);
    list_remove(&w->pending.link);
    c->nidle_works--;
    return w;
}

static void work_put(struct ruccl_conn *c, struct ruccl_work *w)
{
    if (c->nidle_works == IDLE_MAX) {
        free(w);
        return;
    }
    c->nidle_works++;
    list_prepend(&c->idle_works, &w->pending.link);
}

void works_free_idle(struct ruccl_conn *c)
{
    while (!list_empty(&c->idle_works))
        free(work_alloc(c));
}

/* ---------------------------------------------------------------- the end of a work */

/* All but the stage that may still have output to copy. */
static void let_go_of_memory(struct ruccl_work *w)
{
    region_let_go(steal(&w->stage_in));
    region_let_go(steal(&w->held_in));
    region_let_go(steal(&w->held_out));
}

static void work_free(struct ruccl_work *w)
{
    if (w->slot != NO_SLOT) {
        conn_give_slot(w->conn, w->slot); /* it was never posted */
        conn_wake(w->conn);
    }
    let_go_of_memory(w);
    region_let_go(w->stage_out);
    gpu_place_end(&w->place);
    if (w->forming)
        member_unref(w->forming);
    conn_unref(w->conn);
    free(w->counts);
    work_put(w->conn, w);
}

void work_unref(struct ruccl_work *w)
{
    if (--w->refs == 0)
        work_free(w);
}

/* ---------------------------------------------------------------- progress */

static uint64_t version_of_cell(const struct ruccl_work *w)
{
    return atomic_load_explicit(&w->conn->cells[w->slot].version, memory_order_relaxed);
}

static void read_cell(const struct ruccl_work *w, struct ruccl_progress *ret)
{
    const struct progress_cell *cell = &w->conn->cells[w->slot];
    struct progress p;

    if (version_of_cell(w) == w->cell_version)
        return;
    if (progress_read(cell, &p))
        memcpy(ret, &p, sizeof(*ret));
}

/* ---------------------------------------------------------------- completion */

static void take_stats(struct ruccl_work *w, const struct reply_completion *done)
{
    w->stats.sequence = done->sequence;
    w->stats.wait_us = done->wait_us;
    w->stats.run_us = done->run_us;
    w->stats.chunks = done->chunks;
    w->stats.chunk_elements = done->chunk_elements;
    w->stats.peak_bytes = done->peak_bytes;
    strncpy(w->stats.algorithm, done->algorithm, sizeof(w->stats.algorithm) - 1);
}

static void take_completion(struct ruccl_work *w, const struct reply_completion *done)
{
    if (!w->hidden)
        take_stats(w, done);
    if (done->error.code) {
        w->error = done->error;
        return;
    }
    if (done->ncounts < w->ncounts)
        error_set(&w->error, ERROR_PROTOCOL, "the daemon answered with %u receive counts, not %u",
                  done->ncounts, w->ncounts);
    else if (w->ncounts)
        memcpy(w->counts, done->counts, w->ncounts * sizeof(w->counts[0]));
    if (w->ret_persistent) {
        *w->ret_persistent = done->persistent;
        if (!done->persistent)
            error_set(&w->error, ERROR_PROTOCOL, "the daemon made no persistent operation");
    }
    if (w->forming && !member_form(w->forming, done))
        error_set(&w->error, ERROR_PROTOCOL, "the daemon split off a communicator of no ranks");
}

static void take_reply(struct ruccl_work *w, const struct reply *reply)
{
    switch (reply->kind) {
    case REPLY_COMPLETION:
        take_completion(w, &reply->completion);
        break;
    case REPLY_DONE: /* of a join */
        w->error = reply->done;
        if (w->forming && !w->error.code)
            member_form(w->forming, NULL);
        break;
    default:
        error_set(&w->error, ERROR_PROTOCOL, "the daemon answered a post with a reply of kind %d",
                  (int)reply->kind);
    }
}

/* Whose memory it was, the error says; which of a rank's tensors, it does not. */
static void mark_memory_lost(const struct ruccl_work *w)
{
    region_mark_lost(w->stage_in);
    region_mark_lost(w->stage_out);
    region_mark_lost(w->held_in);
    region_mark_lost(w->held_out);
}

static void work_answered(struct pending *p, const struct reply *reply)
{
    struct ruccl_work *w = container_of(p, struct ruccl_work, pending);

    if (reply)
        take_reply(w, reply);
    else
        w->error = w->conn->end;

    window_end(w);
    /* From here on the cell is another work's. */
    if (!w->hidden)
        read_cell(w, &w->progress);
    conn_give_slot(w->conn, w->slot);
    w->slot = NO_SLOT;
    gpu_place_end(&w->place);

    w->state = w->window.length || (w->output.to && !w->error.code) ? WORK_STAGED : WORK_DONE;
    if (w->member)
        member_finish(steal(&w->member));
    if (w->forming && w->error.code)
        member_fail(w->forming);
    if (w->error.code == ERROR_MEMORY_FAULT)
        mark_memory_lost(w);
    let_go_of_memory(w);
    if (w->state == WORK_DONE)
        region_let_go(steal(&w->stage_out));
    work_unref(w);
}

static void work_progressed(struct pending *p, uint64_t elements_done)
{
    struct window *win = &container_of(p, struct ruccl_work, pending)->window;

    if (win->length)
        win->done = MIN(elements_done, win->bytes / win->width) * win->width;
}

int work_new(struct ruccl_conn *c, uint32_t ncounts, struct ruccl_work **ret, struct error *e)
{
    uint64_t *counts = ncounts ? calloc(ncounts, sizeof(*counts)) : NULL;
    struct ruccl_work *w = work_alloc(c);
    int r;

    if (!w || (ncounts && !counts)) {
        free(counts);
        free(w);
        return error_set_errno(e, ENOMEM, "post");
    }
    memset(w, 0, offsetof(struct ruccl_work, error)); /* most of it */
    error_clear(&w->error);
    w->counts = counts;
    w->refs = 1;
    w->conn = conn_ref(c);
    w->ncounts = ncounts;
    w->slot = NO_SLOT;
    w->pending.answered = work_answered;
    w->pending.progressed = work_progressed;
    list_init(&w->pending.link);
    list_init(&w->window.chore.link);
    r = conn_take_slot(c, &w->slot, e);
    if (r < 0) {
        work_unref(w);
        return r;
    }
    *ret = w;
    return 0;
}

void work_expect(struct ruccl_work *w, struct request *q, struct ruccl_member *m)
{
    if (m) {
        w->member = member_ref(m);
        m->unfinished++;
    }
    if (!w->hidden)
        w->cell_version = version_of_cell(w);
    w->refs++;
    conn_expect(w->conn, &w->pending, q);
}

void work_skip(struct ruccl_work *w)
{
    w->state = WORK_DONE;
    conn_give_slot(w->conn, w->slot);
    w->slot = NO_SLOT;
    let_go_of_memory(w);
}

/* ---------------------------------------------------------------- waiting */

static bool work_is_settled(const void *subject)
{
    const struct ruccl_work *w = subject;

    return (w->state == WORK_STAGED && !w->window.copying) || w->state == WORK_DONE;
}

void work_wait_in_stream(struct ruccl_work *w, const struct gpu_place *place)
{
    struct ruccl_conn *c = w->conn;
    struct error e;
    int r;

    if (!place->signal)
        return;
    error_clear(&e);
    pthread_mutex_unlock(&c->lock);
    r = gpu_place_wait(place, &e);
    pthread_mutex_lock(&c->lock);
    if (r == 0)
        return;
    report_log(REPORT_INFO, "a call waits for its end, since its stream cannot: %s", e.text);
    conn_wait(c, work_is_settled, w, CONN_NO_DEADLINE);
}

static uint64_t output_bytes(const struct ruccl_work *w)
{
    uint64_t bytes = 0;

    if (!w->output.row_bytes)
        return w->output.bytes;
    for (uint32_t i = 0; i < w->ncounts; i++)
        bytes += w->counts[i] * w->output.row_bytes;
    return MIN(bytes, w->output.bytes);
}

/* Without the lock: others wait for their own works meanwhile. */
static void copy_out(struct ruccl_work *w)
{
    struct ruccl_conn *c = w->conn;

    pthread_mutex_unlock(&c->lock);
    if (w->output.to_gpu)
        gpu_write(&w->place, (uintptr_t)w->output.to, w->output.from, output_bytes(w), &w->error);
    else
        copy_bytes(w->output.to, w->output.from, output_bytes(w));
    pthread_mutex_lock(&c->lock);
}

static void take_output(struct ruccl_work *w)
{
    w->state = WORK_COPYING;
    if (w->window.length)
        window_take_rest(w);
    else
        copy_out(w);
    w->state = WORK_DONE;
    region_let_go(steal(&w->stage_out));
    conn_wake(w->conn);
}

int work_finish(struct ruccl_work *w, int64_t deadline, struct error *e)
{
    if (w->state == WORK_UNFINISHED && conn_is_over(deadline))
        conn_poll(w->conn); /* nobody will wait, so nobody would look */
    if (conn_wait(w->conn, work_is_settled, w, deadline))
        return RUCCL_PENDING;
    if (w->state == WORK_STAGED)
        take_output(w);
    if (w->error.code)
        *e = w->error;
    return -(int)w->error.code;
}

/* ---------------------------------------------------------------- public */

static int finish(struct ruccl_work *w, int64_t deadline, const char *what)
{
    struct ruccl_conn *c;
    struct error e;
    int r;

    if (!w)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: work is NULL", what);
    c = w->conn;
    r = conn_enter(c);
    if (r < 0)
        return r;
    error_clear(&e);
    r = work_finish(w, deadline, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : r;
}

int ruccl_work_test(struct ruccl_work *work)
{
    return finish(work, 0, "work_test");
}

int ruccl_work_wait(struct ruccl_work *work, int64_t timeout_us)
{
    return finish(work, conn_deadline(timeout_us), "work_wait");
}

int ruccl_work_progress(struct ruccl_work *work, struct ruccl_progress *ret)
{
    struct ruccl_conn *c;
    int r;

    if (!work || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "work_progress: %s is NULL",
                          work ? "ret" : "work");
    c = work->conn;
    r = conn_enter(c);
    if (r < 0)
        return r;
    *ret = work->progress;
    if (work->state == WORK_UNFINISHED)
        read_cell(work, ret);
    conn_exit(c);
    return 0;
}

/* What both of these need: a work that is done, and a place to write to. */
static int enter_done(struct ruccl_work *work, const void *ret, const char *what)
{
    int r;

    if (!work || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: %s is NULL", what, work ? "ret" : "work");
    r = conn_enter(work->conn);
    if (r < 0)
        return r;
    if (work->state != WORK_UNFINISHED)
        return 0;
    conn_exit(work->conn);
    return report_new(ERROR_INVALID_ARGUMENT, "%s: the work is not done; wait for it first", what);
}

int ruccl_work_stats(struct ruccl_work *work, struct ruccl_stats *ret)
{
    int r = enter_done(work, ret, "work_stats");

    if (r < 0)
        return r;
    *ret = work->stats;
    conn_exit(work->conn);
    return 0;
}

int ruccl_work_receive_counts(struct ruccl_work *work, uint64_t *ret)
{
    int r = enter_done(work, ret, "work_receive_counts");
    bool counted;

    if (r < 0)
        return r;
    counted = work->ncounts && !work->error.code;
    if (counted)
        memcpy(ret, work->counts, work->ncounts * sizeof(ret[0]));
    conn_exit(work->conn);
    return counted ? 0
                   : report_new(ERROR_INVALID_ARGUMENT,
                                "work_receive_counts: not a successful all_to_all_v");
}

void ruccl_work_release(struct ruccl_work *work)
{
    struct ruccl_conn *c;

    if (!work || conn_enter(work->conn) < 0)
        return;
    c = work->conn;
    if (work->window.length && work->state == WORK_UNFINISHED)
        window_abandon(work);
    work_unref(work);
    conn_exit(c);
}
