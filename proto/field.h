/*
 * Fields: how a message lies in bytes (protobuf.dev/programming-guides/encoding), for those that
 * look into it without the library: memos (memo.h) and repeats between nodes (peer_repeat.h). A
 * field is a key, number << 3 | type, and a value; a varint has seven bits a byte, the lowest
 * first, and the top bit set in all bytes but the last; what is fixed is little endian; a field
 * that is zero is left out, unless it is of a oneof.
 */
#ifndef PROTO_FIELD_H
#define PROTO_FIELD_H

#include "shared/base.h"

#define VARINT_BYTES_MAX 10u
#define LENGTH_BYTES_MAX 5u    /* of a length, or of a field's key */
#define VARINT_BITS      7u    /* of the value, in each byte */
#define VARINT_MORE      0x80u /* in each but the last */

enum field_type {
    FIELD_VARINT = 0,
    FIELD_8_BYTES = 1,
    FIELD_LENGTH = 2, /* and so many bytes */
    FIELD_4_BYTES = 5,
};

struct field {
    uint32_t number;
    enum field_type type;
    const uint8_t *value; /* behind its length, where it has one */
    uint64_t len;
};

/* Goes on behind what was read. Return: false, it makes no sense within `bytes_max` bytes. */
static inline bool varint_read(const uint8_t **at, const uint8_t *end, unsigned bytes_max,
                               uint64_t *ret)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < bytes_max && *at < end; i++) {
        const uint8_t byte = *(*at)++;

        value |= (uint64_t)(byte & (VARINT_MORE - 1u)) << (VARINT_BITS * i);
        if (byte < VARINT_MORE) {
            *ret = value;
            return true;
        }
    }
    return false;
}

/* In as few bytes as there can be. Return: where it ends. */
static inline uint8_t *varint_write(uint8_t *at, uint64_t value)
{
    for (; value >= VARINT_MORE; value >>= VARINT_BITS)
        *at++ = (uint8_t)(value | VARINT_MORE);
    *at++ = (uint8_t)value;
    return at;
}

/* Goes on behind what was read. Return: false, it makes no sense. */
bool field_read(const uint8_t **at, const uint8_t *end, struct field *ret);

#endif
