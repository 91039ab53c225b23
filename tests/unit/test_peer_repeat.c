/* Repeats of agreements: what is known to be one is what the codec would have made of it. */
#include "tests/unit/unit.h"

#include <stdlib.h>

#include "proto/peer_repeat.h"
#include "tests/peer_wire.h"
#include "tests/wire.h"

static struct peer_codec *other; /* what is no repeat is encoded and decoded by this one */
static struct peer_repeats told, heard;

static int set_up(void **state)
{
    told = heard = (struct peer_repeats){ 0 };
    return peer_codec_new(&other) < 0 ? -1 : peer_setup(state);
}

static int tear_down(void **state)
{
    other = peer_codec_free(other);
    return peer_teardown(state);
}

/* ---- the same, with and without */

static void assert_same_text(const struct peer_message *a, const struct peer_message *b)
{
    char *one = text_of(a), *two = text_of(b);

    assert_string_equal(one, two);
    free(one);
    free(two);
}

static void assert_decodes_alike(const void *bytes, size_t len)
{
    struct peer_message plain, repeated;
    struct error e = { 0 }, e2 = { 0 };
    const int r = decode(bytes, len, &plain, &e);
    uint8_t *copy = malloc(MAX(len, 1u)); /* exactly: a sanitizer sees a read behind the end */

    assert_non_null(copy);
    if (len)
        memcpy(copy, bytes, len);
    assert_int_equal(peer_repeat_decode(&heard, other, copy, len, &repeated, &e2), r);
    if (r == 0)
        assert_same_text(&plain, &repeated);
    else
        assert_string_equal(e.text, e2.text);
    free(copy);
}

/* Encodes both ways, and decodes. */
static void assert_alike(const struct peer_message *m)
{
    const void *plain, *repeated;
    const int64_t len = peer_codec_encode(codec, m, &plain);

    assert_int_equal(peer_repeat_encode(&told, other, m, &repeated), len);
    if (len < 0)
        return;
    assert_memory_equal(repeated, plain, (size_t)len);
    assert_decodes_alike(plain, (size_t)len);
}

/* With another payload, after an agreement was encoded. */
static void assert_payload_alike(const struct peer_agree *agree)
{
    const void *plain, *repeated;
    const int64_t len = peer_codec_encode_payload(codec, agree, &plain);

    assert_int_equal(peer_codec_encode_payload(other, agree, &repeated), len);
    if (len < 0)
        return;
    assert_memory_equal(repeated, plain, (size_t)len);
    assert_decodes_alike(plain, (size_t)len);
}

/* ---- ours */

static struct peer_part part;

/* Of an all_reduce of 8 bytes, which are enclosed. */
static struct peer_message all_reduce(uint64_t sequence)
{
    struct peer_message m = { .kind = PEER_AGREE };

    part = (struct peer_part){ .rank = 3,
                               .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                      .dtype = DTYPE_F32,
                                      .shape = { .naxes = 1, .axes = { 2 } },
                                      .budget = BUDGET_NONE } };
    m.agree = (struct peer_agree){ .sequence = sequence,
                                   .plan = 0x123456789abcdef0,
                                   .piece = 2,
                                   .parts = &part,
                                   .nparts = 1,
                                   .enclosed = true,
                                   .payload = sample_payload(),
                                   .payload_bytes = 8 };
    sample_bytes(m.agree.key, PEER_KEY_BYTES);
    return m;
}

TEST(agreements_in_a_row)
{
    static const uint64_t starts[] = { 0,          120,           16380, 2097150, UINT32_MAX - 3ull,
                                       1ull << 62, UINT64_MAX - 9 };

    for (size_t i = 0; i < ARRAY_SIZE(starts); i++)
        for (uint64_t k = 0; k < 10; k++) {
            struct peer_message m = all_reduce(starts[i] + k);

            assert_alike(&m);
            m.agree.sequence = 0;
            assert_alike(&m);
        }
}

TEST(enclosed_bytes_of_every_length)
{
    for (uint32_t len = 0; len <= PEER_ENCLOSED_MAX + 2; len += len < 300 || len > 8180 ? 1 : 97) {
        struct peer_message m = all_reduce(1 + len);

        m.agree.payload_bytes = len;
        assert_alike(&m);
        m.agree.enclosed = false;
        assert_alike(&m);
        m.agree.payload_bytes = 0;
        assert_alike(&m);
    }
}

TEST(several_receivers_of_a_repeat)
{
    for (uint64_t i = 1; i < 300; i++) {
        struct peer_message m = all_reduce(i);

        assert_alike(&m);
        for (uint32_t receiver = 0; receiver < 4; receiver++) {
            m.agree.payload_bytes = (uint32_t)(i * receiver);
            m.agree.enclosed = receiver != 2;
            assert_payload_alike(&m.agree);
        }
    }
}

