/* What scale prints of one axis: how a value grows with n. */
#ifndef CLIENT_PERF_SCALE_TABLE_H
#define CLIENT_PERF_SCALE_TABLE_H

#include "client/perf/probe_options.h"

struct scale_row {
    uint64_t n;
    /* us a call; or, of a memory axis, bytes of the daemon's that n objects added, resident and as
     * its share of what others map too. */
    double value, share;
};

struct scale_table {
    FILE *f;
    const struct axis *axis;
    const char *title; /* above the head */
    bool json;
    uint32_t nrows;
    struct scale_row first, previous;
    struct {
        double n, x, y, xx, xy; /* sums over ln n and ln value */
    } fit;
};

/* `title` stays the caller's. */
void scale_table_init(struct scale_table *t, FILE *f, const struct axis *axis, const char *title,
                      bool json);

/*
 * A row, with its ratio to the first one and the exponent of growth since the previous one; above
 * the first one the title and the head, as there may be none. Return, here and below: 0, or below
 * zero once nobody reads any more.
 */
int scale_table_add(struct scale_table *t, const struct scale_row *row);

/* The exponent that fits all rows; NAN for fewer than two that are above zero. */
double scale_table_exponent(const struct scale_table *t);

int scale_table_end(struct scale_table *t);

#endif
