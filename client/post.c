#include "client/post.h"

#include <string.h>

#include "client/comm.h"
#include "client/copy.h"
#include "client/meeting.h"
#include "client/posting.h"
#include "client/region.h"
#include "client/report.h"
#include "client/work.h"

/* ---------------------------------------------------------------- staging */

static struct wire_operand wire_of(const struct operand *o)
{
    if (!o->t || !o->region || !o->region->number)
        return (struct wire_operand){ 0 };
    return (struct wire_operand){ o->region->number, o->region->skip + o->offset, 0 };
}

static struct ruccl_region *hold(const struct operand *o)
{
    return o->t && o->region ? region_hold(o->region) : NULL;
}

/* One stage under both, so that they lie in it as they do in the caller's memory. */
static int stage_in_place(struct posting *p, struct ruccl_work *w, struct error *e)
{
    const uintptr_t base = MIN(p->in.address, p->out.address);
    int r;

    r = stage_get(p->conn, MAX(p->in.bytes, p->out.bytes), &w->stage_out, e);
    if (r < 0)
        return r;
    p->q.post.in = (struct wire_operand){ w->stage_out->number, p->in.address - base, 0 };
    p->q.post.out = (struct wire_operand){ w->stage_out->number, p->out.address - base, 0 };
    return 0;
}

static int stage_apart(struct posting *p, struct ruccl_work *w, struct error *e)
{
    int r;

    if (p->in.copied) {
        r = stage_get(p->conn, p->in.bytes, &w->stage_in, e);
        if (r < 0)
            return r;
        p->q.post.in.region = w->stage_in->number;
    }
    if (p->out.copied) {
        r = stage_get(p->conn, p->out.bytes, &w->stage_out, e);
        if (r < 0)
            return r;
        p->q.post.out.region = w->stage_out->number;
    }
    return 0;
}

/* Blocks of a tensor that has one for each rank, or of one that is a block. */
static uint32_t blocks_of(const struct posting *p, bool out)
{
    return p->row->shape == (out ? SHAPE_TIMES_R : SHAPE_OVER_R) ? p->q.post.d.nranks : 1;
}

/* Elements of a piece of the windows: about a quarter of what all of a tensor's should take; with a
 * budget a number of its chunks. 0: there is none that short. */
static uint64_t window_piece(const struct posting *p, uint64_t block)
{
    const uint32_t width = dtype_get(p->q.post.d.dtype)->width;
    const uint32_t blocks = MAX(blocks_of(p, false), blocks_of(p, true));
    const uint64_t most = WINDOW_BYTES / WINDOW_PIECES / width / blocks;
    uint64_t piece = 1;

    if (p->q.post.d.budget != BUDGET_NONE) {
        const uint64_t chunk = descriptor_chunk(&p->q.post.d);

        piece = chunk && chunk < most ? most - most % chunk : chunk;
    } else {
        while (piece <= most / 2)
            piece *= 2;
    }
    return piece < div_up_u64(block, WINDOW_PIECES) ? piece : 0;
}

/* Whether plain tensors may go through windows: each chunk is the same interval of every block. */
static bool fits_window(const struct posting *p, struct window *ret)
{
    const uint32_t width =
        p->attended && p->q.post.d.dtype ? dtype_get(p->q.post.d.dtype)->width : 0;
    uint64_t block, piece;

    if (!width || p->place.gpu || !(p->in.copied || p->out.copied) ||
        p->row->shape == SHAPE_EXCHANGE || p->row->flags & COLLECTIVE_PAIR)
        return false;
    block = descriptor_block(&p->q.post.d);
    if (block * width * MAX(blocks_of(p, false), blocks_of(p, true)) <= WINDOW_BYTES)
        return false;
    piece = window_piece(p, block);
    *ret = (struct window){ .length = WINDOW_PIECES * piece * width,
                            .piece = piece * width,
                            .bytes = block * width,
                            .comm = p->q.post.comm,
                            .width = width };
    return piece > 0;
}

/* Tensors of as many blocks take turns in one stage. */
static int stage_windows(struct posting *p, struct ruccl_work *w, const struct window *win,
                         struct error *e)
{
    const uint32_t in = blocks_of(p, false), out = blocks_of(p, true);
    const uint64_t after = in != out && p->in.copied ? in * win->length : 0;
    int r = stage_get(p->conn, after + (p->out.copied ? out : in) * win->length, &w->stage_out, e);

