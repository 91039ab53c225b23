#include "daemon/comm/op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/agreement.h"
#include "daemon/comm/persistent_private.h"
#include "daemon/log/log.h"

/* Chunks in flight on one node: one being worked on, one ready behind it. */

static const char *const state_names[] = {
    [OP_ARRIVING] = "arriving", [OP_AGREEING] = "agreeing", [OP_RUNNING] = "running",
    [OP_DRAINING] = "draining", [OP_DONE] = "done",
};

const char *op_state_name(enum op_state state)
{
    return state_names[state];
}

/* edges[from] is the set of states that may follow. */
static const uint8_t edges[] = {
    [OP_ARRIVING] = 1 << OP_AGREEING | 1 << OP_DRAINING,
    [OP_AGREEING] = 1 << OP_RUNNING | 1 << OP_DRAINING,
    [OP_RUNNING] = 1 << OP_DRAINING,
    [OP_DRAINING] = 1 << OP_DONE,
    [OP_DONE] = 0,
};

static void title(const struct op *op, struct text *t)
{
    text_add_operation(t, op->comm, op_kind(op), op->sequence);
}

static void log_op(const struct op *op, enum log_level level, const char *what, const char *more)
{
    struct text t = { 0 };
    char number[24];

    if (!log_is_on(level))
        return;
    title(op, &t);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)op->comm->number);
    log_write(level,
              &(struct log_context){ .communicator = number,
                                     .rank = op->error.nranks ? &op->error.ranks[0] : NULL,
                                     .operation = t.s,
                                     .uid = &op->comm->uid },
              "communicator %s: %s: %s%s", number, t.s, what, more);
}

static void op_set_state(struct op *op, enum op_state state)
{
    assert(edges[op->state] & 1 << state);
    if (log_is_on(LOG_LEVEL_DEBUG)) {
        char edge[32];

        snprintf(edge, sizeof(edge), "%s -> ", state_names[op->state]);
        log_op(op, LOG_LEVEL_DEBUG, edge, state_names[state]);
    }
    op->state = state;
}

static struct spares *spares_of(struct comm *c, bool sequenced)
{
    return sequenced ? &c->spare_ops : &c->spare_pairs;
}

int op_new(struct comm *c, uint64_t sequence, uint64_t now, struct op **ret)
{
    const uint32_t nparts = sequence ? c->nranks : 2;
    const size_t bytes = nparts * sizeof(struct arrival *);
    struct op *op = spares_take(spares_of(c, sequence));

    if (!op)
        op = malloc(sizeof(*op) + bytes);
    if (!op)
        return -ENOMEM;
    memset(op, 0, offsetof(struct op, error));
    op->error.code = ERROR_NONE; /* the rest of it is large, and means nothing */
    op->error.nranks = 0;
    memset(op->arrivals, 0, bytes);
    op->comm = c;
    op->sequence = sequence;
    op->nparts = nparts;
    op->first_us = now;
    op->deadline_us = comm_deadline(c, now);
    comms_note_deadline(c->comms, op->deadline_us);
    list_init(&op->unmatched);
    list_append(sequence ? &c->ops : &c->pairs, &op->link);
    c->nops++;
    *ret = op;
    return 0;
}

static void op_free(struct op *op)
{
    struct comm *c = op->comm;

    c->nops--;
    for (uint32_t i = 0; i < op->nparts; i++)
        arrival_free(op->arrivals[i]);
    exchange_free(op->exchange);
    persistent_unref(op->persistent);
    spares_give(spares_of(c, op->sequence), op);
}

enum collective_id op_kind(const struct op *op)
{
    for (uint32_t i = 0; i < op->nparts; i++)
        if (op->arrivals[i] && collective_get(op->arrivals[i]->d.kind))
            return op->arrivals[i]->d.kind;
    return COLLECTIVE_NONE;
}

static uint32_t part_rank(const struct op *op, uint32_t part)
{
    return op->sequence ? part : part == 0 ? op->source : op->destination;
}

uint32_t op_ranks(const struct op *op, bool arrived, uint32_t *ret)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++)
        if (!!op->arrivals[i] == arrived)
            ret[n++] = part_rank(op, i);
    return n;
}

static int system_error(const struct op *op, int err, struct error *e)
{
    struct text t = { 0 };

    title(op, &t);
    return error_set_errno(e, err, t.s);
}

/* ---- answers */

