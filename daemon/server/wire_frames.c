#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log/log.h"
#include "daemon/server/wire_private.h"

#define STRANGER_BYTES (FRAME_HEAD_BYTES + HANDSHAKE_BYTES_MAX)
#define READ_BYTES     (64u << 10)
#define SEALED_MAX     (PEER_MESSAGE_BYTES + FRAME_PADDING_MAX + FRAME_TAG_BYTES)

/* ---- writing ---- */

/* A frame on its way out. */
struct chunk {
    uv_write_t request;
    struct wire *wire;
    size_t len;
    uint8_t bytes[];
};

/* Who closes at once has not read all that was sent to it: then it is no plain end, here. */
static bool is_closed(int err)
{
    return err == UV_EOF || err == UV_ECONNRESET || err == UV_EPIPE;
}

/* What a read or a write has found out. */
static void wire_cut(struct wire *w, int err)
{
    const char *hint =
        w->proven ? "; its log says why" : ": have both the same cluster_key? Its log says why";

    if (w->state == WIRE_UP && err == UV_EOF)
        wire_doom(w, false, ERROR_RANK_LOST, "has died, or the connection was cut");
    else if (w->state == WIRE_UP || !is_closed(err))
        wire_doom(w, false, ERROR_RANK_LOST, "the connection broke: %s", uv_strerror(err));
    else
        wire_doom(w, false, ERROR_RANK_LOST, "closed the connection during the handshake%s",
                  w->dialled ? hint : "");
}

static void on_written(uv_write_t *request, int status)
{
    struct chunk *chunk = container_of(request, struct chunk, request);

    if (status < 0 && status != UV_ECANCELED)
        wire_cut(chunk->wire, status);
    free(chunk);
}

static struct chunk *chunk_new(struct wire *w, size_t len)
{
    struct chunk *chunk = malloc(sizeof(*chunk) + len);

    if (!chunk) {
        wire_doom(w, false, ERROR_NO_MEMORY, "out of memory for a message to it");
        return NULL;
    }
    chunk->wire = w;
    chunk->len = len;
    return chunk;
}

/* At once as far as the socket has room; the loop does the rest. Takes the chunk. */
static void wire_write(struct wire *w, struct chunk *chunk)
{
    uv_stream_t *stream = (uv_stream_t *)&w->tcp;
    uv_buf_t rest = uv_buf_init((char *)chunk->bytes, (unsigned)chunk->len);
    int r = uv_try_write(stream, &rest, 1);

    if (r > 0) {
        rest.base += r;
        rest.len -= (size_t)r;
    }
    if (r >= 0 && rest.len == 0) {
        free(chunk);
        return;
    }
    if (r >= 0 || r == UV_EAGAIN)
        r = uv_write(&chunk->request, stream, &rest, 1, on_written);
    if (r < 0) {
        wire_cut(w, r);
        free(chunk);
    }
}

static void wire_send_plain(struct wire *w, const void *bytes, size_t len)
{
    struct chunk *chunk = len ? chunk_new(w, FRAME_HEAD_BYTES + len) : NULL;

    if (!chunk)
        return;
    frame_set_length(chunk->bytes, (uint32_t)len);
    memcpy(chunk->bytes + FRAME_HEAD_BYTES, bytes, len);
    wire_write(w, chunk);
}

void wire_send(struct wire *w, const void *bytes, size_t len)
{
    const size_t whole = seal_frame_bytes(&w->out, len);
    struct chunk *chunk;

    if (wire_is_doomed(w))
        return;
    if (uv_stream_get_write_queue_size((uv_stream_t *)&w->tcp) + whole > WIRE_QUEUE_BYTES) {
        wire_doom(w, false, ERROR_RANK_LOST, "does not take what is sent to it: %u MiB wait",
                  WIRE_QUEUE_BYTES >> 20);
        return;
    }
    chunk = chunk_new(w, whole);
    if (!chunk)
        return;
    memcpy(chunk->bytes + FRAME_HEAD_BYTES, bytes, len);
    seal_close(&w->out, chunk->bytes, len);
    wire_write(w, chunk);
}

