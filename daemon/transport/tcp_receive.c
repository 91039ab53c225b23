/* The row "tcp": what comes, and whose it is. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PARTS_AT_ONCE 64

/* ---- arrivals: eager bytes, or offers, that nobody has asked for */

static void scatter(const struct transfer *t, const uint8_t *data)
{
    for (uint32_t i = 0; i < t->nparts; i++) {
        if (t->parts[i].iov_len)
            memcpy(t->parts[i].iov_base, data, t->parts[i].iov_len);
        data += t->parts[i].iov_len;
    }
}

static void arrival_free(struct tcp_message *m)
{
    const uint64_t charge = eager_charge(m->name.bytes);
    struct tcp_peer *p = m->peer;

    if (m->data) {
        p->waiting -= charge;
        p->taken += charge;
        tcp_peer_activate(p); /* to tell of it */
    } else {
        p->noffers--;
    }
    tcp_message_free(m);
}

void tcp_arrival_drop(struct tcp_message *m)
{
    if (!m->data)
        tcp_send_note(m->peer, &m->name, FRAME_DROP, 0);
    arrival_free(m);
}

/* Where a message is wanted that has come; NULL: nobody will ask for it. */
static struct channel_entry *channel_of(struct tcp_peer *p, const struct frame *f)
{
    return channels_find_wanted(&tcp_transport(p->base.transport)->channels, f->key, f->sequence);
}

static void keep(struct tcp_message *m, struct channel_entry *c)
{
    m->channel = c;
    list_append(&c->arrived, &m->of_channel);
    tcp_message_know(m);
}

/* ---- receives */

static void ask(struct tcp_message *m)
{
    m->asked = true;
    tcp_send_note(m->peer, &m->name, FRAME_ASK, m->name.bytes);
}

/* Return: as recv. */
static int take_arrival(struct tcp_message *arrival, struct tcp_message *m)
{
    const bool fits = arrival->name.bytes == m->name.bytes;
    const bool is_here = arrival->data != NULL;

    if (fits && is_here)
        scatter(m->transfer, arrival->data);
    if (fits)
        arrival_free(arrival);
    else
        tcp_arrival_drop(arrival);
    if (fits && !is_here) {
        tcp_message_know(m);
        ask(m);
        return TRANSPORT_PENDING;
    }
    m->transfer->private = NULL;
    tcp_message_free(m);
    return fits ? 0 : -EMSGSIZE;
}

int tcp_recv(struct channel *channel, struct transport_peer *peer, struct transfer *t)
{
    struct tcp_peer *p = tcp_peer(peer);
    struct tcp_message *m, *arrival;

    if (p->failure)
        return -ECONNRESET;
    m = tcp_message_of(channel, peer, t, false, MESSAGE_POSTED);
    if (!m)
        return -ENOMEM;
    arrival = tcp_message_find(p, &m->name, MESSAGE_ARRIVED);
    if (arrival)
        return take_arrival(arrival, m);
    tcp_message_know(m);
    if (t->bytes > EAGER_BYTES_MAX) /* it will not come by itself */
        ask(m);
    return TRANSPORT_PENDING;
}

static void take_nothing(struct tcp_peer *p)
{
    p->in.body = BODY_NOBODY;
    p->in.message = NULL;
}

void tcp_receive_forsake(struct tcp_message *m)
{
    struct tcp_peer *p = m->peer;

    if (m->asked)
        tcp_send_note(p, &m->name, FRAME_UNASK, 0);
    if (p->in.message == m)
        take_nothing(p);
}

/* ---- frames */

/* Its bytes are here. Somebody may have asked for it meanwhile, or may never do any more. */
static void arrived(struct tcp_peer *p, struct tcp_message *m)
{
    struct channel_entry *c = channel_of(p, &m->name);
    struct tcp_message *wanted = c ? tcp_message_find(p, &m->name, MESSAGE_POSTED) : NULL;

    if (c && !wanted) {
        keep(m, c);
        return;
    }
    if (wanted && wanted->name.bytes == m->name.bytes)
        scatter(wanted->transfer, m->data);
    if (wanted)
        tcp_message_finish(wanted, wanted->name.bytes == m->name.bytes ? 0 : -EMSGSIZE);
    arrival_free(m);
}

/* Return: whether there is room for it. */
static bool expect_arrival(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m;

    if (p->waiting + eager_charge(f->bytes) > EAGER_WINDOW) {
        tcp_peer_fail(p, ENOBUFS);
        return false;
    }
    m = tcp_message_new(p, NULL, f, MESSAGE_ARRIVED);
    if (m)
        m->data = malloc(f->bytes ? f->bytes : 1);
    if (!m || !m->data) {
        if (m)
            tcp_message_free(m);
        tcp_peer_fail(p, ENOMEM);
        return false;
    }
    p->waiting += eager_charge(f->bytes);
    p->in.body = BODY_ARRIVAL;
    p->in.message = m;
    return true;
}

