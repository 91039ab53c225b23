/*
 * A wire: one TCP connection to another daemon, dialled or accepted, from its first byte to its
 * last. It makes the handshake (link_crypt.h), has a transport's peer, carries sealed messages, and
 * watches over the other end's silence. Which wires there should be is links.c's business.
 *
 * Loop thread. Events come from the loop's callbacks and from wires_turn(), never from the calls
 * below: what a call finds wrong is told at the next turn.
 */
#ifndef DAEMON_SERVER_WIRE_H
#define DAEMON_SERVER_WIRE_H

#include <uv.h>

#include "daemon/server/address.h"
#include "daemon/server/link_crypt.h"
#include "daemon/transport/transport.h"
#include "proto/peer_repeat.h"

#define WIRE_QUEUE_BYTES (64u << 20) /* what may wait for a peer that does not take it */

struct wire;

enum wire_state {
    WIRE_RESOLVING,  /* dialled: finds out what the name means */
    WIRE_CONNECTING, /* dialled */
    WIRE_GREETING,   /* waits for the other end's first message */
    WIRE_PROVING,    /* accepted: waits for the proof */
    WIRE_HELD,       /* proven, and not wanted yet: see wire_proceed() */
    WIRE_SETUP,      /* waits for the other end's word on its transport */
    WIRE_UP,
    WIRE_PARTING, /* over; what was sent last is still on its way */
    WIRE_CLOSED,
};

/* What the owner of the wires wants done with one that is proven. */
enum wire_verdict {
    WIRE_PROCEED,
    WIRE_HOLD,   /* wire_proceed() or wire_part() follow */
    WIRE_REFUSE, /* the two daemons are linked already */
};

struct wire_events {
    /* The other end has proven the key. Or -code worded in `e`. */
    int (*proven)(void *owner, struct wire *w, enum wire_verdict *ret, struct error *e);
    void (*up)(void *owner, struct wire *w);
    void (*message)(void *owner, struct wire *w, const struct peer_message *m);
    /* Something came on a wire that was in doubt. */
    void (*trusted)(void *owner, struct wire *w);
    /* The other end keeps another connection, on which it has proven itself or is about to. */
    void (*refused)(void *owner, struct wire *w);
    /* The wire is of no more use; its peer goes when this returns. Not after wire_part(). */
    void (*ended)(void *owner, struct wire *w, const struct error *why);
};

/* What wires have in common. */
struct wires {
    uv_loop_t *loop;
    struct party self;
    struct link_key key;
    struct transport *transport; /* NULL: none */
    uint64_t connect_timeout_us, peer_timeout_us;
    uint64_t max_strangers; /* accepted, and not proven; each has some time to prove itself */
    const struct wire_events *events;
    void *owner;

    /* the wires' own */
    bool self_is_loopback;
    struct peer_codec *codec;
    struct peer_repeats told; /* to whomever */
    struct list all;          // struct wire::all_link
    struct list doomed;       // struct wire::doomed_link: ended() is to be called
    uint64_t strangers;
    uint64_t due, last_turn;
    unsigned alive; /* wires whose memory is there: it goes when the loop has let go of them */
    void (*idle)(void *owner); /* called when `alive` falls to 0; NULL: nobody asks */
};

/* What is not the wires' own is filled before. Return: 0 or -errno. */
int wires_init(struct wires *ws);
/* Closes every wire. */
void wires_close(struct wires *ws);
/* No wire may be left. Harmless where wires_init() failed. */
void wires_fini(struct wires *ws);
/* When wires_turn() next has something to do; 0: at once. */
uint64_t wires_deadline(const struct wires *ws);
/* Tells what has failed, and does what is due. */
void wires_turn(struct wires *ws, uint64_t now);

/* `node`: who is expected there; "": whoever it is. NULL: no memory. */
struct wire *wire_dial(struct wires *ws, const struct address *to, const char *node);
/* When wire_accept() may be called: 0, at once; else when the oldest stranger has had its time. */
uint64_t wires_room_at(const struct wires *ws, uint64_t now);
/* Takes the connection that waits at `server`, in place of the oldest stranger where they are too
 * many. Return: 0, or -ENOMEM, and it waits on. */
int wire_accept(struct wires *ws, uv_stream_t *server);

/* Of a held wire: goes on. */
void wire_proceed(struct wire *w);
/*
 * Ends it: no more events. Tells the other end why; NULL: that the other connection is kept. A wire
 * that is not proven has nobody to tell.
 */
void wire_part(struct wire *w, const struct error *why);
/* The same, with nothing said and nobody waited for. */
void wire_close(struct wire *w);

/* WIRE_UP. Sealed, and written as far as the socket has room, in this call. */
void wire_send(struct wire *w, const void *bytes, size_t len);
void wire_send_message(struct wire *w, const struct peer_message *m);
/* As peer_codec_encode(); what breaks a limit is this daemon's own fault, and logged as an error.
 */
int64_t wires_encode(struct wires *ws, const struct peer_message *m, const void **ret);
/* What cannot be written is the end of the wire. */
void wire_send_encoded(struct wire *w, const void *bytes, int64_t len);
/* WIRE_UP. +1, -1: while the sum is above 0 a silent peer is a lost one. */
void wire_expect(struct wire *w, int change);
/* WIRE_UP. Asks the other end for a sign of life: trusted() or ended() follow. */
void wire_doubt(struct wire *w);

/* What the wires' owner holds it by; NULL at first. */
void wire_set_link(struct wire *w, void *link);
void *wire_link(const struct wire *w);

enum wire_state wire_state(const struct wire *w);
bool wire_dialled(const struct wire *w);
/* What the other end says of itself; to be believed once it is proven. */
const struct party *wire_party(const struct wire *w);
struct transport_peer *wire_peer(const struct wire *w);
/* When a message came last, whole and as it was sent. */
uint64_t wire_heard(const struct wire *w);

#endif