int64_t wires_encode(struct wires *ws, const struct peer_message *m, const void **ret)
{
    int64_t len = peer_repeat_encode(&ws->told, ws->codec, m, ret);

    if (len == -EMSGSIZE)
        log_error(NULL, "a message (%d) has a field above its limit; this is a fault of ruccld",
                  (int)m->kind);
    return len;
}

void wire_send_encoded(struct wire *w, const void *bytes, int64_t len)
{
    if (len < 0)
        wire_doom(w, false, ERROR_SYSTEM, "cannot write a message to it: %s", strerror((int)-len));
    else
        wire_send(w, bytes, (size_t)len);
}

void wire_send_message(struct wire *w, const struct peer_message *m)
{
    const void *bytes = NULL;
    int64_t len = wires_encode(w->ws, m, &bytes);

    wire_send_encoded(w, bytes, len);
}

/* ---- the handshake ---- */

static const char *transport_name(const struct wires *ws)
{
    return ws->transport ? ws->transport->ops->name : "";
}

static const char *transport_settings(const struct wires *ws)
{
    return ws->transport ? ws->transport->ops->settings(ws->transport) : "";
}

static void on_peer_failed(void *owner, int err)
{
    wire_doom(owner, true, ERROR_RANK_LOST, "the payload's connection broke: %s", strerror(err));
}

/* Makes this end of the payload's connection and tells the other where it is. */
static void wire_set_up(struct wire *w)
{
    struct wires *ws = w->ws;
    struct peer_message m = { .kind = PEER_PAYLOAD };
    struct error e = { 0 };
    size_t len = 0;

    wire_set_state(w, WIRE_SETUP);
    if (ws->transport) {
        if (ws->transport->ops->peer_new(ws->transport, &w->peer, &e) < 0) {
            wire_doom(w, true, e.code, "%s", e.text);
            return;
        }
        ws->transport->ops->peer_watch(w->peer, on_peer_failed, w);
        m.payload.address = ws->transport->ops->peer_address(w->peer, &len);
    }
    m.payload.transport = transport_name(ws);
    m.payload.settings = transport_settings(ws);
    m.payload.address_bytes = (uint32_t)len;
    wire_send_message(w, &m);
}

void wire_proceed(struct wire *w)
{
    w->resumed = w->state == WIRE_HELD;
    if (w->resumed)
        wire_due(w, 0);
    if (w->dialled)
        wire_send_plain(w, w->handshake.out, w->handshake.out_len);
    wire_set_up(w);
}

/* What is wrong with a link to this one, now that it is known who it is. */
static int wire_check_party(const struct wire *w, struct error *e)
{
    const struct party *p = &w->handshake.theirs;
    struct address a;

    if (*w->expected && strcmp(w->expected, p->node) != 0)
        return error_set(e, ERROR_NOT_FOUND, "is node %s, and not %s", p->node, w->expected);
    if (address_parse(p->address, &a, e) < 0)
        return -(int)e->code;
    if (address_is_loopback(&a) != w->ws->self_is_loopback)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "is to be reached at %s, this daemon at %s: a loopback address is good "
                         "for no other host, so either all daemons 'advertise' one or none",
                         p->address, w->ws->self.address);
    return 0;
}

static void wire_take_proven(struct wire *w)
{
    struct wires *ws = w->ws;
    enum wire_verdict verdict = WIRE_PROCEED;
    struct error e = { 0 };

    w->proven = true;
    ws->strangers -= w->stranger;
    w->stranger = false;
    handshake_seals(&w->handshake, &w->out, &w->in);
    log_debug(NULL, "connection %s %s: sealed by %s", w->dialled ? "to" : "from", w->address.text,
              cipher_name(w->handshake.cipher));
    if (wire_check_party(w, &e) < 0 || ws->events->proven(ws->owner, w, &verdict, &e) < 0)
        wire_doom(w, !w->dialled, e.code, "%s", e.text);
    else if (verdict == WIRE_PROCEED)
        wire_proceed(w);
    else if (verdict == WIRE_HOLD)
        wire_set_state(w, WIRE_HELD);
    else
        wire_part(w, NULL);
}

