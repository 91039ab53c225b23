/*
 * Addresses of daemons' listeners, as people and ids write them: "host:port", "[v6]:port". One way
 * of writing for each, so that equal addresses are equal texts.
 */
#ifndef DAEMON_SERVER_ADDRESS_H
#define DAEMON_SERVER_ADDRESS_H

#include <sys/socket.h>

#include "proto/peer_codec.h"

/* An id holds it behind "rc1-", 26 characters and "@". */
#define ADDRESS_MAX        (CODEC_ID_MAX - 31u)
#define ADDRESS_TEXT_BYTES (ADDRESS_MAX + 1)
#define ADDRESS_HOST_BYTES (ADDRESS_TEXT_BYTES - 8) /* without brackets, colon and port */

struct address {
    char text[ADDRESS_TEXT_BYTES];
    char host[ADDRESS_HOST_BYTES]; /* a number without brackets, or a name in small letters */
    uint16_t port;
};

/* Return: 0, or -ERROR_INVALID_ARGUMENT worded in `e`. A port of 0 is read as any other. */
int address_parse(const char *text, struct address *ret, struct error *e);

/*
 * What others are told: `advertise`, or, where that is "", where this daemon listens, whose port may
 * not be known yet. Return: 0, or -ERROR_INVALID_ARGUMENT: it is none that others could reach.
 */
int address_to_advertise(const char *listen, const char *advertise, struct address *ret,
                         struct error *e);

/* The address of an internet socket. */
void address_of(const struct sockaddr *sa, struct address *ret);

/* The socket's address, where the host is a number; false where it is a name. */
bool address_number(const struct address *a, struct sockaddr_storage *ret);

/* Sets the port of an internet socket's address. */
void sockaddr_set_port(struct sockaddr *sa, uint16_t port);

/* Whether it means this host on every host: 127.0.0.0/8, ::1, "localhost". */
bool address_is_loopback(const struct address *a);
bool sockaddr_is_loopback(const struct sockaddr *sa);

/* 0.0.0.0 or ::, which can be listened at and not be reached. */
bool address_is_wildcard(const struct address *a);

#endif
