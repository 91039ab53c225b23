/* Asks a daemon for its status, speaking the protocol itself: no library, no memory, no ranks. */
#ifndef CLIENT_CTL_FETCH_H
#define CLIENT_CTL_FETCH_H

#include "client/ctl/status.h"

/*
 * Adds what the daemon at `path` tells to `status`; waits at most timeout_us for each answer.
 * Return: 0, or -code worded in `e`, naming the path; `status` may then hold a part.
 */
int fetch_status(const char *path, uint64_t timeout_us, struct status *status, struct error *e);

#endif
