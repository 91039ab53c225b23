/*
 * What a daemon has for operations between nodes, put together from its configuration: a transport,
 * memory for what is under way, and the table of those communicators whose root it is.
 */
#ifndef DAEMON_NETWORK_H
#define DAEMON_NETWORK_H

#include "daemon/config.h"
#include "daemon/exec/staging.h"
#include "daemon/plan/table.h"
#include "daemon/transport/transport.h"

/* All zero: this daemon serves its own node alone. */
struct network {
    struct transport *transport;
    struct staging *staging;
    struct table table;
};

/* Nothing is opened where the configuration names no listener. Return: 0, or -code worded in `e`. */
int network_open(const struct config *config, struct network *ret, struct error *e);
/* No channel, peer or block may be left. */
void network_close(struct network *n);

#endif
