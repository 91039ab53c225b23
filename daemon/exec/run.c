#include "daemon/exec/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* An operation that touches no more than this runs at once: a wake-up costs more than the work. */
#define SMALL_RUN_BYTES (1024u * 1024)

/* So does a step of a larger one that is not worth handing over. */
#define SMALL_STEP_BYTES (64u * 1024)

/* What issuing a step costs besides its bytes, in bytes that could have been moved meanwhile. */
#define STEP_COST_BYTES 4096u

/* Tasks of one run that the device may hold; enough to keep its workers busy. */
#define TASKS_MAX 16u

enum step_state { STEP_WAITING, STEP_ISSUED, STEP_DONE };

/* A chunk in flight; for the exchanges, one source's part of a round. */
struct slot {
    const struct plan *plan;
    struct plan own; /* the exchanges emit here */
    uint64_t first;  /* element that the chunk starts at */
    uint32_t remaining;
    uint32_t lowest;        /* no step below it is waiting */
    uint8_t *state;         /* [nsteps] enum step_state */
    uint32_t *turn;         /* [nchannels] the step whose turn it is */
    uint32_t nstate, nturn; /* room */
};

struct run_task {
    struct task task;
    struct run *run;
    struct slot *slot;
    uint32_t step;
    struct list link; // run::tasks, while free
    void *pointers[]; // sources, then destinations
};

struct run {
    struct run_spec spec;
    struct list link; // engine::runs
    uint32_t nparts;  /* room */
    uint32_t depth;
    uint32_t width; /* bytes an element */
    struct run_memory memory;

    /* Units are issued in order, `depth` at most at once; unit u lives in slot u % depth. */
    uint64_t units, opened, complete;
    uint32_t units_per_chunk;
    struct slot *slots;

    struct list tasks; /* free ones */
    uint32_t ntasks;
    uint32_t in_flight;
    atomic_bool cancel;
    int result;
};

static bool run_stopped(const struct run *run)
{
    return atomic_load_explicit(&run->cancel, memory_order_relaxed);
}

static int emit_exchange(const struct run *run, struct plan *plan, uint64_t round, uint32_t source)
{
    const struct run_spec *s = &run->spec;
    struct plan_args args = { .kind = s->d->kind,
                              .nranks = s->nparts,
                              .exchange = s->exchange,
                              .source = source,
                              .round = round,
                              .rows = s->chunking.length };

    if (!shape_row_count(&s->d->shape, &args.row_elements))
        return -EOVERFLOW;
    return s->algorithm->emit(plan, &args);
}

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
    size_t pointers = 2 * (size_t)run->nparts;

    for (; run->ntasks < ntasks; run->ntasks++) {
        struct run_task *t = calloc(1, sizeof(*t) + pointers * sizeof(void *));

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
    run->slots = calloc(depth, sizeof(*run->slots));
    if (!run->slots || run_memory_init(&run->memory, nparts) < 0) {
        run_free(run);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < depth; i++)
        plan_init(&run->slots[i].own, nparts);
    *ret = run;
    return 0;
}

struct run *run_free(struct run *run)
{
    struct run_task *t, *tmp;

    if (!run)
        return NULL;
    list_for_each_safe(t, tmp, &run->tasks, link)
        free(t);
    for (uint32_t i = 0; run->slots && i < run->depth; i++) {
        plan_fini(&run->slots[i].own);
        free(run->slots[i].state);
        free(run->slots[i].turn);
    }
    free(run->slots);
    run_memory_fini(&run->memory);
    free(run);
    return NULL;
}

struct run_memory *run_memory(struct run *run)
{
    return &run->memory;
}

int run_prepare(struct run *run, const struct run_spec *spec)
{
    uint64_t steps = spec->exchange ? spec->nparts : spec->full->nsteps;

    run->spec = *spec;
    run->width = dtype_get(spec->d->dtype)->width;
    run->units_per_chunk = spec->exchange ? spec->nparts : 1;
    run->opened = run->complete = 0;
    run->result = 0;
    atomic_store_explicit(&run->cancel, false, memory_order_relaxed);
    if (!mul_u64(spec->chunking.chunks, run->units_per_chunk, &run->units))
        return -EOVERFLOW;
    return add_tasks(run, (uint32_t)MIN(steps * MIN(run->depth, run->units), TASKS_MAX));
}

void *run_owner(const struct run *run)
{
    return run->spec.owner;
}

uint64_t run_chunks_done(const struct run *run)
{
    return run->complete / run->units_per_chunk;
}

static int slot_reserve(struct slot *s, const struct plan *plan)
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
    return 0;
}

