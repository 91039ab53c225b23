/* Words and numbers that are values, in files and on command lines alike. Knows no option. */
#ifndef SHARED_WORDS_H
#define SHARED_WORDS_H

#include "shared/base.h"

/* A table of these ends with a NULL. */
struct word {
    const char *text;
    uint64_t value;
};

bool word_find(const struct word *words, const char *text, uint64_t *ret);

/* A bare number. */
extern const struct word no_units[];

/* B, K, KiB ... TiB, or nothing; and what is told to whoever wrote something else. */
extern const struct word byte_units[];
#define BYTE_UNITS_TEXT "K, M, G, T, KiB, MiB, GiB or TiB"

/* Digits and a unit, with blanks between them allowed. False: it is none, or one too large. */
bool number_parse(const char *text, int base, const struct word *units, uint64_t *ret);

#endif
