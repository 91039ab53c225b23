#include <errno.h>
#include <string.h>

#include "daemon/log/log.h"
#include "daemon/server/wire_private.h"

#define STRANGER_SHARE 100u /* of connect_timeout is a stranger's own where others wait */

int wire_check_reach(const struct wire *w, const struct sockaddr *sa, struct error *e)
{
    const struct wires *ws = w->ws;
    bool loopback = sockaddr_is_loopback(sa);
    struct address a;

    address_of(sa, &a);
    if (!loopback && !ws->key.shared)
        return error_set(e, ERROR_PERMISSION,
                         "%s is not on this host's loopback; with other hosts a daemon needs the "
                         "cluster's key (cluster_key)",
                         a.text);
    if (loopback && !ws->self_is_loopback)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s is a loopback address, another daemon on every host; 'advertise' "
                         "there the address that other hosts reach it at",
                         a.text);
    if (!loopback && ws->self_is_loopback)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s is on another host, which cannot reach this daemon at the loopback "
                         "address %s; 'advertise' here the address that other hosts reach it at",
                         a.text, ws->self.address);
    return 0;
}

/* ---- dialling ---- */

static void wire_connect(struct wire *w, const struct sockaddr *sa);

static void on_tcp_again(uv_handle_t *handle)
{
    struct wire *w = handle->data;
    struct addrinfo *candidate = w->next;

    if (w->state == WIRE_CLOSED) {
        w->closed = true;
        wire_let_go(w);
        return;
    }
    uv_tcp_init(w->ws->loop, &w->tcp);
    w->tcp.data = w;
    w->next = candidate->ai_next;
    wire_connect(w, candidate->ai_addr);
}

static void wire_connect_failed(struct wire *w, int err)
{
    if (w->next)
        uv_close((uv_handle_t *)&w->tcp, on_tcp_again);
    else
        wire_doom(w, false, ERROR_NOT_FOUND, "cannot be connected to: %s", uv_strerror(err));
}

static void on_connect(uv_connect_t *request, int status)
{
    struct wire *w = container_of(request, struct wire, connect);

    if (w->state != WIRE_CONNECTING || wire_is_doomed(w))
        return;
    if (status < 0) {
        wire_connect_failed(w, status);
        return;
    }
    wire_free_resolved(w);
    wire_set_state(w, WIRE_GREETING);
    wire_greet(w);
}

static void wire_connect(struct wire *w, const struct sockaddr *sa)
{
    struct error e = { 0 };
    int r;

    if (wire_check_reach(w, sa, &e) < 0) {
        wire_doom(w, false, e.code, "%s", e.text);
        return;
    }
    r = uv_tcp_connect(&w->connect, &w->tcp, sa, on_connect);
    if (r < 0)
        wire_connect_failed(w, r);
}

static void on_resolved(uv_getaddrinfo_t *request, int status, struct addrinfo *found)
{
    struct wire *w = container_of(request, struct wire, resolve);

    w->resolving = false;
    w->found = found;
    if (w->state == WIRE_CLOSED) {
        wire_let_go(w);
        return;
    }
    if (wire_is_doomed(w))
        return;
    if (status < 0) {
        wire_doom(w, false, ERROR_NOT_FOUND, "its name cannot be resolved: %s",
                  uv_strerror(status));
        return;
    }
    for (struct addrinfo *a = found; a; a = a->ai_next)
        sockaddr_set_port(a->ai_addr, w->address.port);
    w->next = found->ai_next;
    wire_set_state(w, WIRE_CONNECTING);
    wire_connect(w, found->ai_addr);
}

static void wire_resolve(struct wire *w)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG };
    int r = uv_getaddrinfo(w->ws->loop, &w->resolve, on_resolved, w->address.host, NULL, &hints);

    if (r < 0)
        wire_doom(w, false, ERROR_SYSTEM, "its name cannot be resolved: %s", uv_strerror(r));
    else
        w->resolving = true;
}

struct wire *wire_dial(struct wires *ws, const struct address *to, const char *node)
{
    struct wire *w = wire_new(ws, true);
    struct sockaddr_storage sa;

    if (!w)
        return NULL;
    w->address = *to;
    strncpy(w->expected, node, sizeof(w->expected) - 1);
    if (!address_number(to, &sa)) {
        wire_resolve(w);
        return w;
    }
    wire_set_state(w, WIRE_CONNECTING);
    wire_connect(w, (const struct sockaddr *)&sa);
    return w;
}

/* ---- accepting ---- */

/* NULL: there is none. */
static struct wire *oldest_stranger(const struct wires *ws)
{
    struct wire *w;

    list_for_each(w, &ws->all, all_link)
        if (w->stranger)
            return w;
    return NULL;
}

/* A peer proves itself in a few milliseconds: many that come at once wait for their turn, and who
 * stays silent makes room. */
uint64_t wires_room_at(const struct wires *ws, uint64_t now)
{
    uint64_t at;

    if (ws->strangers < ws->max_strangers)
        return 0;
    at = oldest_stranger(ws)->made + ws->connect_timeout_us / STRANGER_SHARE;
    return at <= now ? 0 : at;
}

static void wires_drop_stranger(struct wires *ws)
{
    struct wire *w = oldest_stranger(ws);

    log_info(NULL,
             "a connection from %s: dropped for another, the oldest of %llu that prove nothing",
             w->address.text, (unsigned long long)ws->strangers);
    wire_close(w);
}

int wire_accept(struct wires *ws, uv_stream_t *server)
{
    struct sockaddr_storage sa;
    int len = sizeof(sa), r;
    struct error e = { 0 };
    struct wire *w = wire_new(ws, false);

    if (!w)
        return -ENOMEM;
    r = uv_accept(server, (uv_stream_t *)&w->tcp);
    if (r == 0)
        r = uv_tcp_getpeername(&w->tcp, (struct sockaddr *)&sa, &len);
    if (r < 0) { /* it has gone already */
        wire_close(w);
        return 0;
    }
    address_of((struct sockaddr *)&sa, &w->address);
    if (ws->strangers >= ws->max_strangers)
        wires_drop_stranger(ws);
    w->stranger = true;
    ws->strangers++;
    if (wire_check_reach(w, (struct sockaddr *)&sa, &e) < 0)
        wire_doom(w, false, e.code, "%s", e.text);
    else
        wire_greet(w);
    return 0;
}
