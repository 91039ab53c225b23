/* Memory that the daemon writes and clients only read. */
#ifndef DAEMON_SERVER_PUBLISH_H
#define DAEMON_SERVER_PUBLISH_H

#include <stddef.h>

/*
 * Makes `bytes` of it, zeroed, under a name that only people read. *ret is to be unmapped, and
 * *ret_fd, which is for the clients, to be closed by the caller. Its seals keep a client from
 * mapping it for writing, however it gets hold of a descriptor. Return: 0, or -errno.
 */
int publish(const char *name, size_t bytes, void **ret, int *ret_fd);

#endif
