#include "daemon/exec/slot.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/bounce.h"

/* What is in one block stands on such boundaries. */
#define STAGING_ALIGN 64u

void slot_fini(struct slot *s)
{
    assert(!s->staging);
    plan_fini(&s->own);
    free(s->state);
    free(s->turn);
    free(s->bounce_at);
}

static int slot_reserve(struct slot *s, const struct plan *plan, bool bounces)
{
    if (plan->nsteps > s->nstate) {
        uint8_t *state = realloc(s->state, plan->nsteps);

        if (!state)
            return -ENOMEM;
        s->state = state;
        s->nstate = plan->nsteps;
    }
    if (plan->nchannels > s->nturn) {
        uint32_t *turn = realloc(s->turn, plan->nchannels * sizeof(*turn));

        if (!turn)
            return -ENOMEM;
        s->turn = turn;
        s->nturn = plan->nchannels;
    }
    if (bounces && plan->nchannels > s->nbounce) {
        uint64_t *bounce_at = realloc(s->bounce_at, plan->nchannels * sizeof(*bounce_at));

        if (!bounce_at)
            return -ENOMEM;
        s->bounce_at = bounce_at;
        s->nbounce = plan->nchannels;
    }
    return 0;
}

static uint64_t staging_align(uint64_t bytes)
{
    return div_up_u64(bytes, STAGING_ALIGN) * STAGING_ALIGN;
}

void slot_close(struct run *run, struct slot *s)
{
    if (s->staging)
        s->staging = staging_give(run->means->staging, s->staging);
}

/* The first unit has what was promised to the communicator. Nothing was for pairs, of which there
 * may be any number: theirs is spare as long as there is some. Return: NULL, or a block. */
static struct staging_block *take_block(struct run *run, uint64_t bytes)
{
    const bool spare = run->opened > run->complete, pair = !run->spec.network->nodes;
    struct staging_block *b = staging_take(run->means->staging, bytes, spare || pair);

    return b || spare || !pair ? b : staging_take(run->means->staging, bytes, false);
}

/* Return: as slot_open(). */
static int slot_stage(struct run *run, struct slot *s)
{
    const uint64_t scratch = s->plan->scratch * run->width;
    const uint64_t partials = s->plan->partials * run->wide;
    const uint64_t bounce = run->bounces ? bounce_plan(run, s) : 0;
    int r = 0;

    s->staged_bytes = scratch + partials;
    if (s->staged_bytes + bounce == 0)
        return 0;
    s->staging = take_block(run, staging_align(scratch) + staging_align(partials) + bounce);
    if (!s->staging)
        return run->opened > run->complete ? SLOT_LATER : -ENOMEM;
    s->scratch = s->staging->memory;
    s->partials = s->scratch + staging_align(scratch);
    s->bounce = s->partials + staging_align(partials);
    if (run->device != run->means->device)
        r = staging_adopt(s->staging, run->device);
    if (r < 0)
        slot_close(run, s);
    return r;
}

int slot_open(struct run *run, struct slot *s)
{
    int r = slot_reserve(s, s->plan, run->bounces);

    if (r == 0)
        r = slot_stage(run, s);
    if (r != 0)
        return r;
    if (s->plan->nsteps)
        memset(s->state, STEP_WAITING, s->plan->nsteps);
    for (uint32_t i = s->plan->nsteps; i-- > 0;)
        s->turn[s->plan->steps[i].channel] = i;
    s->remaining = s->plan->nsteps;
    s->lowest = s->undone = 0;
    return 0;
}
