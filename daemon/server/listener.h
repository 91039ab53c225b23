/*
 * The listening socket: made here, or handed over by the service manager. One daemon a path: a lock
 * beside it says who serves it, and only who holds the lock removes what a dead daemon left behind.
 */
#ifndef DAEMON_SERVER_LISTENER_H
#define DAEMON_SERVER_LISTENER_H

#include <sys/types.h>

#include "daemon/config.h"

struct listener {
    int socket;
    int lock; /* -1: the service manager's socket, which is not ours to lock or remove */
    char path[CONFIG_PATH_BYTES];
};

/* Return: 0, or -code worded in `e`: another daemon serves the path, or a system call failed. */
int listener_open(struct listener *l, const char *path, mode_t mode, struct error *e);

/* Takes no connection any more; the path and the lock stay held. Harmless when done twice. */
void listener_shut(struct listener *l);

/* Removes what is ours. */
void listener_close(struct listener *l);

#endif
