#include "daemon/transport/ucx_message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct message *message_new(struct ucx_peer *p, struct channel_entry *c)
{
    struct message *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    m->nholders = 1;
    m->peer = p;
    m->channel = c;
    list_init(&m->link);
    list_init(&m->of_channel);
    return m;
}

void message_unref(struct message *m)
{
    if (--m->nholders == 0)
        free(m);
}

struct message *message_of(struct channel *c, struct transport_peer *p, struct transfer *t,
                           bool outgoing)
{
    struct message *m = message_new(ucx_peer(p), channel_entry(c));

    if (!m)
        return NULL;
    t->channel = c;
    t->peer = p;
    t->outgoing = outgoing;
    t->private = NULL;
    memcpy(m->header.key, c->key, TRANSPORT_KEY_BYTES);
    m->header.sequence = t->name.sequence;
    m->header.unit = t->name.unit;
    m->header.tag = t->name.tag;
    m->bytes = t->bytes;
    m->transfer = t;
    return m;
}

void message_run(struct message *m)
{
    m->state = MESSAGE_RUNNING;
    m->transfer->private = m;
    list_append(&m->peer->running, &m->link);
}

void message_finish(struct message *m, int r)
{
    m->state = MESSAGE_FINISHED;
    m->r = r;
    list_remove(&m->link);
    list_append(&m->peer->finished, &m->link);
    ucx_peer_activate(m->peer);
}

void message_done(struct message *m, int r)
{
    struct transfer *t = m->transfer;

    list_remove(&m->link);
    t->private = NULL;
    message_unref(m);
    t->done(t, r);
}

void message_request_ended(struct message *m, void *request, ucs_status_t status)
{
    ucp_request_free(request);
    m->peer->nrequests--;
    if (status == UCS_OK && m->withdrawn)
        message_finish(m, -ECANCELED);
    else
        message_finish(m, -ucx_errno(status));
}

_Static_assert(sizeof(struct iovec) == sizeof(ucp_dt_iov_t) &&
                   offsetof(struct iovec, iov_base) == offsetof(ucp_dt_iov_t, buffer) &&
                   offsetof(struct iovec, iov_len) == offsetof(ucp_dt_iov_t, length),
               "an array of the one is an array of the other");

size_t message_describe(const struct message *m, ucp_request_param_t *param, void **ret)
{
    const struct transfer *t = m->transfer;

    param->op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
    param->memory_type = t->gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST;
    if (t->nparts > 1) {
        param->datatype = ucp_dt_make_iov();
        *ret = (void *)t->parts;
        return t->nparts;
    }
    param->datatype = ucp_dt_make_contig(1);
    *ret = t->nparts ? t->parts[0].iov_base : NULL;
    return t->bytes;
}

void ucx_message_finish_due(struct ucx_peer *p)
{
    while (!list_empty(&p->finished)) {
        struct message *m = list_first(&p->finished, struct message, link);

        message_done(m, m->r);
    }
}

static void abandon(struct list *l)
{
    while (!list_empty(l))
        message_done(list_first(l, struct message, link), -ECONNRESET);
}

void ucx_message_abandon(struct ucx_peer *p)
{
    abandon(&p->running);
    for (size_t i = 0; i < MESSAGE_BUCKETS; i++)
        abandon(&p->posted[i]);
}
