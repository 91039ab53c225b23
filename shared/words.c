#include "shared/words.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024ull

const struct word no_units[] = { { "", 1 }, { NULL, 0 } };

const struct word byte_units[] = {
    { "", 1 },
    { "B", 1 },
    { "K", KIB },
    { "KiB", KIB },
    { "M", KIB *KIB },
    { "MiB", KIB *KIB },
    { "G", KIB *KIB *KIB },
    { "GiB", KIB *KIB *KIB },
    { "T", KIB *KIB *KIB *KIB },
    { "TiB", KIB *KIB *KIB *KIB },
    { NULL, 0 },
};

bool word_find(const struct word *words, const char *text, uint64_t *ret)
{
    for (; words->text; words++)
        if (!strcmp(words->text, text)) {
            *ret = words->value;
            return true;
        }
    return false;
}

bool number_parse(const char *text, int base, const struct word *units, uint64_t *ret)
{
    unsigned long long number;
    uint64_t unit;
    char *end;

    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    number = strtoull(text, &end, base);
    if (errno)
        return false;
    end += strspn(end, " \t");
    return word_find(units, end, &unit) && mul_u64(number, unit, ret);
}
