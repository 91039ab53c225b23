/* The row "tcp": transports, peers, and their turns. */
#include "daemon/transport/tcp.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/transport/interface.h"

#define READY_MAX 64

/* ---- transports */

static void transport_free(struct tcp_transport *t)
{
    channels_fini(&t->channels);
    tcp_stop_listening(t);
    if (t->epoll >= 0)
        close(t->epoll);
    free(t);
}

static int configure(struct tcp_transport *t, const struct transport_config *config,
                     struct error *e)
{
    char device[IF_NAMESIZE];
    const uint16_t order = 1;
    int family, r;

    if (sodium_init() < 0)
        return error_set(e, ERROR_SYSTEM, "libsodium does not start");
    r = interface_of(config->address, device, &family, e);
    if (r < 0)
        return r;
    if (config->devices[0] && strcmp(config->devices, device) != 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s is an address of %s, not of '%s'; this transport uses one device",
                         config->address, device, config->devices);
    snprintf(t->settings, sizeof(t->settings), "tcp 1 window=%u %s", EAGER_WINDOW,
             *(const uint8_t *)&order ? "little" : "big");
    snprintf(t->description, sizeof(t->description), "tcp %s", device);
    return tcp_listen(t, config, family, e);
}

static int open_transport(const struct transport_config *config, struct transport **ret,
                          struct error *e)
{
    struct tcp_transport *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return error_set_errno(e, ENOMEM, "making a transport");
    t->base.ops = &transport_tcp;
    t->watched = WATCHED_PORT;
    t->listener = t->spare = -1;
    list_init(&t->peers);
    list_init(&t->active);
    list_init(&t->strangers);
    channels_init(&t->channels);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (t->epoll < 0)
        r = error_set_errno(e, errno, "making an epoll descriptor");
    else
        r = configure(t, config, e);
    if (r < 0) {
        transport_free(t);
        return r;
    }
    *ret = &t->base;
    return 0;
}

static void close_transport(struct transport *t)
{
    transport_free(tcp_transport(t));
}

static const char *settings(const struct transport *t)
{
    return tcp_transport(t)->settings;
}

static const char *describe(const struct transport *t)
{
    return tcp_transport(t)->description;
}

static uint64_t gpu_bytes_min(const struct transport *t)
{
    (void)t;
    return TRANSPORT_NO_GPUS;
}

/* ---- peers */

static int peer_new(struct transport *transport, struct transport_peer **ret, struct error *e)
{
    struct tcp_peer *p = calloc(1, sizeof(*p));
    int r;

    if (!p)
        return error_set_errno(e, ENOMEM, "making a peer");
    p->base.transport = transport;
    p->watched = WATCHED_PEER;
    p->fd = -1;
    list_init(&p->link);
    list_init(&p->active);
    list_init(&p->leaving);
    list_init(&p->finished);
    list_init(&p->notes);
    list_init(&p->asks);
    for (size_t i = 0; i < MESSAGE_BUCKETS; i++)
        list_init(&p->known[i]);
    r = tcp_peer_write_card(p, e);
    if (r < 0) {
        free(p);
        return r;
    }
    list_append(&tcp_transport(transport)->peers, &p->link);
    *ret = &p->base;
    return 0;
}

static void free_notes(struct tcp_peer *p)
{
    struct note *n, *tmp;

    list_for_each_safe(n, tmp, &p->notes, link) {
        list_remove(&n->link);
        free(n);
    }
}

/* Nothing is read or written any more: what is left can only end. */
static void end_messages(struct list *l)
{
    struct tcp_message *m, *tmp;

    list_for_each_safe(m, tmp, l, link) {
        if (m->transfer)
            tcp_message_finish(m, -ECONNRESET);
        else
            tcp_message_free(m);
    }
}

static void peer_free(struct transport_peer *peer)
{
    struct tcp_peer *p = tcp_peer(peer);

    p->failure = ECONNRESET;
    if (p->fd >= 0)
        close(p->fd);
    if (p->in.body == BODY_ARRIVAL)
        tcp_message_free(p->in.message);
    end_messages(&p->leaving);
    for (size_t i = 0; i < MESSAGE_BUCKETS; i++)
        end_messages(&p->known[i]);
    tcp_message_finish_due(p);
    free_notes(p);
    list_remove(&p->active);
    list_remove(&p->link);
    free(p->card);
    free(p);
}