/* Whether all windows have come as far as the next unit, a chunk. */
static bool next_is_staged(const struct run *run)
{
    const struct run_memory *m = run->spec.memory;
    const struct chunking *c = &run->spec.chunking;
    const uint64_t end = chunk_first(c, run->opened) + chunk_count(c, run->opened);

    for (uint32_t part = 0; m->nstages && part < run->spec.nparts; part++)
        if (m->stages[part] && run_stage_holds(m->stages[part], end))
            return false;
    return true;
}

static int open_unit(struct run *run)
{
    const struct run_spec *spec = &run->spec;
    uint64_t unit = run->opened, chunk = unit / run->units_per_chunk;
    struct slot *s = &run->slots[unit % run->depth];
    int r;

    if (spec->exchange) {
        plan_clear(&s->own);
        r = emit_exchange(run, &s->own, chunk, (uint32_t)(unit % run->units_per_chunk));
        if (r < 0)
            return r;
        s->plan = &s->own;
        s->first = 0; /* an exchange's spans count from the first row */
    } else {
        s->plan = chunk + 1 == spec->chunking.chunks ? spec->tail : spec->full;
        s->first = chunk_first(&spec->chunking, chunk);
    }

    r = slot_reserve(s, s->plan);
    if (r < 0)
        return r;
    if (s->plan->nsteps)
        memset(s->state, STEP_WAITING, s->plan->nsteps);
    for (uint32_t i = s->plan->nsteps; i-- > 0;)
        s->turn[s->plan->steps[i].channel] = i;
    s->remaining = s->plan->nsteps;
    s->lowest = 0;
    run->opened++;
    return 0;
}

/* Counts the units at the front that are complete, and tells of every whole chunk among them. */
static void close_units(struct run *run)
{
    uint64_t before = run_chunks_done(run);

    while (run->complete < run->opened && run->slots[run->complete % run->depth].remaining == 0)
        run->complete++;
    if (run_chunks_done(run) > before)
        run->spec.progress(run, run_chunks_done(run));
}

static bool step_ready(const struct slot *s, uint32_t i)
{
    const struct step *step = &s->plan->steps[i];

    return s->state[i] == STEP_WAITING && s->turn[step->channel] == i &&
           (step->after == STEP_NONE || s->state[step->after] == STEP_DONE);
}

static bool find_step(struct run *run, struct slot **ret_slot, uint32_t *ret_step)
{
    for (uint64_t u = run->complete; u < run->opened; u++) {
        struct slot *s = &run->slots[u % run->depth];

        while (s->lowest < s->plan->nsteps && s->state[s->lowest] != STEP_WAITING)
            s->lowest++;
        for (uint32_t i = s->lowest; i < s->plan->nsteps; i++) {
            if (step_ready(s, i)) {
                *ret_slot = s;
                *ret_step = i;
                return true;
            }
        }
    }
    return false;
}

static void step_done(struct slot *s, uint32_t i)
{
    const struct plan *p = s->plan;

    s->state[i] = STEP_DONE;
    s->remaining--;
    if (p->nchannels < p->nsteps) {
        uint32_t next = i + 1;

        while (next < p->nsteps && p->steps[next].channel != p->steps[i].channel)
            next++;
        if (next < p->nsteps)
            s->turn[p->steps[i].channel] = next;
    }
}

/* Where an element of a part is from the first byte of its buffer. */
static uint64_t place_of(const struct run *run, enum buffer buffer, uint32_t part, uint64_t element)
{
    const struct run_stage *s = run->spec.memory->stages[part];
    const uint64_t window = !s ? 0 : buffer == BUFFER_IN ? s->in_window : s->out_window;

    return (window ? element % window : element) * run->width;
}

static uint32_t bind_spans(const struct run *run, const struct slot *s, const struct span *spans,
                           uint32_t nspans, void **ret)
{
    const struct run_memory *m = run->spec.memory;
    uint32_t n = 0;

    for (uint32_t i = 0; i < nspans; i++) {
        void *const *base = spans[i].buffer == BUFFER_IN ? m->in : m->out;
        const uint64_t element = s->first + spans[i].offset;
        const bool each = spans[i].rank == SPAN_EACH;
        const uint32_t end = each ? run->spec.nparts : spans[i].rank + 1;

        for (uint32_t rank = each ? 0 : spans[i].rank; rank < end; rank++)
            ret[n++] = (char *)base[rank] + place_of(run, spans[i].buffer, rank, element);
    }
    return n;
}

static void task_done(struct task *task, int r);

