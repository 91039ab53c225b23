/*
 * Any bytes, as a message of another daemon: what decodes must encode, decode again and still say
 * the same; what does not must be refused with a reason.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

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

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static struct peer_codec *codec;
    size_t said_len, again_len;
    struct error e = { 0 };
    struct peer_message m;
    const void *encoded;

    if (!codec && peer_codec_new(&codec) < 0)
        abort();

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
