#include "client/post.h"

#include <string.h>

#include "client/comm.h"
#include "client/conn.h"
#include "client/region.h"
#include "client/report.h"
#include "client/work.h"

/* A tensor on its way into a message. */
struct operand {
    const char *name;             /* "in" or "out" */
    const struct ruccl_tensor *t; /* NULL: this rank has none, or none that counts */
    uint64_t bytes;
    uintptr_t address;
    bool plain; /* bytes in plain memory, to be staged */
};

/* A call on its way to becoming a Post. */
struct posting {
    struct ruccl_conn *conn;
    struct ruccl_member *member;
    const struct call *call;
    const struct collective *row;
    bool waits; /* the caller's thread is there until it is done */
    struct operand in, out;
    struct request_post post;
};

/* ---------------------------------------------------------------- checks */

static struct shape shape_of(const struct ruccl_tensor *t)
{
    struct shape s = { .naxes = MIN(t->naxes, AXES_MAX) };

    memcpy(s.axes, t->shape, s.naxes * sizeof(s.axes[0]));
    return s;
}

static const char *dtype_name(uint32_t dtype)
{
    const struct dtype *t = dtype_get(dtype);

    return t ? t->name : "an unknown type";
}

static bool is_root(const struct posting *p)
{
    return p->member->rank == p->call->root;
}

static bool in_counts(const struct posting *p)
{
    if (p->call->kind == COLLECTIVE_RECV)
        return false;
    return !(p->row->flags & COLLECTIVE_IN_AT_ROOT) || is_root(p);
}

static bool out_counts(const struct posting *p)
{
    if (p->call->kind == COLLECTIVE_SEND)
        return false;
    return !(p->row->flags & COLLECTIVE_OUT_AT_ROOT) || is_root(p);
}

static int check_axes(const struct posting *p, const char *name, const struct ruccl_tensor *t,
                      struct error *e)
{
    if (t->naxes <= AXES_MAX)
        return 0;
    return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has %u axes, more than %u", p->row->name, name,
                     t->naxes, AXES_MAX);
}

/* Notes the tensors that count here, and what all ranks must agree on: see COLLECTIVE_LIST. */
static int describe(struct posting *p, struct error *e)
{
    const bool by_out = p->call->kind == COLLECTIVE_RECV || p->row->flags & COLLECTIVE_IN_AT_ROOT;
    const struct ruccl_tensor *agreed = by_out ? p->call->out : p->call->in;

    if (!agreed)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is NULL", p->row->name,
                         by_out ? "out" : "in");
    if (check_axes(p, by_out ? "out" : "in", agreed, e) < 0)
        return -(int)e->code;
    p->post.d.dtype = (enum dtype_id)agreed->dtype;
    p->post.d.shape = shape_of(agreed);
    p->in.t = in_counts(p) ? p->call->in : NULL;
    p->out.t = out_counts(p) ? p->call->out : NULL;
    if (p->call->kind == COLLECTIVE_ALL_TO_ALL_V && p->out.t && p->out.t->naxes > 0)
        p->post.out_rows = p->out.t->shape[0];
    return 0;
}

static int check_shape(const struct posting *p, const struct operand *o, struct shape expected,
                       struct error *e)
{
    struct shape s = shape_of(o->t);
    struct text is = { 0 }, must_be = { 0 };

    /* Only a capacity: that it suffices is for the daemon to say, who knows what comes. */
    if (p->call->kind == COLLECTIVE_ALL_TO_ALL_V && s.naxes > 0)
        expected.axes[0] = s.axes[0];
    if (shape_equal(&s, &expected))
        return 0;
    text_add_shape(&is, &s);
    text_add_shape(&must_be, &expected);
    return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has shape %s, but it must be %s", p->row->name,
                     o->name, is.s, must_be.s);
}

/* The daemon knows how large the region was made, which may be more than was asked for. */
static int check_region(const struct posting *p, const struct operand *o, struct error *e)
{
    const struct ruccl_region *region = o->t->region;
    uint64_t end;

    if (!region_is_live(p->conn, region))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: the region of %s is not a live one of this connection", p->row->name,
                         o->name);
    if (!add_u64(o->t->offset, o->bytes, &end) || end > region->bytes)
        return error_set(e, ERROR_OUT_OF_RANGE,
                         "%s: %sput of %llu bytes at offset %llu ends behind its region of %llu "
                         "bytes",
                         p->row->name, o->name, (unsigned long long)o->bytes,
                         (unsigned long long)o->t->offset, (unsigned long long)region->bytes);
    return 0;
}

