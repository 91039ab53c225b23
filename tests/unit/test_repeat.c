/* Repeats: what comes from a memo is what the codec itself would have made of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "proto/repeat.h"
#include "tests/codec_samples.h"
#include "tests/codec_wire.h"

static struct request_repeats requests;
static struct reply_repeats replies;

static int setup(void **state)
{
    requests = (struct request_repeats){ 0 };
    replies = (struct reply_repeats){ 0 };
    return codec_setup(state);
}

/* ------------------------------------------------ the same, with and without */

static void assert_same_text(char *a, char *b)
{
    assert_string_equal(a, b);
    free(a);
    free(b);
}

static void assert_decodes_alike(const uint8_t *bytes, size_t len)
{
    struct request plain, repeated;
    struct error e = { 0 }, e2 = { 0 };
    const int r = decode_request(bytes, len, &plain, &e);
    char *text = r == 0 ? text_of_request(&plain) : NULL;

    assert_int_equal(repeat_decode_request(&requests, codec, bytes, len, &repeated, &e2), r);
    if (r == 0)
        assert_same_text(text, text_of_request(&repeated));
    else
        assert_string_equal(e.text, e2.text);
}

static void assert_reply_decodes_alike(const uint8_t *bytes, size_t len)
{
    struct reply plain, repeated;
    struct error e = { 0 }, e2 = { 0 };
    const int r = decode_reply(bytes, len, &plain, &e);
    char *text = r == 0 ? text_of_reply(&plain) : NULL;

    assert_int_equal(repeat_decode_reply(&replies, codec, bytes, len, &repeated, &e2), r);
    if (r == 0)
        assert_same_text(text, text_of_reply(&repeated));
    else
        assert_string_equal(e.text, e2.text);
}

/* Encodes both ways, and decodes. */
static void assert_alike(const struct request *r)
{
    static uint8_t plain[PACKET_BYTES_MAX], repeated[PACKET_BYTES_MAX];
    const int len = codec_encode_request(r, plain);

    assert_int_equal(repeat_encode_request(&requests, r, repeated), len);
    if (len < 0)
        return;
    assert_memory_equal(repeated, plain, (size_t)len);
    assert_decodes_alike(plain, (size_t)len);
}

static void assert_reply_alike(const struct reply *r)
{
    static uint8_t plain[PACKET_BYTES_MAX], repeated[PACKET_BYTES_MAX];
    const int len = codec_encode_reply(r, plain);

    assert_int_equal(repeat_encode_reply(&replies, r, repeated), len);
    if (len < 0)
        return;
    assert_memory_equal(repeated, plain, (size_t)len);
    assert_reply_decodes_alike(plain, (size_t)len);
}

/* ------------------------------------------------ ours */

/* Values around those at which an encoded number grows. */
static const uint64_t edges[] = { 0,          1,          126,        127,       128,
                                  129,        16383,      16384,      2097151,   2097152,
                                  UINT32_MAX, 1ull << 32, 1ull << 62, UINT64_MAX };

static struct request all_reduce(uint64_t serial)
{
    struct request r = { .kind = REQUEST_POST, .serial = serial };

    r.post = (struct request_post){ .comm = 1,
                                    .sequence = serial,
                                    .slot = (uint32_t)serial % 3,
                                    .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                           .dtype = DTYPE_F32,
                                           .shape = { .naxes = 1, .axes = { 2 } },
                                           .budget = BUDGET_NONE },
                                    .in = { .region = 1 },
                                    .out = { .region = 1 } };
    return r;
}

static void test_calls_in_a_row(void **state)
{
    (void)state;
    for (uint64_t i = 1; i < 70000; i++) {
        const struct request r = all_reduce(i);

        assert_alike(&r);
        if (i == 300)
            i = 16000;
        if (i == 17000)
            i = 69000;
    }
}

