/*
 * Illegal calls: each is refused on every rank, soon, by code and in words that name the operation
 * and who was wrong; nothing is written, and the communicator goes on. A row per case.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

#define RANKS        3u /* of the table's world */
#define REGION_BYTES 65536u
#define OUT_AT       32768u /* where outputs lie, unless a row says otherwise */

static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* ---- an attempt: one rank's call, before and after a row has spoilt it */

enum kind {
    ALL_REDUCE,
    REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BARRIER,
    KINDS
};

enum field {
    END, /* of a row's changes */
    KIND,
    OP,
    DTYPE,
    OUT_DTYPE, /* follows DTYPE unless set */
    ROOT,
    BUDGET,
    IN_AXES,
    IN_0,
    IN_1,
    OUT_AXES,
    OUT_0,
    OUT_1,
    IN_OFFSET,
    OUT_OFFSET,
    IN_MEMORY,
    OUT_MEMORY,
    HAS_COUNTS,
    COUNT_0,
    COUNT_1,
    COUNT_2,
    HAS_EXPECTED,
    EXPECTED_0,
    EXPECTED_1,
    EXPECTED_2,
    FIELDS
};

enum memory {
    OWN,       /* the rank's own region */
    PLAIN,     /* no region */
    SHARED,    /* a memfd that every rank has registered */
    FREED,     /* a region that is no more */
    FOREIGN,   /* a region of another connection */
    NO_DATA,   /* neither region nor data */
    NO_TENSOR, /* NULL */
};

struct attempt {
    uint64_t is[FIELDS];
};

/* Legal: shapes of two axes, two rows for every pair of ranks. */
static struct attempt legal_attempt(enum kind kind)
{
    static const uint64_t rows[KINDS][2] = {
        [ALL_REDUCE] = { 6, 6 },  [REDUCE] = { 6, 6 },     [REDUCE_SCATTER] = { 6, 2 },
        [ALL_GATHER] = { 6, 18 }, [BROADCAST] = { 6, 6 },  [GATHER] = { 6, 18 },
        [SCATTER] = { 6, 2 },     [ALL_TO_ALL] = { 6, 6 }, [ALL_TO_ALL_V] = { 6, 6 },
    };

    return (struct attempt){ {
        [KIND] = kind,
        [OP] = RUCCL_SUM,
        [DTYPE] = RUCCL_F32,
        [BUDGET] = RUCCL_NO_BUDGET,
        [IN_AXES] = 2,
        [IN_0] = rows[kind][0],
        [IN_1] = 5,
        [OUT_AXES] = 2,
        [OUT_0] = rows[kind][1],
        [OUT_1] = 5,
        [OUT_OFFSET] = OUT_AT,
        [HAS_COUNTS] = 1,
        [COUNT_0] = 2,
        [COUNT_1] = 2,
        [COUNT_2] = 2,
        [EXPECTED_0] = 2,
        [EXPECTED_1] = 2,
        [EXPECTED_2] = 2,
    } };
}

/* ---- the cases */

#define CHANGES_MAX 6
#define ALL         (-1)
#define RANK(r)     (1u << (r))

struct row {
    const char *claim;
    enum kind kind;
    int who; /* does it otherwise than the legal attempt: a rank, or ALL */
    struct {
        enum field field;
        uint64_t value;
    } changes[CHANGES_MAX];
    enum ruccl_code code; /* RUCCL_OK: legal after all, and nothing is to be written */
    const char *words;    /* of the text, separated by '|' */
    uint32_t ranks;       /* concerned; 0: who */
};

