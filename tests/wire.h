/* Messages written byte by byte: for what no encoder of ours would make. */
#ifndef TESTS_WIRE_H
#define TESTS_WIRE_H

#include <string.h>

#include "proto/packet.h"
#include "shared/base.h"

struct wire {
    size_t len;
    uint8_t bytes[PACKET_BYTES_MAX + 4096];
};

static inline void put_varint(struct wire *w, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        w->bytes[w->len++] = (uint8_t)(v | 0x80);
    w->bytes[w->len++] = (uint8_t)v;
}

static inline void put_number(struct wire *w, uint32_t field, uint64_t v)
{
    put_varint(w, field << 3);
    put_varint(w, v);
}

static inline void put_bytes(struct wire *w, uint32_t field, const void *bytes, size_t len)
{
    put_varint(w, field << 3 | 2);
    put_varint(w, len);
    if (len > 0)
        memcpy(w->bytes + w->len, bytes, len);
    w->len += len;
}

static inline void put_wire(struct wire *w, uint32_t field, const struct wire *inner)
{
    put_bytes(w, field, inner->bytes, inner->len);
}

#endif
