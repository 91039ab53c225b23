/* A run's messages: its steps that send and receive, by the transport or with an agreement. */
#ifndef DAEMON_EXEC_MESSAGES_H
#define DAEMON_EXEC_MESSAGES_H

#include "daemon/exec/run_private.h"

/* None may be under way. */
void messages_fini(struct run *run);

/* Readies what is to be enclosed: of one unit, and within the budget. Return: 0, -ENOMEM,
 * -EOVERFLOW. */
int messages_prepare(struct run *run);

/* Nothing is to be enclosed: of a run that touches memory of GPUs. Before anything is issued. */
void messages_forgo(struct run *run);

/* Whether a held run may do this step, a message, before it is released. */
bool messages_may_collect(const struct run *run, const struct step *step);

/* Issues a step whose turn it is. Its failure is the run's. Return: the bytes that were moved at
 * once, on this thread. */
uint64_t messages_issue(struct run *run, struct slot *s, uint32_t step);

/* What was enclosed and not delivered goes by the transport. Its failure is the run's. */
void messages_release(struct run *run, const struct run_letter *letters);

/* Tells what is under way to end soon. Once. */
void messages_cancel(struct run *run);

#endif