static struct progress exchange_progress(const struct op *op, const struct arrival *a,
                                         uint64_t chunks)
{
    const struct exchange *x = op->exchange;
    const struct chunking *c = &op->chunking;
    struct progress p = {
        .chunks_done = chunks,
        .chunks_total = c->chunks,
        .rows_sent = exchange_sent_after(x, a->rank, chunks, c->length),
        .rows_to_send = exchange_rows_sent(x, a->rank),
        .rows_received = exchange_received_after(x, a->rank, chunks, c->length),
        .rows_to_receive = exchange_rows_received(x, a->rank),
    };
    uint64_t row = 1;

    shape_row_count(&a->d.shape, &row);
    p.elements_done = p.rows_received * row;
    p.elements_total = p.rows_to_receive * row;
    return p;
}

static void op_progress(const struct op *op, uint64_t chunks)
{
    const struct chunking *c = &op->chunking;
    struct progress p = { .chunks_done = chunks,
                          .chunks_total = c->chunks,
                          .elements_done = MIN(c->n, chunks * c->length),
                          .elements_total = c->n };

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a->cell)
            continue;
        if (op->exchange)
            p = exchange_progress(op, a, chunks);
        progress_write(a->cell, &p);
    }
}

static void answer(const struct op *op, struct arrival *a, struct completion *c, uint64_t *counts,
                   uint64_t now)
{
    struct member *m = a->member;

    c->wait_us = (op->agreed_us ? op->agreed_us : now) - a->at_us;
    c->child_number = a->child_number;
    for (uint32_t s = 0; s < c->ncounts; s++)
        counts[s] = exchange_rows(op->exchange, s, a->rank);
    op->comm->comms->events.completed(m->owner, m, a->serial, c);
    member_finished(m);
}

static void answer_all(struct op *op, const struct split_part *children, uint64_t now)
{
    struct completion c = {
        .sequence = op->sequence,
        .run_us = op->agreed_us ? now - op->agreed_us : 0,
        .chunks = op->chunking.chunks,
        .chunk_elements = op->chunking.length,
        .algorithm = op->algorithm ? op->algorithm->name : "",
    };
    uint64_t *counts = NULL;

    if (!op->error.code && op->exchange && op->arrivals[0]->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        counts = malloc(op->nparts * sizeof(*counts));
        c.counts = counts;
        c.ncounts = counts ? op->nparts : 0;
        if (!counts)
            system_error(op, ENOMEM, &op->error);
    }
    if (op->error.code)
        c.error = &op->error;
    else if (op->persistent && op->arrivals[0]->makes_persistent)
        c.persistent = op->persistent->id;
    for (uint32_t i = 0; i < op->nparts; i++) {
        struct arrival *a = op->arrivals[i];

        if (!a || !a->member)
            continue;
        c.child = children ? children[i].child : NULL;
        answer(op, a, &c, counts, now);
    }
    free(counts);
}

static void give_run(struct op *op)
{
    struct comm *c = op->comm;

    if (!c->spare_run)
        c->spare_run = steal(&op->run);
    op->run = run_free(op->run);
}

/* Memory is let go before anyone is told: who hears of the end may free or reuse it. */
static void op_done(struct op *op, const struct split_part *children, uint64_t now)
{
    struct comm *c = op->comm;

    op_set_state(op, OP_DONE);
    give_run(op);
    if (!op->error.code && op->sequence)
        c->completed++;

    list_remove(&op->link);
    list_remove(&op->unmatched);
    for (uint32_t i = 0; i < op->nparts; i++) {
        struct arrival *a = op->arrivals[i];

        if (!a)
            continue;
        arrival_drop_memory(a);
        if (a->member && a->member->last_op == op)
            a->member->last_op = NULL;
    }
    answer_all(op, children, now);
    op_free(op);
}

void op_refuse(struct arrival *a, uint64_t sequence, const struct error *cause)
{
    struct completion completion = {
        .error = cause, .sequence = sequence, .algorithm = "", .child_number = a->child_number
    };

    a->comm->comms->events.completed(a->member->owner, a->member, a->serial, &completion);
    arrival_free(a);
}

/* ---- the end */

/* The operation is decided: `cause`, or success. Nothing more is issued; done once nothing is in
 * flight. */
static void op_end(struct op *op, const struct error *cause, uint64_t now)
{
    if (op->state == OP_DRAINING)
        return;
    if (cause) {
        op->error = *cause;
        log_op(op, LOG_LEVEL_INFO, "failed: ", cause->text);
    }
    op->deadline_us = TIME_NEVER;
    op_set_state(op, OP_DRAINING);
    if (op->run && !run_ended(op->run) &&
        engine_cancel(op->comm->comms->config.engine, op->run) == ENGINE_PENDING)
        return;
    op_done(op, NULL, now);
}

