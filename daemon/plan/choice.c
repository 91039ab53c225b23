#include "daemon/plan/choice.h"

#include <string.h>

#define DEPTH_HERE 2u /* one chunk is worked on, the next is there when it is done */

/* What may be staged without a budget, however short the chunks are. */
#define STAGED_MIN (256u << 10)

/* One choice between nodes, while it is made. */
struct choosing {
    const struct descriptor *d;
    const struct frame *f;
    const char *forced; /* NULL: none */
    struct chunking chunking;
    struct job job;
};

static bool is_pair(const struct descriptor *d)
{
    return collective_get(d->kind)->flags & COLLECTIVE_PAIR;
}

static bool is_exchange(const struct descriptor *d)
{
    return collective_get(d->kind)->shape == SHAPE_EXCHANGE;
}

static uint32_t nodes_of(const struct descriptor *d, const struct frame *f)
{
    return f->nodes && !is_pair(d) ? f->nodes->nnodes : 1;
}

/* "hierarchical" between nodes is every row: its ranks' part comes first in all of them. */
static const char *forced_on(const struct descriptor *d, const struct frame *f)
{
    if (!f->forced || is_pair(d) || !strcmp(f->forced, "auto"))
        return NULL;
    return nodes_of(d, f) > 1 && !strcmp(f->forced, "hierarchical") ? NULL : f->forced;
}

/* The next row that fits `d` and is called `name` (NULL: any); from the first one on for NULL. */
static const struct algorithm *next_row(const struct algorithm *a, const struct descriptor *d,
                                        uint32_t nnodes, const char *name)
{
    for (a = a ? a + 1 : algorithms; a->kind != COLLECTIVE_NONE; a++)
        if (a->kind == d->kind && a->fits(d, nnodes) && (!name || !strcmp(name, a->name)))
            return a;
    return NULL;
}

/* ---- words */

static int unsupported_error(const struct descriptor *d, uint32_t nnodes, const char *forced,
                             struct error *e)
{
    struct text where = { 0 }, fitting = { 0 };

    if (nnodes > 1)
        text_add(&where, " on %u nodes", nnodes);
    for (const struct algorithm *a = NULL; (a = next_row(a, d, nnodes, NULL));)
        text_add(&fitting, ", %s", a->name);
    return error_set(e, ERROR_UNSUPPORTED_ALGORITHM, "%s: algorithm \"%.32s\" %s%s; use auto%s",
                     collective_get(d->kind)->name, forced,
                     algorithm_name_known(forced) ? "does not fit this operation" : "is not known",
                     where.s, fitting.s);
}

static int memory_error(const struct descriptor *d, struct error *e)
{
    return error_set(e, ERROR_NO_MEMORY, "%s: no memory for a plan", collective_get(d->kind)->name);
}

/* What chunks of `length` elements take by the table of chunks, and what a row then has staged or
 * under way; in elements. Return: 0 or -ENOMEM. */
static int needs_of(const struct choosing *c, const struct algorithm *a, uint64_t length,
                    uint64_t *ret_shared, uint64_t *ret_peak)
{
    *ret_shared = UINT64_MAX;
    mul_u64(descriptor_sharers(c->d), length, ret_shared);
    return price_peak(a, &c->job, length, ret_peak);
}

/*
 * The bytes from which on a row works: those of one element, or row, at a time; or, since the
 * rounds of an exchange are as long as a budget lets them be, of all at once. Return: 0 or -ENOMEM.
 */
static int least_budget(const struct choosing *c, const struct algorithm *a, uint64_t *ret)
{
    uint64_t shared, peak = 0;
    int r = needs_of(c, a, c->job.length, &shared, &peak);

    if (r == 0 && c->job.whole && peak > shared)
        r = needs_of(c, a, c->job.load.count, &shared, &peak);
    *ret = BUDGET_NONE; /* where no number is enough */
    mul_u64(MAX(peak, shared), c->job.width, ret);
    return r;
}

/* ---- between nodes */

