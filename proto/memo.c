#include "proto/memo.h"

#include <string.h>

enum wire_type {
    WIRE_VARINT = 0,
    WIRE_8_BYTES = 1,
    WIRE_LENGTH = 2,
    WIRE_4_BYTES = 5,
};

#define FIXED_BYTES      4u
#define VARINT_BYTES_MAX 10u

/* Bytes yet to be read; NULL once they made no sense. */
struct reader {
    const uint8_t *at, *end;
};

/* A field as it was read. */
struct field {
    uint32_t number;
    enum wire_type type;
    const uint8_t *value;
    uint64_t len;
};

static uint64_t read_varint(struct reader *r)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < VARINT_BYTES_MAX && r->at < r->end; i++) {
        const uint8_t byte = *r->at++;

        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80)
            return value;
    }
    r->at = NULL;
    return 0;
}

/* The bytes of a value of that type, which begins here. */
static uint64_t value_bytes(struct reader *r, enum wire_type type)
{
    struct reader after = *r;

    switch (type) {
    case WIRE_VARINT:
        read_varint(&after);
        return after.at ? (uint64_t)(after.at - r->at) : UINT64_MAX;
    case WIRE_8_BYTES:
        return 8;
    case WIRE_4_BYTES:
        return FIXED_BYTES;
    case WIRE_LENGTH:
        return read_varint(r);
    }
    return UINT64_MAX;
}

/* False at the end, or where it makes no sense. */
static bool read_field(struct reader *r, struct field *ret)
{
    uint64_t key;

    if (!r->at || r->at == r->end)
        return false;
    key = read_varint(r);
    if (!r->at)
        return false;
    ret->number = (uint32_t)(key >> 3);
    ret->type = (enum wire_type)(key & 7);
    ret->len = value_bytes(r, ret->type);
    if (!r->at || ret->len > (uint64_t)(r->end - r->at)) {
        r->at = NULL;
        return false;
    }
    ret->value = r->at;
    r->at += ret->len;
    return true;
}

static bool note_place(struct memo *m, const uint8_t *bytes, uint32_t i, const struct field *f,
                       bool fixed)
{
    if (m->varied[i].len || f->type != (fixed ? WIRE_4_BYTES : WIRE_VARINT))
        return false;
    for (uint32_t k = i + 1; k < m->nvaried; k++)
        if (m->varied[k].len)
            return false; /* not in ascending order */
    m->varied[i] = (struct memo_place){ (uint8_t)(f->value - bytes), (uint8_t)f->len, fixed };
    return true;
}

static bool note_places(struct memo *m, const uint8_t *bytes, const struct field *body,
                        const struct memo_field *fields)
{
    struct reader r = { body->value, body->value + body->len };
    struct field f;

    while (read_field(&r, &f))
        for (uint32_t i = 1; i < m->nvaried; i++)
            if (f.number == fields[i - 1].number &&
                !note_place(m, bytes, i, &f, fields[i - 1].fixed))
                return false;
    return r.at;
}

static bool note(struct memo *m, const uint8_t *bytes, size_t len, uint32_t body,
                 const struct memo_field *fields)
{
    struct reader r = { bytes, bytes + len };
    struct field serial, rest;

    return read_field(&r, &serial) && serial.number == 1 &&
           note_place(m, bytes, 0, &serial, false) && read_field(&r, &rest) &&
           rest.number == body && rest.type == WIRE_LENGTH && r.at == r.end &&
           note_places(m, bytes, &rest, fields);
}

bool memo_keep(struct memo *m, const uint8_t *bytes, size_t len, uint32_t body,
               const struct memo_field *fields, uint32_t nfields)
{
    m->len = 0;
    if (len > MEMO_BYTES || nfields >= MEMO_VARIED_MAX)
        return false;
    m->nvaried = 1 + nfields;
    memset(m->varied, 0, sizeof(m->varied));
    if (!note(m, bytes, len, body, fields))
        return false;
    memcpy(m->bytes, bytes, len);
    m->len = (uint32_t)len;
    return true;
}

/* Whether the value there is one of as many bytes as the one known. */
static bool read_place(const struct memo_place *p, const uint8_t *bytes, uint64_t *ret)
{
    struct reader r = { bytes + p->at, bytes + p->at + p->len };

    *ret = 0;
    if (p->fixed) {
        for (unsigned i = FIXED_BYTES; i-- > 0;)
            *ret = *ret << 8 | r.at[i];
        return true;
    }
    if (p->len)
        *ret = read_varint(&r);
    return !p->len || r.at == r.end;
}

bool memo_matches(const struct memo *m, const uint8_t *bytes, size_t len, uint64_t *ret_values)
{
    uint32_t at = 0;

    if (len == 0 || len != m->len)
        return false;
    for (uint32_t i = 0; i < m->nvaried; i++) {
        const struct memo_place *p = &m->varied[i];

        if (p->len && memcmp(bytes + at, m->bytes + at, p->at - at) != 0)
            return false;
        if (!read_place(p, bytes, &ret_values[i]))
            return false;
        at = p->len ? p->at + p->len : at;
    }
    return memcmp(bytes + at, m->bytes + at, len - at) == 0;
}

/* Return: whether the value takes as many bytes as there are. */
static bool write_place(const struct memo_place *p, uint64_t value, uint8_t *bytes)
{
    if (p->len == 0 || value == 0)
        return p->len == 0 && value == 0;
    if (p->fixed) {
        for (unsigned i = 0; i < FIXED_BYTES; i++)
            bytes[p->at + i] = (uint8_t)(value >> (8 * i));
        return true;
    }
    for (unsigned i = 0; i < p->len; i++, value >>= 7)
        bytes[p->at + i] = (uint8_t)(value & 0x7f) | (i + 1u < p->len ? 0x80 : 0);
    return value == 0 && bytes[p->at + p->len - 1] != 0;
}

uint32_t memo_write(const struct memo *m, const uint64_t *values, uint8_t *ret_bytes)
{
    memcpy(ret_bytes, m->bytes, m->len);
    for (uint32_t i = 0; i < m->nvaried; i++)
        if (!write_place(&m->varied[i], values[i], ret_bytes))
            return 0;
    return m->len;
}
