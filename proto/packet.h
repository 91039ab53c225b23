/*
 * Packets: one datagram of a SOCK_SEQPACKET socket with its file descriptors. Knows limits, and
 * nothing of what is inside. Never blocks longer than the socket does.
 */
#ifndef PROTO_PACKET_H
#define PROTO_PACKET_H

#include "shared/base.h"

#define PACKET_BYTES_MAX  65536u
#define PACKET_FDS_MAX    4u
#define PACKET_PEER_BYTES 24u

struct packet {
    uint32_t len;
    uint32_t nfds;
    int fds[PACKET_FDS_MAX];
    uint8_t bytes[PACKET_BYTES_MAX];
};

/* Conditions of packet_recv() and packet_send() */
#define PACKET_AGAIN 1 /* nothing there, or no room: poll the socket */
#define PACKET_END   2 /* the other side is gone, in good order or not */

/*
 * Receives one datagram; its fds are close-on-exec and p's to close (packet_close_fds).
 * Return: 0, a condition, -EMSGSIZE for a datagram over the limit, -EPROTO for one that is empty or
 * brings more fds than PACKET_FDS_MAX (all of them are closed then), or another -errno.
 * PACKET_END comes only once everything that was sent has been received.
 */
int packet_recv(int socket, struct packet *p);

/* Closes the fds still in p. A taken fd is replaced by -1. */
void packet_close_fds(struct packet *p);

/* Takes fd i out of the packet; -1 if there is none. */
int packet_take_fd(struct packet *p, uint32_t i);

/* Of who serves a connected socket, to go behind its name: " (pid 123)", or "" where it cannot be
 * seen from here, or init listened for it. Who else did, as for a connection from before an
 * activated daemon listened itself, is taken for the daemon. Return: `ret`. */
const char *packet_peer(int socket, char ret[PACKET_PEER_BYTES]);

/* Sends `len` bytes and, if fd >= 0, that fd. Never raises SIGPIPE. Return: 0, a condition, -errno.
 */
int packet_send(int socket, const void *bytes, uint32_t len, int fd);

#endif
