/* A node's network interfaces, and the ports of transports, as configured. */
#ifndef DAEMON_TRANSPORT_INTERFACE_H
#define DAEMON_TRANSPORT_INTERFACE_H

#include <net/if.h>

#include "shared/error.h"

/* The family of a numeric address, and the interface that has it. Return: 0, or -code worded in
 * `e`.
 */
int interface_of(const char *address, char ret[IF_NAMESIZE], int *ret_family, struct error *e);

/* "41000-41999": the first and the last; "": 0 and 0, any. Return: likewise. */
int ports_parse(const char *text, uint16_t ret[2], struct error *e);

#endif
