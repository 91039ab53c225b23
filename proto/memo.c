#include "proto/memo.h"

#include <endian.h>
#include <string.h>

#define WORD_BYTES 8u /* messages are compared word by word, and have at least one */

/* The least value of so many bytes. */
static uint64_t least_of(uint8_t len, const struct memo_field *f)
{
    if (f->type == FIELD_VARINT && len > 1)
        return 1ull << (VARINT_BITS * (len - 1u));
    return f->always ? 0 : 1;
}

static struct memo_place place_of(uint8_t at, uint8_t len, const struct memo_field *f)
{
    const unsigned bits = len * (f->type == FIELD_VARINT ? VARINT_BITS : 8u);

    return (struct memo_place){ .at = at,
                                .len = len,
                                .type = f->type,
                                .least = least_of(len, f),
                                .most = bits < 64 ? (1ull << bits) - 1 : UINT64_MAX };
}

static bool note_place(struct memo *m, const uint8_t *bytes, uint32_t i, const struct field *f,
                       const struct memo_field *varies)
{
    if (m->varied[i].len || f->type != varies->type)
        return false;
    for (uint32_t k = i + 1; k < m->nvaried; k++)
        if (m->varied[k].len)
            return false; /* not in ascending order */
    m->varied[i] = place_of((uint8_t)(f->value - bytes), (uint8_t)f->len, varies);
    return true;
}

static bool note_places(struct memo *m, const uint8_t *bytes, const struct field *body,
                        const struct memo_field *fields)
{
    const uint8_t *at = body->value, *end = at + body->len;
    struct field f;

    while (at < end) {
        if (!field_read(&at, end, &f))
            return false;
        for (uint32_t i = 1; i < m->nvaried; i++)
            if (f.number == fields[i - 1].number && !note_place(m, bytes, i, &f, &fields[i - 1]))
                return false;
    }
    return true;
}

static bool note(struct memo *m, const uint8_t *bytes, size_t len, uint32_t body,
                 const struct memo_field *fields)
{
    static const struct memo_field serial_field = { 1, FIELD_VARINT };
    const uint8_t *at = bytes, *end = bytes + len;
    struct field serial, rest;

    return field_read(&at, end, &serial) && serial.number == serial_field.number &&
           note_place(m, bytes, 0, &serial, &serial_field) && field_read(&at, end, &rest) &&
           rest.number == body && rest.type == FIELD_LENGTH && at == end &&
           note_places(m, bytes, &rest, fields);
}

static void note_alike(struct memo *m)
{
    memset(m->alike, 0xff, sizeof(m->alike));
    for (uint32_t i = 0; i < m->nvaried; i++)
        memset(m->alike + m->varied[i].at, m->varied[i].type == FIELD_VARINT ? VARINT_MORE : 0,
               m->varied[i].len);
}

bool memo_keep(struct memo *m, const uint8_t *bytes, size_t len, uint32_t body,
               const struct memo_field *fields, uint32_t nfields)
{
    m->len = 0;
    if (len < WORD_BYTES || len > MEMO_BYTES || nfields >= MEMO_VARIED_MAX)
        return false;
    m->nvaried = 1 + nfields;
    memset(m->varied, 0, sizeof(m->varied));
    if (!note(m, bytes, len, body, fields))
        return false;
    note_alike(m);
    memcpy(m->bytes, bytes, len);
    m->len = (uint32_t)len;
    return true;
}

static uint64_t word_at(const uint8_t *bytes, uint32_t at)
{
    uint64_t word;

    memcpy(&word, bytes + at, sizeof(word));
    return word;
}

static bool differs(const struct memo *m, const uint8_t *bytes, uint32_t at)
{
    return (word_at(bytes, at) ^ word_at(m->bytes, at)) & word_at(m->alike, at);
}

/* Not in values, but that they take as many bytes: a varint's top bits are none of its value. */
static bool is_alike(const struct memo *m, const uint8_t *bytes)
{
    for (uint32_t at = 0; at + WORD_BYTES <= m->len; at += WORD_BYTES)
        if (differs(m, bytes, at))
            return false;
    return !differs(m, bytes, m->len - WORD_BYTES); /* the last one overlaps */
}

static uint64_t read_varying(const uint8_t *at, unsigned len)
{
    uint64_t value = 0;

    while (len-- > 0)
        value = value << VARINT_BITS | (at[len] & (VARINT_MORE - 1u));
    return value;
}

static uint64_t read_place(const struct memo_place *p, const uint8_t *bytes)
{
    uint64_t wide;
    uint32_t narrow;

    switch (p->type) {
    case FIELD_4_BYTES:
        memcpy(&narrow, bytes + p->at, sizeof(narrow));
        return le32toh(narrow);
    case FIELD_8_BYTES:
        memcpy(&wide, bytes + p->at, sizeof(wide));
        return le64toh(wide);
    default:
        return read_varying(bytes + p->at, p->len);
    }
}

bool memo_matches(const struct memo *m, const uint8_t *bytes, size_t len, uint64_t *ret_values)
{
    if (len == 0 || len != m->len || !is_alike(m, bytes))
        return false;
    for (uint32_t i = 0; i < m->nvaried; i++)
        ret_values[i] = read_place(&m->varied[i], bytes);
    return true;
}

/* Return: whether the value takes as many bytes as there are. */
static bool write_place(const struct memo_place *p, uint64_t value, uint8_t *bytes)
{
    const uint64_t wide = htole64(value);
    const uint32_t narrow = htole32((uint32_t)value);

    if (value < p->least || value > p->most)
        return false;
    switch (p->type) {
    case FIELD_4_BYTES:
        memcpy(bytes + p->at, &narrow, sizeof(narrow));
        break;
    case FIELD_8_BYTES:
        memcpy(bytes + p->at, &wide, sizeof(wide));
        break;
    default:
        if (p->len)
            varint_write(bytes + p->at, value);
    }
    return true;
}

uint32_t memo_write(const struct memo *m, const uint64_t *values, uint8_t *ret_bytes)
{
    memcpy(ret_bytes, m->bytes, m->len);
    for (uint32_t i = 0; i < m->nvaried; i++)
        if (!write_place(&m->varied[i], values[i], ret_bytes))
            return 0;
    return m->len;
}
