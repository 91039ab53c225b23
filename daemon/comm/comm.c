#include "daemon/comm/comm.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"
#include "daemon/comm/forming.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/op.h"
#include "daemon/comm/pairs.h"
#include "daemon/comm/persistent_private.h"
#include "daemon/comm/rendezvous.h"
#include "daemon/comm/slates.h"
#include "daemon/comm/talk.h"
#include "daemon/log/log.h"

/* Kept of each communicator's, for what is usually under way at once. */
#define SPARE_OPS      4u
#define SPARE_ARRIVALS 64u

/* ---- communicators */

static const char *const state_names[] = {
    [COMM_FORMING] = "forming",
    [COMM_READY] = "ready",
    [COMM_FAILED] = "failed",
};

const char *comm_state_name(enum comm_state state)
{
    return state_names[state];
}

/* edges[from] is the set of states that may follow. */
static const uint8_t edges[] = {
    [COMM_FORMING] = 1 << COMM_READY | 1 << COMM_FAILED,
    [COMM_READY] = 1 << COMM_FAILED,
    [COMM_FAILED] = 0,
};

void comm_set_state(struct comm *c, enum comm_state state)
{
    char number[24];

    assert(edges[c->state] & 1 << state);
    if (log_is_on(LOG_LEVEL_INFO)) {
        snprintf(number, sizeof(number), "%llu", (unsigned long long)c->number);
        log_info(&(struct log_context){ .communicator = number, .uid = &c->uid },
                 "communicator %s%s%s%s of %u rank%s: %s -> %s%s%s", number, *c->label ? " '" : "",
                 c->label, *c->label ? "'" : "", c->nranks, c->nranks == 1 ? "" : "s",
                 state_names[c->state], state_names[state], c->failure.code ? ": " : "",
                 c->failure.text);
    }
    c->state = state;
}

int comm_new(struct comms *comms, const char *id, uid_t uid, uint32_t nranks, struct comm **ret)
{
    struct comm *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->seats = calloc(nranks, sizeof(*c->seats));
    if (!c->seats) {
        free(c);
        return -ENOMEM;
    }
    c->comms = comms;
    c->number = ++comms->next_number;
    strncpy(c->id, id, sizeof(c->id) - 1);
    c->uid = uid;
    c->nranks = c->nparts = nranks;
    c->state = COMM_FORMING;
    c->forming_deadline_us = TIME_NEVER;
    c->holds = 1;
    list_init(&c->ops);
    list_init(&c->pairs);
    for (uint32_t i = 0; i < UNMATCHED_LISTS; i++)
        list_init(&c->unmatched[i]);
    recipes_init(&c->recipes);
    c->spare_arrivals.max = MAX(SPARE_OPS * nranks, SPARE_ARRIVALS);
    c->spare_ops.max = c->spare_pairs.max = SPARE_OPS;
    list_append(&comms->comms, &c->link);
    comms->ncomms++;
    *ret = c;
    return 0;
}

uint64_t comm_deadline(const struct comm *c, uint64_t now)
{
    return c->timeout_us == 0 || c->timeout_us > TIME_NEVER - now ? TIME_NEVER
                                                                  : now + c->timeout_us;
}

void comm_hold(struct comm *c)
{
    c->holds++;
}

/* A root coordinates also a group that has no rank here. */
static bool comm_is_needed(const struct comm *c)
{
    return c->holds > 0 || c->ntaken > 0 || c->nops > 0 ||
           (c->forming && !forming_is_guest(c->forming) && c->nremote > 0);
}

void comm_drop(struct comm *c)
{
    c->holds--;
    if (comm_is_needed(c))
        return;
    list_remove(&c->link);
    c->comms->ncomms--;
    forming_free(c->forming);
    persistents_fini(&c->persistents);
    recipes_fini(&c->recipes);
    spares_fini(&c->spare_arrivals);
    spares_fini(&c->spare_ops);
    spares_fini(&c->spare_pairs);
    run_free(c->spare_run);
    nodes_free(c->nodes);
    slate_free(c);
    free(c->seats);
    free(c);
}

static void unseat(struct member *m, enum seat_state state)
{
    struct comm *c = m->comm;

    persistents_forget(m);
    c->seats[m->rank].state = state;
    c->seats[m->rank].end = m->sequence;
    c->seats[m->rank].member = NULL;
    c->nleaving -= m->leaving;
    c->ntaken--;
    c->ngone++;
    if (c->nodes && state == SEAT_LEFT && c->state == COMM_READY)
        talk_left(c, m->rank, m->sequence);
    free(m);
}

