/* The row "tcp": messages and channels. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tcp_message *tcp_message_new(struct tcp_peer *p, struct channel_entry *c,
                                    const struct frame *name, enum message_state state)
{
    struct tcp_message *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->peer = p;
    m->channel = c;
    m->name = *name;
    m->name.kind = 0;
    m->state = state;
    list_init(&m->link);
    list_init(&m->of_channel);
    return m;
}

void tcp_message_free(struct tcp_message *m)
{
    list_remove(&m->link);
    list_remove(&m->of_channel);
    free(m->data);
    free(m);
}

struct tcp_message *tcp_message_of(struct channel *c, struct transport_peer *p, struct transfer *t,
                                   bool outgoing, enum message_state state)
{
    struct frame name = {
        .tag = t->name.tag, .sequence = t->name.sequence, .unit = t->name.unit, .bytes = t->bytes
    };
    struct tcp_message *m;

    memcpy(name.key, c->key, TRANSPORT_KEY_BYTES);
    m = tcp_message_new(tcp_peer(p), channel_entry(c), &name, state);
    if (!m)
        return NULL;
    t->channel = c;
    t->peer = p;
    t->outgoing = outgoing;
    t->private = m;
    m->transfer = t;
    return m;
}

void tcp_message_free_ask(struct tcp_message *m)
{
    m->peer->nasks--;
    tcp_message_free(m);
}

/* ---- finding */

bool tcp_message_is(const struct tcp_message *m, const struct frame *name)
{
    return m->name.sequence == name->sequence && m->name.unit == name->unit &&
           m->name.tag == name->tag && !memcmp(m->name.key, name->key, TRANSPORT_KEY_BYTES);
}

/* Keys are random, names count up. */
static struct list *bucket_of(struct tcp_peer *p, const struct frame *f)
{
    const uint64_t mixed = (f->sequence * 31 + f->unit) * 31 + f->tag + f->key[0];

    return &p->known[(mixed * 0x9e3779b97f4a7c15ull >> 32) % MESSAGE_BUCKETS];
}

void tcp_message_know(struct tcp_message *m)
{
    list_append(bucket_of(m->peer, &m->name), &m->link);
}

struct tcp_message *tcp_message_find(struct tcp_peer *p, const struct frame *name,
                                     enum message_state state)
{
    struct tcp_message *m;

    list_for_each(m, bucket_of(p, name), link)
        if (m->state == state && tcp_message_is(m, name))
            return m;
    return NULL;
}

/* ---- bytes */

int tcp_message_parts(const struct tcp_message *m, uint64_t bytes, struct iovec *ret, int room)
{
    const struct transfer *t = m->transfer;
    uint64_t skip = m->moved;
    int n = 0;

    for (uint32_t i = 0; i < t->nparts && n < room && bytes; i++) {
        const struct iovec *part = &t->parts[i];
        uint64_t len;

        if (skip >= part->iov_len) {
            skip -= part->iov_len;
            continue;
        }
        len = MIN(part->iov_len - skip, bytes);
        ret[n++] = (struct iovec){ .iov_base = (uint8_t *)part->iov_base + skip, .iov_len = len };
        bytes -= len;
        skip = 0;
    }
    return n;
}

/* ---- ends */

void tcp_message_finish(struct tcp_message *m, int r)
{
    m->state = MESSAGE_FINISHED;
    m->r = r;
    list_remove(&m->link);
    list_append(&m->peer->finished, &m->link);
    tcp_peer_activate(m->peer);
}

static void message_done(struct tcp_message *m, int r)
{
    struct transfer *t = m->transfer;

    tcp_message_free(m);
    t->private = NULL;
    t->done(t, r);
}

void tcp_message_finish_due(struct tcp_peer *p)
{
    while (!list_empty(&p->finished)) {
        struct tcp_message *m = list_first(&p->finished, struct tcp_message, link);

        message_done(m, m->r);
    }
}

void tcp_cancel(struct transfer *t)
{
    struct tcp_message *m = t->private;

    if (!m)
        return;
    switch (m->state) {
    case MESSAGE_POSTED:
        tcp_receive_forsake(m);
        break;
    case MESSAGE_OFFERED:
        tcp_send_note(m->peer, &m->name, FRAME_WITHDRAW, 0);
        break;
    case MESSAGE_LEAVING:
        tcp_send_forsake(m);
        break;
    default: /* finished: it was too late */
        return;
    }
    message_done(m, -ECANCELED);
}

/* ---- channels */

int tcp_channel_open(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                     struct channel **ret)
{
    return channels_open(&tcp_transport(t)->channels, t, key, ret);
}

/* What has been asked for, and will never be sent any more. */
static void forget_asks(struct tcp_peer *p, const uint8_t *key, uint64_t sequence)
{
    struct tcp_message *m, *tmp;

    list_for_each_safe(m, tmp, &p->asks, of_channel)
        if (m->name.sequence <= sequence && !memcmp(m->name.key, key, TRANSPORT_KEY_BYTES))
            tcp_message_free_ask(m);
}

void tcp_channel_forget(struct channel *channel, uint64_t sequence)
{
    struct channel_entry *c = channel_entry(channel);
    struct tcp_message *m, *tmp;
    struct tcp_peer *p;

    c->forgotten = MAX(c->forgotten, sequence);
    list_for_each_safe(m, tmp, &c->arrived, of_channel)
        if (m->name.sequence <= sequence)
            tcp_arrival_drop(m);
    list_for_each(p, &tcp_transport(channel->transport)->peers, link)
        forget_asks(p, channel->key, sequence);
}

void tcp_channel_close(struct channel *channel)
{
    tcp_channel_forget(channel, UINT64_MAX);
    channels_close(channel_entry(channel));
}
