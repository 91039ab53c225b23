/*
 * Tuning files: what a communicator's table holds, as the operator has measured or wants it. The
 * root daemon's counts for all nodes. ruccl-tuning(5) is the manual.
 */
#ifndef DAEMON_TUNING_H
#define DAEMON_TUNING_H

#include "daemon/plan/table.h"

/*
 * Takes a file over into `t`: what it does not set stays as it is there. Return: 0, or -code with
 * `e` naming file, line, key and what is allowed, and `t` unchanged.
 */
int tuning_read(const char *path, struct table *t, struct error *e);

#endif
