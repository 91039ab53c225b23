/* Worlds of several nodes: where ranks are, and the plans of all nodes for one chunk. */
#ifndef TESTS_UNIT_NODES_H
#define TESTS_UNIT_NODES_H

#include "tests/unit/world.h"

uint32_t any_below(uint32_t n);

/* 1, 2 or 3 ranks on every node, or (0) as many as it comes, anywhere. */
struct placement *placement_of(uint32_t nnodes, uint32_t ranks);

struct chunk {
    struct plan plans[WORLD_NODES];
    uint32_t nnodes;
};

void chunk_init(struct chunk *c, const struct placement *nodes);
void chunk_fini(struct chunk *c);
void chunk_emit(struct chunk *c, const struct algorithm *a, struct plan_args args);
/* The highest of all nodes. */
uint64_t chunk_peak(const struct chunk *c, uint32_t wide);
/* Moves the chunk to where it begins in every tensor. */
void chunk_move(struct chunk *c, uint64_t first);

/* Blocks of n elements, some rank the root; world_fill() is the caller's. */
struct world world_of(enum collective_id kind, enum dtype_id dtype, enum operator_id op,
                      const struct placement *nodes, uint64_t n);
struct plan_args args_of(const struct world *w, uint64_t count);
/* What a chunk of `count` writes of every rank's output; what is there in place is not written. */
void written_of(const struct world *w, uint64_t count, uint64_t *ret);

#endif
