#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/codec_samples.h"
#include "tests/codec_wire.h"

/* ------------------------------------------------ round trips */

static void test_every_request_comes_back_as_it_went(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct request r, back;
    struct error e = { 0 };
    uint32_t seen = 0;

    (void)state;
    for (uint32_t i = 0; sample_request(i, &r); i++) {
        int len = codec_encode_request(&r, bytes);

        assert_true(len > 0);
        assert_int_equal(decode_request(bytes, (size_t)len, &back, &e), 0);

        char *there = text_of_request(&r), *again = text_of_request(&back);

        assert_string_equal(there, again);
        free(there);
        free(again);
        seen |= 1u << r.kind;
    }
    assert_int_equal(seen, (1u << (REQUEST_SLATE_OPEN + 1)) - 1);
    free(bytes);
}

static void test_every_reply_comes_back_as_it_went(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct reply r, back;
    struct error e = { 0 };
    uint32_t seen = 0;

    (void)state;
    for (uint32_t i = 0; sample_reply(i, &r); i++) {
        int len = codec_encode_reply(&r, bytes);

        assert_true(len > 0);
        assert_int_equal(decode_reply(bytes, (size_t)len, &back, &e), 0);

        char *there = text_of_reply(&r), *again = text_of_reply(&back);

        assert_string_equal(there, again);
        free(there);
        free(again);
        seen |= 1u << r.kind;
    }
    assert_int_equal(seen, (1u << (REPLY_PROGRESS + 1)) - 1);
    free(bytes);
}

static void test_every_kind_op_and_dtype_travels(void **state)
{
    uint8_t bytes[256];
    struct request back;
    struct error e = { 0 };

    (void)state;
    for (uint32_t v = 0; v < 300; v++) { /* also numbers that name nothing: comm judges them */
        struct request r = { .kind = REQUEST_POST,
                             .post = { .comm = 1,
                                       .d = { .kind = (enum collective_id)v,
                                              .op = (enum operator_id)(v + 1),
                                              .dtype = (enum dtype_id)(v + 2) } } };
        int len = codec_encode_request(&r, bytes);

        assert_int_equal(decode_request(bytes, (size_t)len, &back, &e), 0);
        assert_int_equal(back.post.d.kind, v);
        assert_int_equal(back.post.d.op, v + 1);
        assert_int_equal(back.post.d.dtype, v + 2);
        assert_int_equal(back.post.d.nranks, 0);
    }
}

static void test_every_error_code_travels_and_later_ones_become_protocol_errors(void **state)
{
    uint8_t bytes[1024];
    struct reply back;
    struct error e = { 0 };

    (void)state;
    for (uint32_t v = 0; v < ERROR_END + 10; v++) {
        struct reply r = { .kind = REPLY_DONE, .done = { .code = (enum error_code)v } };
        int len = codec_encode_reply(&r, bytes);

        assert_int_equal(decode_reply(bytes, (size_t)len, &back, &e), 0);
        assert_int_equal(back.done.code, v < ERROR_END ? v : ERROR_PROTOCOL);
    }
}

static void test_every_number_of_ranks_in_an_error_travels(void **state)
{
    uint8_t bytes[1024];
    struct reply back;
    struct error e = { 0 };

    (void)state;
    for (uint32_t n = 0; n <= RANKS_MAX; n = n < 70 ? n + 1 : n * 2 - 1) {
        struct reply r = { .kind = REPLY_DONE, .done = { .code = ERROR_TIMEOUT } };

        for (uint32_t i = 0; i < n; i++)
            error_add_rank(&r.done, i);

        int len = codec_encode_reply(&r, bytes);

        assert_int_equal(decode_reply(bytes, (size_t)len, &back, &e), 0);
        assert_int_equal(back.done.nranks, n);
        assert_memory_equal(back.done.ranks, r.done.ranks, MIN(n, ERROR_RANKS_MAX) * 4);
    }
}

static void test_region_without_a_kind_is_host_memory(void **state)
{
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    put_wire(&w, REGION_OPEN, &body);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);
    assert_int_equal(r.region_open.kind, REGION_MEMFD);
}

static void test_absent_budget_is_no_bytes_rather_than_no_budget(void **state)
{
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    put_wire(&w, POST, &body);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);
    assert_int_equal(r.kind, REQUEST_POST);
    assert_true(r.post.d.budget == 0);
    assert_int_equal(r.post.in.region, 0);
    assert_int_equal(r.post.rejection.code, ERROR_NONE);
}

