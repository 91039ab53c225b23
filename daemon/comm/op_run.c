/* How an operation's data moves. */
#include <errno.h>

#include "daemon/comm/offers.h"
#include "daemon/comm/op_private.h"
#include "daemon/comm/windows.h"

/* Of messages' names. What was started early may have left messages of other chunks behind. */
#define WINDOWED (1ull << 63)

/* Whether a part's tensors have lost their memory. */
static bool part_is_faulty(const struct op *op, uint32_t part)
{
    const struct arrival *a = op->arrivals[part];
    const struct persistent_part *p = op->persistent ? &op->persistent->parts[part] : NULL;

    if (!a)
        return false;
    return operand_is_faulty(p ? &p->in : &a->in) || operand_is_faulty(p ? &p->out : &a->out);
}

static bool operand_is_on(const struct operand *o, const struct device *device)
{
    return o->mapping && o->mapping->device == device;
}

/* Whether a part has a tensor, or a stream of work, on this device. */
static bool part_is_on(const struct op *op, uint32_t part, const struct device *device)
{
    const struct arrival *a = op->arrivals[part];
    const struct persistent_part *p = op->persistent ? &op->persistent->parts[part] : NULL;

    if (!a)
        return false;
    return operand_is_on(p ? &p->in : &a->in, device) ||
           operand_is_on(p ? &p->out : &a->out, device) || (a->fence && a->fence->device == device);
}

/* Appends what has gone wrong with the GPUs, if it has to do with them. */
static void explain_gpus(const struct op *op, struct text *t)
{
    const struct device *gpus = engine_gpus(op->comm->comms->config.engine);
    bool any = false;

    for (uint32_t i = 0; gpus && !any && i < op->nparts; i++)
        any = part_is_on(op, i, gpus);
    if (any)
        gpus->ops->explain(gpus, t);
}

void op_run_error(const struct op *op, int err, struct error *ret)
{
    struct text t = { 0 };

    if (err == EIO)
        explain_gpus(op, &t);
    if (t.len) {
        error_set(ret, ERROR_SYSTEM, "moving its data: %s", t.s);
        return;
    }
    if (err != EFAULT) {
        error_set_errno(ret, err, "moving its data");
        return;
    }
    error_set(ret, ERROR_MEMORY_FAULT,
              "memory of a tensor could not be backed with pages, or its GPU failed; its region is "
              "lost");
    for (uint32_t i = 0; i < op->nparts; i++)
        if (part_is_faulty(op, i))
            error_add_rank(ret, op->arrivals[i]->rank);
}

static void fail_run(struct op *op, int err, uint64_t now)
{
    struct error why = { 0 }, e;
    struct text t = { 0 };

    if (err == ECONNRESET && (op_is_wide(op) || op->offer)) {
        op_wait_for_link(op, now);
        return;
    }
    op_run_error(op, err, &why);
    op_title(op, &t);
    e = why;
    e.code = ERROR_NONE;
    error_set(&e, why.code, "%s: %s", t.s, why.text);
    op_break(op, &e, now);
}

static void start_moving(struct op *op, uint64_t now);

void op_ended(struct op *op, int r, uint64_t now)
{
    op_give_run(op);
    if (op->state == OP_DRAINING)
        op_done(op, now);
    else if (r == -EMSGSIZE && op->state == OP_ARRIVING)
        op->misfit = true;
    else if (op->restarts)
        start_moving(op, now);
    else if (r == 0)
        op_end(op, NULL, now);
    else
        fail_run(op, -r, now);
}

static void run_progress(struct run *run, uint64_t chunks)
{
    const struct op *op = run_owner(run);

    op_progress(op, chunks);
    if (run_memory(run)->nstages)
        windows_tell_progress(op, chunks);
}

/* From the engine, when the run is over later than it was submitted. */
static void run_done(struct run *run, int r)
{
    struct op *op = run_owner(run);
    struct comm *c = op->comm;
    uint64_t now = c->comms->config.now();

    comm_hold(c);
    op_ended(op, r, now);
    comm_run(c, now);
    comm_drop(c);
}

static int take_run(struct op *op)
{
    struct comm *c = op->comm;
    const struct frame f = comm_frame(c);

    op->run = steal(&c->spare_run);
    return op->run ? 0 : run_new(MAX(c->nparts, 2), choice_depth_max(&f), &op->run);
}

static const struct run_memory *bind_memory(struct op *op)
{
    struct run_memory *m = run_memory(op->run);
    const struct operand none = { 0 };

    if (op->persistent)
        return &op->persistent->memory;
    m->nmappings = m->nstages = 0;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a) {
            operands_bind(&none, &none, m, i);
            continue;
        }
        operands_bind(&a->in, &a->out, m, i);
        if (arrival_has_window(a)) {
            m->stages[i] = &a->stage;
            m->nstages++;
        }
    }
    return m;
}

/* Of the parts that have one. Returns how many. */
static uint32_t bind_fences(const struct op *op)
{
    struct fence **fences = run_fences(op->run);
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++)
        if (op->arrivals[i] && op->arrivals[i]->fence)
            fences[n++] = op->arrivals[i]->fence;
    return n;
}

