/*
 * A crew: threads as the ranks of a world, for what ranks only do at the same time. Only the test's
 * own thread asserts; the others leave notes.
 */
#ifndef TESTS_END_TO_END_CREW_H
#define TESTS_END_TO_END_CREW_H

#include <pthread.h>
#include <stdatomic.h>

#include "tests/end_to_end/harness.h"

struct crew_rank;
/* Return: 0, or the code of a call that failed. */
typedef int (*crew_play_fn)(struct crew_rank *me);

struct crew_rank {
    struct world *world;
    struct ruccl_comm comm;
    uint32_t rank;
    void *context;
    uint64_t done; /* calls that the rank counts itself */

    int result; /* of its play; below zero: `error` is the thread's last */
    struct ruccl_error error;
    char failure[256]; /* the first thing that did not hold */

    crew_play_fn play;
    pthread_barrier_t *start;
    pthread_t thread; /* 0: it has ended */
};

struct crew {
    uint32_t nranks;
    pthread_barrier_t start;
    struct crew_rank ranks[HARNESS_RANKS];
};

/* Notes that something does not hold, unless it does. */
void crew_check(struct crew_rank *me, bool holds, const char *what);

/* All begin at the same time. The crew must live until it has ended, also where a test fails. */
void crew_start(struct crew *c, struct world *w, crew_play_fn play, void *context);
/* Whether all have ended, after so long at most; if so, the test fails where anything did not hold.
 */
bool crew_ends(struct crew *c, unsigned within_ms);
/* Starts, and fails unless all end. */
void crew_run(struct crew *c, struct world *w, crew_play_fn play, void *context);

/* How all of them ended. */
void crew_expect_success(const struct crew *c, const char *what);
/* One text for all, with all of `words` (separated by '|') in it. */
void crew_expect_failure(const struct crew *c, enum ruccl_code code, const char *words);

/* Of a world that it fills in, all of whose ranks have connections of their own. */
void crew_join(struct world *w, const struct harness *h, uint32_t nranks,
               const struct ruccl_join_options *options);

/* Whether the process has mapped a slate. */
bool crew_has_slate(void);
/* Whether all ranks have met at this number, which none of them has gone two numbers beyond, of the
 * one communicator that has a slate here. */
bool crew_has_met(uint32_t nranks, uint64_t sequence);

#endif
