/* The command behind every collective's name: daemon, ranks, table. */
#ifndef CLIENT_PERF_BENCH_H
#define CLIENT_PERF_BENCH_H

enum bench_exit {
    BENCH_GOOD = 0,
    BENCH_BAD = 1,      /* wrong elements, or something failed */
    BENCH_USAGE = 2,    /* the command line is wrong */
    BENCH_SIGNAL = 128, /* plus the signal's number */
};

/* argv[0] is the collective's name. Return: the exit status. */
int bench_run(int argc, char **argv);

#endif
