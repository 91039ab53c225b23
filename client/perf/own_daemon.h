/* A ruccld for the time of one run: started with a socket in a temporary directory, then removed.
 */
#ifndef CLIENT_PERF_OWN_DAEMON_H
#define CLIENT_PERF_OWN_DAEMON_H

#include <stdbool.h>
#include <sys/types.h>

struct own_daemon {
    pid_t pid;  /* 0: not running */
    int log_fd; /* what it wrote to stdout and stderr */
    char dir[64];
    char socket[96];
};

#define OWN_DAEMON_INIT                                                                            \
    {                                                                                              \
        .log_fd = -1                                                                               \
    }

/*
 * Starts it and waits until it accepts connections; `signal_fd` is signals_open()'s.
 * Return: 0; the number of a signal that asked to stop; or -errno, with the reason on stderr.
 * In every case own_daemon_stop() is due.
 */
int own_daemon_start(struct own_daemon *d, int signal_fd);

/* True if it has ended on its own; says what it logged, and so, on stderr the first time. */
bool own_daemon_ended(struct own_daemon *d);

/* Ends it, by pid, and removes the directory. */
void own_daemon_stop(struct own_daemon *d);

#endif