TEST(nothing_is_left_of_a_repeat_behind_another_kind)
{
    struct peer_message m = all_reduce(1), ping = { .kind = PEER_PING };
    const void *bytes;

    assert_alike(&m);
    assert_alike(&m);
    assert_alike(&ping);
    assert_int_equal(peer_codec_encode_payload(other, &m.agree, &bytes), -EINVAL);
}

TEST(what_stays_tells_agreements_apart)
{
    const struct error rejection = sample_error();
    const struct peer_rows rows = { .rank = 3, .counts = sample_counts, .ncounts = 2 };
    const struct peer_color color = { 3, 1, 1 };
    struct peer_message m = all_reduce(300);

    assert_alike(&m);
#define CHANGED(field, value)                                                                      \
    do {                                                                                           \
        const struct peer_message kept = m;                                                        \
        const struct peer_part kept_part = part;                                                   \
        (field) = (value);                                                                         \
        assert_alike(&m);                                                                          \
        assert_alike(&m);                                                                          \
        m = kept;                                                                                  \
        part = kept_part;                                                                          \
        assert_alike(&m);                                                                          \
    } while (0)
    CHANGED(m.agree.key[0], 1);
    CHANGED(m.agree.key[PEER_KEY_BYTES - 1], 1);
    CHANGED(m.agree.plan, 0);
    CHANGED(m.agree.plan, 1);
    CHANGED(m.agree.piece, 0);
    CHANGED(m.agree.piece, 4);
    CHANGED(m.agree.verdict, &rejection);
    CHANGED(m.agree.nparts, 0);
    CHANGED(part.rank, 4);
    CHANGED(part.d.kind, COLLECTIVE_BROADCAST);
    CHANGED(part.d.op, OPERATOR_MAX);
    CHANGED(part.d.dtype, DTYPE_F64);
    CHANGED(part.d.shape.naxes, 0);
    CHANGED(part.d.shape.naxes, 2);
    CHANGED(part.d.shape.naxes, AXES_MAX + 1);
    CHANGED(part.d.shape.axes[0], 3);
    CHANGED(part.d.root, 1);
    CHANGED(part.d.budget, 0);
    CHANGED(part.makes_persistent, true);
    CHANGED(part.starts, 1);
    CHANGED(part.rejection, &rejection);
    m.agree.rows = &rows;
    CHANGED(m.agree.nrows, 1);
    m.agree.colors = &color;
    CHANGED(m.agree.ncolors, 1);
#undef CHANGED
}

TEST(more_agreements_than_are_known_take_turns)
{
    for (uint64_t i = 1; i < 1000; i++) {
        struct peer_message m = all_reduce(i);

        part.d.shape.axes[0] = 1 + i % (3 * PEER_REPEATS);
        assert_alike(&m);
    }
}

TEST(every_kind_between_agreements)
{
    struct peer_message m, call;

    for (uint32_t i = 0; sample_peer(i, &m); i++) {
        call = all_reduce(i);
        assert_alike(&m);
        assert_alike(&call);
        assert_alike(&m);
    }
}

TEST(an_agreement_too_long_to_be_kept)
{
    struct peer_message m = all_reduce(1);

    part = sample_part(NULL);
    for (; m.agree.sequence < 10; m.agree.sequence++)
        assert_alike(&m);
}

/* ---- theirs */

TEST(every_change_of_a_known_agreement)
{
    const struct peer_message m = all_reduce(300);
    size_t len;
    uint8_t *bytes = encoded(&m, &len);

    for (size_t n = 0; n < len; n++) {
        const uint8_t kept = bytes[n];

        for (uint32_t v = 0; v < 256; v++) {
            assert_decodes_alike(bytes, len);
            bytes[n] = (uint8_t)v;
            assert_decodes_alike(bytes, len);
            bytes[n] = kept;
        }
    }
    forget();
}

/* The length in front is one byte, and what it should be. */
static void assert_body_alike(const uint8_t *body, size_t len)
{
    static struct wire w;

    w.len = 0;
    put_bytes(&w, 8, body, len);
    assert_decodes_alike(w.bytes, w.len);
}

TEST(a_known_agreement_cut_or_stretched_anywhere)
{
    const struct peer_message m = all_reduce(300);
    uint8_t body[256];
    size_t len;
    const uint8_t *bytes = encoded(&m, &len);

    len -= 2; /* its key and length */
    for (size_t n = 0; n <= len; n++) {
        assert_decodes_alike(bytes, 2 + len);
        assert_decodes_alike(bytes, n);
        assert_body_alike(bytes + 2, n);
        for (uint32_t v = 0; v < 256; v++) {
            memcpy(body, bytes + 2, n);
            body[n] = (uint8_t)v;
            memcpy(body + n + 1, bytes + 2 + n, len - n);
            assert_body_alike(body, len + 1);
        }
    }
    forget();
}

