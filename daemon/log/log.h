/*
 * The daemon's log: one sentence an event, with fields for the journal. Process-wide, loop thread.
 *
 * Rule for callers: what a client can cause at will is logged at info or debug, so that no client
 * can flood an operator's log; warnings and errors are about this daemon and its node.
 */
#ifndef DAEMON_LOG_LOG_H
#define DAEMON_LOG_LOG_H

#include <sys/types.h>

#include "shared/base.h"

/* Numbered as syslog's priorities. */
enum log_level {
    LOG_LEVEL_ERROR = 3,
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_NOTICE = 5,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7,
};

enum log_target {
    LOG_TARGET_AUTO, /* the journal if stderr leads there, else stderr */
    LOG_TARGET_STDERR,
    LOG_TARGET_JOURNAL,
};

/* What an event is about. In the journal: RUCCL_COMMUNICATOR, RUCCL_RANK, ...; 0 and NULL: unsaid.
 */
struct log_context {
    const char *communicator;
    const uint32_t *rank;
    const char *operation;
    const uid_t *uid;
    pid_t pid;
};

void log_open(enum log_target target, enum log_level level);
void log_set_level(enum log_level level);

/* Whether anybody would read it: before words that cost something to find. */
bool log_is_on(enum log_level level);

/* `context` may be NULL. */
void log_write(enum log_level level, const struct log_context *context, const char *format, ...)
    _printf_(3, 4);

#define log_error(context, ...)   log_write(LOG_LEVEL_ERROR, context, __VA_ARGS__)
#define log_warning(context, ...) log_write(LOG_LEVEL_WARNING, context, __VA_ARGS__)
#define log_notice(context, ...)  log_write(LOG_LEVEL_NOTICE, context, __VA_ARGS__)
#define log_info(context, ...)    log_write(LOG_LEVEL_INFO, context, __VA_ARGS__)
#define log_debug(context, ...)   log_write(LOG_LEVEL_DEBUG, context, __VA_ARGS__)

#endif
