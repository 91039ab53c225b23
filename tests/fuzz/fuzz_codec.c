/*
 * Any bytes, as a request and as a reply: what decodes must encode, decode again and still say the
 * same; what does not must be refused with a reason. And what is a repeat of them but for a byte
 * must come to the same by the codec and by its memo.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/packet.h"
#include "proto/repeat.h"
#include "tests/codec_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static uint8_t buffer[PACKET_BYTES_MAX];

static void assert_refusal(int r, const struct error *e)
{
    assert(r == -EPROTO && e->code == ERROR_PROTOCOL && e->text[0]);
}

static void fuzz_request(struct codec *codec, const uint8_t *bytes, size_t len)
{
    char *said, *again;
    struct error e = { 0 };
    struct request request;

    int r = codec_decode_request(codec, bytes, len, &request, &e);
    if (r < 0) {
        assert_refusal(r, &e);
        return;
    }

    said = text_of_request(&request);

    r = codec_encode_request(&request, buffer);
    assert(r > 0);
    r = codec_decode_request(codec, buffer, (size_t)r, &request, &e);
    assert(r == 0);

    again = text_of_request(&request);
    assert(strcmp(said, again) == 0);
    free(said);
    free(again);
}

/* To be freed. */
static char *text_of_outcome(int r, const struct request *request, const struct error *e)
{
    return r == 0 ? text_of_request(request) : strdup(e->text);
}

static void compare_repeat(struct codec *codec, struct request_repeats *known, const uint8_t *bytes,
                           size_t len)
{
    struct error e = { 0 }, e2 = { 0 };
    struct request plain, repeated;
    const int r = codec_decode_request(codec, bytes, len, &plain, &e);
    char *text = text_of_outcome(r, &plain, &e), *again;

    assert(repeat_decode_request(known, codec, bytes, len, &repeated, &e2) == r);
    again = text_of_outcome(r, &repeated, &e2);
    assert(strcmp(text, again) == 0);
    free(text);
    free(again);
}

static char *text_of_reply_outcome(int r, const struct reply *reply, const struct error *e)
{
    return r == 0 ? text_of_reply(reply) : strdup(e->text);
}

static void compare_repeated_reply(struct codec *codec, struct reply_repeats *known,
                                   const uint8_t *bytes, size_t len)
{
    struct error e = { 0 }, e2 = { 0 };
    struct reply plain, repeated;
    const int r = codec_decode_reply(codec, bytes, len, &plain, &e);
    char *text = text_of_reply_outcome(r, &plain, &e), *again;

    assert(repeat_decode_reply(known, codec, bytes, len, &repeated, &e2) == r);
    again = text_of_reply_outcome(r, &repeated, &e2);
    assert(strcmp(text, again) == 0);
    free(text);
    free(again);
}

static void fuzz_repeats(struct codec *codec, const uint8_t *bytes, size_t len)
{
    static struct request_repeats requests;
    static struct reply_repeats replies;
    static uint8_t changed[MEMO_BYTES];

    if (len > sizeof(changed))
        return;
    requests = (struct request_repeats){ 0 };
    replies = (struct reply_repeats){ 0 };
    if (len)
        memcpy(changed, bytes, len);
    compare_repeat(codec, &requests, changed, len);
    compare_repeated_reply(codec, &replies, changed, len);
    for (size_t i = 0; i < MIN(len, 24); i++) {
        changed[i]++;
        compare_repeat(codec, &requests, changed, len);
        compare_repeated_reply(codec, &replies, changed, len);
        changed[i]--;
    }
}

static void fuzz_reply(struct codec *codec, const uint8_t *bytes, size_t len)
{
    char *said, *again;
    struct error e = { 0 };
    struct reply reply;

    int r = codec_decode_reply(codec, bytes, len, &reply, &e);
    if (r < 0) {
        assert_refusal(r, &e);
        return;
    }

    said = text_of_reply(&reply);

    r = codec_encode_reply(&reply, buffer);
    assert(r > 0);
    r = codec_decode_reply(codec, buffer, (size_t)r, &reply, &e);
    assert(r == 0);

    again = text_of_reply(&reply);
    assert(strcmp(said, again) == 0);
    free(said);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct codec *codec;

    if (!codec && codec_new(&codec) < 0)
        abort();
    fuzz_request(codec, bytes, len);
    fuzz_reply(codec, bytes, len);
    fuzz_repeats(codec, bytes, len);
    return 0;
}
