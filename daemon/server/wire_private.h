/* What the files of a wire share: wire.c its life, wire_dial.c how it is made, wire_frames.c what
 * goes over it. */
#ifndef DAEMON_SERVER_WIRE_PRIVATE_H
#define DAEMON_SERVER_WIRE_PRIVATE_H

#include "daemon/server/service.h"
#include "daemon/server/wire.h"

struct wire {
    struct wires *ws;
    enum wire_state state;
    bool dialled;
    bool stranger; // counted in wires::strangers
    bool proven;
    bool doubted;
    bool resumed; /* was held; frames may be waiting in `bytes` */
    bool tell;    /* `failure` is for the other end's ears too */
    struct list all_link, doomed_link;
    struct error failure;
    void *link;

    uv_tcp_t tcp;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    uv_getaddrinfo_t resolve;
    bool resolving, closed;        /* whose the memory still is: the resolver's, the loop's */
    struct addrinfo *found, *next; /* what the name means; which of it is tried after this one */
    struct address address;
    char expected[PEER_NODE_BYTES + 1];

    struct handshake handshake;
    struct seal out, in;
    struct peer_repeats said; /* by the other end */
    struct transport_peer *peer;

    uint8_t *bytes; /* [size], of which `have` have been read and not yet been dealt with */
    size_t size, have;

    int expecting;
    uint64_t made;
    uint64_t deadline; /* of every state but WIRE_UP */
    uint64_t heard;
    uint64_t watched; /* since when its silence counts */
    uint64_t next_ping;
};

struct wire *wire_new(struct wires *ws, bool dialled);
void wire_set_state(struct wire *w, enum wire_state state);
/* Notes why the wire is of no more use, for the next turn to tell; the first reason counts. */
void wire_doom(struct wire *w, bool tell, enum error_code code, const char *format, ...)
    _printf_(4, 5);
bool wire_is_doomed(const struct wire *w);
/* Between two turns something may have come due earlier. */
void wire_due(struct wire *w, uint64_t due);
void wire_free_resolved(struct wire *w);
/* Frees it once the loop has no more use for it. */
void wire_let_go(struct wire *w);

/* Connected: reads, and, if it was dialled, greets. */
void wire_greet(struct wire *w);
/* The frames that have been read. */
void wire_take_frames(struct wire *w);

/* Whether the two may be linked at all, by where the other end is. */
int wire_check_reach(const struct wire *w, const struct sockaddr *sa, struct error *e);

#endif
