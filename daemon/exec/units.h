/* Units: what of an operation is planned and in flight as one. Pieces of chunks, one after the
 * other; of an exchange the sources of a round, one after the other. */
#ifndef DAEMON_EXEC_UNITS_H
#define DAEMON_EXEC_UNITS_H

#include "daemon/exec/run_private.h"

/* Sets run::units and units_per_chunk from the spec. Return: 0 or -EOVERFLOW. */
int units_count(struct run *run);

/* The first element behind a unit; of an exchange the first row behind its round. */
uint64_t unit_end(const struct run *run, uint64_t unit);

/* Plans a unit that is not open in the slot that it will have. Return: 0, -ENOMEM, -EOVERFLOW. */
int unit_plan(struct run *run, uint64_t unit, struct slot **ret);

#endif
