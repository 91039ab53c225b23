/*
 * The plans of all nodes as one: which message meets which, and whether everything comes to its
 * end. Messages are matched by name and steps only ever wait for more to be done, so what can be
 * done is done in any order: one walk to the end proves that every walk gets there.
 */
#include "daemon/plan/check.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/plan/placement.h"

static uint64_t message_count(const struct plan *p, const struct step *s)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->nsrc + s->ndst; i++)
        n += span_total(p, &p->spans[s->first_span + i]);
    return n;
}

static bool message_partial(const struct plan *p, const struct step *s)
{
    return p->spans[s->first_span].buffer == BUFFER_PARTIAL;
}

/* How many steps of `p` are a message of that kind, peer and tag; the first is told. */
static uint32_t find_messages(const struct plan *p, enum step_kind kind, uint32_t peer,
                              uint32_t tag, uint32_t *ret_step)
{
    uint32_t n = 0;

    for (uint32_t i = p->nsteps; i-- > 0;) {
        const struct step *s = &p->steps[i];

        if (s->kind != kind || s->peer != peer || s->tag != tag)
            continue;
        *ret_step = i;
        n++;
    }
    return n;
}

static int check_message(const struct plan *plans, uint32_t node, uint32_t i, struct text *ret)
{
    const struct plan *p = &plans[node];
    const struct step *s = &p->steps[i];
    const struct plan *other = &plans[s->peer];
    const enum step_kind kind = s->kind == STEP_SEND ? STEP_RECV : STEP_SEND;
    uint32_t found = 0, n = find_messages(other, kind, node, s->tag, &found);
    const char *wrong = NULL;

    if (n == 0)
        wrong = "meets nothing";
    else if (n > 1 || find_messages(p, s->kind, s->peer, s->tag, &i) > 1)
        wrong = "is not the only one of its tag";
    else if (message_count(p, s) != message_count(other, &other->steps[found]))
        wrong = "meets one of another count";
    else if (message_partial(p, s) != message_partial(other, &other->steps[found]))
        wrong = "meets one of another width";
    if (!wrong)
        return 0;
    text_add(ret, "node %u: step %u, a message with node %u and tag %u, %s", node, i, s->peer,
             s->tag, wrong);
    return -EINVAL;
}

/* ---- the walk to the end */

enum walked {
    STEP_BEFORE,
    STEP_OFFERED, /* a message that waits for its other end */
    STEP_AFTER,
};

/* One node's part of the walk. */
struct walk {
    uint8_t *walked; /* enum walked, of every step */
    bool *blocked;   /* of every channel: an earlier step of it is not done */
};

/* Does what can be done of a step. Return: whether that changed anything. */
static bool walk_step(const struct plan *plans, struct walk *walks, uint32_t node, uint32_t i)
{
    const struct step *s = &plans[node].steps[i];
    uint32_t other = 0;

    if (!step_is_message(s)) {
        walks[node].walked[i] = STEP_AFTER;
        return true;
    }
    find_messages(&plans[s->peer], s->kind == STEP_SEND ? STEP_RECV : STEP_SEND, node, s->tag,
                  &other);
    if (walks[s->peer].walked[other] == STEP_OFFERED) {
        walks[s->peer].walked[other] = STEP_AFTER;
        walks[node].walked[i] = STEP_AFTER;
        return true;
    }

    bool first = walks[node].walked[i] == STEP_BEFORE;

    walks[node].walked[i] = STEP_OFFERED;
    return first;
}

static bool walk_node(const struct plan *plans, struct walk *walks, uint32_t node)
{
    const struct plan *p = &plans[node];
    struct walk *w = &walks[node];
    bool all = true, moved = false;

    for (uint32_t c = 0; c < p->nchannels; c++)
        w->blocked[c] = false;
    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct step *s = &p->steps[i];
        const bool ready = s->after == STEP_NONE ||
                           (s->after == STEP_ALL ? all : w->walked[s->after] == STEP_AFTER);

        if (w->walked[i] != STEP_AFTER && ready && !w->blocked[s->channel])
            moved |= walk_step(plans, walks, node, i);
        if (w->walked[i] != STEP_AFTER)
            w->blocked[s->channel] = true, all = false;
    }
    return moved;
}

static int walk_result(const struct plan *plans, const struct walk *walks, uint32_t nnodes,
                       struct text *ret)
{
    for (uint32_t node = 0; node < nnodes; node++)
        for (uint32_t i = 0; i < plans[node].nsteps; i++)
            if (walks[node].walked[i] != STEP_AFTER) {
                text_add(ret, "node %u waits for ever, first at step %u", node, i);
                return -EINVAL;
            }
    return 0;
}

static int walk(const struct plan *plans, struct walk *walks, uint32_t nnodes, struct text *ret)
{
    bool moved = true;

    for (uint32_t node = 0; node < nnodes; node++) {
        walks[node].walked = calloc(plans[node].nsteps + 1ull, sizeof(*walks[node].walked));
        walks[node].blocked = calloc(plans[node].nchannels + 1ull, sizeof(*walks[node].blocked));
        if (!walks[node].walked || !walks[node].blocked)
            return -ENOMEM;
    }
    while (moved) {
        moved = false;
        for (uint32_t node = 0; node < nnodes; node++)
            moved |= walk_node(plans, walks, node);
    }
    return walk_result(plans, walks, nnodes, ret);
}

static int check_walk(const struct plan *plans, uint32_t nnodes, struct text *ret)
{
    struct walk *walks = calloc(nnodes, sizeof(*walks));
    int r = walks ? walk(plans, walks, nnodes, ret) : -ENOMEM;

    for (uint32_t node = 0; walks && node < nnodes; node++) {
        free(walks[node].walked);
        free(walks[node].blocked);
    }
    free(walks);
    return r;
}

/* ---- all of it */

static int check_node(const struct plan *p, const struct check_world *w, uint32_t wide,
                      uint64_t budget, struct text *ret)
{
    struct text fault = { 0 };
    const uint64_t peak = plan_peak(p, wide);
    int r = plan_check(p, w, &fault);

    if (r == -EINVAL)
        text_add(ret, "node %u: %s", w->node, fault.s);
    if (r == 0 && peak > budget) {
        text_add(ret, "node %u: a peak of %llu elements is above the budget of %llu", w->node,
                 (unsigned long long)peak, (unsigned long long)budget);
        r = -EINVAL;
    }
    return r;
}

int plans_check(const struct plan *plans, const struct check_world *w, uint32_t wide,
                uint64_t budget, struct text *ret)
{
    const uint32_t nnodes = w->nodes->nnodes;
    struct check_world here = *w;
    int r = 0;

    for (here.node = 0; here.node < nnodes && r == 0; here.node++)
        r = check_node(&plans[here.node], &here, wide, budget, ret);
    for (uint32_t node = 0; node < nnodes; node++)
        for (uint32_t i = 0; i < plans[node].nsteps && r == 0; i++)
            if (step_is_message(&plans[node].steps[i]))
                r = check_message(plans, node, i, ret);
    return r < 0 ? r : check_walk(plans, nnodes, ret);
}
