/* What a connection sends: requests in turns, by the ring or the socket; and questions. */
#include <errno.h>
#include <string.h>

#include "client/conn.h"

#define ROOM_NS 1000000 /* between two looks for room in the ring */

/* ---------------------------------------------------------------- sending */

static bool turn_is_free(const void *subject)
{
    const struct ruccl_conn *c = subject;

    return !c->sending || c->end.code;
}

static bool socket_has_room(const void *subject)
{
    const struct ruccl_conn *c = subject;

    return !c->blocked || c->end.code;
}

int conn_take_turn(struct ruccl_conn *c, struct error *e)
{
    int r;

    conn_wait_alone(c, turn_is_free, c, CONN_NO_DEADLINE);
    r = conn_check(c, e);
    if (r < 0)
        return r;
    c->sending = true;
    return 0;
}

void conn_give_turn(struct ruccl_conn *c)
{
    c->sending = false;
    conn_wake(c);
}

void conn_expect(struct ruccl_conn *c, struct pending *p, struct request *q)
{
    q->serial = p->serial = ++c->last_serial;
    list_append(&c->pending[p->serial % CONN_BUCKETS], &p->link);
}

static int send_by_socket(struct ruccl_conn *c, uint32_t len, int fd)
{
    int r;

    while ((r = packet_send(c->socket, c->buffer, len, fd)) == PACKET_AGAIN) {
        /* The daemon may have stopped reading until we take its replies: the leader reads on. */
        c->blocked = true;
        conn_nudge(c);
        conn_wait_alone(c, socket_has_room, c, CONN_NO_DEADLINE);
        if (c->end.code)
            return PACKET_END;
    }
    return r;
}

static bool ring_has_its_room(const void *subject)
{
    const struct ruccl_conn *c = subject;

    return ring_has_room(&c->rings.requests, c->room) || c->end.code;
}

static int send_by_ring(struct ruccl_conn *c, uint32_t len)
{
    static const struct request bell = { .kind = REQUEST_BELL };

    c->room = len;
    while (ring_put(&c->rings.requests, c->buffer, len) == RING_FULL) {
        /* Nobody tells of room: the daemon has been rung, and takes what there is soon. */
        conn_wait_alone(c, ring_has_its_room, c, conn_now() + ROOM_NS);
        if (c->end.code)
            return PACKET_END;
    }
    if (!ring_take_bell(&c->rings.requests))
        return 0;
    return send_by_socket(c, (uint32_t)codec_encode_request(&bell, c->buffer), -1);
}

static int send_bytes(struct ruccl_conn *c, uint32_t len, int fd)
{
    return c->rings.memory && fd < 0 ? send_by_ring(c, len) : send_by_socket(c, len, fd);
}

int conn_send(struct ruccl_conn *c, const struct request *q, int fd, struct error *e)
{
    int r, len;

    if (c->end.code)
        return conn_check(c, e);
    len = repeat_encode_request(&c->asked, q, c->buffer);
    r = len < 0 ? len : send_bytes(c, (uint32_t)len, fd);
    if (r == 0)
        return 0;
    if (r == PACKET_END) {
        conn_lost(c);
    } else {
        struct error why = { 0 };

        error_set_errno(&why, -r, "send to the daemon");
        conn_end(c, &why);
    }
    return conn_check(c, e);
}

void conn_tell(struct ruccl_conn *c, struct request *q)
{
    struct error ignored = { 0 };

    q->serial = 0;
    if (conn_take_turn(c, &ignored) < 0)
        return;
    conn_send(c, q, -1, &ignored);
    conn_give_turn(c);
}

/* ---------------------------------------------------------------- asking */

/* A request whose sender waits for the answer. */
struct ask {
    struct pending pending;
    struct ruccl_conn *conn;
    struct answer *answer; /* may be NULL */
    struct error error;
    bool done;
};

static void ask_answered(struct pending *p, const struct reply *reply)
{
    struct ask *a = container_of(p, struct ask, pending);

    a->done = true;
    if (!reply) {
        a->error = a->conn->end;
        return;
    }
    switch (reply->kind) {
    case REPLY_DONE:
        a->error = reply->done;
        if (a->answer)
            a->answer->fd = packet_take_fd(a->conn->packet, 0);
        break;
    case REPLY_ID:
        if (a->answer)
            strncpy(a->answer->id, reply->id, sizeof(a->answer->id) - 1);
        break;
    case REPLY_WELCOME:
        if (a->answer) {
            a->answer->slots = reply->welcome.slots;
            a->answer->rings = reply->welcome.rings;
            a->answer->gpus = reply->welcome.gpus;
            a->answer->slates = reply->welcome.slates;
            a->answer->spin_us = reply->welcome.spin_us;
            a->answer->fd = packet_take_fd(a->conn->packet, 0);
        }
        break;
    default:
        error_set(&a->error, ERROR_PROTOCOL, "the daemon answered with a reply of kind %d",
                  (int)reply->kind);
    }
}

static bool ask_is_done(const void *subject)
{
    return ((const struct ask *)subject)->done;
}

static int no_answer(const struct ruccl_conn *c, struct error *e)
{
    char pid[PACKET_PEER_BYTES];

    return error_set(e, ERROR_TIMEOUT,
                     "the daemon at %s%s does not answer: it hangs, or is stopped", c->path,
                     packet_peer(c->socket, pid));
}

int conn_ask(struct ruccl_conn *c, struct request *q, int fd, int64_t deadline, struct answer *ret,
             struct error *e)
{
    struct ask a = { .pending.answered = ask_answered, .conn = c, .answer = ret };
    int r;

    r = conn_take_turn(c, e);
    if (r < 0)
        return r;
    conn_expect(c, &a.pending, q);
    r = conn_send(c, q, fd, e);
    conn_give_turn(c);
    if (r < 0)
        return r;
    if (conn_wait(c, ask_is_done, &a, deadline) == CONN_TIMEOUT) {
        list_remove(&a.pending.link);
        return no_answer(c, e);
    }
    if (a.error.code)
        *e = a.error;
    return -(int)a.error.code;
}
