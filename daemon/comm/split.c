#include "daemon/comm/split.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/rendezvous.h"

/* Every node derives the same id; nobody who knows neither the parent's nor the child's can. */
static void child_id(const struct comm *parent, uint64_t sequence, int32_t color,
                     char ret[COMM_ID_BYTES])
{
    char seed[COMM_ID_BYTES + 64];
    uint8_t bits[ID_BYTES];
    int n =
        snprintf(seed, sizeof(seed), "%s/%llu/%d", parent->id, (unsigned long long)sequence, color);

    crypto_generichash(bits, sizeof(bits), (const uint8_t *)seed, (unsigned long long)n, NULL, 0);
    rendezvous_child_id(parent, bits, ret);
}

/* Likewise its key, for whoever has the parent's. */
static void child_key(const struct comm *parent, uint64_t sequence, int32_t color,
                      uint8_t ret[PEER_KEY_BYTES])
{
    char seed[64];
    int n = snprintf(seed, sizeof(seed), "split/%llu/%d", (unsigned long long)sequence, color);

    crypto_generichash(ret, PEER_KEY_BYTES, (const uint8_t *)seed, (unsigned long long)n,
                       parent->nodes->key, PEER_KEY_BYTES);
}

/* Parts are in rank order where they come from. */
static int part_compare(const void *a, const void *b)
{
    const struct split_part *x = *(struct split_part *const *)a,
                            *y = *(struct split_part *const *)b;

    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x > y) - (x < y);
}

static uint32_t count_here(struct split_part *const *parts, uint32_t n)
{
    uint32_t here = 0;

    for (uint32_t i = 0; i < n; i++)
        here += parts[i]->parent != NULL;
    return here;
}

static int seat_members(struct comm *c, struct split_part **parts, uint32_t n, struct error *e)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = parts[i]->parent;

        if (!m)
            continue;
        if (comm_seat(c, i, m->owner, m->session, m->pid, &parts[i]->child) < 0)
            return error_set(e, ERROR_NO_MEMORY, "no memory for a member");
        parts[i]->child->posted.at_us = m->posted.at_us;
    }
    return 0;
}

static int join_nodes(struct comm *c, const struct comm *parent, uint64_t sequence,
                      const struct split_part *all, struct split_part **parts, struct error *e)
{
    uint32_t *ranks = malloc(c->nranks * sizeof(*ranks));
    uint8_t key[PEER_KEY_BYTES];
    int r;

    if (!ranks)
        return error_set(e, ERROR_NO_MEMORY, "no memory for a communicator");
    for (uint32_t i = 0; i < c->nranks; i++)
        ranks[i] = (uint32_t)(parts[i] - all);
    child_key(parent, sequence, parts[0]->color, key);
    r = nodes_new_child(c, parent, ranks, key, e);
    free(ranks);
    return r;
}

static int make_child(struct comm *parent, uint64_t sequence, const struct split_part *all,
                      struct split_part **parts, uint32_t n, struct error *e)
{
    const uint32_t here = count_here(parts, n);
    char id[COMM_ID_BYTES];
    struct comm *c;
    int r;

    if (here == 0)
        return 0;
    r = rendezvous_check_quota(parent->comms, parent->uid, e);
    if (r < 0)
        return r;
    child_id(parent, sequence, parts[0]->color, id);
    if (comm_new(parent->comms, id, parent->uid, n, &c) < 0)
        return error_set(e, ERROR_NO_MEMORY, "no memory for a communicator");
    memcpy(c->label, parent->label, sizeof(c->label));
    memcpy(c->algorithm, parent->algorithm, sizeof(c->algorithm));
    c->timeout_us = parent->timeout_us;
    r = seat_members(c, parts, n, e);
    if (r == 0 && here < n)
        r = join_nodes(c, parent, sequence, all, parts, e);
    if (r < 0) {
        for (uint32_t i = 0; i < n; i++)
            parts[i]->child = NULL;
        comm_discard(c);
        return r;
    }
    comm_set_state(c, COMM_READY);
    comm_drop(c);
    return 0;
}

void split_discard(struct split_part *parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct comm *c = parts[i].child ? parts[i].child->comm : NULL;

        if (!c)
            continue;
        for (uint32_t k = i; k < n; k++)
            if (parts[k].child && parts[k].child->comm == c)
                parts[k].child = NULL;
        comm_hold(c);
        comm_discard(c);
    }
}

int split_make(struct comm *parent, uint64_t sequence, struct split_part *parts, struct error *e)
{
    struct split_part **sorted = calloc(parent->nranks, sizeof(*sorted));
    uint32_t end, first = 0;
    int r = 0;

    if (!sorted)
        return error_set(e, ERROR_NO_MEMORY, "no memory for the parts");
    for (uint32_t i = 0; i < parent->nranks; i++)
        sorted[i] = &parts[i];
    qsort(sorted, parent->nranks, sizeof(*sorted), part_compare);

    while (first < parent->nranks && sorted[first]->color < 0)
        first++;
    for (; first < parent->nranks && r == 0; first = end) {
        end = first + 1;
        while (end < parent->nranks && sorted[end]->color == sorted[first]->color)
            end++;
        r = make_child(parent, sequence, parts, sorted + first, end - first, e);
    }
    free(sorted);
    if (r < 0)
        split_discard(parts, parent->nranks);
    return r;
}
