#include "tests/end_to_end/tensors.h"

#include <stdlib.h>
#include <string.h>

#include "tests/end_to_end/fill.h"
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

static void init_rank(struct tensors *t, uint32_t rank, bool plain)
{
    struct slab *const slabs[] = { &t->in[rank], &t->out[rank] };

    for (int i = 0; i < 2; i++)
        if (t->maker)
            t->maker->make(slabs[i], t->world, rank, slab_bytes(t));
        else
            slab_init(slabs[i], world_conn(t->world, rank), slab_bytes(t), plain);
}

static void init(struct tensors *t, bool plain)
{
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        init_rank(t, r, plain);
        t->given[r] = calloc(1, slab_bytes(t));
        assert_non_null(t->given[r]);
    }
    t->expected = calloc(1, slab_bytes(t));
    assert_non_null(t->expected);
}

void tensors_init(struct tensors *t, struct world *w, uint64_t bytes, bool plain)
{
    *t = (struct tensors){ .world = w, .bytes = bytes };
    init(t, plain);
}

void tensors_init_made(struct tensors *t, struct world *w, uint64_t bytes,
                       const struct slab_maker *maker)
{
    *t = (struct tensors){ .world = w, .bytes = bytes, .maker = maker };
    init(t, false);
}

void tensors_fini(struct tensors *t)
{
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        (t->maker ? t->maker->end : slab_fini)(&t->in[r]);
        (t->maker ? t->maker->end : slab_fini)(&t->out[r]);
        free(t->given[r]);
    }
    free(t->expected);
}

void tensors_write(const struct tensors *t, const struct slab *s)
{
    if (s->away)
        t->maker->write(s, slab_bytes(t));
}

void tensors_read(const struct tensors *t, const struct slab *s)
{
    if (s->away)
        t->maker->read(s, slab_bytes(t));
}

void tensors_fill(struct tensors *t, enum ruccl_dtype dtype, uint64_t seed)
{
    t->dtype = dtype;
    t->nexpected = 0;
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        fill_values(dtype, seed + r + 1, slab_bytes(t), t->given[r]);
        memcpy(t->in[r].bytes, t->given[r], slab_bytes(t));
        tensors_write(t, &t->in[r]);
    }
}

void tensors_expect_unchanged(const struct tensors *t)
{
    for (uint32_t r = 0; r < t->world->nranks; r++) {
        tensors_read(t, &t->in[r]);
        if (memcmp(t->in[r].bytes, t->given[r], slab_bytes(t)))
            fail_msg("inputs of %s have changed on rank %u", ruccl_dtype_name(t->dtype), r);
    }
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
