#include "daemon/server/session_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- memberships ---- */

/* Under its number from now on; room for its member is made as well, so that gaining one succeeds.
 */
static struct membership *membership_new(struct session *s, uint32_t number,
                                         enum membership_state state)
{
    struct membership *ms = calloc(1, sizeof(*ms));

    if (!ms || map_reserve(&s->members, s->memberships.count + 1) < 0 ||
        map_put(&s->memberships, number, ms) < 0) {
        free(ms);
        return NULL;
    }
    ms->number = number;
    ms->state = state;
    list_append(&s->all_memberships, &ms->link);
    return ms;
}

static void membership_free(struct session *s, struct membership *ms)
{
    map_take(&s->memberships, ms->number);
    list_remove(&ms->link);
    free(ms->expected);
    free(ms);
}

static void membership_set_member(struct session *s, struct membership *ms, struct member *m)
{
    ms->member = m;
    map_put(&s->members, (uintptr_t)m, ms);
}

static struct member *membership_take_member(struct session *s, struct membership *ms)
{
    if (ms->member)
        map_take(&s->members, (uintptr_t)ms->member);
    return steal(&ms->member);
}

/* A member that is not known yet is the one whose comms_join() is running. */
static struct membership *membership_of(struct session *s, struct member *m)
{
    struct membership *ms = map_get(&s->members, (uintptr_t)m);

    if (!ms) {
        ms = s->joining;
        assert(ms && !ms->member);
        membership_set_member(s, ms, m);
    }
    return ms;
}

/* One that the client may use; NULL, with the reason in `e`, if there is none of that number. */
static struct membership *membership_find(struct session *s, uint32_t number, struct error *e)
{
    struct membership *ms = map_get(&s->memberships, number);

    if (!ms || !ms->member || ms->state == MEMBERSHIP_LEAVING) {
        error_set(e, ERROR_CLOSED, "communicator %u is not open", number);
        return NULL;
    }
    return ms;
}

void session_undo_members(struct session *s)
{
    uint64_t now = service_now();
    struct membership *ms;

    /* losing one may complete a split, which gives another a member: start anew each time */
    do {
        list_for_each(ms, &s->all_memberships, link)
            if (ms->member) {
                member_lost(membership_take_member(s, ms), s->why, now);
                break;
            }
    } while (&ms->link != &s->all_memberships);

    while (!list_empty(&s->all_memberships))
        membership_free(s, list_first(&s->all_memberships, struct membership, link));
    map_fini(&s->memberships);
    map_fini(&s->members);
}

/* ---- join, leave, abort ---- */

static void join_answer(struct session *s, struct membership *ms, const struct error *e)
{
    if (!ms->join_owed)
        return;
    ms->join_owed = false;
    s->in_flight--;
    session_reply_done(s, ms->join_serial, e);
}

static int join(struct session *s, const struct request *r, struct error *e)
{
    struct join join = {
        .request = &r->join, .owner = s, .session = s->number, .uid = s->uid, .pid = s->pid
    };
    struct membership *ms;
    struct member *m;
    int result;

    if (s->in_flight >= s->nslots)
        return error_set(e, ERROR_QUOTA,
                         "%u posts and joins are unanswered, and no more may be (max_in_flight in "
                         "the daemon's configuration)",
                         s->in_flight);
    ms = membership_new(s, r->join.comm, MEMBERSHIP_JOINING);
    if (!ms)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    ms->join_serial = r->serial;
    ms->join_owed = true;
    s->in_flight++;

    s->joining = ms;
    result = comms_join(s->service->comms, &join, service_now(), &m, e);
    s->joining = NULL;
    if (result < 0) {
        s->in_flight--;
        membership_free(s, ms);
        return result;
    }
    if (!ms->member)
        membership_set_member(s, ms, m);
    return 0;
}

void session_join(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };

    (void)p;
    if (map_get(&s->memberships, r->join.comm)) {
        session_refuse(s, "join: communicator number %u is in use", r->join.comm);
        return;
    }
    if (join(s, r, &e) < 0)
        session_reply_done(s, r->serial, &e);
}

