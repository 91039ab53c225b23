/*
 * A communicator's slate (shared/slate.h): made when its first member asks, shut when it fails.
 * What the members carry out there the daemon does not see; their sequence numbers go on, so that
 * a member's next post may be numbers ahead of its last. What is read from it is for people only.
 */
#ifndef DAEMON_COMM_SLATES_H
#define DAEMON_COMM_SLATES_H

#include "daemon/comm/group.h"
#include "shared/slate.h"

/* Made and charged for if need be. Return: 0, or -code worded in `e`. */
int slate_open(struct comm *c, struct error *e);
void slate_free(struct comm *c);

/* Whether the member comes to its next operation when the others may come to it, too; not: somebody
 * has left numbers out that others have not. */
bool slate_keeps_step(const struct comm *c, const struct member *m);

/* What a member did there since its last post, as it says; false: nothing. */
bool slate_last_call(const struct member *m, struct last_call *ret);

/* Operations carried out there since the newest that a rank has posted. */
uint64_t slate_ahead(const struct comm *c);

#endif
