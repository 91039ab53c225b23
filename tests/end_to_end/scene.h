/*
 * A scene: one collective on one rank of many. What it means in elements: how large tensors are,
 * where they lie in their slabs, and which parts of whose input the output is made of; and the
 * call. Every rank, in whatever process, sees the same.
 */
#ifndef TESTS_END_TO_END_SCENE_H
#define TESTS_END_TO_END_SCENE_H

#include "tests/end_to_end/tensors.h"

enum trial_kind {
    TRIAL_ALL_REDUCE,
    TRIAL_REDUCE,
    TRIAL_REDUCE_SCATTER,
    TRIAL_ALL_GATHER,
    TRIAL_BROADCAST,
    TRIAL_GATHER,
    TRIAL_SCATTER,
    TRIAL_ALL_TO_ALL,
    TRIAL_ALL_TO_ALL_V,
    TRIAL_RING, /* everyone sends to the next rank and receives from the one before */
    TRIAL_KINDS
};

#define TRIAL_NO_OP ((enum ruccl_op)0)

struct trial {
    enum trial_kind kind;
    enum ruccl_op op; /* TRIAL_NO_OP for moves */
    uint64_t count;   /* elements of a block; for all_to_all_v the most that a pair exchanges */
    uint64_t row;     /* elements of one index of axis 0; divides count */
    uint32_t root;
    uint64_t budget;
    bool in_place;
    bool spare;     /* all_to_all_v: more capacity than needed, and no expected counts */
    uint64_t shift; /* elements that the tensors lie behind aligned addresses */
};

const char *scene_kind_name(enum trial_kind kind); /* "all_reduce"; TRIAL_RING: "send_recv" */
bool scene_reduces(enum trial_kind kind);
bool scene_has_in_place(enum trial_kind kind);
bool scene_has_persistent(enum trial_kind kind);
bool scene_has_blocks(enum trial_kind kind); /* a tensor holds a block of every rank */

struct scene {
    const struct trial *trial;
    enum ruccl_dtype dtype;
    uint32_t nranks, width;
    uint64_t rows;      /* of a block, or the most of a pair */
    void *ring_receive; /* TRIAL_RING: the stream to receive in; NULL: the communicator's */
};

/* nranks <= REFERENCE_RANKS */
struct scene scene_of(const struct trial *trial, enum ruccl_dtype dtype, uint32_t nranks);

bool scene_is_exchange(const struct scene *s);

/* Elements, or, of an exchange, rows, that chunks are counted in. */
uint64_t scene_units(const struct scene *s);
/* What each of them in a chunk takes of a budget, and so the least that moves something. */
uint64_t scene_least_budget(const struct scene *s);

/* Of an exchange: uneven, with ranks that send or receive nothing; (0, R - 1) has the most. */
uint64_t scene_pair_rows(const struct scene *s, uint32_t from, uint32_t to);
uint64_t scene_rows_sent(const struct scene *s, uint32_t from);
uint64_t scene_rows_received(const struct scene *s, uint32_t to);

/* Elements that this rank gives, behind `shift` others. */
uint64_t scene_in_count(const struct scene *s, uint32_t rank);
/* Whether this rank's output is to be written. */
bool scene_writes(const struct scene *s, uint32_t rank);

/* ---- where tensors lie, in bytes of the out slab; TENSORS_GUARD follows what is used */

struct span {
    uint64_t at, bytes;
};

/* The output; in place it may be a block of the input. */
struct span scene_out_span(const struct scene *s, uint32_t rank);
/* All that the collective may write. */
struct span scene_used_span(const struct scene *s, uint32_t rank);

/* Poisons the out slab; `given` is the rank's input, which in place goes there. */
void scene_prepare(const struct scene *s, uint32_t rank, const uint8_t *given, uint8_t *out);
/* Nothing was written around what may be written. */
bool scene_kept_guards(const struct scene *s, uint32_t rank, const uint8_t *out);
/* The output holds what scene_prepare() left there. */
bool scene_kept_output(const struct scene *s, uint32_t rank, const uint8_t *given,
                       const uint8_t *out);

/* ---- what the output has to be: pieces of inputs, or of the reduction, one behind the other */

struct scene_piece {
    const uint8_t *bytes;
    uint64_t count;
};

/* `given` and `expected` as in struct tensors. Return: how many pieces, at most nranks. */
uint32_t scene_pieces(const struct scene *s, uint32_t rank, uint8_t *const *given,
                      const uint8_t *expected, struct scene_piece *ret);

/* ---- the call */

#define SCENE_WORKS_MAX 2

/* Return: how many works there are, or -code. The input lies in `in` `shift` elements from its
 * start; in place, in `out`. */
int scene_call(const struct scene *s, uint32_t rank, struct ruccl_comm comm, const struct slab *in,
               const struct slab *out, struct ruccl_work **ret);

/* The call that waits, of another kind than all_to_all_v and TRIAL_RING. Return: 0 or -code. */
int scene_call_blocking(const struct scene *s, uint32_t rank, struct ruccl_comm comm,
                        const struct slab *in, const struct slab *out);

/* Makes it a persistent operation, of a kind that has them. Return: 0 or -code. */
int scene_init_persistent(const struct scene *s, uint32_t rank, struct ruccl_comm comm,
                          const struct slab *in, const struct slab *out,
                          struct ruccl_persistent **ret);

#endif
