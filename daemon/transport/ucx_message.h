/*
 * One message of the row "ucx", on its way out or in: what ucx_send.c and ucx_receive.c share.
 */
#ifndef DAEMON_TRANSPORT_UCX_MESSAGE_H
#define DAEMON_TRANSPORT_UCX_MESSAGE_H

#include "daemon/transport/ucx.h"

/* UCX's active messages, by number */
enum {
    WIRE_DATA,     /* a message */
    WIRE_WITHDRAW, /* its sender has lost interest in one that may be waiting for a receive */
    WIRE_CREDIT,   /* a uint64_t: what has been taken of the other end's eager bytes so far */
};

/* In front of WIRE_DATA and WIRE_WITHDRAW. Neither aligned nor, in hostile hands, of this length:
 * copied out before use. */
struct wire_header {
    uint8_t key[TRANSPORT_KEY_BYTES];
    uint64_t sequence, unit;
    uint32_t tag, zero;
};

enum message_state {
    MESSAGE_POSTED,
    MESSAGE_ARRIVED,
    MESSAGE_RUNNING,
    MESSAGE_FINISHED,
};

/* A transfer as this row sees it, or what has come before there was one. */
struct message {
    struct list link;       // ucx_peer::posted, arrived, running or finished
    struct list of_channel; // channel_entry::arrived
    struct ucx_peer *peer;
    struct transfer *transfer; /* NULL: arrived, and nobody has asked */
    enum message_state state;
    int r;              /* once finished */
    unsigned nholders;  /* the transfer or the arrival; a withdrawal under way */
    bool withdrawn;     /* outgoing */
    bool is_rendezvous; /* arrived */
    void *data;         /* arrived: our copy, or UCX's descriptor of a rendezvous */
    uint64_t bytes;
    struct channel_entry *channel;
    struct wire_header header;
};

/* What an eager message takes of the window; both ends count alike. */
static inline uint64_t eager_charge(uint64_t bytes)
{
    return bytes + EAGER_OVERHEAD;
}

/* Held once. NULL: no memory. */
struct message *message_new(struct ucx_peer *p, struct channel_entry *c);
void message_unref(struct message *m);
/* The message of a transfer, which is not yet in any list. Says in the transfer where it is. */
struct message *message_of(struct channel *c, struct transport_peer *p, struct transfer *t,
                           bool outgoing);

/* UCX has it now. */
void message_run(struct message *m);
/* done() is due, in the next poll(). */
void message_finish(struct message *m, int r);
/* done() now; the message may be gone afterwards. */
void message_done(struct message *m, int r);
/* What every callback of UCX does about a message's own request. */
void message_request_ended(struct message *m, void *request, ucs_status_t status);

/* The transfer's bytes as UCX wants them: one buffer or a list. Returns the count that goes with
 * it. */
size_t message_describe(const struct message *m, ucp_request_param_t *param, void **ret);

#endif
