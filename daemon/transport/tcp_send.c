/* The row "tcp": what leaves. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define PARTS_AT_ONCE 64

static const uint8_t zeros[64 << 10]; /* go instead of what a cancelled message still owes */

/* ---- frames without bytes */

void tcp_send_note(struct tcp_peer *p, const struct frame *name, enum frame_kind kind,
                   uint64_t bytes)
{
    struct note *n = NULL;

    if (p->failure)
        return;
    if (p->nnotes < NOTES_MAX)
        n = malloc(sizeof(*n));
    if (!n) {
        tcp_peer_fail(p, ENOBUFS);
        return;
    }
    n->frame = *name;
    n->frame.kind = kind;
    n->frame.bytes = bytes;
    list_append(&p->notes, &n->link);
    p->nnotes++;
    tcp_peer_activate(p);
}

void tcp_send_credit(struct tcp_peer *p)
{
    const struct frame nobody = { 0 };

    if (p->taken - p->taken_told < EAGER_WINDOW / 4)
        return;
    p->taken_told = p->taken;
    tcp_send_note(p, &nobody, FRAME_CREDIT, p->taken);
}

/* ---- messages */

static bool goes_eager(const struct tcp_peer *p, uint64_t bytes)
{
    return bytes <= EAGER_BYTES_MAX &&
           p->sent - p->sent_taken + eager_charge(bytes) <= EAGER_WINDOW;
}

void tcp_send_leave(struct tcp_message *m)
{
    list_remove(&m->link);
    m->state = MESSAGE_LEAVING;
    list_append(&m->peer->leaving, &m->link);
    tcp_peer_activate(m->peer);
}

static void offer(struct tcp_message *m)
{
    list_remove(&m->link);
    m->state = MESSAGE_OFFERED;
    tcp_message_know(m);
    tcp_send_note(m->peer, &m->name, FRAME_OFFER, m->name.bytes);
}

void tcp_send_unasked(struct tcp_peer *p, const struct frame *name)
{
    struct tcp_message *m, *tmp;

    list_for_each_safe(m, tmp, &p->leaving, link)
        if (!m->is_eager && m->moved == 0 && p->out.message != m && tcp_message_is(m, name))
            offer(m);
}

/* Its receiver may have asked already. */
static void leave_or_offer(struct tcp_message *m)
{
    struct tcp_message *ask = tcp_message_find(m->peer, &m->name, MESSAGE_ASKED);
    bool fits = false;

    if (ask) {
        fits = ask->name.bytes == m->name.bytes;
        tcp_message_free_ask(ask);
    }
    if (fits)
        tcp_send_leave(m);
    else
        offer(m);
}

int tcp_send(struct channel *channel, struct transport_peer *peer, struct transfer *t)
{
    struct tcp_peer *p = tcp_peer(peer);
    struct tcp_message *m;

    if (p->failure)
        return -ECONNRESET;
    if (!p->knows_other)
        return -ENOTCONN;
    m = tcp_message_of(channel, peer, t, true, MESSAGE_LEAVING);
    if (!m)
        return -ENOMEM;
    m->is_eager = goes_eager(p, t->bytes);
    if (m->is_eager) {
        p->sent += eager_charge(t->bytes);
        tcp_send_leave(m);
    } else {
        leave_or_offer(m);
    }
    if (m->is_eager && p->up)
        tcp_write(p);
    return TRANSPORT_PENDING;
}

void tcp_send_forsake(struct tcp_message *m)
{
    struct tcp_peer *p = m->peer;

    if (p->out.busy && p->out.message == m)
        p->out.message = NULL;
    else if (m->is_eager)
        p->sent -= eager_charge(m->name.bytes);
}

/* ---- the connection */

static void next_note(struct tcp_peer *p)
{
    struct note *n = list_first(&p->notes, struct note, link);

    list_remove(&n->link);
    p->nnotes--;
    p->out.frame = n->frame;
    p->out.left = 0;
    p->out.message = NULL;
    free(n);
}

