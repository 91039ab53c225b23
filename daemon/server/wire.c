#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "daemon/log/log.h"
#include "daemon/server/wire_private.h"

#define PARTING_US 1000000u
#define PINGS      5u /* in the time after which a silent peer is a lost one */

/* ---- states ---- */

#define TO(state) (1u << (state))

static const struct {
    const char *name;
    unsigned next;
} states[] = {
    [WIRE_RESOLVING] = { "resolving", TO(WIRE_CONNECTING) | TO(WIRE_CLOSED) },
    [WIRE_CONNECTING] = { "connecting", TO(WIRE_GREETING) | TO(WIRE_CLOSED) },
    [WIRE_GREETING] = { "greeting", TO(WIRE_PROVING) | TO(WIRE_SETUP) | TO(WIRE_CLOSED) },
    [WIRE_PROVING] = { "proving",
                       TO(WIRE_HELD) | TO(WIRE_SETUP) | TO(WIRE_PARTING) | TO(WIRE_CLOSED) },
    [WIRE_HELD] = { "held", TO(WIRE_SETUP) | TO(WIRE_PARTING) | TO(WIRE_CLOSED) },
    [WIRE_SETUP] = { "setting up", TO(WIRE_UP) | TO(WIRE_PARTING) | TO(WIRE_CLOSED) },
    [WIRE_UP] = { "up", TO(WIRE_PARTING) | TO(WIRE_CLOSED) },
    [WIRE_PARTING] = { "parting", TO(WIRE_CLOSED) },
    [WIRE_CLOSED] = { "closed", 0 },
};

void wire_set_state(struct wire *w, enum wire_state state)
{
    assert(states[w->state].next & TO(state));
    log_debug(NULL, "connection %s %s: %s -> %s", w->dialled ? "to" : "from", w->address.text,
              states[w->state].name, states[state].name);
    w->state = state;
}

/* ---- a wire's life ---- */

struct wire *wire_new(struct wires *ws, bool dialled)
{
    struct wire *w = calloc(1, sizeof(*w));
    uint64_t now = service_now();

    if (!w)
        return NULL;
    w->ws = ws;
    w->dialled = dialled;
    w->state = dialled ? WIRE_RESOLVING : WIRE_GREETING;
    list_init(&w->doomed_link);
    list_append(&ws->all, &w->all_link);
    ws->alive++;
    uv_tcp_init(ws->loop, &w->tcp); /* makes no socket yet, and cannot fail */
    w->tcp.data = w;
    w->made = w->heard = now;
    w->deadline = now + ws->connect_timeout_us;
    wire_due(w, w->deadline);
    return w;
}

void wire_free_resolved(struct wire *w)
{
    uv_freeaddrinfo(w->found);
    w->found = w->next = NULL;
}

void wire_let_go(struct wire *w)
{
    struct wires *ws = w->ws;

    if (!w->closed || w->resolving)
        return;
    wire_free_resolved(w);
    handshake_fini(&w->handshake);
    sodium_memzero(&w->out, sizeof(w->out));
    sodium_memzero(&w->in, sizeof(w->in));
    free(w->bytes);
    free(w);
    if (--ws->alive == 0 && ws->idle)
        ws->idle(ws->owner);
}

static void on_closed(uv_handle_t *handle)
{
    struct wire *w = handle->data;

    w->closed = true;
    wire_let_go(w);
}

static void wire_forget_stranger(struct wire *w)
{
    w->ws->strangers -= w->stranger;
    w->stranger = false;
}

static void wire_free_peer(struct wire *w)
{
    struct transport_peer *peer = steal(&w->peer);

    if (peer)
        peer->transport->ops->peer_free(peer);
}

void wire_close(struct wire *w)
{
    if (w->state == WIRE_CLOSED)
        return;
    wire_set_state(w, WIRE_CLOSED);
    wire_forget_stranger(w);
    list_remove(&w->all_link);
    list_remove(&w->doomed_link);
    wire_free_peer(w);
    if (w->resolving)
        uv_cancel((uv_req_t *)&w->resolve);
    if (!uv_is_closing((uv_handle_t *)&w->tcp))
        uv_close((uv_handle_t *)&w->tcp, on_closed);
}

