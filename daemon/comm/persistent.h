/*
 * Persistent operations: a collective that all ranks agree on once and then start as often as they
 * like, without saying it again. Loop thread only. For server; the same events answer.
 *
 * A communicator counts its persistent operations from 1, the same on every rank. Each lives until
 * all members have freed it or are gone, and keeps the memory of its tensors mapped until then.
 */
#ifndef DAEMON_COMM_PERSISTENT_H
#define DAEMON_COMM_PERSISTENT_H

#include "daemon/comm/comm.h"

/* Persistent operations of one communicator at a time. */
#define PERSISTENT_MAX 1024u

/*
 * Made by member_post() with post::persistent: the member's next operation is then the making of
 * one. It is compared and checked as the operation itself would be, moves nothing, and on success
 * its completion names it (completion::persistent); on failure, as for any operation, every rank
 * hears the same and the communicator goes on. Not for pairs, splits and the exchanges:
 * INVALID_ARGUMENT.
 */

/* A start: the persistent operation, and what is as in struct post. */
struct start {
    uint32_t id;
    uint64_t serial;
    struct progress_cell *cell;
    struct fence *fence;
    struct signal signal;
};

/*
 * Takes part in the member's next operation: a start of persistent operation `id`. Ranks agree if
 * all start the same one; else MISMATCH for all. An `id` that the member has not, or has freed, is
 * a rejection (NOT_FOUND) in the operation's place, as is a tensor that has lost its memory.
 * Always answered by completed(), perhaps in this call. Return: 0, or -ENOMEM with nothing taken.
 */
int member_start(struct member *m, const struct start *start, uint64_t now);

/*
 * The member will not start `id` again; starts that are not finished still end as they would.
 * Return: 0, or -ENOENT: the member has no such operation.
 */
int member_persistent_free(struct member *m, uint32_t id);

#endif
