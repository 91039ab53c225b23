#include "daemon/server/session_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define READS_PER_EVENT 64u   /* datagrams of one session before the others have their turn */
#define READS_AT_DEATH  1024u /* more than a socket holds, fewer than a living child can keep up */
#define OUTGOING_BYTES  (16u << 20)

/* A reply that the socket had no room for. */
struct outgoing {
    struct list link; // session::outgoing
    int fd;
    uint32_t len;
    uint8_t bytes[];
};

static struct log_context session_log(const struct session *s)
{
    return (struct log_context){ .uid = &s->uid, .pid = s->pid };
}

/* ---- life ---- */

void session_set_deadline(struct session *s, uint64_t at)
{
    s->deadline = at;
    list_remove(&s->timed_link);
    if (at != TIME_NEVER)
        list_append(&s->service->timed, &s->timed_link);
}

void session_doom(struct session *s, const char *why)
{
    struct log_context log = session_log(s);

    if (s->state >= SESSION_DOOMED)
        return;
    log_info(&log, "session %lu of pid %d: %s%s%s", (unsigned long)s->number, s->pid, why,
             s->farewell.code ? ": " : "", s->farewell.code ? s->farewell.text : "");
    if (s->state == SESSION_STRANGER)
        quota_release(&s->service->quotas, s->uid, QUOTA_STRANGERS, 1);
    s->state = SESSION_DOOMED;
    s->why = why;
    list_append(&s->service->doomed, &s->doomed_link);
}

int session_refuse(struct session *s, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(&s->farewell, ERROR_PROTOCOL, "%s", text);
    session_doom(s, "broke the protocol");
    return -ERROR_PROTOCOL;
}

void session_dismiss(struct session *s, const struct error *cause)
{
    if (s->state >= SESSION_DOOMED)
        return;
    s->farewell = *cause;
    session_doom(s, "was disconnected by the daemon");
}

int session_give_up(struct session *s, enum error_code code, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    struct error e = { 0 };
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(&e, code, "%s", text);
    session_dismiss(s, &e);
    return -(int)code;
}

void sessions_doom_all(struct service *service, const struct error *cause)
{
    struct session *s;

    list_for_each(s, &service->sessions, link)
        session_dismiss(s, cause);
}

static void on_closed(uv_handle_t *handle)
{
    struct session *s = handle->data;

    if (--s->open_handles == 0)
        free(s);
}

static void outgoing_free(struct session *s, struct outgoing *o)
{
    list_remove(&o->link);
    s->noutgoing--;
    s->outgoing_bytes -= o->len;
    if (o->fd >= 0)
        close(o->fd);
    free(o);
}

/* Return: as packet_send(). */
static int session_send(struct session *s, const void *bytes, uint32_t len, int fd)
{
    const int r = packet_send(s->socket, bytes, len, fd);

    if (r == 0)
        session_ring_for_socket(s);
    return r;
}

/* Sends what is queued as far as the socket takes it. Return: 0 all sent, or a packet condition. */
static int session_flush(struct session *s)
{
    while (!list_empty(&s->outgoing)) {
        struct outgoing *o = list_first(&s->outgoing, struct outgoing, link);
        int r = session_send(s, o->bytes, o->len, o->fd);

        if (r != 0)
            return r;
        outgoing_free(s, o);
    }
    return 0;
}

/* The last words; then nothing unread is left behind, which would cost the client what we said. */
static void session_say_goodbye(struct session *s)
{
    struct service *service = s->service;
    struct reply goodbye = { .kind = REPLY_GOODBYE, .done = s->farewell };

    if (session_flush(s) == 0 && s->farewell.code) {
        int len = codec_encode_reply(&goodbye, service->out);

        if (len > 0)
            session_send(s, service->out, (uint32_t)len, -1);
    }
    for (unsigned i = 0; i < READS_AT_DEATH; i++) {
        if (packet_recv(s->socket, &service->in) != 0)
            break;
        packet_close_fds(&service->in);
    }
}

static void session_end(struct session *s)
{
    assert(s->state == SESSION_DOOMED);
    session_say_goodbye(s);
    shutdown(s->socket, SHUT_RDWR);
    session_ring_for_socket(s);
    session_undo_members(s);
    session_undo_regions(s);
    session_undo_fences(s);
    session_undo_rings(s);
    session_undo_hello(s);
    while (!list_empty(&s->outgoing))
        outgoing_free(s, list_first(&s->outgoing, struct outgoing, link));
    s->state = SESSION_ENDED;
    list_remove(&s->doomed_link);
    list_remove(&s->timed_link);
    list_remove(&s->link);

    uv_close((uv_handle_t *)&s->socket_poll, on_closed);
    close(s->socket);
    if (s->pidfd >= 0) {
        uv_close((uv_handle_t *)&s->pidfd_poll, on_closed);
        close(s->pidfd);
    }
}

