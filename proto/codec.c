#include "proto/codec_wire.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/packet.h"

static void *arena_alloc(void *data, size_t bytes)
{
    struct codec *c = data;
    const size_t mask = alignof(max_align_t) - 1;

    if (bytes > sizeof(c->arena) - c->used)
        return NULL;

    void *p = c->arena + c->used;

    /* The arena's size is a multiple of the alignment: rounding up stays inside. */
    c->used += (bytes + mask) & ~mask;
    return p;
}

static void arena_free(void *data, void *p)
{
    (void)data;
    (void)p;
}

int codec_new(struct codec **ret)
{
    struct codec *c = malloc(sizeof(*c)); /* not zeroed: pages no message needs are never touched */

    if (!c)
        return -ENOMEM;
    c->allocator = (ProtobufCAllocator){ arena_alloc, arena_free, c };
    c->used = 0;
    *ret = c;
    return 0;
}

struct codec *codec_free(struct codec *c)
{
    free(c);
    return NULL;
}

void *codec_alloc(struct codec *c, size_t bytes)
{
    void *p = arena_alloc(c, bytes);

    if (!p)
        codec_complain(c, "message does not fit into %u bytes of memory", CODEC_ARENA_BYTES);
    return p;
}

void *codec_unpack(struct codec *c, const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                   size_t len, struct error *e)
{
    c->error = e;
    c->result = 0;
    c->used = 0;

    if (len > PACKET_BYTES_MAX) {
        codec_complain(c, "message of %zu bytes is longer than %u", len, PACKET_BYTES_MAX);
        return NULL;
    }

    void *m = protobuf_c_message_unpack(descriptor, &c->allocator, len, bytes);
    if (!m)
        codec_complain(c, "message of %zu bytes cannot be parsed as %s", len, descriptor->name);
    return m;
}

void codec_complain(struct codec *c, const char *format, ...)
{
    char text[ERROR_TEXT_BYTES];
    va_list args;

    if (c->result < 0)
        return;
    c->result = -EPROTO;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    error_set(c->error, ERROR_PROTOCOL, "%s", text);
}

uint32_t codec_take_id(struct codec *c, uint32_t id, const char *what)
{
    if (id == 0)
        codec_complain(c, "%s is 0", what);
    return id;
}

/* Bytes of the printable character at `s`, or 0 if there is none: controls, broken UTF-8. */
static size_t character_bytes(const unsigned char *s)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };

    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;

    size_t n = s[0] >= 0xf8 ? 0 : s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc0 ? 2 : 0;
    uint32_t code = n ? s[0] & (0x7fu >> n) : 0;

    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* also the terminating zero */
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    if (n == 0 || code < least[n] || code < 0xa0 || code > 0x10ffff)
        return 0;
    if (code >= 0xd800 && code <= 0xdfff) /* halves of UTF-16 pairs */
        return 0;
    /* Line and paragraph separators, and marks that reorder the text around them. */
    if ((code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069))
        return 0;
    return n;
}

const char *codec_take_string(struct codec *c, char *s, size_t max, const char *what)
{
    if (strnlen(s, max + 1) > max) {
        codec_complain(c, "%s is longer than %zu bytes", what, max);
        return "";
    }
    for (char *p = s; *p;) {
        size_t n = character_bytes((const unsigned char *)p);

        if (n == 0)
            *p = '?';
        p += n ? n : 1;
    }
    return s;
}

uint32_t codec_take_ncounts(struct codec *c, size_t n, const char *what)
{
    if (n <= RANKS_MAX)
        return (uint32_t)n;
    codec_complain(c, "%s: %zu counts are more than %u", what, n, RANKS_MAX);
    return 0;
}

void codec_take_error(struct codec *c, const Ruccl__V1__Error *m, struct error *ret)
{
    ret->code = ERROR_NONE;
    if (!m || m->code == ERROR_NONE)
        return;
    if (m->nranks > RANKS_MAX || m->n_ranks != MIN(m->nranks, ERROR_RANKS_MAX)) {
        codec_complain(c, "error: %zu ranks listed of %u", m->n_ranks, m->nranks);
        return;
    }
    ret->code = m->code < ERROR_END ? (enum error_code)m->code : ERROR_PROTOCOL;
    ret->nranks = m->nranks;
    if (m->n_ranks > 0)
        memcpy(ret->ranks, m->ranks, m->n_ranks * sizeof(ret->ranks[0]));
    strcpy(ret->text, codec_take_string(c, m->text, CODEC_TEXT_MAX, "error: text"));
}

char *codec_give_string(const char *s, size_t max, bool *fits)
{
    if (!s)
        return (char *)protobuf_c_empty_string;
    if (strnlen(s, max + 1) > max)
        *fits = false;
    return (char *)s;
}

size_t codec_give_ncounts(uint32_t n, bool *fits)
{
    if (n > RANKS_MAX)
        *fits = false;
    return n;
}

Ruccl__V1__Error *codec_give_error(const struct error *e, Ruccl__V1__Error *m)
{
    if (e->code == ERROR_NONE)
        return NULL;
    m->code = e->code;
    m->text = (char *)e->text;
    m->nranks = e->nranks;
    m->n_ranks = MIN(e->nranks, ERROR_RANKS_MAX);
    m->ranks = (uint32_t *)e->ranks;
    return m;
}

int codec_pack(const ProtobufCMessage *m, bool fits, void *buffer)
{
    return fits ? (int)protobuf_c_message_pack(m, buffer) : -EMSGSIZE;
}
