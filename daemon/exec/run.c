#include "daemon/exec/run.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/bind.h"
#include "daemon/exec/bounce.h"
#include "daemon/exec/messages.h"
#include "daemon/exec/slot.h"
#include "daemon/exec/units.h"
#include "daemon/plan/price.h"

/* What issuing a step costs besides its bytes, in bytes that could have been moved meanwhile. */
#define STEP_COST_BYTES 4096u

/* Tasks of one run that the device may hold; enough to keep its workers busy. */
#define TASKS_MAX 16u

/* ---- one run for many operations */

int run_memory_init(struct run_memory *m, uint32_t nparts)
{
    /* one allocation: `in` holds it */
    void **room = calloc(5 * (size_t)nparts, sizeof(*room));

    if (!room)
        return -ENOMEM;
    *m = (struct run_memory){ .in = room,
                              .out = room + nparts,
                              .mappings = (struct mapping **)(room + 2 * (size_t)nparts),
                              .stages = (const struct run_stage **)(room + 4 * (size_t)nparts) };
    return 0;
}

void run_memory_fini(struct run_memory *m)
{
    free(m->in);
    *m = (struct run_memory){ 0 };
}

static int add_tasks(struct run *run, uint32_t ntasks)
{
    for (; run->ntasks < ntasks; run->ntasks++) {
        struct run_task *t = calloc(1, sizeof(*t));

        if (!t)
            return -ENOMEM;
        t->run = run;
        list_append(&run->tasks, &t->link);
    }
    return 0;
}

int run_new(uint32_t nparts, uint32_t depth, struct run **ret)
{
    struct run *run = calloc(1, sizeof(*run));

    if (!run)
        return -ENOMEM;
    run->nparts = nparts;
    run->depth = depth;
    list_init(&run->link);
    list_init(&run->tasks);
    list_init(&run->messages);
    list_init(&run->under_way);
    list_init(&run->bouncing);
    run->slots = calloc(depth, sizeof(*run->slots));
    run->fences = calloc(nparts, sizeof(struct fence *));
    run->signals = calloc(nparts, sizeof(*run->signals));
    run->far = calloc(2 * (size_t)nparts, sizeof(*run->far));
    if (!run->slots || !run->fences || !run->signals || !run->far ||
        run_memory_init(&run->memory, nparts) < 0) {
        run_free(run);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < depth; i++)
        plan_init(&run->slots[i].own, nparts);
    *ret = run;
    return 0;
}

static void task_free(struct run_task *t)
{
    free(t->pointers);
    free(t->groups);
    free(t);
}

struct run *run_free(struct run *run)
{
    struct run_task *t, *tmp;

    if (!run)
        return NULL;
    list_for_each_safe(t, tmp, &run->tasks, link)
        task_free(t);
    messages_fini(run);
    for (uint32_t i = 0; run->slots && i < run->depth; i++)
        slot_fini(&run->slots[i]);
    free(run->slots);
    free(run->fences);
    free(run->signals);
    free(run->far);
    run_memory_fini(&run->memory);
    free(run);
    return NULL;
}

struct run_memory *run_memory(struct run *run)
{
    return &run->memory;
}

struct fence **run_fences(struct run *run)
{
    return run->fences;
}

struct signal *run_signals(struct run *run)
{
    return run->signals;
}

int run_prepare(struct run *run, const struct run_spec *spec)
{
    const uint64_t steps = spec->exchange ? spec->nparts : spec->full->nsteps;
    int r;

    assert(spec->depth >= 1 && spec->depth <= run->depth);
    run->spec = *spec;
    run->means = NULL;
    run->passed = 0;
    run->width = dtype_get(spec->d->dtype)->width;
    run->wide = run->width * price_wide(spec->d->op, spec->d->dtype);
    run->area = (struct fault_area){ .mappings = spec->memory->mappings,
                                     .nmappings = spec->memory->nmappings };
    run->opened = run->complete = 0;
    run->held = spec->start != RUN_AT_ONCE;
    run->letters = NULL;
    run->planned_bytes = run->bytes = run->peak_bytes = 0;
    run->cancelled = false;
    run->result = 0;
    atomic_store_explicit(&run->cancel, false, memory_order_relaxed);
    for (uint32_t i = 0; i < run->depth; i++)
        run->slots[i].planned = false;
    r = units_count(run);
    if (r == 0)
        r = messages_prepare(run);
    if (r < 0)
        return r;
    return add_tasks(run, (uint32_t)MIN(steps * MIN(run->depth, run->units), TASKS_MAX));
}

