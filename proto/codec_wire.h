/*
 * What the files of both codecs share, the client's and the peers': a decode under way, and one
 * taker and one giver for each kind of value. Sees generated code; nothing outside proto/ includes
 * it.
 */
#ifndef PROTO_CODEC_WIRE_H
#define PROTO_CODEC_WIRE_H

#include "proto/arena.h"
#include "proto/client.pb-c.h"
#include "proto/codec.h"

#define CODEC_TEXT_MAX (ERROR_TEXT_BYTES - 1)

struct codec {
    ProtobufCAllocator allocator; /* hands out the arena, and gives nothing back */
    struct error *error;          /* where the decode under way words its complaint */
    int result;           /* of the decode under way: 0, after a complaint -EPROTO, or -ENOMEM */
    uint32_t message_max; /* bytes */
    struct arena arena;
};

/* Return: 0 or -ENOMEM. For messages of at most `message_max` bytes; `memory` as for arena_init. */
int codec_init(struct codec *c, uint32_t message_max, size_t memory);
void codec_fini(struct codec *c);

/* Memory until the next decode, or NULL with a complaint. */
void *codec_alloc(struct codec *c, size_t bytes);

/*
 * Starts a decode: forgets the last one and unpacks. Beyond the codec's own memory the decode may
 * have `more` bytes. NULL with a complaint.
 */
void *codec_unpack(struct codec *c, const ProtobufCMessageDescriptor *descriptor, const void *bytes,
                   size_t len, size_t more, struct error *e);

/* Fails the decode under way; the first complaint is the one that is kept. */
void codec_complain(struct codec *c, const char *format, ...) _printf_(2, 3);

/*
 * Takers: a value from outside, checked. After a complaint what they return is safe but means
 * nothing; a decode looks at c->result once, at its end.
 */
uint32_t codec_take_id(struct codec *c, uint32_t id, const char *what); /* not 0 */
/* At most `max` bytes; in place, all that is not printable UTF-8 becomes '?'. */
const char *codec_take_string(struct codec *c, char *s, size_t max, const char *what);
/* Exactly `n` bytes, as keys and handles are; `ret` is left alone after a complaint. */
void codec_take_bytes(struct codec *c, ProtobufCBinaryData m, size_t n, const char *what,
                      uint8_t *ret);
/* At most RANKS_MAX. */
uint32_t codec_take_ncounts(struct codec *c, size_t n, const char *what);
/* At most AXES_MAX. */
void codec_take_shape(struct codec *c, const uint64_t *axes, size_t naxes, const char *what,
                      struct shape *ret);
/* NULL is no error. A code this version has no name for becomes ERROR_PROTOCOL. */
void codec_take_error(struct codec *c, const Ruccl__V1__Error *m, struct error *ret);

/* Givers: what a taker on the other side would refuse clears *fits. */
char *codec_give_string(const char *s, size_t max, bool *fits);
size_t codec_give_ncounts(uint32_t n, bool *fits);
/* `m` for `e`, sharing e's memory, or NULL for no error. */
Ruccl__V1__Error *codec_give_error(const struct error *e, Ruccl__V1__Error *m);

/*
 * Packs into `buffer` of PACKET_BYTES_MAX bytes. What the givers let through is never longer than
 * that, but for a page of status, which is measured first: measuring takes as long as packing.
 * Return: the length, or -EMSGSIZE.
 */
int codec_pack(const ProtobufCMessage *m, bool fits, void *buffer);

#endif
