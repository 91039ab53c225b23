#include "tests/unit/unit.h"

#include "tests/peer_wire.h"

TEST(every_message_comes_back_as_it_went)
{
    struct peer_message m;
    uint32_t seen = 0;

    for (uint32_t i = 0; sample_peer(i, &m); i++) {
        assert_comes_back(&m);
        seen |= 1u << m.kind;
    }
    assert_int_equal(seen, (1u << KINDS) - 1);
}

TEST(every_kind_op_and_dtype_travels)
{
    struct peer_message back;
    struct error e = { 0 };
    const void *bytes;

    for (uint32_t v = 0; v < 300; v++) { /* also numbers that name nothing: comm judges them */
        struct peer_part part = { .d = { .kind = (enum collective_id)v,
                                         .op = (enum operator_id)(v + 1),
                                         .dtype = (enum dtype_id)(v + 2) } };
        struct peer_message m = { .kind = PEER_AGREE, .agree = { .parts = &part, .nparts = 1 } };
        int64_t len = peer_codec_encode(codec, &m, &bytes);

        assert_int_equal(decode(bytes, (size_t)len, &back, &e), 0);
        assert_int_equal(back.agree.parts[0].d.kind, v);
        assert_int_equal(back.agree.parts[0].d.op, v + 1);
        assert_int_equal(back.agree.parts[0].d.dtype, v + 2);
        assert_int_equal(back.agree.parts[0].d.nranks, 0);
    }
}

TEST(error_codes_of_later_versions_become_protocol_errors)
{
    struct peer_message m = { .kind = PEER_FAIL }, back;
    struct error e = { 0 };
    const void *bytes;

    for (uint32_t v = 1; v < ERROR_END + 10; v++) {
        m.fail.error.code = (enum error_code)v;

        int64_t len = peer_codec_encode(codec, &m, &bytes);

        assert_int_equal(decode(bytes, (size_t)len, &back, &e), 0);
        assert_int_equal(back.fail.error.code, v < ERROR_END ? v : ERROR_PROTOCOL);
    }
}

TEST(strings_may_be_null_and_are_not_once_decoded)
{
    struct peer_message m = { .kind = PEER_JOIN }, back;
    struct error e = { 0 };
    const void *bytes;
    int64_t len = peer_codec_encode(codec, &m, &bytes);

    assert_int_equal(decode(bytes, (size_t)len, &back, &e), 0);
    assert_string_equal(back.join.id, "");
    assert_string_equal(back.join.label, "");
    assert_string_equal(back.join.algorithm, "");
}

TEST(what_would_disturb_a_terminal_is_replaced)
{
    struct peer_rank rank = { .last = "\x1b[2J\xe2\x80\xae" };
    struct peer_message m = { .kind = PEER_MISSING, .missing = { .ranks = &rank, .nranks = 1 } };
    struct peer_message back;
    struct error e = { 0 };
    const void *bytes;
    int64_t len = peer_codec_encode(codec, &m, &bytes);

    assert_int_equal(decode(bytes, (size_t)len, &back, &e), 0);
    assert_string_equal(back.missing.ranks[0].last, "?[2J???");
}

TEST(unknown_fields_are_ignored)
{
    static const uint8_t unknown[] = { 0x80, 0x7d, 5, 0x8a, 0x7d, 2, 'a', 'b' }; /* 2000, 2001 */
    struct peer_message m = full_sample(PEER_ASK), back;
    struct error e = { 0 };
    size_t len;

    forget();

    uint8_t *bytes = encoded(&m, &len);
    uint8_t *later = take(len + sizeof(unknown));

    memcpy(later, bytes, len);
    memcpy(later + len, unknown, sizeof(unknown));
    assert_int_equal(decode(later, len + sizeof(unknown), &back, &e), 0);
    assert_true(back.ask.sequence == UINT64_MAX);
}

TEST(decoded_message_can_be_encoded_by_the_same_codec)
{
    struct peer_message m = full_sample(PEER_AGREE), back;
    struct error e = { 0 };
    const void *bytes, *again;
    int64_t len = peer_codec_encode(codec, &m, &bytes);

    forget();

    uint8_t *first = memcpy(take((size_t)len), bytes, (size_t)len);

    assert_int_equal(decode(bytes, (size_t)len, &back, &e), 0);
    assert_true(peer_codec_encode(codec, &back, &again) == len);
    assert_memory_equal(first, again, (size_t)len);
}

/* The rest is not looked at again, nor disturbed by what was there before. */
TEST(another_payload_makes_what_encoding_it_anew_makes)
{
    static uint8_t payload[PEER_ENCLOSED_MAX + 1];
    static const uint32_t lengths[] = { 0, 1, 100, 127, 128, 5000, PEER_ENCLOSED_MAX, 3, 0 };
    struct peer_message m = full_sample(PEER_AGREE), ask = full_sample(PEER_ASK);
    const void *bytes, *again;
    int64_t len;

    forget();
    memset(payload, 0x5a, sizeof(payload));
    for (uint32_t i = 0; i < 2 * ARRAY_SIZE(lengths); i++) {
        m.agree.payload_bytes = lengths[i / 2];
        m.agree.payload = payload;
        m.agree.enclosed = i % 2 || m.agree.payload_bytes;
        len = peer_codec_encode(codec, &m, &bytes);
        assert_true(len > 0);

        uint8_t *anew = memcpy(take((size_t)len), bytes, (size_t)len);
        struct peer_agree only = { .enclosed = true, .payload = payload, .payload_bytes = 777 };

        assert_true(peer_codec_encode_payload(codec, &only, &again) > 777);
        only.enclosed = m.agree.enclosed;
        only.payload_bytes = m.agree.payload_bytes;
        assert_int_equal(peer_codec_encode_payload(codec, &only, &again), len);
        assert_memory_equal(anew, again, (size_t)len);
    }
    m.agree.payload_bytes = PEER_ENCLOSED_MAX + 1;
    m.agree.enclosed = true;
    assert_int_equal(peer_codec_encode_payload(codec, &m.agree, &again), -EMSGSIZE);
    m.agree.payload_bytes = 1;
    m.agree.enclosed = false;
    assert_int_equal(peer_codec_encode_payload(codec, &m.agree, &again), -EMSGSIZE);
    assert_true(peer_codec_encode(codec, &ask, &bytes) > 0);
    assert_int_equal(peer_codec_encode_payload(codec, &m.agree, &again), -EINVAL);
}