void comm_discard(struct comm *c)
{
    c->nodes = nodes_free(c->nodes);
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->seats[r].member)
            unseat(c->seats[r].member, SEAT_LEFT);
    comm_drop(c);
}

int comm_seat(struct comm *c, uint32_t rank, void *owner, uint64_t session, pid_t pid,
              struct member **ret)
{
    struct member *m = calloc(1, sizeof(*m));

    if (!m)
        return -ENOMEM;
    m->comm = c;
    m->rank = rank;
    m->owner = owner;
    m->session = session;
    m->pid = pid;
    m->sequence = 1;
    c->seats[rank] = (struct seat){ .state = SEAT_TAKEN, .member = m };
    c->ntaken++;
    *ret = m;
    return 0;
}

void comm_fail(struct comm *c, const struct error *cause, uint64_t now)
{
    enum comm_state before = c->state;
    struct op *op, *tmp;

    if (before == COMM_FAILED)
        return;
    c->failure = *cause;
    comm_set_state(c, COMM_FAILED);
    if (c->slate)
        slate_shut(c->slate);
    c->nameless = c->nameless || forming_is_guest(c->forming);
    for (uint32_t r = 0; r < c->nranks && before == COMM_FORMING; r++)
        if (c->seats[r].member)
            c->comms->events.joined(c->seats[r].member->owner, c->seats[r].member, &c->failure);
    if (before == COMM_FORMING && !c->nameless && c->comms->config.link_ops)
        rendezvous_bury(c, now);
    if (c->forming)
        forming_fail(c->forming, &c->failure);
    if (c->nodes)
        talk_fail(c);
    list_for_each_safe(op, tmp, &c->ops, link)
        op_fail(op, &c->failure, now);
    list_for_each_safe(op, tmp, &c->pairs, link)
        op_fail(op, &c->failure, now);
    if (c->nodes)
        nodes_expect(c->nodes);
}

/* The member gets a communicator of its own, which has failed. */
void comm_expel(struct member *m, const struct error *why, uint64_t now)
{
    struct comm *c = m->comm, *own;

    if (comm_new(c->comms, c->id, c->uid, c->nranks, &own) < 0) {
        comm_fail(c, why, now);
        return;
    }
    memcpy(own->label, c->label, sizeof(own->label));
    own->nameless = true;
    own->seats[m->rank] = (struct seat){ .state = SEAT_TAKEN, .member = m };
    own->ntaken = 1;
    c->seats[m->rank] = (struct seat){ 0 };
    c->ntaken--;
    m->comm = own;
    comm_fail(own, why, now);
    comm_drop(own);
}

/* Operations are over in their order, and may have been begun before they failed. */
static void forget_messages(struct comm *c)
{
    struct nodes *n = c->nodes;

    if (!n || !n->spoilt || !n->channel)
        return;
    if (!list_empty(&c->ops) && list_first(&c->ops, struct op, link)->sequence <= n->spoilt)
        return;
    n->channel->transport->ops->channel_forget(n->channel, n->spoilt);
    n->spoilt = 0;
}

void comm_run(struct comm *c, uint64_t now)
{
    while (!list_empty(&c->ops)) {
        struct op *op = list_first(&c->ops, struct op, link);

        if (op->state != OP_AGREEING)
            break;
        op_start(op, now);
    }
    forget_messages(c);
}

/* ---- posts */

static bool is_pair(const struct post *post)
{
    const struct collective *row = collective_get(post->d.kind);

    return row && row->flags & COLLECTIVE_PAIR;
}

int comm_find_op(struct comm *c, uint64_t sequence, uint64_t now, struct op **ret)
{
    struct op *op;

    if (sequence > c->newest)
        return op_new(c, sequence, now, ret);
    list_for_each(op, &c->ops, link) {
        if (op->sequence == sequence) {
            *ret = op;
            return 0;
        }
    }
    assert(false); /* it waits for whoever has not come to it */
    return -ENOENT;
}

/* That of the member's next sequence number. */
static int find_next(struct member *m, uint64_t now, struct op **ret)
{
    struct comm *c = m->comm;
    const struct list *behind = m->last_op ? m->last_op->link.next : c->ops.next;

    /* Behind the last one of the member's comes its next, if it is there. Once the last one is
     * over, so is nearly all that came before it. */
    if (behind != &c->ops && container_of(behind, struct op, link)->sequence == m->sequence) {
        *ret = container_of(behind, struct op, link);
        return 0;
    }
    return comm_find_op(c, m->sequence, now, ret);
}

