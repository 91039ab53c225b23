/* Where the daemon listens, unless told otherwise: one rule for daemon, library and rucclctl. */
#ifndef SHARED_SOCKET_PATH_H
#define SHARED_SOCKET_PATH_H

#include "shared/error.h"

/*
 * $RUCCL_SOCKET, or else /run/ruccl/ruccld.sock for root and $XDG_RUNTIME_DIR/ruccl/ruccld.sock for
 * others. An empty variable counts as unset. Return: 0, or -code worded in `e`: there is no runtime
 * directory, or the path does not fit into `size` bytes; `buffer` is then untouched.
 */
int socket_path_default(char *buffer, size_t size, struct error *e);

#endif
