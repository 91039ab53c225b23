/* Tables: cells of text in columns that are as wide as their widest cell. */
#ifndef CLIENT_CTL_TABLE_H
#define CLIENT_CTL_TABLE_H

#include <stdio.h>

#include "shared/base.h"

#define TABLE_COLUMNS_MAX 16u

struct table {
    const char *alignment; /* a letter a column: 'l' or 'r' */
    char **cells;
    size_t ncells, room;
    bool incomplete; /* memory ran out: what is missing is missing */
};

/* `alignment` decides the number of columns, at most TABLE_COLUMNS_MAX; it must outlive the table.
 */
void table_init(struct table *t, const char *alignment);
void table_fini(struct table *t);

/* The next cell of the row; after the last column's a new row begins. */
void table_add(struct table *t, const char *format, ...) _printf_(2, 3);

/* A whole row of cells that are there already. */
#define table_add_row(t, ...) table_add_cells(t, (const char *const[]){ __VA_ARGS__, NULL })
void table_add_cells(struct table *t, const char *const *cells);

/* Every line begins with `indent`; none ends in blanks. */
void table_print(const struct table *t, const char *indent, FILE *out);

#endif
