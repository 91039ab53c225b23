#include "daemon/comm/arrival.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"

void operand_drop(struct operand *o)
{
    if (!o->mapping)
        return;
    o->mapping = mapping_unref(o->mapping);
    if (o->holds)
        --*o->holds;
}

void operand_take(struct operand *o, const struct operand *from)
{
    *o = *from;
    mapping_ref(o->mapping);
    if (o->mapping && o->holds)
        ++*o->holds;
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

static void *bind(const struct operand *o, struct run_memory *m)
{
    if (!o->mapping)
        return NULL;
    m->mappings[m->nmappings++] = o->mapping;
    return (char *)o->mapping->base + o->offset;
}

void operands_bind(const struct operand *in, const struct operand *out, struct run_memory *m,
                   uint32_t part)
{
    m->in[part] = bind(in, m);
    m->out[part] = bind(out, m);
    m->stages[part] = NULL;
}

/* Of a checked arrival with a recipe: of each rank's block. */
static uint64_t block_bytes(const struct arrival *a)
{
    return MIN(a->recipe->in_bytes, a->recipe->out_bytes);
}

uint64_t operand_extent(const struct arrival *a, const struct operand *o, uint64_t bytes)
{
    uint64_t window;

    if (!o->window || !a->recipe || !mul_u64(o->window, a->recipe->width, &window))
        return bytes;
    return window < block_bytes(a) ? bytes / block_bytes(a) * window : bytes;
}

int operand_check_fault(const struct operand *o, const char *operation, const char *which,
                        struct error *e)
{
    if (!operand_is_faulty(o))
        return 0;
    return error_set(e, ERROR_MEMORY_FAULT,
                     "%s: the %s's region lost its memory in an earlier operation; free it",
                     operation, which);
}

/* What would be right instead; NULL: the window is. Of a budget that is too small nothing is. */
static const char *window_fault(const struct arrival *a, uint64_t window)
{
    const struct collective *c = collective_get(a->d.kind);
    const uint64_t chunk = descriptor_chunk(&a->d);

    if (c->shape == SHAPE_EXCHANGE || c->flags & COLLECTIVE_PAIR || a->makes_persistent)
        return "takes none";
    if (a->d.budget == BUDGET_NONE && (window < WINDOW_PIECES || window & (window - 1)))
        return "takes one of a power of two, at least 4, without a budget";
    if (a->d.budget != BUDGET_NONE && chunk && window % chunk)
        return "takes one of whole chunks with a budget";
    if (c->shape != SHAPE_SAME && window >= block_bytes(a) / a->recipe->width)
        return "takes one that is shorter than a rank's block";
    return NULL;
}

/* Where chunk k is the same interval of every block. */
static int check_window(const struct arrival *a, const char *which, const struct operand *o,
                        struct error *e)
{
    const char *fault = o->window ? window_fault(a, o->window) : NULL;

    if (!fault)
        return 0;
    return error_set(e, ERROR_INVALID_ARGUMENT, "%s: %s has a window of %llu elements, but %s",
                     collective_get(a->d.kind)->name, which, (unsigned long long)o->window, fault);
}

static int check_operand(const struct arrival *a, const char *which, const struct operand *o,
                         uint64_t tensor_bytes, struct error *e)
{
    const uint64_t bytes = operand_extent(a, o, tensor_bytes);
    uint32_t width = dtype_get(a->d.dtype)->width;
    uint64_t end;

    if (check_window(a, which, o, e) < 0)
        return -ERROR_INVALID_ARGUMENT;
    if (!o->mapping)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: needs an %s tensor of %llu bytes",
                         collective_get(a->d.kind)->name, which, (unsigned long long)bytes);
    if (o->offset % width)
        return error_set(
            e, ERROR_MISALIGNED, "%s: %s offset %llu is not a multiple of the element width %u",
            collective_get(a->d.kind)->name, which, (unsigned long long)o->offset, width);
    if (!add_u64(o->offset, bytes, &end) || end > o->mapping->bytes)
        return error_set(e, ERROR_OUT_OF_RANGE,
                         "%s: %s of %llu bytes at offset %llu ends behind its region of %llu bytes",
                         collective_get(a->d.kind)->name, which, (unsigned long long)bytes,
                         (unsigned long long)o->offset, (unsigned long long)o->mapping->bytes);
    return operand_is_faulty(o) ? operand_check_fault(o, collective_get(a->d.kind)->name, which, e)
                                : 0;
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

/* Rows of a shape that descriptor_check() has passed; those of the output are the caller's. */
static int exchange_bytes(struct arrival *a, const struct post *post, struct error *e)
{
    uint64_t row = 1, width = dtype_get(a->d.dtype)->width, rows = a->d.shape.axes[0];

    shape_row_count(&a->d.shape, &row);
    a->in_bytes = rows * row * width;
    if (a->d.kind == COLLECTIVE_ALL_TO_ALL_V)
        rows = post->out_rows;
    if (!mul_u64(rows, row * width, &a->out_bytes))
        return error_set(e, ERROR_INVALID_SHAPE, "%s: the output has too many bytes for 64 bits",
                         collective_get(a->d.kind)->name);
    return 0;
}

static int check_exchange(struct arrival *a, const struct post *post, struct error *e)
{
    int r = descriptor_check(&a->d, e);

    if (r == 0 && a->d.kind == COLLECTIVE_ALL_TO_ALL_V)
        r = check_counts(a, post, e);
    return r < 0 ? r : exchange_bytes(a, post, e);
}

/* Bytes of the tensors that this rank has of those that the descriptor speaks of. */
static int check_blocks(struct arrival *a, const struct collective *c, struct error *e)
{
    bool root = a->rank == a->d.root;
    int r;

    r = recipes_find(&a->comm->recipes, &a->d, 0, &a->recipe, e);
    if (r < 0)
        return r;
    if (a->d.kind != COLLECTIVE_RECV && (root || !(c->flags & COLLECTIVE_IN_AT_ROOT)))
        a->in_bytes = a->recipe->in_bytes;
    if (a->d.kind != COLLECTIVE_SEND && (root || !(c->flags & COLLECTIVE_OUT_AT_ROOT)))
        a->out_bytes = a->recipe->out_bytes;
    return 0;
}

/* What can be made persistent: what moves the same blocks at every start. */
static int check_persistent(const struct collective *c, struct error *e)
{
    if (c->shape == SHAPE_NONE || c->shape == SHAPE_EXCHANGE || c->flags & COLLECTIVE_PAIR)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: cannot be made persistent", c->name);
    return 0;
}

static int check_split(const struct comms *comms, struct error *e)
{
    return comms->stopping ? error_set(e, ERROR_DAEMON_STOPPING, "split: the daemon is stopping")
                           : 0;
}

static int arrival_check(struct arrival *a, const struct post *post, struct error *e)
{
    const struct collective *c = collective_get(a->d.kind);
    int r;

    if (!c)
        return descriptor_check(&a->d, e);
    if (a->d.kind == COLLECTIVE_SPLIT && check_split(a->comm->comms, e) < 0)
        return -ERROR_DAEMON_STOPPING;
    if (a->makes_persistent && check_persistent(c, e) < 0)
        return -ERROR_INVALID_ARGUMENT;
    r = c->shape == SHAPE_EXCHANGE ? check_exchange(a, post, e) : check_blocks(a, c, e);
    if (r == 0 && c->flags & COLLECTIVE_PAIR && post->peer >= a->d.nranks)
        r = error_set(e, ERROR_INVALID_ARGUMENT, "%s: peer %u is not below world size %u", c->name,
                      post->peer, a->d.nranks);
    if (r == 0 && a->in_bytes)
        r = check_operand(a, "input", &post->in, a->in_bytes, e);
    if (r == 0 && a->out_bytes)
        r = check_operand(a, "output", &post->out, a->out_bytes, e);
    return r;
}

/* ---- */

static struct arrival *alloc(struct comm *c)
{
    struct arrival *a = spares_take(&c->spare_arrivals);

    return a ? a : malloc(sizeof(*a));
}

int arrival_reject(struct arrival *a, const struct error *why)
{
    if (a->rejection)
        return 0;
    a->rejection = malloc(sizeof(*a->rejection));
    if (!a->rejection)
        return -ENOMEM;
    *a->rejection = *why;
    return 0;
}

/* What is not touched is not held, nor compared. */
static int arrival_take(struct arrival *a, const struct post *post)
{
    if (copy_counts(post->counts, post->ncounts, &a->counts) < 0 ||
        copy_counts(post->expected, post->nexpected, &a->expected) < 0)
        return -ENOMEM;
    if (a->in_bytes)
        operand_take(&a->in, &post->in);
    if (a->out_bytes)
        operand_take(&a->out, &post->out);
    a->stage.in_window = a->in.window;
    a->stage.out_window = a->out.window;
    return 0;
}

/* Everything but `d`, field by field: to clear the whole takes longer than a start's other steps.
 */
static void arrival_init(struct arrival *a, struct member *m, uint64_t serial, uint64_t now)
{
    a->comm = m->comm;
    a->member = m;
    a->rank = m->rank;
    a->serial = serial;
    a->at_us = now;
    a->recipe = NULL;
    a->in = a->out = (struct operand){ 0 };
    a->in_bytes = a->out_bytes = a->out_rows = 0;
    a->stage = (struct run_stage){ 0 };
    a->told = 0;
    a->counts = a->expected = NULL;
    a->color = a->key = 0;
    a->child_number = 0;
    a->makes_persistent = false;
    a->starts = 0;
    a->rejection = NULL;
}

/* Who is told how far it is, what it waits for, and who is told when it is done. */
static void arrival_attach(struct arrival *a, struct progress_cell *cell, struct fence *fence,
                           const struct signal *signal)
{
    a->cell = cell;
    a->fence = fence_ref(fence);
    a->signal = *signal;
    mapping_ref(signal->cells);
}

int arrival_new(const struct post *post, struct member *m, uint64_t now, struct arrival **ret)
{
    _cleanup_(arrival_freep) struct arrival *a = alloc(m->comm);
    struct error e;
    int r;

    if (!a)
        return -ENOMEM;
    arrival_init(a, m, post->serial, now);
    arrival_attach(a, post->cell, post->fence, &post->signal);
    a->out_rows = post->out_rows;
    a->color = post->color;
    a->key = post->key;
    a->child_number = post->child_number;
    a->makes_persistent = post->persistent;
    a->d = post->d;
    a->d.nranks = m->comm->nranks;

    error_clear(&e);
    if (post->rejection)
        r = arrival_reject(a, post->rejection);
    else if (arrival_check(a, post, &e) < 0)
        r = arrival_reject(a, &e);
    else
        r = arrival_take(a, post);
    if (r < 0)
        return r;
    *ret = steal(&a);
    return 0;
}

int arrival_new_start(const struct start *start, enum collective_id kind, struct member *m,
                      uint64_t now, struct arrival **ret)
{
    struct arrival *a = alloc(m->comm);

    if (!a)
        return -ENOMEM;
    arrival_init(a, m, start->serial, now);
    arrival_attach(a, start->cell, start->fence, &start->signal);
    a->d = (struct descriptor){ .kind = kind }; /* all of it is told to other nodes */
    a->starts = start->id;
    *ret = a;
    return 0;
}

void arrival_drop_memory(struct arrival *a)
{
    operand_drop(&a->in);
    operand_drop(&a->out);
    a->fence = fence_unref(a->fence);
    a->signal.cells = mapping_unref(a->signal.cells);
}

struct arrival *arrival_free(struct arrival *a)
{
    if (!a)
        return NULL;
    arrival_drop_memory(a);
    recipe_unref(a->recipe);
    free(a->counts);
    free(a->expected);
    free(a->rejection);
    spares_give(&a->comm->spare_arrivals, a);
    return NULL;
}