static void test_serial_may_be_zero_and_strings_null(void **state)
{
    uint8_t bytes[64];
    struct request r = { .kind = REQUEST_HELLO }, back;
    struct error e = { 0 };
    int len = codec_encode_request(&r, bytes);

    (void)state;
    assert_int_equal(decode_request(bytes, (size_t)len, &back, &e), 0);
    assert_true(back.serial == 0);
    assert_string_equal(back.hello.name, "");
}

static void test_unknown_fields_are_ignored(void **state)
{
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    put_number(&body, 1000, 1);
    put_bytes(&body, 1001, "later", 5);
    put_number(&w, 1, 9);
    put_bytes(&w, 500, "later", 5);
    put_wire(&w, LEAVE, &body);
    put_number(&w, 501, UINT64_MAX);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);
    assert_true(r.serial == 9);
    assert_int_equal(r.leave.comm, 5);
}

static void test_status_items_of_later_kinds_are_left_out(void **state)
{
    struct wire member = { 0 }, known = { 0 }, unknown = { 0 }, page = { 0 }, w = { 0 };
    struct reply r;
    struct error e = { 0 };

    (void)state;
    put_number(&member, 2, 3);
    put_wire(&known, 4, &member);
    put_wire(&unknown, 99, &member);
    put_wire(&page, 1, &unknown);
    put_wire(&page, 1, &known);
    put_wire(&page, 1, &unknown);
    put_wire(&w, STATUS_PAGE, &page);
    assert_int_equal(decode_reply(w.bytes, w.len, &r, &e), 0);
    assert_int_equal(r.status_page.nitems, 1);
    assert_int_equal(r.status_page.items[0].kind, STATUS_MEMBER);
    assert_int_equal(r.status_page.items[0].member.rank, 3);
}

static void test_counts_sent_one_by_one_fit_the_arena(void **state)
{
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    for (uint64_t i = 0; i < RANKS_MAX; i++) {
        put_varint(&body, 2 << 3 | 1);
        memcpy(body.bytes + body.len, &i, 8);
        body.len += 8;
    }
    put_wire(&w, EXPECT, &body);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);
    assert_int_equal(r.expect.ncounts, RANKS_MAX);
    for (uint32_t i = 0; i < RANKS_MAX; i++)
        assert_true(r.expect.counts[i] == i);
}

/* ------------------------------------------------ limits */

static void test_message_without_a_known_body_is_refused(void **state)
{
    struct wire w = { 0 };

    (void)state;
    assert_request_refused("", 0, "asks for nothing");
    assert_reply_refused("", 0, "says nothing");
    put_number(&w, 1, 5);
    assert_request_refused(w.bytes, w.len, "request 5 asks for nothing");
    assert_reply_refused(w.bytes, w.len, "reply 5 says nothing");
    put_bytes(&w, 77, "", 0);
    assert_request_refused(w.bytes, w.len, "request 5 asks for nothing");
    assert_reply_refused(w.bytes, w.len, "reply 5 says nothing");
}

static void test_message_over_the_size_limit_is_refused_unread(void **state)
{
    static uint8_t zeros[PACKET_BYTES_MAX + 1];

    (void)state;
    assert_request_refused(zeros, sizeof(zeros), "longer than");
    assert_reply_refused(zeros, sizeof(zeros), "longer than");
}

static void test_id_of_zero_is_refused_where_one_is_needed(void **state)
{
    struct wire empty = { 0 };

    (void)state;
    assert_body_refused(REGION_OPEN, &empty, "region_open: region is 0");
    assert_body_refused(REGION_CLOSE, &empty, "region_close: region is 0");
    assert_body_refused(JOIN, &empty, "join: comm is 0");
    assert_body_refused(LEAVE, &empty, "leave: comm is 0");
    assert_body_refused(ABORT, &empty, "abort: comm is 0");
    assert_body_refused(EXPECT, &empty, "expect: comm is 0");
    assert_body_refused(POST, &empty, "post: comm is 0");
    assert_body_refused(START, &empty, "start: comm is 0");
    assert_body_refused(PERSISTENT_CLOSE, &empty, "persistent_close: comm is 0");
    assert_body_refused(STAGED, &empty, "staged: comm is 0");
    assert_body_refused(FENCE_OPEN, &empty, "fence_open: fence is 0");
    assert_body_refused(FENCE_CLOSE, &empty, "fence_close: fence is 0");
    assert_body_refused(SLATE_OPEN, &empty, "slate_open: comm is 0");
}