/* Likewise. */
static uint32_t bind_signals(const struct op *op)
{
    struct signal *signals = run_signals(op->run);
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++)
        if (op->arrivals[i] && op->arrivals[i]->signal.cells)
            signals[n++] = op->arrivals[i]->signal;
    return n;
}

static const struct run_network *bind_network(struct op *op)
{
    const struct nodes *n = op->comm->nodes;

    if (!op_is_wide(op) && !op->offer)
        return NULL;
    op->network =
        (struct run_network){ .channel = n->channel,
                              .peers = n->peers,
                              .nodes = op->offer ? NULL : n->placement,
                              .node = n->own,
                              .sequence =
                                  op->offer ? TRANSPORT_PAIRS | op->offer->number : op->sequence,
                              .first_unit = !op->offer && windows_least_piece(op) ? WINDOWED : 0 };
    return &op->network;
}

int op_start_run(struct op *op, enum run_start start)
{
    const struct arrival *a = op_first(op);
    const struct offer *o = op->offer;
    struct recipe *recipe = op->persistent ? op->persistent->recipe : a->recipe;
    const struct descriptor *d = recipe ? &recipe->d : &a->d;
    int r;

    r = take_run(op);
    if (r < 0)
        return r;
    recipe_unref(op->recipe);
    op->recipe = recipe ? recipe_ref(recipe) : NULL;
    r = run_prepare(op->run,
                    &(struct run_spec){
                        .d = d,
                        .nparts = op->nparts,
                        .chunking = op->chunking,
                        .piece_length = recipe ? recipe->choice.piece_length : op->chunking.length,
                        .full = o        ? &o->full
                                : recipe ? recipe->full
                                         : NULL,
                        .last = o        ? &o->full
                                : recipe ? recipe->last
                                         : NULL,
                        .tail = o        ? &o->tail
                                : recipe ? recipe->tail
                                         : NULL,
                        .contents = recipe ? recipe->contents : NULL,
                        .algorithm = op->algorithm,
                        .exchange = op->exchange,
                        .memory = bind_memory(op),
                        .fences = run_fences(op->run),
                        .nfences = bind_fences(op),
                        .signals = run_signals(op->run),
                        .nsignals = bind_signals(op),
                        .depth = op->depth,
                        .network = bind_network(op),
                        .budget_bytes = d->budget,
                        .start = start,
                        .progress = run_progress,
                        .done = run_done,
                        .owner = op,
                    });
    if (r < 0)
        return r;
    return engine_submit(op->comm->comms->config.engine, op->run);
}

/* Of the other nodes' requests: what came enclosed in them. Returns whether anything has, or has
 * gone. */
static bool open_letters(struct op *op)
{
    bool any = op->letters != NULL;

    for (uint32_t i = 0; !any && i < comm_nnodes(op->comm); i++)
        any = op->remotes[i] && op->remotes[i]->payload;
    if (!any)
        return false;
    op_make_letters(op);
    for (uint32_t i = 0; i < comm_nnodes(op->comm); i++) {
        if (!op->remotes[i])
            continue;
        op->letters[i].bytes = op->remotes[i]->payload;
        op->letters[i].len = op->remotes[i]->payload_bytes;
    }
    return true;
}

/* Return: as engine_release(), or -errno. */
static int start_wide(struct op *op)
{
    bool enclosed;
    int r;

    if (windows_least_piece(op)) /* nobody counts on what was enclosed */
        return op_start_run(op, RUN_AT_ONCE);
    enclosed = open_letters(op);
    if (!op->run) {
        r = op_start_run(op, enclosed ? RUN_HELD : RUN_AT_ONCE);
        if (!enclosed || r != ENGINE_PENDING)
            return r;
    }
    return engine_release(op->comm->comms->config.engine, op->run, op->letters);
}

static void start_moving(struct op *op, uint64_t now)
{
    int r;

    if (op->misfit) { /* and yet all agreed */
        fail_run(op, EMSGSIZE, now);
        return;
    }
    op->restarts = false;
    r = op_is_wide(op) ? start_wide(op) : op_start_run(op, RUN_AT_ONCE);
    if (r != ENGINE_PENDING)
        op_ended(op, r < 0 ? r : run_result(op->run), now);
}

/* What was started early goes on, unless windows have it done in other chunks. */
static void start_again(struct op *op, uint64_t now)
{
    op->restarts = true;
    if (engine_cancel(op->comm->comms->config.engine, op->run) != ENGINE_PENDING)
        op_ended(op, run_result(op->run), now);
}

void op_start(struct op *op, uint64_t now)
{
    const struct comm *c = op->comm;
    const struct arrival *a = op_first(op);

    op->started_us = now;
    op_set_state(op, OP_RUNNING);
    op_progress(op, 0);
    if (op->cut) /* early */
        return;
    op->deadline_us = comm_deadline(c, now);
    comms_note_deadline(c->comms, op->deadline_us);

    if (a->d.kind == COLLECTIVE_SPLIT)
        op_start_split(op, now);
    else if (a->makes_persistent)
        op_start_making(op, now);
    else if (!op->algorithm) /* a barrier: having agreed is all there is */
        op_end(op, NULL, now);
    else if (op->run && windows_least_piece(op))
        start_again(op, now);
    else
        start_moving(op, now);
}
