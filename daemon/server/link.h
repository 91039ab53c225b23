/*
 * One link as its holders have it: references, facts, and what was sent before it was up. Which
 * wire it has, and when it is lost, links.c decides.
 */
#ifndef DAEMON_SERVER_LINK_H
#define DAEMON_SERVER_LINK_H

#include "daemon/comm/links.h"
#include "daemon/server/wire.h"

enum link_state {
    LINK_DIALLED, /* its wire is on its way */
    LINK_AWAITED, /* it has none; the other end is to connect */
    LINK_UP,
    LINK_LOST, /* nobody's but its holders' */
};

struct link {
    enum link_state state;
    struct list link;    // links::all, until it is lost
    struct wires *wires; /* until it is lost */
    uint64_t *due;       /* the table's; likewise */
    unsigned refs;
    struct address target; /* as it was opened; of a link that came by itself: as it advertises */
    char wanted[PEER_NODE_BYTES + 1]; /* who is expected there; "": whoever it is */
    struct party party;               /* once `known` */
    bool known;
    struct link_facts facts;
    struct wire *wire;
    struct wire *rival; /* proven, of the same daemon, and held while `wire` is in doubt */
    int expecting;
    uint64_t deadline;
    struct error failure; /* found by a holder's call, to be told at the next turn */
    struct list kept;     // struct kept::link
    size_t kept_bytes;
};

/* Awaited. NULL: no memory. */
struct link *link_new(struct wires *wires, uint64_t *due, const struct address *target,
                      const char *wanted);
void link_ref(struct link *l);
/* Frees it once it is lost. */
void link_unref(struct link *l);
/* Edges: DIALLED to and from AWAITED, both to UP, any to LOST. */
void link_set_state(struct link *l, enum link_state state);
/* Takes the wire, which is to be proven, for its own, in place of the one it has. */
void link_adopt(struct link *l, struct wire *w);
/* Its wire is proven. */
void link_know(struct link *l, const struct party *p);
/* Its wire is up: so is the link, and what was kept goes out. */
void link_rise(struct link *l);
void link_send(struct link *l, const struct peer_message *m);
void link_send_encoded(struct link *l, const struct link_message *m);
void link_expect(struct link *l, int change);
const struct link_facts *link_facts(const struct link *l);
/* "connecting", "awaited", "up". */
const char *link_state_name(const struct link *l);

#endif