    if (r < 0)
        return r;
    w->window = *win;
    list_init(&w->window.chore.link);
    if (p->in.copied) {
        w->window.in = (struct window_side){ (uint8_t *)p->in.address, w->stage_out->data, in };
        p->q.post.in = (struct wire_operand){ w->stage_out->number, 0, win->length / win->width };
    }
    if (p->out.copied) {
        w->window.out =
            (struct window_side){ (uint8_t *)p->out.address, w->stage_out->data + after, out };
        p->q.post.out =
            (struct wire_operand){ w->stage_out->number, after, win->length / win->width };
    }
    return 0;
}

static int copy_in(struct posting *p, const struct ruccl_work *w, struct error *e)
{
    const struct ruccl_region *stage = w->stage_in ? w->stage_in : w->stage_out;
    void *to = stage->data + p->q.post.in.offset;
    int r = 0;

    pthread_mutex_unlock(&p->conn->lock);
    if (p->in.region)
        r = gpu_read(&p->place, to, p->in.address, p->in.bytes, e);
    else
        copy_bytes(to, (const void *)p->in.address, p->in.bytes);
    pthread_mutex_lock(&p->conn->lock);
    return r;
}

static uint64_t row_bytes(const struct posting *p)
{
    uint64_t elements;

    if (p->call->kind != COLLECTIVE_ALL_TO_ALL_V || !shape_row_count(&p->q.post.d.shape, &elements))
        return 0;
    return elements * dtype_get(p->q.post.d.dtype)->width;
}

/* Finds the operands' regions; what is copied gets stages, and the input is there, or will be. */
static int stage(struct posting *p, struct ruccl_work *w, struct error *e)
{
    struct window win;
    int r;

    p->q.post.in = wire_of(&p->in);
    p->q.post.out = wire_of(&p->out);
    if (fits_window(p, &win))
        return stage_windows(p, w, &win, e);
    if (p->in.copied && p->out.copied && posting_is_in_place(p))
        r = stage_in_place(p, w, e);
    else
        r = stage_apart(p, w, e);
    if (r < 0)
        return r;
    if (p->in.copied)
        r = copy_in(p, w, e);
    if (r == 0 && p->out.copied)
        w->output = (struct work_output){ .to = (void *)p->out.address,
                                          .from = w->stage_out->data + p->q.post.out.offset,
                                          .bytes = p->out.bytes,
                                          .row_bytes = row_bytes(p),
                                          .to_gpu = p->out.region };
    return r;
}

/* The call's place in its stream; one that only makes a persistent operation moves nothing. */
static int take_place(struct posting *p, struct ruccl_work *w, struct error *e)
{
    int r = 0;

    if (p->call->ret_place)
        *p->call->ret_place = p->place;
    else if (p->fenced)
        r = gpu_place_take(p->conn, &p->place, w->slot, !p->waits, e);
    w->place = p->place;
    return r;
}

/* ---------------------------------------------------------------- posting */

static void log_post(const struct posting *p, const char *verb)
{
    struct text what = { 0 };

    if (p->q.post.d.dtype) {
        text_add(&what, " %s ", posting_dtype(p->q.post.d.dtype));
        text_add_shape(&what, &p->q.post.d.shape);
    }
    report_log(REPORT_DEBUG, "%s %s %llu on %s rank %u:%s%s%s", verb, p->row->name,
               (unsigned long long)p->q.post.sequence, p->member->id, p->member->rank, what.s,
               p->q.post.rejection.code ? " rejected: " : "", p->q.post.rejection.text);
}

/* Before the post that it belongs to. */
static int send_expected(const struct posting *p, struct error *e)
{
    const struct request q = { .kind = REQUEST_EXPECT,
                               .expect = { .comm = p->q.post.comm,
                                           .counts = p->call->expected_counts,
                                           .ncounts = p->member->nranks } };

    return conn_send(p->conn, &q, -1, e);
}