static void read_data(struct tcp_peer *p, const struct frame *f)
{
    struct channel_entry *c = channel_of(p, f);
    struct tcp_message *m = c ? tcp_message_find(p, f, MESSAGE_POSTED) : NULL;

    if (f->bytes > EAGER_BYTES_MAX) {
        tcp_peer_fail(p, EPROTO);
        return;
    }
    if (m && m->moved) { /* it has come in parts, or has come already */
        tcp_peer_fail(p, EPROTO);
        return;
    }
    p->in.left = f->bytes + VERDICT_BYTES;
    take_nothing(p);
    if (c && !m) {
        expect_arrival(p, f);
        return;
    }
    p->taken += eager_charge(f->bytes);
    if (m && m->name.bytes != f->bytes) {
        tcp_message_finish(m, -EMSGSIZE);
    } else if (m) {
        p->in.body = BODY_MESSAGE;
        p->in.message = m;
    }
}

static void read_part(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m = tcp_message_find(p, f, MESSAGE_POSTED);

    if (f->bytes > PART_BYTES_MAX || (m && (!m->asked || f->bytes > m->name.bytes - m->moved))) {
        tcp_peer_fail(p, EPROTO);
        return;
    }
    p->in.left = f->bytes + VERDICT_BYTES;
    take_nothing(p);
    if (!m) /* it was cancelled */
        return;
    p->in.body = BODY_MESSAGE;
    p->in.message = m;
}

static void read_offer(struct tcp_peer *p, const struct frame *f)
{
    struct channel_entry *c = channel_of(p, f);
    struct tcp_message *m = c ? tcp_message_find(p, f, MESSAGE_POSTED) : NULL;

    if (m && m->name.bytes == f->bytes) {
        if (!m->asked)
            ask(m);
        return;
    }
    if (m)
        tcp_message_finish(m, -EMSGSIZE);
    if (m || !c) {
        tcp_send_note(p, f, FRAME_DROP, 0);
        return;
    }
    if (tcp_message_find(p, f, MESSAGE_ARRIVED)) /* an offer may come again */
        return;
    m = p->noffers < OFFERS_MAX ? tcp_message_new(p, c, f, MESSAGE_ARRIVED) : NULL;
    if (!m) {
        tcp_peer_fail(p, ENOBUFS);
        return;
    }
    p->noffers++;
    keep(m, c);
}

static void read_withdrawal(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m = tcp_message_find(p, f, MESSAGE_ARRIVED);

    if (m && !m->data)
        arrival_free(m);
}

static void note_ask(struct tcp_peer *p, const struct frame *f)
{
    const struct channel_entry *c =
        channels_find(&tcp_transport(p->base.transport)->channels, f->key);
    struct tcp_message *m;

    if (c && f->sequence <= c->forgotten)
        return;
    m = p->nasks < ASKS_MAX ? tcp_message_new(p, NULL, f, MESSAGE_ASKED) : NULL;
    if (!m) {
        tcp_peer_fail(p, ENOBUFS);
        return;
    }
    p->nasks++;
    list_append(&p->asks, &m->of_channel);
    tcp_message_know(m);
}

static void read_ask(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m = tcp_message_find(p, f, MESSAGE_OFFERED);

    if (!m)
        note_ask(p, f);
    else if (m->name.bytes == f->bytes)
        tcp_send_leave(m);
    /* else what was offered tells the other end */
}

static void read_unask(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m = tcp_message_find(p, f, MESSAGE_ASKED);

    if (m)
        tcp_message_free_ask(m);
    else
        tcp_send_unasked(p, f);
}

static void read_drop(struct tcp_peer *p, const struct frame *f)
{
    struct tcp_message *m = tcp_message_find(p, f, MESSAGE_OFFERED);

    if (m)
        tcp_message_finish(m, 0);
}

static void read_credit(struct tcp_peer *p, const struct frame *f)
{
    if (f->bytes > p->sent)
        tcp_peer_fail(p, EPROTO);
    else
        p->sent_taken = MAX(p->sent_taken, f->bytes);
}

/* What is void is lost: whoever waits for it will hear from elsewhere why it was not sent. */
static void body_read(struct tcp_peer *p)
{
    struct tcp_message *m = p->in.message;
    const enum body body = p->in.body;
    const bool whole = p->in.verdict == VERDICT_WHOLE;

    take_nothing(p);
    if (body == BODY_ARRIVAL && whole)
        arrived(p, m);
    else if (body == BODY_ARRIVAL)
        arrival_free(m);
    else if (body == BODY_MESSAGE && whole && m->moved == m->name.bytes)
        tcp_message_finish(m, 0);
}