static void assert_string_limit(uint32_t body_field, uint32_t field, size_t max, const char *what)
{
    char long_text[1024];
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    memset(long_text, 'a', sizeof(long_text));
    put_number(&body, 1, 5);
    put_bytes(&body, field, long_text, max);
    put_wire(&w, body_field, &body);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);

    put_bytes(&body, field, long_text, max + 1); /* the last one counts */
    assert_body_refused(body_field, &body, what);
}

static void test_strings_are_accepted_to_their_limit_and_no_further(void **state)
{
    (void)state;
    assert_string_limit(HELLO, 3, CODEC_NAME_MAX, "hello: name is longer than 63");
    assert_string_limit(JOIN, 2, CODEC_ID_MAX, "join: id is longer than 128");
    assert_string_limit(JOIN, 5, CODEC_NAME_MAX, "join: label is longer than 63");
    assert_string_limit(JOIN, 7, CODEC_ALGORITHM_MAX, "join: algorithm is longer than 23");
    assert_string_limit(ABORT, 2, ERROR_TEXT_BYTES - 1, "abort: text is longer than 511");
}

static void assert_region_refused(uint32_t kind, size_t gpu, size_t ipc, const char *complaint)
{
    static const uint8_t zeros[CODEC_HANDLE_BYTES + 1];
    struct wire body = { 0 };

    put_number(&body, 1, 5);
    put_number(&body, 3, kind);
    put_bytes(&body, 4, zeros, gpu);
    put_bytes(&body, 5, zeros, ipc);
    assert_body_refused(REGION_OPEN, &body, complaint);
}

static void test_region_with_other_than_its_kind_needs_is_refused(void **state)
{
    (void)state;
    assert_region_refused(4, 16, 64, "region_open: memory of kind 4 is not known");
    assert_region_refused(UINT32_MAX, 0, 0, "is not known");
    assert_region_refused(REGION_MEMFD, 16, 0, "region_open: gpu is not 0 bytes but 16");
    assert_region_refused(0, 0, 64, "region_open: ipc is not 0 bytes but 64");
    assert_region_refused(REGION_CUDA_IPC, 15, 64, "region_open: gpu is not 16 bytes but 15");
    assert_region_refused(REGION_CUDA_IPC, 0, 64, "region_open: gpu is not 16 bytes but 0");
    assert_region_refused(REGION_CUDA_IPC, 16, 65, "region_open: ipc is not 64 bytes but 65");
    assert_region_refused(REGION_CUDA_FD, 17, 0, "region_open: gpu is not 16 bytes but 17");
    assert_region_refused(REGION_CUDA_FD, 16, 64, "region_open: ipc is not 0 bytes but 64");
}

static void test_fence_with_a_gpu_or_handle_of_another_length_is_refused(void **state)
{
    static const uint8_t zeros[CODEC_HANDLE_BYTES + 1];
    struct wire body = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    put_bytes(&body, 2, zeros, 16);
    assert_body_refused(FENCE_OPEN, &body, "fence_open: handle is not 64 bytes but 0");
    put_bytes(&body, 3, zeros, 65);
    assert_body_refused(FENCE_OPEN, &body, "fence_open: handle is not 64 bytes but 65");
    put_bytes(&body, 3, zeros, 64);
    put_bytes(&body, 2, zeros, 1);
    assert_body_refused(FENCE_OPEN, &body, "fence_open: gpu is not 16 bytes but 1");
}

static void test_more_axes_than_allowed_are_refused(void **state)
{
    uint64_t axes[AXES_MAX + 1] = { 0 };
    struct wire body = { 0 };

    (void)state;
    put_number(&body, 1, 5);
    put_bytes(&body, 7, axes, sizeof(axes));
    assert_body_refused(POST, &body, "9 axes");
}

static void test_more_counts_than_ranks_are_refused(void **state)
{
    static uint64_t counts[RANKS_MAX + 1];
    struct wire expect = { 0 }, post = { 0 }, completion = { 0 }, w = { 0 };

    (void)state;
    put_number(&expect, 1, 5);
    put_bytes(&expect, 2, counts, sizeof(counts));
    assert_body_refused(EXPECT, &expect, "4097 counts");
    put_number(&post, 1, 5);
    put_bytes(&post, 13, counts, sizeof(counts));
    assert_body_refused(POST, &post, "4097 counts");
    put_bytes(&completion, 9, counts, sizeof(counts));
    put_wire(&w, COMPLETION, &completion);
    assert_reply_refused(w.bytes, w.len, "4097 counts");
}

