/*
 * Agreement: whether all parts of an operation asked for the same thing, and the one sentence that
 * all of them are told if not. Pure: compares what it is given.
 */
#ifndef DAEMON_COMM_AGREEMENT_H
#define DAEMON_COMM_AGREEMENT_H

#include "daemon/comm/arrival.h"

/*
 * The first of these that is there, worded in `e`: a part's own rejection; a field of the descriptor
 * in which parts differ, in the order kind, op, dtype, number of axes, axes, root, budget; tensors
 * that overlap other than in place; counts of an exchange that an output has no room for or its rank
 * did not expect. `title` opens the sentence ("all_reduce 7 of 'train'").
 * Return: 0, or -code; -ERROR_NO_MEMORY where there was no room to compare.
 */
int agreement_check(struct arrival *const *arrivals, uint32_t n, const char *title,
                    struct error *e);

#endif
