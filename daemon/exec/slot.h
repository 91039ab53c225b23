/* Slots: what a unit in flight has of memory and of steps. */
#ifndef DAEMON_EXEC_SLOT_H
#define DAEMON_EXEC_SLOT_H

#include "daemon/exec/run_private.h"

void slot_fini(struct slot *s);

#define SLOT_LATER 1

/* Readies it for the unit that is planned in it, the next one: staging, and all steps to be done.
 * Return: 0; SLOT_LATER, there is no staging to spare; or -errno. */
int slot_open(struct run *run, struct slot *s);
/* Gives its staging back. Nothing may touch it any more. */
void slot_close(struct run *run, struct slot *s);

#endif
