/* Writes every sample message of a codec to a file of its own: what its fuzzer starts from. */
#include <stdlib.h>
#include <sys/stat.h>

#include "proto/packet.h"
#include "tests/codec_samples.h"
#include "tests/peer_samples.h"

static void write_seed(const char *directory, const char *name, uint32_t i, const void *bytes,
                       int64_t len)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s-%02u", directory, name, i);

    FILE *f = fopen(path, "w");
    if (!f || len <= 0 || fwrite(bytes, (size_t)len, 1, f) != 1 || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static void write_codec(const char *directory)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct request request;
    struct reply reply;

    for (uint32_t i = 0; sample_request(i, &request); i++)
        write_seed(directory, "request", i, bytes, codec_encode_request(&request, bytes));
    for (uint32_t i = 0; sample_reply(i, &reply); i++)
        write_seed(directory, "reply", i, bytes, codec_encode_reply(&reply, bytes));
}

static void write_peer(const char *directory)
{
    _cleanup_(peer_codec_freep) struct peer_codec *codec = NULL;
    struct peer_message m;

    if (peer_codec_new(&codec) < 0)
        abort();
    for (uint32_t i = 0; sample_peer(i, &m); i++) {
        const void *bytes;
        int64_t len = peer_codec_encode(codec, &m, &bytes);

        write_seed(directory, "message", i, bytes, len);
    }
}

/* make_seeds codec | peer DIRECTORY */
int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    mkdir(argv[2], 0777);
    if (!strcmp(argv[1], "codec"))
        write_codec(argv[2]);
    else if (!strcmp(argv[1], "peer"))
        write_peer(argv[2]);
    else
        return 2;
    return 0;
}
