#include "daemon/tuning.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/keyfile.h"
#include "shared/words.h"

#define KIB 1024ull
#define TIB (KIB * KIB * KIB * KIB)

enum key_type {
    TYPE_TIME,  /* a double, us */
    TYPE_SPEED, /* a double, bytes a us */
    TYPE_BYTES,
    TYPE_COUNT, /* 32 bits */
};

struct key_row {
    const char *section, *name;
    enum key_type type;
    size_t offset;
    double min, max;
};

#define AT(field) offsetof(struct table, field)

/* clang-format off */
static const struct key_row rows[] = {
    { "machine", "latency", TYPE_TIME, AT(machine.latency_us), 1e-3, 10e6 },
    { "machine", "message", TYPE_TIME, AT(machine.message_us), 1e-3, 10e6 },
    { "machine", "bandwidth", TYPE_SPEED, AT(machine.link_bytes_per_us), 1, 1e9 },
    { "machine", "memory_bandwidth", TYPE_SPEED, AT(machine.memory_bytes_per_us), 1, 1e9 },
    { "chunks", "bytes", TYPE_BYTES, AT(chunk_bytes), 4 * KIB, TIB },
    { "chunks", "depth", TYPE_COUNT, AT(depth), 1, TABLE_DEPTH_MAX },
};
/* clang-format on */

/* One reading of a file: the table so far, and where the keys have been. */
struct reading {
    struct table table;
    unsigned seen[ARRAY_SIZE(rows)]; /* the line, 0 for none */
};

struct unit {
    const char *text;
    double value;
};

static const struct unit time_units[] = {
    { "ns", 1e-3 }, { "us", 1 }, { "ms", 1e3 }, { "s", 1e6 }, { NULL, 0 },
};

static const struct unit speed_units[] = { { "MB/s", 1 }, { "GB/s", 1e3 }, { NULL, 0 } };

/* A decimal number and a unit, with blanks between them allowed. */
static bool decimal_parse(const char *text, const struct unit *units, double *ret)
{
    char *end;

    *ret = strtod(text, &end);
    if (end == text || end != text + strspn(text, "0123456789.")) /* nor 0x10, 1e5 or nan */
        return false;
    end += strspn(end, " \t");
    for (; units->text; units++)
        if (!strcmp(units->text, end)) {
            *ret *= units->value;
            return true;
        }
    return false;
}

static bool within(const struct key_row *row, double value)
{
    return value >= row->min && value <= row->max;
}

static bool row_set(const struct key_row *row, const char *text, struct table *t)
{
    void *field = (char *)t + row->offset;
    uint64_t number = 0;
    double value;

    switch (row->type) {
    case TYPE_TIME:
    case TYPE_SPEED:
        if (!decimal_parse(text, row->type == TYPE_TIME ? time_units : speed_units, &value) ||
            !within(row, value))
            return false;
        *(double *)field = value;
        return true;
    case TYPE_BYTES:
        if (!number_parse(text, 10, byte_units, &number) || !within(row, (double)number))
            return false;
        *(uint64_t *)field = number;
        return true;
    case TYPE_COUNT:
        if (!number_parse(text, 10, no_units, &number) || !within(row, (double)number))
            return false;
        *(uint32_t *)field = (uint32_t)number;
        return true;
    }
    return false;
}

static void row_allowed(const struct key_row *row, struct text *t)
{
    switch (row->type) {
    case TYPE_TIME:
        text_add(t, "a time from %gns to %gs, in ns, us, ms or s", row->min * 1e3, row->max / 1e6);
        break;
    case TYPE_SPEED:
        text_add(t, "a speed from %gMB/s to %gGB/s, in MB/s or GB/s", row->min, row->max / 1e3);
        break;
    case TYPE_BYTES:
        text_add(t, "bytes from %.0f to %.0f, with " BYTE_UNITS_TEXT, row->min, row->max);
        break;
    case TYPE_COUNT:
        text_add(t, "a number from %.0f to %.0f", row->min, row->max);
        break;
    }
}

/* ---- [machine] and [chunks] */

