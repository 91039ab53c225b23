#include "client/report.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ruccl.h"

static _Thread_local struct ruccl_error last_error;

static enum report_level wanted = REPORT_NOTHING;

static void log_line(const char *text)
{
    /* One write, so that lines of several threads and processes do not mix. */
    dprintf(STDERR_FILENO, "ruccl[%d]: %s\n", (int)getpid(), text);
}

static void read_environment(void)
{
    static const char *const names[] = { "nothing", "error", "info", "debug" };
    const char *value = getenv("RUCCL_LOG");
    char line[256];

    if (!value || !*value)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(value, names[i])) {
            wanted = (enum report_level)i;
            return;
        }
    snprintf(line, sizeof(line), "RUCCL_LOG is '%.100s': it takes error, info, debug or nothing",
             value);
    log_line(line);
}

bool report_is_on(enum report_level level)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    /* Read once: getenv() races with a setenv() of the host program. */
    pthread_once(&once, read_environment);
    return level <= wanted;
}

void report_log(enum report_level level, const char *format, ...)
{
    char line[ERROR_TEXT_BYTES + 128];
    va_list args;

    if (!report_is_on(level))
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    log_line(line);
}

int report_error(const struct error *e)
{
    last_error.code = (enum ruccl_code)e->code;
    last_error.nranks = e->nranks;
    memcpy(last_error.ranks, e->ranks, sizeof(last_error.ranks));
    memcpy(last_error.text, e->text, sizeof(last_error.text));
    report_log(REPORT_ERROR, "%s: %s", error_name(e->code), e->text);
    return -(int)e->code;
}

int report_new(enum error_code code, const char *format, ...)
{
    struct error e = { .code = code };
    va_list args;

    va_start(args, format);
    vsnprintf(e.text, sizeof(e.text), format, args);
    va_end(args);
    return report_error(&e);
}

const struct ruccl_error *ruccl_last_error(void)
{
    return &last_error;
}