static void test_every_number_that_varies(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_SIZE(edges); i++)
        for (size_t k = 0; k < ARRAY_SIZE(edges); k++) {
            struct request post = all_reduce(edges[i]);
            struct request start = { .kind = REQUEST_START, .serial = edges[k] };

            post.post.sequence = edges[k];
            post.post.slot = (uint32_t)edges[k];
            post.post.fence = (uint32_t)edges[i];
            post.post.signal = (uint32_t)edges[k];
            start.start.comm = start.start.persistent = 1;
            start.start.sequence = edges[i];
            start.start.slot = (uint32_t)edges[i];
            start.start.fence = (uint32_t)edges[k];
            start.start.signal = (uint32_t)edges[i];
            assert_alike(&post);
            assert_alike(&post);
            assert_alike(&start);
            assert_alike(&start);
        }
}

/* Each differs from the last in one thing alone, and none may be taken for another. */
static void test_what_does_not_vary_tells_calls_apart(void **state)
{
    struct request r = all_reduce(1);
    struct request_post *p = &r.post;

    (void)state;
    assert_alike(&r);
#define CHANGED(field, value)                                                                      \
    do {                                                                                           \
        const struct request kept = r;                                                             \
        (field) = (value);                                                                         \
        assert_alike(&r);                                                                          \
        r = kept;                                                                                  \
        assert_alike(&r);                                                                          \
    } while (0)
    CHANGED(p->comm, 2);
    CHANGED(p->d.kind, COLLECTIVE_REDUCE);
    CHANGED(p->d.op, OPERATOR_MAX);
    CHANGED(p->d.dtype, DTYPE_F64);
    CHANGED(p->d.shape.axes[0], 3);
    CHANGED(p->d.shape.naxes, 0);
    CHANGED(p->d.root, 1);
    CHANGED(p->d.budget, 64);
    CHANGED(p->in.region, 2);
    CHANGED(p->in.offset, 8);
    CHANGED(p->in.window, 4);
    CHANGED(p->out.region, 2);
    CHANGED(p->out.offset, 8);
    CHANGED(p->out.window, 4);
    CHANGED(p->out_rows, 1);
    CHANGED(p->peer, 1);
    CHANGED(p->tag, 1);
    CHANGED(p->color, -1);
    CHANGED(p->key, 1);
    CHANGED(p->child, 1);
    CHANGED(p->persistent, true);
    CHANGED(p->rejection, sample_error());
    CHANGED(p->counts, sample_counts);
    p->counts = sample_counts;
    CHANGED(p->ncounts, 2);
#undef CHANGED
}

static void test_more_calls_than_are_known_take_turns(void **state)
{
    (void)state;
    for (uint64_t i = 1; i < 1000; i++) {
        struct request r = all_reduce(i);

        r.post.in.offset = r.post.out.offset = i % (3 * REPEATS) * 4096;
        assert_alike(&r);
    }
}

static void test_every_kind_between_calls(void **state)
{
    struct request sample, call = all_reduce(1000);
    struct reply reply;

    (void)state;
    for (uint32_t i = 0; sample_request(i, &sample); i++) {
        assert_alike(&sample);
        assert_alike(&call);
        assert_alike(&sample);
    }
    for (uint32_t i = 0; sample_reply(i, &reply); i++) {
        assert_reply_alike(&reply);
        assert_reply_alike(&reply);
    }
}

static void test_completions_in_a_row(void **state)
{
    static const char *const algorithms[] = { "direct", "ring", NULL };
    struct reply r = { .kind = REPLY_COMPLETION };

    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        r.serial = r.completion.sequence = i;
        r.completion.wait_us = edges[i % ARRAY_SIZE(edges)];
        r.completion.run_us = edges[i / 7 % ARRAY_SIZE(edges)];
        r.completion.chunks = 1 + i / 1000;
        r.completion.chunk_elements = i / 900;
        r.completion.peak_bytes = i / 1500;
        r.completion.algorithm = algorithms[i / 13 % ARRAY_SIZE(algorithms)];
        assert_reply_alike(&r);
    }
}

