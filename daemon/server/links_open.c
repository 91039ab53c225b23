#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "daemon/log/log.h"
#include "daemon/server/links_private.h"
#include "daemon/server/service.h"

#define BACKLOG         1024     /* many nodes may come at once */
#define ACCEPT_PAUSE_US 1000000u /* without memory for another connection */

static void links_free(struct links *links)
{
    wires_fini(&links->wires);
    free(links);
}

static void on_idle(void *owner)
{
    struct links *links = owner;

    if (links->closed)
        links_free(links);
}

static void on_server_closed(uv_handle_t *handle)
{
    struct links *links = handle->data;

    links->closed = true;
    if (links->wires.alive == 0)
        links_free(links);
}

static void on_connection(uv_stream_t *server, int status)
{
    struct links *links = server->data;

    if (status < 0) {
        log_warning(NULL, "a daemon's connection could not be taken: %s", uv_strerror(status));
        return;
    }
    links->knocking = true;
    links_accept(links, service_now());
}

/* The loop offers the next one only when this one has been taken. */
void links_accept(struct links *links, uint64_t now)
{
    uint64_t at = wires_room_at(&links->wires, now);

    if (at == 0 && wire_accept(&links->wires, (uv_stream_t *)&links->server) == 0) {
        links->knocking = false;
        return;
    }
    links->due = MIN(links->due, at ? at : now + ACCEPT_PAUSE_US);
}

static int cannot_listen(struct error *e, const char *address, int r)
{
    return error_set(e, ERROR_SYSTEM, "cannot listen at %s: %s", address, uv_strerror(r));
}

/* What the address means on this host; the name of it is looked up while nobody waits yet. */
static int resolve_own(uv_loop_t *loop, const struct address *a, struct sockaddr_storage *ret,
                       struct error *e)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE };
    uv_getaddrinfo_t request;
    int r;

    if (address_number(a, ret))
        return 0;
    r = uv_getaddrinfo(loop, &request, NULL, a->host, NULL, &hints);
    if (r < 0)
        return cannot_listen(e, a->text, r);
    memcpy(ret, request.addrinfo->ai_addr, request.addrinfo->ai_addrlen);
    uv_freeaddrinfo(request.addrinfo);
    sockaddr_set_port((struct sockaddr *)ret, a->port);
    return 0;
}

/* Sets the port of `a` to the one that was given, where any would do. */
static int links_listen(struct links *links, struct address *a, struct error *e)
{
    struct sockaddr_storage sa;
    int len = sizeof(sa), r;

    r = resolve_own(links->wires.loop, a, &sa, e);
    if (r < 0)
        return r;
    r = uv_tcp_bind(&links->server, (struct sockaddr *)&sa, 0);
    if (r == 0)
        r = uv_listen((uv_stream_t *)&links->server, BACKLOG, on_connection);
    if (r == 0)
        r = uv_tcp_getsockname(&links->server, (struct sockaddr *)&sa, &len);
    if (r < 0)
        return cannot_listen(e, a->text, r);
    if (a->port == 0)
        address_of((struct sockaddr *)&sa, a);
    return 0;
}

static void set_self(struct party *self, const struct links_config *config)
{
    self->version_min = config->version_min;
    self->version_max = config->version_max;
    strncpy(self->node, config->node, sizeof(self->node) - 1);
    strncpy(self->host, config->host, sizeof(self->host) - 1);
    randombytes_buf(&self->instance, sizeof(self->instance));
    self->ciphers = ciphers_here();
}

static int links_start(struct links *links, const struct links_config *config, struct error *e)
{
    struct address listen, advertised;
    int r;

    if (sodium_init() < 0)
        return error_set(e, ERROR_SYSTEM, "libsodium does not start");
    r = address_parse(config->listen, &listen, e);
    if (r == 0)
        r = address_to_advertise(config->listen, config->advertise, &advertised, e);
    if (r == 0)
        r = links_listen(links, &listen, e);
    if (r < 0)
        return r;
    set_self(&links->wires.self, config);
    strcpy(links->wires.self.address, *config->advertise ? advertised.text : listen.text);
    r = wires_init(&links->wires);
    return r < 0 ? error_set_errno(e, -r, "making the links' codec") : 0;
}

int links_open(const struct links_config *config, const struct links_events *events,
               struct links **ret, struct error *e)
{
    struct links *links = calloc(1, sizeof(*links));
    int r;

    if (!links)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    links->events = events;
    links->due = TIME_NEVER;
    links->wires.loop = config->loop;
    links->wires.key = *config->key;
    links->wires.transport = config->transport;
    links->wires.connect_timeout_us = config->connect_timeout_us;
    links->wires.peer_timeout_us = config->peer_timeout_us;
    links->wires.max_strangers = config->max_strangers;
    links->wires.events = &links_wire_events;
    links->wires.owner = links;
    list_init(&links->all);
    uv_tcp_init(config->loop, &links->server);
    links->server.data = links;

    r = links_start(links, config, e);
    if (r < 0) {
        uv_close((uv_handle_t *)&links->server, on_server_closed);
        return r;
    }
    log_notice(NULL, "other daemons reach this one at %s%s", links->wires.self.address,
               links->wires.key.shared ? "" : ", those of this host: there is no cluster key");
    *ret = links;
    return 0;
}

void links_serve(struct links *links, struct comms *comms)
{
    links->comms = comms;
}

void links_close(struct links *links)
{
    struct error why = { 0 };

    if (!links)
        return;
    error_set(&why, ERROR_DAEMON_STOPPING, "node %s (%s) is stopping", links->wires.self.host,
              links->wires.self.address);
    links->stopping = true;
    while (!list_empty(&links->all)) {
        struct link *l = list_first(&links->all, struct link, link);
        struct wire *w = l->wire;

        links_lose(links, l, &why);
        if (w)
            wire_part(w, &why);
    }
    wires_close(&links->wires);
    links->wires.idle = on_idle;
    uv_close((uv_handle_t *)&links->server, on_server_closed);
}

bool links_expect(const struct links *links)
{
    const struct link *l;

    list_for_each(l, &links->all, link)
        if (l->expecting)
            return true;
    return false;
}

const char *links_address(const struct links *links)
{
    return links->wires.self.address;
}
