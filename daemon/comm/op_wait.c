/* Who an operation waits for, and what is said of them when its time is up. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/op_private.h"
#include "daemon/comm/talk.h"
#include "daemon/comm/windows.h"

/* What nodes are given to say who is missing, and a link to notice that it is lost. */
#define ANSWER_US 1000000u

/* Ranks whose last call is told. */
#define LAST_CALLS 4u

/* Which ranks a node misses, and what they did last. */
struct answer {
    uint32_t n;
    struct absent {
        uint32_t rank;
        char last[PEER_TEXT_MAX + 1];
    } absent[];
};

static void extend(struct op *op, uint64_t now)
{
    op->deadline_us = now + ANSWER_US;
    comms_note_deadline(op->comm->comms, op->deadline_us);
}

void op_wait_for_link(struct op *op, uint64_t now)
{
    op->cut = true;
    extend(op, now);
}

/* ---- asking */

bool op_is_overdue(struct op *op, uint64_t now)
{
    if (!op_is_wide(op) || op->state != OP_ARRIVING || op->answers ||
        op->nremotes + 1 == comm_nnodes(op->comm))
        return true;
    op->answers = calloc(comm_nnodes(op->comm), sizeof(struct answer *));
    if (!op->answers)
        return true;
    talk_ask(op);
    extend(op, now);
    return false;
}

/* Whether every node has spoken or said who is missing. */
static bool all_answered(const struct op *op)
{
    for (uint32_t i = 0; i < comm_nnodes(op->comm); i++)
        if (i != op->comm->nodes->own && !op->remotes[i] && !op->answers[i])
            return false;
    return true;
}

void op_hear_missing(struct op *op, uint32_t node, const struct peer_rank *ranks, uint32_t n,
                     uint64_t now)
{
    struct answer *answer;

    if (!op->answers || op->answers[node])
        return;
    answer = malloc(sizeof(*answer) + n * sizeof(answer->absent[0]));
    if (!answer)
        return; /* then less is said */
    answer->n = n;
    for (uint32_t i = 0; i < n; i++) {
        answer->absent[i].rank = ranks[i].rank;
        snprintf(answer->absent[i].last, sizeof(answer->absent[i].last), "%s", ranks[i].last);
    }
    op->answers[node] = answer;
    if (all_answered(op) && op_ranks(op, false, NULL) > 0) {
        op->deadline_us = now;
        comms_note_deadline(op->comm->comms, now);
    }
}

void op_free_answers(struct op *op)
{
    for (uint32_t i = 0; op->answers && i < comm_nnodes(op->comm); i++)
        free(op->answers[i]);
    free(op->answers);
}

/* ---- who is missing */

/* What a node has said of a rank; NULL: not that it is missing. */
static const struct absent *find_absent(const struct answer *answer, uint32_t rank)
{
    for (uint32_t i = 0; i < answer->n; i++)
        if (answer->absent[i].rank == rank)
            return &answer->absent[i];
    return NULL;
}

/* As far as is known here: a node that has not answered is missing as a whole. */
static bool has_come(const struct op *op, uint32_t rank)
{
    const struct nodes *n = op->comm->nodes;
    uint32_t node;

    if (!op_is_wide(op))
        return op->arrivals[rank];
    node = n->placement->nodes[rank];
    if (node == n->own)
        return op->arrivals[n->placement->index[rank]];
    if (op->remotes[node])
        return true;
    return op->answers && op->answers[node] && !find_absent(op->answers[node], rank);
}

static void add_to(uint32_t *ranks, uint32_t *n, uint32_t rank)
{
    if (ranks)
        ranks[*n] = rank;
    ++*n;
}

uint32_t op_ranks(const struct op *op, bool arrived, uint32_t *ret)
{
    uint32_t n = 0;

    if (!op->sequence) {
        for (uint32_t i = 0; i < 2; i++)
            if ((op->arrivals[i] || (i == 0 && op->offer)) == arrived)
                add_to(ret, &n, i == 0 ? op->source : op->destination);
        return n;
    }
    for (uint32_t r = 0; r < op->comm->nranks; r++)
        if (has_come(op, r) == arrived)
            add_to(ret, &n, r);
    return n;
}

static void add_last_here(const struct member *m, uint64_t now, struct text *t)
{
    text_add_rank(t, m->rank, m->pid, m->comm->comms->config.host);
    text_add(t, " last: ");
    text_add_last(t, m, now);
}

