#include "daemon/comm/talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/gather.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/offers.h"
#include "daemon/comm/op_private.h"
#include "daemon/comm/telling.h"

/* ---- what is said */

/* Puts what the run sends to a node into what the node is told. Returns whether that is anything.
 */
static bool enclose(struct peer_agree *agree, const struct op *op, uint32_t node)
{
    uint32_t bytes = 0;
    const void *payload = op->run ? run_enclosed(op->run, node, &bytes) : NULL;

    agree->enclosed = payload && bytes <= PEER_ENCLOSED_MAX;
    agree->payload = agree->enclosed ? payload : NULL;
    agree->payload_bytes = agree->enclosed ? bytes : 0;
    if (op->letters)
        op->letters[node].delivered = agree->enclosed;
    return agree->enclosed;
}

/* All but what is enclosed is the same for every node, and is encoded once. */
static void tell_nodes(const struct op *op, struct peer_message *m)
{
    const struct nodes *n = op->comm->nodes;
    struct link_message encoded = nodes_encode(n, m);
    bool encloses = false;

    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        const bool enclosed = encloses;

        if (i == n->own)
            continue;
        encloses = enclose(&m->agree, op, i);
        if (encoded.len >= 0 && (encloses || enclosed))
            encoded = nodes_encode_payload(n, &m->agree);
        node_send_encoded(n, i, &encoded);
    }
}

int talk_agree(struct op *op)
{
    struct telling own;
    int r;

    if (nodes_are_many(op->comm->nodes))
        return gather_pass(op);
    r = telling_init(&own, op);
    if (r == 0)
        tell_nodes(op, &(struct peer_message){ .kind = PEER_AGREE, .agree = own.agree });
    telling_fini(&own);
    return r;
}

void talk_settled(const struct op *op, const struct error *outcome)
{
    struct peer_message m = { .kind = PEER_SETTLED, .settled = { .sequence = op->sequence } };

    memcpy(m.settled.key, op->comm->nodes->key, sizeof(m.settled.key));
    m.settled.error = *outcome;
    nodes_send(op->comm->nodes, &m);
}

void talk_ask(const struct op *op)
{
    const struct nodes *n = op->comm->nodes;
    struct peer_message m = { .kind = PEER_ASK, .ask = { .sequence = op->sequence } };

    memcpy(m.ask.key, n->key, sizeof(m.ask.key));
    for (uint32_t i = 0; i < n->placement->nnodes; i++)
        if (i != n->own && !op->remotes[i])
            node_send(n, i, &m);
}

void talk_fail(const struct comm *c)
{
    struct peer_message m = { .kind = PEER_FAIL };

    memcpy(m.fail.key, c->nodes->key, sizeof(m.fail.key));
    m.fail.error = c->failure;
    nodes_send(c->nodes, &m);
}

void talk_left(const struct comm *c, uint32_t rank, uint64_t sequence)
{
    struct peer_message m = { .kind = PEER_LEFT, .left = { .rank = rank, .sequence = sequence } };

    memcpy(m.left.key, c->nodes->key, sizeof(m.left.key));
    nodes_send(c->nodes, &m);
}

/* ---- what is heard */

void talk_fail_for(struct comm *c, uint32_t node, const char *what, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };

    text_add_label(&t, c);
    text_add_node(&t, &c->nodes->items[node]);
    error_set(&e, ERROR_PROTOCOL, "%s sent %s", t.s, what);
    error_add_node(&e, c->nodes, node);
    comm_fail(c, &e, now);
}

/* The next in order of that node's, and not too far ahead of the ranks here. */
static const char *check_sequence(const struct comm *c, uint32_t node, uint64_t sequence)
{
    if (sequence != c->nodes->items[node].agreed + 1)
        return "an agreement out of order";
    if (sequence > c->reached + AHEAD_MAX)
        return "agreements too far ahead of what the ranks here have come to";
    return NULL;
}

void talk_hear(struct comm *c, uint32_t node, const struct peer_agree *agree, uint64_t now)
{
    const char *wrong = check_sequence(c, node, agree->sequence);
    const struct peer_part *first = &agree->parts[0];
    struct remote *remote;
    struct error e = { 0 };
    struct op *op;

    if (wrong) {
        talk_fail_for(c, node, wrong, now);
        return;
    }
    if (remote_new(c->nodes, node, agree, &remote, &e) < 0) {
        comm_fail(c, &e, now);
        return;
    }
    if (comm_find_op(c, agree->sequence, now, &op) < 0) {
        remote_free(remote);
        error_set(&e, ERROR_NO_MEMORY, "no memory for an operation of another node");
        comm_fail(c, &e, now);
        return;
    }
    c->nodes->items[node].agreed = agree->sequence;
    op_hear(op, node, remote, now);
    if (c->ngone > 0)
        comm_check_left(c, first->d.kind, NULL, agree->sequence, now);
    comm_check_leaving(c, now);
}

static void on_agree(struct comm *c, uint32_t node, const struct peer_agree *agree, uint64_t now)
{
    if (nodes_are_many(c->nodes))
        talk_fail_for(c, node, "an agreement by itself, of many", now);
    else
        talk_hear(c, node, agree, now);
}

/* An unfinished operation; NULL: there is none of that number. */
static struct op *find_op(const struct comm *c, uint64_t sequence)
{
    struct op *op;

    list_for_each(op, &c->ops, link)
        if (op->sequence == sequence)
            return op;
    return NULL;
}

