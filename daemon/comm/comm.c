#include "daemon/comm/comm.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"
#include "daemon/comm/op.h"
#include "daemon/comm/persistent_private.h"
#include "daemon/log/log.h"

/* Kept of each communicator's, for what is usually under way at once. */
#define SPARE_OPS      4u
#define SPARE_ARRIVALS 64u

int comms_new(const struct comms_config *config, const struct comm_events *events,
              struct comms **ret)
{
    struct comms *comms;

    if (sodium_init() < 0)
        return -ENOSYS;
    comms = calloc(1, sizeof(*comms));
    if (!comms)
        return -ENOMEM;
    comms->config = *config;
    table_init(&comms->table, config->chunk_bytes);
    comms->events = *events;
    comms->deadline = TIME_NEVER;
    list_init(&comms->comms);
    list_init(&comms->tickets);
    *ret = comms;
    return 0;
}

struct comms *comms_free(struct comms *comms)
{
    if (!comms)
        return NULL;
    assert(list_empty(&comms->comms));
    rendezvous_tick(comms, TIME_NEVER);
    free(comms);
    return NULL;
}

uint64_t comms_deadline(const struct comms *comms)
{
    return comms->deadline;
}

void comms_note_deadline(struct comms *comms, uint64_t at)
{
    comms->deadline = MIN(comms->deadline, at);
}

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
                 "communicator %s '%s' of %u ranks: %s -> %s%s%s", number, c->label, c->nranks,
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
    c->nranks = nranks;
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

void comm_drop(struct comm *c)
{
    if (--c->holds > 0 || c->ntaken > 0 || c->nops > 0)
        return;
    list_remove(&c->link);
    c->comms->ncomms--;
    persistents_fini(&c->persistents);
    recipes_fini(&c->recipes);
    spares_fini(&c->spare_arrivals);
    spares_fini(&c->spare_ops);
    spares_fini(&c->spare_pairs);
    run_free(c->spare_run);
    free(c->seats);
    free(c);
}

static void unseat(struct member *m, enum seat_state state)
{
    struct comm *c = m->comm;

    persistents_forget(m);
    c->seats[m->rank] = (struct seat){ .state = state };
    c->nleaving -= m->leaving;
    c->ntaken--;
    c->ngone++;
    free(m);
}

void comm_discard(struct comm *c)
{
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
    c->seats[rank] = (struct seat){ SEAT_TAKEN, m };
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
    for (uint32_t r = 0; r < c->nranks && before == COMM_FORMING; r++)
        if (c->seats[r].member)
            c->comms->events.joined(c->seats[r].member->owner, c->seats[r].member, &c->failure);
    list_for_each_safe(op, tmp, &c->ops, link)
        op_fail(op, &c->failure, now);
    list_for_each_safe(op, tmp, &c->pairs, link)
        op_fail(op, &c->failure, now);
}

void comm_run(struct comm *c, uint64_t now)
{
    while (!list_empty(&c->ops)) {
        struct op *op = list_first(&c->ops, struct op, link);

        if (op->state != OP_AGREEING)
            break;
        op_start(op, now);
    }
}

/* ---- words */

void text_add_operation(struct text *t, const struct comm *c, enum collective_id kind,
                        uint64_t sequence)
{
    const struct collective *row = collective_get(kind);

    text_add(t, "%s", row ? row->name : "operation");
    if (sequence)
        text_add(t, " %llu", (unsigned long long)sequence);
    if (c->label[0])
        text_add(t, " of '%s'", c->label);
}

void text_add_last_call(struct text *t, const struct member *m)
{
    const struct collective *row = collective_get(m->last_kind);

    text_add(t, "%s", row ? row->name : m->last_sequence ? "unknown operation" : "joined");
    if (m->last_sequence)
        text_add(t, " %llu", (unsigned long long)m->last_sequence);
}

void text_add_last(struct text *t, const struct member *m, uint64_t now)
{
    text_add_last_call(t, m);
    text_add(t, ", %.1f s ago", (double)(now - m->last_us) / 1e6);
}

