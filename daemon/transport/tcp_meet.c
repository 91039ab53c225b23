/*
 * The row "tcp": how two ends of a peer come to have a connection.
 *
 * Each end has a random token, which the other learns over the authenticated link and nobody else
 * does. Both may dial: who does sends the other's token and its own, and is answered by one byte.
 * Where both dial at once, the dial of the lower token stays.
 */
#include "daemon/transport/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/transport/interface.h"

static const char magic[8] = "ruccl-1";

struct greeting {
    char magic[8];
    uint8_t to[TOKEN_BYTES], from[TOKEN_BYTES];
};

enum answer {
    ANSWER_WELCOME = 'w',
    ANSWER_WAIT = 'd', /* our own dial stays */
};

/* What one end tells the other over the link. */
struct card {
    uint8_t token[TOKEN_BYTES];
    struct sockaddr_storage address;
};

/* Somebody who has connected and not yet said to whom. */
struct stranger {
    enum watched watched;
    struct list link; // tcp_transport::strangers
    int fd;
    uint32_t have;
    struct greeting greeting;
};

/* ---- the port */

static socklen_t address_bytes(int family)
{
    return family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
    if (a->ss_family == AF_INET)
        ((struct sockaddr_in *)a)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)a)->sin6_port = htons(port);
}

static int parse_address(const char *text, int family, struct sockaddr_storage *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->ss_family = (sa_family_t)family;
    return inet_pton(family, text,
                     family == AF_INET ? (void *)&((struct sockaddr_in *)ret)->sin_addr
                                       : (void *)&((struct sockaddr_in6 *)ret)->sin6_addr);
}

/* Return: the descriptor, or -errno. */
static int open_port(struct sockaddr_storage *a, uint16_t port)
{
    const int fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    const int one = 1;
    int err;

    if (fd < 0)
        return -errno;
    set_port(a, port);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)a, address_bytes(a->ss_family)) == 0 &&
        listen(fd, STRANGERS_MAX) == 0)
        return fd;
    err = errno;
    close(fd);
    return -err;
}

static int spare_fd(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int tcp_listen(struct tcp_transport *t, const struct transport_config *config, int family,
               struct error *e)
{
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &t->watched };
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    uint16_t ports[2];
    int r = ports_parse(config->ports, ports, e);

    if (r < 0)
        return r;
    parse_address(config->address, family, &a);
    r = -EADDRINUSE;
    for (unsigned port = ports[0]; r == -EADDRINUSE && port <= ports[1]; port++)
        r = open_port(&a, (uint16_t)port);
    if (r == -EADDRINUSE)
        return error_set(e, ERROR_SYSTEM, "no port of %u-%u is free", ports[0], ports[1]);
    if (r < 0)
        return error_set_errno(e, -r, "opening a port for payload");
    t->listener = r;
    t->spare = spare_fd();
    if (getsockname(r, (struct sockaddr *)&t->address, &len) < 0 ||
        epoll_ctl(t->epoll, EPOLL_CTL_ADD, r, &event) < 0)
        return error_set_errno(e, errno, "opening a port for payload");
    return 0;
}

/* ---- strangers */

static void stranger_free(struct tcp_transport *t, struct stranger *s)
{
    list_remove(&s->link);
    t->nstrangers--;
    if (s->fd >= 0)
        close(s->fd);
    free(s);
}

void tcp_stop_listening(struct tcp_transport *t)
{
    while (!list_empty(&t->strangers))
        stranger_free(t, list_first(&t->strangers, struct stranger, link));
    if (t->listener >= 0)
        close(t->listener);
    if (t->spare >= 0)
        close(t->spare);
}

static void take_stranger(struct tcp_transport *t, int fd)
{
    struct stranger *s = calloc(1, sizeof(*s));
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = &s->watched };

    if (!s || epoll_ctl(t->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        free(s);
        close(fd);
        return;
    }
    s->watched = WATCHED_STRANGER;
    s->fd = fd;
    list_append(&t->strangers, &s->link);
    if (++t->nstrangers > STRANGERS_MAX) /* who has been silent for longest */
        stranger_free(t, list_first(&t->strangers, struct stranger, link));
}

