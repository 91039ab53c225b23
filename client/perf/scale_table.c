#include "client/perf/scale_table.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>

#include "client/perf/report.h"

static int flushed(const struct scale_table *t)
{
    return fflush(t->f) == 0 && !ferror(t->f) ? 0 : -EIO;
}

/* p of value ~ n^p from one row to the other; NAN where that means nothing. */
static double exponent(const struct scale_row *from, const struct scale_row *to)
{
    if (from->n >= to->n || from->value <= 0 || to->value <= 0)
        return NAN;
    return log(to->value / from->value) / log((double)to->n / (double)from->n);
}

static double ratio(const struct scale_table *t, const struct scale_row *row)
{
    return t->first.value > 0 ? row->value / t->first.value : NAN;
}

void scale_table_init(struct scale_table *t, FILE *f, const struct axis *axis, const char *title,
                      bool json)
{
    *t = (struct scale_table){ .f = f, .axis = axis, .title = title, .json = json };
}

static void print_head(const struct scale_table *t)
{
    fprintf(t->f, "%s# %s\n", t->title, t->axis->name);
    if (t->axis->memory)
        fprintf(t->f, "# %10s %12s %12s %12s %9s %9s\n", "n", "RSS (KiB)", "PSS (KiB)", "RSS/n (B)",
                "ratio", "exponent");
    else
        fprintf(t->f, "# %10s %12s %9s %9s\n", "n", "us/call", "ratio", "exponent");
}

static json_t *json_of(double value)
{
    return isnan(value) ? json_null() : json_real(value);
}

static int print_json(const struct scale_table *t, const struct scale_row *row, double ratio,
                      double exponent)
{
    json_t *object = json_pack("{s:s, s:s, s:I}", "measure", "scale", "axis", t->axis->name, "n",
                               (json_int_t)row->n);

    if (object && t->axis->memory) {
        json_object_set_new(object, "rss_bytes", json_integer((json_int_t)row->value));
        json_object_set_new(object, "pss_bytes", json_integer((json_int_t)row->share));
    } else if (object) {
        json_object_set_new(object, "time_us", json_real(row->value));
    }
    if (object) {
        json_object_set_new(object, "ratio", json_of(ratio));
        json_object_set_new(object, "exponent", json_of(exponent));
    }
    return report_json(t->f, object);
}

static void print_number(FILE *f, double value)
{
    if (isnan(value))
        fprintf(f, " %9s", "-");
    else
        fprintf(f, " %9.2f", value);
}

static int print_text(const struct scale_table *t, const struct scale_row *row, double ratio,
                      double exponent)
{
    fprintf(t->f, "  %10llu", (unsigned long long)row->n);
    if (t->axis->memory)
        fprintf(t->f, " %12.0f %12.0f %12.0f", row->value / 1024, row->share / 1024,
                row->value / (double)row->n);
    else
        fprintf(t->f, " %12.2f", row->value);
    print_number(t->f, ratio);
    print_number(t->f, exponent);
    fputc('\n', t->f);
    return flushed(t);
}

static void fit_add(struct scale_table *t, const struct scale_row *row)
{
    const double x = log((double)row->n), y = log(row->value);

    if (row->value <= 0)
        return;
    t->fit.n += 1;
    t->fit.x += x;
    t->fit.y += y;
    t->fit.xx += x * x;
    t->fit.xy += x * y;
}

int scale_table_add(struct scale_table *t, const struct scale_row *row)
{
    double since, of_first;

    if (t->nrows == 0 && !t->json)
        print_head(t);
    if (t->nrows++ == 0)
        t->first = t->previous = *row;
    since = exponent(&t->previous, row);
    of_first = ratio(t, row);
    t->previous = *row;
    fit_add(t, row);
    return t->json ? print_json(t, row, of_first, since) : print_text(t, row, of_first, since);
}

double scale_table_exponent(const struct scale_table *t)
{
    const double spread = t->fit.n * t->fit.xx - t->fit.x * t->fit.x;

    return spread > 0 ? (t->fit.n * t->fit.xy - t->fit.x * t->fit.y) / spread : NAN;
}

int scale_table_end(struct scale_table *t)
{
    const double p = scale_table_exponent(t);

    if (!t->json && !isnan(p))
        fprintf(t->f, "# over all of them: n^%.2f\n", p);
    return flushed(t);
}
