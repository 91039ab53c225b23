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

struct network {
    struct transport *transport; /* NULL: this daemon serves its own node alone */
    struct staging *staging;     /* likewise */
    struct table table;
};

/*
 * Where the configuration names no listener nothing is opened, and all the same the tuning file is
 * read and the transport has to be one that there is. Return: 0, or -code worded in `e`.
 */
int network_open(const struct config *config, struct network *ret, struct error *e);
/* No channel, peer or block may be left. */
void network_close(struct network *n);

#endif