static void on_shutdown(uv_shutdown_t *request, int status)
{
    (void)request;
    (void)status; /* the other end closes, or the deadline comes */
}

/* Closing at once what has bytes unread would take back the words that are on their way. */
void wire_part(struct wire *w, const struct error *why)
{
    struct peer_message m = { .kind = PEER_BYE };

    if (!w->proven || w->state <= WIRE_GREETING || w->state >= WIRE_PARTING) {
        wire_close(w);
        return;
    }
    if (why)
        m.bye.error = *why;
    list_remove(&w->doomed_link);
    wire_send_message(w, &m);
    list_remove(&w->doomed_link); /* whether it could be said makes no difference any more */
    wire_free_peer(w);
    wire_set_state(w, WIRE_PARTING);
    w->deadline = service_now() + PARTING_US;
    wire_due(w, w->deadline);
    if (uv_shutdown(&w->shutdown, (uv_stream_t *)&w->tcp, on_shutdown) < 0)
        wire_close(w);
}

/* ---- what has failed ---- */

static void add_who(const struct wire *w, struct text *t)
{
    const struct party *p = &w->handshake.theirs;

    if (w->proven)
        text_add(t, "node %s (%s)", p->host, p->address);
    else if (w->dialled)
        text_add(t, "the daemon at %s", w->address.text);
    else if (*p->node)
        text_add(t, "a connection from %s that says it is node %s (%s)", w->address.text, p->host,
                 p->address);
    else
        text_add(t, "a connection from %s", w->address.text);
}

bool wire_is_doomed(const struct wire *w)
{
    return !list_empty(&w->doomed_link);
}

void wire_doom(struct wire *w, bool tell, enum error_code code, const char *format, ...)
{
    struct text t = { 0 };
    char what[ERROR_TEXT_BYTES];
    va_list args;

    if (w->state >= WIRE_PARTING || wire_is_doomed(w))
        return;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    add_who(w, &t);
    text_add(&t, ": %s", what);
    memset(&w->failure, 0, sizeof(w->failure));
    error_set(&w->failure, code, "%s", t.s);
    w->tell = tell;
    list_append(&w->ws->doomed, &w->doomed_link);
}

static void wires_tell_doomed(struct wires *ws)
{
    while (!list_empty(&ws->doomed)) {
        struct wire *w = list_first(&ws->doomed, struct wire, doomed_link);
        const struct error why = w->failure;

        list_remove(&w->doomed_link);
        ws->events->ended(ws->owner, w, &why);
        if (w->tell)
            wire_part(w, &why);
        else
            wire_close(w);
    }
}

/* ---- time ---- */

static uint64_t ping_period(const struct wires *ws)
{
    return MAX(ws->peer_timeout_us / PINGS, 1u);
}

void wire_due(struct wire *w, uint64_t due)
{
    w->ws->due = MIN(w->ws->due, due);
}

static uint64_t wire_watch(struct wire *w, uint64_t now)
{
    const struct wires *ws = w->ws;
    const struct peer_message ping = { .kind = PEER_PING };
    uint64_t since = MAX(w->heard, w->watched);

    if (w->expecting <= 0)
        return TIME_NEVER;
    if (now >= since + ws->peer_timeout_us) {
        wire_doom(w, false, ERROR_RANK_LOST, "%s for %.1f s",
                  w->have ? "has not finished a message" : "has been silent",
                  (double)(now - since) / 1e6);
        return TIME_NEVER;
    }
    if (now + ping_period(ws) / 4 >= w->next_ping) { /* not a look at all of them for each */
        wire_send_message(w, &ping);
        w->next_ping = now + ping_period(ws);
    }
    return MIN(w->next_ping, since + ws->peer_timeout_us);
}