uint64_t run_chunks_done(const struct run *run)
{
    return run->complete == run->units ? run->spec.chunking.chunks
                                       : run->complete / run->units_per_chunk;
}

bool run_is_fenced(const struct run *run)
{
    return run->passed < run->spec.nfences;
}

void *run_owner(const struct run *run)
{
    return run->spec.owner;
}

uint64_t run_peak_bytes(const struct run *run)
{
    return run->peak_bytes;
}

/* ---- units */

/* Whether all windows have come as far as the next unit. */
static bool next_is_staged(const struct run *run)
{
    const struct run_memory *m = run->spec.memory;

    for (uint32_t part = 0; m->nstages && part < run->spec.nparts; part++)
        if (m->stages[part] && run_stage_holds(m->stages[part], unit_end(run, run->opened)))
            return false;
    return true;
}

/* Whether the unit is within the budget beside those that are open; alone it always is. */
static bool fits_budget(const struct run *run, const struct slot *s)
{
    const uint64_t budget = run->spec.budget_bytes;

    return run->opened == run->complete ||
           (run->planned_bytes <= budget && s->planned_bytes <= budget - run->planned_bytes);
}

/* Opens the next unit. Return: 0, SLOT_LATER, or -errno. */
static int open_unit(struct run *run)
{
    struct slot *s;
    int r;

    r = unit_plan(run, run->opened, &s);
    if (r == 0 && !fits_budget(run, s))
        r = SLOT_LATER;
    if (r == 0)
        r = slot_open(run, s);
    if (r != 0)
        return r;
    s->planned = false;
    run->planned_bytes += s->planned_bytes;
    run_count(run, s->staged_bytes);
    run->opened++;
    return 0;
}

static void close_unit(struct run *run, struct slot *s)
{
    slot_close(run, s);
    run_uncount(run, s->staged_bytes);
    run->planned_bytes -= s->planned_bytes;
    run->complete++;
}

/* Whether the first unit that is open may be closed. */
static bool first_is_complete(const struct run *run)
{
    return !run->held && run->complete < run->opened &&
           run->slots[run->complete % run->depth].remaining == 0;
}

/* Closes the units at the front that are complete, and tells of every whole chunk among them. */
static void close_units(struct run *run)
{
    uint64_t before;

    if (!first_is_complete(run))
        return;
    before = run_chunks_done(run);
    while (first_is_complete(run))
        close_unit(run, &run->slots[run->complete % run->depth]);
    if (run_chunks_done(run) > before)
        run->spec.progress(run, run_chunks_done(run));
}

/* ---- steps */

/* What a held run leaves for later. */
static bool step_is_held(const struct run *run, const struct plan *p, const struct step *step)
{
    if (!step_is_message(step))
        return step_writes_out(p, step);
    return run->spec.start == RUN_EARLY ? step_touches_out(p, step)
                                        : !messages_may_collect(run, step);
}

static bool all_done_before(struct slot *s, uint32_t i)
{
    while (s->undone < i && s->state[s->undone] == STEP_DONE)
        s->undone++;
    return s->undone >= i;
}

static bool step_ready(const struct run *run, struct slot *s, uint32_t i)
{
    const struct step *step = &s->plan->steps[i];

    if (s->state[i] != STEP_WAITING || s->turn[step->channel] != i)
        return false;
    if (run->held && step_is_held(run, s->plan, step))
        return false;
    if (step->after == STEP_ALL)
        return all_done_before(s, i);
    return step->after == STEP_NONE || s->state[step->after] == STEP_DONE;
}

/* The first step of a slot that may be ready. */
static uint32_t first_waiting(struct slot *s)
{
    while (s->lowest < s->plan->nsteps && s->state[s->lowest] != STEP_WAITING)
        s->lowest++;
    return s->lowest;
}

