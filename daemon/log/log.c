#include "daemon/log/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#define TEXT_BYTES  1024u
#define FIELD_BYTES 192u
#define FIELDS_MAX  7u

static enum log_level log_level = LOG_LEVEL_NOTICE;
static bool to_journal;
static bool
    with_priority; /* stderr is read by the journal, which takes "<6>" from a line's start */

/* Whether stderr is the very stream that the service manager says it is. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    if (!stream || sscanf(stream, "%llu:%llu", &dev, &ino) != 2)
        return false;
    return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_open(enum log_target target, enum log_level level)
{
    bool journal = stderr_is_journal();

    log_level = level;
    to_journal = target == LOG_TARGET_JOURNAL || (target == LOG_TARGET_AUTO && journal);
    with_priority = journal;
}

void log_set_level(enum log_level level)
{
    log_level = level;
}

bool log_is_on(enum log_level level)
{
    return level <= log_level;
}

struct fields {
    int count;
    struct iovec iov[FIELDS_MAX];
    char text[FIELDS_MAX - 1][FIELD_BYTES];
};

static void _printf_(2, 3) fields_add(struct fields *f, const char *format, ...)
{
    char *text = f->text[f->count];
    va_list args;

    va_start(args, format);
    int n = vsnprintf(text, FIELD_BYTES, format, args);
    va_end(args);
    if (n < 0)
        return;
    f->iov[f->count++] = (struct iovec){ text, MIN((size_t)n, FIELD_BYTES - 1) };
}

/* `message` begins with "MESSAGE=". Return: whether the journal took it. */
static bool journal_write(enum log_level level, const struct log_context *c, char *message)
{
    struct fields f = { .count = 0 };

    fields_add(&f, "PRIORITY=%d", level);
    if (c && c->communicator)
        fields_add(&f, "RUCCL_COMMUNICATOR=%s", c->communicator);
    if (c && c->rank)
        fields_add(&f, "RUCCL_RANK=%u", *c->rank);
    if (c && c->operation)
        fields_add(&f, "RUCCL_OPERATION=%s", c->operation);
    if (c && c->uid)
        fields_add(&f, "RUCCL_UID=%u", *c->uid);
    if (c && c->pid)
        fields_add(&f, "RUCCL_PID=%d", c->pid);
    f.iov[f.count++] = (struct iovec){ message, strlen(message) };
    return sd_journal_sendv(f.iov, f.count) >= 0;
}

void log_write(enum log_level level, const struct log_context *context, const char *format, ...)
{
    static const char prefix[] = "MESSAGE=";
    char text[sizeof(prefix) + TEXT_BYTES];
    char *message = text + sizeof(prefix) - 1;
    va_list args;

    if (!log_is_on(level))
        return;

    memcpy(text, prefix, sizeof(prefix));
    va_start(args, format);
    vsnprintf(message, TEXT_BYTES, format, args);
    va_end(args);

    if (to_journal && journal_write(level, context, text))
        return;
    if (with_priority)
        fprintf(stderr, "<%d>ruccld: %s\n", level, message);
    else
        fprintf(stderr, "ruccld: %s\n", message);
}
