/*
 * Transports: how tensors' bytes reach another daemon. A row per network; exec knows nothing else.
 * Loop thread only; nothing blocks.
 *
 * A peer is the payload connection with one other daemon. It belongs to the control link with that
 * daemon: made when the link comes up, from addresses that the link carries, gone when the link is.
 * A channel is one communicator's messages, whoever they come from: what comes for a channel that
 * is not open is dropped, and its sender none the wiser.
 */
#ifndef DAEMON_TRANSPORT_TRANSPORT_H
#define DAEMON_TRANSPORT_TRANSPORT_H

#include <sys/uio.h>

#include "shared/base.h"
#include "shared/error.h"
#include "shared/list.h"

#define TRANSPORT_KEY_BYTES   16u
#define TRANSPORT_ADDRESS_MAX 1024u /* bytes of a peer's address */

struct transport;
struct transport_peer;
struct channel;

/* Sequences of operations of two ranks begin here: they end in any order. */
#define TRANSPORT_PAIRS (1ull << 63)

/* Which message it is: unique for a channel, a peer and a direction while anything of it is there.
 */
struct message_name {
    uint64_t sequence; /* of the operation, from 1 on */
    uint64_t unit;     /* chunk, or part of a round */
    uint32_t tag;      /* of the step */
};

/*
 * One message on its way out or in. Owned by who submits it, and untouched by them, until done()
 * has run. The bytes are those of `parts`, one behind the other; both ends say the same number of
 * bytes.
 */
struct transfer {
    struct message_name name;
    const struct iovec *parts;
    uint32_t nparts;
    uint64_t bytes; /* of all parts; 0 is allowed */
    bool gpu;       /* all parts are memory of GPUs; see transport_ops::gpu_bytes_min */

    /* Once, from transport_poll() or transport_peer_free() or channel_cancel(), never from the call
     * that submits it. r: 0; -ECANCELED; -ECONNRESET, the peer is gone; -EMSGSIZE, the other end
     * said another number of bytes; or another errno. May submit and cancel transfers, and must not
     * free the transfer's peer. */
    void (*done)(struct transfer *t, int r);
    void *owner;

    struct list link;            // the row's own, while it holds the transfer
    void *private;               /* likewise */
    struct channel *channel;     /* likewise */
    struct transport_peer *peer; /* likewise */
    bool outgoing;               /* likewise */
};

/* Conditions of send and recv */
#define TRANSPORT_PENDING 1 /* taken; done() will run */

#define TRANSPORT_NO_GPUS UINT64_MAX

struct transport_config {
    const char *devices; /* network devices to use, in the row's own words; "": the row's choice */
    const char *address; /* numeric address that other nodes reach this one at */
    const char *ports;   /* "41000-41100"; "": any */
};

/* What every row honestly does. No slot is NULL. */
struct transport_ops {
    const char *name;
    bool in_process; /* reaches no other process: for tests */

    int (*open)(const struct transport_config *config, struct transport **ret, struct error *e);
    void (*close)(struct transport *t); /* no peer and no channel may be left */

    /* What both ends have to have in common, as text: compared when peers are made. */
    const char *(*settings)(const struct transport *t);
    /* For people: "tcp eth0". */
    const char *(*describe)(const struct transport *t);
    /* The least bytes of a message that the row takes from, and brings to, memory of GPUs by
     * itself, where both ends may ask for it or one alone. TRANSPORT_NO_GPUS: none. */
    uint64_t (*gpu_bytes_min)(const struct transport *t);

    /* This end, whose address (at most TRANSPORT_ADDRESS_MAX bytes) is for the other daemon. */
    int (*peer_new)(struct transport *t, struct transport_peer **ret, struct error *e);
    const void *(*peer_address)(const struct transport_peer *p, size_t *ret_len);
    /* Joins it with the other end. `address` came over an authenticated link. Once. */
    int (*peer_connect)(struct transport_peer *p, const void *address, size_t len, struct error *e);
    /* At once, whatever the other side does: what is pending on it is done with -ECONNRESET before
     * this returns. */
    void (*peer_free)(struct transport_peer *p);
    /* Set once when the row itself finds the peer gone; `failed` may free it, later, not within. */
    void (*peer_watch)(struct transport_peer *p, void (*failed)(void *owner, int err), void *owner);

    int (*channel_open)(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                        struct channel **ret);
    /* None of its transfers may be pending. */
    void (*channel_close)(struct channel *c);
    /* Messages with sequences up to this one concern nobody any more: what has come and waits is
     * dropped, as is what still comes. Those from TRANSPORT_PAIRS on are not counted among them. */
    void (*channel_forget)(struct channel *c, uint64_t sequence);

    /*
     * Return: 0 done (done() does not run), TRANSPORT_PENDING, or -errno (done() does not run
     * either). A send's memory may be read, a receive's written, until it is done. A receive may be
     * submitted before or after its message has come.
     */
    int (*send)(struct channel *c, struct transport_peer *p, struct transfer *t);
    int (*recv)(struct channel *c, struct transport_peer *p, struct transfer *t);
    /* Asks that a transfer end soon, if it is pending, with -ECANCELED unless it was too late;
     * done() runs from here or later. The message of a receive whose bytes were coming is lost. */
    void (*cancel)(struct transfer *t);

    /* Moves what can be moved, and runs done(). Bounded; call again while wants_turn(). */
    void (*poll)(struct transport *t);
    /* Whether poll() is to be called again soon whatever the descriptor says. */
    bool (*wants_turn)(struct transport *t);
    /* Readable when poll() has something to do, level-triggered, once wants_turn() said no. */
    int (*fd)(const struct transport *t);
};

/* Base of every transport, peer and channel: the first member of the row's own struct. */
struct transport {
    const struct transport_ops *ops;
};

struct transport_peer {
    struct transport *transport;
};

struct channel {
    struct transport *transport;
    uint8_t key[TRANSPORT_KEY_BYTES];
};

/* Every row there is, NULL at the end. */
extern const struct transport_ops *const transport_rows[];

/* Whether `name` is a row's, or "auto". Return: 0, or -code worded in `e`. */
int transport_check(const char *name, struct error *e);

/* The row called `name`; "auto": the first that reaches other processes and opens. Return: 0, or
 * -code worded in `e`. */
int transport_open(const char *name, const struct transport_config *config, struct transport **ret,
                   struct error *e);

static inline uint64_t transport_gpu_bytes_min(const struct transport *t)
{
    return t->ops->gpu_bytes_min(t);
}

static inline int channel_send(struct channel *c, struct transport_peer *p, struct transfer *t)
{
    return c->transport->ops->send(c, p, t);
}

static inline int channel_recv(struct channel *c, struct transport_peer *p, struct transfer *t)
{
    return c->transport->ops->recv(c, p, t);
}

static inline void transfer_cancel(struct transfer *t)
{
    t->channel->transport->ops->cancel(t);
}

#endif
