#include "daemon/comm/op.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/offers.h"
#include "daemon/comm/op_private.h"
#include "daemon/comm/split.h"
#include "daemon/comm/windows.h"
#include "daemon/log/log.h"

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

void op_title(const struct op *op, struct text *t)
{
    text_add_operation(t, op->comm, op_kind(op), op->sequence);
}

static void log_op(const struct op *op, enum log_level level, const char *what, const char *more)
{
    struct text t = { 0 };
    char number[24];

    if (!log_is_on(level))
        return;
    op_title(op, &t);
    snprintf(number, sizeof(number), "%llu", (unsigned long long)op->comm->number);
    log_write(level,
              &(struct log_context){ .communicator = number,
                                     .rank = op->error.nranks ? &op->error.ranks[0] : NULL,
                                     .operation = t.s,
                                     .uid = &op->comm->uid },
              "communicator %s: %s: %s%s", number, t.s, what, more);
}

void op_set_state(struct op *op, enum op_state state)
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
    const bool wide = sequence && c->nodes;
    const uint32_t nparts = sequence ? c->nparts : 2;
    const uint32_t nremotes = wide ? comm_nnodes(c) : 0;
    const size_t bytes = nparts * sizeof(struct arrival *) +
                         nremotes * (sizeof(struct remote *) + sizeof(struct run_letter));
    struct op *op = spares_take(spares_of(c, sequence));

    if (!op)
        op = malloc(sizeof(*op) + bytes);
    if (!op)
        return -ENOMEM;
    memset(op, 0, offsetof(struct op, error));
    error_clear(&op->error);
    memset(op->arrivals, 0, bytes);
    op->comm = c;
    op->sequence = sequence;
    op->nparts = nparts;
    op->remotes = wide ? (struct remote **)&op->arrivals[nparts] : NULL;
    op->first_us = now;
    op->deadline_us = TIME_NEVER;
    list_init(&op->unmatched);
    list_append(sequence ? &c->ops : &c->pairs, &op->link);
    c->newest = MAX(c->newest, sequence);
    c->nops++;
    if (c->nodes)
        nodes_expect(c->nodes);
    *ret = op;
    return 0;
}

static void op_free(struct op *op)
{
    struct comm *c = op->comm;

    c->nops--;
    for (uint32_t i = 0; i < op->nparts; i++)
        arrival_free(op->arrivals[i]);
    for (uint32_t i = 0; op_is_wide(op) && i < comm_nnodes(c); i++)
        remote_free(op->remotes[i]);
    exchange_free(op->exchange);
    persistent_unref(op->persistent);
    free(op->children);
    free(op->verdict);
    offer_free(op->offer);
    op_free_answers(op);
    op_free_settled(op);
    spares_give(spares_of(c, op->sequence), op);
    if (c->nodes)
        nodes_expect(c->nodes);
}

static enum collective_id kind_of_rank(const struct op *op, uint32_t rank)
{
    const struct nodes *n = op->comm->nodes;
    const uint32_t node = n->placement->nodes[rank], i = n->placement->index[rank];
    const struct remote *remote = op->remotes[node];

    if (node == n->own)
        return op->arrivals[i] ? op->arrivals[i]->d.kind : COLLECTIVE_NONE;
    return remote ? remote_part(remote, i)->d.kind : COLLECTIVE_NONE;
}

enum collective_id op_kind(const struct op *op)
{
    const uint32_t n = op_is_wide(op) ? op->comm->nranks : op->nparts;

    if (op->offer)
        return COLLECTIVE_SEND;
    for (uint32_t i = 0; i < n; i++) {
        enum collective_id kind = COLLECTIVE_NONE;

        if (op_is_wide(op))
            kind = kind_of_rank(op, i);
        else if (op->arrivals[i])
            kind = op->arrivals[i]->d.kind;
        if (collective_get(kind))
            return kind;
    }
    return COLLECTIVE_NONE;
}

