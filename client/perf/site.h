/* Where a measurement takes place: a daemon, and how to see that the user wants to stop. */
#ifndef CLIENT_PERF_SITE_H
#define CLIENT_PERF_SITE_H

#include "client/perf/own_daemon.h"

struct site {
    const char *socket;
    struct own_daemon *daemon; /* NULL: somebody else's */
    int signal_fd;             /* signals_open()'s */
};

/*
 * Runs body(site, options) against the daemon at `socket`, or, if NULL, against one started for the
 * time of the run. Return: what `body` returns, or another exit status of bench.h.
 */
int site_run(const char *socket, int (*body)(const struct site *site, const void *options),
             const void *options);

/* A word for what is printed. */
const char *site_daemon(const struct site *site);

#endif
