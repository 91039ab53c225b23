#include "daemon/plan/recipe.h"

#include <stdlib.h>
#include <string.h>

/* ---- one */

static struct recipe *recipe_new(const struct descriptor *d, uint64_t piece)
{
    struct recipe *r = calloc(1, sizeof(*r));

    if (!r)
        return NULL;
    list_init(&r->link);
    r->refs = 1;
    r->d = *d;
    r->piece = piece;
    plan_init(&r->full, d->nranks);
    plan_init(&r->tail, d->nranks);
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
        plan_fini(&r->full);
        plan_fini(&r->tail);
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

static int emit(const struct recipe *r, struct plan *plan, uint64_t chunk)
{
    const bool pair = collective_get(r->d.kind)->flags & COLLECTIVE_PAIR;
    const struct plan_args args = { .kind = r->d.kind,
                                    .nranks = pair ? 2 : r->d.nranks,
                                    .root = r->d.root,
                                    .stride = r->chunking.n,
                                    .count = chunk_count(&r->chunking, chunk) };

    plan->nranks = args.nranks;
    plan_clear(plan);
    return r->algorithm->emit(plan, &args);
}

int recipe_decide(struct recipe *r, const char *forced, uint64_t tuned_bytes, struct error *e)
{
    const struct collective *c = collective_get(r->d.kind);
    int result;

    if (r->decided)
        return 0;
    if (r->piece)
        tuned_bytes = r->piece * r->width;
    if (c->shape != SHAPE_NONE) {
        result =
            algorithm_choose(&r->d, c->flags & COLLECTIVE_PAIR ? NULL : forced, &r->algorithm, e);
        if (result == 0)
            result = chunk_plan(&r->d, 0, tuned_bytes, &r->chunking, e);
        if (result < 0)
            return result;
    }
    if (r->chunking.chunks &&
        (emit(r, &r->full, 0) < 0 || emit(r, &r->tail, r->chunking.chunks - 1) < 0))
        return error_set(e, ERROR_NO_MEMORY, "%s: no memory for a plan", c->name);
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
        n += r->full.nsteps + r->tail.nsteps;
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
