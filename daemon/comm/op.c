#include "daemon/comm/op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/agreement.h"
#include "daemon/log/log.h"

/* Chunks in flight on one node: one being worked on, one ready behind it. */
#define DEPTH 2u

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

int op_new(struct comm *c, uint64_t sequence, uint32_t nparts, uint64_t now, struct op **ret)
{
    struct op *op = calloc(1, sizeof(*op));

    if (!op)
        return -ENOMEM;
    op->arrivals = calloc(nparts, sizeof(*op->arrivals));
    if (!op->arrivals) {
        free(op);
        return -ENOMEM;
    }
    op->comm = c;
    op->sequence = sequence;
    op->nparts = nparts;
    op->first_us = now;
    op->deadline_us = comm_deadline(c, now);
    comms_note_deadline(c->comms, op->deadline_us);
    list_append(sequence ? &c->ops : &c->pairs, &op->link);
    c->nops++;
    *ret = op;
    return 0;
}

static void op_free(struct op *op)
{
    list_remove(&op->link);
    op->comm->nops--;
    for (uint32_t i = 0; i < op->nparts; i++)
        arrival_free(op->arrivals[i]);
    exchange_free(op->exchange);
    free(op->arrivals);
    free(op->in);
    free(op->out);
    free(op->mappings);
    free(op);
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

static void write_progress(const struct op *op, const struct arrival *a, uint64_t chunks)
{
    const struct chunking *c = &op->chunking;
    struct progress p = { .chunks_done = chunks, .chunks_total = c->chunks };

    if (!a->cell)
        return;
    if (op->exchange) {
        uint64_t row = 1;

        shape_row_count(&a->d.shape, &row);
        p.rows_sent = exchange_sent_after(op->exchange, a->rank, chunks, c->length);
        p.rows_to_send = exchange_rows_sent(op->exchange, a->rank);
        p.rows_received = exchange_received_after(op->exchange, a->rank, chunks, c->length);
        p.rows_to_receive = exchange_rows_received(op->exchange, a->rank);
        p.elements_done = p.rows_received * row;
        p.elements_total = p.rows_to_receive * row;
    } else {
        p.elements_done = MIN(c->n, chunks * c->length);
        p.elements_total = c->n;
    }
    progress_write(a->cell, &p);
}

static void op_progress(const struct op *op, uint64_t chunks)
{
    for (uint32_t i = 0; i < op->nparts; i++)
        write_progress(op, op->arrivals[i], chunks);
}

static uint64_t *received_counts(const struct op *op, uint32_t rank)
{
    uint64_t *counts = malloc(op->nparts * sizeof(*counts));

    for (uint32_t s = 0; counts && s < op->nparts; s++)
        counts[s] = exchange_rows(op->exchange, s, rank);
    return counts;
}

static void answer(const struct op *op, struct arrival *a, struct member *child, uint64_t now)
{
    struct member *m = a->member;
    uint64_t *counts = NULL;
    struct error failed = op->error;
    struct completion c = {
        .sequence = op->sequence,
        .wait_us = (op->agreed_us ? op->agreed_us : now) - a->at_us,
        .run_us = op->agreed_us ? now - op->agreed_us : 0,
        .chunks = op->chunking.chunks,
        .chunk_elements = op->chunking.length,
        .algorithm = op->algorithm ? op->algorithm->name : "",
        .child = child,
        .child_number = a->child_number,
    };

    if (!failed.code && a->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        counts = received_counts(op, a->rank);
        if (!counts)
            system_error(op, ENOMEM, &failed);
        c.counts = counts;
        c.ncounts = counts ? op->nparts : 0;
    }
    c.error = failed.code ? &failed : NULL;
    op->comm->comms->events.completed(m->owner, m, a->serial, &c);
    free(counts);
    member_finished(m);
}

/* Memory is let go before anyone is told: who hears of the end may free or reuse it. */
static void op_done(struct op *op, struct split_part *children, uint64_t now)
{
    struct comm *c = op->comm;

    op_set_state(op, OP_DONE);
    op->run = run_free(op->run);
    if (!op->error.code && op->sequence)
        c->completed++;

    list_remove(&op->link);
    for (uint32_t i = 0; i < op->nparts; i++) {
        struct arrival *a = op->arrivals[i];

        if (a)
            arrival_drop_memory(a);
    }
    for (uint32_t i = 0; i < op->nparts; i++) {
        struct arrival *a = op->arrivals[i];

        if (a && a->member)
            answer(op, a, children ? children[i].child : NULL, now);
    }
    op_free(op);
}

void op_refuse(const struct comm *c, struct arrival *a, uint64_t sequence,
               const struct error *cause)
{
    struct completion completion = {
        .error = cause, .sequence = sequence, .algorithm = "", .child_number = a->child_number
    };

    c->comms->events.completed(a->member->owner, a->member, a->serial, &completion);
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

/* What moves, in which chunks, by which algorithm. All parts get the same answer. */
static int decide(struct op *op, struct error *e)
{
    const struct descriptor *d = &op->arrivals[0]->d;
    const struct comms_config *config = &op->comm->comms->config;
    const struct collective *c = collective_get(d->kind);
    uint64_t rows_max = 0;
    int r;

    if (c->shape == SHAPE_NONE)
        return 0;
    if (c->shape == SHAPE_EXCHANGE) {
        r = make_exchange(op);
        if (r < 0)
            return system_error(op, -r, e);
        rows_max = exchange_rows_max(op->exchange);
    }
    r = algorithm_choose(d, c->flags & COLLECTIVE_PAIR ? NULL : op->comm->algorithm, &op->algorithm,
                         e);
    if (r < 0)
        return r;
    return chunk_plan(d, rows_max, config->chunk_bytes, &op->chunking, e);
}

static int agree(struct op *op, struct error *e)
{
    struct text t = { 0 };
    struct error plain = { 0 };
    int r;

    title(op, &t);
    r = agreement_check(op->arrivals, op->nparts, t.s, e);
    if (r < 0)
        return r;
    r = decide(op, &plain);
    if (r < 0) {
        error_set(e, plain.code, "%s: %s", t.s, plain.text);
        for (uint32_t i = 0; i < op->nparts; i++)
            error_add_rank(e, part_rank(op, i));
    }
    return r;
}

void op_arrive(struct op *op, uint32_t part, struct arrival *a, uint64_t now)
{
    struct error e = { 0 };

    assert(op->state == OP_ARRIVING && !op->arrivals[part]);
    op->arrivals[part] = a;
    a->member->unfinished++;
    if (++op->narrived < op->nparts)
        return;

    op->agreed_us = now;
    op->deadline_us = TIME_NEVER;
    op_set_state(op, OP_AGREEING);
    if (agree(op, &e) < 0)
        op_end(op, &e, now);
}

/* ---- running */

static void ended(struct op *op, int r, uint64_t now)
{
    struct error e = { 0 };
    struct text t = { 0 };

    op->run = run_free(op->run);
    if (op->state == OP_DRAINING) {
        op_done(op, NULL, now);
        return;
    }
    if (r == 0) {
        op_end(op, NULL, now);
        return;
    }
    title(op, &t);
    if (r == -EFAULT) {
        error_set(&e, ERROR_MEMORY_FAULT,
                  "%s: memory of a tensor could not be backed with pages; its region is lost", t.s);
        for (uint32_t i = 0; i < op->nparts; i++) {
            const struct arrival *a = op->arrivals[i];

            if ((a->in.mapping && atomic_load(&a->in.mapping->fault)) ||
                (a->out.mapping && atomic_load(&a->out.mapping->fault)))
                error_add_rank(&e, a->rank);
        }
    } else {
        error_set_errno(&e, -r, t.s);
    }
    op_end(op, &e, now);
}

static void run_progress(struct run *run, uint64_t chunks)
{
    op_progress(run_owner(run), chunks);
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

static void bind(struct op *op)
{
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        op->in[i] = operand_address(&a->in);
        op->out[i] = operand_address(&a->out);
        if (a->in.mapping)
            op->mappings[op->nmappings++] = a->in.mapping;
        if (a->out.mapping)
            op->mappings[op->nmappings++] = a->out.mapping;
    }
}

static int start_run(struct op *op)
{
    struct run_spec spec;
    int r;

    op->in = calloc(op->nparts, sizeof(*op->in));
    op->out = calloc(op->nparts, sizeof(*op->out));
    op->mappings = calloc(2 * (size_t)op->nparts, sizeof(*op->mappings));
    if (!op->in || !op->out || !op->mappings)
        return -ENOMEM;
    bind(op);

    spec = (struct run_spec){
        .d = op->arrivals[0]->d,
        .nparts = op->nparts,
        .algorithm = op->algorithm,
        .chunking = op->chunking,
        .exchange = op->exchange,
        .in = op->in,
        .out = op->out,
        .mappings = op->mappings,
        .nmappings = op->nmappings,
        .depth = DEPTH,
        .progress = run_progress,
        .done = run_done,
        .owner = op,
    };
    r = run_new(&spec, &op->run);
    if (r < 0)
        return r;
    return engine_submit(op->comm->comms->config.engine, op->run);
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
    if (!op->algorithm) { /* a barrier: having agreed is all there is */
        op_end(op, NULL, now);
        return;
    }
    r = start_run(op);
    if (r != ENGINE_PENDING)
        ended(op, r < 0 ? r : run_result(op->run), c->comms->config.now());
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
