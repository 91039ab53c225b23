#include "daemon/comm/arrival.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"

static void operand_drop(struct operand *o)
{
    o->mapping = mapping_unref(o->mapping);
}

static int copy_counts(const uint64_t *counts, uint32_t n, uint64_t **ret)
{
    if (!counts || n == 0)
        return 0;
    *ret = malloc(n * sizeof(*counts));
    if (!*ret)
        return -ENOMEM;
    memcpy(*ret, counts, n * sizeof(*counts));
    return 0;
}

void *operand_address(const struct operand *o)
{
    return o->mapping ? (char *)o->mapping->base + o->offset : NULL;
}

static int check_operand(const struct arrival *a, const char *which, const struct operand *o,
                         uint64_t bytes, struct error *e)
{
    const char *kind = collective_get(a->d.kind)->name;
    uint32_t width = dtype_get(a->d.dtype)->width;
    uint64_t end;

    if (!o->mapping)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: needs an %s tensor of %llu bytes", kind,
                         which, (unsigned long long)bytes);
    if (o->offset % width)
        return error_set(e, ERROR_MISALIGNED,
                         "%s: %s offset %llu is not a multiple of the element width %u", kind,
                         which, (unsigned long long)o->offset, width);
    if (!add_u64(o->offset, bytes, &end) || end > o->mapping->bytes)
        return error_set(e, ERROR_OUT_OF_RANGE,
                         "%s: %s of %llu bytes at offset %llu ends behind its region of %llu bytes",
                         kind, which, (unsigned long long)bytes, (unsigned long long)o->offset,
                         (unsigned long long)o->mapping->bytes);
    if (atomic_load(&o->mapping->fault))
        return error_set(e, ERROR_MEMORY_FAULT,
                         "%s: the %s's region lost its memory in an earlier operation; free it",
                         kind, which);
    return 0;
}

/* Sums that must come out, and how many rows the output has room for. */
static int check_counts(struct arrival *a, const struct post *post, struct error *e)
{
    uint64_t sum = 0;

    if (post->ncounts != a->d.nranks || (post->expected && post->nexpected != a->d.nranks))
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "all_to_all_v: %u send counts, %u expected counts; world size is %u",
                         post->ncounts, post->nexpected, a->d.nranks);
    for (uint32_t i = 0; i < a->d.nranks; i++)
        if (post->counts[i] > INT64_MAX || !add_u64(sum, post->counts[i], &sum))
            return error_set(e, ERROR_INVALID_ARGUMENT,
                             "all_to_all_v: send count %lld for rank %u is negative or too large",
                             (long long)post->counts[i], i);
    if (sum != a->d.shape.axes[0])
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "all_to_all_v: send counts add up to %llu, the input has %llu rows",
                         (unsigned long long)sum, (unsigned long long)a->d.shape.axes[0]);
    return 0;
}

/* Bytes of a shape that descriptor_check() has passed, or of rows behind it. */
static int tensor_bytes(const struct arrival *a, const struct shape *shape, uint64_t *ret,
                        struct error *e)
{
    uint64_t n, bytes;

    if (!shape_count(shape, &n) || !mul_u64(n, dtype_get(a->d.dtype)->width, &bytes))
        return error_set(e, ERROR_INVALID_SHAPE, "%s: the output has too many bytes for 64 bits",
                         collective_get(a->d.kind)->name);
    *ret = bytes;
    return 0;
}

static int check_tensors(struct arrival *a, struct error *e)
{
    const struct collective *c = collective_get(a->d.kind);
    bool root = a->rank == a->d.root;
    bool has_in = a->d.kind != COLLECTIVE_RECV && (root || !(c->flags & COLLECTIVE_IN_AT_ROOT));
    bool has_out = a->d.kind != COLLECTIVE_SEND && (root || !(c->flags & COLLECTIVE_OUT_AT_ROOT));
    struct shape in, out;
    int r;

    r = descriptor_shapes(&a->d, &in, &out, e);
    if (r < 0)
        return r;
    if (a->d.kind == COLLECTIVE_ALL_TO_ALL_V)
        out.axes[0] = a->out_rows;

    r = has_in ? tensor_bytes(a, &in, &a->in_bytes, e) : 0;
    if (r == 0 && has_out)
        r = tensor_bytes(a, &out, &a->out_bytes, e);
    if (r == 0 && a->in_bytes)
        r = check_operand(a, "input", &a->in, a->in_bytes, e);
    if (r == 0 && a->out_bytes)
        r = check_operand(a, "output", &a->out, a->out_bytes, e);
    return r;
}

static void arrival_check(struct arrival *a, const struct post *post)
{
    const struct collective *c = collective_get(a->d.kind);
    struct error *e = &a->rejection;

    if (e->code || descriptor_check(&a->d, e) < 0)
        return;
    if (c->flags & COLLECTIVE_PAIR && post->peer >= a->d.nranks) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s: peer %u is not below world size %u", c->name,
                  post->peer, a->d.nranks);
        return;
    }
    if (a->d.kind == COLLECTIVE_ALL_TO_ALL_V && check_counts(a, post, e) < 0)
        return;
    if (c->shape != SHAPE_NONE)
        check_tensors(a, e);
}

int arrival_new(const struct post *post, struct member *m, uint64_t now, struct arrival **ret)
{
    _cleanup_(arrival_freep) struct arrival *a = calloc(1, sizeof(*a));

    if (!a)
        return -ENOMEM;
    a->member = m;
    a->rank = m->rank;
    a->serial = post->serial;
    a->at_us = now;
    a->d = post->d;
    a->d.nranks = m->comm->nranks;
    a->in = (struct operand){ mapping_ref(post->in.mapping), post->in.offset };
    a->out = (struct operand){ mapping_ref(post->out.mapping), post->out.offset };
    a->out_rows = post->out_rows;
    a->color = post->color;
    a->key = post->key;
    a->child_number = post->child_number;
    a->cell = post->cell;
    a->rejection = post->rejection;
    arrival_check(a, post);

    if (!a->rejection.code && (copy_counts(post->counts, post->ncounts, &a->counts) < 0 ||
                               copy_counts(post->expected, post->nexpected, &a->expected) < 0))
        return -ENOMEM;
    /* What is not touched is not held, nor compared. */
    if (a->rejection.code || a->in_bytes == 0)
        operand_drop(&a->in);
    if (a->rejection.code || a->out_bytes == 0)
        operand_drop(&a->out);

    *ret = steal(&a);
    return 0;
}

void arrival_drop_memory(struct arrival *a)
{
    operand_drop(&a->in);
    operand_drop(&a->out);
}

struct arrival *arrival_free(struct arrival *a)
{
    if (!a)
        return NULL;
    arrival_drop_memory(a);
    free(a->counts);
    free(a->expected);
    free(a);
    return NULL;
}
