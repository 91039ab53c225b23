/*
 * Tables: by what a communicator over several nodes chooses algorithms and cuts chunks. Its root
 * daemon freezes one for all when the communicator forms, so that every node plans alike.
 */
#ifndef DAEMON_PLAN_TABLE_H
#define DAEMON_PLAN_TABLE_H

#include "daemon/plan/placement.h"
#include "daemon/plan/price.h"

#define TABLE_RULES_MAX  256u
#define TABLE_DEPTH_MAX  64u
#define TABLE_TREE_ABOVE 16u /* unless a test says otherwise */

/* From so many bytes of a rank's block on (up to the next rule of the kind), this algorithm. */
struct rule {
    enum collective_id kind;
    uint64_t min_bytes;
    char algorithm[24];
};

struct table {
    struct machine machine;
    uint64_t chunk_bytes; /* of a rank's block in one chunk, where there is no budget */
    uint32_t depth;       /* chunks, or pieces of one, in flight; 1 to TABLE_DEPTH_MAX */
    uint32_t tree_above;  /* nodes; more agree by way of each other, and not each with each */
    uint32_t nrules;
    struct rule rules[TABLE_RULES_MAX]; /* by kind, then ascending min_bytes */
};

/* machine_default, no rules, and a depth that hides the latency of most networks. */
void table_init(struct table *t, uint64_t chunk_bytes);

/*
 * Adds a rule in its place. Return: 0; TABLE_TWICE, one of the kind from as many bytes on is there;
 * TABLE_FULL; with the table unchanged.
 */
#define TABLE_TWICE 1
#define TABLE_FULL  2
int table_add(struct table *t, enum collective_id kind, uint64_t min_bytes, const char *algorithm);

/* The rule that covers it; NULL: none, the prices decide. */
const struct rule *table_find(const struct table *t, enum collective_id kind, uint64_t block_bytes);

/*
 * What one operation is planned by. `nodes` NULL: all ranks are on one node, and of `table` nothing
 * but chunk_bytes counts.
 */
struct frame {
    const struct table *table;
    const struct placement *nodes;
    uint32_t node;      /* this one */
    const char *forced; /* NULL or "auto": none */
};

#endif
