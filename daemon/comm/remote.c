#include "daemon/comm/remote.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/comm/nodes.h"

/* ---- what makes sense */

static int nonsense(const struct nodes *n, uint32_t node, const char *what, struct error *e)
{
    struct text t = { 0 };

    text_add_node(&t, &n->items[node]);
    error_set(e, ERROR_PROTOCOL, "%s sent an agreement that makes no sense: %s", t.s, what);
    error_add_node(e, n, node);
    return -ERROR_PROTOCOL;
}

static const struct peer_part *part_of(const struct peer_agree *a, uint32_t i)
{
    return &a->parts[a->nparts == 1 ? 0 : i];
}

/* What the rank's own node would have rejected is not let in as if it had not. */
static bool part_is_sane(const struct nodes *n, const struct peer_part *p)
{
    const struct collective *c = collective_get(p->d.kind);
    struct descriptor d = p->d;

    if (p->rejection)
        return p->rejection->code != ERROR_NONE;
    if (!c || c->flags & COLLECTIVE_PAIR || (p->starts && p->makes_persistent))
        return false;
    if (p->makes_persistent && (c->shape == SHAPE_NONE || c->shape == SHAPE_EXCHANGE))
        return false;
    d.nranks = n->comm->nranks;
    return p->starts || descriptor_check(&d, NULL) == 0;
}

static const char *check_parts(const struct nodes *n, uint32_t node, const struct peer_agree *a)
{
    const uint32_t count = placement_count(n->placement, node);

    if (a->nparts != 1 && a->nparts != count)
        return "the number of parts";
    for (uint32_t i = 0; i < a->nparts; i++) {
        if (a->parts[i].rank != placement_rank(n->placement, node, i))
            return "a rank that is not there";
        if (!part_is_sane(n, &a->parts[i]))
            return "a request that its own checks refuse";
    }
    if (a->verdict && !a->verdict->code)
        return "a verdict without a cause";
    if (a->piece & (a->piece - 1))
        return "the length of a piece";
    return NULL;
}

/* Whether all its ranks ask for a `kind` and nothing is said against it: then more must be there.
 */
static bool asks_for(const struct peer_agree *a, enum collective_id kind)
{
    for (uint32_t i = 0; i < a->nparts; i++)
        if (a->parts[i].d.kind != kind || a->parts[i].rejection)
            return false;
    return !a->verdict;
}

static bool rows_add_up(const struct peer_rows *rows, uint64_t total)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < rows->ncounts; i++)
        if (rows->counts[i] > INT64_MAX || !add_u64(sum, rows->counts[i], &sum))
            return false;
    return sum == total;
}

static const char *check_rows(const struct nodes *n, uint32_t node, const struct peer_agree *a)
{
    const uint32_t count = placement_count(n->placement, node), nranks = n->comm->nranks;

    if (a->nrows != count)
        return "the number of counts";
    for (uint32_t i = 0; i < count; i++) {
        const struct peer_rows *rows = &a->rows[i];

        if (rows->rank != placement_rank(n->placement, node, i) || rows->ncounts != nranks ||
            (rows->nexpected && rows->nexpected != nranks))
            return "the number of counts";
        if (!rows_add_up(rows, part_of(a, i)->d.shape.axes[0]))
            return "counts that do not add up";
    }
    return NULL;
}

static const char *check_colors(const struct nodes *n, uint32_t node, const struct peer_agree *a)
{
    const uint32_t count = placement_count(n->placement, node);

    if (a->ncolors != count)
        return "the number of colors";
    for (uint32_t i = 0; i < count; i++)
        if (a->colors[i].rank != placement_rank(n->placement, node, i))
            return "a rank that is not there";
    return NULL;
}

/* ---- copies */

/* Hands out a block of memory bit by bit. */
struct arena {
    char *memory;
    size_t used;
};

static void *arena_copy(struct arena *a, const void *from, size_t bytes)
{
    void *to = a->memory + a->used;

    a->used += (bytes + 7) / 8 * 8;
    if (!a->memory || !bytes)
        return a->memory ? to : NULL;
    return memcpy(to, from, bytes);
}

/* Without memory it only counts how much it takes. */
static void copy(struct arena *m, struct remote *r, const struct peer_agree *a, uint32_t nranks,
                 bool rows, bool colors)
{
    r->plan = a->plan;
    r->piece = a->piece;
    r->nparts = a->nparts;
    r->parts = arena_copy(m, a->parts, a->nparts * sizeof(*a->parts));
    for (uint32_t i = 0; i < a->nparts; i++) {
        const struct error *rejection = a->parts[i].rejection;

        if (rejection)
            rejection = arena_copy(m, rejection, sizeof(*rejection));
        if (r->parts) {
            r->parts[i].rejection = rejection;
            r->parts[i].d.nranks = nranks;
        }
    }
    if (a->verdict)
        r->verdict = arena_copy(m, a->verdict, sizeof(*a->verdict));
    if (rows)
        r->rows = arena_copy(m, a->rows, a->nrows * sizeof(*a->rows));
    for (uint32_t i = 0; rows && i < a->nrows; i++) {
        const struct peer_rows *from = &a->rows[i];
        const uint64_t *counts = arena_copy(m, from->counts, from->ncounts * sizeof(uint64_t));
        const uint64_t *expected =
            arena_copy(m, from->expected, from->nexpected * sizeof(uint64_t));

        if (r->rows) {
            r->rows[i].counts = counts;
            r->rows[i].expected = from->nexpected ? expected : NULL;
        }
    }
    if (colors)
        r->colors = arena_copy(m, a->colors, a->ncolors * sizeof(*a->colors));
    if (a->enclosed) {
        r->payload_bytes = a->payload_bytes;
        r->payload = arena_copy(m, a->payload, a->payload_bytes);
    }
}

int remote_new(const struct nodes *n, uint32_t node, const struct peer_agree *agree,
               struct remote **ret, struct error *e)
{
    const char *wrong = check_parts(n, node, agree);
    const bool rows = !wrong && asks_for(agree, COLLECTIVE_ALL_TO_ALL_V);
    const bool colors = !wrong && asks_for(agree, COLLECTIVE_SPLIT);
    struct remote measured = { 0 };
    struct arena arena = { 0 };
    struct remote *r;

    if (rows)
        wrong = check_rows(n, node, agree);
    if (colors)
        wrong = check_colors(n, node, agree);
    if (wrong)
        return nonsense(n, node, wrong, e);

    copy(&arena, &measured, agree, n->comm->nranks, rows, colors);
    r = calloc(1, sizeof(*r) + arena.used);
    if (!r)
        return error_set(e, ERROR_NO_MEMORY, "no memory for what another node asks");
    arena = (struct arena){ .memory = (char *)(r + 1) };
    copy(&arena, r, agree, n->comm->nranks, rows, colors);
    *ret = r;
    return 0;
}

struct remote *remote_free(struct remote *r)
{
    free(r);
    return NULL;
}

struct view remote_view(const struct remote *r, uint32_t rank, uint32_t i)
{
    const struct peer_part *part = remote_part(r, i);
    struct view v = { .rank = rank,
                      .d = &part->d,
                      .makes_persistent = part->makes_persistent,
                      .starts = part->starts,
                      .rejection = part->rejection };

    if (r->rows) {
        v.counts = r->rows[i].counts;
        v.expected = r->rows[i].expected;
        v.out_rows = r->rows[i].out_rows;
    }
    return v;
}