uint64_t sessions_turn(struct service *service, uint64_t now)
{
    uint64_t next = TIME_NEVER;
    struct session *s, *tmp;

    list_for_each_safe(s, tmp, &service->timed, timed_link) {
        if (s->deadline <= now)
            session_give_up(s, ERROR_TIMEOUT, "no hello within %lu ms",
                            (unsigned long)(service->config->hello_timeout_us / 1000));
        else
            next = MIN(next, s->deadline);
    }
    while (!list_empty(&service->doomed))
        session_end(list_first(&service->doomed, struct session, doomed_link));
    return next;
}

/* ---- replies ---- */

static void on_socket(uv_poll_t *handle, int status, int events);

static void session_poll(struct session *s)
{
    int events = UV_READABLE | UV_DISCONNECT;

    if (!list_empty(&s->outgoing))
        events |= UV_WRITABLE;
    if (events == s->polled)
        return;
    s->polled = events;
    uv_poll_start(&s->socket_poll, events, on_socket);
}

static void session_queue(struct session *s, const void *bytes, uint32_t len, int fd)
{
    struct error e = { 0 };
    struct outgoing *o = NULL;

    if (s->noutgoing >= s->nslots || s->outgoing_bytes + len > OUTGOING_BYTES)
        error_set(&e, ERROR_QUOTA, "%u replies are waiting and the client does not read them",
                  s->noutgoing);
    else if (!(o = malloc(sizeof(*o) + len)))
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
    if (!o) {
        if (fd >= 0)
            close(fd);
        session_dismiss(s, &e);
        return;
    }
    o->fd = fd;
    o->len = len;
    memcpy(o->bytes, bytes, len);
    list_append(&s->outgoing, &o->link);
    s->noutgoing++;
    s->outgoing_bytes += len;
    session_poll(s);
}

/* Until the socket has room; the descriptor is the caller's. */
static void session_defer(struct session *s, const void *bytes, uint32_t len, int fd)
{
    const int kept = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;

    if (fd >= 0 && kept < 0)
        session_give_up(s, ERROR_SYSTEM, "no file descriptor for a reply that has to wait");
    else
        session_queue(s, bytes, len, kept);
}

int session_reply(struct session *s, const struct reply *reply, int fd)
{
    uint8_t *out = s->service->out;
    int len, r = PACKET_AGAIN;

    if (s->state >= SESSION_DOOMED)
        return 0;
    len = repeat_encode_reply(&s->service->replies, reply, out);
    if (len < 0)
        return len;

    if (fd < 0 && session_put_reply(s, out, (uint32_t)len))
        return 0;
    if (list_empty(&s->outgoing))
        r = session_send(s, out, (uint32_t)len, fd);
    if (r == PACKET_AGAIN)
        session_defer(s, out, (uint32_t)len, fd);
    else if (r < 0) /* a client that is gone is found out by its hang-up, and asked why */
        session_doom(s, "disconnected");
    return 0;
}

void session_reply_done(struct session *s, uint64_t serial, const struct error *e)
{
    struct reply reply = { .kind = REPLY_DONE, .serial = serial, .done = *e };

    session_reply(s, &reply, -1);
}

/* ---- events ---- */

/*
 * A process that dies gives its memory back first, then its files, and its pidfd tells last, which
 * is long after where others want the CPU. The kernel releases the memory of the dying on request:
 * it refuses that of the living (EINVAL), and of who closed its files by dying there is none left
 * (ESRCH). Before Linux 5.15, or where that is filtered, it is left at the pidfd.
 */
static bool process_is_dead(const struct session *s)
{
    struct pollfd p = { .fd = s->pidfd, .events = POLLIN };

    if (poll(&p, 1, 0) > 0 || syscall(SYS_process_mrelease, s->pidfd, 0) == 0)
        return true;
    return errno == ESRCH || errno == EAGAIN;
}

/* The socket is at its end. Who has taken part in nothing, or has left it, is nobody's loss, and
 * ends well by exiting. */
static void session_hang_up(struct session *s)
{
    const bool lost = s->pidfd >= 0 && s->memberships.count;

    session_doom(s, lost && process_is_dead(s) ? "died" : "disconnected");
}

