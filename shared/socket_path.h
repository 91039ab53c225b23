/* Where the daemon listens, unless told otherwise, and how long those who ask it there wait for an
 * answer: one rule for daemon, library and rucclctl. */
#ifndef SHARED_SOCKET_PATH_H
#define SHARED_SOCKET_PATH_H

#include "shared/error.h"

/* To what needs nobody else: hello, ids, an abort, the release of a GPU's memory, each question of
 * rucclctl. It is a daemon that hangs that takes longer. */
#define DAEMON_ANSWERS_US 10000000

/*
 * $RUCCL_SOCKET, or else /run/ruccl/ruccld.sock for root and $XDG_RUNTIME_DIR/ruccl/ruccld.sock for
 * others. An empty variable counts as unset. Return: 0, or -code worded in `e`: there is no runtime
 * directory, or the path does not fit into `size` bytes; `buffer` is then untouched.
 */
int socket_path_default(char *buffer, size_t size, struct error *e);

#endif
