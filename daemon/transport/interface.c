#include "daemon/transport/interface.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <string.h>

static bool same_address(const struct sockaddr *a, int family, const void *bytes)
{
    if (!a || a->sa_family != family)
        return false;
    if (family == AF_INET)
        return !memcmp(&((const struct sockaddr_in *)a)->sin_addr, bytes, sizeof(struct in_addr));
    return !memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, bytes, sizeof(struct in6_addr));
}

int interface_of(const char *address, char ret[IF_NAMESIZE], int *ret_family, struct error *e)
{
    uint8_t bytes[sizeof(struct in6_addr)];
    const int family = strchr(address, ':') ? AF_INET6 : AF_INET;
    struct ifaddrs *all;
    bool found = false;

    if (inet_pton(family, address, bytes) != 1)
        return error_set(e, ERROR_INVALID_ARGUMENT, "'%s' is no numeric address", address);
    if (getifaddrs(&all) < 0)
        return error_set_errno(e, errno, "listing network interfaces");
    for (const struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        found = same_address(i->ifa_addr, family, bytes);
        if (found)
            snprintf(ret, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(all);
    if (!found)
        return error_set(e, ERROR_INVALID_ARGUMENT, "no network interface of this node has %s",
                         address);
    *ret_family = family;
    return 0;
}

int ports_parse(const char *text, uint16_t ret[2], struct error *e)
{
    unsigned first, last;
    int end = 0;

    ret[0] = ret[1] = 0;
    if (!text[0])
        return 0;
    if (sscanf(text, "%5u-%5u%n", &first, &last, &end) != 2 || text[end] || first == 0 ||
        first > last || last > UINT16_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "'%s' is no range of ports, such as 41000-41999", text);
    ret[0] = (uint16_t)first;
    ret[1] = (uint16_t)last;
    return 0;
}