static void assert_error_refused(uint32_t nranks, uint32_t listed)
{
    struct wire error = { 0 }, done = { 0 }, w = { 0 };

    put_number(&error, 1, ERROR_TIMEOUT);
    put_number(&error, 3, nranks);
    for (uint32_t i = 0; i < listed; i++)
        put_number(&error, 4, i);
    put_wire(&done, 1, &error);
    put_wire(&w, DONE, &done);
    assert_reply_refused(w.bytes, w.len, "ranks listed");
}

static void test_error_with_ranks_that_do_not_add_up_is_refused(void **state)
{
    (void)state;
    assert_error_refused(0, 1);
    assert_error_refused(1, 0);
    assert_error_refused(33, 33);
    assert_error_refused(33, 31);
    assert_error_refused(RANKS_MAX + 1, 32);
    assert_error_refused(UINT32_MAX, 32);
}

static void test_more_status_items_than_a_page_holds_are_refused(void **state)
{
    struct wire page = { 0 }, w = { 0 };

    (void)state;
    for (uint32_t i = 0; i <= CODEC_STATUS_ITEMS; i++)
        put_bytes(&page, 1, "", 0);
    put_wire(&w, STATUS_PAGE, &page);
    assert_reply_refused(w.bytes, w.len, "33 items");
}

static void test_encoder_refuses_what_a_decoder_would(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct request hello = { .kind = REQUEST_HELLO, .hello.name = NAME_63 "x" };
    struct request join = { .kind = REQUEST_JOIN, .join = { .comm = 1, .id = ID_128 "x" } };
    struct request abort_long = { .kind = REQUEST_ABORT, .abort = { 1, TEXT_511 "x" } };
    struct request expect = { .kind = REQUEST_EXPECT,
                              .expect = { 1, sample_counts, RANKS_MAX + 1 } };
    struct request post = { .kind = REQUEST_POST, .post = { .comm = 1 } };
    struct reply page = { .kind = REPLY_STATUS_PAGE,
                          .status_page = { sample_status_items(), CODEC_STATUS_ITEMS + 1, 0 } };

    (void)state;
    assert_int_equal(codec_encode_request(&hello, bytes), -EMSGSIZE);
    assert_int_equal(codec_encode_request(&join, bytes), -EMSGSIZE);
    assert_int_equal(codec_encode_request(&abort_long, bytes), -EMSGSIZE);
    assert_int_equal(codec_encode_request(&expect, bytes), -EMSGSIZE);
    post.post.d.shape.naxes = AXES_MAX + 1;
    assert_int_equal(codec_encode_request(&post, bytes), -EMSGSIZE);
    assert_int_equal(codec_encode_reply(&page, bytes), -EMSGSIZE);
    free(bytes);
}

static void test_page_that_is_too_long_is_refused_whole(void **state)
{
    uint8_t *bytes = malloc(PACKET_BYTES_MAX);
    struct status_item items[CODEC_STATUS_ITEMS];
    struct reply page = { .kind = REPLY_STATUS_PAGE, .status_page = { items, 0, 0 } };

    (void)state;
    for (uint32_t i = 0; i < CODEC_STATUS_ITEMS; i++) {
        items[i] = sample_status_items()[CODEC_STATUS_ITEMS - 1];
        items[i].communicator.failure = TEXT_511;
    }
    page.status_page.nitems = 30;
    assert_true(codec_encode_reply(&page, bytes) > 0);
    page.status_page.nitems = 32;
    assert_int_equal(codec_encode_reply(&page, bytes), -EMSGSIZE);
    free(bytes);
}

/* ------------------------------------------------ strings */

static void assert_name_reads(const char *sent, size_t len, const char *read)
{
    struct wire body = { 0 }, w = { 0 };
    struct request r;
    struct error e = { 0 };

    put_bytes(&body, 3, sent, len);
    put_wire(&w, HELLO, &body);
    assert_int_equal(decode_request(w.bytes, w.len, &r, &e), 0);
    assert_string_equal(r.hello.name, read);
}

