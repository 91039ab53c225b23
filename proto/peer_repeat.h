/*
 * Repeats between nodes: most agreements are like one of the last from that node but for the
 * sequence number and what is enclosed. These encode and decode as the peer codec does, and byte
 * for byte alike, but neither take apart nor put together anew what is a repeat. It is what memos
 * are for requests (memo.h), with what is enclosed, of any length, behind what stays. Whoever has
 * them keeps them from message to message, for each direction and sender; zeroed before the first.
 */
#ifndef PROTO_PEER_REPEAT_H
#define PROTO_PEER_REPEAT_H

#include "proto/peer_codec.h"

#define PEER_REPEATS      8u   /* different ones that take turns */
#define PEER_REPEAT_BYTES 160u /* of the longest that is worth it: of what stays */

struct peer_repeats {
    struct {
        uint32_t len; /* 0: nothing is known */
        uint8_t
            bytes[PEER_REPEAT_BYTES]; /* its fields but for key, sequence and what is enclosed */
        struct peer_agree agree;
        struct peer_part part; /* what the agreement's parts point to */
    } known[PEER_REPEATS];
    uint32_t replaced; /* how many ever were */
};

/*
 * As peer_codec_decode(). What a message points to lies in the codec, in the repeats or in `bytes`:
 * until the next decode, at most.
 */
int peer_repeat_decode(struct peer_repeats *p, struct peer_codec *c, const void *bytes, size_t len,
                       struct peer_message *ret, struct error *e);
/* As peer_codec_encode(), in the codec's memory: peer_codec_encode_payload() may follow. */
int64_t peer_repeat_encode(struct peer_repeats *p, struct peer_codec *c,
                           const struct peer_message *m, const void **ret);

#endif
