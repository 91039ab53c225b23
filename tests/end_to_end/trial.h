/*
 * A trial: one collective, once, on every rank of a world, and everything that can be said of it
 * afterwards: outputs bit for bit, bytes around them, inputs, chunks, progress, receive counts.
 */
#ifndef TESTS_END_TO_END_TRIAL_H
#define TESTS_END_TO_END_TRIAL_H

#include "tests/end_to_end/scene.h"

/* The least budget that moves something of this trial. */
uint64_t trial_least_budget(const struct tensors *t, const struct trial *trial);

/* Calls the collective on every rank, waits, and checks. */
void trial_run(struct tensors *t, const struct trial *trial);

/* The same with a budget that is too small: refused on every rank, nothing written. */
void trial_run_refused(struct tensors *t, const struct trial *trial);

#endif
