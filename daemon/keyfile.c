#include "daemon/keyfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ini.h>

#define KIB 1024ull

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

/* One reading, with what inih does not know: lines. */
struct reading {
    FILE *file;
    const char *path;
    unsigned line;
    keyfile_key_fn take;
    void *user;
    struct error *error;
    bool failed;
};

static char *read_line(char *buffer, int size, void *stream)
{
    struct reading *r = stream;

    if (!fgets(buffer, size, r->file))
        return NULL;
    r->line++;
    if (!strchr(buffer, '\n') && !feof(r->file)) {
        error_set(r->error, ERROR_INVALID_ARGUMENT, "%s:%u: the line has more than %d bytes",
                  r->path, r->line, size - 2);
        r->failed = true;
        return NULL;
    }
    return buffer;
}

static int read_key(void *user, const char *section, const char *name, const char *value)
{
    struct reading *r = user;
    const struct keyfile_key key = { r->path, r->line, section, name, value };

    if (!r->failed && r->take(r->user, &key, r->error) < 0)
        r->failed = true;
    return !r->failed;
}

int keyfile_read(const char *path, bool must_exist, keyfile_key_fn take, void *user,
                 struct error *e)
{
    struct error own = { 0 };
    struct reading r = { .path = path, .take = take, .user = user, .error = e ? e : &own };
    int line;

    r.file = fopen(path, "re");
    if (!r.file && errno == ENOENT && !must_exist)
        return 0;
    if (!r.file)
        return error_set_errno(e, errno, path);

    ini_allow_multiline = false;
    ini_allow_bom = false;
    line = ini_parse_stream(read_line, &r, read_key, &r);
    if (ferror(r.file)) {
        error_set_errno(r.error, errno, path);
        r.failed = true;
    }
    fclose(r.file);
    if (line && !r.failed)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s:%d: neither [section], key = value nor # comment", path, line);
    return r.failed ? -(int)r.error->code : 0;
}
