/* What went wrong and what goes on: the thread's last error, and the lines of RUCCL_LOG. */
#ifndef CLIENT_REPORT_H
#define CLIENT_REPORT_H

#include "shared/error.h"

enum report_level {
    REPORT_NOTHING,
    REPORT_ERROR,
    REPORT_INFO,
    REPORT_DEBUG,
};

/* Makes `e` the calling thread's last error, logs it, and returns -code. */
int report_error(const struct error *e);

/* As error_set() and report_error() in one: for a public call's own first checks. */
int report_new(enum error_code code, const char *format, ...) _printf_(2, 3);

/* Does $RUCCL_LOG ask for this level? For lines that take work to word. */
bool report_is_on(enum report_level level);

/* Writes one line to stderr if $RUCCL_LOG asks for this level. */
void report_log(enum report_level level, const char *format, ...) _printf_(2, 3);

#endif
