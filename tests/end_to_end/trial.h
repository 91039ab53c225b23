/*
 * A trial: one collective, once, on every rank of a world, and everything that can be said of it
 * afterwards: outputs bit for bit, bytes around them, inputs, chunks, progress, receive counts.
 */
#ifndef TESTS_END_TO_END_TRIAL_H
#define TESTS_END_TO_END_TRIAL_H

#include "tests/end_to_end/tensors.h"

enum trial_kind {
    TRIAL_ALL_REDUCE,
    TRIAL_REDUCE,
    TRIAL_REDUCE_SCATTER,
    TRIAL_ALL_GATHER,
    TRIAL_BROADCAST,
    TRIAL_GATHER,
    TRIAL_SCATTER,
    TRIAL_ALL_TO_ALL,
    TRIAL_ALL_TO_ALL_V,
    TRIAL_RING, /* everyone sends to the next rank and receives from the one before */
    TRIAL_KINDS
};

#define TRIAL_NO_OP ((enum ruccl_op)0)

struct trial {
    enum trial_kind kind;
    enum ruccl_op op; /* TRIAL_NO_OP for moves */
    uint64_t count;   /* elements of a block; for all_to_all_v the most that a pair exchanges */
    uint64_t row;     /* elements of one index of axis 0; divides count */
    uint32_t root;
    uint64_t budget;
    bool in_place;
    bool spare;     /* all_to_all_v: more capacity than needed, and no expected counts */
    uint64_t shift; /* elements that the tensors lie behind aligned addresses */
};

bool trial_reduces(enum trial_kind kind);
bool trial_has_in_place(enum trial_kind kind);
bool trial_has_blocks(enum trial_kind kind); /* a tensor holds a block of every rank */

/* The least budget that moves something of this trial. */
uint64_t trial_least_budget(const struct tensors *t, const struct trial *trial);

/* Calls the collective on every rank, waits, and checks. */
void trial_run(struct tensors *t, const struct trial *trial);

/* The same with a budget that is too small: refused on every rank, nothing written. */
void trial_run_refused(struct tensors *t, const struct trial *trial);

#endif
