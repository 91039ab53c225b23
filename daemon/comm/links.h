/*
 * Links: what comm needs of other daemons. A link is authenticated, in order, and ours or gone:
 * what is sent on it arrives, or the link is lost and everyone who holds it told so. The server
 * provides them; tests do.
 */
#ifndef DAEMON_COMM_LINKS_H
#define DAEMON_COMM_LINKS_H

#include "daemon/transport/transport.h"
#include "proto/peer_codec.h"

struct comms;
struct link; /* the provider's */

/* A message for several links, as it travels. In the provider's memory, until it encodes again. */
struct link_message {
    const void *bytes;
    int64_t len; /* -errno: it cannot be written, and links that it is sent on are lost */
};

/* Of the daemon on the other side. Valid while the link is held. */
struct link_facts {
    const char *node;            /* its UUID; "" until it has said so */
    const char *host;            /* its name; until then its address */
    const char *address;         /* of its listener */
    struct transport_peer *peer; /* NULL until the link is up */
};

struct link_ops {
    /*
     * The link to the daemon that listens at `address`, or to `node` where that is not "". An own
     * one, one that is there, or one that comes to be behind this call: dialled, or, not `dial`,
     * waited for. With a reference for the caller. What is sent meanwhile is kept, in order.
     * Return: 0, or -code worded in `e`: an address that cannot be read, no network configured.
     */
    int (*open)(void *links, const char *address, const char *node, bool dial, struct link **ret,
                struct error *e);
    void (*ref)(struct link *l);
    /* What has been sent still goes out. */
    void (*unref)(struct link *l);
    const struct link_facts *(*facts)(const struct link *l);
    /* Encodes in this call. */
    void (*send)(struct link *l, const struct peer_message *m);
    /* The same in two steps: what goes to several is encoded once. `links`: as for open(). */
    struct link_message (*encode)(void *links, const struct peer_message *m);
    void (*send_encoded)(struct link *l, const struct link_message *m);
    /* What was encoded last, a PEER_AGREE, with this one's payload; nothing else is written. */
    struct link_message (*encode_payload)(void *links, const struct peer_agree *agree);
    /* +1, -1: while the sum is above 0 something is unfinished, and a silent peer is a lost one. */
    void (*expect)(struct link *l, int change);
};

/* What the provider calls. None of it from within a call of link_ops. */

/* The link is up: its facts are complete. Once; not for links that were up when they were opened.
 */
void comms_link_up(struct comms *comms, struct link *l, uint64_t now);
/* A message came. The pointers in it are valid during the call only. */
void comms_link_message(struct comms *comms, struct link *l, const struct peer_message *m,
                        uint64_t now);
/* The link, up or not, is lost; comm lets go of it, and opens another if it needs one. */
void comms_link_lost(struct comms *comms, struct link *l, const struct error *why, uint64_t now);

#endif