/* Where the operand's bytes are: in a live region, or somewhere at least. */
static int check_memory(const struct posting *p, struct operand *o, struct error *e)
{
    if (o->t->region && check_region(p, o, e) < 0)
        return -(int)e->code;
    o->plain = !o->t->region && o->bytes > 0;
    if (o->plain && !o->t->data)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s has neither region nor data",
                         p->row->name, o->name);
    if (o->plain && p->call->ret_persistent)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: %s of a persistent operation must be in a region", p->row->name,
                         o->name);
    o->address =
        o->t->region ? (uintptr_t)o->t->region->data + o->t->offset : (uintptr_t)o->t->data;
    return 0;
}

static int check_operand(const struct posting *p, struct operand *o, const struct shape *expected,
                         struct error *e)
{
    const uint32_t agreed = p->post.d.dtype;
    struct shape s;
    int r;

    if (!o->t)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is NULL", p->row->name, o->name);
    if (o->t->dtype != agreed)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s is of %s, the other tensor of %s",
                         p->row->name, o->name, dtype_name(o->t->dtype), dtype_name(agreed));
    r = check_axes(p, o->name, o->t, e);
    if (r == 0)
        r = check_shape(p, o, *expected, e);
    if (r < 0)
        return r;
    s = shape_of(o->t);
    if (!shape_count(&s, &o->bytes) || !mul_u64(o->bytes, dtype_get(agreed)->width, &o->bytes) ||
        o->bytes > INT64_MAX)
        return error_set(e, ERROR_INVALID_SHAPE, "%s: %s has more bytes than fit in 63 bits",
                         p->row->name, o->name);
    return check_memory(p, o, e);
}

static int check_counts(const struct posting *p, const char *name, const uint64_t *counts,
                        struct error *e)
{
    /* A caller's negative number arrives here as a huge one. */
    for (uint32_t i = 0; i < p->member->nranks; i++)
        if (counts[i] > INT64_MAX)
            return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s[%u] is negative: %lld",
                             p->row->name, name, i, (long long)counts[i]);
    return 0;
}

static int check_rows(const struct posting *p, struct error *e)
{
    const uint64_t *counts = p->call->send_counts;
    uint64_t rows = p->post.d.shape.axes[0], sum = 0;
    int r;

    if (!counts)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: send_counts is NULL", p->row->name);
    r = check_counts(p, "send_counts", counts, e);
    if (r == 0 && p->call->expected_counts)
        r = check_counts(p, "expected_counts", p->call->expected_counts, e);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < p->member->nranks; i++)
        if (!add_u64(sum, counts[i], &sum))
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "%s: the sum of send_counts does not fit in 64 bits", p->row->name);
    if (sum != rows)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s: send_counts add up to %llu rows, but in has %llu", p->row->name,
                         (unsigned long long)sum, (unsigned long long)rows);
    return 0;
}

static bool is_in_place(const struct posting *p)
{
    const struct operand *in = &p->in, *out = &p->out;
    const uint64_t rank = p->member->rank;

    switch (p->call->kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST:
        return in->address == out->address;
    case COLLECTIVE_ALL_GATHER:
        return in->address == out->address + rank * in->bytes;
    case COLLECTIVE_REDUCE_SCATTER:
        return out->address == in->address + rank * out->bytes;
    default:
        return false;
    }
}

/* Where both are in regions, the daemon sees it, and between ranks too. */
static int check_overlap(const struct posting *p, struct error *e)
{
    const struct operand *in = &p->in, *out = &p->out;

    if ((!in->plain && !out->plain) || in->bytes == 0 || out->bytes == 0)
        return 0;
    if (in->address + in->bytes <= out->address || out->address + out->bytes <= in->address)
        return 0;
    if (is_in_place(p))
        return 0;
    return error_set(e, ERROR_OVERLAP,
                     "%s: in and out share bytes in a way that is not \"in place\"", p->row->name);
}

static int check_tensors(struct posting *p, struct error *e)
{
    struct shape in, out;
    int r;

    r = describe(p, e);
    if (r < 0)
        return r;
    if (descriptor_check(&p->post.d, NULL) < 0) {
        /* The daemon says so to every rank, in its own words; there is no memory to speak of. */
        p->in.t = p->out.t = NULL;
        return 0;
    }
    r = descriptor_shapes(&p->post.d, &in, &out, e);
    if (r == 0 && in_counts(p))
        r = check_operand(p, &p->in, &in, e);
    if (r == 0 && out_counts(p))
        r = check_operand(p, &p->out, &out, e);
    if (r == 0 && p->call->kind == COLLECTIVE_ALL_TO_ALL_V)
        r = check_rows(p, e);
    if (r == 0)
        r = check_overlap(p, e);
    return r;
}

