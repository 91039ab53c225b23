/* From a plan's spans to addresses: what a step's task or message touches. */
#ifndef DAEMON_EXEC_BIND_H
#define DAEMON_EXEC_BIND_H

#include "daemon/exec/run_private.h"

/* Makes the step, a copy or a reduction, the task's. Return: 0 or -ENOMEM. */
int bind_task(struct run *run, struct slot *s, uint32_t step, struct run_task *t);

/* Makes the step, a message, the message's transfer. Return: 0 or -ENOMEM. */
int bind_message(struct run *run, struct slot *s, uint32_t step, struct message *m);

/* All bytes of a message, and those that bounce. */
uint64_t bind_message_bytes(const struct run *run, const struct plan *p, const struct step *step);
uint64_t bind_message_bounced(const struct run *run, const struct plan *p, const struct step *step);

#endif
