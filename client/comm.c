#include "client/comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/meeting.h"
#include "client/post.h"
#include "client/report.h"
#include "client/work.h"
#include "shared/socket_path.h"

/* ---------------------------------------------------------------- members */

int member_new(struct ruccl_conn *c, struct ruccl_member **ret, struct error *e)
{
    struct ruccl_member *m = calloc(1, sizeof(*m));

    if (!m)
        return error_set_errno(e, ENOMEM, "communicator");
    m->conn = c;
    m->refs = 1;
    m->number = ++c->last_comm;
    m->next_sequence = 1;
    m->patience.most_ns = c->rings.patience.most_ns;
    list_append(&c->members, &m->link);
    *ret = m;
    return 0;
}

struct ruccl_member *member_ref(struct ruccl_member *m)
{
    m->refs++;
    return m;
}

void member_unref(struct ruccl_member *m)
{
    if (--m->refs > 0)
        return;
    meeting_forget(m);
    free(m);
}

void member_finish(struct ruccl_member *m)
{
    m->unfinished--;
    member_unref(m);
}

static void member_drop(struct ruccl_member *m)
{
    list_remove(&m->link);
    member_unref(m);
}

bool member_form(struct ruccl_member *m, const struct reply_completion *done)
{
    if (done && (done->child_nranks == 0 || done->child_rank >= done->child_nranks ||
                 done->child_nranks > RANKS_MAX))
        return false;
    if (done) {
        m->rank = done->child_rank;
        m->nranks = done->child_nranks;
        snprintf(m->id, sizeof(m->id), "%s", done->child_id);
    }
    m->state = MEMBER_READY;
    report_log(REPORT_INFO, "rank %u of %u in %s", m->rank, m->nranks, m->id);
    return true;
}

void member_fail(struct ruccl_member *m)
{
    m->state = MEMBER_FAILED;
}

void members_free_all(struct ruccl_conn *c)
{
    while (!list_empty(&c->members))
        member_drop(list_first(&c->members, struct ruccl_member, link));
}

static int enter_member(struct ruccl_comm comm, const char *what)
{
    if (!comm.member)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: the communicator has no member", what);
    return conn_enter(comm.member->conn);
}

/* ---------------------------------------------------------------- ids */

int ruccl_new_id(struct ruccl_conn *c, char ret_id[RUCCL_ID_BYTES])
{
    struct request q = { .kind = REQUEST_ID_NEW };
    struct answer answer = { .fd = -1 };
    struct error e = { 0 };
    int r;

    if (!c || !ret_id)
        return report_new(ERROR_INVALID_ARGUMENT, "new_id: %s is NULL", c ? "ret_id" : "conn");
    r = conn_enter(c);
    if (r < 0)
        return r;
    r = conn_ask(c, &q, -1, conn_deadline(DAEMON_ANSWERS_US), &answer, &e);
    conn_exit(c);
    if (r < 0)
        return report_error(&e);
    memcpy(ret_id, answer.id, sizeof(answer.id));
    return 0;
}

static int check_id(const struct ruccl_conn *c, const char *id, const char *what)
{
    if (!c || !id)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: %s is NULL", what, c ? "id" : "conn");
    if (strlen(id) > CODEC_ID_MAX)
        return report_new(ERROR_INVALID_ARGUMENT, "%s: an id has at most %u bytes", what,
                          CODEC_ID_MAX);
    return 0;
}