/*
 * Elements that may be staged or under way: of the budget, or, without one, of that which gives
 * such chunks. An exchange stages nothing: its messages lie in tensors.
 */
static uint64_t budget_elements(const struct choosing *c)
{
    const uint32_t width = dtype_get(c->d->dtype)->width;
    uint64_t n = UINT64_MAX;

    if (c->d->budget != BUDGET_NONE)
        return c->d->budget / width;
    if (is_exchange(c->d) || !mul_u64(c->chunking.length, descriptor_sharers(c->d), &n))
        return UINT64_MAX;
    return MAX(n, STAGED_MIN / width);
}

static uint32_t most_ranks(const struct placement *p)
{
    uint32_t most = 0;

    for (uint32_t i = 0; i < p->nnodes; i++)
        most = MAX(most, placement_count(p, i));
    return most;
}

static struct job make_job(const struct choosing *c)
{
    const struct descriptor *d = c->d;
    const bool sums = collective_get(d->kind)->flags & COLLECTIVE_HAS_OP;
    uint64_t row = 1;

    if (is_exchange(d))
        shape_row_count(&d->shape, &row);
    return (struct job){
        .load = { .kind = d->kind,
                  .nnodes = nodes_of(d, c->f),
                  .ranks = c->f->nodes ? most_ranks(c->f->nodes) : d->nranks,
                  .count = c->chunking.n * row,
                  .wide = sums ? price_wide(d->op, d->dtype) : 1 },
        .nodes = c->f->nodes,
        .root = d->root,
        .width = dtype_get(d->dtype)->width,
        .length = MIN(c->chunking.length, c->chunking.n) * row,
        .whole = is_exchange(d) || nodes_of(d, c->f) == 1,
        .budget = budget_elements(c),
        .depth = choice_depth_max(c->f),
    };
}

/* Names the least budget with which any of the rows called `name` (NULL: any) moves something, and
 * the rows that this one is enough for. */
static int budget_error(struct choosing *c, const char *name, struct error *e)
{
    const struct descriptor *d = c->d;
    uint64_t least = UINT64_MAX, row = 1;
    struct text enough = { 0 };

    /* one element, or row, of all there is */
    if (is_exchange(d))
        shape_row_count(&d->shape, &row);
    c->job.length = row;
    for (const struct algorithm *a = NULL; (a = next_row(a, d, c->job.load.nnodes, NULL));) {
        uint64_t bytes;

        if (least_budget(c, a, &bytes) < 0)
            return memory_error(d, e);
        if (bytes <= d->budget)
            text_add(&enough, "%s%s", enough.len ? ", " : "; it is enough for auto, ", a->name);
        if (!name || !strcmp(name, a->name))
            least = MIN(least, bytes);
    }
    return error_set(e, ERROR_BUDGET_TOO_SMALL,
                     "%s%s%s: a budget of %llu bytes is too small; the least that works is %llu%s",
                     collective_get(d->kind)->name, name ? " by " : "", name ? name : "",
                     (unsigned long long)d->budget, (unsigned long long)least, enough.s);
}

/* Of the rows called `name` (NULL: of all) that fit. Return: 0, -ENOMEM or PRICE_NONE. */
static int cheapest(const struct choosing *c, const char *name, const struct algorithm **ret,
                    struct price *ret_price)
{
    bool found = false;

    for (const struct algorithm *a = NULL; (a = next_row(a, c->d, c->job.load.nnodes, name));) {
        struct price price;
        const int r = price_job(a, &c->job, &c->f->table->machine, &price);

        if (r < 0)
            return r;
        if (r == PRICE_NONE || (found && price.us >= ret_price->us))
            continue;
        found = true;
        *ret = a;
        *ret_price = price;
    }
    return found ? 0 : PRICE_NONE;
}

