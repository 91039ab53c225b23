#include "client/perf/report.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t report_median(uint64_t *times_ns, uint64_t n)
{
    qsort(times_ns, n, sizeof(*times_ns), compare_u64);
    return n % 2 ? times_ns[n / 2] : (times_ns[n / 2 - 1] + times_ns[n / 2]) / 2;
}

uint64_t report_p99(uint64_t *times_ns, uint64_t n)
{
    qsort(times_ns, n, sizeof(*times_ns), compare_u64);
    return times_ns[div_up_u64(n * 99, 100) - 1];
}

/* Leaves each call's slowest time in rank 0's corner of the board, which is as good as any. */
static uint64_t *slowest_times(const struct board *b)
{
    uint64_t *slowest = board_times(b, 0);

    for (uint32_t rank = 1; rank < b->nranks; rank++)
        for (uint64_t i = 0; i < b->niters; i++)
            slowest[i] = MAX(slowest[i], board_times(b, rank)[i]);
    return slowest;
}

void report_measure(const struct options *o, const struct board *b, struct measurement *ret)
{
    uint64_t *times_ns = slowest_times(b);

    *ret = (struct measurement){
        .n = b->n,
        .bytes = workload_bytes(o->workload, b->n, dtype_get(o->dtype)->width, o->nranks),
        .time_us = (double)report_median(times_ns, b->niters) / 1e3,
        .p99_us = (double)report_p99(times_ns, b->niters) / 1e3,
    };
    if (ret->time_us > 0)
        ret->algbw_gbs = (double)ret->bytes / ret->time_us / 1e3;
    ret->busbw_gbs = ret->algbw_gbs * o->workload->factor(o->nranks);
    for (uint32_t rank = 0; rank < b->nranks; rank++)
        ret->nwrong += b->ranks[rank].nwrong;
}

/* ---------------------------------------------------------------- output */

static int flushed(FILE *f)
{
    return fflush(f) == 0 && !ferror(f) ? 0 : -EIO;
}

int report_json(FILE *f, json_t *row)
{
    int r;

    if (!row)
        return -ENOMEM;
    r = json_dumpf(row, f, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(row);
    fputc('\n', f);
    return r < 0 ? -EIO : flushed(f);
}

static void print_budget(FILE *f, const struct options *o)
{
    if (o->budget == BUDGET_NONE)
        fputs("no budget", f);
    else
        fprintf(f, "budget %llu B", (unsigned long long)o->budget);
}

int report_header(FILE *f, const struct options *o, const char *daemon)
{
    if (o->json)
        return 0;
    fprintf(f, "# ruccl-perf %s: %u rank%s, %s memory, %s, ", o->workload->name, o->nranks,
            o->nranks == 1 ? "" : "s", o->plain ? "plain" : "shared",
            o->in_place ? "in place" : "out of place");
    print_budget(f, o);
    fprintf(
        f,
        ", %s daemon\n"
        "# size and bandwidths as in nccl-tests, GB/s = 10^9 B/s; time: median over the calls of\n"
        "# their slowest rank; wrong: elements, of all ranks and calls, - where not checked\n"
        "# %12s %12s %10s %8s %11s %11s %9s %9s %8s\n"
        "# %12s %12s %10s %8s %11s %11s %9s %9s %8s\n",
        daemon, "size", "count", "type", "op", "time", "p99", "algbw", "busbw", "wrong", "(B)",
        "(elements)", "", "", "(us)", "(us)", "(GB/s)", "(GB/s)", "(elems)");
    return flushed(f);
}

static int print_json(FILE *f, const struct options *o, const struct measurement *m)
{
    bool has_data = workload_has_data(o->workload);
    json_t *row =
        json_pack("{s:s, s:i, s:I, s:I, s:s?, s:s?, s:f, s:f, s:f, s:f, s:o}", "collective",
                  o->workload->name, "ranks", (int)o->nranks, "bytes", (json_int_t)m->bytes,
                  "count", (json_int_t)m->n, "dtype", has_data ? dtype_get(o->dtype)->name : NULL,
                  "op", operator_name(o->op), "time_us", m->time_us, "p99_us", m->p99_us,
                  "algbw_gbs", m->algbw_gbs, "busbw_gbs", m->busbw_gbs, "wrong",
                  o->check ? json_integer((json_int_t)m->nwrong) : json_null());

    return report_json(f, row);
}

static int print_text(FILE *f, const struct options *o, const struct measurement *m)
{
    const char *op = operator_name(o->op);
    bool has_data = workload_has_data(o->workload);

    fprintf(f, "  %12llu %12llu %10s %8s %11.2f %11.2f %9.3f %9.3f ", (unsigned long long)m->bytes,
            (unsigned long long)m->n, has_data ? dtype_get(o->dtype)->name : "-", op ? op : "-",
            m->time_us, m->p99_us, m->algbw_gbs, m->busbw_gbs);
    if (o->check)
        fprintf(f, "%8llu\n", (unsigned long long)m->nwrong);
    else
        fprintf(f, "%8s\n", "-");
    return flushed(f);
}

int report_row(FILE *f, const struct options *o, const struct measurement *m)
{
    return o->json ? print_json(f, o, m) : print_text(f, o, m);
}