/* The first rank that has left before `sequence`, or `peer` if it has left: nobody shall wait for
 * it. */
static bool find_left(const struct comm *c, const uint32_t *peer, uint64_t sequence, uint32_t *ret)
{
    uint32_t first = peer ? *peer : 0, end = peer ? *peer + 1 : c->nranks;

    for (uint32_t r = first; r < MIN(end, c->nranks); r++) {
        if (c->seats[r].state == SEAT_LEFT && (peer || c->seats[r].end <= sequence)) {
            *ret = r;
            return true;
        }
    }
    return false;
}

void comm_check_left(struct comm *c, enum collective_id kind, const uint32_t *peer,
                     uint64_t sequence, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };
    uint32_t who;

    if (c->state == COMM_FAILED || !find_left(c, peer, sequence, &who))
        return;
    text_add_operation(&t, c, kind, 0);
    error_set(&e, ERROR_RANK_LEFT, "%s: rank %u has left the communicator", t.s, who);
    error_add_rank(&e, who);
    comm_fail(c, &e, now);
}

/* Whether an operation is there that the member has not arrived at. */
static bool awaited(const struct comm *c, const struct member *m)
{
    const struct op *op;

    if (c->state == COMM_FORMING)
        return true;
    if (!list_empty(&c->ops) &&
        container_of(c->ops.prev, const struct op, link)->sequence >= m->sequence)
        return true;
    list_for_each(op, &c->pairs, link)
        if ((op->source == m->rank && !op->arrivals[0]) ||
            (op->destination == m->rank && !op->arrivals[1]))
            return true;
    return false;
}

void comm_check_leaving(struct comm *c, uint64_t now)
{
    if (c->nleaving == 0)
        return;
    for (uint32_t r = 0; r < c->nranks; r++) {
        const struct member *m = c->seats[r].member;
        struct error e = { 0 };

        if (!m || !m->leaving || !awaited(c, m))
            continue;
        gone_error(m, ERROR_RANK_LEFT, "left while others need it", now, &e);
        comm_fail(c, &e, now);
        return;
    }
}

static int arrive_sequenced(struct member *m, struct arrival *a, uint64_t now)
{
    struct comm *c = m->comm;
    struct op *op;
    int r;

    r = find_next(m, now, &op);
    if (r < 0)
        return r;
    c->reached = MAX(c->reached, m->sequence);
    m->sequence++;
    m->last_op = op;
    op_arrive(op, comm_part(c, m->rank), a, now);
    return 0;
}

/* Somebody has lied at the slate, or to the daemon; which one, nobody can tell. */
static void fail_out_of_step(const struct member *m, enum collective_id kind, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };

    text_add_operation(&t, m->comm, kind, m->sequence);
    error_set(&e, ERROR_PROTOCOL,
              "%s, to which rank %u comes, and %llu, which others have begun, cannot both be next",
              t.s, m->rank, (unsigned long long)m->comm->newest);
    comm_fail(m->comm, &e, now);
}

/* `pair`: the post, of a pair; else NULL. */
static int arrive(struct member *m, const struct post *pair, struct arrival *a, uint64_t now)
{
    struct comm *c = m->comm;
    int r = 0;

    comm_hold(c);
    m->posted = (struct last_call){ a->d.kind, pair ? 0 : m->sequence, now };
    if (c->ngone > 0)
        comm_check_left(c, a->d.kind, pair ? &pair->peer : NULL, m->sequence, now);
    if (!pair && !slate_keeps_step(c, m))
        fail_out_of_step(m, a->d.kind, now);

    if (c->state == COMM_FAILED)
        op_refuse(a, pair ? 0 : m->sequence++, &c->failure);
    else
        r = pair ? pairs_arrive(m, pair, a, now) : arrive_sequenced(m, a, now);
    if (r < 0)
        arrival_free(a);
    else
        comm_check_leaving(c, now);
    comm_run(c, now);
    comm_drop(c);
    return r;
}

int member_arrive(struct member *m, struct arrival *a, uint64_t now)
{
    return arrive(m, NULL, a, now);
}

int member_post(struct member *m, const struct post *post, uint64_t now)
{
    struct arrival *a;
    int r;

    r = arrival_new(post, m, now, &a);
    if (r < 0)
        return r;
    return arrive(m, is_pair(post) ? post : NULL, a, now);
}

