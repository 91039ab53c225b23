/* Memory of one world for its trials: every rank's inputs of one type, and room for outputs. */
#ifndef TESTS_END_TO_END_TENSORS_H
#define TESTS_END_TO_END_TENSORS_H

#include "tests/end_to_end/fill.h"
#include "tests/end_to_end/harness.h"

#define TENSORS_GUARD 64u /* bytes on either side of a tensor */
#define TENSORS_SHIFT 8u  /* elements that a tensor may lie behind an aligned address */
#define TENSORS_WIDTH FILL_WIDTH

struct slab {
    struct ruccl_region *region; /* NULL: plain memory */
    uint8_t *bytes;
    uint64_t away; /* where it is, if the host cannot look there: `bytes` is a copy; else 0 */
};

/* Where slabs of other memory come from, and go; how a copy gets there, and back. */
struct slab_maker {
    void (*make)(struct slab *s, struct world *w, uint32_t rank, uint64_t bytes);
    void (*end)(struct slab *s);
    void (*write)(const struct slab *s, uint64_t bytes);
    void (*read)(const struct slab *s, uint64_t bytes);
};

struct tensors {
    struct world *world;
    const struct slab_maker *maker; /* NULL: memory of the library, or plain */
    enum ruccl_dtype dtype;
    uint64_t bytes; /* of a tensor at most */
    struct slab in[HARNESS_RANKS], out[HARNESS_RANKS];
    uint8_t *given[HARNESS_RANKS]; /* what the inputs must hold */
    uint8_t *expected;             /* the reduction of all of them by expected_op */
    enum ruccl_op expected_op;
    uint64_t nexpected;
};

/* Room for tensors of up to `bytes` bytes and a few elements of shift. */
void tensors_init(struct tensors *t, struct world *w, uint64_t bytes, bool plain);
void tensors_init_made(struct tensors *t, struct world *w, uint64_t bytes,
                       const struct slab_maker *maker);
void tensors_fini(struct tensors *t);

/* Makes slabs that are away hold what their copies do, and the other way round. */
void tensors_write(const struct tensors *t, const struct slab *s);
void tensors_read(const struct tensors *t, const struct slab *s);

/* Gives every rank elements of `dtype` as fill_values() makes them, each with another seed. */
void tensors_fill(struct tensors *t, enum ruccl_dtype dtype, uint64_t seed);

/* Makes `expected` hold the reduction of the first `count` elements; it may from before. */
void tensors_expect_reduction(struct tensors *t, enum ruccl_op op, uint64_t count);

/* That nobody has changed an input. */
void tensors_expect_unchanged(const struct tensors *t);

#endif
