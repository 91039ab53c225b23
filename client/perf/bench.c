#include "client/perf/bench.h"

#include <stdio.h>

#include "client/perf/options.h"
#include "client/perf/rank.h"
#include "client/perf/ranks.h"
#include "client/perf/report.h"
#include "client/perf/site.h"

/* Prints sizes as they are done; the header not before the first, as there may be none. */
static int bench_measure(struct ranks *ranks, const struct options *o)
{
    struct measurement m;
    int status = BENCH_GOOD;
    bool headed = false;
    int r, signal;

    while ((r = ranks_next(ranks, &signal)) == RANKS_MEASURED) {
        if (!headed && report_header(stdout, o, site_daemon(ranks->site)) < 0)
            return BENCH_BAD;
        headed = true;
        report_measure(o, ranks->board, &m);
        if (report_row(stdout, o, &m) < 0)
            return BENCH_BAD;
        if (m.nwrong)
            status = BENCH_BAD;
    }
    if (r == RANKS_STOPPED)
        return BENCH_SIGNAL + signal;
    return r < 0 ? BENCH_BAD : status;
}

static int bench_at(const struct site *site, const void *options)
{
    const struct options *o = options;
    const struct ranks_job job = { o->nranks, options_iters_max(o), rank_run, o };
    struct ranks ranks;
    int status = BENCH_BAD;

    if (ranks_start(&ranks, &job, site) >= 0)
        status = bench_measure(&ranks, o);
    ranks_stop(&ranks);
    return status;
}

int bench_run(int argc, char **argv)
{
    struct error e = { 0 };
    struct options o;
    int r;

    r = options_parse(argc, argv, &o, &e);
    if (r == OPTIONS_HELP)
        return BENCH_GOOD;
    if (r < 0) {
        fprintf(stderr, "ruccl-perf: %s\nTry ruccl-perf --help.\n", e.text);
        return BENCH_USAGE;
    }
    return site_run(o.socket, bench_at, &o);
}