static void gone_error(const struct member *m, enum error_code code, const char *what, uint64_t now,
                       struct error *ret)
{
    const struct comm *c = m->comm;
    struct text t = { 0 };

    if (c->label[0])
        text_add(&t, "'%s': ", c->label);
    text_add(&t, "rank %u (pid %d on %s) %s; last: ", m->rank, (int)m->pid, c->comms->config.host,
             what);
    text_add_last(&t, m, now);
    error_set(ret, code, "%s", t.s);
    error_add_rank(ret, m->rank);
}

/* ---- posts */

static bool is_pair(const struct post *post)
{
    const struct collective *row = collective_get(post->d.kind);

    return row && row->flags & COLLECTIVE_PAIR;
}

/* The operation of the member's next sequence number. */
static int find_sequenced(struct member *m, uint64_t now, struct op **ret)
{
    struct comm *c = m->comm;
    struct list *l = m->last_op ? m->last_op->link.next : c->ops.next;

    /* Behind the last one of the member's comes its next, if it is there: one step. Once the last
     * one is over, so is nearly all that came before it. */
    for (; l != &c->ops; l = l->next) {
        struct op *op = container_of(l, struct op, link);

        if (op->sequence == m->sequence) {
            *ret = op;
            return 0;
        }
    }
    return op_new(c, m->sequence, now, ret);
}

/*
 * The pair that `part` of (source, destination, tag) belongs to. Those of one kind that wait all
 * wait for the same part, so the first of them says which: it is matched, or all are joined.
 */
static int find_pair(struct comm *c, uint32_t source, uint32_t destination, uint32_t tag,
                     uint32_t part, uint64_t now, struct op **ret)
{
    struct list *list = &c->unmatched[(source * 31 + destination * 7 + tag) % UNMATCHED_LISTS];
    struct op *op;
    int r;

    list_for_each(op, list, unmatched) {
        if (op->source != source || op->destination != destination || op->tag != tag)
            continue;
        if (op->arrivals[part])
            break;
        list_remove(&op->unmatched);
        *ret = op;
        return 0;
    }
    r = op_new(c, 0, now, &op);
    if (r < 0)
        return r;
    op->source = source;
    op->destination = destination;
    op->tag = tag;
    list_append(list, &op->unmatched);
    *ret = op;
    return 0;
}

/* The first rank that has left, or `peer` if that one has: nobody shall wait for it. */
static bool find_left(const struct comm *c, const uint32_t *peer, uint32_t *ret)
{
    uint32_t first = peer ? *peer : 0, end = peer ? *peer + 1 : c->nranks;

    for (uint32_t r = first; r < MIN(end, c->nranks); r++) {
        if (c->seats[r].state == SEAT_LEFT) {
            *ret = r;
            return true;
        }
    }
    return false;
}

/* Fails the communicator if the operation would need a rank that has left. */
static void check_left(struct comm *c, enum collective_id kind, const uint32_t *peer, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };
    uint32_t who;

    if (c->state == COMM_FAILED || !find_left(c, peer, &who))
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

/* Fails the communicator if an operation waits for a member that is on its way out. */
static void check_leaving(struct comm *c, uint64_t now)
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

static int arrive_pair(struct member *m, const struct post *post, struct arrival *a, uint64_t now)
{
    struct comm *c = m->comm;
    uint32_t part = post->d.kind == COLLECTIVE_SEND ? 0 : 1;
    uint32_t source = part == 0 ? m->rank : post->peer;
    uint32_t destination = part == 0 ? post->peer : m->rank;
    struct op *op;
    int r;

    if (post->peer >= c->nranks) { /* nobody to be told but the caller */
        op_refuse(a, 0, a->rejection);
        return 0;
    }
    r = find_pair(c, source, destination, post->tag, part, now, &op);
    if (r < 0)
        return r;
    if (op_arrive(op, part, a, now))
        op_start(op, now);
    return 0;
}