static void test_what_does_not_vary_tells_completions_apart(void **state)
{
    struct reply r = { .kind = REPLY_COMPLETION, .serial = 1 };
    struct reply_completion *c = &r.completion;

    (void)state;
    c->sequence = 1;
    c->algorithm = "ring";
#define CHANGED(field, value)                                                                      \
    do {                                                                                           \
        const struct reply kept = r;                                                               \
        (field) = (value);                                                                         \
        assert_reply_alike(&r);                                                                    \
        assert_reply_alike(&r);                                                                    \
        r = kept;                                                                                  \
        assert_reply_alike(&r);                                                                    \
    } while (0)
    CHANGED(c->error, sample_error());
    CHANGED(c->chunks, 1);
    CHANGED(c->chunk_elements, 1);
    CHANGED(c->peak_bytes, 1);
    CHANGED(c->algorithm, "tree");
    CHANGED(c->algorithm, NULL);
    CHANGED(c->child_rank, 3);
    CHANGED(c->child_nranks, 4);
    CHANGED(c->child_id, "rc1-abcd");
    CHANGED(c->persistent, 1);
    CHANGED(c->counts, sample_counts);
    c->counts = sample_counts;
    CHANGED(c->ncounts, 2);
#undef CHANGED
}

/* ------------------------------------------------ theirs */

static void test_every_change_of_a_known_message(void **state)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct request call = all_reduce(300);
    size_t len;

    (void)state;
    call.post.fence = 7;
    call.post.signal = 1 << 20;
    len = (size_t)codec_encode_request(&call, bytes);
    for (size_t n = 0; n < len; n++) {
        const uint8_t kept = bytes[n];

        for (uint32_t v = 0; v < 256; v++) {
            assert_decodes_alike(bytes, len);
            bytes[n] = (uint8_t)v;
            assert_decodes_alike(bytes, len);
            bytes[n] = kept;
        }
    }
}

static void test_every_change_of_a_known_reply(void **state)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct reply done = { .kind = REPLY_COMPLETION, .serial = 300 };
    size_t len;

    (void)state;
    done.completion = (struct reply_completion){
        .sequence = 299, .wait_us = 17, .run_us = 400, .chunks = 1, .algorithm = "direct"
    };
    len = (size_t)codec_encode_reply(&done, bytes);
    for (size_t n = 0; n < len; n++) {
        const uint8_t kept = bytes[n];

        for (uint32_t v = 0; v < 256; v++) {
            assert_reply_decodes_alike(bytes, len);
            bytes[n] = (uint8_t)v;
            assert_reply_decodes_alike(bytes, len);
            bytes[n] = kept;
        }
    }
}

/* A post as bytes: its serial, and a body that the caller goes on with. */
static void begin(struct wire *body, uint64_t sequence)
{
    body->len = 0;
    put_number(body, 1, 1);
    put_number(body, 2, sequence);
}

static void assert_body_alike(uint64_t serial, const struct wire *body)
{
    static struct wire w;

    w.len = 0;
    put_number(&w, 1, serial);
    put_wire(&w, POST, body);
    assert_decodes_alike(w.bytes, w.len);
}

