/*
 * Any bytes, as a message of another daemon: what decodes must encode, decode again and still say
 * the same; what does not must be refused with a reason. And what is a repeat of them but for a
 * byte must come to the same by the codec and by what is known.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "proto/peer_repeat.h"
#include "tests/peer_samples.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

/* What it says, to be freed. */
static char *text_of(const struct peer_message *m, size_t *ret_len)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, ret_len);

    say_peer(f, m);
    fclose(f);
    return text;
}

static char *text_of_outcome(int r, const struct peer_message *m, const struct error *e)
{
    size_t len;

    return r == 0 ? text_of(m, &len) : strdup(e->text);
}

static void compare_repeat(struct peer_codec *codec, struct peer_repeats *known,
                           const uint8_t *bytes, size_t len)
{
    struct error e = { 0 }, e2 = { 0 };
    struct peer_message plain, repeated;
    const int r = peer_codec_decode(codec, bytes, len, &plain, &e);
    char *text = text_of_outcome(r, &plain, &e), *again;

    assert(peer_repeat_decode(known, codec, bytes, len, &repeated, &e2) == r);
    again = text_of_outcome(r, &repeated, &e2);
    assert(strcmp(text, again) == 0);
    free(text);
    free(again);
}

static void fuzz_repeats(struct peer_codec *codec, const uint8_t *bytes, size_t len)
{
    static struct peer_repeats known;
    static uint8_t changed[2 * PEER_REPEAT_BYTES];

    if (len > sizeof(changed))
        return;
    known = (struct peer_repeats){ 0 };
    if (len)
        memcpy(changed, bytes, len);
    compare_repeat(codec, &known, changed, len);
    for (size_t i = 0; i < len; i += 1 + len / 24) {
        changed[i]++;
        compare_repeat(codec, &known, changed, len);
        changed[i]--;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct peer_codec *codec;
    size_t said_len, again_len;
    struct error e = { 0 };
    struct peer_message m;
    const void *encoded;

    if (!codec && peer_codec_new(&codec) < 0)
        abort();
    fuzz_repeats(codec, bytes, len);

    int r = peer_codec_decode(codec, bytes, len, &m, &e);
    if (r < 0) {
        assert(r == -EPROTO && e.code == ERROR_PROTOCOL && e.text[0]);
        return 0;
    }

    char *said = text_of(&m, &said_len);
    int64_t encoded_len = peer_codec_encode(codec, &m, &encoded);

    assert(encoded_len > 0);
    r = peer_codec_decode(codec, encoded, (size_t)encoded_len, &m, &e);
    assert(r == 0);

    char *again = text_of(&m, &again_len);

    assert(said_len == again_len && !memcmp(said, again, said_len));
    free(said);
    free(again);
    return 0;
}