void op_fail(struct op *op, const struct error *cause, uint64_t now)
{
    op_end(op, cause, now);
}

/* ---- agreement */

static int make_exchange(struct op *op)
{
    const struct descriptor *d = &op->arrivals[0]->d;
    const uint64_t **rows = calloc(op->nparts, sizeof(*rows));
    uint64_t *even = malloc(op->nparts * sizeof(*even));
    int r = -ENOMEM;

    if (rows && even) {
        for (uint32_t i = 0; i < op->nparts; i++) {
            even[i] = d->shape.axes[0] / op->nparts;
            rows[i] = d->kind == COLLECTIVE_ALL_TO_ALL ? even : op->arrivals[i]->counts;
        }
        r = exchange_new(op->nparts, rows, &op->exchange);
    }
    free(rows);
    free(even);
    return r;
}

static struct frame frame_of(const struct comm *c)
{
    return (struct frame){ .table = &c->comms->table, .forced = c->algorithm };
}

static void take_choice(struct op *op, const struct choice *c)
{
    op->algorithm = c->algorithm;
    op->chunking = c->chunking;
}

static int decide_exchange(struct op *op, struct error *e)
{
    const struct frame f = frame_of(op->comm);
    struct choice_spec spec = { .d = &op->arrivals[0]->d };
    struct choice choice;
    int r;

    r = make_exchange(op);
    if (r < 0)
        return system_error(op, -r, e);
    spec.rows_max = exchange_rows_max(op->exchange);
    r = choice_make(&spec, &f, &choice, e);
    if (r == 0)
        take_choice(op, &choice);
    return r;
}

static uint64_t power_of_two_below(uint64_t n)
{
    return n ? 1ull << (63 - __builtin_clzll(n)) : 1;
}

/* Elements of a chunk that fits every window; 0: there is none. */
static uint64_t window_piece(const struct op *op)
{
    const uint64_t chunk_bytes = op->comm->comms->config.chunk_bytes;
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct run_stage *s = &op->arrivals[i]->stage;

        if (s->in_window)
            least = MIN(least, s->in_window);
        if (s->out_window)
            least = MIN(least, s->out_window);
    }
    if (least == UINT64_MAX)
        return 0;
    return MIN(least / WINDOW_PIECES,
               power_of_two_below(chunk_bytes / op->arrivals[0]->recipe->width));
}

/* The first part's recipe is the operation's: with windows, one for chunks that fit them. */
static int fit_windows(struct op *op, struct error *e)
{
    struct arrival *a = op->arrivals[0];
    const uint64_t piece = window_piece(op);
    struct recipe *fitting;
    int r;

    if (!piece)
        return 0;
    r = recipes_find(&op->comm->recipes, &a->recipe->d, piece, &fitting, e);
    if (r < 0)
        return r;
    recipe_unref(a->recipe);
    a->recipe = fitting;
    return 0;
}

/* What moves, in which chunks, by which algorithm. All parts get the same answer. */
static int decide(struct op *op, struct error *e)
{
    const struct frame f = frame_of(op->comm);
    const struct arrival *a = op->arrivals[0];
    struct recipe *recipe;
    int r;

    if (a->starts) {
        op->persistent = persistent_ref(persistent_find(op->comm, a->starts));
        recipe = op->persistent->recipe;
    } else if (!a->recipe) {
        return decide_exchange(op, e);
    } else {
        r = fit_windows(op, e);
        if (r < 0)
            return r;
        recipe = a->recipe;
    }
    r = recipe_decide(recipe, &f, e);
    if (r == 0)
        take_choice(op, &recipe->choice);
    return r;
}

/* Ends it with what the comparison, or else what comes behind it, has against it. */
static void disagree(struct op *op, const struct error *why, bool compared, uint64_t now)
{
    struct error e = { 0 };
    struct text t = { 0 };

    title(op, &t);
    error_set(&e, why->code, "%s: %s", t.s, why->text);
    if (compared) {
        for (uint32_t i = 0; i < op->nparts; i++)
            error_add_rank(&e, part_rank(op, i));
    } else {
        e.nranks = why->nranks;
        memcpy(e.ranks, why->ranks, sizeof(e.ranks));
    }
    op_end(op, &e, now);
}

static bool agree(struct op *op, uint64_t now)
{
    struct error e;

    e.code = ERROR_NONE; /* the rest of it is large, and means nothing */
    e.nranks = 0;
    if (agreement_check(op->arrivals, op->nparts, &e) < 0)
        disagree(op, &e, false, now);
    else if (decide(op, &e) < 0)
        disagree(op, &e, true, now);
    else
        return true;
    return false;
}

