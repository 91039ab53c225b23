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

/*
 * Both sides ask it, so that none encodes what the other refuses: what is wrong between fields that
 * are within their own limits, or NULL. Sized lists of `m` may be looked at to their end.
 */
const char *peer_objection(const struct peer_message *m);

#endif