int op_system_error(const struct op *op, int err, struct error *e)
{
    struct text t = { 0 };

    op_title(op, &t);
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

void op_progress(const struct op *op, uint64_t chunks)
{
    const struct chunking *c = &op->chunking;
    struct progress p = { .chunks_done = chunks,
                          .chunks_total = c->chunks,
                          .elements_done = MIN(c->n, chunks * c->length),
                          .elements_total = c->n };

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a || !a->cell)
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

static void answer_all(struct op *op, uint64_t now)
{
    struct completion c = {
        .sequence = op->sequence,
        .run_us = op->agreed_us ? now - op->agreed_us : 0,
        .chunks = op->chunking.chunks,
        .chunk_elements = op->chunking.length,
        .peak_bytes = op->peak_bytes,
        .algorithm = op->algorithm ? op->algorithm->name : "",
    };
    uint64_t *counts = NULL;

    if (!op->error.code && op->exchange && op->arrivals[0]->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        counts = malloc(op->comm->nranks * sizeof(*counts));
        c.counts = counts;
        c.ncounts = counts ? op->comm->nranks : 0;
        if (!counts)
            op_system_error(op, ENOMEM, &op->error);
    }
    if (op->error.code)
        c.error = &op->error;
    else if (op->persistent && op->arrivals[0]->makes_persistent)
        c.persistent = op->persistent->id;
    for (uint32_t i = 0; i < op->nparts; i++) {
        struct arrival *a = op->arrivals[i];

        if (!a || !a->member)
            continue;
        c.child = op->children && !c.error ? op->children[a->rank].child : NULL;
        answer(op, a, &c, counts, now);
    }
    free(counts);
}

/* op_new() has left room behind the remotes. */
void op_make_letters(struct op *op)
{
    op->letters = (struct run_letter *)&op->remotes[comm_nnodes(op->comm)];
}

void op_give_run(struct op *op)
{
    struct comm *c = op->comm;

    if (op->run)
        op->peak_bytes = run_peak_bytes(op->run);
    if (!c->spare_run)
        c->spare_run = steal(&op->run);
    op->run = run_free(op->run);
    op->recipe = recipe_unref(op->recipe);
}

/* Memory is let go before anyone is told: who hears of the end may free or reuse it. */
void op_done(struct op *op, uint64_t now)
{
    struct comm *c = op->comm;

    op_set_state(op, OP_DONE);
    op_give_run(op);
    if (op->error.code)
        op_undo(op);
    else if (op->sequence)
        c->completed++;
    if (op_is_wide(op) && (op->error.code || windows_least_piece(op)))
        c->nodes->spoilt = MAX(c->nodes->spoilt, op->sequence);

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
    answer_all(op, now);
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

void op_end(struct op *op, const struct error *cause, uint64_t now)
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
    op_done(op, now);
}

void op_fail(struct op *op, const struct error *cause, uint64_t now)
{
    op_end(op, cause, now);
}

/* What the sentence says behind the collective's name, which the title has; NULL: it has none. */
static const char *behind_name(const struct op *op, const char *text)
{
    const struct collective *c = collective_get(op_kind(op));
    const size_t n = c ? strlen(c->name) : 0;

    if (!c || strncmp(text, c->name, n) || (strncmp(text + n, ": ", 2) && text[n] != ' '))
        return NULL;
    return text + n;
}

void op_disagree(struct op *op, const struct error *why, bool compared, uint64_t now)
{
    const char *rest = behind_name(op, why->text);
    struct error e = { 0 };
    struct text t = { 0 };

    op_title(op, &t);
    error_set(&e, why->code, "%s%s%s", t.s, rest ? "" : ": ", rest ? rest : why->text);
    if (!compared) {
        e.nranks = why->nranks;
        memcpy(e.ranks, why->ranks, sizeof(e.ranks));
    } else if (op->sequence) {
        for (uint32_t r = 0; r < op->comm->nranks; r++)
            error_add_rank(&e, r);
    } else {
        error_add_rank(&e, op->source);
        error_add_rank(&e, op->destination);
    }
    op_end(op, &e, now);
}

void op_break(struct op *op, const struct error *why, uint64_t now)
{
    if (op_is_wide(op) || op->offer)
        comm_fail(op->comm, why, now);
    else
        op_end(op, why, now);
}

/* ---- arrivals */

bool op_arrive(struct op *op, uint32_t part, struct arrival *a, uint64_t now)
{
    assert(op->state == OP_ARRIVING && !op->arrivals[part]);
    op->arrivals[part] = a;
    a->member->unfinished++;
    if (++op->narrived == 1) {
        op->first_us = now;
        op->deadline_us = comm_deadline(op->comm, now);
        comms_note_deadline(op->comm->comms, op->deadline_us);
    }
    if (op->narrived < op->nparts)
        return false;
    if (op_is_wide(op)) {
        if (!op_tell(op, now) || op->nremotes + 1 < comm_nnodes(op->comm))
            return false;
    }
    return op_agree(op, now);
}

void op_hear(struct op *op, uint32_t node, struct remote *remote, uint64_t now)
{
    op->remotes[node] = remote;
    op->nremotes++;
    op->piece = windows_lesser(op->piece, remote->piece);
    if (op->told && op_pass(op, now) && op->nremotes + 1 == comm_nnodes(op->comm))
        op_agree(op, now);
}