static int choose(const struct choosing *c, const struct algorithm **ret, struct price *ret_price)
{
    const struct rule *rule;
    uint64_t bytes = UINT64_MAX;
    int r = PRICE_NONE;

    if (c->forced)
        return cheapest(c, c->forced, ret, ret_price);
    mul_u64(c->job.load.count, c->job.width, &bytes);
    rule = table_find(c->f->table, c->d->kind, bytes);
    if (rule)
        r = cheapest(c, rule->algorithm, ret, ret_price);
    return r == PRICE_NONE ? cheapest(c, NULL, ret, ret_price) : r;
}

static uint64_t mix(uint64_t digest, uint64_t value)
{
    digest = (digest ^ value) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 32;
}

/* Never 0, which says that there is none. */
static uint64_t digest_of(const struct choice *c)
{
    uint64_t digest = 1;

    for (const char *s = c->algorithm->name; *s; s++)
        digest = mix(digest, (unsigned char)*s);
    digest = mix(digest, c->chunking.n);
    digest = mix(digest, c->chunking.length);
    digest = mix(digest, c->piece_length);
    digest = mix(digest, c->depth);
    return MAX(digest, 1);
}

static int chunks_of(const struct choice_spec *s, const struct frame *f, struct chunking *ret,
                     struct error *e)
{
    uint64_t bytes = f->table->chunk_bytes;

    if (s->chunk_length)
        bytes = s->chunk_length * dtype_get(s->d->dtype)->width;
    return chunk_plan(s->d, s->rows_max, bytes, ret, e);
}

/* With the chunks and the job of the operation. Return: as choice_make(). */
static int choosing_init(struct choosing *c, const struct choice_spec *s, const struct frame *f,
                         struct error *e)
{
    struct choice_spec unlimited = *s;
    struct descriptor d = *s->d;
    int r;

    *c = (struct choosing){ .d = s->d, .f = f, .forced = forced_on(s->d, f) };
    r = chunks_of(s, f, &c->chunking, NULL);
    if (r < 0) {
        d.budget = BUDGET_NONE;
        unlimited.d = &d;
        chunks_of(&unlimited, f, &c->chunking, NULL);
    }
    c->job = make_job(c);
    return r < 0 ? budget_error(c, c->forced, e) : 0;
}

static int choose_between(const struct choice_spec *s, const struct frame *f, struct choice *ret,
                          struct error *e)
{
    struct price price = { .depth = 1 };
    struct choosing c;
    int r = choosing_init(&c, s, f, e);

    if (r < 0)
        return r;
    ret->chunking = c.chunking;
    ret->piece_length = c.chunking.length;
    if (c.chunking.n)
        r = choose(&c, &ret->algorithm, &price);
    if (r < 0)
        return memory_error(c.d, e);
    if (r == PRICE_NONE)
        return budget_error(&c, c.forced, e);
    if (!c.job.whole && price.length < c.job.length)
        ret->piece_length = price.length;
    ret->depth = price.depth;
    ret->digest = digest_of(ret);
    return 0;
}

/* ---- */

uint32_t choice_depth_max(const struct frame *f)
{
    return f->nodes && f->nodes->nnodes > 1 ? f->table->depth : DEPTH_HERE;
}

int choice_job(const struct choice_spec *s, const struct frame *f, struct job *ret, struct error *e)
{
    struct choosing c;
    int r = choosing_init(&c, s, f, e);

    if (r == 0)
        *ret = c.job;
    return r;
}

int choice_make(const struct choice_spec *s, const struct frame *f, struct choice *ret,
                struct error *e)
{
    const uint32_t nnodes = nodes_of(s->d, f);
    const char *forced = forced_on(s->d, f);
    struct choice c = { .algorithm = next_row(NULL, s->d, nnodes, forced), .depth = DEPTH_HERE };
    int r;

    if (!c.algorithm)
        return unsupported_error(s->d, nnodes, forced, e);
    if (nnodes > 1) {
        r = choose_between(s, f, &c, e);
    } else {
        r = chunks_of(s, f, &c.chunking, e);
        c.piece_length = c.chunking.length;
    }
    if (r == 0)
        *ret = c;
    return r;
}
