#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/codec_samples.h"
#include "tests/codec_wire.h"

/* Whatever the bytes, a decode ends well: a valid struct, or a worded complaint. */
static void assert_request_survived(const void *bytes, size_t len)
{
    struct request r;
    struct error e = { 0 };
    int ret = codec_decode_request(codec, bytes, len, &r, &e);

    if (ret == 0) {
        assert_int_equal(e.code, ERROR_NONE);
    } else {
        assert_int_equal(ret, -EPROTO);
        assert_int_equal(e.code, ERROR_PROTOCOL);
        assert_true(e.text[0]);
    }
}

static void assert_reply_survived(const void *bytes, size_t len)
{
    struct reply r;
    struct error e = { 0 };
    int ret = codec_decode_reply(codec, bytes, len, &r, &e);

    if (ret == 0) {
        assert_int_equal(e.code, ERROR_NONE);
    } else {
        assert_int_equal(ret, -EPROTO);
        assert_int_equal(e.code, ERROR_PROTOCOL);
        assert_true(e.text[0]);
    }
}

static void test_every_truncation_of_every_message_is_survived(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct request request, back;
    struct reply reply, reply_back;

    (void)state;
    for (uint32_t i = 0; sample_request(i, &request); i++) {
        size_t len = (size_t)codec_encode_request(&request, bytes);

        for (size_t n = 0; n < len; n += n < 2048 || n > len - 64 ? 1 : 61) {
            struct error e = { 0 };

            /* A cut between fields leaves a valid message with less in it. */
            if (decode_request(bytes, n, &back, &e) < 0)
                assert_int_equal(e.code, ERROR_PROTOCOL);
        }
    }
    for (uint32_t i = 0; sample_reply(i, &reply); i++) {
        size_t len = (size_t)codec_encode_reply(&reply, bytes);

        for (size_t n = 0; n < len; n += n < 2048 || n > len - 64 ? 1 : 61) {
            struct error e = { 0 };

            if (decode_reply(bytes, n, &reply_back, &e) < 0)
                assert_int_equal(e.code, ERROR_PROTOCOL);
        }
    }
    free(bytes);
}

static void test_every_change_of_one_byte_is_survived(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct request request;
    struct reply reply;

    (void)state;
    for (uint32_t i = 0; sample_request(i, &request); i++) {
        size_t len = (size_t)codec_encode_request(&request, bytes);

        for (size_t n = 0; n < MIN(len, 300); n++) {
            uint8_t kept = bytes[n];

            for (uint32_t v = 0; v < 256; v++) {
                bytes[n] = (uint8_t)v;
                assert_request_survived(bytes, len);
            }
            bytes[n] = kept;
        }
    }
    for (uint32_t i = 0; sample_reply(i, &reply); i++) {
        size_t len = (size_t)codec_encode_reply(&reply, bytes);

        for (size_t n = 0; n < MIN(len, 300); n++) {
            uint8_t kept = bytes[n];

            for (uint32_t v = 0; v < 256; v += 5) {
                bytes[n] = (uint8_t)v;
                assert_reply_survived(bytes, len);
            }
            bytes[n] = kept;
        }
    }
    free(bytes);
}

static void test_random_bytes_are_survived(void **state)
{
    uint8_t bytes[256];
    uint64_t random = 88172645463325252u;

    (void)state;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t len = i % (sizeof(bytes) + 1);

        for (size_t n = 0; n < len; n++) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes[n] = (uint8_t)(random >> 32);
        }
        assert_request_survived(bytes, len);
        assert_reply_survived(bytes, len);
    }
}

