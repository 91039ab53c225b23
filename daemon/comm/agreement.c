#include "daemon/comm/agreement.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/arrival.h"

/* Distinct answers that one sentence spells out. */
#define ANSWERS_MAX 4u

/* Tensors that are compared without an allocation. */
#define EXTENTS_FEW 32u

struct field {
    const char *name;
    bool (*applies)(const struct collective *c);
    bool (*equal)(const struct view *a, const struct view *b);
    void (*print)(struct text *t, const struct view *a);
};

static bool not_pair(const struct collective *c)
{
    return !(c->flags & COLLECTIVE_PAIR);
}

static bool has_op(const struct collective *c)
{
    return c->flags & COLLECTIVE_HAS_OP;
}

static bool has_root(const struct collective *c)
{
    return c->flags & COLLECTIVE_HAS_ROOT;
}

static bool has_tensors(const struct collective *c)
{
    return c->shape != SHAPE_NONE;
}

static bool has_budget(const struct collective *c)
{
    return has_tensors(c) && not_pair(c);
}

static bool kind_equal(const struct view *a, const struct view *b)
{
    return a->d->kind == b->d->kind && a->starts == b->starts &&
           a->makes_persistent == b->makes_persistent;
}

static void kind_print(struct text *t, const struct view *a)
{
    if (a->starts)
        text_add(t, "persistent operation %u", a->starts);
    else
        text_add(t, "%s%s", a->makes_persistent ? "persistent " : "",
                 collective_get(a->d->kind)->name);
}

static bool op_equal(const struct view *a, const struct view *b)
{
    return a->d->op == b->d->op;
}

static void op_print(struct text *t, const struct view *a)
{
    text_add(t, "%s", operator_name(a->d->op));
}

static bool dtype_equal(const struct view *a, const struct view *b)
{
    return a->d->dtype == b->d->dtype;
}

static void dtype_print(struct text *t, const struct view *a)
{
    text_add(t, "%s", dtype_get(a->d->dtype)->name);
}

static bool naxes_equal(const struct view *a, const struct view *b)
{
    return a->d->shape.naxes == b->d->shape.naxes;
}

static void naxes_print(struct text *t, const struct view *a)
{
    text_add(t, "%u", a->d->shape.naxes);
}

static bool axes_equal(const struct view *a, const struct view *b)
{
    uint32_t first = collective_get(a->d->kind)->flags & COLLECTIVE_ROWS ? 1 : 0;

    for (uint32_t i = first; i < a->d->shape.naxes; i++)
        if (a->d->shape.axes[i] != b->d->shape.axes[i])
            return false;
    return true;
}

static void axes_print(struct text *t, const struct view *a)
{
    text_add_shape(t, &a->d->shape);
}

static bool root_equal(const struct view *a, const struct view *b)
{
    return a->d->root == b->d->root;
}

static void root_print(struct text *t, const struct view *a)
{
    text_add(t, "%u", a->d->root);
}

static bool budget_equal(const struct view *a, const struct view *b)
{
    return a->d->budget == b->d->budget;
}

static void budget_print(struct text *t, const struct view *a)
{
    if (a->d->budget == BUDGET_NONE)
        text_add(t, "none");
    else
        text_add(t, "%llu bytes", (unsigned long long)a->d->budget);
}

/* In the order of comparison: a field is only looked at where those before it agree. */
static const struct field fields[] = {
    { "collective", not_pair, kind_equal, kind_print },
    { "op", has_op, op_equal, op_print },
    { "dtype", has_tensors, dtype_equal, dtype_print },
    { "number of axes", has_tensors, naxes_equal, naxes_print },
    { "shape", has_tensors, axes_equal, axes_print },
    { "root", has_root, root_equal, root_print },
    { "budget", has_budget, budget_equal, budget_print },
};

/* Finds the parts that give the answer `like` gives; returns how many. */
static uint32_t same_answer(const struct field *f, const struct view *views, uint32_t n,
                            const struct view *like, uint32_t *ret_ranks)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i++)
        if (f->equal(&views[i], like))
            ret_ranks[count++] = views[i].rank;
    return count;
}

static bool answered_before(const struct field *f, const struct view *views, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++)
        if (f->equal(&views[i], &views[j]))
            return true;
    return false;
}

/* Names every answer and who gave it; those who did not give the commonest are the ranks concerned.
 */
static int mismatch_error(const struct field *f, const struct view *views, uint32_t n,
                          struct error *e)
{
    uint32_t *ranks = malloc(n * sizeof(*ranks));
    struct text t = { 0 };
    uint32_t answers = 0, most = 0, commonest = 0;

