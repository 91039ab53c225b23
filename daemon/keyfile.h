/*
 * Key files: [section], key = value, # comment. And the words and numbers that are values.
 * Knows no key.
 */
#ifndef DAEMON_KEYFILE_H
#define DAEMON_KEYFILE_H

#include "shared/error.h"

struct keyfile_key {
    const char *path;
    unsigned line;
    const char *section, *name, *value;
};

/* Return: 0, or -code worded in `e`, which ends the reading. */
typedef int (*keyfile_key_fn)(void *user, const struct keyfile_key *k, struct error *e);

/*
 * Hands every key to `take`, in order. A file that is not there is empty, unless it `must_exist`.
 * Return: 0, or -code with `e` naming the file and, where there is one, the line.
 */
int keyfile_read(const char *path, bool must_exist, keyfile_key_fn take, void *user,
                 struct error *e);

/* A table of these ends with a NULL. */
struct word {
    const char *text;
    uint64_t value;
};

bool word_find(const struct word *words, const char *text, uint64_t *ret);

/* B, K, KiB ... TiB, or nothing */
extern const struct word byte_units[];

/* Digits and a unit, with blanks between them allowed. False: it is none, or one too large. */
bool number_parse(const char *text, int base, const struct word *units, uint64_t *ret);

#endif