static void reject(struct posting *p)
{
    p->in = (struct operand){ .name = "in" };
    p->out = (struct operand){ .name = "out" };
    p->post.in = p->post.out = (struct wire_operand){ 0 };
}

/* Fills in the message. What is wrong becomes its rejection. */
static void prepare(struct posting *p)
{
    const struct call *call = p->call;

    p->in.name = "in";
    p->out.name = "out";
    p->post.comm = p->member->number;
    p->post.d.kind = call->kind;
    p->post.d.op = (enum operator_id)call->op;
    p->post.d.root = call->root;
    p->post.d.nranks = p->member->nranks;
    p->post.peer = call->peer;
    p->post.tag = call->tag;
    p->post.color = call->color;
    p->post.key = call->key;
    p->post.child = call->child ? call->child->number : 0;
    p->post.persistent = call->ret_persistent;
    p->post.counts = call->send_counts;
    p->post.ncounts = call->send_counts ? p->member->nranks : 0;
    if (p->row->shape != SHAPE_NONE && check_tensors(p, &p->post.rejection) < 0)
        reject(p);
}

/* ---------------------------------------------------------------- staging */

static struct wire_operand wire_of(const struct operand *o)
{
    if (!o->t || !o->t->region)
        return (struct wire_operand){ 0 };
    return (struct wire_operand){ o->t->region->number, o->t->offset, 0 };
}

static struct ruccl_region *hold(const struct operand *o)
{
    return o->t && o->t->region ? region_hold(o->t->region) : NULL;
}

/* One stage under both, so that they lie in it as they do in the caller's memory. */
static int stage_in_place(struct posting *p, struct ruccl_work *w, struct error *e)
{
    const uintptr_t base = MIN(p->in.address, p->out.address);
    int r;

    r = stage_get(p->conn, MAX(p->in.bytes, p->out.bytes), &w->stage_out, e);
    if (r < 0)
        return r;
    p->post.in = (struct wire_operand){ w->stage_out->number, p->in.address - base, 0 };
    p->post.out = (struct wire_operand){ w->stage_out->number, p->out.address - base, 0 };
    return 0;
}

static int stage_apart(struct posting *p, struct ruccl_work *w, struct error *e)
{
    int r;

    if (p->in.plain) {
        r = stage_get(p->conn, p->in.bytes, &w->stage_in, e);
        if (r < 0)
            return r;
        p->post.in.region = w->stage_in->number;
    }
    if (p->out.plain) {
        r = stage_get(p->conn, p->out.bytes, &w->stage_out, e);
        if (r < 0)
            return r;
        p->post.out.region = w->stage_out->number;
    }
    return 0;
}

/* Whether its plain tensors may go through a window: each chunk of theirs is the same interval. */
static bool fits_window(const struct posting *p)
{
    return p->waits && p->row->shape == SHAPE_SAME && !(p->row->flags & COLLECTIVE_PAIR) &&
           p->post.d.budget == BUDGET_NONE &&
           MAX(p->in.plain ? p->in.bytes : 0, p->out.plain ? p->out.bytes : 0) > WINDOW_BYTES;
}

static int stage_window(struct posting *p, struct ruccl_work *w, struct error *e)
{
    const uint32_t width = dtype_get(p->post.d.dtype)->width;
    int r = stage_get(p->conn, WINDOW_BYTES, &w->stage_out, e);

    if (r < 0)
        return r;
    w->window = (struct window){ .length = WINDOW_BYTES,
                                 .bytes = MAX(p->in.bytes, p->out.bytes),
                                 .from = p->in.plain ? (const void *)p->in.address : NULL,
                                 .to = p->out.plain ? (void *)p->out.address : NULL,
                                 .stage = w->stage_out->data,
                                 .comm = p->post.comm,
                                 .width = width };
    if (p->in.plain)
        p->post.in = (struct wire_operand){ w->stage_out->number, 0, WINDOW_BYTES / width };
    if (p->out.plain)
        p->post.out = (struct wire_operand){ w->stage_out->number, 0, WINDOW_BYTES / width };
    return 0;
}