static int accept_one(struct tcp_transport *t)
{
    return accept4(t->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/* There is no descriptor for him: who is left waiting would keep the port readable. */
static void turn_away(struct tcp_transport *t)
{
    int fd;

    if (t->spare >= 0)
        close(t->spare);
    fd = accept_one(t);
    if (fd >= 0)
        close(fd);
    t->spare = spare_fd();
}

void tcp_accept(struct tcp_transport *t)
{
    const int fd = accept_one(t);

    if (fd >= 0)
        take_stranger(t, fd);
    else if (errno == EMFILE || errno == ENFILE)
        turn_away(t);
}

static struct tcp_peer *find_peer(struct tcp_transport *t, const uint8_t token[TOKEN_BYTES])
{
    struct tcp_peer *p, *found = NULL;

    list_for_each(p, &t->peers, link)
        if (sodium_memcmp(p->token, token, TOKEN_BYTES) == 0)
            found = p;
    return found;
}

static bool own_dial_stays(const struct tcp_peer *p)
{
    return p->dials && memcmp(p->token, p->other, TOKEN_BYTES) < 0;
}

static void settle(struct tcp_peer *p)
{
    const int one = 1;

    p->up = true;
    setsockopt(p->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    tcp_peer_watch(p, false);
    tcp_peer_activate(p);
}

static void hang_up(struct tcp_peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    p->dials = false;
}

/* Returns what the stranger is answered; 0: nothing, he is not meant to be here. */
static uint8_t judge(struct tcp_transport *t, const struct greeting *g, struct tcp_peer **ret)
{
    struct tcp_peer *p = find_peer(t, g->to);

    if (memcmp(g->magic, magic, sizeof(magic)) || !p || p->up || p->failure ||
        (p->knows_other && sodium_memcmp(p->other, g->from, TOKEN_BYTES)))
        return 0;
    *ret = p;
    return own_dial_stays(p) ? ANSWER_WAIT : ANSWER_WELCOME;
}

static void hear_out(struct tcp_transport *t, struct stranger *s)
{
    struct tcp_peer *p = NULL;
    const uint8_t answer = judge(t, &s->greeting, &p);

    if (answer && send(s->fd, &answer, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1 &&
        answer == ANSWER_WELCOME) {
        hang_up(p);
        p->fd = s->fd;
        s->fd = -1;
        memcpy(p->other, s->greeting.from, TOKEN_BYTES);
        epoll_ctl(t->epoll, EPOLL_CTL_DEL, p->fd, NULL);
        settle(p);
    }
    stranger_free(t, s);
}

void tcp_hear_stranger(struct tcp_transport *t, enum watched *watched)
{
    struct stranger *s = container_of(watched, struct stranger, watched);
    const ssize_t n =
        recv(s->fd, (uint8_t *)&s->greeting + s->have, sizeof(s->greeting) - s->have, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        s->have += (uint32_t)n;
    if (n <= 0)
        stranger_free(t, s);
    else if (s->have == sizeof(s->greeting))
        hear_out(t, s);
}

/* ---- dialling */

static int dial(struct tcp_peer *p, const struct sockaddr_storage *a)
{
    p->fd = socket(a->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (p->fd < 0)
        return -errno;
    p->dials = true;
    if (connect(p->fd, (const struct sockaddr *)a, address_bytes(a->ss_family)) < 0 &&
        errno != EINPROGRESS)
        return -errno;
    tcp_peer_watch(p, true);
    return 0;
}

static void greet(struct tcp_peer *p)
{
    struct greeting g;
    int err = 0;
    socklen_t len = sizeof(err);

    memcpy(g.magic, magic, sizeof(magic));
    memcpy(g.to, p->other, TOKEN_BYTES);
    memcpy(g.from, p->token, TOKEN_BYTES);
    getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    if (err == 0 && send(p->fd, &g, sizeof(g), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(g))
        err = ECONNRESET; /* of a connection that is new there is always room for so little */
    if (err)
        tcp_peer_fail(p, err);
    else
        tcp_peer_watch(p, false);
}

static void hear_answer(struct tcp_peer *p)
{
    uint8_t answer = 0;
    const ssize_t n = recv(p->fd, &answer, 1, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 1 && answer == ANSWER_WELCOME)
        settle(p);
    else if (n == 1 && answer == ANSWER_WAIT)
        hang_up(p);
    else
        tcp_peer_fail(p, ECONNRESET);
}

void tcp_meet_turn(struct tcp_peer *p)
{
    if (p->wants_out)
        greet(p);
    else
        hear_answer(p);
}

/* ---- the two ends' cards */

int tcp_peer_write_card(struct tcp_peer *p, struct error *e)
{
    struct card *card = calloc(1, sizeof(*card));

    if (!card)
        return error_set_errno(e, ENOMEM, "making a peer");
    randombytes_buf(p->token, TOKEN_BYTES);
    memcpy(card->token, p->token, TOKEN_BYTES);
    card->address = tcp_transport(p->base.transport)->address;
    p->card = card;
    return 0;
}

const void *tcp_peer_card(const struct transport_peer *p, size_t *ret_len)
{
    *ret_len = sizeof(struct card);
    return tcp_peer(p)->card;
}

int tcp_peer_connect(struct transport_peer *peer, const void *address, size_t len, struct error *e)
{
    struct tcp_peer *p = tcp_peer(peer);
    const int family = tcp_transport(peer->transport)->address.ss_family;
    struct card card;
    int r;

    if (len != sizeof(card))
        return error_set(e, ERROR_PROTOCOL, "an address for payload of %zu bytes", len);
    memcpy(&card, address, sizeof(card));
    if (card.address.ss_family != family)
        return error_set(e, ERROR_PROTOCOL, "an address for payload of another family");
    if (p->up && sodium_memcmp(p->other, card.token, TOKEN_BYTES))
        return error_set(e, ERROR_PROTOCOL, "somebody else has connected for payload");
    memcpy(p->other, card.token, TOKEN_BYTES);
    p->knows_other = true;
    if (p->up)
        return 0;
    r = dial(p, &card.address);
    return r < 0 ? error_set_errno(e, -r, "connecting for payload") : 0;
}
