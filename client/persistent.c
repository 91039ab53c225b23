/* Persistent operations: made by a Post that is not run, started by messages that name it. */
#include <errno.h>
#include <stdlib.h>

#include "client/comm.h"
#include "client/post.h"
#include "client/region.h"
#include "client/report.h"
#include "client/work.h"

struct ruccl_persistent {
    struct ruccl_conn *conn; /* referenced, as is: */
    struct ruccl_member *member;
    enum collective_id kind;
    uint32_t number;               /* in its communicator */
    struct ruccl_region *in, *out; /* held, so that nobody else is given their memory */
};

/* ---------------------------------------------------------------- making */

static struct ruccl_region *hold(const struct ruccl_tensor *t)
{
    return t && t->region ? region_hold(t->region) : NULL;
}

/* Of a call that went well: its tensors are there and live. */
static struct ruccl_persistent *persistent_new(struct ruccl_comm comm, const struct call *call,
                                               uint32_t number)
{
    struct ruccl_persistent *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->conn = conn_ref(comm.member->conn);
    p->member = member_ref(comm.member);
    p->kind = call->kind;
    p->number = number;
    p->in = hold(call->in);
    p->out = hold(call->out);
    return p;
}

static void tell_release(struct ruccl_member *m, uint32_t number)
{
    struct request q = { .kind = REQUEST_PERSISTENT_CLOSE };

    q.persistent_close.comm = m->number;
    q.persistent_close.persistent = number;
    conn_tell(m->conn, &q);
}

static int make(struct ruccl_comm comm, const struct call *call, struct ruccl_persistent **ret)
{
    const char *name = collective_get(call->kind)->name;
    struct call made = *call;
    uint32_t number = 0;
    int r;

    if (!ret)
        return report_new(ERROR_INVALID_ARGUMENT, "%s_init: ret is NULL", name);
    made.ret_persistent = &number;
    r = post_and_wait(comm, &made, NULL);
    if (r < 0)
        return r;
    r = conn_enter(comm.member->conn);
    if (r < 0)
        return r;
    *ret = persistent_new(comm, call, number);
    if (!*ret) {
        tell_release(comm.member, number);
        r = report_new(ERROR_NO_MEMORY, "%s_init: out of memory", name);
    }
    conn_exit(comm.member->conn);
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

static int start(struct ruccl_persistent *p, struct ruccl_work **ret, struct error *e)
{
    struct ruccl_conn *c = p->conn;
    struct request q = { .kind = REQUEST_START };
    struct ruccl_work *w;
    int r;

    r = work_new(c, 0, &w, e);
    if (r < 0)
        return r;
    w->held_in = p->in ? region_hold(p->in) : NULL;
    w->held_out = p->out ? region_hold(p->out) : NULL;
    r = conn_take_turn(c, e);
    if (r == 0) {
        q.start.comm = p->member->number;
        q.start.persistent = p->number;
        q.start.slot = w->slot;
        q.start.sequence = p->member->next_sequence++;
        work_expect(w, &q);
        r = conn_send(c, &q, -1, e);
        conn_give_turn(c);
    }
    if (r < 0)
        work_unref(w);
    else
        *ret = w;
    return r;
}

int ruccl_start(struct ruccl_persistent *p, struct ruccl_work **ret)
{
    struct error e = { 0 };
    int r;

    if (!p || !ret)
        return report_new(ERROR_INVALID_ARGUMENT, "start: %s is NULL", p ? "ret" : "persistent");
    r = conn_enter(p->conn);
    if (r < 0)
        return r;
    r = start(p, ret, &e);
    conn_exit(p->conn);
    return r < 0 ? report_error(&e) : 0;
}

void ruccl_persistent_release(struct ruccl_persistent *p)
{
    struct ruccl_conn *c;

    if (!p || conn_enter(p->conn) < 0)
        return;
    c = p->conn;
    tell_release(p->member, p->number);
    region_let_go(p->in);
    region_let_go(p->out);
    member_unref(p->member);
    conn_unref(c);
    free(p);
    conn_exit(c);
}
