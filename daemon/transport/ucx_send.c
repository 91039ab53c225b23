/* The row "ucx": what leaves. */
#include "daemon/transport/ucx_message.h"

#include <errno.h>

static void send_ended(void *request, ucs_status_t status, void *owner)
{
    message_request_ended(owner, request, status);
}

static bool goes_eager(const struct ucx_peer *p, uint64_t bytes)
{
    return bytes <= EAGER_BYTES_MAX &&
           p->sent - p->sent_taken + eager_charge(bytes) <= EAGER_WINDOW;
}

static ucs_status_ptr_t submit_send(struct message *m)
{
    struct ucx_peer *p = m->peer;
    const struct transfer *t = m->transfer;
    const bool eager = goes_eager(p, t->bytes);
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV,
        .cb.send = send_ended,
        .user_data = m,
    };
    void *buffer;
    const size_t count = message_describe(m, &param, &buffer);

    if (eager)
        p->sent += eager_charge(t->bytes);
    return ucp_am_send_nbx(p->endpoint, WIRE_DATA, &m->header, sizeof(m->header), buffer, count,
                           &param);
}

/* A message from row to row: `header` stays until `ended` has run. That it cannot be sent says that
 * the peer is lost, which is found anyway. */
static ucs_status_ptr_t send_control(struct ucx_peer *p, unsigned id, const void *header,
                                     size_t bytes, ucp_send_nbx_callback_t ended, void *owner)
{
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_EAGER,
        .cb.send = ended,
        .user_data = owner,
    };
    ucs_status_ptr_t request = ucp_am_send_nbx(p->endpoint, id, header, bytes, NULL, 0, &param);

    ucx_peer_activate(p);
    p->nrequests += UCS_PTR_IS_PTR(request);
    return request;
}

int ucx_send(struct channel *channel, struct transport_peer *peer, struct transfer *t)
{
    struct ucx_peer *p = ucx_peer(peer);
    struct message *m;
    ucs_status_ptr_t request;

    if (p->failure)
        return -ECONNRESET;
    if (!p->endpoint)
        return -ENOTCONN;
    m = message_of(channel, peer, t, true);
    if (!m)
        return -ENOMEM;
    request = submit_send(m);
    ucx_peer_activate(p);
    if (UCS_PTR_IS_PTR(request)) {
        p->nrequests++;
        message_run(m);
        return TRANSPORT_PENDING;
    }
    message_unref(m);
    return -ucx_errno(UCS_PTR_STATUS(request));
}

static void withdrawal_ended(void *request, ucs_status_t status, void *owner)
{
    struct message *m = owner;

    (void)status;
    ucp_request_free(request);
    m->peer->nrequests--;
    message_unref(m);
}

/* A rendezvous that waits at the other end for a receive is let go there, and so ends here. */
static void withdraw(struct message *m)
{
    struct ucx_peer *p = m->peer;
    ucs_status_ptr_t request;

    m->withdrawn = true;
    if (p->failure)
        return;
    request = send_control(p, WIRE_WITHDRAW, &m->header, sizeof(m->header), withdrawal_ended, m);
    if (UCS_PTR_IS_PTR(request))
        m->nholders++;
}

void ucx_cancel(struct transfer *t)
{
    struct message *m = t->private;

    if (m->state == MESSAGE_POSTED)
        message_done(m, -ECANCELED);
    else if (m->state == MESSAGE_RUNNING && t->outgoing && !m->withdrawn)
        withdraw(m);
}

static void credit_ended(void *request, ucs_status_t status, void *owner)
{
    struct ucx_peer *p = owner;

    (void)status;
    ucp_request_free(request);
    p->nrequests--;
    p->is_telling = false;
}

void ucx_send_credit(struct ucx_peer *p)
{
    ucs_status_ptr_t request;

    if (p->failure || p->is_telling || p->taken - p->taken_told < EAGER_WINDOW / 4)
        return;
    p->taken_told = p->taken;
    request = send_control(p, WIRE_CREDIT, &p->taken_told, sizeof(p->taken_told), credit_ended, p);
    p->is_telling = UCS_PTR_IS_PTR(request);
}