bool op_arrive(struct op *op, uint32_t part, struct arrival *a, uint64_t now)
{
    assert(op->state == OP_ARRIVING && !op->arrivals[part]);
    op->arrivals[part] = a;
    a->member->unfinished++;
    if (++op->narrived < op->nparts)
        return false;

    op->agreed_us = now;
    op->deadline_us = TIME_NEVER;
    op_set_state(op, OP_AGREEING);
    return agree(op, now);
}

/* ---- running */

/* Whether a part's tensors have lost their memory. */
static bool part_is_faulty(const struct op *op, uint32_t part)
{
    const struct arrival *a = op->arrivals[part];
    const struct persistent_part *p = op->persistent ? &op->persistent->parts[part] : NULL;

    return operand_is_faulty(p ? &p->in : &a->in) || operand_is_faulty(p ? &p->out : &a->out);
}

static void run_error(const struct op *op, int err, struct error *ret)
{
    struct text t = { 0 };

    title(op, &t);
    if (err != EFAULT) {
        error_set_errno(ret, err, t.s);
        return;
    }
    error_set(ret, ERROR_MEMORY_FAULT,
              "%s: memory of a tensor could not be backed with pages; its region is lost", t.s);
    for (uint32_t i = 0; i < op->nparts; i++)
        if (part_is_faulty(op, i))
            error_add_rank(ret, op->arrivals[i]->rank);
}

static void fail_run(struct op *op, int err, uint64_t now)
{
    struct error e = { 0 };

    run_error(op, err, &e);
    op_end(op, &e, now);
}

static void ended(struct op *op, int r, uint64_t now)
{
    give_run(op);
    if (op->state == OP_DRAINING)
        op_done(op, NULL, now);
    else if (r == 0)
        op_end(op, NULL, now);
    else
        fail_run(op, -r, now);
}

static bool has_window(const struct arrival *a)
{
    return a->stage.in_window || a->stage.out_window;
}

/* For those who copy meanwhile; the end they hear of by their completion. */
static void tell_progress(const struct op *op, uint64_t chunks)
{
    for (uint32_t i = 0; i < op->nparts && chunks < op->chunking.chunks; i++) {
        const struct arrival *a = op->arrivals[i];

        if (a->member && has_window(a))
            op->comm->comms->events.progressed(a->member->owner, a->member, a->serial,
                                               chunks * op->chunking.length);
    }
}

static void run_progress(struct run *run, uint64_t chunks)
{
    const struct op *op = run_owner(run);

    op_progress(op, chunks);
    if (run_memory(run)->nstages)
        tell_progress(op, chunks);
}

/* From the engine, when the run is over later than it was submitted. */
static void run_done(struct run *run, int r)
{
    struct op *op = run_owner(run);
    struct comm *c = op->comm;
    uint64_t now = c->comms->config.now();

    comm_hold(c);
    ended(op, r, now);
    comm_run(c, now);
    comm_drop(c);
}

static int take_run(struct op *op)
{
    struct comm *c = op->comm;
    const struct frame f = frame_of(c);

    op->run = steal(&c->spare_run);
    return op->run ? 0 : run_new(MAX(c->nranks, 2), choice_depth_max(&f), &op->run);
}

static const struct run_memory *bind_memory(struct op *op)
{
    struct run_memory *m = run_memory(op->run);

    if (op->persistent)
        return &op->persistent->memory;
    m->nmappings = m->nstages = 0;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        operands_bind(&a->in, &a->out, m, i);
        if (has_window(a)) {
            m->stages[i] = &a->stage;
            m->nstages++;
        }
    }
    return m;
}

static int start_run(struct op *op)
{
    const struct arrival *a = op->arrivals[0];
    const struct recipe *recipe = op->persistent ? op->persistent->recipe : a->recipe;
    int r;

    r = take_run(op);
    if (r < 0)
        return r;
    r = run_prepare(op->run, &(struct run_spec){
                                 .d = recipe ? &recipe->d : &a->d,
                                 .nparts = op->nparts,
                                 .chunking = op->chunking,
                                 .piece_length = op->chunking.length,
                                 .depth = DEPTH,
                                 .budget_bytes = UINT64_MAX,
                                 .full = recipe ? recipe->full : NULL,
                                 .tail = recipe ? recipe->tail : NULL,
                                 .algorithm = op->algorithm,
                                 .exchange = op->exchange,
                                 .memory = bind_memory(op),
                                 .progress = run_progress,
                                 .done = run_done,
                                 .owner = op,
                             });
    if (r < 0)
        return r;
    return engine_submit(op->comm->comms->config.engine, op->run);
}

