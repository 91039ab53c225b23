#include "tests/end_to_end/tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/unit/unit.h"

static void slab_init(struct slab *s, struct ruccl_conn *conn, uint64_t bytes, bool plain)
{
    if (plain) {
        s->region = NULL;
        s->bytes = calloc(1, bytes);
        assert_non_null(s->bytes);
        return;
    }
    if (ruccl_alloc(conn, bytes, &s->region) < 0)
        fail_msg("alloc: %s", ruccl_last_error()->text);
    s->bytes = ruccl_region_data(s->region);
}

static void slab_fini(struct slab *s)
{
    if (s->region)
        ruccl_free(s->region);
    else
        free(s->bytes);
}

static uint64_t slab_bytes(const struct tensors *t)
{
    return t->bytes + TENSORS_SHIFT * TENSORS_WIDTH + 2 * TENSORS_GUARD;
}

void tensors_init(struct tensors *t, struct world *w, uint64_t bytes, bool plain)
{
    *t = (struct tensors){ .world = w, .bytes = bytes };
    for (uint32_t r = 0; r < w->nranks; r++) {
        slab_init(&t->in[r], world_conn(w, r), slab_bytes(t), plain);
        slab_init(&t->out[r], world_conn(w, r), slab_bytes(t), plain);
        t->given[r] = calloc(1, slab_bytes(t));
        assert_non_null(t->given[r]);
    }
    t->expected = calloc(1, slab_bytes(t));
    assert_non_null(t->expected);
}

void tensors_fini(struct tensors *t)
{
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        slab_fini(&t->in[r]);
        slab_fini(&t->out[r]);
        free(t->given[r]);
    }
    free(t->expected);
}

#define VALUES 256u

/* Values that sum to something of their own size, with bits down to the last. */
static void make_tame(enum ruccl_dtype dtype, uint64_t *seed, uint8_t *to)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);

    for (uint32_t i = 0; i < VALUES; i++) {
        const double fraction = (double)(unit_random(seed) >> 11) / (double)(1ull << 52) - 1;
        const int64_t integer = (int64_t)(unit_random(seed) % 15) - 7;

        if (reference_class(dtype) == REFERENCE_FLOAT)
            reference_encode(dtype, fraction * (double)(1 << i % 4), to + i * width);
        else
            memcpy(to + i * width, &integer, MIN(width, sizeof(integer)));
    }
}

/* The values where arithmetic has its edges, and the least and greatest integers. */
static void make_edges(enum ruccl_dtype dtype, uint64_t *seed, uint8_t *to)
{
    static const double edges[] = { 0.0,    -0.0,    INFINITY, -INFINITY, NAN,   1.0,
                                    0x1p-9, 0x1p-16, 0x1p-24,  0x1p-149,  448.0, 57344.0,
                                    465.0,  65504.0, 65520.0,  0x1p127,   1e308, 0x1p-1074 };
    const uint32_t width = ruccl_dtype_bytes(dtype);

    for (uint32_t i = 0; i < VALUES; i++) {
        const uint64_t pick = unit_random(seed);
        uint64_t integer = 1ull << (8 * MIN(width, 8u) - 1);

        integer = pick % 3 == 0 ? integer - 1 : pick % 3 == 1 ? integer : ~0ull;
        if (reference_class(dtype) == REFERENCE_FLOAT)
            reference_encode(dtype, edges[pick % ARRAY_SIZE(edges)], to + i * width);
        else
            memcpy(to + i * width, &integer, MIN(width, sizeof(integer)));
    }
}

#define TURN 64u

static void fill(enum ruccl_dtype dtype, uint64_t seed, uint64_t bytes, uint8_t *to)
{
    static uint8_t tame[VALUES * TENSORS_WIDTH], edges[VALUES * TENSORS_WIDTH];
    const uint32_t width = ruccl_dtype_bytes(dtype);
    uint64_t word = 0;

    make_tame(dtype, &seed, tame);
    make_edges(dtype, &seed, edges);
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        word = unit_random(&seed);
        memcpy(to + i, &word, 8);
    }
    for (uint64_t i = TURN; i < bytes / width; i++) {
        const uint8_t *values = i / TURN % 4 == 3 ? edges : tame;

        if (i / TURN % 2 == 0) {
            i += TURN - 1;
            continue;
        }
        if (i % 8 == 0)
            word = unit_random(&seed);
        memcpy(to + i * width, values + (word >> i % 8 * 8) % VALUES * width, width);
    }
}

void tensors_fill(struct tensors *t, enum ruccl_dtype dtype, uint64_t seed)
{
    t->dtype = dtype;
    t->nexpected = 0;
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        fill(dtype, seed + r + 1, slab_bytes(t), t->given[r]);
        memcpy(t->in[r].bytes, t->given[r], slab_bytes(t));
    }
}

void tensors_expect_unchanged(const struct tensors *t)
{
    for (uint32_t r = 0; r < t->world->nranks; r++)
        if (memcmp(t->in[r].bytes, t->given[r], slab_bytes(t)))
            fail_msg("inputs of %s have changed on rank %u", ruccl_dtype_name(t->dtype), r);
}

void tensors_expect_reduction(struct tensors *t, enum ruccl_op op, uint64_t count)
{
    const uint32_t nranks = t->world->nranks;
    const void *const *in = (const void *const *)t->given;
    uint64_t i;

    if (t->expected_op == op && t->nexpected >= count)
        return;
    t->expected_op = op;
    t->nexpected = count;
    reference_reduce(t->dtype, op, in, nranks, count, t->expected);
    if (op != RUCCL_SUM || t->dtype == RUCCL_F64 || reference_class(t->dtype) != REFERENCE_FLOAT)
        return;
    i = reference_out_of_bound(t->dtype, in, nranks, count, t->expected);
    if (i < count)
        fail_msg("sum of %u %s: element %llu is too far from the sum in f64", nranks,
                 ruccl_dtype_name(t->dtype), (unsigned long long)i);
}
