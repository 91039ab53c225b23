/* From the board to what is printed. */
#ifndef CLIENT_PERF_REPORT_H
#define CLIENT_PERF_REPORT_H

#include "client/perf/board.h"
#include "client/perf/options.h"

/* One size, over all ranks and calls. */
struct measurement {
    uint64_t bytes, n;
    double time_us, p99_us;      /* of the slowest rank, over the calls */
    double algbw_gbs, busbw_gbs; /* 10^9 bytes per second */
    uint64_t nwrong;
};

/* The median, and the time that 99 of 100 kept, of `n` >= 1 times; sorts them. */
uint64_t report_median(uint64_t *times_ns, uint64_t n);
uint64_t report_p99(uint64_t *times_ns, uint64_t n);

/* One line; takes `row`, which may be NULL. Return: 0, -ENOMEM, or -EIO once nobody reads. */
struct json_t;
int report_json(FILE *f, struct json_t *row);

/* Reads a complete board. */
void report_measure(const struct options *o, const struct board *b, struct measurement *ret);

/* Return: 0, or -EIO once nobody reads any more. `daemon` is a word for the header. */
int report_header(FILE *f, const struct options *o, const char *daemon);
int report_row(FILE *f, const struct options *o, const struct measurement *m);

#endif
