/*
 * Meetings: small blocking collectives that the ranks of a node carry out among themselves, at
 * their communicator's slate (shared/slate.h). Where they do not all come at about the same time,
 * or anything about the call is not plain, it goes to the daemon like every other: who is missing,
 * what does not fit together, and how it ends, the daemon says. With the connection's lock held.
 */
#ifndef CLIENT_MEETING_H
#define CLIENT_MEETING_H

#include "client/posting.h"

struct ruccl_work;

/*
 * Tries to carry out a prepared call, as `w`'s. Return: true: both are done. False: it is to be
 * posted; if posting::met is set, under the sequence number that is in the post already, and then
 * meeting_end() is to follow the post, whatever became of it. Lets go of the lock meanwhile.
 */
bool meeting_hold(struct posting *p, struct ruccl_work *w);
void meeting_end(struct posting *p);

/*
 * For a collective that is going to the daemon without having been tried: takes the turn to send,
 * which is the caller's to give back, and the member's next sequence number, when no meeting of an
 * earlier one may still have to be posted; and tells those who may be waiting at the slate. Return:
 * 0, or -code, without the turn.
 */
int meeting_skip(struct ruccl_member *m, uint64_t *ret_sequence, struct error *e);

/* With the member. */
void meeting_forget(struct ruccl_member *m);

#endif
