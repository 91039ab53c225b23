/*
 * Collectives and operators: one row each, what their arguments must be, and the descriptor that
 * all ranks must agree on. Pure: looks at numbers, never at memory.
 */
#ifndef SHARED_COLLECTIVE_H
#define SHARED_COLLECTIVE_H

#include "shared/dtype.h"
#include "shared/error.h"

/* X(ID, name, number): the number is the wire's and the public header's; it is never reused. */
#define OPERATOR_LIST(X)                                                                           \
    X(SUM, sum, 1)                                                                                 \
    X(PRODUCT, product, 2)                                                                         \
    X(MIN, min, 3)                                                                                 \
    X(MAX, max, 4)                                                                                 \
    X(MEAN, mean, 5)                                                                               \
    X(AND, and, 6)                                                                                 \
    X(OR, or, 7)                                                                                   \
    X(XOR, xor, 8)

enum operator_id {
    OPERATOR_NONE,
#define OPERATOR_ENUM(ID, name, number) OPERATOR_##ID = number,
    OPERATOR_LIST(OPERATOR_ENUM)
#undef OPERATOR_ENUM
        OPERATOR_END
};

/* How the output's axis 0 follows from the input's, with R ranks. */
enum shape_rule {
    SHAPE_NONE,     /* no tensors at all */
    SHAPE_SAME,     /* out = in */
    SHAPE_TIMES_R,  /* axis 0 times R; at least one axis */
    SHAPE_OVER_R,   /* axis 0 divided by R, which must divide it; at least one axis */
    SHAPE_EXCHANGE, /* axis 0 is rows; the output's is a capacity; at least one axis */
};

enum collective_flags {
    COLLECTIVE_HAS_OP = 1 << 0,
    COLLECTIVE_HAS_ROOT = 1 << 1,
    COLLECTIVE_IN_AT_ROOT = 1 << 2,  /* only the root's input counts */
    COLLECTIVE_OUT_AT_ROOT = 1 << 3, /* only the root's output counts */
    COLLECTIVE_PAIR = 1 << 4,        /* point to point: a peer and a tag, no sequence number */
    COLLECTIVE_ROWS = 1 << 5,        /* axis 0 may differ between ranks */
};

/*
 * X(ID, name, number, shape rule, flags)
 * The shape that ranks agree on is the input's, or the output's where the input is the root's only.
 */
#define COLLECTIVE_LIST(X)                                                                         \
    X(ALL_REDUCE, all_reduce, 1, SAME, COLLECTIVE_HAS_OP)                                          \
    X(ALL_GATHER, all_gather, 2, TIMES_R, 0)                                                       \
    X(REDUCE_SCATTER, reduce_scatter, 3, OVER_R, COLLECTIVE_HAS_OP)                                \
    X(BROADCAST, broadcast, 4, SAME, COLLECTIVE_HAS_ROOT | COLLECTIVE_IN_AT_ROOT)                  \
    X(ALL_TO_ALL_V, all_to_all_v, 5, EXCHANGE, COLLECTIVE_ROWS)                                    \
    X(REDUCE, reduce, 6, SAME, COLLECTIVE_HAS_OP | COLLECTIVE_HAS_ROOT | COLLECTIVE_OUT_AT_ROOT)   \
    X(GATHER, gather, 7, TIMES_R, COLLECTIVE_HAS_ROOT | COLLECTIVE_OUT_AT_ROOT)                    \
    X(SCATTER, scatter, 8, OVER_R, COLLECTIVE_HAS_ROOT | COLLECTIVE_IN_AT_ROOT)                    \
    X(ALL_TO_ALL, all_to_all, 9, EXCHANGE, 0)                                                      \
    X(BARRIER, barrier, 10, NONE, 0)                                                               \
    X(SEND, send, 11, SAME, COLLECTIVE_PAIR)                                                       \
    X(RECV, recv, 12, SAME, COLLECTIVE_PAIR)                                                       \
    X(SPLIT, split, 13, NONE, 0)

enum collective_id {
    COLLECTIVE_NONE,
#define COLLECTIVE_ENUM(ID, name, number, rule, flags) COLLECTIVE_##ID = number,
    COLLECTIVE_LIST(COLLECTIVE_ENUM)
#undef COLLECTIVE_ENUM
        COLLECTIVE_END
};

struct collective {
    const char *name;
    enum shape_rule shape;
    uint32_t flags;
};

/* The row or name of a number, or NULL where it names none: safe on numbers from outside. */
const struct collective *collective_get(uint32_t id);
const char *operator_name(uint32_t id);
enum collective_id collective_by_name(const char *name);
enum operator_id operator_by_name(const char *name);

/* Appends "sum, product, ...": all names. */
void text_add_operators(struct text *t);

struct shape {
    uint32_t naxes;
    uint64_t axes[AXES_MAX];
};

#define BUDGET_NONE UINT64_MAX

/* What one rank asks for: the part of a request that is compared across ranks. */
struct descriptor {
    enum collective_id kind;
    enum operator_id op;
    enum dtype_id dtype;
    struct shape shape; /* the agreed shape; axis 0 is this rank's own rows for COLLECTIVE_ROWS */
    uint32_t root;
    uint64_t budget; /* B, bytes; BUDGET_NONE: none */
    uint32_t nranks; /* R */
};

/* Elements of a shape (1 for no axes); false where the product does not fit in 64 bits. */
bool shape_count(const struct shape *s, uint64_t *ret);

/* Elements of one row: the product of all axes but axis 0. */
bool shape_row_count(const struct shape *s, uint64_t *ret);

bool shape_equal(const struct shape *a, const struct shape *b);

/* Appends "[2, 3]". */
void text_add_shape(struct text *t, const struct shape *s);

/*
 * The shapes of both tensors, from the agreed one. SHAPE_EXCHANGE: out is in, and only the axes
 * behind axis 0 mean anything. Return: 0, or -ERROR_INVALID_SHAPE worded in `e`.
 */
int descriptor_shapes(const struct descriptor *d, struct shape *ret_in, struct shape *ret_out,
                      struct error *e);

/*
 * Every check of a descriptor that needs no other rank and no memory: known kind, type and op; an
 * op that the type has; root in range; shape fitting the kind; sizes that fit in 64 bits of bytes.
 * The budget is checked where chunks are (chunk_plan). Return: 0, or -code worded in `e`.
 */
int descriptor_check(const struct descriptor *d, struct error *e);

/* What a tensor's shape has in place of the agreed one's axis 0, and its bytes. */
struct tensor_extent {
    uint64_t rows; /* a scalar has none */
    uint64_t bytes;
};

/* As descriptor_check(), and how large both tensors are; of SHAPE_EXCHANGE as descriptor_shapes().
 */
int descriptor_measure(const struct descriptor *d, struct tensor_extent *ret_in,
                       struct tensor_extent *ret_out, struct error *e);

/* How many ranks share the budget. */
uint32_t descriptor_sharers(const struct descriptor *d);

/* Of a checked descriptor, the exchanges aside: elements of a chunk under its budget. 0: it is too
 * small. */
uint64_t descriptor_chunk(const struct descriptor *d);

/* Likewise: elements of a rank's block, which is what chunks cut: all of a tensor, or where one has
 * a block for each rank, of the other. */
uint64_t descriptor_block(const struct descriptor *d);

#endif
