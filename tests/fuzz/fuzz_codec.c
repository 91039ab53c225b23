/*
 * Any bytes, as a request and as a reply: what decodes must encode, decode again and still say the
 * same; what does not must be refused with a reason.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/codec.h"
#include "proto/packet.h"
#include "tests/codec_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static uint8_t buffer[PACKET_BYTES_MAX];

static void assert_refusal(int r, const struct error *e)
{
    assert(r == -EPROTO && e->code == ERROR_PROTOCOL && e->text[0]);
}

static void fuzz_request(struct codec *codec, const uint8_t *bytes, size_t len)
{
    char *said = NULL, *again = NULL;
    size_t said_len, again_len;
    struct error e = { 0 };
    struct request request;

    int r = codec_decode_request(codec, bytes, len, &request, &e);
    if (r < 0) {
        assert_refusal(r, &e);
        return;
    }

    FILE *f = open_memstream(&said, &said_len);
    say_request(f, &request);
    fclose(f);

    r = codec_encode_request(&request, buffer);
    assert(r > 0);
    r = codec_decode_request(codec, buffer, (size_t)r, &request, &e);
    assert(r == 0);

    f = open_memstream(&again, &again_len);
    say_request(f, &request);
    fclose(f);
    assert(said_len == again_len && !memcmp(said, again, said_len));
    free(said);
    free(again);
}

static void fuzz_reply(struct codec *codec, const uint8_t *bytes, size_t len)
{
    char *said = NULL, *again = NULL;
    size_t said_len, again_len;
    struct error e = { 0 };
    struct reply reply;

    int r = codec_decode_reply(codec, bytes, len, &reply, &e);
    if (r < 0) {
        assert_refusal(r, &e);
        return;
    }

    FILE *f = open_memstream(&said, &said_len);
    say_reply(f, &reply);
    fclose(f);

    r = codec_encode_reply(&reply, buffer);
    assert(r > 0);
    r = codec_decode_reply(codec, buffer, (size_t)r, &reply, &e);
    assert(r == 0);

    f = open_memstream(&again, &again_len);
    say_reply(f, &reply);
    fclose(f);
    assert(said_len == again_len && !memcmp(said, again, said_len));
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
    return 0;
}
