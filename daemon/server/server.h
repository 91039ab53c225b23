/*
 * The server: the loop, the listening socket, signals, and the service manager. Everything that
 * happens in the daemon happens in one of its callbacks.
 */
#ifndef DAEMON_SERVER_SERVER_H
#define DAEMON_SERVER_SERVER_H

#include "daemon/comm/comm.h"
#include "daemon/config.h"
#include "daemon/exec/engine.h"

/* What is behind the server; stays the caller's. */
struct server_parts {
    struct config *config; /* changed by a reload */
    int argc;              /* for a reload */
    char *const *argv;
    struct device *device;
    struct device *gpus; /* NULL: none */
    const char *no_gpus; /* why, for people; may be NULL */
    struct engine *engine;
    struct transport *transport; /* between nodes; NULL: none, and no links with other nodes */
    struct comms_config comms;   /* the server adds the links */
    const char *kernels;         /* for people */
    uid_t overflow_uid;
};

/*
 * Serves until told to stop. Return: 0 once every operation is over and every session closed, or
 * -code worded in `e`. ERROR_ABORTED: told to stop at once; what is behind may be in use.
 */
int server_run(const struct server_parts *parts, struct error *e);

#endif
