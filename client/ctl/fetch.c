#include "client/ctl/fetch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/packet.h"

/* One conversation: the socket, and room for one message each way. */
struct talk {
    const char *path;
    double timeout_s;
    int socket;
    uint64_t serial;
    struct codec *codec;
    struct packet packet;
    uint8_t bytes[PACKET_BYTES_MAX];
};

static struct talk *talk_free(struct talk *t)
{
    if (t->socket >= 0)
        close(t->socket);
    codec_free(t->codec);
    free(t);
    return NULL;
}
DEFINE_CLEANUP(struct talk *, talk_free)

static int no_answer(const struct talk *t, int err, struct error *e)
{
    return error_set(e, ERROR_SYSTEM, "no daemon answers at %s: %s", t->path, strerror(err));
}

static int silence(const struct talk *t, struct error *e)
{
    char pid[PACKET_PEER_BYTES];

    return error_set(e, ERROR_TIMEOUT, "the daemon at %s%s does not answer within %g s", t->path,
                     packet_peer(t->socket, pid), t->timeout_s);
}

static int talk_connect(struct talk *t, uint64_t timeout_us, struct error *e)
{
    const struct timeval timeout = { .tv_sec = (time_t)(timeout_us / 1000000),
                                     .tv_usec = (suseconds_t)(timeout_us % 1000000) };
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    if (strlen(t->path) >= sizeof(address.sun_path))
        return no_answer(t, ENAMETOOLONG, e);
    strcpy(address.sun_path, t->path);

    t->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (t->socket < 0)
        return error_set_errno(e, errno, "socket");

    /* Blocking, but not for ever: connect too waits where the daemon accepts nobody. */
    if (setsockopt(t->socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
        setsockopt(t->socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0)
        return error_set_errno(e, errno, "setsockopt");
    if (connect(t->socket, (struct sockaddr *)&address, sizeof(address)) == 0)
        return 0;
    return errno == EAGAIN ? silence(t, e) : no_answer(t, errno, e);
}

static int talk_open(const char *path, uint64_t timeout_us, struct talk **ret, struct error *e)
{
    _cleanup_(talk_freep) struct talk *t = malloc(sizeof(*t));

    if (!t)
        return error_set_errno(e, ENOMEM, "talk");
    t->path = path;
    t->timeout_s = (double)timeout_us / 1e6;
    t->socket = -1;
    t->serial = 0;
    t->codec = NULL;
    if (codec_new(&t->codec) < 0)
        return error_set_errno(e, ENOMEM, "codec");

    int r = talk_connect(t, timeout_us, e);
    if (r < 0)
        return r;

    *ret = steal(&t);
    return 0;
}

/* What the result of a packet function means, if it is not 0. */
static int talk_check(const struct talk *t, int r, struct error *e)
{
    if (r == PACKET_AGAIN)
        return silence(t, e);
    if (r == PACKET_END)
        return no_answer(t, ECONNRESET, e);
    return r < 0 ? no_answer(t, -r, e) : 0;
}

static int talk_send(struct talk *t, struct request *request, int fd, struct error *e)
{
    request->serial = ++t->serial;

    int len = codec_encode_request(request, t->bytes);
    if (len < 0)
        return error_set_errno(e, -len, "request");
    return talk_check(t, packet_send(t->socket, t->bytes, (uint32_t)len, fd), e);
}

/* The next reply, which has to be of `kind`; an error in its place becomes ours. */
static int talk_receive(struct talk *t, enum reply_kind kind, struct reply *ret, struct error *e)
{
    struct error told = { 0 };

    int r = talk_check(t, packet_recv(t->socket, &t->packet), e);
    if (r < 0)
        return r;
    packet_close_fds(&t->packet); /* progress cells: of no use here */

    if (codec_decode_reply(t->codec, t->packet.bytes, t->packet.len, ret, &told) < 0)
        return error_set(e, ERROR_PROTOCOL, "the daemon at %s: %s", t->path, told.text);
    if ((ret->kind == REPLY_DONE || ret->kind == REPLY_GOODBYE) && ret->done.code)
        return error_set(e, ret->done.code, "the daemon at %s: %s", t->path, ret->done.text);
    if (ret->kind != kind || ret->serial != t->serial)
        return error_set(e, ERROR_PROTOCOL, "the daemon at %s gives an answer to something else",
                         t->path);
    return 0;
}

static int talk_greet(struct talk *t, struct error *e)
{
    struct request hello = { .kind = REQUEST_HELLO,
                             .hello = { CODEC_VERSION_MIN, CODEC_VERSION_MAX, "rucclctl" } };
    struct reply welcome;
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    if (pidfd < 0)
        return error_set_errno(e, errno, "pidfd_open");

    int r = talk_send(t, &hello, pidfd, e);

    close(pidfd);
    if (r < 0)
        return r;
    return talk_receive(t, REPLY_WELCOME, &welcome, e);
}

int fetch_status(const char *path, uint64_t timeout_us, struct status *status, struct error *e)
{
    _cleanup_(talk_freep) struct talk *t = NULL;
    struct request ask = { .kind = REQUEST_STATUS };
    struct reply page;

    int r = talk_open(path, timeout_us, &t, e);
    if (r < 0)
        return r;
    r = talk_greet(t, e);
    if (r < 0)
        return r;

    do {
        r = talk_send(t, &ask, -1, e);
        if (r < 0)
            return r;
        r = talk_receive(t, REPLY_STATUS_PAGE, &page, e);
        if (r < 0)
            return r;
        for (uint32_t i = 0; i < page.status_page.nitems; i++)
            if (status_add(status, &page.status_page.items[i]) < 0)
                return error_set_errno(e, ENOMEM, "status");
        ask.status.cursor = page.status_page.next_cursor;
    } while (ask.status.cursor != 0);
    return 0;
}
