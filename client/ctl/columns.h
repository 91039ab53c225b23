/* Tables: cells of text in columns that are as wide as their widest cell. */
#ifndef CLIENT_CTL_COLUMNS_H
#define CLIENT_CTL_COLUMNS_H

#include <stdio.h>

#include "shared/base.h"

#define COLUMNS_MAX 16u

struct columns {
    const char *alignment; /* a letter a column: 'l' or 'r' */
    char **cells;
    size_t ncells, room;
    bool incomplete; /* memory ran out: what is missing is missing */
};

/* `alignment` decides the number of columns, at most COLUMNS_MAX; it must outlive them. */
void columns_init(struct columns *t, const char *alignment);
void columns_fini(struct columns *t);

/* The next cell of the row; after the last column's a new row begins. */
void columns_add(struct columns *t, const char *format, ...) _printf_(2, 3);

/* A whole row of cells that are there already. */
#define columns_add_row(t, ...) columns_add_cells(t, (const char *const[]){ __VA_ARGS__, NULL })
void columns_add_cells(struct columns *t, const char *const *cells);

/* Every line begins with `indent`; none ends in blanks. */
void columns_print(const struct columns *t, const char *indent, FILE *out);

#endif
