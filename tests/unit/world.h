/*
 * Worlds: the memory of all ranks of a small operation, on which a plan can be proved, run in
 * random legal order, and compared with one obvious reference function per collective.
 */
#ifndef TESTS_UNIT_WORLD_H
#define TESTS_UNIT_WORLD_H

#include "daemon/plan/exchange.h"

#define WORLD_RANKS 9

/* An element is a 64-bit cell, whatever its type: an i64, or the bits of an f32. */
struct world {
    struct descriptor d;
    uint32_t nranks;
    bool in_place;
    uint64_t n; /* elements of one block */
    uint64_t in_count[WORLD_RANKS], out_count[WORLD_RANKS];
    uint64_t *memory[2][WORLD_RANKS];             /* what is freed */
    uint64_t *in[WORLD_RANKS], *out[WORLD_RANKS]; /* NULL where a rank has none */
    uint64_t *given[WORLD_RANKS];                 /* the inputs as they were */
    const struct exchange *exchange;              /* the exchanges only */
};

/* Makes the memory of a world whose descriptor and counts are set, with random inputs. */
void world_fill(struct world *w);
void world_fini(struct world *w);

/* Fails the test unless the checker finds the plan sound. */
void world_prove(const struct world *w, const struct plan *p);
/* Runs all steps, each at a random moment of those when it may run. */
void world_run(const struct world *w, const struct plan *p);
/* Fails the test unless every output is its reference's and inputs are as they were. */
void world_compare(const struct world *w);

#endif
