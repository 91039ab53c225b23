/* The sealing of frames between daemons, by every cipher that this machine has, with everything
 * done to the bytes that somebody between them could do. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "daemon/server/link_seal.h"
#include "proto/peer_codec.h"

/* As peer.proto numbers it; every machine has it. */
#define CHACHA 2u

#define TEXT "what daemons say to each other"

struct ends {
    struct seal a_out, a_in, b_out, b_in;
};

#define for_each_cipher(one)                                                                       \
    for (uint32_t one, left = ciphers_here(); (one = left & -left); left &= left - 1)

/* A connection's two ends, with keys of its own. */
static struct ends sealed_by(uint32_t cipher)
{
    const struct cipher *c = cipher_common(cipher, cipher);
    uint8_t there[SEAL_KEY_BYTES], back[SEAL_KEY_BYTES];
    struct ends ends;

    randombytes_buf(there, sizeof(there));
    randombytes_buf(back, sizeof(back));
    seal_init(&ends.a_out, c, there);
    seal_init(&ends.b_in, c, there);
    seal_init(&ends.b_out, c, back);
    seal_init(&ends.a_in, c, back);
    return ends;
}

struct frame {
    uint8_t s[512];
    size_t len;
};

static struct frame say(struct seal *out, const char *text)
{
    const size_t len = strlen(text), wanted = seal_frame_bytes(out, len);
    struct frame f;

    memset(f.s, 0xee, sizeof(f.s));
    memcpy(f.s + FRAME_HEAD_BYTES, text, len);
    f.len = seal_close(out, f.s, len);
    assert_int_equal(f.len, wanted);
    assert_in_range(f.len, FRAME_HEAD_BYTES + len + 1 + FRAME_TAG_BYTES,
                    FRAME_HEAD_BYTES + len + FRAME_PADDING_MAX + FRAME_TAG_BYTES);
    assert_int_equal(frame_length(f.s), f.len - FRAME_HEAD_BYTES);
    assert_int_equal(f.s[f.len], 0xee);
    return f;
}

static int64_t hear(struct seal *in, struct frame f)
{
    return seal_open(in, f.s, f.len);
}

TEST(frames_open_in_order_both_ways)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);

        for (unsigned i = 0; i < 300; i++) {
            struct frame f = say(&e.a_out, TEXT);

            assert_null(memmem(f.s, f.len, "daemons", 7));
            assert_int_equal(seal_open(&e.b_in, f.s, f.len), strlen(TEXT));
            assert_memory_equal(f.s + FRAME_HEAD_BYTES, TEXT, strlen(TEXT));
            f = say(&e.b_out, "");
            assert_int_equal(seal_open(&e.a_in, f.s, f.len), 0);
        }
    }
}

TEST(texts_of_every_length_come_back)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        char text[301] = "";

        for (size_t len = 0; len < sizeof(text) - 1; len++) {
            struct frame f = say(&e.a_out, text);

            assert_int_equal(seal_open(&e.b_in, f.s, f.len), len);
            assert_memory_equal(f.s + FRAME_HEAD_BYTES, text, len);
            text[len] = (char)('a' + len % 26);
        }
    }
}

/* A multiple of every cipher's block: it gets the most padding that there is. */
TEST(the_longest_message_comes_back)
{
    const size_t len = PEER_MESSAGE_BYTES, most = len + FRAME_PADDING_MAX + FRAME_TAG_BYTES;
    uint8_t *text = malloc(len), *frame = malloc(FRAME_HEAD_BYTES + most);

    randombytes_buf(text, len);
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        size_t whole;

        memcpy(frame + FRAME_HEAD_BYTES, text, len);
        whole = seal_close(&e.a_out, frame, len);
        assert_int_equal(whole, seal_frame_bytes(&e.a_out, len));
        assert_in_range(whole, FRAME_HEAD_BYTES + len + 1, FRAME_HEAD_BYTES + most);
        assert_memory_not_equal(frame + FRAME_HEAD_BYTES, text, len);
        assert_int_equal(seal_open(&e.b_in, frame, whole), len);
        assert_memory_equal(frame + FRAME_HEAD_BYTES, text, len);
    }
    free(frame);
    free(text);
}

TEST(the_same_text_is_never_sealed_the_same_way)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one), other = sealed_by(one);
        const struct frame f = say(&e.a_out, TEXT), next = say(&e.a_out, TEXT);
        const struct frame back = say(&e.b_out, TEXT), elsewhere = say(&other.a_out, TEXT);

        assert_memory_not_equal(f.s, next.s, f.len);
        assert_memory_not_equal(f.s, back.s, f.len);
        assert_memory_not_equal(f.s, elsewhere.s, f.len);
    }
}