/* The unfinished collective that the member posted under `serial`; NULL: there is none. */
static struct op *find_post(const struct member *m, uint64_t serial)
{
    struct op *op;

    list_for_each(op, &m->comm->ops, link) {
        const struct arrival *a = op->arrivals[comm_part(m->comm, m->rank)];

        if (!a) /* nor is it at those behind */
            break;
        if (a->member == m && a->serial == serial)
            return op;
    }
    return NULL;
}

void member_staged(struct member *m, uint64_t serial, uint64_t in_ready, uint64_t out_taken,
                   uint64_t now)
{
    struct comm *c = m->comm;
    struct op *op = find_post(m, serial);

    if (!op)
        return;
    comm_hold(c);
    op_staged(op, comm_part(c, m->rank), in_ready, out_taken, now);
    comm_run(c, now);
    comm_drop(c);
}

void member_visit_absent(const struct member *m, void (*visit)(void *owner))
{
    const struct op *op = m->last_op;

    if (!op || op->state != OP_ARRIVING)
        return;
    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct member *other = m->comm->seats[comm_part_rank(m->comm, i)].member;

        if (!op->arrivals[i] && other)
            visit(other->owner);
    }
}

/* ---- the end of a member */

void member_finished(struct member *m)
{
    struct comm *c = m->comm;
    void *owner = m->owner;

    if (--m->unfinished > 0 || !m->leaving)
        return;
    c->comms->events.left(owner, m);
    unseat(m, SEAT_LEFT);
}

void member_leave(struct member *m, uint64_t now)
{
    struct comm *c = m->comm;

    comm_hold(c);
    m->leaving = true;
    c->nleaving++;
    m->unfinished++; /* it stays until the end of this function */
    comm_check_leaving(c, now);
    member_finished(m);
    comm_drop(c);
}

void member_abort(struct member *m, const char *text, uint64_t now)
{
    struct comm *c = m->comm;
    struct text t = { 0 };
    struct error e = { 0 };

    text_add_label(&t, c);
    error_set(&e, ERROR_ABORTED, "%saborted by rank %u: %s", t.s, m->rank, text);
    error_add_rank(&e, m->rank);
    comm_hold(c);
    comm_fail(c, &e, now);
    comm_drop(c);
}

static void forget_part(const struct op *op, uint32_t part, const struct member *m)
{
    struct arrival *a = op->arrivals[part];

    if (a && a->member == m) {
        a->member = NULL;
        a->cell = NULL;
    }
}

static void forget(const struct member *m)
{
    struct comm *c = m->comm;
    struct op *op;

    list_for_each(op, &c->ops, link)
        forget_part(op, comm_part(c, m->rank), m);
    list_for_each(op, &c->pairs, link) {
        forget_part(op, 0, m);
        forget_part(op, 1, m);
    }
}

void member_lost(struct member *m, const char *why, uint64_t now)
{
    struct comm *c = m->comm;
    struct error e = { 0 };

    comm_hold(c);
    forget(m);
    gone_error(m, ERROR_RANK_LOST, why, now, &e);
    unseat(m, SEAT_LOST);
    comm_fail(c, &e, now);
    comm_drop(c);
}

const char *member_id(const struct member *m)
{
    return m->comm->id;
}

uint32_t member_rank(const struct member *m)
{
    return m->rank;
}

uint32_t member_nranks(const struct member *m)
{
    return m->comm->nranks;
}

bool member_continue_at(struct member *m, uint64_t sequence)
{
    struct comm *c = m->comm;

    if (sequence == m->sequence)
        return true;
    if (sequence < m->sequence || sequence > SLATE_SEQUENCE_MAX || !c->slate)
        return false;
    if (sequence > c->reached + 1) {
        c->completed += sequence - 1 - c->reached;
        c->reached = sequence - 1;
    }
    m->sequence = sequence;
    return true;
}

static bool may_meet(const struct comm *c)
{
    return c->state == COMM_READY && !c->nodes && c->nranks <= SLATE_RANKS_MAX &&
           !strcmp(c->algorithm, "auto") && c->comms->config.charge;
}

int member_slate(struct member *m, uid_t uid, int *ret_fd, struct error *e)
{
    struct comm *c = m->comm;
    int r = 0;

    *ret_fd = -1;
    if (!may_meet(c) || !comms_same_uid(c->comms, uid, c->uid))
        return 0;
    r = slate_open(c, e);
    if (r == 0)
        *ret_fd = c->slate_fd;
    return r;
}

uint64_t member_sequence(const struct member *m)
{
    return m->sequence;
}