static void test_declared_lengths_beyond_the_end_are_refused(void **state)
{
    static const uint64_t lengths[] = {
        1, 127, 65536, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX
    };

    (void)state;
    for (uint32_t field = 2; field < 15; field++) {
        for (size_t i = 0; i < ARRAY_SIZE(lengths); i++) {
            struct wire w = { 0 }, inner = { 0 };

            put_varint(&w, field << 3 | 2);
            put_varint(&w, lengths[i]);
            assert_request_refused(w.bytes, w.len, "parsed");
            assert_reply_refused(w.bytes, w.len, "parsed");

            put_varint(&inner, 7 << 3 | 2); /* a post's axes */
            put_varint(&inner, lengths[i]);
            assert_body_refused(POST, &inner, "parsed");
        }
    }
}

static void test_groups_and_deep_nesting_are_survived(void **state)
{
    static struct wire w;

    (void)state;
    memset(w.bytes, 0x13, PACKET_BYTES_MAX); /* start of group 2, again and again */
    assert_request_refused(w.bytes, PACKET_BYTES_MAX, "parsed");

    w.len = 0;
    for (size_t left = 60000; left > 8; left -= 4) { /* every message holds another of field 2 */
        put_varint(&w, 2 << 3 | 2);
        put_varint(&w, left - 4);
    }
    assert_request_survived(w.bytes, w.len);
    assert_reply_survived(w.bytes, w.len);
}

static void test_many_tiny_unknown_fields_end_at_the_arena(void **state)
{
    static struct wire w, body;

    (void)state;
    w.len = body.len = 0;
    while (w.len + 2 <= PACKET_BYTES_MAX)
        put_number(&w, 15, 0);
    assert_request_refused(w.bytes, w.len, "parsed");
    assert_reply_refused(w.bytes, w.len, "parsed");

    while (body.len + 8 <= PACKET_BYTES_MAX)
        put_number(&body, 15, 0);
    assert_body_refused(LEAVE, &body, "parsed");
}

static void test_many_repeated_messages_end_at_the_arena(void **state)
{
    static struct wire w, page;

    (void)state;
    w.len = page.len = 0;
    while (w.len + 2 <= PACKET_BYTES_MAX)
        put_bytes(&w, HELLO, "", 0);
    assert_request_survived(w.bytes, w.len);
    assert_reply_survived(w.bytes, w.len);

    w.len = 0;
    while (page.len + 8 <= PACKET_BYTES_MAX)
        put_bytes(&page, 1, "", 0);
    put_wire(&w, STATUS_PAGE, &page);
    assert_reply_refused(w.bytes, w.len, "");
}

static void test_running_out_of_arena_anywhere_is_survived(void **state)
{
    static struct wire w;
    uint8_t *message = malloc(PACKET_BYTES_MAX);
    struct request request = { .kind = REQUEST_POST, .post = sample_post_extreme() };
    bool fitted = false, refused = false;

    (void)state;
    request.post.ncounts = 1024;

    size_t len = (size_t)codec_encode_request(&request, message);

    /* Ever more unknown fields in front leave ever less of the arena for the message. */
    for (uint32_t n = 0; n < 9000; n += 3) {
        struct request r;
        struct error e = { 0 };

        w.len = 0;
        for (uint32_t i = 0; i < n; i++)
            put_number(&w, 15, 0);
        memcpy(w.bytes + w.len, message, len);
        if (codec_decode_request(codec, w.bytes, w.len + len, &r, &e) == 0) {
            assert_true(r.post.counts[2] == UINT64_MAX);
            fitted = true;
        } else {
            refused = true;
        }
    }
    assert_true(fitted && refused);
    free(message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_truncation_of_every_message_is_survived),
        cmocka_unit_test(test_every_change_of_one_byte_is_survived),
        cmocka_unit_test(test_random_bytes_are_survived),
        cmocka_unit_test(test_declared_lengths_beyond_the_end_are_refused),
        cmocka_unit_test(test_groups_and_deep_nesting_are_survived),
        cmocka_unit_test(test_many_tiny_unknown_fields_end_at_the_arena),
        cmocka_unit_test(test_many_repeated_messages_end_at_the_arena),
        cmocka_unit_test(test_running_out_of_arena_anywhere_is_survived),
    };

    return cmocka_run_group_tests(tests, codec_setup, codec_teardown);
}