static int unknown_key(const struct keyfile_key *k, struct error *e)
{
    struct text known = { 0 };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!strcmp(rows[i].section, k->section))
            text_add(&known, "%s%s", known.s[0] ? ", " : "", rows[i].name);
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: unknown key '%s'; [%s] has %s", k->path,
                     k->line, k->name, k->section, known.s);
}

static int take_row(struct reading *r, const struct keyfile_key *k, struct error *e)
{
    const struct key_row *row = rows;
    struct text allowed = { 0 };

    while (row < rows + ARRAY_SIZE(rows) &&
           (strcmp(row->section, k->section) || strcmp(row->name, k->name)))
        row++;
    if (row == rows + ARRAY_SIZE(rows))
        return unknown_key(k, e);
    if (r->seen[row - rows])
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: '%s' was set before, in line %u",
                         k->path, k->line, k->name, r->seen[row - rows]);
    r->seen[row - rows] = k->line;
    if (row_set(row, k->value, &r->table))
        return 0;
    row_allowed(row, &allowed);
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: %s: '%s' is not %s", k->path, k->line,
                     k->name, k->value, allowed.s);
}

static bool section_is_rows(const char *section)
{
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (!strcmp(rows[i].section, section))
            return true;
    return false;
}

/* ---- [all_reduce] and its like */

/* Between nodes; "hierarchical" is what all of them are there. */
static bool row_named(const struct algorithm *a, enum collective_id kind)
{
    return a->kind == kind && strcmp(a->name, "hierarchical");
}

static bool algorithm_allowed(enum collective_id kind, const char *name, struct text *ret_allowed)
{
    bool found = !strcmp(name, "auto");

    text_add(ret_allowed, "auto");
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        if (!row_named(a, kind))
            continue;
        found |= !strcmp(name, a->name);
        text_add(ret_allowed, ", %s", a->name);
    }
    return found;
}

static bool has_algorithms(enum collective_id kind)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        if (row_named(a, kind) && !(collective_get(kind)->flags & COLLECTIVE_PAIR))
            return true;
    return false;
}

static int take_rule(struct reading *r, enum collective_id kind, const struct keyfile_key *k,
                     struct error *e)
{
    struct text allowed = { 0 };
    uint64_t bytes;

    if (!number_parse(k->name, 10, byte_units, &bytes))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s:%u: '%s' is not bytes from 0 on, with " BYTE_UNITS_TEXT, k->path,
                         k->line, k->name);
    if (!algorithm_allowed(kind, k->value, &allowed))
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: %s: '%s' is not one of %s", k->path,
                         k->line, k->name, k->value, allowed.s);
    switch (table_add(&r->table, kind, bytes, k->value)) {
    case TABLE_TWICE:
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s:%u: [%s] has a rule from %" PRIu64 " bytes on already", k->path,
                         k->line, k->section, bytes);
    case TABLE_FULL:
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: there are more than %u rules", k->path,
                         k->line, TABLE_RULES_MAX);
    default:
        return 0;
    }
}

/* ---- */

/* Of one that opens, or of a key before all of them. */
static int no_section(const struct keyfile_key *k, struct error *e)
{
    static const char there_is[] = "[machine], [chunks], or a collective's, as [all_reduce]";

    if (k->name)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "%s:%u: '%s' is in no section; it belongs in %s", k->path, k->line,
                         k->name, there_is);
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s:%u: there is no section [%s], only %s", k->path,
                     k->line, k->section, there_is);
}

static int take_key(void *user, const struct keyfile_key *k, struct error *e)
{
    struct reading *r = user;
    const enum collective_id kind = collective_by_name(k->section);
    const bool rows_here = section_is_rows(k->section);

    if (!rows_here && (kind == COLLECTIVE_NONE || !has_algorithms(kind)))
        return no_section(k, e);
    if (!k->name)
        return 0;
    return rows_here ? take_row(r, k, e) : take_rule(r, kind, k, e);
}

int tuning_read(const char *path, struct table *t, struct error *e)
{
    struct reading r = { .table = *t };
    const int result = keyfile_read(path, true, take_key, &r, e);

    if (result == 0)
        *t = r.table;
    return result;
}
