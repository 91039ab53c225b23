#include "daemon/plan/recipe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/price.h"

/* ---- one */

static void forget_plans(struct recipe *r)
{
    for (size_t i = 0; i < ARRAY_SIZE(r->plans); i++)
        plan_fini(&r->plans[i]);
    r->contents = contents_free(r->contents);
}

static struct recipe *recipe_new(const struct descriptor *d, uint64_t piece)
{
    struct recipe *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    list_init(&r->link);
    r->refs = 1;
    r->d = *d;
    r->piece = piece;
    r->full = r->last = r->tail = &r->plans[0];
    return r;
}

struct recipe *recipe_ref(struct recipe *r)
{
    r->refs++;
    return r;
}

struct recipe *recipe_unref(struct recipe *r)
{
    if (r && --r->refs == 0) {
        forget_plans(r);
        free(r);
    }
    return NULL;
}

/* descriptor_check() has seen that nothing here overflows. */
static void recipe_measure(struct recipe *r)
{
    struct shape in, out;

    r->width = 1;
    if (collective_get(r->d.kind)->shape == SHAPE_NONE)
        return;
    r->width = dtype_get(r->d.dtype)->width;
    descriptor_shapes(&r->d, &in, &out, NULL);
    shape_count(&in, &r->in_bytes);
    shape_count(&out, &r->out_bytes);
    r->in_bytes *= r->width;
    r->out_bytes *= r->width;
}

/* The ranks that a plan has here. */
static uint32_t ranks_here(const struct recipe *r, const struct frame *f)
{
    if (collective_get(r->d.kind)->flags & COLLECTIVE_PAIR)
        return 2;
    return f->nodes ? placement_count(f->nodes, f->node) : r->d.nranks;
}

static int emit(const struct recipe *r, const struct frame *f, uint64_t count, struct plan *ret)
{
    const bool pair = collective_get(r->d.kind)->flags & COLLECTIVE_PAIR;
    const struct plan_args args = { .kind = r->d.kind,
                                    .nranks = pair ? 2 : r->d.nranks,
                                    .root = r->d.root,
                                    .stride = r->choice.chunking.n,
                                    .count = count,
                                    .nodes = pair ? NULL : f->nodes,
                                    .node = f->node };

    plan_init(ret, ranks_here(r, f));
    return r->choice.algorithm->emit(ret, &args);
}

/* How long the last of the pieces that `n` elements are cut into is. */
static uint64_t last_piece(uint64_t n, uint64_t piece)
{
    return n % piece ? n % piece : piece;
}

static int emit_all(struct recipe *r, const struct frame *f)
{
    const struct chunking *c = &r->choice.chunking;
    const uint64_t piece = r->choice.piece_length, end = chunk_count(c, c->chunks - 1);
    const uint64_t counts[] = { MIN(piece, c->n), last_piece(MIN(c->length, c->n), piece),
                                last_piece(end, piece) };
    const struct plan **plans[] = { &r->full, &r->last, &r->tail };

    for (size_t i = 0; i < ARRAY_SIZE(plans); i++) {
        size_t same = 0;

        while (counts[same] != counts[i])
            same++;
        if (same == i && emit(r, f, counts[i], &r->plans[i]) < 0)
            return -ENOMEM;
        *plans[i] = &r->plans[same];
    }
    return 0;
}

/* Only a single piece may be sent as letters, and only where each node tells each. */
static int list_contents(struct recipe *r, const struct frame *f)
{
    const struct choice *c = &r->choice;

    if (!f->nodes || f->nodes->nnodes > f->table->tree_above ||
        collective_get(r->d.kind)->flags & COLLECTIVE_PAIR || c->chunking.chunks > 1 ||
        c->piece_length < c->chunking.length)
        return 0;
    return contents_new(r->tail, f->nodes->nnodes, r->width,
                        r->width * price_wide(r->d.op, r->d.dtype), &r->contents);
}

int recipe_decide(struct recipe *r, const struct frame *f, struct error *e)
{
    const struct collective *c = collective_get(r->d.kind);
    const struct choice_spec spec = { .d = &r->d, .chunk_length = r->piece };
    int result;

    if (r->decided)
        return 0;
    if (c->shape != SHAPE_NONE) {
        result = choice_make(&spec, f, &r->choice, e);
        if (result < 0)
            return result;
    }
    if (r->choice.chunking.chunks && (emit_all(r, f) < 0 || list_contents(r, f) < 0)) {
        forget_plans(r);
        return error_set(e, ERROR_NO_MEMORY, "%s: no memory for a plan", c->name);
    }
    r->decided = true;
    return 0;
}

/* ---- the latest */

static bool descriptor_equal(const struct descriptor *a, const struct descriptor *b)
{
    return a->kind == b->kind && a->op == b->op && a->dtype == b->dtype && a->root == b->root &&
           a->budget == b->budget && a->nranks == b->nranks && shape_equal(&a->shape, &b->shape);
}

void recipes_init(struct recipes *l)
{
    list_init(&l->list);
    l->n = 0;
}

static void drop(struct recipes *l, struct recipe *r)
{
    list_remove(&r->link);
    l->n--;
    recipe_unref(r);
}

void recipes_fini(struct recipes *l)
{
    while (!list_empty(&l->list))
        drop(l, list_first(&l->list, struct recipe, link));
}

static uint64_t list_steps(const struct recipes *l)
{
    const struct recipe *r;
    uint64_t n = 0;

    list_for_each(r, &l->list, link)
        for (size_t i = 0; i < ARRAY_SIZE(r->plans); i++)
            n += r->plans[i].nsteps;
    return n;
}

/* Makes room for one more. Steps are counted here, since most recipes are decided after they came.
 */
static void trim(struct recipes *l)
{
    while (l->n && (l->n >= RECIPES_MAX || list_steps(l) > RECIPES_STEPS_MAX))
        drop(l, container_of(l->list.prev, struct recipe, link));
}

int recipes_find(struct recipes *l, const struct descriptor *d, uint64_t piece, struct recipe **ret,
                 struct error *e)
{
    struct recipe *r;
    int result;

    list_for_each(r, &l->list, link) {
        if (r->piece != piece || !descriptor_equal(&r->d, d))
            continue;
        if (l->list.next != &r->link) {
            list_remove(&r->link);
            list_prepend(&l->list, &r->link);
        }
        *ret = recipe_ref(r);
        return 0;
    }

    result = descriptor_check(d, e);
    if (result < 0)
        return result;
    r = recipe_new(d, piece);
    if (!r)
        return error_set(e, ERROR_NO_MEMORY, "%s: no memory for its plan",
                         collective_get(d->kind)->name);
    recipe_measure(r);
    trim(l);
    list_prepend(&l->list, &r->link);
    l->n++;
    *ret = recipe_ref(r);
    return 0;
}