static void add_last_there(const struct op *op, uint32_t rank, struct text *t)
{
    const struct nodes *n = op->comm->nodes;
    const uint32_t node = n->placement->nodes[rank];
    const struct answer *answer = op->answers ? op->answers[node] : NULL;
    const struct absent *absent = answer ? find_absent(answer, rank) : NULL;

    text_add_rank(t, rank, (pid_t)op->comm->seats[rank].pid, n->items[node].host);
    if (absent)
        text_add(t, " last: %s", absent->last);
    else
        text_add(t, " whose node has not answered");
}

static void add_absent(const struct op *op, const uint32_t *ranks, uint32_t n, uint64_t now,
                       struct text *t)
{
    const char *between = ": ";

    for (uint32_t i = 0; i < MIN(n, LAST_CALLS); i++) {
        const struct seat *seat = &op->comm->seats[ranks[i]];

        if (!seat->member && seat->state != SEAT_REMOTE)
            continue;
        text_add(t, "%s", between);
        if (seat->member)
            add_last_here(seat->member, now, t);
        else
            add_last_there(op, ranks[i], t);
        between = "; ";
    }
}

static void add_arrivals(const struct op *op, uint64_t now, struct text *t, struct error *e)
{
    uint32_t *ranks = malloc(MAX(op->comm->nranks, 2) * sizeof(*ranks));
    uint32_t n;

    if (!ranks)
        return;
    n = op_ranks(op, true, ranks);
    text_add(t, "; ");
    text_add_ranks(t, ranks, n);
    text_add(t, " arrived, ");
    n = op_ranks(op, false, ranks);
    if (n > 0)
        text_add_ranks(t, ranks, n);
    else
        text_add(t, "but what they ask");
    text_add(t, " did not");
    for (uint32_t i = 0; i < n; i++)
        error_add_rank(e, ranks[i]);
    add_absent(op, ranks, n, now, t);
    free(ranks);
}

/* Whether a rank has called one half of a pair with itself, and nobody the other. */
static bool lacks_own_half(const struct op *op)
{
    return !op->sequence && op->source == op->destination && op->narrived < op->nparts;
}

static void add_own_half(const struct op *op, struct text *t, struct error *e)
{
    text_add(t, "; no %s with tag %u at rank %u (itself)", op->arrivals[0] ? "recv" : "send",
             op->tag, op->source);
    error_add_rank(e, op->source);
}

/* Nodes that have not said how they settled. */
static void add_unsettled(const struct op *op, struct text *t, struct error *e)
{
    const struct nodes *n = op->comm->nodes;

    text_add(t, " of waiting for");
    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        if (i == n->own || (op->settled && op->settled[i].known))
            continue;
        text_add(t, " ");
        text_add_node_ranks(t, n, i);
        error_add_node(e, n, i);
    }
}

/* Ranks of this node whose own work on their GPUs is not done. */
static void add_fenced(const struct op *op, struct text *t, struct error *e)
{
    const char *between = "; work on the GPU before it is waited for: ";
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a || !a->member || !a->fence || a->fence->device->ops->fence_passed(a->fence) != 0)
            continue;
        error_add_rank(e, a->rank);
        if (n++ >= LAST_CALLS)
            continue;
        text_add(t, "%s", between);
        text_add_rank(t, a->rank, a->member->pid, op->comm->comms->config.host);
        between = ", ";
    }
}

/* The payload's connection was seen to be lost, and its link was not. */
static void cut_error(const struct op *op, struct error *ret)
{
    struct text t = { 0 };

    op_title(op, &t);
    error_set(ret, ERROR_RANK_LOST,
              "%s: the connection that carries its data to another node is lost", t.s);
}

void op_timeout_error(const struct op *op, uint64_t now, struct error *ret)
{
    struct text t = { 0 };

    if (op->cut) {
        cut_error(op, ret);
        return;
    }
    op_title(op, &t);
    text_add(&t, ": timeout after %.3g s", (double)op->comm->timeout_us / 1e6);
    if (lacks_own_half(op)) {
        add_own_half(op, &t, ret);
    } else if (op->state != OP_RUNNING) {
        add_arrivals(op, now, &t, ret);
    } else if (op->settling) {
        add_unsettled(op, &t, ret);
    } else {
        text_add(&t, " of moving data");
        if (op->run && run_is_fenced(op->run))
            add_fenced(op, &t, ret);
        else if (op->run)
            windows_add_laggards(op, &t, ret);
    }
    error_set(ret, ERROR_TIMEOUT, "%s", t.s);
}
