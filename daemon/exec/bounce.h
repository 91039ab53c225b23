/*
 * Bounces: where the transport does not take a message from memory of GPUs, or bring it there, by
 * itself, what the message carries of it goes through staging that the device has adopted. Every
 * channel of a unit has room for its largest message, as the unit's peak counts it; its messages go
 * one after the other.
 */
#ifndef DAEMON_EXEC_BOUNCE_H
#define DAEMON_EXEC_BOUNCE_H

#include "daemon/exec/run_private.h"

/* Bytes of staging that a unit's messages need, and who has which; `bounce_at` has room. */
uint64_t bounce_plan(const struct run *run, struct slot *s);

/* Makes room for so many pieces of a message, of which none is there yet. Return: 0 or -ENOMEM. */
int bounce_reserve(struct message *m, uint32_t npieces);
/* Adds a piece that lies on a GPU, in the tensor of that place in run::far. Returns where it is
 * instead. */
void *bounce_add(struct message *m, uint32_t tensor, void *far, uint64_t bytes);

/* Copies the pieces from the GPUs (`out`) or to them. `then` runs once, perhaps within this call;
 * the message is in flight until then. r: 0, -ECANCELED or what a task failed with. */
void bounce_start(struct message *m, bool out, void (*then)(struct message *m, int r));

/* Goes on with what found no room on the device. Return: 0, or RUN_BUSY: there is still none. */
int bounce_resume(struct run *run);
/* Of a stopped run: ends what has no task pending. */
void bounce_cancel(struct run *run);

static inline bool bounce_is_needed(const struct message *m)
{
    return m->bounce.ncopies > 0;
}

#endif
