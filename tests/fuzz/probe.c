/* Builds only where clang has its fuzzer's runtime. */
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    (void)bytes;
    (void)len;
    return 0;
}
