#include "daemon/plan/table.h"

#include <stdio.h>
#include <string.h>

#define DEPTH 8u /* halves of a link's time and more may be latency, and it is still kept busy */

void table_init(struct table *t, uint64_t chunk_bytes)
{
    memset(t, 0, sizeof(*t));
    t->machine = machine_default;
    t->chunk_bytes = chunk_bytes;
    t->depth = DEPTH;
    t->tree_above = TABLE_TREE_ABOVE;
}

static bool rule_before(const struct rule *r, enum collective_id kind, uint64_t min_bytes)
{
    return r->kind < kind || (r->kind == kind && r->min_bytes < min_bytes);
}

/* How many rules are before one like that. */
static uint32_t place_of(const struct table *t, enum collective_id kind, uint64_t min_bytes)
{
    uint32_t i = 0;

    while (i < t->nrules && rule_before(&t->rules[i], kind, min_bytes))
        i++;
    return i;
}

int table_add(struct table *t, enum collective_id kind, uint64_t min_bytes, const char *algorithm)
{
    const uint32_t i = place_of(t, kind, min_bytes);
    struct rule *r = &t->rules[i];

    if (i < t->nrules && r->kind == kind && r->min_bytes == min_bytes)
        return TABLE_TWICE;
    if (t->nrules == TABLE_RULES_MAX)
        return TABLE_FULL;
    memmove(r + 1, r, (t->nrules - i) * sizeof(*r));
    t->nrules++;
    *r = (struct rule){ .kind = kind, .min_bytes = min_bytes };
    snprintf(r->algorithm, sizeof(r->algorithm), "%s", algorithm);
    return 0;
}

const struct rule *table_find(const struct table *t, enum collective_id kind, uint64_t block_bytes)
{
    const struct rule *found = NULL;

    for (uint32_t i = 0; i < t->nrules; i++)
        if (t->rules[i].kind == kind && t->rules[i].min_bytes <= block_bytes)
            found = &t->rules[i];
    return found;
}
