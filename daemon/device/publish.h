/* Memory that the daemon makes and clients map, too. */
#ifndef DAEMON_DEVICE_PUBLISH_H
#define DAEMON_DEVICE_PUBLISH_H

#include <stddef.h>

enum publish_access {
    PUBLISH_READABLE, /* however a client gets hold of a descriptor, it cannot map it for writing */
    PUBLISH_WRITABLE,
};

/*
 * Makes `bytes` of it, zeroed, that keep their size, under a name that only people read. *ret is to
 * be unmapped, and *ret_fd, which is for the clients, to be closed by the caller. Return: 0, or
 * -errno.
 */
int publish(const char *name, size_t bytes, enum publish_access access, void **ret, int *ret_fd);

#endif