    if (!ranks)
        return error_set(e, ERROR_NO_MEMORY, "no memory to compare the ranks");
    for (uint32_t i = 0; i < n && answers <= ANSWERS_MAX; i++) {
        if (answered_before(f, views, i))
            continue;
        if (++answers > ANSWERS_MAX) {
            text_add(&t, "; others said otherwise");
            break;
        }
        uint32_t count = same_answer(f, views, n, &views[i], ranks);

        if (count > most) {
            most = count;
            commonest = i;
        }
        text_add(&t, "%s", answers > 1 ? "; " : "");
        text_add_ranks(&t, ranks, count);
        text_add(&t, " said ");
        f->print(&t, &views[i]);
    }
    free(ranks);

    error_set(e, ERROR_MISMATCH, "ranks disagree on the %s: %s", f->name, t.s);
    for (uint32_t i = 0; i < n; i++)
        if (!f->equal(&views[i], &views[commonest]))
            error_add_rank(e, views[i].rank);
    return -ERROR_MISMATCH;
}

/* The sentence without the collective's name in front, which the title has. */
static const char *bare(const struct view *a, const char *text)
{
    const struct collective *c = collective_get(a->d->kind);
    size_t n = c ? strlen(c->name) : 0;

    return c && !strncmp(text, c->name, n) && !strncmp(text + n, ": ", 2) ? text + n + 2 : text;
}

static int check_rejections(const struct view *views, uint32_t n, struct error *e)
{
    const struct error *first = NULL;
    const char *sentence = NULL;
    struct error rejected = { 0 };
    struct text who = { 0 };

    for (uint32_t i = 0; i < n; i++) {
        const struct error *own = views[i].rejection;

        if (!own)
            continue;
        if (!first) {
            first = own;
            sentence = bare(&views[i], own->text);
        }
        if (own->code == first->code && !strcmp(own->text, first->text))
            error_add_rank(&rejected, views[i].rank);
    }
    if (!first)
        return 0;

    if (rejected.nranks < n) {
        text_add_ranks(&who, rejected.ranks, MIN(rejected.nranks, ERROR_RANKS_MAX));
        text_add(&who, ": ");
    }
    rejected.code = ERROR_NONE;
    error_set(&rejected, first->code, "%s%s", who.s, sentence);
    if (!e->code)
        *e = rejected;
    return -(int)first->code;
}

static int check_fields(const struct view *views, uint32_t n, struct error *e)
{
    const struct collective *c = collective_get(views[0].d->kind);

    for (size_t f = 0; f < ARRAY_SIZE(fields); f++) {
        if (!fields[f].applies(c))
            continue;
        for (uint32_t i = 1; i < n; i++)
            if (!fields[f].equal(&views[i], &views[0]))
                return mismatch_error(&fields[f], views, n, e);
    }
    return 0;
}

/* An interval of one memory that one rank's tensor, or both in place, lie in. */
struct extent {
    dev_t dev;
    ino_t ino;
    uint64_t first, end;
    uint32_t rank;
};

static bool same_memory(const struct operand *a, const struct operand *b)
{
    return a->mapping->dev == b->mapping->dev && a->mapping->ino == b->mapping->ino;
}

static bool in_place(const struct arrival *a)
{
    if (!a->in.mapping || !a->out.mapping || !same_memory(&a->in, &a->out))
        return false;
    switch (a->d.kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST:
        return a->in.offset == a->out.offset && a->in.window == a->out.window;
    case COLLECTIVE_ALL_GATHER:
        return !arrival_has_window(a) && a->in.offset == a->out.offset + a->rank * a->in_bytes;
    case COLLECTIVE_REDUCE_SCATTER:
        return !arrival_has_window(a) && a->out.offset == a->in.offset + a->rank * a->out_bytes;
    default:
        return false;
    }
}

static void add_extent(struct extent *x, uint32_t *n, const struct arrival *a,
                       const struct operand *o, uint64_t bytes)
{
    if (o->mapping)
        x[(*n)++] = (struct extent){ o->mapping->dev, o->mapping->ino, o->offset,
                                     o->offset + operand_extent(a, o, bytes), a->rank };
}