static void copy_in(struct posting *p, const struct ruccl_work *w)
{
    const struct ruccl_region *stage = w->stage_in ? w->stage_in : w->stage_out;

    pthread_mutex_unlock(&p->conn->lock);
    memcpy(stage->data + p->post.in.offset, (const void *)p->in.address, p->in.bytes);
    pthread_mutex_lock(&p->conn->lock);
}

static uint64_t row_bytes(const struct posting *p)
{
    uint64_t elements;

    if (p->call->kind != COLLECTIVE_ALL_TO_ALL_V || !shape_row_count(&p->post.d.shape, &elements))
        return 0;
    return elements * dtype_get(p->post.d.dtype)->width;
}

/* Finds the operands' regions; plain memory gets stages, and its input is copied there, or will be. */
static int stage(struct posting *p, struct ruccl_work *w, struct error *e)
{
    int r;

    p->post.in = wire_of(&p->in);
    p->post.out = wire_of(&p->out);
    w->held_in = hold(&p->in);
    w->held_out = hold(&p->out);
    if (fits_window(p))
        return stage_window(p, w, e);
    if (p->in.plain && p->out.plain && is_in_place(p))
        r = stage_in_place(p, w, e);
    else
        r = stage_apart(p, w, e);
    if (r < 0)
        return r;
    if (p->in.plain)
        copy_in(p, w);
    if (p->out.plain)
        w->output = (struct work_output){ .to = (void *)p->out.address,
                                          .from = w->stage_out->data + p->post.out.offset,
                                          .bytes = p->out.bytes,
                                          .row_bytes = row_bytes(p) };
    return 0;
}

/* ---------------------------------------------------------------- posting */

static void log_post(const struct posting *p)
{
    struct text what = { 0 };

    if (!report_is_on(REPORT_DEBUG))
        return;
    if (p->post.d.dtype) {
        text_add(&what, " %s ", dtype_name(p->post.d.dtype));
        text_add_shape(&what, &p->post.d.shape);
    }
    report_log(REPORT_DEBUG, "post %s %llu on %s rank %u:%s%s%s", p->row->name,
               (unsigned long long)p->post.sequence, p->member->id, p->member->rank, what.s,
               p->post.rejection.code ? " rejected: " : "", p->post.rejection.text);
}

static int send_post(struct posting *p, struct ruccl_work *w, struct error *e)
{
    struct request q = { .kind = REQUEST_POST };
    struct request expect = { .kind = REQUEST_EXPECT,
                              .expect = { .comm = p->post.comm,
                                          .counts = p->call->expected_counts,
                                          .ncounts = p->member->nranks } };
    int r;

    r = conn_take_turn(p->conn, e);
    if (r < 0)
        return r;
    if (!(p->row->flags & COLLECTIVE_PAIR))
        p->post.sequence = p->member->next_sequence++;
    p->post.slot = w->slot;
    q.post = p->post;
    log_post(p);
    work_expect(w, &q);
    if (p->call->expected_counts && !p->post.rejection.code)
        r = conn_send(p->conn, &expect, -1, e);
    if (r == 0)
        r = conn_send(p->conn, &q, -1, e);
    conn_give_turn(p->conn);
    return r;
}

static int post(struct posting *p, struct ruccl_work **ret, struct error *e)
{
    const bool counts = p->call->kind == COLLECTIVE_ALL_TO_ALL_V;
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
    prepare(p);
    if (!p->post.rejection.code && stage(p, w, &p->post.rejection) < 0)
        reject(p);
    r = send_post(p, w, e);
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
        p->member = member_ref(comm.member); /* another thread may leave while the lock is given up */
    return r;
}

static void leave(struct posting *p)
{
    member_unref(p->member);
    conn_exit(p->conn);
}

static struct posting posting_of(struct ruccl_comm comm, const struct call *call)
{
    return (struct posting){ .call = call,
                             .row = collective_get(call->kind),
                             .post.d.budget = comm.max_chunk_bytes };
}

int post_call(struct ruccl_comm comm, const struct call *call, struct ruccl_work **ret)
{
    struct posting p = posting_of(comm, call);
    struct error e = { 0 };
    int r;

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

    if (w->window.length)
        window_run(w);
    r = work_finish(w, CONN_NO_DEADLINE, e);
    if (r == 0 && ret_counts)
        memcpy(ret_counts, w->counts, w->ncounts * sizeof(ret_counts[0]));
    return r;
}

int post_and_wait(struct ruccl_comm comm, const struct call *call, uint64_t *ret_counts)
{
    struct posting p = posting_of(comm, call);
    struct ruccl_work *w;
    struct error e = { 0 };
    int r;

    p.waits = true;
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