static int send_post(struct posting *p, struct ruccl_work *w, struct error *e)
{
    const bool pair = p->row->flags & COLLECTIVE_PAIR;
    int r;

    if (pair || p->met)
        r = conn_take_turn(p->conn, e);
    else
        r = meeting_skip(p->member, &p->q.post.sequence, e);
    if (r < 0)
        return r;
    p->q.post.slot = w->slot;
    p->q.post.fence = gpu_place_fence(&w->place);
    p->q.post.signal = w->place.signal;
    if (report_is_on(REPORT_DEBUG))
        log_post(p, "post");
    work_expect(w, &p->q, pair ? NULL : p->member);
    if (p->call->expected_counts && !p->q.post.rejection.code)
        r = send_expected(p, e);
    if (r == 0)
        r = conn_send(p->conn, &p->q, -1, e);
    conn_give_turn(p->conn);
    return r;
}

static int post(struct posting *p, struct ruccl_work **ret, struct error *e)
{
    const bool counts = p->call->kind == COLLECTIVE_ALL_TO_ALL_V;
    struct gpu_place place;
    struct ruccl_work *w;
    int r;

    if (p->member->state != MEMBER_READY)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: the communicator has not formed; wait for its join or split",
                         p->row->name);
    r = work_new(p->conn, counts ? p->member->nranks : 0, &w, e);
    if (r < 0)
        return r;
    if (p->call->child)
        w->forming = member_ref(p->call->child);
    w->ret_persistent = p->call->ret_persistent;
    w->hidden = p->waits;
    posting_prepare(p);
    w->held_in = hold(&p->in);
    w->held_out = hold(&p->out);
    if (meeting_hold(p, w)) {
        if (report_is_on(REPORT_DEBUG))
            log_post(p, "met for");
        *ret = w;
        return 0;
    }
    if (!p->q.post.rejection.code &&
        (stage(p, w, &p->q.post.rejection) < 0 || take_place(p, w, &p->q.post.rejection) < 0))
        posting_reject(p);
    place = gpu_place_hold(&w->place);
    r = send_post(p, w, e);
    meeting_end(p);
    if (r == 0 && w->window.length && w->state == WORK_UNFINISHED)
        window_begin(w);
    if (r == 0)
        work_wait_in_stream(w, &place);
    gpu_place_let_go(&place);
    if (r < 0) {
        work_unref(w);
        return r;
    }
    *ret = w;
    return 0;
}

/* Enters the connection of a call's communicator. Return: 0, or -code (last error set). */
static int enter(struct posting *p, struct ruccl_comm comm)
{
    int r;

    if (!comm.member)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: the communicator has no member",
                          p->row->name);
    p->conn = comm.member->conn;
    r = conn_enter(p->conn);
    if (r == 0)
        p->member = member_ref(comm.member); /* another thread may leave while the lock is free */
    return r;
}

static void leave(struct posting *p)
{
    member_unref(p->member);
    conn_exit(p->conn);
}

int post_call(struct ruccl_comm comm, const struct call *call, struct ruccl_work **ret)
{
    struct posting p;
    struct error e;
    int r;

    posting_init(&p, comm, call);
    error_clear(&e);
    if (!ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: ret is NULL", p.row->name);
    r = enter(&p, comm);
    if (r < 0)
        return r;
    r = post(&p, ret, &e);
    leave(&p);
    return r < 0 ? report_error(&e) : 0;
}

static int wait_for(struct ruccl_work *w, uint64_t *ret_counts, struct error *e)
{
    int r;

    r = work_finish(w, CONN_NO_DEADLINE, e);
    if (r == 0 && ret_counts)
        memcpy(ret_counts, w->counts, w->ncounts * sizeof(ret_counts[0]));
    return r;
}

int post_and_wait(struct ruccl_comm comm, const struct call *call, uint64_t *ret_counts)
{
    struct ruccl_work *w;
    struct posting p;
    struct error e;
    int r;

    posting_init(&p, comm, call);
    error_clear(&e);
    p.waits = p.attended = true;
    r = enter(&p, comm);
    if (r < 0)
        return r;
    r = post(&p, &w, &e);
    if (r == 0) {
        r = wait_for(w, ret_counts, &e);
        work_unref(w);
    }
    leave(&p);
    return r < 0 ? report_error(&e) : r;
}