static void read_frame(struct tcp_peer *p, const struct frame *f)
{
    static void (*const readers[])(struct tcp_peer * p, const struct frame *f) = {
        [FRAME_DATA] = read_data, [FRAME_OFFER] = read_offer,   [FRAME_WITHDRAW] = read_withdrawal,
        [FRAME_ASK] = read_ask,   [FRAME_UNASK] = read_unask,   [FRAME_DROP] = read_drop,
        [FRAME_PART] = read_part, [FRAME_CREDIT] = read_credit,
    };

    if (f->kind >= ARRAY_SIZE(readers) || !readers[f->kind]) {
        tcp_peer_fail(p, EPROTO);
        return;
    }
    readers[f->kind](p, f);
}

/* ---- bytes */

/* Where the next bytes of the body and their verdict go; nowhere: they are thrown away. Returns how
 * many parts. */
static int describe(struct tcp_peer *p, struct iovec *iov, int room)
{
    const uint64_t bytes = p->in.left - VERDICT_BYTES;
    struct tcp_message *m = p->in.message;
    int n = 0;

    if (p->in.body == BODY_NOBODY)
        return 0;
    if (p->in.body == BODY_MESSAGE)
        n = tcp_message_parts(m, bytes, iov, room - 1);
    else if (bytes)
        iov[n++] = (struct iovec){ m->data + m->moved, bytes };
    if (iov_bytes(iov, n) == bytes)
        iov[n++] = (struct iovec){ &p->in.verdict, VERDICT_BYTES };
    return n;
}

static void body_advance(struct tcp_peer *p, uint64_t n)
{
    if (p->in.message)
        p->in.message->moved += MIN(n, p->in.left - VERDICT_BYTES);
    p->in.left -= n;
    if (p->in.left == 0)
        body_read(p);
}

static void body_from_buffer(struct tcp_peer *p)
{
    struct iovec iov[PARTS_AT_ONCE];
    const int n = describe(p, iov, PARTS_AT_ONCE);
    uint64_t have = MIN(p->in.left, p->in.end - p->in.first), used = n ? 0 : have;

    for (int i = 0; i < n && used < have; i++) {
        const uint64_t len = MIN(iov[i].iov_len, have - used);

        memcpy(iov[i].iov_base, p->in.bytes + p->in.first + used, len);
        used += len;
    }
    p->in.first += (uint32_t)used;
    body_advance(p, used);
}

/* Uses what has been read, as far as it goes. */
static void consume(struct tcp_peer *p)
{
    while (!p->failure && p->in.end > p->in.first) {
        struct frame f;

        if (p->in.left) {
            body_from_buffer(p);
            continue;
        }
        if (p->in.end - p->in.first < sizeof(f))
            break;
        memcpy(&f, p->in.bytes + p->in.first, sizeof(f));
        p->in.first += sizeof(f);
        read_frame(p, &f);
    }
    memmove(p->in.bytes, p->in.bytes + p->in.first, p->in.end - p->in.first);
    p->in.end -= p->in.first;
    p->in.first = 0;
}

/* Behind the last byte of the body comes what the buffer is for, in one call. Return: as recvmsg.
 */
static ssize_t read_once(struct tcp_peer *p, uint64_t *ret_body)
{
    struct iovec iov[PARTS_AT_ONCE];
    int n = p->in.left ? describe(p, iov, PARTS_AT_ONCE - 1) : 0;
    struct msghdr h = { .msg_iov = iov };

    *ret_body = p->in.left;
    if (p->in.left && n == 0)
        return recv(p->fd, NULL, p->in.left, MSG_DONTWAIT | MSG_TRUNC);
    *ret_body = iov_bytes(iov, n);
    if (*ret_body == p->in.left)
        iov[n++] = (struct iovec){ p->in.bytes + p->in.end, sizeof(p->in.bytes) - p->in.end };
    h.msg_iovlen = (size_t)n;
    return recvmsg(p->fd, &h, MSG_DONTWAIT);
}

/* Return: bytes read; 0: there is nothing, or the peer has failed. */
static uint64_t read_some(struct tcp_peer *p)
{
    uint64_t body;
    const ssize_t n = read_once(p, &body);

    if (n < 0 && errno == EFAULT && p->in.body == BODY_MESSAGE) {
        tcp_message_finish(p->in.message, -EFAULT);
        take_nothing(p);
        return 1;
    }
    if (n < 0 && errno == EINTR)
        return 1;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            tcp_peer_fail(p, n == 0 ? ECONNRESET : errno);
        return 0;
    }
    body = MIN(body, (uint64_t)n);
    p->in.end += (uint32_t)((uint64_t)n - body);
    if (body)
        body_advance(p, body);
    consume(p);
    return (uint64_t)n;
}

void tcp_read(struct tcp_peer *p)
{
    uint64_t bytes = 0;

    while (!p->failure && bytes < TURN_BYTES) {
        const uint64_t n = read_some(p);

        if (n == 0)
            return;
        bytes += n;
    }
    tcp_peer_activate(p);
}
