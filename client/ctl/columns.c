#include "client/ctl/columns.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2 /* blanks between columns */

void columns_init(struct columns *t, const char *alignment)
{
    assert(*alignment && strlen(alignment) <= COLUMNS_MAX);
    *t = (struct columns){ .alignment = alignment };
}

void columns_fini(struct columns *t)
{
    for (size_t i = 0; i < t->ncells; i++)
        free(t->cells[i]);
    free(t->cells);
}

void columns_add(struct columns *t, const char *format, ...)
{
    va_list args;

    if (t->ncells == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        char **cells = reallocarray(t->cells, room, sizeof(*cells));

        if (!cells) {
            t->incomplete = true;
            return;
        }
        t->cells = cells;
        t->room = room;
    }

    va_start(args, format);
    if (vasprintf(&t->cells[t->ncells], format, args) < 0)
        t->incomplete = true;
    else
        t->ncells++;
    va_end(args);
}

void columns_add_cells(struct columns *t, const char *const *cells)
{
    for (; *cells; cells++)
        columns_add(t, "%s", *cells);
}

/* Characters, not bytes: UTF-8's second and later bytes take no room. */
static int width(const char *s)
{
    int n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

void columns_print(const struct columns *t, const char *indent, FILE *out)
{
    size_t ncolumns = strlen(t->alignment);
    int widths[COLUMNS_MAX] = { 0 }, pending = 0;

    for (size_t i = 0; i < t->ncells; i++)
        widths[i % ncolumns] = MAX(widths[i % ncolumns], width(t->cells[i]));

    for (size_t i = 0; i < t->ncells; i++) {
        const char *cell = t->cells[i];
        size_t column = i % ncolumns;
        int blanks = widths[column] - width(cell);

        /* Blanks wait for something to stand behind them: no line ends in any. */
        if (column == 0) {
            pending = 0;
            fputs(indent, out);
        } else {
            pending += GAP;
        }
        if (t->alignment[column] == 'r')
            pending += blanks;
        if (*cell) {
            fprintf(out, "%*s%s", pending, "", cell);
            pending = 0;
        }
        if (t->alignment[column] == 'l')
            pending += blanks;
        if (column == ncolumns - 1)
            fputc('\n', out);
    }
    if (t->incomplete)
        fprintf(out, "%sout of memory: the rest is missing\n", indent);
}
