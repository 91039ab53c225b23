/* Errors as people meet them: a code from a closed list, one sentence, the ranks concerned. */
#ifndef SHARED_ERROR_H
#define SHARED_ERROR_H

#include <stdarg.h>

#include "shared/base.h"

/* X(ID, number, "name"): the number is the wire's and the public header's; it is never reused. */
#define ERROR_LIST(X)                                                                              \
    X(INVALID_ARGUMENT, 1, "invalid argument")                                                     \
    X(INVALID_SHAPE, 2, "invalid shape")                                                           \
    X(INVALID_ROOT, 3, "invalid root")                                                             \
    X(INVALID_OPERATION, 4, "invalid operation")                                                   \
    X(UNSUPPORTED_DTYPE, 5, "unsupported dtype")                                                   \
    X(UNSUPPORTED_ALGORITHM, 6, "unsupported algorithm")                                           \
    X(BUDGET_TOO_SMALL, 7, "budget too small")                                                     \
    X(MISALIGNED, 8, "misaligned")                                                                 \
    X(OUT_OF_RANGE, 9, "out of range")                                                             \
    X(OVERLAP, 10, "overlap")                                                                      \
    X(MISMATCH, 11, "mismatch")                                                                    \
    X(CAPACITY, 12, "capacity too small")                                                          \
    X(UNEXPECTED_COUNTS, 13, "unexpected counts")                                                  \
    X(TIMEOUT, 14, "timeout")                                                                      \
    X(RANK_LOST, 15, "rank lost")                                                                  \
    X(RANK_LEFT, 16, "rank left")                                                                  \
    X(ABORTED, 17, "aborted")                                                                      \
    X(DAEMON_LOST, 18, "daemon lost")                                                              \
    X(DAEMON_STOPPING, 19, "daemon stopping")                                                      \
    X(QUOTA, 20, "quota exceeded")                                                                 \
    X(PERMISSION, 21, "permission denied")                                                         \
    X(NOT_FOUND, 22, "not found")                                                                  \
    X(DUPLICATE_RANK, 23, "duplicate rank")                                                        \
    X(VERSION, 24, "version mismatch")                                                             \
    X(PROTOCOL, 25, "protocol error")                                                              \
    X(MEMORY_FAULT, 26, "memory fault")                                                            \
    X(NO_MEMORY, 27, "out of memory")                                                              \
    X(SYSTEM, 28, "system error")                                                                  \
    X(FORKED, 29, "used after fork")                                                               \
    X(CLOSED, 30, "closed")

enum error_code {
    ERROR_NONE,
#define ERROR_ENUM(ID, number, name) ERROR_##ID = number,
    ERROR_LIST(ERROR_ENUM)
#undef ERROR_ENUM
        ERROR_END
};

#define ERROR_TEXT_BYTES 512u
#define ERROR_RANKS_MAX  32u

/* A value: copied freely, owns nothing. `ranks` holds the first ERROR_RANKS_MAX of `nranks`. */
struct error {
    enum error_code code; /* ERROR_NONE: no error, and nothing else counts */
    uint32_t nranks;
    uint32_t ranks[ERROR_RANKS_MAX];
    char text[ERROR_TEXT_BYTES];
};

/* Makes it say nothing. To zero the whole would take longer than most of what is checked. */
static inline void error_clear(struct error *e)
{
    e->code = ERROR_NONE;
    e->nranks = 0;
    e->text[0] = '\0';
}

/* "rank lost" for ERROR_RANK_LOST; "unknown error" for a number that names none. */
const char *error_name(uint32_t code);

/*
 * Words the error if none is there yet: the first to know says it, the rest carry it.
 * Returns -code, so that a check can end in `return error_set(e, ...)`. `e` may be NULL.
 */
int error_set(struct error *e, enum error_code code, const char *format, ...) _printf_(3, 4);

/* Adds a rank to those concerned. */
void error_add_rank(struct error *e, uint32_t rank);

/* As error_set, for an errno value: "<what>: <strerror>"; ENOMEM becomes ERROR_NO_MEMORY. */
int error_set_errno(struct error *e, int err, const char *what);

/* Room to build sentences in: appends never overflow, a cut text ends in "...". */
struct text {
    size_t len;
    char s[ERROR_TEXT_BYTES];
};
void text_add(struct text *t, const char *format, ...) _printf_(2, 3);

/* Appends an item of a list, with a comma before it unless it is the first word of all. */
void text_add_item(struct text *t, const char *item);

/* Appends "rank 3" or "ranks 0-3, 5"; `ranks` ascending. */
void text_add_ranks(struct text *t, const uint32_t *ranks, uint32_t nranks);

#endif
