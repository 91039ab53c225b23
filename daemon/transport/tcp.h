/*
 * The inside of the row "tcp": a connection for each peer, from the sender's memory to the
 * receiver's without a copy between. tcp.c makes transports and gives turns, tcp_meet.c brings two
 * ends together, tcp_send.c writes, tcp_receive.c reads and matches.
 *
 * Small messages go at once and may wait in the receiver's memory, each peer for at most
 * EAGER_WINDOW bytes. A larger one stays with its sender until the receiver asks for it, which it
 * does as soon as somebody wants it, not only once it has been offered. Its bytes then come in
 * parts, so that messages share the connection. Behind the bytes of a frame stands one more, which
 * says whether they are the message's: a send may be cancelled, or lose its memory, half-way.
 */
#ifndef DAEMON_TRANSPORT_TCP_H
#define DAEMON_TRANSPORT_TCP_H

#include <sys/socket.h>

#include "daemon/transport/channels.h"

#define TOKEN_BYTES     16u
#define MESSAGE_BUCKETS 256u
#define STRANGERS_MAX   32u

#define EAGER_BYTES_MAX (32u << 10) /* of one message */
#define EAGER_OVERHEAD  256u        /* what a message counts for besides its bytes */
#define EAGER_WINDOW    (4u << 20)  /* what one peer may have waiting with us */
#define PART_BYTES_MAX  (1u << 20)
#define TURN_BYTES      (256u << 10) /* one way; then it is the other's turn */
#define ASKS_MAX        (1u << 16)   /* of one peer, for messages that nobody has sent */
#define OFFERS_MAX      (1u << 16)   /* likewise, of messages that nobody has asked for */
#define NOTES_MAX       (1u << 17)   /* for one peer, who does not read them */
#define INPUT_BYTES     4096u

enum frame_kind {
    FRAME_DATA = 1, /* a whole message; its bytes follow */
    FRAME_OFFER,    /* one waits with its sender, ... */
    FRAME_WITHDRAW, /* ... and no longer */
    FRAME_ASK,      /* a receive awaits one, of more bytes than come unasked, ... */
    FRAME_UNASK,    /* ... and no longer */
    FRAME_DROP,     /* nobody will ask for the one that was offered */
    FRAME_PART,     /* some of the bytes of one that was asked for follow */
    FRAME_CREDIT,   /* what has been taken of the other end's eager bytes since the start */
};

/* In the byte order of both ends, which their settings() say. */
struct frame {
    uint32_t kind, tag;
    uint8_t key[TRANSPORT_KEY_BYTES];
    uint64_t sequence, unit;
    uint64_t bytes; /* of the message; FRAME_PART: of this part; FRAME_CREDIT: the number */
};

/* Behind the bytes of FRAME_DATA and FRAME_PART. */
enum verdict { VERDICT_VOID, VERDICT_WHOLE };
#define VERDICT_BYTES 1u

enum message_state {
    MESSAGE_POSTED,   /* a receive whose message has not come */
    MESSAGE_ARRIVED,  /* nobody has asked for it: its bytes, or that it was offered */
    MESSAGE_OFFERED,  /* a send that has not been asked for */
    MESSAGE_ASKED,    /* has been asked for before there was a send */
    MESSAGE_LEAVING,  /* a send on its way */
    MESSAGE_FINISHED, /* done() is due */
};

/* A transfer as this row sees it, or what has come before there was one. */
struct tcp_message {
    struct list link;       // tcp_peer::known, leaving or finished, by state
    struct list of_channel; // channel_entry::arrived; MESSAGE_ASKED: tcp_peer::asks
    struct tcp_peer *peer;
    struct channel_entry *channel; /* NULL: MESSAGE_ASKED, whose channel need not be open */
    struct transfer *transfer;     /* NULL: ARRIVED and ASKED */
    enum message_state state;
    struct frame name; /* kind 0 */
    uint64_t moved;    /* bytes written or read so far */
    int r;             /* once finished */
    bool asked;        /* POSTED: the other end knows */
    bool is_eager;     /* LEAVING: goes unasked, as a whole */
    uint8_t *data;     /* ARRIVED: its bytes, name.bytes of them; NULL: offered */
};

