#include "daemon/value.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <systemd/sd-id128.h>

#include "daemon/config.h"
#include "daemon/server/address.h"
#include "shared/cuda.h"
#include "shared/words.h"

static const struct word levels[] = {
    { "error", LOG_LEVEL_ERROR }, { "warning", LOG_LEVEL_WARNING }, { "notice", LOG_LEVEL_NOTICE },
    { "info", LOG_LEVEL_INFO },   { "debug", LOG_LEVEL_DEBUG },     { NULL, 0 },
};

static const struct word targets[] = {
    { "auto", LOG_TARGET_AUTO },
    { "stderr", LOG_TARGET_STDERR },
    { "journal", LOG_TARGET_JOURNAL },
    { NULL, 0 },
};

static const struct word switches[] = { { "no", 0 }, { "yes", 1 }, { NULL, 0 } };

static const struct word time_units[] = {
    { "us", 1 },   { "ms", MS }, { "s", 1000 * MS }, { "min", 60 * 1000 * MS },
    { "h", HOUR }, { NULL, 0 },
};

static bool parse_uuid(const char *text, char *ret)
{
    sd_id128_t id;

    if (*text && sd_id128_from_string(text, &id) < 0)
        return false;
    memset(ret, 0, CONFIG_NODE_BYTES);
    if (*text)
        sd_id128_to_uuid_string(id, ret);
    return true;
}

size_t value_text_bytes(enum value_type type)
{
    switch (type) {
    case TYPE_PATH:
        return CONFIG_PATH_BYTES;
    case TYPE_UUID:
        return CONFIG_NODE_BYTES;
    case TYPE_FILE:
        return CONFIG_FILE_BYTES;
    case TYPE_ADDRESS:
        return CONFIG_ADDRESS_BYTES;
    case TYPE_NAMES:
    case TYPE_PORTS:
        return CONFIG_TEXT_BYTES;
    case TYPE_GPUS:
        return CONFIG_GPUS_BYTES;
    default:
        return 0; /* a number */
    }
}

static bool set_text(enum value_type type, const char *text, char *ret)
{
    size_t size = value_text_bytes(type);

    if (strlen(text) >= size)
        return false;
    memset(ret, 0, size); /* for comparisons of all of it */
    strcpy(ret, text);
    return true;
}

static bool is_names(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "_-.:,/@";

    return !text[strspn(text, letters)];
}

static bool is_ports(const char *text)
{
    unsigned first, last;
    int end = -1;

    return sscanf(text, "%5u-%5u%n", &first, &last, &end) == 2 && end == (int)strlen(text) &&
           first > 0 && first <= last && last <= UINT16_MAX;
}

/* "all", "none", or a list of UUIDs. */
static bool is_gpus(const char *text)
{
    const size_t width = CUDA_UUID_TEXT - 1;
    char uuid[CUDA_UUID_TEXT] = "";
    uint8_t bytes[16];

    if (!strcmp(text, "all") || !strcmp(text, "none"))
        return true;
    while (strlen(text) >= width) {
        memcpy(uuid, text, width);
        if (!cuda_uuid_parse(uuid, bytes))
            return false;
        text += width;
        if (!*text)
            return true;
        if (*text++ != ',')
            return false;
    }
    return false;
}

static bool is_address(const char *text)
{
    struct address a;

    return address_parse(text, &a, NULL) == 0;
}

bool value_set(enum value_type type, const char *text, uint64_t min, uint64_t max, void *field)
{
    uint64_t value = 0;
    bool ok = false;

    switch (type) {
    case TYPE_PATH:
        return set_text(type, text, field);
    case TYPE_UUID:
        return parse_uuid(text, field);
    case TYPE_FILE:
        return (!*text || *text == '/') && set_text(type, text, field);
    case TYPE_ADDRESS:
        return (!*text || is_address(text)) && set_text(type, text, field);
    case TYPE_NAMES:
        return is_names(text) && set_text(type, text, field);
    case TYPE_PORTS:
        return (!*text || is_ports(text)) && set_text(type, text, field);
    case TYPE_GPUS:
        return is_gpus(text) && set_text(type, text, field);
    case TYPE_LEVEL:
        ok = word_find(levels, text, &value);
        break;
    case TYPE_TARGET:
        ok = word_find(targets, text, &value);
        break;
    case TYPE_SWITCH:
        ok = word_find(switches, text, &value);
        break;
    case TYPE_MODE:
        ok = number_parse(text, 8, no_units, &value);
        break;
    case TYPE_COUNT:
        ok = number_parse(text, 10, no_units, &value);
        break;
    case TYPE_BYTES:
        ok = number_parse(text, 10, byte_units, &value);
        break;
    case TYPE_DURATION:
        ok = number_parse(text, 10, time_units, &value);
        break;
    }
    if (ok && max)
        ok = value >= min && value <= max;
    if (ok)
        *(uint64_t *)field = value;
    return ok;
}

void value_allowed(enum value_type type, uint64_t min, uint64_t max, struct text *t)
{
    switch (type) {
    case TYPE_PATH:
        text_add(t, "a path of at most %u bytes", CONFIG_PATH_BYTES - 1);
        break;
    case TYPE_UUID:
        text_add(t, "a UUID, or nothing");
        break;
    case TYPE_FILE:
        text_add(t, "an absolute path of at most %u bytes, or nothing", CONFIG_FILE_BYTES - 1);
        break;
    case TYPE_ADDRESS:
        text_add(t, "host:port or [v6]:port, of at most %u bytes, or nothing",
                 CONFIG_ADDRESS_BYTES - 1);
        break;
    case TYPE_NAMES:
        text_add(t, "names of at most %u bytes in all", CONFIG_TEXT_BYTES - 1);
        break;
    case TYPE_PORTS:
        text_add(t, "a range of ports such as 41000-41100, or nothing");
        break;
    case TYPE_GPUS:
        text_add(t, "all, none, or UUIDs such as GPU-01234567-89ab-cdef-0123-456789abcdef, "
                    "separated by commas");
        break;
    case TYPE_LEVEL:
        text_add(t, "error, warning, notice, info or debug");
        break;
    case TYPE_TARGET:
        text_add(t, "auto, stderr or journal");
        break;
    case TYPE_SWITCH:
        text_add(t, "yes or no");
        break;
    case TYPE_MODE:
        text_add(t, "an octal file mode from 0 to 0777");
        break;
    case TYPE_COUNT:
        text_add(t, "a number from %" PRIu64 " to %" PRIu64, min, max);
        break;
    case TYPE_BYTES:
        text_add(t, "bytes from %" PRIu64 " to %" PRIu64 ", with " BYTE_UNITS_TEXT, min, max);
        break;
    case TYPE_DURATION:
        text_add(t,
                 max < HOUR ? "a time from %llums to %llums, in us, ms, s, min or h"
                            : "a time from %llums to %lluh, in us, ms, s, min or h",
                 min / MS, max < HOUR ? max / MS : max / HOUR);
        break;
    }
}
