#include "daemon/plan/placement.h"

#include <errno.h>
#include <stdlib.h>

/* Numbers the nodes in the order in which their lowest ranks come, and counts the ranks of each. */
static int number_nodes(struct placement *p, const uint32_t *hosts, uint32_t *numbers)
{
    for (uint32_t r = 0; r < p->nranks; r++) {
        if (hosts[r] >= p->nranks)
            return -EINVAL;
        if (!numbers[hosts[r]])
            numbers[hosts[r]] = ++p->nnodes;
        p->nodes[r] = numbers[hosts[r]] - 1;
        p->first[p->nodes[r] + 1]++;
    }
    return 0;
}

static void list_ranks(struct placement *p, uint32_t *next)
{
    for (uint32_t i = 0; i < p->nnodes; i++) {
        p->first[i + 1] += p->first[i];
        next[i] = p->first[i];
    }
    for (uint32_t r = 0; r < p->nranks; r++) {
        const uint32_t node = p->nodes[r];

        p->index[r] = next[node] - p->first[node];
        p->ranks[next[node]++] = r;
    }
}

int placement_new(uint32_t nranks, const uint32_t *hosts, struct placement **ret)
{
    _cleanup_(placement_freep) struct placement *p = calloc(1, sizeof(*p));
    int r;

    if (nranks == 0 || nranks > RANKS_MAX)
        return -EINVAL;
    if (!p)
        return -ENOMEM;
    p->nranks = nranks;
    p->first = calloc(nranks + 1, sizeof(*p->first));
    p->nodes = calloc(nranks, sizeof(*p->nodes));
    p->ranks = calloc(nranks, sizeof(*p->ranks));
    p->index = calloc(nranks, sizeof(*p->index));

    uint32_t *room = calloc(nranks, sizeof(*room));

    r = p->first && p->nodes && p->ranks && p->index && room ? number_nodes(p, hosts, room)
                                                             : -ENOMEM;
    if (r == 0)
        list_ranks(p, room);
    free(room);
    if (r < 0)
        return r;

    *ret = steal(&p);
    return 0;
}

struct placement *placement_free(struct placement *p)
{
    if (!p)
        return NULL;
    free(p->first);
    free(p->ranks);
    free(p->nodes);
    free(p->index);
    free(p);
    return NULL;
}

int placement_new_even(uint32_t nnodes, uint32_t ranks, struct placement **ret)
{
    uint32_t hosts[RANKS_MAX];

    if (nnodes > RANKS_MAX || ranks > RANKS_MAX || nnodes * ranks > RANKS_MAX)
        return -EINVAL;
    for (uint32_t r = 0; r < nnodes * ranks; r++)
        hosts[r] = r / ranks;
    return placement_new(nnodes * ranks, hosts, ret);
}