/* A frame without bytes on its way out. */
struct note {
    struct list link; // tcp_peer::notes
    struct frame frame;
};

/* What an event of epoll points to: the first thing of that name in its owner. */
enum watched { WATCHED_PORT, WATCHED_STRANGER, WATCHED_PEER };

struct tcp_transport {
    struct transport base;
    enum watched watched;
    int epoll, listener;
    int spare; /* makes room for somebody who is sent away for want of descriptors */
    struct sockaddr_storage address; /* of the port */
    struct list peers;               // tcp_peer::link
    struct list active;              // tcp_peer::active: whose turn is due
    struct list strangers;           // stranger::link, oldest first
    unsigned nstrangers;
    struct channel_table channels;
    char settings[64], description[128];
};

/* Where the bytes behind the frame that was read last go. */
enum body { BODY_MESSAGE, BODY_ARRIVAL, BODY_NOBODY };

struct tcp_peer {
    struct transport_peer base;
    enum watched watched;
    struct list link;   // tcp_transport::peers
    struct list active; // tcp_transport::active
    int fd;             /* -1: not connected */
    bool up;            /* the other end has answered */
    bool dials;         /* and not: we were dialled */
    bool wants_out;     /* epoll tells when there is room */
    uint8_t token[TOKEN_BYTES], other[TOKEN_BYTES];
    bool knows_other; /* peer_connect() has run */
    void *card;       /* for the other end */

    int failure; /* errno; nothing is sent or taken any more */
    bool told;   /* `failed` has run */
    void (*failed)(void *owner, int err);
    void *owner;

    struct list known[MESSAGE_BUCKETS]; // tcp_message::link: POSTED, ARRIVED, OFFERED, ASKED
    struct list leaving;                // tcp_message::link
    struct list finished;               // tcp_message::link
    struct list notes;                  // note::link
    struct list asks;                   // tcp_message::of_channel: MESSAGE_ASKED
    uint32_t nnotes, nasks;
    uint32_t noffers; /* MESSAGE_ARRIVED, without bytes */

    /* Eager bytes with their overhead, since the start */
    uint64_t sent, sent_taken;  /* ours; what the peer has said that it took of them */
    uint64_t taken, taken_told; /* theirs; what we have said */
    uint64_t waiting;           /* theirs, in our memory now */

    struct { /* the frame that is being written */
        struct frame frame;
        uint32_t written; /* of it; sizeof(frame): its bytes are next */
        uint64_t left;    /* of its bytes and their verdict */
        uint8_t verdict;
        struct tcp_message *message; /* whose; NULL: cancelled, zeros go instead */
        bool busy;
    } out;

    struct { /* the frame that is being read */
        uint8_t bytes[INPUT_BYTES];
        uint32_t first, end; /* what of `bytes` has been read and not used */
        uint64_t left;       /* bytes behind the frame and their verdict, still to come */
        uint8_t verdict;
        enum body body;
        struct tcp_message *message;
    } in;
};

static inline struct tcp_transport *tcp_transport(const struct transport *t)
{
    return container_of((struct transport *)t, struct tcp_transport, base);
}

static inline struct tcp_peer *tcp_peer(const struct transport_peer *p)
{
    return container_of((struct transport_peer *)p, struct tcp_peer, base);
}

/* What an eager message takes of the window; both ends count alike. */
static inline uint64_t eager_charge(uint64_t bytes)
{
    return bytes + EAGER_OVERHEAD;
}

