/*
 * Forming: how a communicator whose ranks are on several nodes comes to be. Its root, the daemon
 * that made the id, seats the ranks of all; the others, its guests, ask it for a seat for each of
 * theirs. For comm's own files.
 *
 *     guest                                   root
 *     JOIN, for each rank                ->
 *                                        <-   FORM, once all ranks are there: who is where
 *     links to all nodes, channel, staging
 *     READY, or why not                  ->
 *                                        <-   GO, once all nodes are ready
 *
 * Until GO anything that goes wrong, anywhere, fails the group on every node: a guest tells the
 * root (WITHDRAW), the root tells all guests (REFUSED of all ranks).
 */
#ifndef DAEMON_COMM_FORMING_H
#define DAEMON_COMM_FORMING_H

#include "daemon/comm/group.h"
#include "daemon/comm/links.h"

struct forming;

/* What a guest waits longer than the root, whose answer says more. */
#define FORMING_GRACE_US 1000000u

/* NULL is allowed: nothing of other nodes is there. */
bool forming_is_guest(const struct forming *f);

/* A guest's, new: links to the root at `address`. comm::forming is there on success. Return: 0, or
 * -code worded in `e`. */
int forming_ask(struct comm *c, const char *address, struct error *e);
/* A guest's: asks the root for the seat of a member, whose process is `uid`'s. */
void forming_ask_for(struct forming *f, const struct member *m, uid_t uid);

/* A root's: all ranks are seated, some on other nodes; they are told who is where. */
void forming_tell(struct forming *f, uint64_t now);

/* What has been received that concerns a rendezvous. */
void forming_receive(struct comms *comms, struct link *l, const struct peer_message *m,
                     uint64_t now);
/* A link of this node is up: perhaps it was the last that was waited for. */
void forming_link_up(struct forming *f, uint64_t now);
/* A link is lost; the group fails if it needs it. */
void forming_link_lost(struct forming *f, const struct link *l, const struct error *why,
                       uint64_t now);

/* The group cannot form, and the others hear of it. Frees `f`; NULL is allowed. */
void forming_fail(struct forming *f, const struct error *cause);
/* Lets go of links. Returns NULL; NULL is allowed. */
struct forming *forming_free(struct forming *f);

/* The host of a rank that is seated on another node. */
const char *forming_host(const struct comm *c, uint32_t rank);
/* Says who keeps the group from forming, where that is not ranks that have not joined: then false.
 */
bool forming_add_late(const struct forming *f, struct text *t, struct error *e);

#endif
