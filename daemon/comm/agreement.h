/*
 * Agreement: whether all parts of an operation asked for the same thing, and the one sentence that
 * all of them are told if not. Pure: compares what it is given. No sentence names the operation.
 *
 * Every node of a communicator makes these checks on the same views and comes to the same sentence.
 */
#ifndef DAEMON_COMM_AGREEMENT_H
#define DAEMON_COMM_AGREEMENT_H

#include "shared/collective.h"

struct arrival;

/* What one rank, here or on another node, asks for. */
struct view {
    uint32_t rank;
    const struct descriptor *d; /* of a start the kind only */
    bool makes_persistent;
    uint32_t starts;               /* the persistent operation that it starts; 0: none */
    const struct error *rejection; /* NULL: none */
    /* all_to_all_v */
    const uint64_t *counts, *expected; /* [ranks]; expected may be NULL */
    uint64_t out_rows;
};

struct view view_of(const struct arrival *a);

/* Whether nothing is rejected, and all say the same, being of one recipe or the same start: then
 * agreement_check() finds nothing. */
bool arrivals_alike(struct arrival *const *arrivals, uint32_t n);

/*
 * The first of these that is there, worded in `e`: a part's own rejection; what parts differ in, in
 * the order collective (or persistent operation), op, dtype, number of axes, axes, root, budget.
 * Return: 0, or -code; -ERROR_NO_MEMORY where there was no room to compare.
 */
int agreement_check(const struct view *views, uint32_t n, struct error *e);

/* Of parts on this node: tensors that overlap other than in place. Return: as above. */
int agreement_check_memory(struct arrival *const *arrivals, uint32_t n, struct error *e);

/* Of parts that agree, all ranks in order: counts of an exchange that an output has no room for or
 * its rank did not expect. Return: 0, or -code. */
int agreement_check_counts(const struct view *views, uint32_t n, struct error *e);

#endif
