/*
 * The loop that every contestant runs: the same meeting point, warm-up, time box and verification,
 * so that what differs is the contestant. For C and C++. A contestant is a program called
 *
 *     PROGRAM COLLECTIVE DTYPE RANKS BUDGET BYTES[,BYTES...] [SETTING]
 *
 * whose rank 0 prints a line for each size: bytes, then median, p10 and p90 in microseconds of the
 * timed calls, then how many those were. The time of a call is that of its slowest rank. Whatever
 * goes wrong, wrong elements too, ends the program with BENCH_BAD.
 */
#ifndef TESTS_BENCH_BENCH_H
#define TESTS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BENCH_MAX_SIZES 32
#define BENCH_MAX_RANKS 64

enum bench_exit { BENCH_GOOD = 0, BENCH_BAD = 1, BENCH_USAGE = 2, BENCH_UNSUPPORTED = 77 };

enum bench_collective {
    BENCH_ALL_REDUCE, /* in place */
    BENCH_ALL_GATHER,
    BENCH_REDUCE_SCATTER,
    BENCH_BROADCAST,    /* in place, from rank 0 */
    BENCH_ALL_TO_ALL_V, /* equal counts */
};

enum bench_dtype { BENCH_F32, BENCH_F16, BENCH_BF16, BENCH_I64 };

/* What the command line says. */
struct bench_options {
    enum bench_collective collective;
    enum bench_dtype dtype;
    uint32_t width; /* bytes of an element */
    uint32_t nranks;
    double budget_s; /* timed calls of one size should take so long */
    uint64_t ncalls; /* not 0: so many calls a size, neither timed nor verified */
    uint32_t nsizes;
    uint64_t sizes[BENCH_MAX_SIZES];
    const char *setting; /* of the contestant; "" if none was named */
};

/*
 * One size. A size is the larger of a rank's input and output, as nccl-tests have it, and at least
 * an element for every rank where blocks are scattered or gathered.
 */
struct bench_case {
    uint64_t bytes; /* as asked for */
    uint64_t n;     /* elements: of the whole where in place, else of one rank's block */
    uint64_t in_count, out_count;
};

/* One rank's buffers; the same address twice where in place. */
struct bench_buffers {
    uint32_t rank;
    void *in, *out;
};

/*
 * What a contestant does: the first two are called by every party, `prepare` once before each size.
 * `idle` is called over and over while a party waits for the others; NULL: it sleeps after a while.
 */
struct bench_contestant {
    void (*prepare)(void *context, const struct bench_case *c);
    void (*run)(void *context);
    void (*idle)(void *context);
};

struct bench_board;

/* Prints what is wrong with the arguments and ends the program if anything is. */
void bench_parse(int argc, char **argv, struct bench_options *ret);

/* The bytes that each buffer needs for the largest size. */
uint64_t bench_buffer_bytes(const struct bench_options *o);
bool bench_in_place(const struct bench_options *o);

/* Page-aligned plain memory, touched. Ends the program if there is none. */
void *bench_alloc(uint64_t bytes);

/*
 * Where parties meet: in memory shared with the children to come, or, with a path, in a file that
 * every party opens and that is empty at first.
 */
struct bench_board *bench_board_new(const char *path);

/* For contestants whose ranks have to tell each other something first: 256 zeroed bytes. */
char *bench_board_text(struct bench_board *board);

/* Returns when `nparties` parties have come. */
void bench_meet(struct bench_board *board, uint32_t nparties);

/*
 * The loop over all sizes, called by each of `nparties` parties: mostly one process for each rank,
 * but one thread may stand for several ranks and own the buffers of all. Party 0 prints.
 */
void bench_loop(struct bench_board *board, const struct bench_options *o, uint32_t party,
                uint32_t nparties, const struct bench_buffers *buffers, uint32_t nbuffers,
                const struct bench_contestant *contestant, void *context);

/*
 * Forks a process for each rank, or for those of $BENCH_RANKS, "FIRST-LAST", where a program is
 * started once a host; returns the exit status once all are gone, or one has failed.
 */
int bench_fork(const struct bench_options *o, struct bench_board *board,
               void (*rank_main)(const struct bench_options *o, struct bench_board *board,
                                 uint32_t rank));

/* Prints "PROGRAM: TEXT" and ends the program with BENCH_BAD. */
__attribute__((noreturn, format(printf, 1, 2))) void bench_fail(const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