static int arrive_sequenced(struct member *m, struct arrival *a, uint64_t now)
{
    struct op *op;
    int r;

    r = find_sequenced(m, now, &op);
    if (r < 0)
        return r;
    m->sequence++;
    m->last_op = op;
    op_arrive(op, m->rank, a, now);
    return 0;
}

/* `pair`: the post, of a pair; else NULL. */
static int arrive(struct member *m, const struct post *pair, struct arrival *a, uint64_t now)
{
    struct comm *c = m->comm;
    int r = 0;

    comm_hold(c);
    m->last_kind = a->d.kind;
    m->last_sequence = pair ? 0 : m->sequence;
    m->last_us = now;
    if (c->ngone > 0)
        check_left(c, a->d.kind, pair ? &pair->peer : NULL, now);

    if (c->state == COMM_FAILED)
        op_refuse(a, pair ? 0 : m->sequence++, &c->failure);
    else
        r = pair ? arrive_pair(m, pair, a, now) : arrive_sequenced(m, a, now);
    if (r < 0)
        arrival_free(a);
    else
        check_leaving(c, now);
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
        const struct arrival *a = op->arrivals[m->rank];

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
    op_staged(op, m->rank, in_ready, out_taken, now);
    comm_run(c, now);
    comm_drop(c);
}

void member_visit_absent(const struct member *m, void (*visit)(void *owner))
{
    const struct op *op = m->last_op;

    if (!op || op->state != OP_ARRIVING)
        return;
    for (uint32_t r = 0; r < op->nparts; r++)
        if (!op->arrivals[r] && m->comm->seats[r].member)
            visit(m->comm->seats[r].member->owner);
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
    check_leaving(c, now);
    member_finished(m);
    comm_drop(c);
}

void member_abort(struct member *m, const char *text, uint64_t now)
{
    struct comm *c = m->comm;
    struct text t = { 0 };
    struct error e = { 0 };

    if (c->label[0])
        text_add(&t, "'%s': ", c->label);
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
        forget_part(op, m->rank, m);
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

uint64_t member_sequence(const struct member *m)
{
    return m->sequence;
}

/* ---- all of them */

/* Fails the communicator if one of its operations is overdue; else notes when that may be. */
static void tick_ops(struct comm *c, struct list *ops, uint64_t now)
{
    struct op *op;

    list_for_each(op, ops, link) {
        if (op->deadline_us <= now) {
            struct error e = { 0 };

            op_timeout_error(op, now, &e);
            comm_fail(c, &e, now);
            return;
        }
        comms_note_deadline(c->comms, op->deadline_us);
        if (op->sequence && op->state == OP_ARRIVING)
            return; /* those behind it arrived later */
    }
}

void comms_tick(struct comms *comms, uint64_t now)
{
    struct comm *c, *tmp;

    if (now < comms->deadline)
        return;
    comms->deadline = TIME_NEVER;
    comms_note_deadline(comms, rendezvous_tick(comms, now));
    list_for_each_safe(c, tmp, &comms->comms, link) {
        comm_hold(c);
        if (c->forming_deadline_us <= now)
            rendezvous_expire(c, now);
        else
            comms_note_deadline(comms, c->forming_deadline_us);
        tick_ops(c, &c->ops, now);
        tick_ops(c, &c->pairs, now);
        comm_drop(c);
    }
}

void comms_set_max(struct comms *comms, uint32_t max_comms)
{
    comms->config.max_comms = max_comms;
}

void comms_stop(struct comms *comms)
{
    comms->stopping = true;
}

uint32_t comms_unfinished(const struct comms *comms)
{
    const struct comm *c;
    uint32_t n = 0;

    list_for_each(c, &comms->comms, link)
        n += c->nops + (c->state == COMM_FORMING);
    return n;
}

void comms_fail_all(struct comms *comms, const struct error *cause, uint64_t now)
{
    struct comm *c, *tmp;

    list_for_each_safe(c, tmp, &comms->comms, link) {
        comm_hold(c);
        comm_fail(c, cause, now);
        comm_drop(c);
    }
}

uint32_t comms_count(const struct comms *comms)
{
    return comms->ncomms;
}
