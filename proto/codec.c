#include "proto/codec_wire.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/packet.h"

/* Enough for RANKS_MAX counts sent one by one, which is the dearest way to say something sensible.
 */
#define MEMORY_BYTES (512u * 1024u)

static void give_nothing_back(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

int codec_init(struct codec *c, uint32_t message_max, size_t memory)
{
    c->message_max = message_max;
    c->allocator = (ProtobufCAllocator){ arena_alloc, give_nothing_back, &c->arena };
    return arena_init(&c->arena, memory);
}

void codec_fini(struct codec *c)
{
    arena_fini(&c->arena);
}

int codec_new(struct codec **ret)
{
    struct codec *c = malloc(sizeof(*c));

    if (!c)
        return -ENOMEM;
    if (codec_init(c, PACKET_BYTES_MAX, MEMORY_BYTES) < 0) {
        free(c);
        return -ENOMEM;
    }
    *ret = c;
    return 0;
}

struct codec *codec_free(struct codec *c)
{
    if (!c)
        return NULL;
    codec_fini(c);
    free(c);
    return NULL;
}

/* Before any other complaint about memory: where the system had none, that is the reason. */
static void complain_if_starved(struct codec *c)
{
    if (!c->arena.starved || c->result < 0)
        return;
    c->result = -ENOMEM;
    error_set_errno(c->error, ENOMEM, "decode a message");
}

void *codec_alloc(struct codec *c, size_t bytes)
{
    void *p = arena_alloc(&c->arena, bytes);

    if (!p) {
        complain_if_starved(c);
        codec_complain(c, "message needs more memory than one may have");
    }
    return p;
}

void *codec_unpack(struct codec *c, const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                   size_t len, size_t more, struct error *e)
{
    c->error = e;
    c->result = 0;
    arena_reset(&c->arena, more);

    if (len > c->message_max) {
        codec_complain(c, "message of %zu bytes is longer than %u", len, c->message_max);
        return NULL;
    }

    void *m = protobuf_c_message_unpack(descriptor, &c->allocator, len, bytes);
    if (!m) {
        complain_if_starved(c);
        codec_complain(c, "message of %zu bytes cannot be parsed as %s", len, descriptor->name);
    }
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

void codec_take_bytes(struct codec *c, ProtobufCBinaryData m, size_t n, const char *what,
                      uint8_t *ret)
{
    if (m.len != n)
        codec_complain(c, "%s is not %zu bytes but %zu", what, n, m.len);
    else if (n > 0)
        memcpy(ret, m.data, n);
}

uint32_t codec_take_ncounts(struct codec *c, size_t n, const char *what)
{
    if (n <= RANKS_MAX)
        return (uint32_t)n;
    codec_complain(c, "%s: %zu counts are more than %u", what, n, RANKS_MAX);
    return 0;
}

void codec_take_shape(struct codec *c, const uint64_t *axes, size_t naxes, const char *what,
                      struct shape *ret)
{
    if (naxes > AXES_MAX) {
        codec_complain(c, "%s: %zu axes are more than %u", what, naxes, AXES_MAX);
        return;
    }
    ret->naxes = (uint32_t)naxes;
    if (naxes > 0)
        memcpy(ret->axes, axes, naxes * sizeof(axes[0]));
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
