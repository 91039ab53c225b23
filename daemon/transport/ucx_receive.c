/* The row "ucx": what comes, and whose it is. */
#include "daemon/transport/ucx_message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Keys are random, names count up. */
static size_t message_bucket(const struct wire_header *h)
{
    const uint64_t mixed = (h->sequence * 31 + h->unit) * 31 + h->tag + h->key[0];

    return (mixed * 0x9e3779b97f4a7c15ull >> 32) % MESSAGE_BUCKETS;
}

static struct message *find_message(struct list *bucket, const struct channel_entry *c,
                                    const struct wire_header *h)
{
    struct message *m;

    list_for_each(m, bucket, link)
        if (m->channel == c && m->header.sequence == h->sequence && m->header.unit == h->unit &&
            m->header.tag == h->tag)
            return m;
    return NULL;
}

/* Nobody honest sends so much eagerly. */
static bool may_scatter(const struct transfer *t)
{
    return !t->gpu;
}

static void scatter(const struct transfer *t, const uint8_t *data)
{
    for (uint32_t i = 0; i < t->nparts; i++) {
        if (t->parts[i].iov_len)
            memcpy(t->parts[i].iov_base, data, t->parts[i].iov_len);
        data += t->parts[i].iov_len;
    }
}

static void receive_ended(void *request, ucs_status_t status, size_t length, void *owner)
{
    (void)length;
    message_request_ended(owner, request, status);
}

static void arrival_detach(struct message *m)
{
    const uint64_t charge = eager_charge(m->bytes);

    list_remove(&m->link);
    list_remove(&m->of_channel);
    if (m->is_rendezvous)
        return;
    m->peer->waiting -= charge;
    m->peer->taken += charge;
}

static void arrival_drop(struct message *m)
{
    if (m->is_rendezvous)
        ucp_am_data_release(m->peer->worker, m->data); /* the sender hears that it is done */
    else
        free(m->data);
    message_unref(m);
}

/* Return: 0 done, TRANSPORT_PENDING, or -errno. */
static int receive_rendezvous(struct message *m, void *descriptor)
{
    struct ucx_peer *p = m->peer;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = receive_ended,
        .user_data = m,
    };
    void *buffer;
    const size_t count = message_describe(m, &param, &buffer);
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(p->worker, descriptor, buffer, count, &param);

    ucx_peer_activate(p);
    if (!UCS_PTR_IS_PTR(request))
        return -ucx_errno(UCS_PTR_STATUS(request));
    p->nrequests++;
    list_remove(&m->link);
    message_run(m);
    return TRANSPORT_PENDING;
}

static int take_arrival(struct message *m, struct transfer *t)
{
    int r = 0;

    arrival_detach(m);
    ucx_peer_activate(m->peer);
    if (m->bytes != t->bytes) {
        arrival_drop(m);
        return -EMSGSIZE;
    }
    m->transfer = t;
    if (m->is_rendezvous) {
        r = receive_rendezvous(m, m->data);
    } else if (!may_scatter(t)) {
        free(m->data);
        r = -EPROTO;
    } else {
        scatter(t, m->data);
        free(m->data);
    }
    if (r <= 0)
        message_unref(m);
    return r;
}

int ucx_recv(struct channel *channel, struct transport_peer *peer, struct transfer *t)
{
    struct channel_entry *c = channel_entry(channel);
    struct ucx_peer *p = ucx_peer(peer);
    struct message *m, *arrival;

    if (p->failure)
        return -ECONNRESET;
    m = message_of(channel, peer, t, false);
    if (!m)
        return -ENOMEM;
    arrival = find_message(&p->arrived[message_bucket(&m->header)], c, &m->header);
    if (arrival) {
        message_unref(m);
        return take_arrival(arrival, t);
    }
    m->state = MESSAGE_POSTED;
    t->private = m;
    list_append(&p->posted[message_bucket(&m->header)], &m->link);
    return TRANSPORT_PENDING;
}

/* What UCX calls. done() runs later: it may submit, and here UCX is in the middle of things. */

static bool read_header(void *to, size_t bytes, const void *from, size_t from_bytes)
{
    if (from_bytes != bytes)
        return false;
    memcpy(to, from, bytes);
    return true;
}

/* Returns what a handler of UCX returns: UCS_OK, "dropped or copied", UCS_INPROGRESS, "kept". */
static ucs_status_t deliver(struct message *m, void *data, size_t bytes, bool is_rendezvous)
{
    int r;

    if (bytes != m->transfer->bytes) {
        message_finish(m, -EMSGSIZE);
        return UCS_OK;
    }
    if (!is_rendezvous && !may_scatter(m->transfer)) {
        message_finish(m, -EPROTO);
        return UCS_OK;
    }
    if (!is_rendezvous) {
        scatter(m->transfer, data);
        message_finish(m, 0);
        return UCS_OK;
    }
    r = receive_rendezvous(m, data);
    if (r != TRANSPORT_PENDING)
        message_finish(m, r);
    return r < 0 ? UCS_OK : UCS_INPROGRESS;
}

