/*
 * Memos: what is known of a message's bytes, so that one that differs in a few numbers alone need
 * be neither taken apart nor put together anew. No I/O, no memory of its own.
 *
 * The message is a serial (field 1, a varint) and one body; in the body some fields vary.
 */
#ifndef PROTO_MEMO_H
#define PROTO_MEMO_H

#include "proto/field.h"

#define MEMO_BYTES      192u /* of the longest message that is worth it */
#define MEMO_VARIED_MAX 5u

/* A field that varies. */
struct memo_field {
    uint8_t number;
    enum field_type type; /* not FIELD_LENGTH */
    bool always;          /* zero is not left out, as it is elsewhere */
};

struct memo_place {
    uint8_t at;
    uint8_t len; /* 0: it is left out */
    enum field_type type;
    uint64_t least, most; /* the values that take so many bytes */
};

struct memo {
    uint32_t len; /* 0: nothing is known */
    uint32_t nvaried;
    struct memo_place varied[MEMO_VARIED_MAX]; /* the serial and the body's, in their order */
    uint8_t bytes[MEMO_BYTES];
    uint8_t alike[MEMO_BYTES]; /* the bits that do not vary: all but those of the values */
};

/*
 * Notes a well-formed message whose body is field `body`, and where its `nfields` fields `fields`
 * are, in ascending order. Return: false, and nothing is known: it has another shape than that.
 */
bool memo_keep(struct memo *m, const uint8_t *bytes, size_t len, uint32_t body,
               const struct memo_field *fields, uint32_t nfields);

/* Whether a message is the one known but for what varies; ret_values: of the serial, then fields.
 */
bool memo_matches(const struct memo *m, const uint8_t *bytes, size_t len, uint64_t *ret_values);

/* Writes the message known with other values, if those are as long, into MEMO_BYTES. Return: its
 * length, or 0. */
uint32_t memo_write(const struct memo *m, const uint64_t *values, uint8_t *ret_bytes);

/* Of `room` that are known, which goes for the next one; `replaced` counts them. Ones that take
 * turns in a circle longer than there is room for still find some of theirs. */
static inline uint32_t memo_victim(uint32_t *replaced, uint32_t room)
{
    const uint32_t mixed = ++*replaced * 2654435761u; /* 2^32 / the golden ratio */

    return (mixed >> 16) % room;
}

#endif