static int extent_compare(const void *a, const void *b)
{
    const struct extent *x = a, *y = b;

    if (x->dev != y->dev)
        return x->dev < y->dev ? -1 : 1;
    if (x->ino != y->ino)
        return x->ino < y->ino ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* Memory is often made in the order of ranks, and few are sorted sooner where they are. */
static void extents_sort(struct extent *x, uint32_t n)
{
    uint32_t sorted = 1;

    while (sorted < n && extent_compare(&x[sorted - 1], &x[sorted]) <= 0)
        sorted++;
    if (n > EXTENTS_FEW && sorted < n) {
        qsort(x, n, sizeof(*x), extent_compare);
        return;
    }
    for (uint32_t i = sorted; i < n; i++) {
        struct extent e = x[i];
        uint32_t k = i;

        for (; k > 0 && extent_compare(&x[k - 1], &e) > 0; k--)
            x[k] = x[k - 1];
        if (k < i)
            x[k] = e;
    }
}

static int overlap_error(const struct extent *a, const struct extent *b, struct error *e)
{
    if (a->rank == b->rank)
        error_set(e, ERROR_OVERLAP,
                  "input and output of rank %u overlap in a way that is not in place", a->rank);
    else
        error_set(e, ERROR_OVERLAP, "tensors of ranks %u and %u share memory",
                  MIN(a->rank, b->rank), MAX(a->rank, b->rank));
    error_add_rank(e, MIN(a->rank, b->rank));
    if (a->rank != b->rank)
        error_add_rank(e, MAX(a->rank, b->rank));
    return -ERROR_OVERLAP;
}

int agreement_check_memory(struct arrival *const *arrivals, uint32_t n, struct error *e)
{
    struct extent few[EXTENTS_FEW], *x = few;
    uint32_t count = 0;
    int r = 0;

    if (2 * n > ARRAY_SIZE(few))
        x = malloc(2 * (size_t)n * sizeof(*x));
    if (!x)
        return error_set(e, ERROR_NO_MEMORY, "no memory to compare the tensors");
    for (uint32_t i = 0; i < n; i++) {
        const struct arrival *a = arrivals[i];
        bool once = in_place(a);

        if (!once || a->in_bytes >= a->out_bytes)
            add_extent(x, &count, a, &a->in, a->in_bytes);
        if (!once || a->in_bytes < a->out_bytes)
            add_extent(x, &count, a, &a->out, a->out_bytes);
    }
    extents_sort(x, count);
    for (uint32_t i = 1, widest = 0; i < count && r == 0; i++) {
        const struct extent *w = &x[widest];

        if (w->dev == x[i].dev && w->ino == x[i].ino) {
            if (x[i].first < w->end)
                r = overlap_error(w, &x[i], e);
            if (x[i].end <= w->end)
                continue;
        }
        widest = i;
    }
    if (x != few)
        free(x);
    return r;
}

static int check_received(const struct view *views, uint32_t n, uint32_t to, struct error *e)
{
    const struct view *v = &views[to];
    uint64_t rows = 0;

    for (uint32_t s = 0; s < n; s++) {
        uint64_t count = views[s].counts[to];

        if (v->expected && v->expected[s] != count) {
            error_set(e, ERROR_UNEXPECTED_COUNTS,
                      "rank %u expected %llu rows from rank %u, which sends it %llu", to,
                      (unsigned long long)v->expected[s], s, (unsigned long long)count);
            error_add_rank(e, to);
            return -ERROR_UNEXPECTED_COUNTS;
        }
        if (!add_u64(rows, count, &rows)) {
            error_set(e, ERROR_INVALID_ARGUMENT, "the rows for rank %u do not add up in 64 bits",
                      to);
            error_add_rank(e, to);
            return -ERROR_INVALID_ARGUMENT;
        }
    }
    if (rows > v->out_rows) {
        error_set(e, ERROR_CAPACITY, "the output of rank %u has room for %llu rows and needs %llu",
                  to, (unsigned long long)v->out_rows, (unsigned long long)rows);
        error_add_rank(e, to);
        return -ERROR_CAPACITY;
    }
    return 0;
}

int agreement_check_counts(const struct view *views, uint32_t n, struct error *e)
{
    int r = 0;

    if (views[0].d->kind == COLLECTIVE_ALL_TO_ALL_V)
        for (uint32_t to = 0; to < n && r == 0; to++)
            r = check_received(views, n, to, e);
    return r;
}

bool arrivals_alike(struct arrival *const *arrivals, uint32_t n)
{
    const struct arrival *first = arrivals[0];

    for (uint32_t i = 0; i < n; i++) {
        const struct arrival *a = arrivals[i];

        if (a->rejection || a->recipe != first->recipe || a->starts != first->starts ||
            a->makes_persistent != first->makes_persistent)
            return false;
    }
    return first->recipe || first->starts;
}

struct view view_of(const struct arrival *a)
{
    return (struct view){ .rank = a->rank,
                          .d = &a->d,
                          .makes_persistent = a->makes_persistent,
                          .starts = a->starts,
                          .rejection = a->rejection,
                          .counts = a->counts,
                          .expected = a->expected,
                          .out_rows = a->out_rows };
}

int agreement_check(const struct view *views, uint32_t n, struct error *e)
{
    int r = check_rejections(views, n, e);

    return r < 0 ? r : check_fields(views, n, e);
}
