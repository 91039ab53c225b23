/*
 * A real ruccld for a test: on a socket of its own in a directory of its own, with the service
 * manager's ear. $RUCCLD names the program. All functions fail the test where they fail.
 */
#ifndef TESTS_END_TO_END_DAEMON_H
#define TESTS_END_TO_END_DAEMON_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define DAEMON_PATH_BYTES 100

/* How long a failure may take to be told, on a machine that has other things to do: it is far from
 * what would end the waiting otherwise. */
#define TOLD_MS 5000u

struct daemon {
    pid_t pid; /* 0: not running */
    char directory[DAEMON_PATH_BYTES - 40];
    char socket[DAEMON_PATH_BYTES];
    char log[DAEMON_PATH_BYTES]; /* its stderr */
    int notify;                  /* receives what it tells the service manager */
};

/* A directory, nothing running. The files are removed by daemon_fini(), which also ends it. */
void daemon_init(struct daemon *d);
void daemon_fini(struct daemon *d);

/* Starts it with these arguments (NULL at the end) and waits until it is ready. */
void daemon_start(struct daemon *d, const char *const *arguments);
/* Starts it and returns at once. */
void daemon_spawn(struct daemon *d, const char *const *arguments);
/* As daemon_init and daemon_start in one, for tests with one daemon. */
#define daemon_run(d, ...)                                                                         \
    do {                                                                                           \
        const char *arguments_[] = { __VA_ARGS__ __VA_OPT__(, ) NULL };                            \
                                                                                                   \
        daemon_init(d);                                                                            \
        daemon_start(d, arguments_);                                                               \
    } while (0)

/* A test in whose wake nothing is left running or lying about, even where it fails. */
#define daemon_test(f) cmocka_unit_test_teardown(f, daemon_clean_up)
int daemon_clean_up(void **state);

/* Waits for it to tell the service manager this (a part of a message). */
void daemon_wait_notice(struct daemon *d, const char *text);

/* Waits for its end; returns the exit code, or 128 + the signal. */
int daemon_wait(struct daemon *d, uint64_t limit_ms);
/* SIGTERM, and expects it to end with 0. */
void daemon_stop(struct daemon *d);

/* Waits until it has nothing left to do. */
void daemon_settle(const struct daemon *d);

bool daemon_logged(const struct daemon *d, const char *text);
unsigned daemon_fds(const struct daemon *d);
uint64_t daemon_cpu_us(const struct daemon *d);
/* A line of /proc/PID/status in kB: "VmRSS". */
uint64_t daemon_memory_kb(const struct daemon *d, const char *field);

uint64_t test_now_ms(void);
void test_sleep_ms(unsigned ms);

#endif
