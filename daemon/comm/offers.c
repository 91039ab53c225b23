#include "daemon/comm/offers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/op_private.h"
#include "daemon/comm/pairs.h"
#include "daemon/comm/talk.h"

static struct offer *offer_new(uint32_t node, uint64_t number)
{
    struct offer *o = calloc(1, sizeof(*o));

    if (!o)
        return NULL;
    o->node = node;
    o->number = number;
    plan_init(&o->full, 2);
    plan_init(&o->tail, 2);
    return o;
}

struct offer *offer_free(struct offer *o)
{
    if (!o)
        return NULL;
    plan_fini(&o->full);
    plan_fini(&o->tail);
    free(o);
    return NULL;
}

/* ---- moving the data */

static bool is_source(const struct op *op)
{
    return op->arrivals[0];
}

static int emit(const struct op *op, struct plan *p, uint64_t count)
{
    const bool sends = is_source(op);
    const struct span span = { .buffer = sends ? BUFFER_IN : BUFFER_OUT,
                               .rank = sends ? 0 : 1,
                               .count = count };

    plan_clear(p);
    plan_step(p, (struct step){ .kind = sends ? STEP_SEND : STEP_RECV,
                                .after = STEP_NONE,
                                .peer = op->offer->node });
    if (sends)
        plan_source(p, span);
    else
        plan_destination(p, span);
    return p->error;
}

/* The destination goes by the source's descriptor: what they need not agree on, a budget, has to be
 * the same for both. */
static int take_recipe(struct op *op, struct error *e)
{
    struct arrival *a = op->arrivals[1];
    struct recipe *recipe;
    int r;

    if (is_source(op))
        return 0;
    r = recipes_find(&op->comm->recipes, &op->offer->part.d, 0, &recipe, e);
    if (r < 0)
        return r;
    recipe_unref(a->recipe);
    a->recipe = recipe;
    return 0;
}

/* The same on both nodes: it follows from the descriptor and the communicator's table. */
static int decide(struct op *op, struct error *e)
{
    const struct frame f = comm_frame(op->comm);
    struct recipe *recipe;
    int r;

    r = take_recipe(op, e);
    if (r < 0)
        return r;
    recipe = op_first(op)->recipe;
    r = recipe_decide(recipe, &f, e);
    if (r < 0)
        return r;
    op_take_choice(op, &recipe->choice);
    if (op->chunking.chunks == 0)
        return 0;
    if (emit(op, &op->offer->full, chunk_count(&op->chunking, 0)) < 0 ||
        emit(op, &op->offer->tail, chunk_count(&op->chunking, op->chunking.chunks - 1)) < 0)
        return error_set(e, ERROR_NO_MEMORY, "no memory for a plan");
    return 0;
}

/* Both ends have agreed, and what is to move has been decided. */
static void start(struct op *op, uint64_t now)
{
    op->agreed_us = now;
    op_set_state(op, OP_AGREEING);
    op_start(op, now);
}

/* ---- the source */

int offers_send(struct comm *c, const struct post *post, struct arrival *a, uint64_t now)
{
    struct nodes *n = c->nodes;
    const uint32_t node = n->placement->nodes[post->peer];
    struct peer_message m = {
        .kind = PEER_OFFER,
        .offer = { .destination = post->peer,
                   .tag = post->tag,
                   .part = { .rank = a->rank, .d = a->d, .rejection = a->rejection } }
    };
    struct offer *o = offer_new(node, n->items[node].offered + 1);
    struct op *op;

    if (!o || op_new(c, 0, now, &op) < 0) {
        offer_free(o);
        return -ENOMEM;
    }
    op->source = a->rank;
    op->destination = post->peer;
    op->tag = post->tag;
    op->offer = o;
    m.offer.number = ++n->items[node].offered;
    memcpy(m.offer.key, n->key, sizeof(n->key));
    node_send(n, node, &m);
    op_arrive(op, 0, a, now);
    return 0;
}

static struct op *find_offered(const struct comm *c, uint32_t node, uint64_t number)
{
    struct op *op;

    list_for_each(op, &c->pairs, link)
        if (op->offer && is_source(op) && op->offer->node == node && op->offer->number == number)
            return op;
    return NULL;
}

