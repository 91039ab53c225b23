/*
 * Worlds: the memory of all ranks of a small operation, on one node or on several, on which plans
 * can be proved, run in random legal order, and compared with one obvious reference function per
 * collective.
 */
#ifndef TESTS_UNIT_WORLD_H
#define TESTS_UNIT_WORLD_H

#include "daemon/plan/exchange.h"
#include "daemon/plan/placement.h"

#define WORLD_RANKS 27
#define WORLD_NODES 9

/*
 * An element is a 64-bit cell, whatever its type: an i64, or the bits of an f32; a bf16 is one of
 * those that has been rounded, an accumulator one that has not.
 */
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
    const struct placement *nodes;                /* NULL: all on one */
};

/* Makes the memory of a world whose descriptor and counts are set, with random inputs. */
void world_fill(struct world *w);
void world_fini(struct world *w);

/* Fails the test unless the checker finds the plan sound. */
void world_prove(const struct world *w, const struct plan *p);
/* The same of the plans of one chunk, one a node; `written` as in struct check_world. */
void world_prove_nodes(const struct world *w, const struct plan *plans, uint32_t wide,
                       uint64_t budget, const uint64_t *written);
/*
 * Runs all steps of all nodes (one plan where there is one), each at a random moment of those when
 * it may run. A message arrives at any time after it was sent; of some runs no message is sent
 * before it is awaited.
 */
void world_run(const struct world *w, const struct plan *plans);
/* Whether the outputs are what they should be: what tests of the simulator itself ask. */
bool world_agrees(const struct world *w);
/* Fails the test unless every output is its reference's and inputs are as they were. */
void world_compare(const struct world *w);

#endif