static uint64_t touched_bytes(const struct run *run, const struct task *t)
{
    return t->count * run->width * (t->nsrc + t->ndst);
}

/* Windows let a unit pass at a time, however many there are. */
static uint64_t units_at_once(const struct run *run)
{
    return run->spec.memory->nstages ? 1 : MIN(run->units, UINT32_MAX);
}

static void bind_task(struct run *run, struct slot *s, uint32_t index, struct run_task *t)
{
    const struct step *step = &s->plan->steps[index];
    const struct span *spans = &s->plan->spans[step->first_span];
    const struct descriptor *d = run->spec.d;
    bool mean = d->op == OPERATOR_MEAN;

    t->slot = s;
    t->step = index;
    t->task = (struct task){
        .kind = step->kind == STEP_REDUCE ? TASK_REDUCE : TASK_COPY,
        .dtype = d->dtype,
        .op = mean ? OPERATOR_SUM : d->op,
        .divisor = mean ? run->spec.nparts : 0,
        .count = spans[0].count,
        .ntasks = units_at_once(run) * s->plan->nsteps,
        .cancel = &run->cancel,
        .mappings = run->spec.memory->mappings,
        .nmappings = run->spec.memory->nmappings,
        .done = task_done,
        .owner = t,
    };
    t->task.src = t->pointers;
    t->task.nsrc = bind_spans(run, s, spans, step->nsrc, t->task.src);
    t->task.dst = t->pointers + t->task.nsrc;
    t->task.ndst = bind_spans(run, s, spans + step->nsrc, step->ndst, t->task.dst);
    /* One rank alone: its reduction is its input, bit for bit. */
    if (t->task.kind == TASK_REDUCE && t->task.nsrc == 1)
        t->task.kind = TASK_COPY;
    t->task.small = touched_bytes(run, &t->task) <= SMALL_STEP_BYTES ||
                    touched_bytes(run, &t->task) <= SMALL_RUN_BYTES / t->task.ntasks;
}

static void run_fail(struct run *run, int r)
{
    if (run->result == 0)
        run->result = r;
    atomic_store_explicit(&run->cancel, true, memory_order_relaxed);
}

static void task_over(struct run_task *t, int r)
{
    struct run *run = t->run;

    list_append(&run->tasks, &t->link);
    if (r < 0) {
        run_fail(run, r);
        return;
    }
    step_done(t->slot, t->step);
    close_units(run);
}

static void task_done(struct task *task, int r)
{
    struct run_task *t = task->owner;

    t->run->in_flight--;
    task_over(t, r);
}

/* Issues one step. Return: 0, RUN_WAITING for want of a task, RUN_BUSY or RUN_MORE. */
static int issue_step(struct run *run, struct device *device, struct slot *s, uint32_t step,
                      uint64_t *allowance_bytes)
{
    struct run_task *t;
    int r;

    if (list_empty(&run->tasks))
        return RUN_WAITING;
    t = list_first(&run->tasks, struct run_task, link);
    bind_task(run, s, step, t);
    if (t->task.small) {
        uint64_t bytes = touched_bytes(run, &t->task) + STEP_COST_BYTES;

        if (*allowance_bytes == 0)
            return RUN_MORE;
        *allowance_bytes -= MIN(*allowance_bytes, bytes);
    }

    list_remove(&t->link);
    r = device_submit(device, &t->task);
    if (r == DEVICE_BUSY) {
        list_append(&run->tasks, &t->link);
        return RUN_BUSY;
    }
    s->state[step] = STEP_ISSUED;
    if (r == DEVICE_PENDING)
        run->in_flight++;
    else
        task_over(t, r);
    return 0;
}

int run_issue(struct run *run, struct device *device, uint64_t *allowance_bytes)
{
    struct slot *s;
    uint32_t step;
    int r;

    while (!run_stopped(run)) {
        if (find_step(run, &s, &step)) {
            r = issue_step(run, device, s, step, allowance_bytes);
            if (r > 0)
                return r;
        } else if (run->opened < run->units && run->opened - run->complete < run->depth &&
                   next_is_staged(run)) {
            r = open_unit(run);
            if (r < 0)
                run_fail(run, r);
            else
                close_units(run); /* an exchange's round may have nothing to move */
        } else {
            break;
        }
    }
    return run_ended(run) ? 0 : RUN_WAITING;
}

void run_cancel(struct run *run)
{
    run_fail(run, -ECANCELED);
}

bool run_ended(const struct run *run)
{
    return run->in_flight == 0 && (run_stopped(run) || run->complete == run->units);
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