static void session_refuse_datagram(struct session *s, int r)
{
    struct error e = { 0 };

    if (r == -EMSGSIZE) {
        session_refuse(s, "a datagram of more than %u bytes", PACKET_BYTES_MAX);
    } else if (r == -EPROTO) {
        session_refuse(s, "an empty datagram, or one with more than %u file descriptors",
                       PACKET_FDS_MAX);
    } else {
        error_set_errno(&e, -r, "receiving a datagram");
        session_dismiss(s, &e);
    }
}

/* Handles up to `limit` datagrams. Return: whether the end was reached. */
static bool session_read(struct session *s, unsigned limit)
{
    struct packet *p = &s->service->in;

    while (limit-- && s->state < SESSION_DOOMED) {
        int r = packet_recv(s->socket, p);

        if (r == PACKET_AGAIN)
            return false;
        if (r == PACKET_END)
            return true;
        if (r < 0) {
            session_refuse_datagram(s, r);
            return false;
        }
        session_take_requests(s, RING_MESSAGES_MAX); /* they were put before this was sent */
        if (s->state < SESSION_DOOMED)
            session_handle(s, p);
        packet_close_fds(p);
    }
    return false;
}

static void on_socket(uv_poll_t *handle, int status, int events)
{
    struct session *s = handle->data;
    bool ended;

    if (s->state >= SESSION_DOOMED)
        return;
    if (events & UV_WRITABLE) {
        session_flush(s);
        session_poll(s);
    }

    /* after an error libuv has stopped the handle: this is the last chance to read */
    ended = session_read(s, status < 0 ? READS_AT_DEATH : READS_PER_EVENT);
    if (ended || status < 0)
        session_take_requests(s, RING_MESSAGES_MAX);
    if (s->state < SESSION_DOOMED && (ended || status < 0))
        session_hang_up(s);
}

static void on_pidfd(uv_poll_t *handle, int status, int events)
{
    struct session *s = handle->data;

    (void)status;
    (void)events;
    uv_poll_stop(handle);
    session_read(s, READS_AT_DEATH); /* what it said before it died still counts */
    session_take_requests(s, RING_MESSAGES_MAX);
    session_doom(s, s->memberships.count ? "died" : "disconnected");
}

int session_watch_process(struct session *s, int pidfd)
{
    int r = uv_poll_init(s->service->loop, &s->pidfd_poll, pidfd);

    if (r < 0)
        return r;
    s->pidfd = pidfd;
    s->pidfd_poll.data = s;
    s->open_handles++;
    return uv_poll_start(&s->pidfd_poll, UV_READABLE, on_pidfd);
}

/* ---- arrival ---- */

static void turn_away(struct service *service, int socket, const struct error *e)
{
    struct reply goodbye = { .kind = REPLY_GOODBYE, .done = *e };
    int len = codec_encode_reply(&goodbye, service->out);

    if (len > 0)
        packet_send(socket, service->out, (uint32_t)len, -1);
    close(socket);
}

void session_open(struct service *service, int socket)
{
    struct ucred peer;
    struct error e = { 0 };
    struct session *s;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){ sizeof(peer) }) < 0) {
        error_set_errno(&e, errno, "SO_PEERCRED");
        turn_away(service, socket, &e);
        return;
    }
    if (quota_charge(&service->quotas, peer.uid, QUOTA_STRANGERS, 1, &e) < 0) {
        turn_away(service, socket, &e);
        return;
    }
    s = calloc(1, sizeof(*s));
    if (!s || uv_poll_init(service->loop, &s->socket_poll, socket) < 0) {
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
        quota_release(&service->quotas, peer.uid, QUOTA_STRANGERS, 1);
        turn_away(service, socket, &e);
        free(s);
        return;
    }

    s->service = service;
    s->number = ++service->next_session;
    s->uid = peer.uid;
    s->pid = peer.pid;
    s->socket = socket;
    s->pidfd = -1;
    s->socket_poll.data = s;
    s->open_handles = 1;
    s->nslots = (uint32_t)service->config->max_in_flight;
    list_init(&s->outgoing);
    list_init(&s->doomed_link);
    list_init(&s->all_memberships);
    list_init(&s->awake_link);
    list_init(&s->owed_link);
    list_init(&s->timed_link);
    session_set_deadline(s, service_now() + service->config->hello_timeout_us);
    list_append(&service->sessions, &s->link);
    session_poll(s);
}