/* ------------------------------------------------ the largest that is legal */

TEST(longest_lists_come_back_as_they_went)
{
    struct error error = sample_error();
    struct peer_message agree = full_sample(PEER_AGREE), missing = full_sample(PEER_MISSING);
    struct peer_message form = { .kind = PEER_FORM };
    struct peer_rule rules[PEER_RULES_MAX];

    forget();
    agree.agree.parts = parts_of(RANKS_MAX, sample_part(&error));
    agree.agree.nparts = RANKS_MAX;
    agree.agree.rows = rows_of(RANKS_MAX, (struct peer_rows){ .counts = sample_counts,
                                                              .ncounts = 40,
                                                              .expected = sample_counts,
                                                              .nexpected = 40 });
    agree.agree.nrows = RANKS_MAX;
    agree.agree.colors = colors_of(RANKS_MAX);
    agree.agree.ncolors = RANKS_MAX;
    assert_comes_back(&agree);

    missing.missing.ranks = ranks_of(RANKS_MAX, LAST_127);
    missing.missing.nranks = RANKS_MAX;
    assert_comes_back(&missing);

    form.form = form_of(PEER_NODES_MAX, (struct peer_node){ NODE_A, HOST_64, ADDRESS_128 });
    for (uint32_t i = 0; i < PEER_RULES_MAX; i++)
        rules[i] = (struct peer_rule){ COLLECTIVE_ALL_REDUCE, i, LONG_NAME };
    form.form.rules = rules;
    form.form.nrules = PEER_RULES_MAX;
    assert_comes_back(&form);
}

/* What takes most memory for its bytes still fits into what a decode may have. */
TEST(longest_lists_of_the_shortest_entries_come_back_as_they_went)
{
    struct error error = { .code = ERROR_RANK_LOST };
    struct peer_message agree = { .kind = PEER_AGREE }, missing = { .kind = PEER_MISSING };
    struct peer_message form = { .kind = PEER_FORM };

    forget();
    for (uint32_t n = 1; n <= RANKS_MAX; n *= 2) {
        agree.agree.parts = parts_of(n, (struct peer_part){ .rejection = &error });
        agree.agree.nparts = n;
        agree.agree.nrows = agree.agree.ncolors = 0;
        assert_comes_back(&agree);
        agree.agree.rows = rows_of(n, (struct peer_rows){ 0 });
        agree.agree.colors = colors_of(n);
        agree.agree.nrows = agree.agree.ncolors = n;
        assert_comes_back(&agree);
        missing.missing.ranks = ranks_of(n, "");
        missing.missing.nranks = n;
        assert_comes_back(&missing);
        form.form = form_of(n, (struct peer_node){ NODE_A, "", "" });
        assert_comes_back(&form);
    }
}

/* As many whole rows of counts as fit, then counts until the message is as long as it may be. */
TEST(longest_message_comes_back_and_a_longer_one_does_not_go)
{
    struct peer_part part = { 0 };
    struct peer_message m = { .kind = PEER_AGREE, .agree = { .parts = &part, .nparts = 1 } };
    uint32_t n = PEER_MESSAGE_BYTES / (RANKS_MAX * 8) + 1;
    const void *bytes;

    forget();

    struct peer_rows *rows = rows_of(
        n, (struct peer_rows){ .counts = sample_counts, .ncounts = RANKS_MAX, .out_rows = 1 });

    m.agree.rows = rows;
    m.agree.nrows = n;
    assert_int_equal(peer_codec_encode(codec, &m, &bytes), -EMSGSIZE);
    for (rows[n - 1].ncounts = 0; peer_codec_encode(codec, &m, &bytes) < 0;)
        rows[n - 2].ncounts--;

    int64_t spare = PEER_MESSAGE_BYTES - peer_codec_encode(codec, &m, &bytes);

    assert_in_range(spare, 0, 7);
    for (; spare > 0; spare--) /* a byte more at a time, in a varint's length */
        rows[n - 1].out_rows <<= 7;
    assert_int_equal(peer_codec_encode(codec, &m, &bytes), PEER_MESSAGE_BYTES);
    assert_comes_back(&m);
    rows[n - 1].out_rows <<= 7;
    assert_int_equal(peer_codec_encode(codec, &m, &bytes), -EMSGSIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_went),
        cmocka_unit_test(every_kind_op_and_dtype_travels),
        cmocka_unit_test(error_codes_of_later_versions_become_protocol_errors),
        cmocka_unit_test(strings_may_be_null_and_are_not_once_decoded),
        cmocka_unit_test(what_would_disturb_a_terminal_is_replaced),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(decoded_message_can_be_encoded_by_the_same_codec),
        cmocka_unit_test(another_payload_makes_what_encoding_it_anew_makes),
        cmocka_unit_test(longest_lists_come_back_as_they_went),
        cmocka_unit_test(longest_lists_of_the_shortest_entries_come_back_as_they_went),
        cmocka_unit_test(longest_message_comes_back_and_a_longer_one_does_not_go),
    };

    return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