static void peer_watch(struct transport_peer *peer, void (*failed)(void *owner, int err),
                       void *owner)
{
    struct tcp_peer *p = tcp_peer(peer);

    p->failed = failed;
    p->owner = owner;
    if (p->failure)
        tcp_peer_activate(p);
}

void tcp_peer_activate(struct tcp_peer *p)
{
    list_remove(&p->active);
    list_append(&tcp_transport(p->base.transport)->active, &p->active);
}

void tcp_peer_fail(struct tcp_peer *p, int err)
{
    if (p->failure)
        return;
    p->failure = err;
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    tcp_peer_activate(p);
}

void tcp_peer_watch(struct tcp_peer *p, bool wants_out)
{
    const int epoll = tcp_transport(p->base.transport)->epoll;
    struct epoll_event event = { .events = wants_out ? EPOLLIN | EPOLLOUT : EPOLLIN,
                                 .data.ptr = &p->watched };

    p->wants_out = wants_out;
    if (epoll_ctl(epoll, EPOLL_CTL_MOD, p->fd, &event) < 0 &&
        (errno != ENOENT || epoll_ctl(epoll, EPOLL_CTL_ADD, p->fd, &event) < 0))
        tcp_peer_fail(p, errno);
}

/* ---- turns */

static void take_turn(struct tcp_peer *p)
{
    if (p->up && !p->failure)
        tcp_read(p);
    if (p->up && !p->failure) {
        tcp_send_credit(p);
        tcp_write(p);
    }
    tcp_message_finish_due(p);
    if (p->failure && p->failed && !p->told) {
        p->told = true;
        p->failed(p->owner, p->failure);
    }
}

static void peer_ready(struct tcp_peer *p, uint32_t events)
{
    if (!p->up) {
        tcp_meet_turn(p);
        return;
    }
    if (p->wants_out && events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
        tcp_peer_watch(p, false);
    tcp_peer_activate(p);
}

/* The port goes last: who is dropped for another stranger may be among those that are ready. */
static void find_ready(struct tcp_transport *t)
{
    struct epoll_event events[READY_MAX];
    const int n = epoll_wait(t->epoll, events, READY_MAX, 0);
    bool called = false;

    for (int i = 0; i < n; i++) {
        enum watched *watched = events[i].data.ptr;

        if (*watched == WATCHED_PEER)
            peer_ready(container_of(watched, struct tcp_peer, watched), events[i].events);
        else if (*watched == WATCHED_STRANGER)
            tcp_hear_stranger(t, watched);
        else
            called = true;
    }
    if (called)
        tcp_accept(t);
}

static void poll_transport(struct transport *transport)
{
    struct tcp_transport *t = tcp_transport(transport);
    struct list turn;

    find_ready(t);
    list_init(&turn);
    while (!list_empty(&t->active)) {
        struct tcp_peer *p = list_first(&t->active, struct tcp_peer, active);

        list_remove(&p->active);
        list_append(&turn, &p->active);
    }
    while (!list_empty(&turn)) {
        struct tcp_peer *p = list_first(&turn, struct tcp_peer, active);

        list_remove(&p->active);
        take_turn(p);
    }
}

static bool wants_turn(struct transport *t)
{
    return !list_empty(&tcp_transport(t)->active);
}

static int descriptor(const struct transport *t)
{
    return tcp_transport(t)->epoll;
}

const struct transport_ops transport_tcp = {
    .name = "tcp",
    .open = open_transport,
    .close = close_transport,
    .settings = settings,
    .describe = describe,
    .gpu_bytes_min = gpu_bytes_min,
    .peer_new = peer_new,
    .peer_address = tcp_peer_card,
    .peer_connect = tcp_peer_connect,
    .peer_free = peer_free,
    .peer_watch = peer_watch,
    .channel_open = tcp_channel_open,
    .channel_close = tcp_channel_close,
    .channel_forget = tcp_channel_forget,
    .send = tcp_send,
    .recv = tcp_recv,
    .cancel = tcp_cancel,
    .poll = poll_transport,
    .wants_turn = wants_turn,
    .fd = descriptor,
};
