/*
 * Links to other daemons, as comm/links.h wants them: who is dialled, who is waited for, who has
 * come by himself; at most one link for each daemon. A link outlives the attempts to make it, and
 * stays, once up, until one of the two ends.
 *
 * Two daemons that dial each other at once make two connections; the one whose UUID is the smaller
 * decides which one stays, by proving itself there or by going on with what the other has proven.
 * Nobody is displaced by a stranger: only by who has proven the key.
 *
 * Loop thread.
 */
#ifndef DAEMON_SERVER_LINKS_H
#define DAEMON_SERVER_LINKS_H

#include <uv.h>

#include "daemon/comm/links.h"
#include "daemon/server/link_crypt.h"

struct links;
struct status_item;

/* What comms_link_up(), comms_link_message() and comms_link_lost() are. */
struct links_events {
    void (*up)(struct comms *comms, struct link *l, uint64_t now);
    void (*message)(struct comms *comms, struct link *l, const struct peer_message *m,
                    uint64_t now);
    void (*lost)(struct comms *comms, struct link *l, const struct error *why, uint64_t now);
};

struct links_config {
    uv_loop_t *loop;
    const char *listen;    /* port 0: any */
    const char *advertise; /* where others reach it; "": at `listen` */
    const char *node, *host;
    const struct link_key *key; /* copied */
    uint32_t version_min, version_max;
    struct transport *transport; /* for tensors; NULL: none, and no peer has one */
    uint64_t connect_timeout_us; /* of a connection, until it is up */
    uint64_t peer_timeout_us;    /* of silence, while something is expected */
    uint64_t max_strangers;      /* connections that have not proven the key */
};

/* Listens. Return: 0, or -code worded in `e`. */
int links_open(const struct links_config *config, const struct links_events *events,
               struct links **ret, struct error *e);
/* Whom the events are for; before the loop runs. */
void links_serve(struct links *links, struct comms *comms);
/* Every link is lost, in this call; what the loop still holds goes by itself. NULL is allowed. */
void links_close(struct links *links);

/* When links_turn() next has something to do, by what is known now. */
uint64_t links_deadline(const struct links *links);
/* Does what is due, and tells what calls of link_ops have found wrong. */
void links_turn(struct links *links, uint64_t now);

/* Whether somebody waits for another daemon: the loop then looks at the network soon. */
bool links_expect(const struct links *links);

/* Where others reach this daemon: what ids carry. */
const char *links_address(const struct links *links);

/* An item (STATUS_PEER) for each. */
void links_status(const struct links *links, uint64_t now,
                  void (*show)(void *context, const struct status_item *item), void *context);

/* The `links` of open() is a struct links. */
extern const struct link_ops link_ops;

#endif
