#include "tests/unit/unit.h"

#include <malloc.h>
#include <sys/resource.h>

#include "tests/peer_wire.h"

/* Whatever the bytes, a decode ends well: a valid struct, or a worded complaint. */
static void assert_survived(const void *bytes, size_t len)
{
    struct peer_message m;
    struct error e = { 0 };
    int r = decode(bytes, len, &m, &e);

    if (r == 0) {
        assert_int_equal(e.code, ERROR_NONE);
        assert_in_range(m.kind, 0, KINDS - 1);
    } else {
        assert_int_equal(r, -EPROTO);
        assert_int_equal(e.code, ERROR_PROTOCOL);
        assert_true(e.text[0]);
    }
}

TEST(every_truncation_of_every_message_is_survived)
{
    struct peer_message m;

    for (uint32_t i = 0; sample_peer(i, &m); i++) {
        size_t len;

        forget();

        uint8_t *bytes = encoded(&m, &len);

        for (size_t n = 0; n < len; n += n < 2048 || n > len - 64 ? 1 : 61)
            assert_survived(bytes, n);
    }
}

TEST(every_change_of_one_byte_is_survived)
{
    struct peer_message m;

    for (uint32_t i = 0; sample_peer(i, &m); i++) {
        size_t len;

        forget();

        uint8_t *bytes = encoded(&m, &len);

        for (size_t n = 0; n < MIN(len, 300u); n++) {
            uint8_t kept = bytes[n];

            for (uint32_t v = 0; v < 256; v += 3) {
                bytes[n] = (uint8_t)v;
                assert_survived(bytes, len);
            }
            bytes[n] = kept;
        }
    }
}

TEST(random_bytes_are_survived)
{
    uint64_t seed = 88172645463325252u;
    uint8_t bytes[256];

    for (uint32_t i = 0; i < 100000; i++) {
        size_t len = i % (sizeof(bytes) + 1);

        for (size_t n = 0; n < len; n++)
            bytes[n] = (uint8_t)(unit_random(&seed) >> 32);
        assert_survived(bytes, len);
    }
}

/* `unit` again and again, as often as it goes into `len` bytes; zeros behind the last. */
static void fill(uint8_t *bytes, size_t len, const uint8_t *unit, size_t unit_len)
{
    memset(bytes, 0, len);
    for (size_t n = 0; n + unit_len <= len; n += unit_len)
        memcpy(bytes + n, unit, unit_len);
}

static size_t memory_in_use(void)
{
    struct mallinfo2 info = mallinfo2(); /* under a sanitizer: zeros */

    return info.uordblks + info.hblkhd;
}

/* `bytes` of the longest length is refused, having taken what may be taken and no more. */
static void assert_bounded(const uint8_t *bytes)
{
    static const uint8_t ping[] = { 0x2a, 0 };
    size_t limit = (16u << 20) + 3u * PEER_MESSAGE_BYTES, before, after;
    struct peer_message m;
    struct error e = { 0 };

    assert_int_equal(peer_codec_decode(codec, ping, sizeof(ping), &m, &e), 0);
    before = memory_in_use();
    assert_int_equal(peer_codec_decode(codec, bytes, PEER_MESSAGE_BYTES, &m, &e), -EPROTO);
    assert_true(e.text[0]);
    after = memory_in_use();
    assert_true(after < before + limit + limit / 64);
    assert_int_equal(peer_codec_decode(codec, ping, sizeof(ping), &m, NULL), 0);
    assert_true(memory_in_use() <= before + 65536);
}

TEST(short_fields_take_no_more_memory_than_a_message_may_have)
{
    static const uint8_t form[] = { 0x9a, 0x01, 0 }, agree[] = { 0x42, 0 }, unknown[] = { 0x78, 0 };
    uint8_t *bytes = malloc(PEER_MESSAGE_BYTES);

    fill(bytes, PEER_MESSAGE_BYTES, form, sizeof(form));
    assert_bounded(bytes);
    fill(bytes, PEER_MESSAGE_BYTES, agree, sizeof(agree));
    assert_bounded(bytes);
    fill(bytes, PEER_MESSAGE_BYTES, unknown, sizeof(unknown));
    assert_bounded(bytes);
    free(bytes);
}