void session_leave(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };
    struct membership *ms = membership_find(s, r->leave.comm, &e);

    (void)p;
    if (!ms) {
        session_reply_done(s, r->serial, &e);
        return;
    }
    ms->state = MEMBERSHIP_LEAVING;
    ms->leave_serial = r->serial;
    member_leave(ms->member, service_now());
}

void session_abort(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };
    struct membership *ms = membership_find(s, r->abort.comm, &e);

    (void)p;
    if (ms)
        member_abort(ms->member, r->abort.text, service_now());
    session_reply_done(s, r->serial, &e);
}

/* ---- post ---- */

static uint64_t *copy_counts(const uint64_t *counts, uint32_t n)
{
    uint64_t *copy = malloc(MAX(n, 1u) * sizeof(*copy));

    if (copy && n)
        memcpy(copy, counts, n * sizeof(*copy));
    return copy;
}

void session_expect(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };
    struct membership *ms = map_get(&s->memberships, r->expect.comm);
    uint64_t *counts;

    (void)p;
    if (!ms)
        return; /* it has no answer; the post it belongs to has */
    counts = copy_counts(r->expect.counts, r->expect.ncounts);
    if (!counts) {
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
        session_dismiss(s, &e);
        return;
    }
    free(ms->expected);
    ms->expected = counts;
    ms->nexpected = r->expect.ncounts;
}

static bool takes_sequence(const struct descriptor *d)
{
    const struct collective *c = collective_get(d->kind);

    return !c || !(c->flags & COLLECTIVE_PAIR);
}

/* What no client of ours would ever send: it could not be told what became of such a post. */
static int post_check_protocol(struct session *s, const struct request_post *p,
                               const struct membership *ms)
{
    if (p->slot >= s->nslots)
        return session_refuse(s, "post: slot %u of %u", p->slot, s->nslots);
    if (s->slots[p->slot].used)
        return session_refuse(s, "post: slot %u is in use", p->slot);
    if (ms->state == MEMBERSHIP_JOINING)
        return session_refuse(s, "post: communicator %u has not been joined yet", p->comm);
    if (takes_sequence(&p->d) && p->sequence != member_sequence(ms->member))
        return session_refuse(
            s, "post: operation %" PRIu64 " of communicator %u, but its next is %" PRIu64,
            p->sequence, p->comm, member_sequence(ms->member));
    if (p->d.kind == COLLECTIVE_SPLIT && p->child && map_get(&s->memberships, p->child))
        return session_refuse(s, "post: communicator number %u is in use", p->child);
    return 0;
}

/* An unknown region is a rejection in the post's place, so that its peers are told as well. */
static void post_resolve(const struct session *s, const struct wire_operand *wire, const char *what,
                         struct operand *ret, struct error *rejection)
{
    *ret = (struct operand){ .offset = wire->offset };
    if (!wire->region)
        return;
    ret->mapping = session_find_region(s, wire->region);
    if (!ret->mapping)
        error_set(rejection, ERROR_NOT_FOUND, "%s: region %u is not open", what, wire->region);
}

static void post_fill(const struct session *s, const struct request_post *p,
                      const struct membership *ms, struct post *ret)
{
    *ret = (struct post){
        .serial = p->slot, /* ours, unlike the client's, names one post in flight */
        .d = p->d,
        .out_rows = p->out_rows,
        .counts = p->counts,
        .ncounts = p->ncounts,
        .peer = p->peer,
        .tag = p->tag,
        .color = p->color,
        .key = p->key,
        .child_number = p->child,
        .cell = &s->cells[p->slot],
        .rejection = p->rejection,
    };
    if (p->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        ret->expected = ms->expected;
        ret->nexpected = ms->nexpected;
    }
    post_resolve(s, &p->in, "input", &ret->in, &ret->rejection);
    post_resolve(s, &p->out, "output", &ret->out, &ret->rejection);
    if (p->d.kind == COLLECTIVE_SPLIT && p->color >= 0 && !p->child)
        error_set(&ret->rejection, ERROR_INVALID_ARGUMENT, "split: no number for the communicator");
    if (s->in_flight > s->nslots)
        error_set(&ret->rejection, ERROR_QUOTA,
                  "more than %u posts and joins are unanswered (max_in_flight in the daemon's "
                  "configuration)",
                  s->nslots);
}

