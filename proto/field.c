#include "proto/field.h"

/* Goes on to where the value begins. Return: its bytes; UINT64_MAX: it makes no sense. */
static uint64_t value_bytes(const uint8_t **at, const uint8_t *end, enum field_type type)
{
    const uint8_t *after = *at;
    uint64_t n;

    switch (type) {
    case FIELD_VARINT:
        return varint_read(&after, end, VARINT_BYTES_MAX, &n) ? (uint64_t)(after - *at)
                                                              : UINT64_MAX;
    case FIELD_8_BYTES:
        return sizeof(uint64_t);
    case FIELD_4_BYTES:
        return sizeof(uint32_t);
    case FIELD_LENGTH:
        return varint_read(at, end, LENGTH_BYTES_MAX, &n) ? n : UINT64_MAX;
    }
    return UINT64_MAX;
}

bool field_read(const uint8_t **at, const uint8_t *end, struct field *ret)
{
    uint64_t key;

    if (!varint_read(at, end, LENGTH_BYTES_MAX, &key))
        return false;
    ret->number = (uint32_t)(key >> 3);
    ret->type = (enum field_type)(key & 7);
    ret->len = value_bytes(at, end, ret->type);
    ret->value = *at;
    if (ret->len > (uint64_t)(end - *at))
        return false;
    *at += ret->len;
    return true;
}
