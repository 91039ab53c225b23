#include "shared/error.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

const char *error_name(uint32_t code)
{
    switch (code) {
#define ERROR_CASE(ID, number, name)                                                               \
    case number:                                                                                   \
        return name;
        ERROR_LIST(ERROR_CASE)
#undef ERROR_CASE
    default:
        return "unknown error";
    }
}

int error_set(struct error *e, enum error_code code, const char *format, ...)
{
    va_list args;

    if (!e || e->code)
        return -(int)code;
    e->code = code;
    va_start(args, format);
    int n = vsnprintf(e->text, sizeof(e->text), format, args);
    va_end(args);
    if (n >= (int)sizeof(e->text))
        memcpy(e->text + sizeof(e->text) - 4, "...", 4);
    return -(int)code;
}

void error_add_rank(struct error *e, uint32_t rank)
{
    if (!e)
        return;
    if (e->nranks < ERROR_RANKS_MAX)
        e->ranks[e->nranks] = rank;
    e->nranks++;
}

int error_set_errno(struct error *e, int err, const char *what)
{
    return error_set(e, err == ENOMEM ? ERROR_NO_MEMORY : ERROR_SYSTEM, "%s: %s", what,
                     strerror(err));
}

void text_add(struct text *t, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    int n = vsnprintf(t->s + t->len, sizeof(t->s) - t->len, format, args);
    va_end(args);
    if (n < 0)
        return;
    t->len += (size_t)n;
    if (t->len >= sizeof(t->s)) {
        t->len = sizeof(t->s) - 1;
        memcpy(t->s + t->len - 3, "...", 4);
    }
}

void text_add_item(struct text *t, const char *item)
{
    text_add(t, "%s%s", t->len ? ", " : "", item);
}

void text_add_ranks(struct text *t, const uint32_t *ranks, uint32_t nranks)
{
    text_add(t, nranks == 1 ? "rank " : "ranks ");
    for (uint32_t i = 0; i < nranks;) {
        uint32_t end = i + 1;

        while (end < nranks && ranks[end] == ranks[end - 1] + 1)
            end++;
        text_add(t, "%s%u", i ? ", " : "", ranks[i]);
        if (end - i == 2)
            text_add(t, ", %u", ranks[end - 1]);
        else if (end - i > 2)
            text_add(t, "-%u", ranks[end - 1]);
        i = end;
    }
}
