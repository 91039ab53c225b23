/* A ruccld for the time of one run, at a socket that no name leads to: so nothing is left of it,
 * whatever ends the run. */
#ifndef CLIENT_PERF_OWN_DAEMON_H
#define CLIENT_PERF_OWN_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

struct own_daemon {
    pid_t pid;  /* 0: not running */
    int log_fd; /* what it wrote to stdout and stderr */
    int place;  /* of the socket */
    char socket[48];
};

#define OWN_DAEMON_INIT                                                                            \
    {                                                                                              \
        .log_fd = -1, .place = -1                                                                  \
    }

/* Starts it and waits until it answers. Return: 0, or -errno, with the reason on stderr;
 * own_daemon_stop() is due in either case. */
int own_daemon_start(struct own_daemon *d);

/* True if it has ended on its own; says what it logged, and so, on stderr the first time. */
bool own_daemon_ended(struct own_daemon *d);

/* Ends it, by pid. */
void own_daemon_stop(struct own_daemon *d);

#endif