static inline uint64_t iov_bytes(const struct iovec *iov, int n)
{
    uint64_t bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

extern const struct transport_ops transport_tcp;

/* tcp.c */

/* A turn is due. */
void tcp_peer_activate(struct tcp_peer *p);
/* The owner hears of it in the next poll(). The first failure counts. */
void tcp_peer_fail(struct tcp_peer *p, int err);
/* Watches the connection, for room to write only where that is awaited. */
void tcp_peer_watch(struct tcp_peer *p, bool wants_out);

/* tcp_message.c */

/* In no list. NULL: no memory. */
struct tcp_message *tcp_message_new(struct tcp_peer *p, struct channel_entry *c,
                                    const struct frame *name, enum message_state state);
void tcp_message_free(struct tcp_message *m);
/* That of a transfer, which then says where it is. */
struct tcp_message *tcp_message_of(struct channel *c, struct transport_peer *p, struct transfer *t,
                                   bool outgoing, enum message_state state);
void tcp_message_know(struct tcp_message *m); /* enters it in tcp_peer::known */
/* One that is MESSAGE_ASKED is not any more. */
void tcp_message_free_ask(struct tcp_message *m);
/* Of those known; NULL: none. */
struct tcp_message *tcp_message_find(struct tcp_peer *p, const struct frame *name,
                                     enum message_state state);
bool tcp_message_is(const struct tcp_message *m, const struct frame *name);
/* done() is due, in the next poll(). */
void tcp_message_finish(struct tcp_message *m, int r);
/* Runs done() of what has finished. */
void tcp_message_finish_due(struct tcp_peer *p);
/* The parts of its transfer from byte `moved` on, at most `room` of them and `bytes` bytes. Returns
 * how many. */
int tcp_message_parts(const struct tcp_message *m, uint64_t bytes, struct iovec *ret, int room);

int tcp_channel_open(struct transport *t, const uint8_t key[TRANSPORT_KEY_BYTES],
                     struct channel **ret);
void tcp_channel_close(struct channel *c);
void tcp_channel_forget(struct channel *c, uint64_t sequence);
void tcp_cancel(struct transfer *t);

/* tcp_meet.c */

/* Opens the port. Return: 0, or -code worded in `e`. */
int tcp_listen(struct tcp_transport *t, const struct transport_config *config, int family,
               struct error *e);
void tcp_stop_listening(struct tcp_transport *t);
/* When epoll says so. */
void tcp_accept(struct tcp_transport *t);
void tcp_hear_stranger(struct tcp_transport *t, enum watched *stranger);
void tcp_meet_turn(struct tcp_peer *p); /* of a peer that is not up */
/* What the other end is to be told. Return: 0, or -code worded in `e`. */
int tcp_peer_write_card(struct tcp_peer *p, struct error *e);
const void *tcp_peer_card(const struct transport_peer *p, size_t *ret_len);
int tcp_peer_connect(struct transport_peer *p, const void *address, size_t len, struct error *e);

/* tcp_send.c */

int tcp_send(struct channel *c, struct transport_peer *p, struct transfer *t);
/* Queues a frame without bytes. A peer that leaves too many unread fails. */
void tcp_send_note(struct tcp_peer *p, const struct frame *name, enum frame_kind kind,
                   uint64_t bytes);
/* Tells the other end how much of its eager bytes is taken, once that is worth a frame. */
void tcp_send_credit(struct tcp_peer *p);
/* It need not wait any more: the other end wants it, or takes it unasked. */
void tcp_send_leave(struct tcp_message *m);
/* The other end wants it no longer, until it asks again. What has left already is lost. */
void tcp_send_unasked(struct tcp_peer *p, const struct frame *name);
/* A send that is cancelled while its bytes leave: nothing of its memory is read any more. */
void tcp_send_forsake(struct tcp_message *m);
/* Writes until there is no room or enough has been written for one turn. */
void tcp_write(struct tcp_peer *p);

/* tcp_receive.c */

int tcp_recv(struct channel *c, struct transport_peer *p, struct transfer *t);
/* Nothing more of what is being read goes to it. */
void tcp_receive_forsake(struct tcp_message *m);
/* Lets go of what has arrived; who has offered it hears of that. */
void tcp_arrival_drop(struct tcp_message *m);
/* Reads until there is nothing or enough has been read for one turn. */
void tcp_read(struct tcp_peer *p);

#endif
