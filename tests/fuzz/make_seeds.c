/* Writes every sample message to a file of its own: what the fuzzer starts from. */
#include <stdlib.h>
#include <sys/stat.h>

#include "proto/packet.h"
#include "tests/codec_samples.h"

static void write_seed(const char *directory, const char *name, uint32_t i, const void *bytes,
                       int len)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s-%02u", directory, name, i);

    FILE *f = fopen(path, "w");
    if (!f || len <= 0 || fwrite(bytes, (size_t)len, 1, f) != 1 || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    struct request request;
    struct reply reply;

    if (argc != 2)
        return 2;
    mkdir(argv[1], 0777);
    for (uint32_t i = 0; sample_request(i, &request); i++)
        write_seed(argv[1], "request", i, bytes, codec_encode_request(&request, bytes));
    for (uint32_t i = 0; sample_reply(i, &reply); i++)
        write_seed(argv[1], "reply", i, bytes, codec_encode_reply(&reply, bytes));
    return 0;
}