/* The longest message, whose body, of a tag of one byte, says `unit` again and again. */
static void assert_body_bounded(uint8_t tag, const uint8_t *unit, size_t unit_len)
{
    uint32_t body_len = PEER_MESSAGE_BYTES - 5; /* behind the tag, and a length in 4 bytes */
    uint8_t *bytes = malloc(PEER_MESSAGE_BYTES);

    bytes[0] = tag;
    for (uint32_t i = 0; i < 4; i++)
        bytes[1 + i] = (uint8_t)((body_len >> 7 * i & 0x7f) | (i < 3 ? 0x80 : 0));
    fill(bytes + 5, body_len, unit, unit_len);
    assert_bounded(bytes);
    free(bytes);
}

TEST(lists_of_short_entries_take_no_more_memory_than_a_message_may_have)
{
    static const uint8_t part[] = { 0x22, 0 }, rejected[] = { 0x22, 4, 0x52, 2, 8, 1 };
    static const uint8_t rows[] = { 0x32, 2, 0x12, 0 }, rank[] = { 0x1a, 0 };

    assert_body_bounded(0x42, part, sizeof(part));
    assert_body_bounded(0x42, rejected, sizeof(rejected));
    assert_body_bounded(0x42, rows, sizeof(rows));
    assert_body_bounded(0x6a, rank, sizeof(rank));
}

/* ------------------------------------------------ no memory */

#if !defined(__SANITIZE_ADDRESS__) /* which keeps memory of its own */
TEST(lack_of_memory_is_told_from_a_bad_message)
{
    struct peer_part part = { 0 };
    struct peer_message m = { .kind = PEER_AGREE, .agree = { .parts = &part, .nparts = 1 } }, back;
    struct error e = { 0 };
    struct rlimit old, none;
    struct peer_message ping = { .kind = PEER_PING };
    const void *ret, *none_ret = NULL;
    size_t len;

    forget();
    m.agree.nrows = 200;
    m.agree.rows =
        rows_of(m.agree.nrows, (struct peer_rows){ .counts = sample_counts, .ncounts = RANKS_MAX });

    uint8_t *bytes = encoded(&m, &len);

    assert_int_equal(mallopt(M_MMAP_THRESHOLD, 128 * 1024), 1);
    assert_true(peer_codec_encode(codec, &ping, &ret) > 0); /* takes back what the last one took */
    assert_int_equal(peer_codec_decode(codec, "", 0, &back, NULL), -EPROTO);
    malloc_trim(0);
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    none = (struct rlimit){ .rlim_cur = 1 << 20, .rlim_max = old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);

    int decoded = peer_codec_decode(codec, bytes, len, &back, &e);
    int64_t encoded_len = peer_codec_encode(codec, &m, &none_ret);

    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_int_equal(decoded, -ENOMEM);
    assert_int_equal(e.code, ERROR_NO_MEMORY);
    assert_int_equal(encoded_len, -ENOMEM);
    assert_null(none_ret);
    assert_comes_back(&m); /* once there is memory again */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_truncation_of_every_message_is_survived),
        cmocka_unit_test(every_change_of_one_byte_is_survived),
        cmocka_unit_test(random_bytes_are_survived),
        cmocka_unit_test(short_fields_take_no_more_memory_than_a_message_may_have),
        cmocka_unit_test(lists_of_short_entries_take_no_more_memory_than_a_message_may_have),
#if !defined(__SANITIZE_ADDRESS__)
        cmocka_unit_test(lack_of_memory_is_told_from_a_bad_message),
#endif
    };

    return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
