/* What the files of the links share: links.c who is linked, links_open.c where they are listened
 * for. */
#ifndef DAEMON_SERVER_LINKS_PRIVATE_H
#define DAEMON_SERVER_LINKS_PRIVATE_H

#include "daemon/server/link.h"
#include "daemon/server/links.h"

struct links {
    struct wires wires;
    const struct links_events *events;
    struct comms *comms;
    struct list all; // link::link
    uint64_t due;    /* of links that have no wire */
    uv_tcp_t server;
    bool knocking; /* a connection waits to be taken */
    bool stopping;
    bool closed; /* the server's handle is */
};

/* Takes what is knocking, if there is room. */
void links_accept(struct links *links, uint64_t now);

extern const struct wire_events links_wire_events;

/* The wire is the caller's to end; its peer must be there until this returns. */
void links_lose(struct links *links, struct link *l, const struct error *why);

#endif
