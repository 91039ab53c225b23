/*
 * What the peer codec's own files share. Sees generated code; nothing outside proto/ includes it.
 */
#ifndef PROTO_PEER_WIRE_H
#define PROTO_PEER_WIRE_H

#include "proto/codec_wire.h"
#include "proto/peer.pb-c.h"
#include "proto/peer_codec.h"

struct peer_codec {
    struct codec decode;
    struct arena encode;
    uint8_t *agree; /* the body of what was encoded last, without its payload; NULL: another kind */
    size_t agree_bytes;
};

/*
 * Bytes of memory that a message of `len` bytes may need beyond PEER_MEMORY_BYTES: what short
 * fields amplify to, up to what lists of legal lengths come to, and the bytes themselves.
 */
#define PEER_MEMORY_BYTES (64u * 1024u)
static inline size_t peer_memory_more(size_t len)
{
    return MIN(256u * len, 16u * 1024u * 1024u + 3u * len);
}

/* Keys of fields, as they are encoded: an agreement's are written and read without the library
 * where it is one of many alike (peer_repeat.h). */
enum {
    MESSAGE_AGREE =
        RUCCL__PEER__V1__PEER_MESSAGE__BODY_AGREE << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
    AGREE_KEY = 1 << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
    AGREE_SEQUENCE = 2 << 3 | PROTOBUF_C_WIRE_TYPE_VARINT,
    AGREE_ENCLOSED = 8 << 3 | PROTOBUF_C_WIRE_TYPE_VARINT,
    AGREE_PAYLOAD = 9 << 3 | PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED,
};

/* An encode under way. Bodies lie on the stack, lists of messages in the arena. */
struct giving {
    struct arena *arena;
    bool fits;
    Ruccl__Peer__V1__PeerMessage message;
};

/* What was encoded before goes. */
void peer_begin_encode(struct peer_codec *c);
/* Return: the length, -EMSGSIZE or -ENOMEM. */
int64_t peer_pack(struct giving *g, const void **ret);
ProtobufCBinaryData peer_give_bytes(const void *bytes, uint32_t len, uint32_t max, bool *fits);
ProtobufCBinaryData peer_give_key(const uint8_t key[PEER_KEY_BYTES]);
/*
 * Pointers to `n` messages of `bytes` bytes each, or NULL if that is more than `max`, or if there
 * is no memory for them.
 */
void *peer_give_list(struct giving *g, uint32_t n, uint32_t max, size_t bytes);

/* A part, and what its field `rejection` points to. */
struct given_part {
    Ruccl__Peer__V1__Part part;
    Ruccl__V1__Error rejection;
};

/* peer_encode_agree.c */
void peer_give_part(const struct peer_part *part, struct given_part *g, bool *fits);
int64_t peer_encode_agree(struct peer_codec *c, const struct peer_agree *agree, struct giving *g,
                          const void **ret);
int64_t peer_encode_gathered(const struct peer_message *m, struct giving *g, const void **ret);
/* An agreement whose fields, but for key, sequence and what is enclosed, are `known`, encoded. */
int64_t peer_encode_known_agree(struct peer_codec *c, const struct peer_agree *agree,
                                const uint8_t *known, uint32_t len, const void **ret);

/*
 * Both sides ask it, so that none encodes what the other refuses: what is wrong between fields that
 * are within their own limits, or NULL. Sized lists of `m` may be looked at to their end.
 */
const char *peer_objection(const struct peer_message *m);

#endif
