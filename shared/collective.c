#include "shared/collective.h"

#include <string.h>

static const struct collective collectives[COLLECTIVE_END] = {
#define COLLECTIVE_ROW(ID, cname, number, rule, cflags)                                            \
    [number] = { #cname, SHAPE_##rule, cflags },
    COLLECTIVE_LIST(COLLECTIVE_ROW)
#undef COLLECTIVE_ROW
};

static const char *const operators[OPERATOR_END] = {
#define OPERATOR_ROW(ID, name, number) [number] = #name,
    OPERATOR_LIST(OPERATOR_ROW)
#undef OPERATOR_ROW
};

const struct collective *collective_get(uint32_t id)
{
    return id < COLLECTIVE_END && collectives[id].name ? &collectives[id] : NULL;
}

const char *operator_name(uint32_t id)
{
    return id < OPERATOR_END ? operators[id] : NULL;
}

enum collective_id collective_by_name(const char *name)
{
    for (uint32_t i = 1; i < COLLECTIVE_END; i++)
        if (collectives[i].name && !strcmp(collectives[i].name, name))
            return (enum collective_id)i;
    return COLLECTIVE_NONE;
}

enum operator_id operator_by_name(const char *name)
{
    for (uint32_t i = 1; i < OPERATOR_END; i++)
        if (operators[i] && !strcmp(operators[i], name))
            return (enum operator_id)i;
    return OPERATOR_NONE;
}

void text_add_operators(struct text *t)
{
    for (uint32_t i = 1; i < OPERATOR_END; i++)
        if (operators[i])
            text_add_item(t, operators[i]);
}

static bool axes_product(const struct shape *s, uint32_t first, uint64_t *ret)
{
    uint64_t n = 1;
    bool fits = true;

    for (uint32_t i = first; i < s->naxes; i++) {
        /* A zero makes the whole empty, however large the others are. */
        if (s->axes[i] == 0) {
            *ret = 0;
            return true;
        }
        fits = fits && mul_u64(n, s->axes[i], &n);
    }
    if (fits)
        *ret = n;
    return fits;
}

bool shape_count(const struct shape *s, uint64_t *ret)
{
    return axes_product(s, 0, ret);
}

bool shape_row_count(const struct shape *s, uint64_t *ret)
{
    return axes_product(s, 1, ret);
}

bool shape_equal(const struct shape *a, const struct shape *b)
{
    if (a->naxes != b->naxes)
        return false;
    for (uint32_t i = 0; i < a->naxes; i++)
        if (a->axes[i] != b->axes[i])
            return false;
    return true;
}

void text_add_shape(struct text *t, const struct shape *s)
{
    text_add(t, "[");
    for (uint32_t i = 0; i < s->naxes; i++)
        text_add(t, "%s%llu", i ? ", " : "", (unsigned long long)s->axes[i]);
    text_add(t, "]");
}

static int shape_error(const struct descriptor *d, struct error *e, const struct shape *s,
                       const char *what)
{
    struct text t = { 0 };

    text_add_shape(&t, s);
    return error_set(e, ERROR_INVALID_SHAPE, "%s: shape %s %s", collective_get(d->kind)->name, t.s,
                     what);
}

static int rows_times(const struct descriptor *d, uint64_t *ret, struct error *e)
{
    if (d->shape.naxes == 0)
        return shape_error(d, e, &d->shape, "has no axis 0 to hold a block of every rank");
    if (!mul_u64(d->shape.axes[0], d->nranks, ret))
        return shape_error(d, e, &d->shape, "times the world size does not fit in 64 bits");
    return 0;
}

static int indivisible(const struct descriptor *d, struct error *e)
{
    struct text t = { 0 };

    text_add(&t, "cannot be scattered: axis 0 is not divisible by world size %u", d->nranks);
    return shape_error(d, e, &d->shape, t.s);
}

static int rows_over(const struct descriptor *d, uint64_t *ret, struct error *e)
{
    if (d->shape.naxes == 0)
        return shape_error(d, e, &d->shape, "has no axis 0 to cut into a block for every rank");
    if (d->shape.axes[0] % d->nranks)
        return indivisible(d, e);
    *ret = d->shape.axes[0] / d->nranks;
    return 0;
}

/* Axis 0 of both tensors, in which alone they differ from the agreed shape; 0: they have none. */
static int descriptor_rows(const struct descriptor *d, uint64_t *ret_in, uint64_t *ret_out,
                           struct error *e)
{
    const struct collective *c = collective_get(d->kind);

    *ret_in = *ret_out = d->shape.naxes ? d->shape.axes[0] : 0;
    switch (c->shape) {
    case SHAPE_NONE:
    case SHAPE_SAME:
        return 0;
    case SHAPE_TIMES_R:
        return rows_times(d, ret_out, e);
    case SHAPE_OVER_R:
        /* scatter agrees on the output's shape, reduce_scatter on the input's */
        return c->flags & COLLECTIVE_IN_AT_ROOT ? rows_times(d, ret_in, e)
                                                : rows_over(d, ret_out, e);
    case SHAPE_EXCHANGE:
        if (d->shape.naxes == 0)
            return shape_error(d, e, &d->shape, "has no axis 0 of rows to exchange");
    }
    return 0;
}

static struct shape shape_of_rows(const struct descriptor *d, uint64_t rows)
{
    struct shape s = d->shape;

    if (s.naxes > 0)
        s.axes[0] = rows;
    return s;
}

int descriptor_shapes(const struct descriptor *d, struct shape *ret_in, struct shape *ret_out,
                      struct error *e)
{
    uint64_t in, out;
    int r = descriptor_rows(d, &in, &out, e);

    if (r < 0)
        return r;
    *ret_in = shape_of_rows(d, in);
    *ret_out = shape_of_rows(d, out);
    return 0;
}

static int check_op(const struct descriptor *d, struct error *e)
{
    const struct dtype *t = dtype_get(d->dtype);
    const char *kind = collective_get(d->kind)->name, *op = operator_name(d->op);

    if (!op)
        return error_set(e, ERROR_INVALID_OPERATION, "%s: op %u is not a known operation", kind,
                         d->op);
    if (t->class == DTYPE_CLASS_OPAQUE)
        return error_set(e, ERROR_UNSUPPORTED_DTYPE,
                         "%s: %s is moved, never reduced; use a type that has arithmetic", kind,
                         t->name);
    if (d->op == OPERATOR_MEAN && t->class != DTYPE_CLASS_FLOAT)
        return error_set(e, ERROR_INVALID_OPERATION,
                         "%s: mean of %s is not defined; use sum, or a floating type", kind,
                         t->name);
    if (d->op >= OPERATOR_AND && !dtype_is_integer(t))
        return error_set(e, ERROR_INVALID_OPERATION,
                         "%s: bitwise %s of %s is not defined; use an integer type", kind, op,
                         t->name);
    return 0;
}

static int too_large(const struct descriptor *d, uint64_t rows, struct error *e)
{
    const struct shape s = shape_of_rows(d, rows);

    return shape_error(d, e, &s, "has more bytes than fit in 63 bits");
}

static int measure_rows(const struct descriptor *d, uint64_t rows, struct tensor_extent *ret,
                        struct error *e)
{
    uint64_t bytes = dtype_get(d->dtype)->width;
    bool fits = true, empty = false;

    for (uint32_t i = 0; i < d->shape.naxes; i++) {
        const uint64_t axis = i == 0 ? rows : d->shape.axes[i];

        /* A zero makes the whole empty, however large the others are. */
        empty = empty || axis == 0;
        fits = fits && mul_u64(bytes, axis, &bytes);
    }
    if (!empty && (!fits || bytes > INT64_MAX))
        return too_large(d, rows, e);
    ret->rows = rows;
    ret->bytes = empty ? 0 : bytes;
    return 0;
}

static int check_exchange(const struct descriptor *d, struct error *e)
{
    const uint64_t width = dtype_get(d->dtype)->width;
    uint64_t n, bytes;

    /* of a rank without rows too: its row is everyone's */
    if (!shape_row_count(&d->shape, &n) || !mul_u64(n, width, &bytes) || bytes > INT64_MAX)
        return shape_error(d, e, &d->shape, "has rows of more bytes than fit in 63 bits");
    if (n == 0)
        return shape_error(d, e, &d->shape, "has rows of no elements");
    if (d->kind == COLLECTIVE_ALL_TO_ALL && d->shape.axes[0] % d->nranks)
        return shape_error(d, e, &d->shape, "has an axis 0 that the world size does not divide");
    return 0;
}

static int measure(const struct descriptor *d, struct tensor_extent *ret_in,
                   struct tensor_extent *ret_out, struct error *e)
{
    uint64_t in_rows, out_rows;
    struct tensor_extent in, out;
    int r = descriptor_rows(d, &in_rows, &out_rows, e);

    if (r == 0)
        r = measure_rows(d, in_rows, &in, e);
    if (r == 0)
        r = measure_rows(d, out_rows, &out, e);
    if (r == 0 && collective_get(d->kind)->shape == SHAPE_EXCHANGE)
        r = check_exchange(d, e);
    if (r < 0)
        return r;
    *ret_in = in;
    *ret_out = out;
    return 0;
}

int descriptor_measure(const struct descriptor *d, struct tensor_extent *ret_in,
                       struct tensor_extent *ret_out, struct error *e)
{
    const struct collective *c = collective_get(d->kind);
    int r = 0;

    if (!c)
        return error_set(e, ERROR_INVALID_ARGUMENT, "collective %u is not known", d->kind);
    if (d->nranks == 0 || d->nranks > RANKS_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "%s: world size %u is not between 1 and %u",
                         c->name, d->nranks, RANKS_MAX);
    if (c->shape == SHAPE_NONE) {
        *ret_in = *ret_out = (struct tensor_extent){ 0 };
        return 0;
    }
    if (!dtype_get(d->dtype))
        return error_set(e, ERROR_UNSUPPORTED_DTYPE, "%s: dtype %u is not known", c->name,
                         d->dtype);
    if (d->shape.naxes > AXES_MAX)
        return error_set(e, ERROR_INVALID_SHAPE, "%s: %u axes, more than %u", c->name,
                         d->shape.naxes, AXES_MAX);
    if (c->flags & COLLECTIVE_HAS_OP)
        r = check_op(d, e);
    if (r < 0)
        return r;
    if (c->flags & COLLECTIVE_HAS_ROOT && d->root >= d->nranks)
        return error_set(e, ERROR_INVALID_ROOT, "%s: root %u is not below world size %u", c->name,
                         d->root, d->nranks);
    return measure(d, ret_in, ret_out, e);
}

int descriptor_check(const struct descriptor *d, struct error *e)
{
    struct tensor_extent in, out;

    return descriptor_measure(d, &in, &out, e);
}

/* What one rank sends to all is a single message in flight. */
uint32_t descriptor_sharers(const struct descriptor *d)
{
    switch (d->kind) {
    case COLLECTIVE_BROADCAST:
    case COLLECTIVE_SEND:
    case COLLECTIVE_RECV:
        return 1;
    default:
        return d->nranks;
    }
}

uint64_t descriptor_chunk(const struct descriptor *d)
{
    return d->budget / descriptor_sharers(d) / dtype_get(d->dtype)->width;
}

uint64_t descriptor_block(const struct descriptor *d)
{
    struct shape in, out;
    uint64_t n = 0;

    descriptor_shapes(d, &in, &out, NULL);
    shape_count(collective_get(d->kind)->shape == SHAPE_OVER_R ? &out : &in, &n);
    return n;
}
