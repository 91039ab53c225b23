#include "daemon/plan/algorithms.h"

#include <string.h>

/* clang-format off */
#define HIERARCHICAL(KIND, emit)                                                                   \
    { COLLECTIVE_##KIND, "hierarchical", hierarchical_fits, hierarchical_cost, hierarchical_##emit }

const struct algorithm algorithms[] = {
    HIERARCHICAL(ALL_REDUCE, all_reduce),
    HIERARCHICAL(ALL_GATHER, all_gather),
    HIERARCHICAL(REDUCE_SCATTER, reduce_scatter),
    HIERARCHICAL(BROADCAST, broadcast),
    HIERARCHICAL(REDUCE, reduce),
    HIERARCHICAL(GATHER, gather),
    HIERARCHICAL(SCATTER, scatter),
    HIERARCHICAL(ALL_TO_ALL, exchange),
    HIERARCHICAL(ALL_TO_ALL_V, exchange),
    HIERARCHICAL(SEND, pair),
    HIERARCHICAL(RECV, pair),
    { COLLECTIVE_NONE },
};
/* clang-format on */

/* The field's names, whether a row has them or not: a forced one that fits nothing is named so. */
static const char *const names[] = {
    "auto", "hierarchical", "direct", "pairwise", "halving-doubling", "tree", "ring",
};

bool algorithm_name_known(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (!strcmp(names[i], name))
            return true;
    return false;
}

static int unsupported_error(const struct descriptor *d, const char *forced, struct error *e)
{
    struct text fitting = { 0 };

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++)
        if (a->kind == d->kind && a->fits(d))
            text_add(&fitting, ", %s", a->name);
    return error_set(e, ERROR_UNSUPPORTED_ALGORITHM, "%s: algorithm \"%.32s\" %s; use auto%s",
                     collective_get(d->kind)->name, forced,
                     algorithm_name_known(forced) ? "does not fit this operation" : "is not known",
                     fitting.s);
}

int algorithm_choose(const struct descriptor *d, const char *forced, const struct algorithm **ret,
                     struct error *e)
{
    const struct algorithm *best = NULL;

    if (!forced)
        forced = "auto";
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        if (a->kind != d->kind || !a->fits(d))
            continue;
        if (strcmp(forced, "auto") && strcmp(forced, a->name))
            continue;
        if (!best || a->cost(d) < best->cost(d))
            best = a;
    }
    if (!best)
        return unsupported_error(d, forced, e);
    *ret = best;
    return 0;
}
