/* Rendezvous: ids, joins, and the communicators that come of them. For comm's own files. */
#ifndef DAEMON_COMM_RENDEZVOUS_H
#define DAEMON_COMM_RENDEZVOUS_H

#include "daemon/comm/group.h"

/* Lets lapsed ids go; returns when the next one lapses. */
uint64_t rendezvous_tick(struct comms *comms, uint64_t now);
/* Fails a forming communicator whose time is up. */
void rendezvous_expire(struct comm *c, uint64_t now);

/* The communicator of an id; NULL: there is none, or no more. */
struct comm *rendezvous_find(const struct comms *comms, const char *id);

/* A root's group has failed before it formed: for a while, who still comes, from other nodes too,
 * is told why. */
void rendezvous_bury(const struct comm *c, uint64_t now);

/* Errors: QUOTA. */
int rendezvous_check_quota(const struct comms *comms, uid_t uid, struct error *e);

/*
 * What a rank, here or (not `local`) of another node, wants to join: all checks but whether it
 * means the same group. The comm, perhaps new, is held. Return: 0, or -code worded in `e`.
 */
int rendezvous_admit(struct comms *comms, const struct join *join, bool local, uint64_t now,
                     struct comm **ret, struct error *e);
/* A rank that means another group than those before it: the group can never form. */
bool rendezvous_differs(const struct comm *c, const struct request_join *r, struct error *ret);

/* A rank has been seated: forms the group, or begins to, if it was the last. */
void rendezvous_advance(struct comm *c, uint64_t now);
/* The group is complete, and so is all that it needs: joined() for all. */
void rendezvous_formed(struct comm *c);

#define ID_BYTES 17u /* of random bits that make an id */

/* Letters of an id up to its home: "rc1-", 26 characters, "@". */
#define RENDEZVOUS_ID_BYTES 31u

/* The id of a child that these bits name, with its parent's home. */
void rendezvous_child_id(const struct comm *parent, const uint8_t bits[ID_BYTES],
                         char ret[COMM_ID_BYTES]);

#endif
