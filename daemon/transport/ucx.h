/*
 * The inside of the row "ucx": ucx.c makes transports and peers and keeps them moving, ucx_send.c
 * lets messages go, ucx_receive.c matches what comes with who asks for it.
 *
 * A message travels as one active message. Small ones go at once and may wait in the receiver's
 * memory, each peer for at most EAGER_WINDOW bytes; what is larger, or would not fit there, stays
 * with its sender until the receiver asks (UCX's rendezvous).
 */
#ifndef DAEMON_TRANSPORT_UCX_H
#define DAEMON_TRANSPORT_UCX_H

#include <ucp/api/ucp.h>

#include "daemon/transport/channels.h"

#define MESSAGE_BUCKETS 256u

#define EAGER_BYTES_MAX (32u << 10) /* of one message; at 64K rendezvous costs less */
#define EAGER_OVERHEAD  256u        /* what a message counts for besides its bytes */
#define EAGER_WINDOW    (4u << 20)  /* what one peer may have waiting with us */

struct ucx_transport {
    struct transport base;
    ucp_context_h context;
    int epoll;          /* of every connected peer's worker */
    struct list active; // ucx_peer::active: to be progressed before anybody sleeps
    struct channel_table channels;
    char settings[64], description[128];
    bool gpus;         /* UCX knows memory of GPUs */
    int family;        /* of the addresses that its ports open at */
    uint16_t ports[2]; /* first and last; 0: any */
};

/* A worker of its own for each: UCX does not survive two endpoints between the same two. */
struct ucx_peer {
    struct transport_peer base;
    ucp_worker_h worker;
    ucp_ep_h endpoint; /* NULL until connected */
    ucp_address_t *address;
    size_t address_bytes;
    int fd;             /* the worker's */
    struct list active; // ucx_transport::active
    uint32_t nrequests; /* that UCX has not ended */

    int failure; /* errno; nothing is sent or taken any more */
    bool told;   /* `failed` has run */
    void (*failed)(void *owner, int err);
    void *owner;

    /* Eager bytes with their overhead, since the start */
    uint64_t sent, sent_taken;  /* ours; what the peer has said that it took of them */
    uint64_t taken, taken_told; /* theirs; what we have said */
    uint64_t waiting;           /* theirs, in our memory now */
    bool is_telling;            /* a request reads taken_told */

    /* message::link */
    struct list posted[MESSAGE_BUCKETS];  /* receives whose message has not come */
    struct list arrived[MESSAGE_BUCKETS]; /* messages that nobody has asked for */
    struct list running;                  /* with UCX */
    struct list finished;                 /* done() is due */
};

static inline struct ucx_transport *ucx_transport(struct transport *t)
{
    return container_of(t, struct ucx_transport, base);
}

static inline struct ucx_peer *ucx_peer(struct transport_peer *p)
{
    return container_of(p, struct ucx_peer, base);
}

static inline void ucx_peer_activate(struct ucx_peer *p)
{
    list_remove(&p->active);
    list_append(&ucx_transport(p->base.transport)->active, &p->active);
}

/* From poll() on, the owner hears of it. The first failure counts. */
void ucx_peer_fail(struct ucx_peer *p, int err);

/* The one place where UCX's codes become errno values. UCS_OK is 0. */
int ucx_errno(ucs_status_t status);

extern const struct transport_ops transport_ucx;

/* What of the table of operations is about messages. */
int ucx_channel_open(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                     struct channel **ret);
void ucx_channel_close(struct channel *c);
void ucx_channel_forget(struct channel *c, uint64_t sequence);
int ucx_send(struct channel *c, struct transport_peer *p, struct transfer *t);
int ucx_recv(struct channel *c, struct transport_peer *p, struct transfer *t);
void ucx_cancel(struct transfer *t);

/* Sets up a worker to take messages for `p`. */
ucs_status_t ucx_receive_start(struct ucx_peer *p);
/* Tells the other end how much of its eager bytes is taken, once that is worth a message. */
void ucx_send_credit(struct ucx_peer *p);
/* Runs done() of what has finished. */
void ucx_message_finish_due(struct ucx_peer *p);
/* Lets go of what has arrived; the endpoint is still there. */
void ucx_receive_drop(struct ucx_peer *p);
/* done(-ECONNRESET) for all that is left; UCX touches nothing of it any more. */
void ucx_message_abandon(struct ucx_peer *p);

#endif
