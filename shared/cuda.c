#include "shared/cuda.h"

#include <dlfcn.h>
#include <string.h>

#include "shared/error.h"

#define LIBRARY "libcuda.so.1"

/* Stays open once it has started: a driver leaves threads and memory behind. */
static void *library;
static struct cuda driver;
static bool started;

/* The symbols of `handle`; the name of the first that it lacks, or NULL. */
static const char *find_functions(void *handle, struct cuda *ret)
{
#define CUDA_FIND(name, arguments)                                                                 \
    *(void **)&ret->name = dlsym(handle, #name);                                                   \
    if (!ret->name)                                                                                \
        return #name;
    CUDA_LIST(CUDA_FIND)
#undef CUDA_FIND
    return NULL;
}

static int open_library(struct error *e)
{
    const char *missing;
    void *handle;

    handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return error_set(e, ERROR_NOT_FOUND, "no CUDA driver: %s", dlerror());
    missing = find_functions(handle, &driver);
    if (missing) {
        dlclose(handle);
        return error_set(e, ERROR_SYSTEM, "CUDA driver " LIBRARY " is too old: it lacks %s",
                         missing);
    }
    library = handle;
    return 0;
}

int cuda_load(const struct cuda **ret, struct error *e)
{
    CUresult error;
    int r;

    if (!library) {
        r = open_library(e);
        if (r < 0)
            return r;
    }
    if (!started) {
        error = driver.cuInit(0);
        if (error == CUDA_ERROR_NO_DEVICE)
            return error_set(e, ERROR_NOT_FOUND, "CUDA driver " LIBRARY " finds no GPU");
        if (error)
            return error_set(e, ERROR_SYSTEM, "CUDA driver " LIBRARY " does not start: %s (%d)",
                             cuda_error_name(&driver, error), error);
        started = true;
    }
    *ret = &driver;
    return 0;
}

const char *cuda_error_name(const struct cuda *cuda, CUresult error)
{
    const char *name;

    if (cuda->cuGetErrorName(error, &name) || !name)
        return "a CUDA error without a name";
    return name;
}

bool cuda_error_is_sticky(CUresult error)
{
    switch (error) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
        return true;
    default:
        return false;
    }
}

/* Each x is half a byte. */
static const char uuid_form[] = "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
_Static_assert(sizeof(uuid_form) == CUDA_UUID_TEXT, "a UUID as text");

static unsigned half_of(const uint8_t uuid[16], unsigned i)
{
    return i % 2 ? uuid[i / 2] & 15 : uuid[i / 2] >> 4;
}

void cuda_uuid_text(const uint8_t uuid[16], char ret[CUDA_UUID_TEXT])
{
    unsigned halves = 0;

    for (unsigned i = 0; i < CUDA_UUID_TEXT; i++)
        ret[i] = uuid_form[i] == 'x' ? "0123456789abcdef"[half_of(uuid, halves++)] : uuid_form[i];
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool cuda_uuid_parse(const char *text, uint8_t ret[16])
{
    uint8_t uuid[16] = { 0 };
    unsigned halves = 0;

    for (unsigned i = 0; i < CUDA_UUID_TEXT; i++) {
        int value = hex_value(text[i]);

        if (uuid_form[i] == 'x' ? value < 0 : text[i] != uuid_form[i])
            return false;
        if (uuid_form[i] == 'x') {
            uuid[halves / 2] = (uint8_t)(uuid[halves / 2] << 4 | value);
            halves++;
        }
    }
    memcpy(ret, uuid, sizeof(uuid));
    return true;
}
