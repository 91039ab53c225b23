/* Persistent operations: made by a Post that is not run, started by messages that name it. */
#include <errno.h>
#include <stdlib.h>

#include "client/comm.h"
#include "client/meeting.h"
#include "client/post.h"
#include "client/region.h"
#include "client/report.h"
#include "client/work.h"

struct ruccl_persistent {
    struct ruccl_conn *conn;       /* referenced */
    struct ruccl_member *member;   /* likewise */
    uint32_t number;               /* in its communicator */
    struct ruccl_region *in, *out; /* held, so that nobody else is given their memory */
    struct gpu_place place;        /* of the starts, in a stream; its GPU NULL: they have none */
};

/* ---------------------------------------------------------------- making */

static struct ruccl_persistent *persistent_new(struct ruccl_member *member)
{
    struct ruccl_persistent *p = calloc(1, sizeof(*p));

    if (p) {
        p->conn = conn_ref(member->conn);
        p->member = member_ref(member);
    }
    return p;
}

static void persistent_free(struct ruccl_persistent *p)
{
    region_let_go(p->in);
    region_let_go(p->out);
    member_unref(p->member);
    conn_unref(p->conn);
    free(p);
}

/* Of a tensor that does not count here, the region may be anything. */
static struct ruccl_region *hold(const struct ruccl_conn *c, const struct ruccl_tensor *t)
{
    return t && region_is_live(c, t->region) ? region_hold(t->region) : NULL;
}

/* Another thread may leave meanwhile, so it is the operation that holds the member. */
static int post_making(struct ruccl_comm comm, const struct call *call, struct ruccl_persistent *p)
{
    struct call made = *call;

    made.ret_persistent = &p->number;
    made.ret_place = &p->place;
    return post_and_wait(comm, &made, NULL);
}

static int make(struct ruccl_comm comm, const struct call *call, struct ruccl_persistent **ret)
{
    const char *name = collective_get(call->kind)->name;
    struct ruccl_persistent *p;
    struct ruccl_conn *c;
    int r;

    if (!comm.member || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s_init: %s", name,
                          ret ? "the communicator has no member" : "ret is NULL");
    c = comm.member->conn;
    r = conn_enter(c);
    if (r < 0)
        return r;
    p = persistent_new(comm.member);
    conn_exit(c);
    if (!p)
        return report_new(ERROR_NO_MEMORY, "%s_init: out of memory", name);

    r = post_making(comm, call, p);
    if (conn_enter(c) < 0) /* a child forked meanwhile: nothing here is its own */
        return -ERROR_FORKED;
    if (r < 0) {
        persistent_free(p);
    } else {
        p->in = hold(c, call->in);
        p->out = hold(c, call->out);
        *ret = p;
    }
    conn_exit(c);
    return r;
}

int ruccl_all_reduce_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, enum ruccl_op op,
                          struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_ALL_REDUCE, .in = in, .out = out, .op = op }, ret);
}

int ruccl_all_gather_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                          const struct ruccl_tensor *out, struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_ALL_GATHER, .in = in, .out = out }, ret);
}

int ruccl_reduce_scatter_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                              const struct ruccl_tensor *out, enum ruccl_op op,
                              struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_REDUCE_SCATTER, .in = in, .out = out, .op = op },
                ret);
}

int ruccl_broadcast_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                         const struct ruccl_tensor *out, uint32_t root,
                         struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_BROADCAST, .in = in, .out = out, .root = root },
                ret);
}

int ruccl_reduce_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                      const struct ruccl_tensor *out, enum ruccl_op op, uint32_t root,
                      struct ruccl_persistent **ret)
{
    return make(comm,
                &(struct call){ COLLECTIVE_REDUCE, .in = in, .out = out, .op = op, .root = root },
                ret);
}

int ruccl_gather_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                      const struct ruccl_tensor *out, uint32_t root, struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_GATHER, .in = in, .out = out, .root = root }, ret);
}

int ruccl_scatter_init(struct ruccl_comm comm, const struct ruccl_tensor *in,
                       const struct ruccl_tensor *out, uint32_t root, struct ruccl_persistent **ret)
{
    return make(comm, &(struct call){ COLLECTIVE_SCATTER, .in = in, .out = out, .root = root },
                ret);
}

/* ---------------------------------------------------------------- starting */

/* All that a start has: the rest of a request is large. */
static void take_start(struct request *q, const struct ruccl_persistent *p,
                       const struct ruccl_work *w, uint64_t sequence)
{
    q->kind = REQUEST_START;
    q->start.comm = p->member->number;
    q->start.persistent = p->number;
    q->start.slot = w->slot;
    q->start.fence = gpu_place_fence(&w->place);
    q->start.signal = w->place.signal;
    q->start.sequence = sequence;
}

/* In a start's place, so that the other ranks are told. */
static struct request rejection_of(const struct ruccl_persistent *p, const struct ruccl_work *w,
                                   uint64_t sequence, const struct error *why)
{
    return (struct request){ .kind = REQUEST_POST,
                             .post = { .comm = p->member->number,
                                       .slot = w->slot,
                                       .sequence = sequence,
                                       .rejection = *why } };
}

/* `rejection`: of the client itself; its code is 0: there is none. */
static int send_start(struct ruccl_persistent *p, struct ruccl_work *w,
                      const struct error *rejection, struct error *e)
{
    struct ruccl_conn *c = p->conn;
    struct request q;
    uint64_t sequence;
    int r;

    r = meeting_skip(p->member, &sequence, e);
    if (r == 0) {
        if (rejection->code)
            q = rejection_of(p, w, sequence, rejection);
        else
            take_start(&q, p, w, sequence);
        work_expect(w, &q, p->member);
        r = conn_send(c, &q, -1, e);
        conn_give_turn(c);
    }
    return r;
}

static int start(struct ruccl_persistent *p, struct ruccl_work **ret, struct error *e)
{
    struct gpu_place place;
    struct error rejection;
    struct ruccl_work *w;
    int r;

    error_clear(&rejection);
    r = work_new(p->conn, 0, &w, e);
    if (r < 0)
        return r;
    w->held_in = p->in ? region_hold(p->in) : NULL;
    w->held_out = p->out ? region_hold(p->out) : NULL;
    w->place = p->place;
    if (p->place.gpu && gpu_place_take(p->conn, &w->place, w->slot, true, &rejection) < 0)
        w->place = (struct gpu_place){ 0 };
    place = gpu_place_hold(&w->place);
    r = send_start(p, w, &rejection, e);
    if (r == 0)
        work_wait_in_stream(w, &place);
    gpu_place_let_go(&place);
    if (r < 0)
        work_unref(w);
    else
        *ret = w;
    return r;
}

int ruccl_start(struct ruccl_persistent *p, struct ruccl_work **ret)
{
    struct error e;
    int r;

    error_clear(&e);
    if (!p || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "start: %s is NULL", p ? "ret" : "persistent");
    r = conn_enter(p->conn);
    if (r < 0)
        return r;
    r = start(p, ret, &e);
    conn_exit(p->conn);
    return r < 0 ? report_error(&e) : 0;
}

static void tell_release(const struct ruccl_persistent *p)
{
    struct request q = { .kind = REQUEST_PERSISTENT_CLOSE };

    q.persistent_close.comm = p->member->number;
    q.persistent_close.persistent = p->number;
    conn_tell(p->conn, &q);
}

void ruccl_persistent_release(struct ruccl_persistent *p)
{
    struct ruccl_conn *c;

    if (!p || conn_enter(p->conn) < 0)
        return;
    c = p->conn;
    tell_release(p);
    persistent_free(p);
    conn_exit(c);
}
