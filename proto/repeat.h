/*
 * Repeats: a program makes the same calls again and again, and most of its messages are like one of
 * the last but for the serial, the sequence number, the slot and the times. These encode and decode
 * as the codec does, and byte for byte alike, but take what is a repeat from a memo. Whoever has
 * them keeps them from message to message; zeroed before the first.
 */
#ifndef PROTO_REPEAT_H
#define PROTO_REPEAT_H

#include "proto/codec.h"
#include "proto/memo.h"

#define REPEATS 4u /* different ones that take turns */

/* Of posts and starts. */
struct request_repeats {
    struct {
        struct memo memo;
        struct request request;
    } known[REPEATS];
    uint32_t last;     /* found */
    uint32_t replaced; /* how many ever were */
};

/* Of completions. */
struct reply_repeats {
    struct {
        struct memo memo;
        struct reply reply;
        char algorithm[CODEC_ALGORITHM_MAX + 1]; /* what the reply's points to */
    } known[REPEATS];
    uint32_t last;
    uint32_t replaced;
};

/* As codec_decode_request(), and so on; strings of a reply may lie in the repeats, until the next.
 */
int repeat_decode_request(struct request_repeats *p, struct codec *c, const void *bytes, size_t len,
                          struct request *ret, struct error *e);
int repeat_encode_request(struct request_repeats *p, const struct request *r, void *buffer);
int repeat_decode_reply(struct reply_repeats *p, struct codec *c, const void *bytes, size_t len,
                        struct reply *ret, struct error *e);
int repeat_encode_reply(struct reply_repeats *p, const struct reply *r, void *buffer);

#endif