static void wire_take_handshake(struct wire *w, const uint8_t *bytes, size_t len)
{
    struct error e = { 0 };
    int r = handshake_take(&w->handshake, w->ws->codec, bytes, len, &e);

    if (r == HANDSHAKE_PROVEN) {
        wire_take_proven(w);
        return;
    }
    wire_send_plain(w, w->handshake.out, w->handshake.out_len);
    if (r < 0)
        wire_doom(w, false, e.code, "%s", e.text);
    else
        wire_set_state(w, WIRE_PROVING);
}

/* ---- messages ---- */

static void wire_take_payload(struct wire *w, const struct peer_message *m)
{
    struct wires *ws = w->ws;
    const char *name = transport_name(ws), *settings = transport_settings(ws);
    struct error e = { 0 };

    if (strcmp(m->payload.transport, name) != 0) {
        wire_doom(w, true, ERROR_MISMATCH,
                  "moves tensors by '%s', this daemon by '%s': set 'transport' alike",
                  m->payload.transport, name);
    } else if (strcmp(m->payload.settings, settings) != 0) {
        wire_doom(w, true, ERROR_MISMATCH,
                  "has the transport %s set up as '%.150s', this daemon as '%.150s'", name,
                  m->payload.settings, settings);
    } else if (w->peer && ws->transport->ops->peer_connect(w->peer, m->payload.address,
                                                           m->payload.address_bytes, &e) < 0) {
        wire_doom(w, true, e.code, "%s", e.text);
    } else {
        wire_set_state(w, WIRE_UP);
        ws->events->up(ws->owner, w);
    }
}

static void wire_take_bye(struct wire *w, const struct peer_message *m)
{
    if (m->bye.error.code) {
        wire_doom(w, false, m->bye.error.code, "ends the link: %s", m->bye.error.text);
    } else if (w->state == WIRE_SETUP) {
        w->ws->events->refused(w->ws->owner, w);
        wire_close(w);
    } else {
        wire_doom(w, false, ERROR_RANK_LOST, "has ended the link");
    }
}

static void wire_take_message(struct wire *w, const struct peer_message *m)
{
    const struct peer_message pong = { .kind = PEER_PONG };

    switch (m->kind) {
    case PEER_BYE:
        wire_take_bye(w, m);
        return;
    case PEER_PAYLOAD:
        if (w->state == WIRE_SETUP) {
            wire_take_payload(w, m);
            return;
        }
        break;
    case PEER_PING:
        if (w->state == WIRE_UP) {
            wire_send_message(w, &pong);
            return;
        }
        break;
    case PEER_PONG:
        if (w->state == WIRE_UP)
            return;
        break;
    case PEER_HELLO:
    case PEER_WELCOME:
    case PEER_PROOF:
        break;
    default:
        if (w->state == WIRE_UP) {
            w->ws->events->message(w->ws->owner, w, m);
            return;
        }
        break;
    }
    wire_doom(w, true, ERROR_PROTOCOL, "sent a message out of its turn (%d)", (int)m->kind);
}

/* A sign of life, and of the right one: it opened. */
static void wire_trust(struct wire *w)
{
    w->heard = service_now();
    if (!w->doubted)
        return;
    w->doubted = false;
    wire_expect(w, -1);
    w->ws->events->trusted(w->ws->owner, w);
}