static ucs_status_t keep(struct ucx_peer *p, struct channel_entry *c, const struct wire_header *h,
                         void *data, size_t bytes, bool is_rendezvous)
{
    const uint64_t charge = is_rendezvous ? 0 : eager_charge(bytes);
    struct message *m = NULL;
    void *copy = NULL;

    if (p->waiting + charge > EAGER_WINDOW) {
        ucx_peer_fail(p, ENOBUFS);
        return UCS_OK;
    }
    if (!is_rendezvous)
        copy = malloc(bytes ? bytes : 1);
    if (is_rendezvous || copy)
        m = message_new(p, c);
    if (!m) {
        free(copy);
        ucx_peer_fail(p, ENOMEM);
        return UCS_OK;
    }
    if (copy && bytes)
        memcpy(copy, data, bytes);
    m->state = MESSAGE_ARRIVED;
    m->header = *h;
    m->bytes = bytes;
    m->is_rendezvous = is_rendezvous;
    m->data = is_rendezvous ? data : copy;
    p->waiting += charge;
    list_append(&p->arrived[message_bucket(h)], &m->link);
    list_append(&c->arrived, &m->of_channel);
    return is_rendezvous ? UCS_INPROGRESS : UCS_OK;
}

static ucs_status_t take_data(void *arg, const void *header, size_t header_bytes, void *data,
                              size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_peer *p = arg;
    const bool is_rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    struct wire_header h;
    struct channel_entry *c;
    struct message *m;

    if (p->failure || !read_header(&h, sizeof(h), header, header_bytes))
        return UCS_OK;
    c = channels_find_wanted(&ucx_transport(p->base.transport)->channels, h.key, h.sequence);
    m = c ? find_message(&p->posted[message_bucket(&h)], c, &h) : NULL;
    if (c && !m)
        return keep(p, c, &h, data, bytes, is_rendezvous);
    if (!is_rendezvous)
        p->taken += eager_charge(bytes);
    return m ? deliver(m, data, bytes, is_rendezvous) : UCS_OK;
}

static ucs_status_t take_withdrawal(void *arg, const void *header, size_t header_bytes, void *data,
                                    size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_peer *p = arg;
    struct wire_header h;
    struct channel_entry *c;
    struct message *m;

    (void)data;
    (void)bytes;
    (void)param;
    if (p->failure || !read_header(&h, sizeof(h), header, header_bytes))
        return UCS_OK;
    c = channels_find(&ucx_transport(p->base.transport)->channels, h.key);
    m = c ? find_message(&p->arrived[message_bucket(&h)], c, &h) : NULL;
    if (m) {
        arrival_detach(m);
        arrival_drop(m);
    }
    return UCS_OK;
}

static ucs_status_t take_credit(void *arg, const void *header, size_t header_bytes, void *data,
                                size_t bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_peer *p = arg;
    uint64_t taken;

    (void)data;
    (void)bytes;
    (void)param;
    if (read_header(&taken, sizeof(taken), header, header_bytes) && taken <= p->sent)
        p->sent_taken = MAX(p->sent_taken, taken);
    return UCS_OK;
}

ucs_status_t ucx_receive_start(struct ucx_peer *p)
{
    static const ucp_am_recv_callback_t handlers[] = {
        [WIRE_DATA] = take_data,
        [WIRE_WITHDRAW] = take_withdrawal,
        [WIRE_CREDIT] = take_credit,
    };
    ucs_status_t status = UCS_OK;

    for (unsigned id = 0; status == UCS_OK && id < ARRAY_SIZE(handlers); id++) {
        const ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = handlers[id],
            .arg = p,
        };

        status = ucp_worker_set_am_recv_handler(p->worker, &param);
    }
    return status;
}

/* Channels, and the end of a peer */

int ucx_channel_open(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                     struct channel **ret)
{
    return channels_open(&ucx_transport(t)->channels, t, key, ret);
}

void ucx_channel_forget(struct channel *channel, uint64_t sequence)
{
    struct channel_entry *c = channel_entry(channel);
    struct message *m, *tmp;

    c->forgotten = MAX(c->forgotten, sequence);
    list_for_each_safe(m, tmp, &c->arrived, of_channel) {
        if (m->header.sequence > sequence)
            continue;
        ucx_peer_activate(m->peer);
        arrival_detach(m);
        arrival_drop(m);
    }
}

void ucx_channel_close(struct channel *channel)
{
    ucx_channel_forget(channel, UINT64_MAX);
    channels_close(channel_entry(channel));
}

void ucx_receive_drop(struct ucx_peer *p)
{
    for (size_t i = 0; i < MESSAGE_BUCKETS; i++) {
        while (!list_empty(&p->arrived[i])) {
            struct message *m = list_first(&p->arrived[i], struct message, link);

            arrival_detach(m);
            arrival_drop(m);
        }
    }
}