int ruccl_drop_id(struct ruccl_conn *c, const char *id)
{
    struct request q = { .kind = REQUEST_ID_DROP, .id_drop.id = id };
    struct error e = { 0 };
    int r;

    r = check_id(c, id, "drop_id");
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = conn_ask(c, &q, -1, conn_deadline(DAEMON_ANSWERS_US), NULL, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

/* ---------------------------------------------------------------- join */

static int check_join(const struct ruccl_conn *c, const struct request_join *j, bool has_ret)
{
    int r = check_id(c, j->id, "join");

    if (r < 0)
        return r;
    if (!has_ret)
        return report_new(ERROR_INVALID_ARGUMENT, "join: ret is NULL");
    if (j->label && strlen(j->label) > CODEC_NAME_MAX)
        return report_new(ERROR_INVALID_ARGUMENT, "join: the label is longer than %u bytes",
                          CODEC_NAME_MAX);
    if (j->algorithm && strlen(j->algorithm) > CODEC_ALGORITHM_MAX)
        return report_new(ERROR_UNSUPPORTED_ALGORITHM, "join: no algorithm is called %.40s",
                          j->algorithm);
    return 0;
}

static int join_send(struct ruccl_work *w, struct request *q, struct error *e)
{
    struct ruccl_conn *c = w->conn;
    int r;

    r = conn_take_turn(c, e);
    if (r < 0)
        return r;
    work_expect(w, q, NULL);
    r = conn_send(c, q, -1, e);
    conn_give_turn(c);
    return r;
}

static int join(struct ruccl_conn *c, struct request *q, struct ruccl_member **ret_member,
                struct ruccl_work **ret_work, struct error *e)
{
    struct ruccl_member *m;
    struct ruccl_work *w;
    int r;

    r = work_new(c, 0, &w, e);
    if (r < 0)
        return r;
    r = member_new(c, &m, e);
    if (r == 0) {
        q->join.comm = m->number;
        m->rank = q->join.rank;
        m->nranks = q->join.nranks;
        strcpy(m->id, q->join.id);
        w->forming = member_ref(m);
        r = join_send(w, q, e);
        if (r < 0)
            member_drop(m);
    }
    if (r < 0) {
        work_unref(w);
        return r;
    }
    *ret_member = m;
    *ret_work = w;
    return 0;
}

int ruccl_join_async(struct ruccl_conn *c, const char *id, uint32_t rank, uint32_t world_size,
                     const struct ruccl_join_options *options, struct ruccl_comm *ret_comm,
                     struct ruccl_work **ret_work)
{
    const struct ruccl_join_options defaults = RUCCL_JOIN_OPTIONS_INIT;
    const struct ruccl_join_options *o = options ? options : &defaults;
    struct request q = { .kind = REQUEST_JOIN,
                         .join = { .id = id,
                                   .rank = rank,
                                   .nranks = world_size,
                                   .label = o->label,
                                   .timeout_us = o->timeout_us,
                                   .algorithm = o->algorithm } };
    struct ruccl_member *member;
    struct error e = { 0 };
    int r;

    if (o->algorithm && !strcmp(o->algorithm, "auto"))
        q.join.algorithm = NULL;
    r = check_join(c, &q.join, ret_comm && ret_work);
    if (r == 0)
        r = conn_enter(c);
    if (r < 0)
        return r;
    r = join(c, &q, &member, ret_work, &e);
    if (r == 0)
        rings_hear(&c->rings, id);
    conn_exit(c);
    if (r < 0)
        return report_error(&e);
    *ret_comm = (struct ruccl_comm){ .member = member, .max_chunk_bytes = RUCCL_NO_BUDGET };
    return 0;
}

/* ---------------------------------------------------------------- leave */

static int leave(struct ruccl_member *m, struct error *e)
{
    struct request q = { .kind = REQUEST_LEAVE, .leave.comm = m->number };
    int r = conn_ask(m->conn, &q, -1, CONN_NO_DEADLINE, NULL, e);

    /* The daemon may know nothing of what never formed. */
    if (m->state == MEMBER_FAILED)
        r = 0;
    /* ruccl_close() may have let go of it meanwhile. */
    if (!list_empty(&m->link))
        member_drop(m);
    return r;
}

int ruccl_leave(struct ruccl_comm comm)
{
    struct error e = { 0 };
    struct ruccl_conn *c;
    int r;

    r = enter_member(comm, "leave");
    if (r < 0)
        return r;
    c = comm.member->conn;
    member_ref(comm.member);
    r = leave(comm.member, &e);
    member_unref(comm.member);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

/* The second half of a blocking join or split: what did not form is left at once. */
static int await_member(struct ruccl_comm comm, struct ruccl_work *work, struct ruccl_comm *ret)
{
    int r = ruccl_work_wait(work, -1);

    ruccl_work_release(work);
    if (r == 0)
        *ret = comm;
    else if (comm.member)
        ruccl_leave(comm);
    return r;
}

int ruccl_join(struct ruccl_conn *conn, const char *id, uint32_t rank, uint32_t world_size,
               const struct ruccl_join_options *options, struct ruccl_comm *ret)
{
    struct ruccl_comm comm;
    struct ruccl_work *work;
    int r = ruccl_join_async(conn, id, rank, world_size, options, ret ? &comm : NULL, &work);

    return r < 0 ? r : await_member(comm, work, ret);
}

/* ---------------------------------------------------------------- split */

static int child_new(struct ruccl_comm parent, struct ruccl_member **ret)
{
    struct error e = { 0 };
    int r;

    r = enter_member(parent, "split");
    if (r < 0)
        return r;
    r = member_new(parent.member->conn, ret, &e);
    conn_exit(parent.member->conn);
    return r < 0 ? report_error(&e) : 0;
}

static void child_drop(struct ruccl_member *child)
{
    struct ruccl_conn *c;

    if (!child || conn_enter(child->conn) < 0)
        return;
    c = child->conn;
    member_drop(child);
    conn_exit(c);
}

int ruccl_split_async(struct ruccl_comm comm, int32_t color, int32_t key,
                      struct ruccl_comm *ret_comm, struct ruccl_work **ret_work)
{
    struct ruccl_member *child = NULL;
    int r = 0;

    if (!ret_comm || !ret_work)
        return report_new(ERROR_INVALID_ARGUMENT, "split: ret is NULL");
    if (color >= 0)
        r = child_new(comm, &child);
    if (r < 0)
        return r;
    r = post_call(comm,
                  &(struct call){ COLLECTIVE_SPLIT, .color = color, .key = key, .child = child },
                  ret_work);
    if (r < 0) {
        child_drop(child);
        return r;
    }
    *ret_comm = (struct ruccl_comm){ .member = child,
                                     .max_chunk_bytes = RUCCL_NO_BUDGET,
                                     .stream = comm.stream,
                                     .attended = comm.attended };
    return 0;
}

int ruccl_split(struct ruccl_comm comm, int32_t color, int32_t key, struct ruccl_comm *ret)
{
    struct ruccl_comm child;
    struct ruccl_work *work;
    int r = ruccl_split_async(comm, color, key, ret ? &child : NULL, &work);

    return r < 0 ? r : await_member(child, work, ret);
}

/* ---------------------------------------------------------------- the rest */

int ruccl_abort(struct ruccl_comm comm, const char *text)
{
    struct request q = { .kind = REQUEST_ABORT };
    char cut[ERROR_TEXT_BYTES];
    struct error e = { 0 };
    struct ruccl_conn *c;
    int r;

    r = enter_member(comm, "abort");
    if (r < 0)
        return r;
    c = comm.member->conn;
    snprintf(cut, sizeof(cut), "%s", text ? text : "");
    q.abort.comm = comm.member->number;
    q.abort.text = cut;
    r = conn_ask(c, &q, -1, conn_deadline(DAEMON_ANSWERS_US), NULL, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}

uint32_t ruccl_rank(struct ruccl_comm comm)
{
    return comm.member ? comm.member->rank : 0;
}

uint32_t ruccl_world_size(struct ruccl_comm comm)
{
    return comm.member ? comm.member->nranks : 0;
}

const char *ruccl_id(struct ruccl_comm comm)
{
    return comm.member ? comm.member->id : NULL;
}

struct ruccl_comm ruccl_bounded(struct ruccl_comm comm, uint64_t max_chunk_bytes)
{
    comm.max_chunk_bytes = max_chunk_bytes;
    return comm;
}

struct ruccl_comm ruccl_unbounded(struct ruccl_comm comm)
{
    return ruccl_bounded(comm, RUCCL_NO_BUDGET);
}

struct ruccl_comm ruccl_on_stream(struct ruccl_comm comm, void *stream)
{
    comm.stream = stream;
    return comm;
}

struct ruccl_comm ruccl_attended(struct ruccl_comm comm)
{
    comm.attended = 1;
    return comm;
}

uint64_t ruccl_max_chunk_bytes(struct ruccl_comm comm)
{
    return comm.max_chunk_bytes;
}