static void next_part(struct tcp_peer *p)
{
    struct tcp_message *m = list_first(&p->leaving, struct tcp_message, link);
    const uint64_t rest = m->name.bytes - m->moved;

    p->out.frame = m->name;
    p->out.frame.kind = m->is_eager ? FRAME_DATA : FRAME_PART;
    p->out.frame.bytes = m->is_eager ? rest : MIN(rest, PART_BYTES_MAX);
    p->out.left = p->out.frame.bytes + VERDICT_BYTES;
    p->out.message = m;
    list_remove(&m->link); /* behind those that wait as well */
    list_append(&p->leaving, &m->link);
}

/* Return: whether there is something to write. */
static bool next_frame(struct tcp_peer *p)
{
    if (p->out.busy)
        return true;
    if (!list_empty(&p->notes))
        next_note(p);
    else if (!list_empty(&p->leaving))
        next_part(p);
    else
        return false;
    p->out.busy = true;
    p->out.written = 0;
    return true;
}

/* The rest of its bytes, or zeros, then the verdict. */
static int describe_body(struct tcp_peer *p, struct iovec *iov, int room)
{
    const uint64_t bytes = p->out.left - VERDICT_BYTES;
    int n = 0;

    if (p->out.message)
        n = tcp_message_parts(p->out.message, bytes, iov, room - 1);
    else if (bytes)
        iov[n++] = (struct iovec){ (void *)zeros, MIN(bytes, sizeof(zeros)) };
    if (iov_bytes(iov, n) < bytes)
        return n;
    p->out.verdict = p->out.message ? VERDICT_WHOLE : VERDICT_VOID;
    iov[n++] = (struct iovec){ &p->out.verdict, VERDICT_BYTES };
    return n;
}

/* The frame's rest, then what is behind it. */
static int describe(struct tcp_peer *p, struct iovec *iov)
{
    int n = 0;

    if (p->out.written < sizeof(p->out.frame))
        iov[n++] = (struct iovec){ (uint8_t *)&p->out.frame + p->out.written,
                                   sizeof(p->out.frame) - p->out.written };
    return p->out.left ? n + describe_body(p, iov + n, PARTS_AT_ONCE - n) : n;
}

static void frame_written(struct tcp_peer *p)
{
    struct tcp_message *m = p->out.message;

    p->out.busy = false;
    p->out.message = NULL;
    if (m && m->moved == m->name.bytes)
        tcp_message_finish(m, 0);
}

static void advance(struct tcp_peer *p, uint64_t n)
{
    const uint64_t of_frame = MIN(n, sizeof(p->out.frame) - p->out.written);

    p->out.written += (uint32_t)of_frame;
    n -= of_frame;
    if (p->out.message && n)
        p->out.message->moved += MIN(n, p->out.left - VERDICT_BYTES);
    p->out.left -= n;
    if (p->out.written == sizeof(p->out.frame) && p->out.left == 0)
        frame_written(p);
}

/* Return: bytes written; 0: there is no room, or the peer has failed. */
static uint64_t write_some(struct tcp_peer *p)
{
    struct iovec iov[PARTS_AT_ONCE];
    const struct msghdr h = { .msg_iov = iov, .msg_iovlen = (size_t)describe(p, iov) };
    const ssize_t n = sendmsg(p->fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (n >= 0) {
        advance(p, (uint64_t)n);
        return (uint64_t)n;
    }
    if (errno == EFAULT && p->out.message) { /* its memory, not the connection's fault */
        struct tcp_message *m = p->out.message;

        p->out.message = NULL;
        tcp_message_finish(m, -EFAULT);
        return 1;
    }
    if (errno == EAGAIN)
        tcp_peer_watch(p, true);
    else if (errno == EINTR)
        return 1;
    else
        tcp_peer_fail(p, errno == EPIPE ? ECONNRESET : errno);
    return 0;
}

void tcp_write(struct tcp_peer *p)
{
    uint64_t bytes = 0;

    if (p->wants_out)
        return;
    while (!p->failure && bytes < TURN_BYTES && next_frame(p)) {
        const uint64_t n = write_some(p);

        if (n == 0)
            return;
        bytes += n;
    }
    if (bytes >= TURN_BYTES)
        tcp_peer_activate(p);
}
