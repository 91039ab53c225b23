#include "client/perf/site.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/perf/bench.h"
#include "client/perf/signals.h"

static int run_with_own_daemon(int signal_fd,
                               int (*body)(const struct site *site, const void *options),
                               const void *options)
{
    struct own_daemon daemon = OWN_DAEMON_INIT;
    int status = BENCH_BAD;

    if (own_daemon_start(&daemon) == 0)
        status = body(&(struct site){ daemon.socket, &daemon, signal_fd }, options);
    own_daemon_stop(&daemon);
    return status;
}

int site_run(const char *socket, int (*body)(const struct site *site, const void *options),
             const void *options)
{
    int signal_fd = signals_open();
    int status;

    if (signal_fd < 0) {
        fprintf(stderr, "ruccl-perf: signalfd: %s\n", strerror(-signal_fd));
        return BENCH_BAD;
    }
    status = socket ? body(&(struct site){ socket, NULL, signal_fd }, options)
                    : run_with_own_daemon(signal_fd, body, options);
    close(signal_fd);
    return status;
}

const char *site_daemon(const struct site *site)
{
    return site->daemon ? "private" : "given";
}