static void on_settled(struct comm *c, uint32_t node, uint64_t sequence, const struct error *e,
                       uint64_t now)
{
    struct op *op = find_op(c, sequence);

    if (!op || !op_may_settle(op, node))
        talk_fail_for(c, node, "the end of what it has not begun", now);
    else
        op_hear_settled(op, node, e, now);
}

/* Whether something is unfinished that needs a rank, which takes part in nothing from `sequence`
 * on. */
static bool is_awaited(const struct comm *c, uint32_t rank, uint64_t sequence)
{
    return c->newest >= sequence || offers_wait_for(c, rank);
}

static void on_left(struct comm *c, uint32_t node, uint32_t rank, uint64_t sequence, uint64_t now)
{
    const struct nodes *n = c->nodes;
    struct seat *seat = rank < c->nranks ? &c->seats[rank] : NULL;
    struct text t = { 0 };
    struct error e = { 0 };

    if (!seat || n->placement->nodes[rank] != node || seat->state != SEAT_REMOTE) {
        talk_fail_for(c, node, "the leave of a rank that is not there", now);
        return;
    }
    seat->state = SEAT_LEFT;
    seat->end = sequence;
    c->nremote--;
    c->ngone++;
    if (!is_awaited(c, rank, sequence))
        return;
    text_add_label(&t, c);
    text_add_rank(&t, rank, (pid_t)seat->pid, n->items[node].host);
    error_set(&e, ERROR_RANK_LEFT, "%s left while others need it", t.s);
    error_add_rank(&e, rank);
    comm_fail(c, &e, now);
}

/* Which ranks here have not come to an operation, and what they did last. */
static uint32_t list_absent(const struct comm *c, uint64_t sequence, uint64_t now,
                            struct peer_rank *ranks, struct text *last)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->nparts; i++) {
        const struct member *m = c->seats[comm_part_rank(c, i)].member;

        if (!m || m->sequence > sequence)
            continue;
        last[n] = (struct text){ 0 };
        text_add_last(&last[n], m, now);
        last[n].s[PEER_TEXT_MAX] = '\0';
        ranks[n] = (struct peer_rank){ m->rank, (uint32_t)m->pid, last[n].s };
        n++;
    }
    return n;
}

static void on_ask(const struct comm *c, uint32_t node, uint64_t sequence, uint64_t now)
{
    struct peer_message m = { .kind = PEER_MISSING, .missing = { .sequence = sequence } };
    struct peer_rank *ranks = malloc(c->nparts * sizeof(*ranks));
    struct text *last = malloc(c->nparts * sizeof(*last));

    if (ranks && last) { /* else the one who asks says less */
        memcpy(m.missing.key, c->nodes->key, sizeof(m.missing.key));
        m.missing.nranks = list_absent(c, sequence, now, ranks, last);
        m.missing.ranks = ranks;
        node_send(c->nodes, node, &m);
    }
    free(ranks);
    free(last);
}

static void on_missing(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now)
{
    struct op *op = find_op(c, m->missing.sequence);

    for (uint32_t i = 0; i < m->missing.nranks; i++) {
        const uint32_t rank = m->missing.ranks[i].rank;

        if (rank >= c->nranks || c->nodes->placement->nodes[rank] != node) {
            talk_fail_for(c, node, "the name of a rank that is not there", now);
            return;
        }
    }
    if (op)
        op_hear_missing(op, node, m->missing.ranks, m->missing.nranks, now);
}

static void on_fail(struct comm *c, uint32_t node, const struct error *why, uint64_t now)
{
    if (why->code)
        comm_fail(c, why, now);
    else
        talk_fail_for(c, node, "a failure without a cause", now);
}

void talk_receive(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now)
{
    if (c->state == COMM_FAILED)
        return;
    switch (m->kind) {
    case PEER_AGREE:
        on_agree(c, node, &m->agree, now);
        break;
    case PEER_GATHERED:
        gather_receive(c, node, m, now);
        break;
    case PEER_SETTLED:
        on_settled(c, node, m->settled.sequence, &m->settled.error, now);
        break;
    case PEER_FAIL:
        on_fail(c, node, &m->fail.error, now);
        break;
    case PEER_LEFT:
        on_left(c, node, m->left.rank, m->left.sequence, now);
        break;
    case PEER_OFFER:
        offers_hear(c, node, m, now);
        break;
    case PEER_ACCEPT:
        offers_hear_answer(c, node, m, now);
        break;
    case PEER_ASK:
        on_ask(c, node, m->ask.sequence, now);
        break;
    case PEER_MISSING:
        on_missing(c, node, m, now);
        break;
    default:
        break;
    }
    comm_run(c, now);
}

/* ---- */

static const uint8_t *key_of(const struct peer_message *m)
{
    switch (m->kind) {
    case PEER_AGREE:
        return m->agree.key;
    case PEER_GATHERED:
        return m->gathered.key;
    case PEER_SETTLED:
        return m->settled.key;
    case PEER_FAIL:
        return m->fail.key;
    case PEER_LEFT:
        return m->left.key;
    case PEER_ASK:
        return m->ask.key;
    case PEER_MISSING:
        return m->missing.key;
    case PEER_OFFER:
        return m->offer.key;
    case PEER_ACCEPT:
        return m->accept.key;
    default:
        return NULL;
    }
}

struct comm *talk_find(const struct comms *comms, const struct peer_message *m)
{
    const uint8_t *key = key_of(m);
    const struct nodes *n = key ? nodes_find(comms, key) : NULL;

    return n ? n->comm : NULL;
}
