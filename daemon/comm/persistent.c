#include "daemon/comm/persistent.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/op.h"
#include "daemon/comm/persistent_private.h"

/* ---- those of a communicator */

/* Where `id` is, or would be. */
static uint32_t find(const struct persistents *l, uint32_t id)
{
    uint32_t low = 0, high = l->n;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (l->items[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct persistent *persistent_find(const struct comm *c, uint32_t id)
{
    const struct persistents *l = &c->persistents;
    uint32_t i = find(l, id);

    return i < l->n && l->items[i]->id == id ? l->items[i] : NULL;
}

static int add(struct persistents *l, struct persistent *p)
{
    if (l->last_id == UINT32_MAX) /* none comes back */
        return -ENOMEM;
    if (l->n == l->room) {
        uint32_t room = MAX(2 * l->room, 8);
        struct persistent **items = reallocarray(l->items, room, sizeof(struct persistent *));

        if (!items)
            return -ENOMEM;
        l->items = items;
        l->room = room;
    }
    p->id = ++l->last_id;
    l->items[l->n++] = p;
    return 0;
}

static void take_out(struct persistents *l, const struct persistent *p)
{
    uint32_t i = find(l, p->id);

    memmove(l->items + i, l->items + i + 1, (l->n - i - 1) * sizeof(struct persistent *));
    l->n--;
}

void persistents_fini(struct persistents *l)
{
    assert(l->n == 0);
    free(l->items);
}

/* ---- one */

static void persistent_free(struct persistent *p)
{
    for (uint32_t r = 0; r < p->comm->nparts; r++) {
        operand_drop(&p->parts[r].in);
        operand_drop(&p->parts[r].out);
    }
    recipe_unref(p->recipe);
    run_memory_fini(&p->memory);
    free(p);
}

struct persistent *persistent_ref(struct persistent *p)
{
    p->refs++;
    return p;
}

struct persistent *persistent_unref(struct persistent *p)
{
    if (p && --p->refs == 0) {
        take_out(&p->comm->persistents, p);
        persistent_free(p);
    }
    return NULL;
}

static void take_operands(struct persistent *p, const struct op *op)
{
    for (uint32_t r = 0; r < op->nparts; r++) {
        struct persistent_part *part = &p->parts[r];
        const struct arrival *a = op->arrivals[r];

        part->held = true;
        operand_take(&part->in, &a->in);
        operand_take(&part->out, &a->out);
        operands_bind(&part->in, &part->out, &p->memory, r);
    }
    p->refs += op->nparts;
}

int persistent_new(const struct op *op, struct persistent **ret, struct error *e)
{
    struct comm *c = op->comm;
    struct persistent *p;

    if (c->persistents.n >= PERSISTENT_MAX)
        return error_set(e, ERROR_QUOTA,
                         "the communicator has %u persistent operations, and no more may be; free "
                         "some",
                         PERSISTENT_MAX);
    p = calloc(1, sizeof(*p) + c->nparts * sizeof(p->parts[0]));
    if (!p || run_memory_init(&p->memory, c->nparts) < 0 || add(&c->persistents, p) < 0) {
        if (p)
            run_memory_fini(&p->memory);
        free(p);
        return error_set(e, ERROR_NO_MEMORY, "no memory for a persistent operation");
    }
    p->comm = c;
    p->refs = 1;
    p->recipe = recipe_ref(op->arrivals[0]->recipe);
    take_operands(p, op);
    *ret = p;
    return 0;
}

static void release(struct persistent *p, uint32_t part)
{
    p->parts[part].held = false;
    persistent_unref(p);
}

void persistent_take_back(struct persistent *p)
{
    struct persistents *l = &p->comm->persistents;

    for (uint32_t i = 0; i < p->comm->nparts; i++)
        if (p->parts[i].held)
            release(p, i);
    if (l->last_id == p->id) /* on every node the next has this number */
        l->last_id--;
}

/* ---- members */

void persistents_forget(struct member *m)
{
    const struct persistents *l = &m->comm->persistents;
    const uint32_t part = comm_part(m->comm, m->rank);

    for (uint32_t i = l->n; i-- > 0;)
        if (l->items[i]->parts[part].held)
            release(l->items[i], part);
}

int member_persistent_free(struct member *m, uint32_t id)
{
    struct persistent *p = persistent_find(m->comm, id);
    const uint32_t part = comm_part(m->comm, m->rank);

    if (!p || !p->parts[part].held)
        return -ENOENT;
    release(p, part);
    return 0;
}

/* What the member's own part has against being started. Return: 0 or -ENOMEM. */
static int check_start(struct arrival *a, const struct persistent *p, uint32_t id)
{
    const struct persistent_part *part = p ? &p->parts[comm_part(a->comm, a->rank)] : NULL;
    struct error e = { 0 };
    char name[40];

    snprintf(name, sizeof(name), "persistent operation %u", id);
    if (!part || !part->held)
        error_set(&e, ERROR_NOT_FOUND, "%s is not open", name);
    else if (operand_check_fault(&part->in, name, "input", &e) == 0)
        operand_check_fault(&part->out, name, "output", &e);
    return arrival_reject(a, &e);
}

int member_start(struct member *m, const struct start *start, uint64_t now)
{
    const struct persistent *p = persistent_find(m->comm, start->id);
    const struct persistent_part *part = p ? &p->parts[comm_part(m->comm, m->rank)] : NULL;
    bool good =
        part && part->held && !operand_is_faulty(&part->in) && !operand_is_faulty(&part->out);
    struct arrival *a;
    int r;

    r = arrival_new_start(start, p ? p->recipe->d.kind : COLLECTIVE_NONE, m, now, &a);
    if (r == 0 && !good) {
        r = check_start(a, p, start->id);
        if (r < 0)
            arrival_free(a);
    }
    return r < 0 ? r : member_arrive(m, a, now);
}
