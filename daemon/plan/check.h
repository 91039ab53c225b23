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
};

/*
 * Proves: every span lies in its buffer; spans of a step have one count; `after` points backwards,
 * to another channel; no two steps that may run at once touch overlapping elements, one writing;
 * within a step a destination overlaps a source only by being it.
 * Offsets are taken from the tensors' first elements: add a chunk's start to its spans first.
 * Return: 0, -ENOMEM, or -EINVAL with the first fault in `ret`.
 */
int plan_check(const struct plan *p, const struct check_world *w, struct text *ret);

/* Whether step b can only run once step a is done; false too where memory for the proof runs out.
 */
bool plan_ordered(const struct plan *p, uint32_t a, uint32_t b);

#endif