/* Of a body: its key, its number and its part; the caller goes on with it. */
static void begin(struct wire *body, uint64_t sequence)
{
    static const uint8_t key[PEER_KEY_BYTES] = { 1 };

    body->len = 0;
    put_bytes(body, 1, key, sizeof(key));
    put_number(body, 2, sequence);
    put_bytes(body, 4, "\x08\x01", 2);
}

TEST(messages_that_no_encoder_makes)
{
    static struct wire body, w;

    for (uint64_t i = 1; i < 20; i++) {
        begin(&body, i); /* a number twice: the last counts */
        put_number(&body, 2, 20 - i);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* a key twice */
        put_bytes(&body, 1, "another key here", PEER_KEY_BYTES);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* said to enclose something, and not; nothing in two ways */
        put_number(&body, 8, 1);
        put_number(&body, 8, 0);
        assert_body_alike(body.bytes, body.len);
        put_bytes(&body, 9, "x", i % 2);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* what is enclosed comes first */
        put_bytes(&body, 9, "payload", 7);
        put_number(&body, 8, 1);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* and something behind it */
        put_number(&body, 8, 1);
        put_bytes(&body, 9, "payload", 7);
        put_number(&body, 10, i);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* longer than they need be: a number, a field's key, a length */
        put_varint(&body, 10 << 3);
        memcpy(body.bytes + body.len, (uint8_t[]){ 0x80 | (uint8_t)i, 0x80, 0 }, 3);
        body.len += 3;
        assert_body_alike(body.bytes, body.len);
        memcpy(body.bytes + body.len, (uint8_t[]){ 0xc0, 0, 1 }, 3);
        body.len += 3;
        assert_body_alike(body.bytes, body.len);
        memcpy(body.bytes + body.len, (uint8_t[]){ 0x4a, 0x81, 0x80, 0, (uint8_t)i }, 5);
        body.len += 5;
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* a field of the future, whose bytes look like what encloses nothing */
        put_bytes(&body, 1000, "\x40\x01", 2);
        assert_body_alike(body.bytes, body.len);
        assert_body_alike(body.bytes, body.len - 2);
        put_number(&body, 8, 1);
        assert_body_alike(body.bytes, body.len);

        begin(&body, i); /* two bodies */
        w.len = 0;
        put_wire(&w, 8, &body);
        put_wire(&w, 8, &body);
        assert_decodes_alike(w.bytes, w.len);
    }
}

/* That any are known at all: decoding them needs no codec. */
TEST(a_repeat_is_not_decoded)
{
    struct peer_message m = all_reduce(300), got;
    struct error e = { 0 };
    const void *bytes;
    int64_t len;

    assert_alike(&m);
    m.agree.sequence = 70000;
    m.agree.payload_bytes = 1000;
    len = peer_repeat_encode(&told, other, &m, &bytes);
    assert_int_equal(peer_repeat_decode(&heard, NULL, bytes, (size_t)len, &got, &e), 0);
    assert_same_text(&m, &got);
}

/* Nor encoded: what is known is written as it is, here with a mark that no encoder makes. */
TEST(a_repeat_is_not_encoded)
{
    struct peer_message m = all_reduce(300);
    const void *plain, *repeated;
    int64_t len;

    assert_alike(&m);
    for (uint32_t i = 0; i < PEER_REPEATS; i++)
        told.known[i].bytes[1] ^= 1;
    len = peer_codec_encode(codec, &m, &plain);
    assert_int_equal(peer_repeat_encode(&told, other, &m, &repeated), len);
    assert_memory_not_equal(plain, repeated, (size_t)len);
}

int main(void)
{
#define WITH_CODECS(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        WITH_CODECS(agreements_in_a_row),
        WITH_CODECS(enclosed_bytes_of_every_length),
        WITH_CODECS(several_receivers_of_a_repeat),
        WITH_CODECS(nothing_is_left_of_a_repeat_behind_another_kind),
        WITH_CODECS(what_stays_tells_agreements_apart),
        WITH_CODECS(more_agreements_than_are_known_take_turns),
        WITH_CODECS(every_kind_between_agreements),
        WITH_CODECS(an_agreement_too_long_to_be_kept),
        WITH_CODECS(every_change_of_a_known_agreement),
        WITH_CODECS(a_known_agreement_cut_or_stretched_anywhere),
        WITH_CODECS(messages_that_no_encoder_makes),
        WITH_CODECS(a_repeat_is_not_decoded),
        WITH_CODECS(a_repeat_is_not_encoded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