static void wire_take_sealed(struct wire *w, uint8_t *frame, size_t len)
{
    const uint8_t *bytes = frame + FRAME_HEAD_BYTES;
    int64_t text = seal_open(&w->in, frame, len);
    struct peer_message m;
    struct error e;

    if (text < 0) {
        wire_doom(w, false, ERROR_PROTOCOL,
                  "what came over the connection is not what was sent: it was tampered with");
        return;
    }
    wire_trust(w);
    error_clear(&e);
    if (peer_repeat_decode(&w->said, w->ws->codec, bytes, (size_t)text, &m, &e) < 0)
        wire_doom(w, true, e.code, "%s", e.text);
    else
        wire_take_message(w, &m);
}

/* ---- reading ---- */

static size_t frame_limit(const struct wire *w)
{
    return w->proven ? SEALED_MAX : HANDSHAKE_BYTES_MAX;
}

static bool wire_takes(const struct wire *w)
{
    return (w->state == WIRE_GREETING || w->state == WIRE_PROVING || w->state == WIRE_SETUP ||
            w->state == WIRE_UP) &&
           !wire_is_doomed(w);
}

static void wire_take_frame(struct wire *w, uint8_t *frame, size_t len)
{
    if (w->proven)
        wire_take_sealed(w, frame, len);
    else
        wire_take_handshake(w, frame + FRAME_HEAD_BYTES, len - FRAME_HEAD_BYTES);
}

void wire_take_frames(struct wire *w)
{
    size_t at = 0;

    while (wire_takes(w) && w->have - at >= FRAME_HEAD_BYTES) {
        size_t len = frame_length(w->bytes + at);

        if (len > frame_limit(w)) {
            wire_doom(w, false, ERROR_PROTOCOL,
                      w->proven ? "sent a frame of %zu bytes, more than there are"
                                : "does not speak as a daemon of ruCCL does (%zu)",
                      len);
            break;
        }
        len += FRAME_HEAD_BYTES;
        if (w->have - at < len)
            break;
        wire_take_frame(w, w->bytes + at, len);
        at += len;
    }
    w->have -= at;
    if (w->have && at)
        memmove(w->bytes, w->bytes + at, w->have);
}

/* Room for what the other end may have under way: no more than a greeting's before it is proven. */
static size_t wanted_bytes(const struct wire *w)
{
    if (!w->proven)
        return STRANGER_BYTES;
    if (w->state == WIRE_HELD || w->have < FRAME_HEAD_BYTES)
        return READ_BYTES;
    return MAX(READ_BYTES, FRAME_HEAD_BYTES + MIN(frame_length(w->bytes), SEALED_MAX));
}

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *ret)
{
    struct wire *w = handle->data;
    size_t size = wanted_bytes(w);

    (void)suggested;
    if (size != w->size && size >= w->have) {
        uint8_t *bytes = realloc(w->bytes, size);

        if (bytes) {
            w->bytes = bytes;
            w->size = size;
        }
    }
    *ret = uv_buf_init((char *)w->bytes + w->have, (unsigned)(w->size - w->have));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buffer)
{
    struct wire *w = stream->data;

    (void)buffer;
    if (n < 0 && w->state == WIRE_PARTING) {
        wire_close(w);
    } else if (n < 0) {
        uv_read_stop(stream);
        wire_cut(w, (int)n);
    } else if (w->state == WIRE_PARTING) {
        w->have = 0;
    } else if (n > 0) {
        w->have += (size_t)n;
        wire_take_frames(w);
    }
}

void wire_greet(struct wire *w)
{
    struct wires *ws = w->ws;
    int r = handshake_init(&w->handshake, w->dialled, &ws->key, &ws->self, ws->codec);

    if (r == 0) {
        uv_tcp_nodelay(&w->tcp, 1);
        r = uv_read_start((uv_stream_t *)&w->tcp, on_room, on_read);
    }
    if (r < 0) {
        wire_doom(w, false, ERROR_SYSTEM, "cannot begin the handshake: %s", strerror(-r));
        return;
    }
    wire_send_plain(w, w->handshake.out, w->handshake.out_len);
}