static void test_messages_that_no_encoder_makes(void **state)
{
    static struct wire body, w;

    (void)state;
    for (uint64_t i = 1; i < 20; i++) {
        begin(&body, i); /* a number twice: the last counts */
        put_number(&body, 2, 20 - i);
        assert_body_alike(i, &body);

        begin(&body, i); /* in another order */
        put_number(&body, 3, i);
        put_number(&body, 2, i + 1);
        put_number(&body, 26, i);
        assert_body_alike(i, &body);

        body.len = 0; /* of another type: nobody's */
        put_number(&body, 1, 1);
        put_varint(&body, 2 << 3 | 5);
        memcpy(body.bytes + body.len, (uint8_t[]){ (uint8_t)i, 0, 0, 0 }, 4);
        body.len += 4;
        assert_body_alike(i, &body);

        begin(&body, i); /* longer than it need be */
        put_varint(&body, 3 << 3);
        memcpy(body.bytes + body.len, (uint8_t[]){ 0x80 | (uint8_t)i, 0x80, 0 }, 3);
        body.len += 3;
        assert_body_alike(i, &body);

        begin(&body, i); /* a field of the future */
        put_bytes(&body, 1000, "new", 3);
        assert_body_alike(i, &body);

        begin(&body, i); /* two bodies, and a serial at the end */
        w.len = 0;
        put_number(&w, 1, i);
        put_wire(&w, POST, &body);
        put_wire(&w, POST, &body);
        assert_decodes_alike(w.bytes, w.len);
        w.len = 0;
        put_wire(&w, POST, &body);
        put_number(&w, 1, i);
        assert_decodes_alike(w.bytes, w.len);
    }
}

/* That there is a memo at all: decoding by it needs no codec. */
static void test_a_repeat_is_not_decoded(void **state)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct request call = all_reduce(200), got;
    struct reply done = { .kind = REPLY_COMPLETION, .serial = 200 }, told;
    struct error e = { 0 };
    int len;

    (void)state;
    assert_alike(&call);
    call.serial = call.post.sequence = 201;
    len = repeat_encode_request(&requests, &call, bytes);
    assert_int_equal(repeat_decode_request(&requests, NULL, bytes, (size_t)len, &got, &e), 0);
    assert_int_equal(got.post.sequence, 201);

    done.completion.algorithm = "direct";
    assert_reply_alike(&done);
    done.serial = 201;
    len = repeat_encode_reply(&replies, &done, bytes);
    assert_int_equal(repeat_decode_reply(&replies, NULL, bytes, (size_t)len, &told, &e), 0);
    assert_int_equal(told.serial, 201);
    assert_string_equal(told.completion.algorithm, "direct");
}

/* What a call took is any number, and few are told apart by how long they are. */
static void test_whatever_the_times_are_it_is_a_repeat(void **state)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct reply done = { .kind = REPLY_COMPLETION, .serial = 200 }, told;
    struct error e = { 0 };

    (void)state;
    done.completion.sequence = 1;
    assert_reply_alike(&done);
    for (size_t i = 0; i < ARRAY_SIZE(edges); i++)
        for (size_t k = 0; k < ARRAY_SIZE(edges); k++) {
            int len;

            done.completion.wait_us = edges[i];
            done.completion.run_us = edges[k];
            done.completion.sequence = MAX(edges[i], 1u);
            len = repeat_encode_reply(&replies, &done, bytes);
            assert_int_equal(repeat_decode_reply(&replies, NULL, bytes, (size_t)len, &told, &e), 0);
            assert_true(told.completion.sequence == done.completion.sequence);
            assert_true(told.completion.wait_us == edges[i]);
            assert_true(told.completion.run_us == edges[k]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_calls_in_a_row, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_every_number_that_varies, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_what_does_not_vary_tells_calls_apart, setup,
                                        codec_teardown),
        cmocka_unit_test_setup_teardown(test_more_calls_than_are_known_take_turns, setup,
                                        codec_teardown),
        cmocka_unit_test_setup_teardown(test_every_kind_between_calls, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_completions_in_a_row, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_whatever_the_times_are_it_is_a_repeat, setup,
                                        codec_teardown),
        cmocka_unit_test_setup_teardown(test_what_does_not_vary_tells_completions_apart, setup,
                                        codec_teardown),
        cmocka_unit_test_setup_teardown(test_every_change_of_a_known_reply, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_every_change_of_a_known_message, setup,
                                        codec_teardown),
        cmocka_unit_test_setup_teardown(test_messages_that_no_encoder_makes, setup, codec_teardown),
        cmocka_unit_test_setup_teardown(test_a_repeat_is_not_decoded, setup, codec_teardown),
    };

    return cmocka_run_group_tests_name("repeat", tests, NULL, NULL);
}
