/*
 * Talk: what the nodes of a communicator say to each other while it lives. For comm's own files.
 */
#ifndef DAEMON_COMM_TALK_H
#define DAEMON_COMM_TALK_H

#include "daemon/comm/links.h"
#include "daemon/comm/op.h"

/* What the parts of this node ask of an operation, to every other node or, of many, by way of them
 * (gather.h). Return: 0 or -ENOMEM. */
int talk_agree(struct op *op);
/* How an operation that makes something has settled here. */
void talk_settled(const struct op *op, const struct error *outcome);
/* Asks the nodes that have not spoken who is missing there. */
void talk_ask(const struct op *op);
/* The communicator has failed here; a rank has left it, with no part in operations from `sequence`
 * on. */
void talk_fail(const struct comm *c);
void talk_left(const struct comm *c, uint32_t rank, uint64_t sequence);

/* Fails the communicator, since `node` has sent what it had no right to. */
void talk_fail_for(struct comm *c, uint32_t node, const char *what, uint64_t now);

/* What `node` asks of an operation, whoever has passed it on. */
void talk_hear(struct comm *c, uint32_t node, const struct peer_agree *agree, uint64_t now);

/* What `node` of the communicator, which is held, has said. Nothing of it is trusted. */
void talk_receive(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now);

/* The communicator that a message of these kinds names by its key; NULL: there is none. */
struct comm *talk_find(const struct comms *comms, const struct peer_message *m);

#endif
