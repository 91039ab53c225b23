/*
 * For tests of the codec: messages that no encoder of ours would make, written byte by byte, and
 * what decoding them must come to. Stands on cmocka, which is included before.
 */
#ifndef TESTS_CODEC_WIRE_H
#define TESTS_CODEC_WIRE_H

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "proto/packet.h"
#include "tests/wire.h"

static struct codec *codec;

static inline int codec_setup(void **state)
{
    (void)state;
    return codec_new(&codec);
}

static inline int codec_teardown(void **state)
{
    (void)state;
    codec = codec_free(codec);
    return 0;
}

/* Field numbers of client.proto. */
enum {
    HELLO = 2,
    REGION_OPEN,
    REGION_CLOSE,
    JOIN = 7,
    LEAVE,
    ABORT,
    EXPECT,
    POST,
    STATUS,
    RINGS_OPEN,
    BELL,
    START,
    PERSISTENT_CLOSE,
    STAGED,
    FENCE_OPEN,
    FENCE_CLOSE,
    SLATE_OPEN = 21,
};
enum { DONE = 3, ID, COMPLETION, STATUS_PAGE };

/* Exactly as long as it claims to be, so that a sanitizer sees a read behind the end. */
static inline int decode_request(const void *bytes, size_t len, struct request *ret,
                                 struct error *e)
{
    uint8_t *copy = calloc(1, len ? len : 1);

    if (len > 0)
        memcpy(copy, bytes, len);

    int r = codec_decode_request(codec, copy, len, ret, e);

    free(copy);
    return r;
}

static inline int decode_reply(const void *bytes, size_t len, struct reply *ret, struct error *e)
{
    uint8_t *copy = calloc(1, len ? len : 1);

    if (len > 0)
        memcpy(copy, bytes, len);

    int r = codec_decode_reply(codec, copy, len, ret, e);

    free(copy);
    return r;
}

static inline void assert_request_refused(const void *bytes, size_t len, const char *complaint)
{
    struct request r = { .serial = 77 };
    struct error e = { 0 };

    assert_int_equal(decode_request(bytes, len, &r, &e), -EPROTO);
    assert_int_equal(e.code, ERROR_PROTOCOL);
    if (!strstr(e.text, complaint))
        fail_msg("'%s' does not say '%s'", e.text, complaint);
    assert_int_equal(r.serial, 77); /* written only on success */
}

static inline void assert_reply_refused(const void *bytes, size_t len, const char *complaint)
{
    struct reply r = { .serial = 77 };
    struct error e = { 0 };

    assert_int_equal(decode_reply(bytes, len, &r, &e), -EPROTO);
    assert_int_equal(e.code, ERROR_PROTOCOL);
    if (!strstr(e.text, complaint))
        fail_msg("'%s' does not say '%s'", e.text, complaint);
    assert_int_equal(r.serial, 77);
}

/* `body` as field `field` of a request. */
static inline void assert_body_refused(uint32_t field, const struct wire *body,
                                       const char *complaint)
{
    static struct wire w;

    w.len = 0;
    put_wire(&w, field, body);
    assert_request_refused(w.bytes, w.len, complaint);
}

#endif