/* Takes the slot, and the number of a split's child. */
static int post_take_slot(struct session *s, const struct request_post *p, uint64_t serial)
{
    struct slot *slot = &s->slots[p->slot];
    struct membership *child = NULL;

    if (p->d.kind == COLLECTIVE_SPLIT && p->child) {
        child = membership_new(s, p->child, MEMBERSHIP_RESERVED);
        if (!child)
            return -ERROR_NO_MEMORY;
    }
    *slot = (struct slot){ .used = true, .serial = serial, .child = child };
    s->in_flight++;
    return 0;
}

void session_post(struct session *s, const struct request *r, struct packet *packet)
{
    const struct request_post *p = &r->post;
    struct reply closed = { .kind = REPLY_COMPLETION, .serial = r->serial };
    struct membership *ms = membership_find(s, p->comm, &closed.completion.error);
    struct error e = { 0 };
    struct post post;

    (void)packet;
    if (ms && ms->state == MEMBERSHIP_BROKEN)
        error_set(&closed.completion.error, ERROR_CLOSED,
                  "communicator %u was never complete; it can only be left", p->comm);
    if (closed.completion.error.code) {
        closed.completion.sequence = p->sequence;
        session_reply(s, &closed, -1);
        return;
    }
    if (post_check_protocol(s, p, ms) < 0)
        return;

    if (post_take_slot(s, p, r->serial) < 0) {
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
        session_dismiss(s, &e); /* the others are told by its loss */
        return;
    }
    post_fill(s, p, ms, &post);
    if (member_post(ms->member, &post, service_now()) < 0) {
        error_set(&e, ERROR_NO_MEMORY, "out of memory");
        session_dismiss(s, &e);
    }
    if (p->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        free(steal(&ms->expected));
        ms->nexpected = 0;
    }
}

/* ---- what comm answers: replies and books only, never a call back ---- */

static void on_joined(void *owner, struct member *m, const struct error *e)
{
    static const struct error none;
    struct session *s = owner;
    struct membership *ms = membership_of(s, m);

    if (ms->state == MEMBERSHIP_JOINING)
        ms->state = e ? MEMBERSHIP_BROKEN : MEMBERSHIP_READY;
    join_answer(s, ms, e ? e : &none);
}

/* The membership that a split's post set aside comes to life, or does not. */
static void child_arrive(struct session *s, struct slot *slot, const struct completion *c)
{
    struct membership *child = steal(&slot->child);

    if (!child)
        return;
    if (!c->child) {
        membership_free(s, child);
        return;
    }
    child->state = MEMBERSHIP_READY;
    membership_set_member(s, child, c->child);
}

static void on_completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct session *s = owner;
    struct slot *slot = &s->slots[serial];
    struct reply reply = { .kind = REPLY_COMPLETION, .serial = slot->serial };
    struct reply_completion *rc = &reply.completion;

    (void)m;
    assert(slot->used);
    slot->used = false;
    s->in_flight--;
    child_arrive(s, slot, c);

    if (c->error)
        rc->error = *c->error;
    rc->sequence = c->sequence;
    rc->wait_us = c->wait_us;
    rc->run_us = c->run_us;
    rc->chunks = c->chunks;
    rc->chunk_elements = c->chunk_elements;
    rc->peak_bytes = c->peak_bytes;
    rc->algorithm = c->algorithm;
    rc->counts = c->counts;
    rc->ncounts = c->ncounts;
    if (c->child) {
        rc->child_rank = member_rank(c->child);
        rc->child_nranks = member_nranks(c->child);
        rc->child_id = member_id(c->child);
    }
    session_reply(s, &reply, -1);
}

static void on_left(void *owner, struct member *m)
{
    static const struct error none;
    struct session *s = owner;
    struct membership *ms = membership_of(s, m);
    uint64_t serial = ms->leave_serial;
    struct error e = { 0 };

    error_set(&e, ERROR_CLOSED, "left before every rank had joined");
    join_answer(s, ms, &e);
    membership_take_member(s, ms);
    membership_free(s, ms);
    session_reply_done(s, serial, &none);
}

const struct comm_events session_events = {
    .joined = on_joined,
    .completed = on_completed,
    .left = on_left,
};
