#include "daemon/keyfile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <ini.h>

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

/* inih tells of keys alone, so a section without any would be nobody's. What has no end is left for
 * inih to refuse. */
static int read_section(struct reading *r, const char *line)
{
    const char *open = line + strspn(line, " \t"), *close = strchr(open, ']');
    struct keyfile_key key = { .path = r->path, .line = r->line };
    struct text section = { 0 };

    if (*open != '[' || !close)
        return 0;
    text_add(&section, "%.*s", (int)(close - open - 1), open + 1);
    key.section = section.s;
    return r->take(r->user, &key, r->error);
}

static char *read_line(char *buffer, int size, void *stream)
{
    struct reading *r = stream;

    if (r->failed || !fgets(buffer, size, r->file))
        return NULL;
    r->line++;
    if (!strchr(buffer, '\n') && !feof(r->file)) {
        error_set(r->error, ERROR_INVALID_ARGUMENT, "%s:%u: the line has more than %d bytes",
                  r->path, r->line, size - 2);
        r->failed = true;
        return NULL;
    }
    r->failed = read_section(r, buffer) < 0;
    return r->failed ? NULL : buffer;
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
