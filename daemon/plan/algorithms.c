#include "daemon/plan/algorithms.h"

#include <string.h>

/* clang-format off */
#define HIERARCHICAL(KIND, emit)                                                                   \
    { COLLECTIVE_##KIND, "hierarchical", hierarchical_fits, hierarchical_cost, hierarchical_##emit }
#define ROW(KIND, name, fits, emit) { COLLECTIVE_##KIND, name, fits, emit##_cost, emit }

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
    ROW(ALL_REDUCE, "direct", between_nodes_fits, direct_all_reduce),
    ROW(ALL_REDUCE, "pairwise", between_nodes_fits, pairwise_all_reduce),
    ROW(ALL_REDUCE, "halving-doubling", halving_fits, halving_all_reduce),
    ROW(ALL_REDUCE, "tree", between_nodes_fits, tree_all_reduce),
    ROW(ALL_REDUCE, "ring", ring_fits, ring_all_reduce),
    ROW(REDUCE_SCATTER, "direct", between_nodes_fits, direct_reduce_scatter),
    ROW(REDUCE_SCATTER, "pairwise", between_nodes_fits, pairwise_reduce_scatter),
    ROW(REDUCE_SCATTER, "halving-doubling", halving_fits, halving_reduce_scatter),
    ROW(REDUCE_SCATTER, "ring", ring_fits, ring_reduce_scatter),
    ROW(ALL_GATHER, "direct", between_nodes_fits, direct_all_gather),
    ROW(ALL_GATHER, "pairwise", between_nodes_fits, pairwise_all_gather),
    ROW(ALL_GATHER, "halving-doubling", halving_fits, halving_all_gather),
    ROW(ALL_GATHER, "ring", ring_fits, ring_all_gather),
    ROW(BROADCAST, "direct", between_nodes_fits, direct_broadcast),
    ROW(BROADCAST, "tree", between_nodes_fits, tree_broadcast),
    ROW(REDUCE, "direct", between_nodes_fits, direct_reduce),
    ROW(REDUCE, "tree", between_nodes_fits, tree_reduce),
    ROW(GATHER, "direct", between_nodes_fits, direct_gather),
    ROW(GATHER, "tree", between_nodes_fits, tree_gather),
    ROW(SCATTER, "direct", between_nodes_fits, direct_scatter),
    ROW(SCATTER, "tree", between_nodes_fits, tree_scatter),
    ROW(ALL_TO_ALL, "direct", between_nodes_fits, direct_exchange),
    ROW(ALL_TO_ALL, "pairwise", between_nodes_fits, pairwise_exchange),
    ROW(ALL_TO_ALL_V, "direct", between_nodes_fits, direct_exchange),
    ROW(ALL_TO_ALL_V, "pairwise", between_nodes_fits, pairwise_exchange),
    { COLLECTIVE_NONE },
};
#undef ROW
#undef HIERARCHICAL
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

void text_add_algorithms(struct text *t)
{
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        if (strcmp(names[i], "auto"))
            text_add_item(t, names[i]);
}