static void wire_expire(struct wire *w)
{
    double limit_s = (double)w->ws->connect_timeout_us / 1e6;

    if (w->state == WIRE_PARTING)
        wire_close(w);
    else if (w->state == WIRE_RESOLVING)
        wire_doom(w, false, ERROR_TIMEOUT, "its name is not resolved within %.1f s", limit_s);
    else if (w->state == WIRE_CONNECTING)
        wire_doom(w, false, ERROR_TIMEOUT, "does not answer within %.1f s", limit_s);
    else
        wire_doom(w, false, ERROR_TIMEOUT, "has not finished the handshake within %.1f s", limit_s);
}

static uint64_t wire_turn(struct wire *w, uint64_t now)
{
    if (w->resumed) {
        w->resumed = false;
        wire_take_frames(w);
    }
    if (w->state == WIRE_UP)
        return wire_watch(w, now);
    if (w->state == WIRE_CLOSED || wire_is_doomed(w))
        return TIME_NEVER;
    if (now < w->deadline)
        return w->deadline;
    wire_expire(w);
    return TIME_NEVER;
}

/* A daemon that was stopped itself has not heard what its peers said meanwhile. */
static void wires_forgive(struct wires *ws, uint64_t now)
{
    struct wire *w;

    if (now - ws->last_turn > 2 * ping_period(ws))
        list_for_each(w, &ws->all, all_link)
            w->watched = now;
    ws->last_turn = now;
}

static void wires_look(struct wires *ws, uint64_t now)
{
    struct wire *w, *tmp;

    ws->due = TIME_NEVER;
    list_for_each_safe(w, tmp, &ws->all, all_link)
        wire_due(w, wire_turn(w, now));
}

void wires_turn(struct wires *ws, uint64_t now)
{
    wires_forgive(ws, now);
    if (now >= ws->due)
        wires_look(ws, now);
    wires_tell_doomed(ws);
}

uint64_t wires_deadline(const struct wires *ws)
{
    return list_empty(&ws->doomed) ? ws->due : 0;
}

void wire_expect(struct wire *w, int change)
{
    uint64_t now = service_now();

    if (w->expecting <= 0 && w->expecting + change > 0) {
        w->watched = now;
        w->next_ping = now + ping_period(w->ws);
        wire_due(w, w->next_ping);
    }
    w->expecting += change;
    assert(w->expecting >= 0);
}

void wire_doubt(struct wire *w)
{
    const struct peer_message ping = { .kind = PEER_PING };

    if (w->doubted)
        return;
    w->doubted = true;
    wire_expect(w, 1);
    wire_send_message(w, &ping);
}

/* ---- all of them ---- */

int wires_init(struct wires *ws)
{
    struct address own;

    ws->codec = NULL;
    memset(&ws->told, 0, sizeof(ws->told));
    list_init(&ws->all);
    list_init(&ws->doomed);
    ws->strangers = ws->alive = 0;
    ws->due = TIME_NEVER;
    ws->last_turn = service_now();
    ws->self_is_loopback =
        address_parse(ws->self.address, &own, NULL) == 0 && address_is_loopback(&own);
    return peer_codec_new(&ws->codec);
}

void wires_close(struct wires *ws)
{
    while (!list_empty(&ws->all))
        wire_close(list_first(&ws->all, struct wire, all_link));
}

void wires_fini(struct wires *ws)
{
    assert(ws->alive == 0);
    ws->codec = peer_codec_free(ws->codec);
    sodium_memzero(&ws->key, sizeof(ws->key));
}

void wire_set_link(struct wire *w, void *link)
{
    w->link = link;
}

void *wire_link(const struct wire *w)
{
    return w->link;
}

enum wire_state wire_state(const struct wire *w)
{
    return w->state;
}

bool wire_dialled(const struct wire *w)
{
    return w->dialled;
}

const struct party *wire_party(const struct wire *w)
{
    return &w->handshake.theirs;
}

struct transport_peer *wire_peer(const struct wire *w)
{
    return w->peer;
}

uint64_t wire_heard(const struct wire *w)
{
    return w->heard;
}