static void start_making(struct op *op, uint64_t now)
{
    struct error e = { 0 };

    if (persistent_new(op, &op->persistent, &e) < 0)
        disagree(op, &e, true, now);
    else
        op_end(op, NULL, now);
}

/* Parts are in rank order, so the child of part i is that of rank i. */
static void start_split(struct op *op, uint64_t now)
{
    struct split_part *parts = calloc(op->nparts, sizeof(*parts));
    struct error e = { 0 };

    if (!parts) {
        system_error(op, ENOMEM, &e);
        op_end(op, &e, now);
        return;
    }
    for (uint32_t i = 0; i < op->nparts; i++)
        parts[i] = (struct split_part){ .color = op->arrivals[i]->color,
                                        .key = op->arrivals[i]->key,
                                        .parent = op->arrivals[i]->member };
    op_set_state(op, OP_DRAINING);
    if (rendezvous_split(op->comm, op->sequence, parts, &e) < 0) {
        op->error = e;
        op_done(op, NULL, now);
    } else {
        op_done(op, parts, now);
    }
    free(parts);
}

void op_start(struct op *op, uint64_t now)
{
    const struct comm *c = op->comm;
    int r;

    op->started_us = now;
    op->deadline_us = comm_deadline(c, now);
    comms_note_deadline(c->comms, op->deadline_us);
    op_set_state(op, OP_RUNNING);
    op_progress(op, 0);

    if (op->arrivals[0]->d.kind == COLLECTIVE_SPLIT) {
        start_split(op, now);
        return;
    }
    if (op->arrivals[0]->makes_persistent) {
        start_making(op, now);
        return;
    }
    if (!op->algorithm) { /* a barrier: having agreed is all there is */
        op_end(op, NULL, now);
        return;
    }
    r = start_run(op);
    if (r != ENGINE_PENDING)
        ended(op, r < 0 ? r : run_result(op->run), c->comms->config.now());
}

void op_staged(struct op *op, uint32_t part, uint64_t in_ready, uint64_t out_taken, uint64_t now)
{
    struct run_stage *s = &op->arrivals[part]->stage;

    s->in_ready = MAX(s->in_ready, in_ready);
    s->out_taken = MAX(s->out_taken, out_taken);
    if (op->state == OP_RUNNING &&
        engine_resume(op->comm->comms->config.engine, op->run) != ENGINE_PENDING)
        ended(op, run_result(op->run), now);
}

/* Of moving data: perhaps some ranks do not bring or take it. */
static void add_laggards(const struct op *op, struct text *t, struct error *e)
{
    const uint64_t chunk = run_chunks_done(op->run);
    const uint64_t end = chunk_first(&op->chunking, chunk) + chunk_count(&op->chunking, chunk);
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a->member || !run_stage_holds(&a->stage, end))
            continue;
        error_add_rank(e, a->rank);
        if (n++ < 4)
            text_add(t, "%srank %u (pid %d)",
                     n > 1 ? ", " : "; its memory is waited for: ", a->rank, (int)a->member->pid);
    }
}

void op_timeout_error(const struct op *op, uint64_t now, struct error *ret)
{
    struct text t = { 0 };
    uint32_t *ranks = malloc(op->nparts * sizeof(*ranks));
    uint32_t n;

    title(op, &t);
    text_add(&t, ": timeout after %.3g s", (double)op->comm->timeout_us / 1e6);
    if (op->state == OP_RUNNING) {
        text_add(&t, " of moving data");
        add_laggards(op, &t, ret);
    } else if (ranks) {
        n = op_ranks(op, true, ranks);
        text_add(&t, "; ");
        text_add_ranks(&t, ranks, n);
        text_add(&t, " arrived, ");
        n = op_ranks(op, false, ranks);
        text_add_ranks(&t, ranks, n);
        text_add(&t, " did not");
        for (uint32_t i = 0; i < n; i++) {
            const struct seat *seat = &op->comm->seats[ranks[i]];

            error_add_rank(ret, ranks[i]);
            if (seat->member && i < 4) {
                text_add(&t, "%srank %u (pid %d) last: ", i ? "; " : ": ", ranks[i],
                         (int)seat->member->pid);
                text_add_last(&t, seat->member, now);
            }
        }
    }
    free(ranks);
    error_set(ret, ERROR_TIMEOUT, "%s", t.s);
}
