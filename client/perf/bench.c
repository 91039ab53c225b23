#include "client/perf/bench.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/perf/options.h"
#include "client/perf/own_daemon.h"
#include "client/perf/ranks.h"
#include "client/perf/report.h"
#include "client/perf/signals.h"

/* Prints sizes as they are done. */
static int bench_measure(struct ranks *ranks, const struct options *o)
{
    struct measurement m;
    int status = BENCH_GOOD;
    int r, signal;

    if (report_header(stdout, o, o->socket ? "given" : "private") < 0)
        return BENCH_BAD;
    while ((r = ranks_next(ranks, &signal)) == RANKS_MEASURED) {
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

static int bench_with_daemon(const struct options *o, const char *socket, struct own_daemon *daemon,
                             int signal_fd)
{
    struct ranks ranks;
    int status = BENCH_BAD;

    if (ranks_start(&ranks, o, socket, daemon, signal_fd) >= 0)
        status = bench_measure(&ranks, o);
    ranks_stop(&ranks);
    return status;
}

static int bench_with_own_daemon(const struct options *o, int signal_fd)
{
    struct own_daemon daemon = OWN_DAEMON_INIT;
    int status = BENCH_BAD;
    int r;

    r = own_daemon_start(&daemon, signal_fd);
    if (r == 0)
        status = bench_with_daemon(o, daemon.socket, &daemon, signal_fd);
    else if (r > 0)
        status = BENCH_SIGNAL + r;
    own_daemon_stop(&daemon);
    return status;
}

int bench_run(int argc, char **argv)
{
    struct error e = { 0 };
    struct options o;
    int r, signal_fd, status;

    r = options_parse(argc, argv, &o, &e);
    if (r == OPTIONS_HELP)
        return BENCH_GOOD;
    if (r < 0) {
        fprintf(stderr, "ruccl-perf: %s\nTry ruccl-perf --help.\n", e.text);
        return BENCH_USAGE;
    }

    signal_fd = signals_open();
    if (signal_fd < 0) {
        fprintf(stderr, "ruccl-perf: signalfd: %s\n", strerror(-signal_fd));
        return BENCH_BAD;
    }
    status = o.socket ? bench_with_daemon(&o, o.socket, NULL, signal_fd)
                      : bench_with_own_daemon(&o, signal_fd);
    close(signal_fd);
    return status;
}
