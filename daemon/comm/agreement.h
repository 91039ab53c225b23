/*
 * Agreement: whether all parts of an operation asked for the same thing, and the one sentence that
 * all of them are told if not. Pure: compares what it is given.
 */
#ifndef DAEMON_COMM_AGREEMENT_H
#define DAEMON_COMM_AGREEMENT_H

#include "daemon/comm/arrival.h"

/*
 * The first of these that is there, worded in `e`: a part's own rejection; what parts differ in, in
 * the order collective (or persistent operation), op, dtype, number of axes, axes, root, budget;
 * tensors that overlap other than in place; counts of an exchange that an output has no room for or
 * its rank did not expect. The sentence does not name the operation.
 * Return: 0, or -code; -ERROR_NO_MEMORY where there was no room to compare.
 */
int agreement_check(struct arrival *const *arrivals, uint32_t n, struct error *e);

#endif