TEST(no_bit_of_a_frame_can_be_changed)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        const struct frame whole = say(&e.a_out, TEXT);

        for (size_t bit = 0; bit < 8 * whole.len; bit++) {
            struct frame f = whole;
            struct seal in = e.b_in;

            f.s[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_equal(hear(&in, f), -EBADMSG);
        }
        assert_int_equal(hear(&e.b_in, whole), strlen(TEXT));
    }
}

TEST(a_frame_cannot_be_cut_not_even_with_its_length_set_right)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        const struct frame whole = say(&e.a_out, TEXT);

        for (size_t len = 0; len < whole.len; len++) {
            struct frame f = whole;
            struct seal in = e.b_in;

            f.len = len;
            assert_int_equal(hear(&in, f), -EBADMSG);
            if (len < FRAME_HEAD_BYTES)
                continue;
            frame_set_length(f.s, (uint32_t)(len - FRAME_HEAD_BYTES));
            assert_int_equal(hear(&in, f), -EBADMSG);
        }
    }
}

TEST(a_frame_cannot_be_repeated_left_out_or_moved)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        const struct frame first = say(&e.a_out, "first"), second = say(&e.a_out, "second");
        struct seal in = e.b_in;

        assert_int_equal(hear(&in, first), 5);
        assert_int_equal(hear(&in, first), -EBADMSG);
        in = e.b_in;
        assert_int_equal(hear(&in, second), -EBADMSG);
        in = e.b_in;
        assert_int_equal(hear(&in, first), 5);
        assert_int_equal(hear(&in, second), 6);
    }
}

TEST(a_frame_cannot_be_sent_back)
{
    for_each_cipher(one)
    {
        struct ends e = sealed_by(one);
        const struct frame f = say(&e.a_out, TEXT);

        assert_int_equal(hear(&e.a_in, f), -EBADMSG);
    }
}

/* As another daemon could, which has the key. */
static struct frame say_padded(struct seal *out, size_t len, uint8_t padding)
{
    const uint8_t first_nonce[12] = { 0 };
    uint8_t text[256] = { 0 };
    struct frame f = { .len = FRAME_HEAD_BYTES + len + FRAME_TAG_BYTES };

    if (len)
        text[len - 1] = padding;
    frame_set_length(f.s, (uint32_t)(len + FRAME_TAG_BYTES));
    crypto_aead_chacha20poly1305_ietf_encrypt_detached(
        f.s + FRAME_HEAD_BYTES, f.s + FRAME_HEAD_BYTES + len, NULL, text, len, f.s,
        FRAME_HEAD_BYTES, NULL, first_nonce, out->state);
    return f;
}

TEST(padding_that_cannot_be_is_refused)
{
    static const struct {
        size_t len;
        uint8_t padding;
        int64_t opens;
    } rows[] = {
        { 40, 1, 39 },   { 40, 40, 0 },    { 200, FRAME_PADDING_MAX, 200 - FRAME_PADDING_MAX },
        { 0, 0, -1 },    { 40, 0, -1 },    { 40, 41, -1 },
        { 40, 255, -1 }, { 200, 129, -1 },
    };

    for (unsigned i = 0; i < ARRAY_SIZE(rows); i++) {
        struct ends e = sealed_by(CHACHA);

        assert_int_equal(hear(&e.b_in, say_padded(&e.a_out, rows[i].len, rows[i].padding)),
                         rows[i].opens < 0 ? -EBADMSG : rows[i].opens);
    }
}

static int set_up(void **state)
{
    (void)state;
    return sodium_init() < 0 ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_open_in_order_both_ways),
        cmocka_unit_test(texts_of_every_length_come_back),
        cmocka_unit_test(the_longest_message_comes_back),
        cmocka_unit_test(the_same_text_is_never_sealed_the_same_way),
        cmocka_unit_test(no_bit_of_a_frame_can_be_changed),
        cmocka_unit_test(a_frame_cannot_be_cut_not_even_with_its_length_set_right),
        cmocka_unit_test(a_frame_cannot_be_repeated_left_out_or_moved),
        cmocka_unit_test(a_frame_cannot_be_sent_back),
        cmocka_unit_test(padding_that_cannot_be_is_refused),
    };

    return cmocka_run_group_tests(tests, set_up, NULL);
}
