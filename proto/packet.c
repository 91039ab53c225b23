#include "proto/packet.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Room for exactly PACKET_FDS_MAX: the kernel drops what is more and sets MSG_CTRUNC. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int) * PACKET_FDS_MAX)];
};

static void packet_collect_fds(struct packet *p, struct msghdr *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;

        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        assert(p->nfds + n <= PACKET_FDS_MAX);
        memcpy(&p->fds[p->nfds], CMSG_DATA(c), n * sizeof(int));
        p->nfds += (uint32_t)n;
    }
}

/* What a received length of 0 means: an empty datagram looks like the end of the stream. */
static int packet_end_or_empty(int socket)
{
    struct pollfd poll_fd = { .fd = socket, .events = POLLRDHUP };
    int unread = 0;

    if (poll(&poll_fd, 1, 0) < 0 || ioctl(socket, FIONREAD, &unread) < 0)
        return -errno;
    if ((poll_fd.revents & (POLLHUP | POLLRDHUP)) && unread == 0)
        return PACKET_END;
    return -EPROTO;
}

static int packet_check(int socket, const struct packet *p, int flags)
{
    if (flags & MSG_TRUNC)
        return -EMSGSIZE;
    if (flags & MSG_CTRUNC) /* too many, or this process has no room for those that are allowed */
        return p->nfds < PACKET_FDS_MAX ? -EMFILE : -EPROTO;
    if (p->len > 0)
        return 0;
    return p->nfds > 0 ? -EPROTO : packet_end_or_empty(socket);
}

int packet_recv(int socket, struct packet *p)
{
    union control control;
    struct iovec iov = { .iov_base = p->bytes, .iov_len = sizeof(p->bytes) };
    struct msghdr m;
    ssize_t n;

    p->len = 0;
    p->nfds = 0;

    /* A peer that closed with unread data resets the connection once, ahead of what it had sent. */
    do {
        m = (struct msghdr){ .msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control) };
        n = recvmsg(socket, &m, MSG_CMSG_CLOEXEC);
    } while (n < 0 && (errno == EINTR || errno == ECONNRESET));
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? PACKET_AGAIN : -errno;

    p->len = (uint32_t)n;
    packet_collect_fds(p, &m);

    int r = packet_check(socket, p, m.msg_flags);
    if (r != 0) {
        packet_close_fds(p);
        p->len = 0;
    }
    return r;
}

void packet_close_fds(struct packet *p)
{
    for (uint32_t i = 0; i < p->nfds; i++)
        if (p->fds[i] >= 0)
            close(p->fds[i]);
    p->nfds = 0;
}

int packet_take_fd(struct packet *p, uint32_t i)
{
    if (i >= p->nfds)
        return -1;

    int fd = p->fds[i];

    p->fds[i] = -1;
    return fd;
}

const char *packet_peer(int socket, char ret[PACKET_PEER_BYTES])
{
    struct ucred peer = { 0 };

    ret[0] = '\0';
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){ sizeof(peer) }) == 0 &&
        peer.pid > 1)
        snprintf(ret, PACKET_PEER_BYTES, " (pid %d)", (int)peer.pid);
    return ret;
}

int packet_send(int socket, const void *bytes, uint32_t len, int fd)
{
    union control control = { 0 };
    struct iovec iov = { .iov_base = (void *)bytes, .iov_len = len };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };
    ssize_t n;

    assert(len > 0 && len <= PACKET_BYTES_MAX); /* an empty one would read as the end */

    if (fd >= 0) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }

    do {
        n = sendmsg(socket, &m, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    if (n >= 0)
        return 0;
    switch (errno) {
    case EPIPE:
    case ECONNRESET:
        return PACKET_END;
    case EAGAIN:
        return PACKET_AGAIN;
    default:
        return -errno;
    }
}