static void test_printable_text_is_kept(void **state)
{
    static const char *const names[] = { "",       "a",      "trainer 7 ~!@#$%^&*()",
                                         "Zürich", "モデル", "🙂" };

    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        assert_name_reads(names[i], strlen(names[i]), names[i]);
}

static void test_what_would_disturb_a_terminal_is_replaced(void **state)
{
    (void)state;
    assert_name_reads("\x1b[2Ja", 5, "?[2Ja");
    assert_name_reads("a\nb\tc\rd", 7, "a?b?c?d");
    assert_name_reads("\x7f", 1, "?");
    assert_name_reads("\xc2\x9b"
                      "31m",
                      5, "??31m"); /* the one-character form of escape-bracket */
    assert_name_reads("\xe2\x80\xaetxet", 7, "???txet"); /* right-to-left override */
    assert_name_reads("\xe2\x80\xa8", 3, "???");         /* line separator */
}

static void test_broken_utf8_is_replaced(void **state)
{
    (void)state;
    assert_name_reads("\x80", 1, "?");
    assert_name_reads("\xff\xfe", 2, "??");
    assert_name_reads("\xc0\x80", 2, "??");           /* overlong zero */
    assert_name_reads("\xe0\x80\xaf", 3, "???");      /* overlong slash */
    assert_name_reads("\xed\xa0\x80", 3, "???");      /* half of a pair */
    assert_name_reads("\xf4\x90\x80\x80", 4, "????"); /* beyond the last character */
    assert_name_reads("\xc3", 1, "?");                /* cut short */
    assert_name_reads("\xe3\x83", 2, "??");
    assert_name_reads("\xf0\x9f\x99", 3, "???");
    assert_name_reads("\xc3zoo", 4, "?zoo");
}

static void test_text_ends_at_a_zero_byte(void **state)
{
    (void)state;
    assert_name_reads("ab\0cd", 5, "ab");
}

static void test_decode_may_go_without_an_error_to_word(void **state)
{
    struct request r;

    (void)state;
    assert_int_equal(codec_decode_request(codec, "", 0, &r, NULL), -EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_request_comes_back_as_it_went),
        cmocka_unit_test(test_every_reply_comes_back_as_it_went),
        cmocka_unit_test(test_every_kind_op_and_dtype_travels),
        cmocka_unit_test(test_every_error_code_travels_and_later_ones_become_protocol_errors),
        cmocka_unit_test(test_every_number_of_ranks_in_an_error_travels),
        cmocka_unit_test(test_region_without_a_kind_is_host_memory),
        cmocka_unit_test(test_absent_budget_is_no_bytes_rather_than_no_budget),
        cmocka_unit_test(test_serial_may_be_zero_and_strings_null),
        cmocka_unit_test(test_unknown_fields_are_ignored),
        cmocka_unit_test(test_status_items_of_later_kinds_are_left_out),
        cmocka_unit_test(test_counts_sent_one_by_one_fit_the_arena),
        cmocka_unit_test(test_message_without_a_known_body_is_refused),
        cmocka_unit_test(test_message_over_the_size_limit_is_refused_unread),
        cmocka_unit_test(test_id_of_zero_is_refused_where_one_is_needed),
        cmocka_unit_test(test_strings_are_accepted_to_their_limit_and_no_further),
        cmocka_unit_test(test_region_with_other_than_its_kind_needs_is_refused),
        cmocka_unit_test(test_fence_with_a_gpu_or_handle_of_another_length_is_refused),
        cmocka_unit_test(test_more_axes_than_allowed_are_refused),
        cmocka_unit_test(test_more_counts_than_ranks_are_refused),
        cmocka_unit_test(test_error_with_ranks_that_do_not_add_up_is_refused),
        cmocka_unit_test(test_more_status_items_than_a_page_holds_are_refused),
        cmocka_unit_test(test_encoder_refuses_what_a_decoder_would),
        cmocka_unit_test(test_page_that_is_too_long_is_refused_whole),
        cmocka_unit_test(test_printable_text_is_kept),
        cmocka_unit_test(test_what_would_disturb_a_terminal_is_replaced),
        cmocka_unit_test(test_broken_utf8_is_replaced),
        cmocka_unit_test(test_text_ends_at_a_zero_byte),
        cmocka_unit_test(test_decode_may_go_without_an_error_to_word),
    };

    return cmocka_run_group_tests(tests, codec_setup, codec_teardown);
}
