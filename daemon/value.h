/*
 * Values of options: what a text of each type may say, what it becomes, and what is told to whoever
 * said something else. Knows no option.
 */
#ifndef DAEMON_VALUE_H
#define DAEMON_VALUE_H

#include "shared/error.h"

#define MS   1000ull /* microseconds */
#define HOUR (3600 * 1000 * MS)

enum value_type {
    TYPE_PATH,
    TYPE_UUID,
    TYPE_FILE,    /* an absolute path */
    TYPE_ADDRESS, /* of a listener */
    TYPE_NAMES,   /* letters, digits and what stands between names */
    TYPE_PORTS,
    TYPE_GPUS,
    TYPE_MODE,
    TYPE_COUNT,
    TYPE_BYTES,
    TYPE_DURATION, /* kept in microseconds */
    TYPE_LEVEL,
    TYPE_TARGET,
    TYPE_SWITCH,
};

/* Bytes of the field that holds it, all of which count in comparisons; 0: it is a number. */
size_t value_text_bytes(enum value_type type);

/* Sets the field, char[] or uint64_t. A number is from `min` to `max`, unless that is 0. False: the
 * text is not of the type, and the field as it was. */
bool value_set(enum value_type type, const char *text, uint64_t min, uint64_t max, void *field);

/* Appends what value_set() takes. */
void value_allowed(enum value_type type, uint64_t min, uint64_t max, struct text *t);

#endif
