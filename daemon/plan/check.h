/* The checker: proves a plan sound before anything runs it. For tests and tools. */
#ifndef DAEMON_PLAN_CHECK_H
#define DAEMON_PLAN_CHECK_H

#include "daemon/plan/plan.h"

/*
 * How large every rank's tensors are, in elements, and which share memory. Where `kind` gives a
 * tensor to the root only, or to one rank of a pair, the others have none.
 */
struct check_world {
    uint64_t in_count, out_count;
    uint32_t root;
    bool in_place; /* IN(r) lies in OUT(r), or the reverse, as ruccl.h says for `kind` */
    enum collective_id kind;

    const struct placement *nodes; /* NULL: all ranks are on one node */
    uint32_t node;                 /* whose plan it is */
    /* by rank: how much of its output the plan must write, each element once; NULL: whatever */
    const uint64_t *written;
};

/*
 * Proves: every span lies in its buffer, or in what the plan stages; spans of a copy or a reduction
 * have one count; elements and accumulators meet in reductions only, which end in outputs or in
 * accumulators; inputs are not written; `after` points backwards, to another channel; no two steps
 * that may run at once touch overlapping elements, one writing; within a step a destination
 * overlaps a source only by being it; the outputs are written as `written` says.
 * Offsets are taken from the tensors' first elements: add a chunk's start to its spans first.
 * Return: 0, -ENOMEM, or -EINVAL with the first fault in `ret`.
 */
int plan_check(const struct plan *p, const struct check_world *w, struct text *ret);

/*
 * Proves the plans of all nodes (plans[w->nodes->nnodes], of one chunk) sound together: each by
 * itself, with w->node as its own; every message sent is received once, by its peer, as many
 * elements or accumulators; no order in which the steps may run ends with a node waiting, even
 * where no message is on its way before both ends are there; no node's peak is above `budget`, in
 * elements, an accumulator as wide as `wide` of them.
 * Return: 0, -ENOMEM, or -EINVAL with the first fault in `ret`.
 */
int plans_check(const struct plan *plans, const struct check_world *w, uint32_t wide,
                uint64_t budget, struct text *ret);

/* Whether step b can only run once step a is done; false too where memory for the proof runs out.
 */
bool plan_ordered(const struct plan *p, uint32_t a, uint32_t b);

#endif