/* A copy or reduction that is ready. */
static bool find_task(const struct run *run, struct slot **ret_slot, uint32_t *ret_step)
{
    for (uint64_t u = run->complete; u < run->opened; u++) {
        struct slot *s = &run->slots[u % run->depth];

        for (uint32_t i = first_waiting(s); i < s->plan->nsteps; i++)
            if (!step_is_message(&s->plan->steps[i]) && step_ready(run, s, i)) {
                *ret_slot = s;
                *ret_step = i;
                return true;
            }
    }
    return false;
}

void run_step_done(struct run *run, struct slot *s, uint32_t i)
{
    const struct plan *p = s->plan;

    s->state[i] = STEP_DONE;
    s->remaining--;
    if (run->spec.network) { /* on one node every step has a channel of its own */
        uint32_t next = i + 1;

        while (next < p->nsteps && p->steps[next].channel != p->steps[i].channel)
            next++;
        if (next < p->nsteps)
            s->turn[p->steps[i].channel] = next;
    }
    close_units(run);
}

void run_fail(struct run *run, int r)
{
    if (run->result == 0)
        run->result = r;
    atomic_store_explicit(&run->cancel, true, memory_order_relaxed);
}

static void task_over(struct run_task *t, int r)
{
    struct run *run = t->run;

    list_prepend(&run->tasks, &t->link);
    if (r < 0)
        run_fail(run, r);
    else
        run_step_done(run, t->slot, t->step);
}

static void task_done(struct task *task, int r)
{
    struct run_task *t = task->owner;

    t->run->in_flight--;
    task_over(t, r);
}

/* A step, and the bytes that it moved on this thread. */
static void charge(uint64_t *allowance_bytes, uint64_t bytes)
{
    *allowance_bytes -= MIN(*allowance_bytes, bytes + STEP_COST_BYTES);
}

/* Whether all else that the run has to do is done. */
static bool step_is_last(const struct run *run, const struct slot *s)
{
    return !run->spec.network && run->complete + 1 == run->units && s->remaining == 1;
}

/* Issues one step. Return: 0, RUN_WAITING for want of a task, RUN_BUSY or RUN_MORE. */
static int issue_step(struct run *run, struct slot *s, uint32_t step, uint64_t *allowance_bytes)
{
    struct run_task *t;
    int r;

    if (list_empty(&run->tasks))
        return RUN_WAITING;
    t = list_first(&run->tasks, struct run_task, link);
    if (bind_task(run, s, step, t) < 0) {
        run_fail(run, -ENOMEM);
        return 0;
    }
    t->task.done = task_done;
    if (step_is_last(run, s)) {
        t->task.signals = run->spec.signals;
        t->task.nsignals = run->spec.nsignals;
    }
    if (t->task.small) {
        if (*allowance_bytes == 0)
            return RUN_MORE;
        charge(allowance_bytes, t->touched);
    }

    list_remove(&t->link);
    r = device_submit(run->device, &t->task);
    if (r == DEVICE_BUSY) {
        list_prepend(&run->tasks, &t->link);
        return RUN_BUSY;
    }
    s->state[step] = STEP_ISSUED;
    if (r == DEVICE_PENDING)
        run->in_flight++;
    else
        task_over(t, r);
    return 0;
}

static bool may_open(const struct run *run)
{
    return run->opened < run->units && run->opened - run->complete < run->spec.depth &&
           next_is_staged(run);
}

/* All messages that are ready. One that is done at once lets only later steps go, and none of
 * another unit. Return: 0, or RUN_MORE. */
static int issue_messages(struct run *run, uint64_t *allowance_bytes)
{
    for (uint64_t u = run->complete; u < run->opened; u++) {
        struct slot *s = &run->slots[u % run->depth];

        for (uint32_t i = first_waiting(s); i < s->plan->nsteps && !run_stopped(run); i++) {
            if (!step_is_message(&s->plan->steps[i]) || !step_ready(run, s, i))
                continue;
            if (*allowance_bytes == 0)
                return RUN_MORE;
            charge(allowance_bytes, messages_issue(run, s, i));
        }
    }
    return 0;
}