/* clang-format off */
static const struct row rows[] = {
    /* where a tensor lies */
    { "input between two elements", ALL_REDUCE, 1, { { IN_OFFSET, 2 } },
      RUCCL_MISALIGNED, "rank 1: |input offset 2 |element width 4" },
    { "output between two elements", ALL_GATHER, 2, { { OUT_OFFSET, OUT_AT + 1 } },
      RUCCL_MISALIGNED, "rank 2: |output offset 32769 " },
    { "half an element of 16 bytes", BROADCAST, ALL, { { DTYPE, RUCCL_C128 }, { IN_OFFSET, 8 } },
      RUCCL_MISALIGNED, "rank 0: |element width 16", RANK(0) },
    { "one element behind the region's end", ALL_REDUCE, 1, { { IN_OFFSET, REGION_BYTES - 116 } },
      RUCCL_OUT_OF_RANGE, "rank 1: |120 bytes at offset 65420|region of 65536 bytes" },
    { "output behind the region", REDUCE, 0, { { OUT_OFFSET, REGION_BYTES + 4096 } },
      RUCCL_OUT_OF_RANGE, "rank 0: |output" },
    { "offset that wraps with the size", ALL_REDUCE, 1, { { OUT_OFFSET, UINT64_MAX - 3 } },
      RUCCL_OUT_OF_RANGE, "rank 1: |offset 18446744073709551612" },
    { "offset with the top bit", ALL_TO_ALL, 1, { { IN_OFFSET, 1ull << 63 } },
      RUCCL_OUT_OF_RANGE, "rank 1: |offset 9223372036854775808" },
    { "no input", ALL_REDUCE, 1, { { IN_MEMORY, NO_TENSOR } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |in is NULL" },
    { "no output", ALL_GATHER, 1, { { OUT_MEMORY, NO_TENSOR } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |out is NULL" },
    { "no input at the root", SCATTER, 0, { { IN_MEMORY, NO_TENSOR } },
      RUCCL_INVALID_ARGUMENT, "rank 0: |in is NULL" },
    { "no output at the root", GATHER, 0, { { OUT_MEMORY, NO_TENSOR } },
      RUCCL_INVALID_ARGUMENT, "rank 0: |out is NULL" },
    { "input without data", REDUCE_SCATTER, 1, { { IN_MEMORY, NO_DATA } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |in has neither region nor data" },
    { "output without data, everywhere", ALL_TO_ALL_V, ALL, { { OUT_MEMORY, NO_DATA } },
      RUCCL_INVALID_ARGUMENT, "out has neither region nor data" },
    { "freed region", ALL_REDUCE, 1, { { IN_MEMORY, FREED } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |region of in is not a live one" },
    { "region of another connection", ALL_REDUCE, 1, { { OUT_MEMORY, FOREIGN } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |region of out is not a live one of this connection" },

    /* tensors that share bytes */
    { "output an element behind the input", ALL_REDUCE, 1, { { OUT_OFFSET, 4 } },
      RUCCL_OVERLAP, "rank 1|not in place" },
    { "the same in plain memory", ALL_REDUCE, 1,
      { { IN_MEMORY, PLAIN }, { OUT_MEMORY, PLAIN }, { OUT_OFFSET, 4 } },
      RUCCL_OVERLAP, "rank 1: |not \"in place\"" },
    { "in place at another's block", ALL_GATHER, 1, { { IN_OFFSET, 0 }, { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 1|not in place" },
    { "in place an element beside its block", ALL_GATHER, 1, { { IN_OFFSET, 124 }, { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 1|not in place" },
    { "in place at another's block", REDUCE_SCATTER, 1, { { IN_OFFSET, 0 }, { OUT_OFFSET, 80 } },
      RUCCL_OVERLAP, "rank 1|not in place" },
    { "in place where there is no such form", GATHER, 0, { { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 0|not in place" },
    { "in place where there is no such form", SCATTER, 0, { { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 0|not in place" },
    { "in place where there is no such form", ALL_TO_ALL, ALL, { { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 0|not in place", RANK(0) },
    { "in place where there is no such form", ALL_TO_ALL_V, 2, { { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "rank 2|not in place" },
    { "one output of all ranks", ALL_REDUCE, ALL, { { OUT_MEMORY, SHARED } },
      RUCCL_OVERLAP, "ranks 0 and 1 share memory", RANK(0) | RANK(1) },
    { "one input of all ranks", ALL_GATHER, ALL, { { IN_MEMORY, SHARED } },
      RUCCL_OVERLAP, "ranks 0 and 1 share memory", RANK(0) | RANK(1) },
    { "all in place in one memory", BROADCAST, ALL,
      { { IN_MEMORY, SHARED }, { OUT_MEMORY, SHARED }, { OUT_OFFSET, 0 } },
      RUCCL_OVERLAP, "ranks 0 and 1 share memory", RANK(0) | RANK(1) },

    /* shapes */
    { "rows that the world size does not divide", REDUCE_SCATTER, ALL, { { IN_0, 7 } },
      RUCCL_INVALID_SHAPE, "[7, 5]|not divisible by world size 3" },
    { "rows that the world size does not divide", ALL_TO_ALL, ALL, { { IN_0, 7 }, { OUT_0, 7 } },
      RUCCL_INVALID_SHAPE, "[7, 5]|world size does not divide" },
    { "rows that are not R times the output's", SCATTER, 0, { { IN_0, 7 } },
      RUCCL_INVALID_SHAPE, "rank 0: |[7, 5]|must be [6, 5]" },
    { "scalar", ALL_GATHER, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "[]|no axis 0" },
    { "scalar on one rank", ALL_GATHER, 1, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "rank 1: |[]|no axis 0" },
    { "scalar", GATHER, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "no axis 0" },
    { "scalar", SCATTER, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "no axis 0" },
    { "scalar", REDUCE_SCATTER, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "no axis 0" },
    { "scalar", ALL_TO_ALL, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "no axis 0" },
    { "scalar", ALL_TO_ALL_V, ALL, { { IN_AXES, 0 }, { OUT_AXES, 0 } },
      RUCCL_INVALID_SHAPE, "no axis 0" },
    { "nine axes", ALL_REDUCE, 1, { { IN_AXES, 9 } },
      RUCCL_INVALID_SHAPE, "rank 1: |9 axes, more than 8" },
    { "nine axes of the output", ALL_REDUCE, 1, { { OUT_AXES, 9 } },
      RUCCL_INVALID_SHAPE, "rank 1: |9 axes, more than 8" },
    { "four thousand million axes", BROADCAST, ALL, { { IN_AXES, UINT32_MAX }, { OUT_AXES, UINT32_MAX } },
      RUCCL_INVALID_SHAPE, "4294967295 axes" },
    { "output of another shape", ALL_REDUCE, 1, { { OUT_0, 5 } },
      RUCCL_INVALID_SHAPE, "rank 1: |out has shape [5, 5]|must be [6, 5]" },
    { "output that lacks a row", GATHER, 0, { { OUT_0, 17 } },
      RUCCL_INVALID_SHAPE, "rank 0: |[17, 5]|must be [18, 5]" },
    { "output of other rows", ALL_TO_ALL_V, 1, { { OUT_1, 4 } },
      RUCCL_INVALID_SHAPE, "rank 1: |[6, 4]" },
    { "more bytes than there are", ALL_REDUCE, ALL, { { IN_0, 1ull << 62 }, { OUT_0, 1ull << 62 } },
      RUCCL_INVALID_SHAPE, "[4611686018427387904, 5]|63 bits" },
    { "more elements than there are, on one rank", ALL_REDUCE, 1,
      { { IN_0, UINT64_MAX }, { IN_1, UINT64_MAX } },
      RUCCL_INVALID_SHAPE, "rank 1: |63 bits" },
    { "more rows than there are", ALL_GATHER, ALL, { { IN_0, UINT64_MAX / 2 } },
      RUCCL_INVALID_SHAPE, "times the world size does not fit in 64 bits" },
    { "rows of nothing", ALL_TO_ALL_V, ALL, { { IN_1, 0 }, { OUT_1, 0 } },
      RUCCL_INVALID_SHAPE, "[6, 0]|rows of no elements" },
    { "rows of nothing", ALL_TO_ALL, 1, { { IN_1, 0 }, { OUT_1, 0 } },
      RUCCL_INVALID_SHAPE, "rank 1: |rows of no elements" },

    /* counts */
    { "counts that do not add up", ALL_TO_ALL_V, 1, { { COUNT_1, 3 } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |add up to 7|6" },
    { "negative count that adds up", ALL_TO_ALL_V, 1, { { COUNT_0, (uint64_t)-1 }, { COUNT_1, 5 } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |send_counts[0] is negative: -1" },
    { "counts whose sum overflows", ALL_TO_ALL_V, 1,
      { { COUNT_0, INT64_MAX }, { COUNT_1, INT64_MAX }, { COUNT_2, INT64_MAX } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |does not fit in 64 bits" },
    { "no counts", ALL_TO_ALL_V, 1, { { HAS_COUNTS, 0 } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |send_counts is NULL" },
    { "output with too little room", ALL_TO_ALL_V, 1, { { OUT_0, 5 } },
      RUCCL_CAPACITY, "rank 1 |room for 5 rows|needs 6" },
    { "output with no room", ALL_TO_ALL_V, 1, { { OUT_0, 0 } },
      RUCCL_CAPACITY, "rank 1 |room for 0 rows|needs 6" },
    { "more for a rank than it has room for", ALL_TO_ALL_V, 1, { { COUNT_2, 3 }, { COUNT_1, 1 } },
      RUCCL_CAPACITY, "rank 2 |room for 6 rows|needs 7", RANK(2) },
    { "other counts than expected", ALL_TO_ALL_V, 1, { { HAS_EXPECTED, 1 }, { EXPECTED_2, 3 } },
      RUCCL_UNEXPECTED_COUNTS, "rank 1 expected 3 rows from rank 2|sends it 2" },
    { "negative expected count", ALL_TO_ALL_V, 1, { { HAS_EXPECTED, 1 }, { EXPECTED_0, (uint64_t)-2 } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |expected_counts[0] is negative: -2" },

    /* what ranks must agree on */
    { "another collective", ALL_REDUCE, 1, { { KIND, BARRIER } },
      RUCCL_MISMATCH, "the collective|ranks 0, 2 said all_reduce|rank 1 said barrier" },
    { "another collective of the same tensors", ALL_REDUCE, 1, { { KIND, BROADCAST } },
      RUCCL_MISMATCH, "the collective|rank 1 said broadcast" },
    { "another type", ALL_REDUCE, 1, { { DTYPE, RUCCL_I32 } },
      RUCCL_MISMATCH, "the dtype|ranks 0, 2 said f32|rank 1 said i32" },
    { "another operation", REDUCE, 2, { { OP, RUCCL_MAX } },
      RUCCL_MISMATCH, "the op|ranks 0, 1 said sum|rank 2 said max" },
    { "another shape", ALL_REDUCE, 1, { { IN_0, 5 }, { OUT_0, 5 } },
      RUCCL_MISMATCH, "the shape|ranks 0, 2 said [6, 5]|rank 1 said [5, 5]" },
    { "another number of axes", ALL_REDUCE, 1, { { IN_AXES, 1 }, { OUT_AXES, 1 } },
      RUCCL_MISMATCH, "the number of axes|ranks 0, 2 said 2|rank 1 said 1" },
    { "another shape of as many elements", BROADCAST, 0,
      { { IN_0, 5 }, { IN_1, 6 }, { OUT_0, 5 }, { OUT_1, 6 } },
      RUCCL_MISMATCH, "the shape|rank 0 said [5, 6]|ranks 1, 2 said [6, 5]" },
    { "another number of rows", ALL_TO_ALL, 1, { { IN_0, 9 }, { OUT_0, 9 } },
      RUCCL_MISMATCH, "the shape|rank 1 said [9, 5]" },
    { "rows of another length", ALL_TO_ALL_V, 1, { { IN_1, 4 }, { OUT_1, 4 } },
      RUCCL_MISMATCH, "the shape|rank 1 said [6, 4]" },
    { "another root", BROADCAST, 1, { { ROOT, 2 } },
      RUCCL_MISMATCH, "the root|ranks 0, 2 said 0|rank 1 said 2" },
    { "another root", GATHER, 2, { { ROOT, 2 } },
      RUCCL_MISMATCH, "the root|ranks 0, 1 said 0|rank 2 said 2" },
    { "another budget", ALL_REDUCE, 1, { { BUDGET, 4096 } },
      RUCCL_MISMATCH, "the budget|ranks 0, 2 said none|rank 1 said 4096 bytes" },

    /* types and operations */
    { "unknown type", ALL_GATHER, ALL, { { DTYPE, 99 } },
      RUCCL_UNSUPPORTED_DTYPE, "dtype 99 is not known" },
    { "no type, on one rank", BROADCAST, 1, { { DTYPE, 0 } },
      RUCCL_UNSUPPORTED_DTYPE, "rank 1: |dtype 0 is not known" },
    { "output of another type", ALL_REDUCE, 1, { { OUT_DTYPE, RUCCL_I32 } },
      RUCCL_INVALID_ARGUMENT, "rank 1: |out is of i32|f32" },
    { "sum of packed bytes", ALL_REDUCE, ALL, { { DTYPE, RUCCL_PACKED_U8 } },
      RUCCL_UNSUPPORTED_DTYPE, "packed_u8 is moved, never reduced" },
    { "maximum of packed words", REDUCE, ALL, { { DTYPE, RUCCL_PACKED_U32 }, { OP, RUCCL_MAX } },
      RUCCL_UNSUPPORTED_DTYPE, "packed_u32 is moved, never reduced" },
    { "sum of truths", ALL_REDUCE, ALL, { { DTYPE, RUCCL_BOOL } },
      RUCCL_UNSUPPORTED_DTYPE, "bool is moved, never reduced" },
    { "sum of complex numbers", REDUCE_SCATTER, ALL, { { DTYPE, RUCCL_C64 } },
      RUCCL_UNSUPPORTED_DTYPE, "c64 is moved, never reduced" },
    { "product of complex numbers", REDUCE_SCATTER, ALL, { { DTYPE, RUCCL_C128 }, { OP, RUCCL_PRODUCT } },
      RUCCL_UNSUPPORTED_DTYPE, "c128 is moved, never reduced" },
    { "sum of scales", ALL_REDUCE, 1, { { DTYPE, RUCCL_F8E8M0 } },
      RUCCL_UNSUPPORTED_DTYPE, "rank 1: |f8e8m0 is moved, never reduced" },
    { "no operation", ALL_REDUCE, ALL, { { OP, 0 } },
      RUCCL_INVALID_OPERATION, "op 0 is not a known operation" },
    { "unknown operation", REDUCE_SCATTER, 1, { { OP, 99 } },
      RUCCL_INVALID_OPERATION, "rank 1: |op 99 is not a known operation" },
    { "mean of integers", ALL_REDUCE, ALL, { { DTYPE, RUCCL_I32 }, { OP, RUCCL_MEAN } },
      RUCCL_INVALID_OPERATION, "mean of i32" },
    { "mean of unsigned integers", REDUCE_SCATTER, ALL, { { DTYPE, RUCCL_U8 }, { OP, RUCCL_MEAN } },
      RUCCL_INVALID_OPERATION, "mean of u8" },
    { "and of floats", ALL_REDUCE, ALL, { { OP, RUCCL_AND } },
      RUCCL_INVALID_OPERATION, "and of f32" },
    { "or of floats", REDUCE, ALL, { { DTYPE, RUCCL_F64 }, { OP, RUCCL_OR } },
      RUCCL_INVALID_OPERATION, "or of f64" },
    { "xor of floats", REDUCE_SCATTER, ALL, { { DTYPE, RUCCL_BF16 }, { OP, RUCCL_XOR } },
      RUCCL_INVALID_OPERATION, "xor of bf16" },

    /* roots */
    { "root that is no rank", BROADCAST, ALL, { { ROOT, RANKS } },
      RUCCL_INVALID_ROOT, "root 3 is not below world size 3" },
    { "root that is no rank", REDUCE, 1, { { ROOT, UINT32_MAX } },
      RUCCL_INVALID_ROOT, "rank 1: |root 4294967295" },
    { "root that is no rank", GATHER, 2, { { ROOT, RANKS } }, RUCCL_INVALID_ROOT, "rank 2: |root 3" },
    { "root that is no rank", SCATTER, ALL, { { ROOT, RANKS } }, RUCCL_INVALID_ROOT, "root 3" },

    /* budgets */
    { "less than an element for each", ALL_REDUCE, ALL, { { BUDGET, 11 } },
      RUCCL_BUDGET_TOO_SMALL, "budget of 11 bytes|least that works is 12" },
    { "less than an element for each", GATHER, ALL, { { BUDGET, 11 } },
      RUCCL_BUDGET_TOO_SMALL, "least that works is 12" },
    { "less than an element", BROADCAST, ALL, { { BUDGET, 3 } },
      RUCCL_BUDGET_TOO_SMALL, "least that works is 4" },
    { "less than a row for each", ALL_TO_ALL_V, ALL, { { BUDGET, 59 } },
      RUCCL_BUDGET_TOO_SMALL, "least that works is 60" },
    { "nothing", SCATTER, ALL, { { BUDGET, 0 } },
      RUCCL_BUDGET_TOO_SMALL, "budget of 0 bytes|least that works is 12" },

    /* nothing to move needs no budget */
    { "nothing for nothing", ALL_REDUCE, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", REDUCE, ALL, { { IN_1, 0 }, { OUT_1, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", REDUCE_SCATTER, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", ALL_GATHER, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", BROADCAST, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", GATHER, ALL, { { IN_1, 0 }, { OUT_1, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", SCATTER, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", ALL_TO_ALL, ALL, { { IN_0, 0 }, { OUT_0, 0 }, { BUDGET, 0 } } },
    { "nothing for nothing", ALL_TO_ALL_V, ALL,
      { { IN_0, 0 }, { BUDGET, 0 }, { COUNT_0, 0 }, { COUNT_1, 0 }, { COUNT_2, 0 } } },
    { "nothing, from nowhere", ALL_REDUCE, ALL,
      { { IN_0, 0 }, { OUT_0, 0 }, { IN_MEMORY, NO_DATA }, { OUT_MEMORY, NO_DATA } } },
};
/* clang-format on */

/* ---- the memory that attempts are about */

struct ground {
    struct world world;
    struct ruccl_conn *stranger;
    int memfd;
    struct ruccl_region *foreign;
    struct ruccl_region *own[RANKS], *shared[RANKS], *freed[RANKS], *probe[RANKS];
    uint8_t plain[RANKS][REGION_BYTES];
};

static uint8_t pattern(uint64_t i)
{
    return (uint8_t)(i * 131 + 7);
}

static void fill(uint8_t *bytes)
{
    for (uint64_t i = 0; i < REGION_BYTES; i++)
        bytes[i] = pattern(i);
}

static void expect_filled(const uint8_t *bytes, const char *what)
{
    for (uint64_t i = 0; i < REGION_BYTES; i++)
        if (bytes[i] != pattern(i))
            fail_msg("%s was written at byte %llu", what, (unsigned long long)i);
}

static void expect_ok(int r, const char *what)
{
    if (r != 0)
        fail_msg("%s: %s: %s", what, ruccl_code_name(r), ruccl_last_error()->text);
}

static struct ground *ground_open(uint32_t nconns)
{
    struct ground *g = calloc(1, sizeof(*g));

    assert_non_null(g);
    world_open(&g->world, &harness, RANKS, nconns);
    expect_ok(ruccl_connect(harness.socket, "stranger", &g->stranger), "connect");
    expect_ok(ruccl_alloc(g->stranger, REGION_BYTES, &g->foreign), "alloc");
    g->memfd = memfd_create("shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(g->memfd, REGION_BYTES), 0);
    assert_int_equal(fcntl(g->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct ruccl_conn *conn = world_conn(&g->world, r);

        expect_ok(ruccl_alloc(conn, REGION_BYTES, &g->own[r]), "alloc");
        expect_ok(ruccl_alloc(conn, REGION_BYTES, &g->probe[r]), "alloc");
        expect_ok(ruccl_register(conn, g->memfd, REGION_BYTES, &g->shared[r]), "register");
        expect_ok(ruccl_alloc(conn, REGION_BYTES, &g->freed[r]), "alloc");
        fill(ruccl_region_data(g->own[r]));
        fill(ruccl_region_data(g->shared[r]));
        fill(g->plain[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        ruccl_free(g->freed[r]);
    return g;
}

static void ground_close(struct ground *g)
{
    world_close(&g->world);
    ruccl_close(g->stranger);
    close(g->memfd);
    free(g);
}

/* NULL where the rank passes none. */
static const struct ruccl_tensor *tensor(struct ground *g, uint32_t rank, const struct attempt *a,
                                         bool out, struct ruccl_tensor *t)
{
    const uint64_t offset = a->is[out ? OUT_OFFSET : IN_OFFSET];
    const uint64_t dtype = a->is[out && a->is[OUT_DTYPE] ? OUT_DTYPE : DTYPE];

    *t = (struct ruccl_tensor){
        .dtype = (enum ruccl_dtype)dtype,
        .naxes = (uint32_t)a->is[out ? OUT_AXES : IN_AXES],
        .shape = { a->is[out ? OUT_0 : IN_0], a->is[out ? OUT_1 : IN_1], 1, 1, 1, 1, 1, 1 },
        .offset = offset,
    };
    switch ((enum memory)a->is[out ? OUT_MEMORY : IN_MEMORY]) {
    case OWN:
        t->region = g->own[rank];
        break;
    case PLAIN:
        t->data = g->plain[rank] + offset;
        t->offset = 0;
        break;
    case SHARED:
        t->region = g->shared[rank];
        break;
    case FREED:
        t->region = g->freed[rank];
        break;
    case FOREIGN:
        t->region = g->foreign;
        break;
    case NO_DATA:
        break;
    case NO_TENSOR:
        return NULL;
    }
    return t;
}

static int post(struct ground *g, uint32_t rank, const struct attempt *a, struct ruccl_work **ret)
{
    const struct ruccl_comm comm = ruccl_bounded(g->world.comms[rank], a->is[BUDGET]);
    const enum ruccl_op op = (enum ruccl_op)a->is[OP];
    const uint32_t root = (uint32_t)a->is[ROOT];
    struct ruccl_tensor in_tensor, out_tensor;
    const struct ruccl_tensor *in = tensor(g, rank, a, false, &in_tensor);
    const struct ruccl_tensor *out = tensor(g, rank, a, true, &out_tensor);

    switch ((enum kind)a->is[KIND]) {
    case ALL_REDUCE:
        return ruccl_all_reduce_async(comm, in, out, op, ret);
    case REDUCE:
        return ruccl_reduce_async(comm, in, out, op, root, ret);
    case REDUCE_SCATTER:
        return ruccl_reduce_scatter_async(comm, in, out, op, ret);
    case ALL_GATHER:
        return ruccl_all_gather_async(comm, in, out, ret);
    case BROADCAST:
        return ruccl_broadcast_async(comm, in, out, root, ret);
    case GATHER:
        return ruccl_gather_async(comm, in, out, root, ret);
    case SCATTER:
        return ruccl_scatter_async(comm, in, out, root, ret);
    case ALL_TO_ALL:
        return ruccl_all_to_all_async(comm, in, out, ret);
    case ALL_TO_ALL_V:
        return ruccl_all_to_all_v_async(comm, in, a->is[HAS_COUNTS] ? &a->is[COUNT_0] : NULL, out,
                                        a->is[HAS_EXPECTED] ? &a->is[EXPECTED_0] : NULL, ret);
    default:
        return ruccl_barrier_async(comm, ret);
    }
}

static struct attempt attempt_of(const struct row *row, uint32_t rank)
{
    struct attempt a = legal_attempt(row->kind);

    for (int i = 0; (row->who == ALL || row->who == (int)rank) && row->changes[i].field; i++)
        a.is[row->changes[i].field] = row->changes[i].value;
    return a;
}

/* ---- what every row must come to */

static void expect_ranks(const struct row *row, const struct ruccl_error *e)
{
    uint32_t expected = row->ranks, told = 0;

    if (!expected)
        expected = row->who == ALL ? RANK(RANKS) - 1 : RANK(row->who);
    for (uint32_t i = 0; i < e->nranks; i++)
        told |= RANK(e->ranks[i]);
    if (told != expected)
        fail_msg("%s: ranks %#x are named, not %#x: %s", row->claim, told, expected, e->text);
}

static void expect_refusal(const struct row *row, int r, uint64_t sequence)
{
    const struct ruccl_error *e = ruccl_last_error();
    char number[32], missing[128];

    if (r != -(int)row->code)
        fail_msg("%s: %s, not %s: %s", row->claim, r < 0 ? ruccl_code_name(r) : "success",
                 ruccl_code_name((int)row->code), r < 0 ? e->text : "");
    if (r == 0)
        return;
    snprintf(number, sizeof(number), " %" PRIu64 ": ", sequence);
    if (!words_in(e->text, number, missing) || !words_in(e->text, row->words, missing))
        fail_msg("%s: no '%s' in: %s", row->claim, missing, e->text);
    expect_ranks(row, e);
}

/* A sum that is right. */
static void expect_going_on(struct ground *g, const char *claim)
{
    struct ruccl_work *works[RANKS];

    for (uint32_t r = 0; r < RANKS; r++) {
        const struct ruccl_tensor t = {
            .dtype = RUCCL_I32, .naxes = 1, .shape = { 100 }, .region = g->probe[r]
        };

        for (int i = 0; i < 100; i++)
            ((int32_t *)ruccl_region_data(g->probe[r]))[i] = (int32_t)r + i;
        expect_ok(ruccl_all_reduce_async(g->world.comms[r], &t, &t, RUCCL_SUM, &works[r]), claim);
    }
    g->world.sequence++;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct ruccl_stats stats;

        expect_ok(ruccl_work_wait(works[r], STAGE_PROMPT_US), claim);
        expect_ok(ruccl_work_stats(works[r], &stats), claim);
        assert_int_equal(stats.sequence, g->world.sequence);
        ruccl_work_release(works[r]);
        for (int i = 0; i < 100; i++)
            assert_int_equal(((int32_t *)ruccl_region_data(g->probe[r]))[i], 3 + 3 * i);
    }
}

static void run_row(struct ground *g, const struct row *row)
{
    const int64_t until_us = stage_now_us() + STAGE_PROMPT_US;
    struct ruccl_work *works[RANKS];

    g->world.sequence++;
    for (uint32_t r = 0; r < RANKS; r++) {
        struct attempt a = attempt_of(row, r);

        expect_ok(post(g, r, &a, &works[r]), row->claim);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_refusal(row, ruccl_work_wait(works[r], MAX(until_us - stage_now_us(), 0)),
                       g->world.sequence);
        ruccl_work_release(works[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_filled(ruccl_region_data(g->own[r]), row->claim);
        expect_filled(ruccl_region_data(g->shared[r]), row->claim);
        expect_filled(g->plain[r], row->claim);
    }
    expect_going_on(g, row->claim);
}

static void run_rows(uint32_t nconns)
{
    struct harness_usage before;
    struct ground *g;

    harness_start(&harness, NULL);
    before = harness_usage(&harness);
    g = ground_open(nconns);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        run_row(g, &rows[i]);
    ground_close(g);
    harness_expect_usage(&harness, &before);
}

TEST(illegal_calls_are_refused_on_every_rank)
{
    run_rows(RANKS);
}

TEST(illegal_calls_are_refused_on_ranks_of_one_connection)
{
    run_rows(1);
}

/* All posted before any is answered: each has its own outcome, in its own slot. */
TEST(illegal_calls_in_a_row_do_not_slip)
{
    static struct ruccl_work *works[ARRAY_SIZE(rows)][RANKS];
    struct ground *g;

    harness_start(&harness, NULL);
    g = ground_open(RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
            struct attempt a = attempt_of(&rows[i], r);

            expect_ok(post(g, r, &a, &works[i][r]), rows[i].claim);
        }
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (uint32_t r = 0; r < RANKS; r++) {
            expect_refusal(&rows[i], ruccl_work_wait(works[i][r], STAGE_PROMPT_US), i + 1);
            ruccl_work_release(works[i][r]);
        }
    g->world.sequence = ARRAY_SIZE(rows);
    expect_going_on(g, "after all of them");
    ground_close(g);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest tests[] = {
        CLAIM(illegal_calls_are_refused_on_every_rank),
        CLAIM(illegal_calls_are_refused_on_ranks_of_one_connection),
        CLAIM(illegal_calls_in_a_row_do_not_slip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
