#include "daemon/server/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int unreadable(struct error *e, const char *text)
{
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "'%.*s' is no address: host:port or [v6]:port, the host a number or a name of "
                     "at most %u letters",
                     (int)ADDRESS_MAX, text, ADDRESS_HOST_BYTES - 1);
}

static bool parse_port(const char *text, uint16_t *ret)
{
    unsigned long port;

    if (!*text || strlen(text) > 5 || text[strspn(text, "0123456789")])
        return false;
    port = strtoul(text, NULL, 10);
    if (port > UINT16_MAX)
        return false;
    *ret = (uint16_t)port;
    return true;
}

static bool is_name(const char *host)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789.-_";

    return *host && !host[strspn(host, letters)];
}

/* Writes a number in the one way, and a name in small letters. */
static bool normalise_host(char *host, size_t size, bool bracketed)
{
    uint8_t bytes[sizeof(struct in6_addr)];

    if (bracketed)
        return inet_pton(AF_INET6, host, bytes) == 1 && inet_ntop(AF_INET6, bytes, host, size);
    if (inet_pton(AF_INET, host, bytes) == 1)
        return inet_ntop(AF_INET, bytes, host, size) != NULL;
    for (char *c = host; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return is_name(host);
}

static void write_text(struct address *a)
{
    const bool v6 = strchr(a->host, ':') != NULL;

    snprintf(a->text, sizeof(a->text), "%s%s%s:%u", v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
}

int address_parse(const char *text, struct address *ret, struct error *e)
{
    const bool bracketed = *text == '[';
    const char *start = text + bracketed, *end = strrchr(text, ':');
    struct address a = { 0 };
    size_t len;

    if (!end || end < start + bracketed || !parse_port(end + 1, &a.port))
        return unreadable(e, text);
    len = (size_t)(end - start) - bracketed;
    if (len >= sizeof(a.host) || (bracketed && start[len] != ']'))
        return unreadable(e, text);
    memcpy(a.host, start, len);
    if (!normalise_host(a.host, sizeof(a.host), bracketed))
        return unreadable(e, text);
    write_text(&a);
    *ret = a;
    return 0;
}

int address_to_advertise(const char *listen, const char *advertise, struct address *ret,
                         struct error *e)
{
    const bool own = !*advertise;
    int r = address_parse(own ? listen : advertise, ret, e);

    if (r < 0)
        return r;
    if (address_is_wildcard(ret))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s is no address that others could reach this daemon at: 'advertise' one",
                         ret->text);
    if (!own && ret->port == 0)
        return error_set(e, ERROR_INVALID_ARGUMENT, "advertise: %s has no port", ret->text);
    return 0;
}

void address_of(const struct sockaddr *sa, struct address *ret)
{
    const struct sockaddr_in *v4 = (const void *)sa;
    const struct sockaddr_in6 *v6 = (const void *)sa;

    memset(ret, 0, sizeof(*ret));
    if (sa->sa_family == AF_INET) {
        inet_ntop(AF_INET, &v4->sin_addr, ret->host, sizeof(ret->host));
        ret->port = ntohs(v4->sin_port);
    } else if (sa->sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &v6->sin6_addr, ret->host, sizeof(ret->host));
        ret->port = ntohs(v6->sin6_port);
    }
    write_text(ret);
}

void sockaddr_set_port(struct sockaddr *sa, uint16_t port)
{
    if (sa->sa_family == AF_INET)
        ((struct sockaddr_in *)(void *)sa)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)(void *)sa)->sin6_port = htons(port);
}

bool address_number(const struct address *a, struct sockaddr_storage *ret)
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons(a->port) };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(a->port) };

    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, a->host, &v4.sin_addr) == 1)
        memcpy(ret, &v4, sizeof(v4));
    else if (inet_pton(AF_INET6, a->host, &v6.sin6_addr) == 1)
        memcpy(ret, &v6, sizeof(v6));
    return ret->ss_family != 0;
}

bool sockaddr_is_loopback(const struct sockaddr *sa)
{
    const struct sockaddr_in *v4 = (const void *)sa;
    const struct sockaddr_in6 *v6 = (const void *)sa;

    if (sa->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    if (sa->sa_family != AF_INET6)
        return false;
    /* a socket that takes both families shows the older one's addresses as the newer's */
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
           (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && v6->sin6_addr.s6_addr[12] == 127);
}

bool address_is_loopback(const struct address *a)
{
    struct sockaddr_storage sa;

    if (address_number(a, &sa))
        return sockaddr_is_loopback((const struct sockaddr *)&sa);
    return !strcmp(a->host, "localhost");
}

bool address_is_wildcard(const struct address *a)
{
    return !strcmp(a->host, "0.0.0.0") || !strcmp(a->host, "::");
}
