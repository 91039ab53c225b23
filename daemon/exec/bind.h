/* From a plan's spans to addresses: what a step's task or message touches. */
#ifndef DAEMON_EXEC_BIND_H
#define DAEMON_EXEC_BIND_H

#include "daemon/exec/run_private.h"

/* Makes the step, a copy or a reduction, the task's. Return: 0 or -ENOMEM. */
int bind_task(struct run *run, struct slot *s, uint32_t step, struct run_task *t);

/* Makes the step, a message, the message's transfer. Return: 0 or -ENOMEM. */
int bind_message(struct run *run, struct slot *s, uint32_t step, struct message *m);

/* Copies all that the step, a message of memory that is the host's, carries: to where its bytes are
 * one behind the other, or (`to` is NULL) from there. */
void bind_copy(const struct run *run, const struct slot *s, uint32_t step, uint8_t *to,
               const uint8_t *from);

/* The bytes of a message that bounce. */
uint64_t bind_message_bounced(const struct run *run, const struct plan *p, const struct step *step);

#endif