/* Messages first: others wait for them. Return: 0, there is nothing to issue; or a condition. */
static int issue_all(struct run *run, uint64_t *allowance_bytes)
{
    struct slot *s;
    uint32_t step;
    int r;

    r = bounce_resume(run);
    if (r > 0)
        return r;
    while (!run_stopped(run)) {
        r = run->spec.network ? issue_messages(run, allowance_bytes) : 0;
        if (r > 0)
            return r;
        if (run_stopped(run))
            return 0;
        if (find_task(run, &s, &step)) {
            r = issue_step(run, s, step, allowance_bytes);
            if (r > 0)
                return r;
        } else if (may_open(run)) {
            r = open_unit(run);
            if (r == SLOT_LATER)
                return 0;
            if (r < 0)
                run_fail(run, r);
            else
                close_units(run); /* an exchange's round may have nothing to move */
        } else {
            return 0;
        }
    }
    return 0;
}

/* Nothing touches its staging any more. */
static void unstage_all(struct run *run)
{
    for (uint64_t u = run->complete; u < run->opened; u++)
        slot_close(run, &run->slots[u % run->depth]);
}

/* ---- before the first step */

static bool is_far(const struct run *run, const void *tensor)
{
    for (uint32_t i = 0; tensor && i < run->area.nmappings; i++) {
        const struct mapping *m = run->area.mappings[i];

        if (m->device == run->device && (uintptr_t)tensor - (uintptr_t)m->base < m->bytes)
            return true;
    }
    return false;
}

/* What may have been enclosed comes in memory of the host, and as much as the plan says. */
static uint64_t straight_min(const struct run *run)
{
    const enum run_start start = run->spec.start;

    if (run->units <= 1 && (start == RUN_HELD || start == RUN_ENCLOSING))
        return TRANSPORT_NO_GPUS;
    return transport_gpu_bytes_min(run->spec.network->channel->transport);
}

/* By which device it is done, and what of its memory messages do not reach. */
static void run_settle(struct run *run, struct run_means *means)
{
    const struct run_memory *m = run->spec.memory;

    run->means = means;
    run->device = means->device;
    for (uint32_t i = 0; means->gpus && i < m->nmappings; i++)
        if (m->mappings[i]->device == means->gpus)
            run->device = means->gpus;
    run->bounces = run->device != means->device && run->spec.network;
    if (!run->bounces)
        return;
    for (uint32_t part = 0; part < run->spec.nparts; part++) {
        run->far[2 * part] = is_far(run, m->in[part]);
        run->far[2 * part + 1] = is_far(run, m->out[part]);
    }
    run->straight_min = straight_min(run);
    messages_forgo(run);
}

static bool fences_passed(struct run *run)
{
    while (run->passed < run->spec.nfences) {
        struct fence *f = run->spec.fences[run->passed];
        int r = f->device->ops->fence_passed(f);

        if (r < 0)
            run_fail(run, r);
        if (r <= 0)
            return false;
        run->passed++;
    }
    return true;
}

int run_issue(struct run *run, struct run_means *means, uint64_t *allowance_bytes)
{
    int r = 0;

    if (!run->means)
        run_settle(run, means);
    if (!run_stopped(run) && fences_passed(run))
        r = issue_all(run, allowance_bytes);
    if (run_stopped(run))
        messages_cancel(run);
    if (!run_ended(run))
        return r ? r : RUN_WAITING;
    unstage_all(run);
    assert(run->result < 0 || run->bytes == 0);
    return 0;
}

void run_release(struct run *run, const struct run_letter *letters)
{
    messages_release(run, letters);
    run->held = false;
    close_units(run); /* what was done while it was held, and had nothing to send */
}

void run_cancel(struct run *run)
{
    run_fail(run, -ECANCELED);
    messages_cancel(run);
    if (run_ended(run))
        unstage_all(run);
}

bool run_ended(const struct run *run)
{
    return run->in_flight == 0 && (run_stopped(run) || (run->complete == run->units && !run->held));
}

int run_result(const struct run *run)
{
    return run->result;
}

void run_finish(struct run *run)
{
    run->spec.done(run, run->result);
}

struct list *run_link(struct run *run)
{
    return &run->link;
}

struct run *run_of_link(struct list *link)
{
    return container_of(link, struct run, link);
}

struct fault_area *run_area(struct run *run)
{
    return run->spec.network ? &run->area : NULL;
}
