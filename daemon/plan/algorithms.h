/* What the rows of algorithms.c are made of: a file per algorithm, an emitter per collective. */
#ifndef DAEMON_PLAN_ALGORITHMS_H
#define DAEMON_PLAN_ALGORITHMS_H

#include "daemon/plan/plan.h"

/* hierarchical.c */
bool hierarchical_fits(const struct descriptor *d);
double hierarchical_cost(const struct descriptor *d);
int hierarchical_all_reduce(struct plan *p, const struct plan_args *a);
int hierarchical_all_gather(struct plan *p, const struct plan_args *a);
int hierarchical_reduce_scatter(struct plan *p, const struct plan_args *a);
int hierarchical_broadcast(struct plan *p, const struct plan_args *a);
int hierarchical_reduce(struct plan *p, const struct plan_args *a);
int hierarchical_gather(struct plan *p, const struct plan_args *a);
int hierarchical_scatter(struct plan *p, const struct plan_args *a);
int hierarchical_exchange(struct plan *p, const struct plan_args *a);
int hierarchical_pair(struct plan *p, const struct plan_args *a);

#endif