void offers_hear_answer(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now)
{
    struct op *op = find_offered(c, node, m->accept.number);
    struct error e = { 0 };

    if (!op || op->state != OP_ARRIVING)
        talk_fail_for(c, node, "an answer to what was not offered", now);
    else if (m->accept.error.code)
        op_end(op, &m->accept.error, now);
    else if (decide(op, &e) < 0) /* though the destination could */
        op_break(op, &e, now);
    else
        start(op, now);
}

/* ---- the destination */

static void send_answer(const struct op *op, const struct error *e)
{
    const struct nodes *n = op->comm->nodes;
    struct peer_message m = { .kind = PEER_ACCEPT, .accept = { .number = op->offer->number } };

    memcpy(m.accept.key, n->key, sizeof(n->key));
    m.accept.error = *e;
    node_send(n, op->offer->node, &m);
}

/* Both requests are there. */
static void answer(struct op *op, uint64_t now)
{
    const struct view views[2] = {
        { .rank = op->source, .d = &op->offer->part.d, .rejection = op->offer->part.rejection },
        view_of(op->arrivals[1])
    };
    struct error why = { 0 }, e = { 0 };
    struct text t = { 0 };

    op->comm->nodes->items[op->offer->node].nwaiting--;
    if (agreement_check(views, 2, &why) == 0 && decide(op, &why) == 0) {
        send_answer(op, &e);
        start(op, now);
        return;
    }
    text_add_operation(&t, op->comm, COLLECTIVE_SEND, 0);
    error_set(&e, why.code, "%s: %s", t.s, why.text);
    e.nranks = why.nranks;
    memcpy(e.ranks, why.ranks, sizeof(e.ranks));
    send_answer(op, &e);
    op_end(op, &e, now);
}

int offers_receive(struct comm *c, const struct post *post, struct arrival *a, uint64_t now)
{
    struct op *op;
    int r;

    r = pairs_find(c, post->peer, a->rank, post->tag, 1, now, &op);
    if (r < 0)
        return r;
    op_arrive(op, 1, a, now);
    if (op->offer)
        answer(op, now);
    return 0;
}

static const char *check_offer(const struct comm *c, uint32_t node, const struct peer_message *m)
{
    const struct placement *p = c->nodes->placement;
    const struct peer_part *part = &m->offer.part;
    struct descriptor d = part->d;

    d.nranks = c->nranks;
    if (m->offer.number != c->nodes->items[node].heard + 1)
        return "an offer out of order";
    if (part->rank >= c->nranks || p->nodes[part->rank] != node ||
        m->offer.destination >= c->nranks || p->nodes[m->offer.destination] != c->nodes->own)
        return "an offer between ranks that are not there";
    if (part->rejection && !part->rejection->code)
        return "a rejection without a cause";
    if (!part->rejection && (d.kind != COLLECTIVE_SEND || descriptor_check(&d, NULL) < 0))
        return "an offer that its own checks refuse";
    if (c->nodes->items[node].nwaiting >= AHEAD_MAX)
        return "more offers than may wait";
    return NULL;
}

void offers_hear(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now)
{
    const char *wrong = check_offer(c, node, m);
    const struct peer_part *part = &m->offer.part;
    struct error e = { 0 };
    struct offer *o;
    struct op *op;

    if (wrong) {
        talk_fail_for(c, node, wrong, now);
        return;
    }
    c->nodes->items[node].heard++;
    o = offer_new(node, m->offer.number);
    if (!o || pairs_find(c, part->rank, m->offer.destination, m->offer.tag, 0, now, &op) < 0) {
        offer_free(o);
        error_set(&e, ERROR_NO_MEMORY, "no memory for an offer of another node");
        comm_fail(c, &e, now);
        return;
    }
    op->offer = o;
    o->part = *part;
    o->part.d.nranks = c->nranks;
    if (part->rejection) {
        o->rejection = *part->rejection;
        o->part.rejection = &o->rejection;
    }
    c->nodes->items[node].nwaiting++;
    if (op->arrivals[1]) {
        answer(op, now);
        return;
    }
    comm_check_left(c, COLLECTIVE_SEND, &m->offer.destination, 0, now);
    comm_check_leaving(c, now);
}

bool offers_wait_for(const struct comm *c, uint32_t rank)
{
    const struct op *op;

    list_for_each(op, &c->pairs, link)
        if (op->state == OP_ARRIVING && ((op->source == rank && !op->arrivals[0] && !op->offer) ||
                                         (op->destination == rank && !op->arrivals[1])))
            return true;
    return false;
}
