/*
 * Sealed memory files: a client's host memory, checked and mapped. Trusts nothing about the
 * descriptor: what it is, its seals and its size are asked of the kernel before a byte is touched.
 */
#ifndef DAEMON_DEVICE_MEMFD_H
#define DAEMON_DEVICE_MEMFD_H

#include "daemon/device/device.h"

/*
 * Maps the first `bytes` bytes of `fd` for reading and writing; on a 2 MiB boundary where there is
 * that much, so that huge pages fit. The mapping has one reference and belongs to `device`.
 * Return: 0, or -code worded in `e`.
 */
int memfd_map(struct device *device, int fd, uint64_t bytes, struct mapping **ret, struct error *e);

/* Undoes memfd_map() and frees `m`. */
void memfd_unmap(struct mapping *m);

#endif
