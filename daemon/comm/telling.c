#include "daemon/comm/telling.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/windows.h"

void telling_fini(struct telling *t)
{
    free(t->parts);
    free(t->rows);
    free(t->colors);
}

static struct peer_part part_of(const struct arrival *a)
{
    return (struct peer_part){ .rank = a->rank,
                               .d = a->d,
                               .makes_persistent = a->makes_persistent,
                               .starts = a->starts,
                               .rejection = a->rejection };
}

/* Whether all parts ask for a `kind` and nothing is said against it: the others then want to know
 * more of each. */
static bool asks_for(const struct op *op, enum collective_id kind)
{
    for (uint32_t i = 0; i < op->nparts; i++)
        if (op->arrivals[i]->d.kind != kind || op->arrivals[i]->rejection)
            return false;
    return !op->verdict;
}

static int add_parts(struct telling *t, const struct op *op)
{
    const uint32_t n = op->alike ? 1 : op->nparts;

    t->parts = calloc(n, sizeof(*t->parts));
    if (!t->parts)
        return -ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        t->parts[i] = part_of(op->arrivals[i]);
    t->agree.parts = t->parts;
    t->agree.nparts = n;
    return 0;
}

static int add_rows(struct telling *t, const struct op *op)
{
    t->rows = calloc(op->nparts, sizeof(*t->rows));
    if (!t->rows)
        return -ENOMEM;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *from = op->arrivals[i];

        t->rows[i] = (struct peer_rows){ .rank = from->rank,
                                         .counts = from->counts,
                                         .ncounts = op->comm->nranks,
                                         .expected = from->expected,
                                         .nexpected = from->expected ? op->comm->nranks : 0,
                                         .out_rows = from->out_rows };
    }
    t->agree.rows = t->rows;
    t->agree.nrows = op->nparts;
    return 0;
}

static int add_colors(struct telling *t, const struct op *op)
{
    t->colors = calloc(op->nparts, sizeof(*t->colors));
    if (!t->colors)
        return -ENOMEM;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *from = op->arrivals[i];

        t->colors[i] = (struct peer_color){ from->rank, from->color, from->key };
    }
    t->agree.colors = t->colors;
    t->agree.ncolors = op->nparts;
    return 0;
}

int telling_init(struct telling *t, const struct op *op)
{
    int r;

    *t = (struct telling){ .agree = { .sequence = op->sequence,
                                      .plan = op->plan,
                                      .piece = windows_piece(op),
                                      .verdict = op->verdict } };
    memcpy(t->agree.key, op->comm->nodes->key, sizeof(t->agree.key));
    r = add_parts(t, op);
    if (r == 0 && asks_for(op, COLLECTIVE_ALL_TO_ALL_V))
        r = add_rows(t, op);
    if (r == 0 && asks_for(op, COLLECTIVE_SPLIT))
        r = add_colors(t, op);
    return r;
}

struct peer_agree telling_of(const struct op *op, uint32_t node)
{
    const struct nodes *n = op->comm->nodes;
    const struct remote *r = op->remotes[node];
    const uint32_t count = placement_count(n->placement, node);
    struct peer_agree agree = { .sequence = op->sequence,
                                .plan = r->plan,
                                .piece = r->piece,
                                .parts = r->parts,
                                .nparts = r->nparts,
                                .verdict = r->verdict,
                                .rows = r->rows,
                                .nrows = r->rows ? count : 0,
                                .colors = r->colors,
                                .ncolors = r->colors ? count : 0 };

    memcpy(agree.key, n->key, sizeof(agree.key));
    return agree;
}
