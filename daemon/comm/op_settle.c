/*
 * Operations that make something: splits and persistent operations. Between nodes each makes its
 * part and says so; what is made counts once all have made theirs, and else is taken back.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/comm/op_private.h"
#include "daemon/comm/split.h"
#include "daemon/comm/talk.h"

void op_undo(struct op *op)
{
    if (op->children)
        split_discard(op->children, op->comm->nranks);
    if (op->settling && op->persistent)
        persistent_take_back(op->persistent);
}

/* How the node has settled; NULL: well. */
static const struct error *outcome_of(const struct op *op, uint32_t node)
{
    return node == op->comm->nodes->own ? op->verdict : op->settled[node].why;
}

/* All nodes hear the same. */
static void conclude(struct op *op, uint64_t now)
{
    const struct error *why = NULL;

    for (uint32_t i = 0; !why && i < comm_nnodes(op->comm); i++)
        why = op_is_wide(op) ? outcome_of(op, i) : op->verdict;
    if (why)
        op_disagree(op, why, why->nranks == 0, now);
    else
        op_end(op, NULL, now);
}

/* This node has done its part, or (`e` has a code) could not. */
static void settle(struct op *op, const struct error *e, uint64_t now)
{
    struct error no_memory = { 0 };

    op->settling = true;
    if (e->code) {
        op->verdict = malloc(sizeof(*op->verdict));
        if (!op->verdict) {
            op_system_error(op, ENOMEM, &no_memory);
            op_break(op, &no_memory, now);
            return;
        }
        *op->verdict = *e;
    }
    if (op_is_wide(op))
        talk_settled(op, e);
    if (!op_is_wide(op) || op->nsettled + 1 == comm_nnodes(op->comm))
        conclude(op, now);
}

/* Of many nodes one may have heard from all, and this one not yet. */
bool op_may_settle(const struct op *op, uint32_t node)
{
    const bool agreed = nodes_are_many(op->comm->nodes) ? op->told : op->remotes[node] != NULL;

    return agreed && !(op->settled && op->settled[node].known);
}

static int note_settled(struct op *op, uint32_t node, const struct error *outcome)
{
    struct settlement *s;

    if (!op->settled)
        op->settled = calloc(comm_nnodes(op->comm), sizeof(*op->settled));
    if (!op->settled)
        return -ENOMEM;
    s = &op->settled[node];
    if (outcome->code) {
        s->why = malloc(sizeof(*s->why));
        if (!s->why)
            return -ENOMEM;
        *s->why = *outcome;
    }
    s->known = true;
    op->nsettled++;
    return 0;
}

void op_free_settled(struct op *op)
{
    for (uint32_t i = 0; op->settled && i < comm_nnodes(op->comm); i++)
        free(op->settled[i].why);
    free(op->settled);
}

void op_hear_settled(struct op *op, uint32_t node, const struct error *outcome, uint64_t now)
{
    struct error no_memory = { 0 };

    if (note_settled(op, node, outcome) < 0) {
        op_system_error(op, ENOMEM, &no_memory);
        op_break(op, &no_memory, now);
        return;
    }
    if (op->settling && op->nsettled + 1 == comm_nnodes(op->comm))
        conclude(op, now);
}

void op_start_making(struct op *op, uint64_t now)
{
    struct error e = { 0 };

    persistent_new(op, &op->persistent, &e);
    settle(op, &e, now);
}

/* Of every rank, here or not. */
static int fill_parts(const struct op *op, struct split_part **ret)
{
    const struct comm *c = op->comm;
    struct split_part *parts = calloc(c->nranks, sizeof(*parts));

    if (!parts)
        return -ENOMEM;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        parts[a->rank] =
            (struct split_part){ .color = a->color, .key = a->key, .parent = a->member };
    }
    for (uint32_t i = 0; op_is_wide(op) && i < comm_nnodes(c); i++) {
        const struct remote *remote = op->remotes[i];

        for (uint32_t k = 0; remote && k < placement_count(c->nodes->placement, i); k++)
            parts[remote->colors[k].rank] = (struct split_part){ .color = remote->colors[k].color,
                                                                 .key = remote->colors[k].key };
    }
    *ret = parts;
    return 0;
}

void op_start_split(struct op *op, uint64_t now)
{
    struct error e = { 0 };

    if (fill_parts(op, &op->children) < 0)
        error_set(&e, ERROR_NO_MEMORY, "no memory for the parts");
    else
        split_make(op->comm, op->sequence, op->children, &e);
    settle(op, &e, now);
}
