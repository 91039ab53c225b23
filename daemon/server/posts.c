/*
 * Posts of a session: from a request to a member's part in an operation, and its answer. A post is
 * known by its slot, which the client chose among those it has.
 */
#include "daemon/server/session_private.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/persistent.h"

#define SLOTS_MIN 64u

static uint64_t *copy_counts(const uint64_t *counts, uint32_t n)
{
    uint64_t *copy = malloc(MAX(n, 1u) * sizeof(*copy));

    if (copy && n)
        memcpy(copy, counts, n * sizeof(*copy));
    return copy;
}

void session_expect(struct session *s, const struct request *r, struct packet *p)
{
    struct membership *ms = map_get(&s->memberships, r->expect.comm);
    uint64_t *counts;

    (void)p;
    if (!ms)
        return; /* it has no answer; the post it belongs to has */
    counts = copy_counts(r->expect.counts, r->expect.ncounts);
    if (!counts) {
        session_give_up(s, ERROR_NO_MEMORY, "out of memory");
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

/* ---- slots ---- */

/* Room for a slot that the client may use. */
static int slots_reserve(struct session *s, uint32_t slot)
{
    uint32_t room = MAX(s->slots_room, SLOTS_MIN);
    struct slot *slots;

    if (slot < s->slots_room)
        return 0;
    while (room <= slot)
        room *= 2;
    slots = realloc(s->slots, room * sizeof(*slots));
    if (!slots)
        return -ERROR_NO_MEMORY;
    memset(slots + s->slots_room, 0, (room - s->slots_room) * sizeof(*slots));
    s->slots = slots;
    s->slots_room = room;
    return 0;
}

static struct slot *slot_find(const struct session *s, uint32_t slot)
{
    return slot < s->slots_room && s->slots[slot].used ? &s->slots[slot] : NULL;
}

/* `signal`, `child`: see struct slot. Return: 0, or -code, and the session is dismissed. */
static int slot_take(struct session *s, uint32_t slot, uint64_t serial, uint32_t signal,
                     struct membership *child)
{
    if (slots_reserve(s, slot) < 0) /* the others are told by its loss */
        return session_give_up(s, ERROR_NO_MEMORY, "out of memory");
    s->slots[slot] =
        (struct slot){ .used = true, .serial = serial, .signal = signal, .child = child };
    s->in_flight++;
    return 0;
}

/* ---- post ---- */

/* What a post and a start say of where they belong. */
struct place {
    const char *what; /* "post", "start" */
    uint64_t serial;
    uint32_t comm, slot, signal;
    bool sequenced;
    uint64_t sequence;
};

/* What no client of ours would ever send: it could not be told what became of such a post. */
static int place_check_slot(struct session *s, const struct place *p)
{
    if (p->slot >= s->nslots)
        return session_refuse(s, "%s: slot %u of %u", p->what, p->slot, s->nslots);
    if (slot_find(s, p->slot))
        return session_refuse(s, "%s: slot %u is in use", p->what, p->slot);
    if (p->signal && !s->signals)
        return session_refuse(s, "%s: a signal, but no memory for signals", p->what);
    return 0;
}

/* Likewise; and the member goes on at that number. */
static int place_enter(struct session *s, const struct place *p,
                                  const struct membership *ms)
{
    if (ms->state == MEMBERSHIP_JOINING)
        return session_refuse(s, "%s: communicator %u has not been joined yet", p->what,
                              ms->number);
    if (p->sequenced && !member_continue_at(ms->member, p->sequence))
        return session_refuse(
            s, "%s: operation %" PRIu64 " of communicator %u, but its next is %" PRIu64, p->what,
            p->sequence, ms->number, member_sequence(ms->member));
    return 0;
}

/* Answers a post that no membership is there for. */
static void place_refuse(struct session *s, const struct place *p, const struct error *why)
{
    struct reply closed = { .kind = REPLY_COMPLETION, .serial = p->serial };

    closed.completion.error = *why;
    closed.completion.sequence = p->sequence;
    session_signal(s, p->slot, p->signal);
    session_reply(s, &closed, -1);
}

/* The membership; NULL: there is none, and the post has been answered, or the session is over. */
static struct membership *place_find(struct session *s, const struct place *p)
{
    struct membership *ms;
    struct error e;

    if (place_check_slot(s, p) < 0)
        return NULL;
    error_clear(&e);
    ms = membership_find(s, p->comm, &e);
    if (ms && ms->state == MEMBERSHIP_BROKEN)
        error_set(&e, ERROR_CLOSED, "communicator %u was never complete; it can only be left",
                  p->comm);
    if (!e.code)
        return place_enter(s, p, ms) < 0 ? NULL : ms;
    place_refuse(s, p, &e);
    return NULL;
}

/* An unknown region, or fence, is a rejection in the post's place, so that its peers are told as
 * well. */
static void post_resolve(const struct session *s, const struct wire_operand *wire, const char *what,
                         struct operand *ret, struct error *rejection)
{
    *ret = (struct operand){ .offset = wire->offset, .window = wire->window };
    if (!wire->region)
        return;
    if (!session_find_region(s, wire->region, ret))
        error_set(rejection, ERROR_NOT_FOUND, "%s: region %u is not open", what, wire->region);
}

/* What is taken over as it came, field by field: to clear the whole first takes longer. */
static void post_copy(const struct session *s, const struct request_post *p,
                      const struct membership *ms, struct post *ret)
{
    const bool exchange = p->d.kind == COLLECTIVE_ALL_TO_ALL_V;

    ret->serial = p->slot; /* ours, unlike the client's, names one post in flight */
    ret->d = p->d;
    ret->out_rows = p->out_rows;
    ret->counts = p->counts;
    ret->ncounts = p->ncounts;
    ret->expected = exchange ? ms->expected : NULL;
    ret->nexpected = exchange ? ms->nexpected : 0;
    ret->peer = p->peer;
    ret->tag = p->tag;
    ret->color = p->color;
    ret->key = p->key;
    ret->child_number = p->child;
    ret->persistent = p->persistent;
    ret->cell = &s->cells[p->slot];
    ret->signal = session_signal_of(s, p->slot, p->signal);
}

static void post_fill(const struct session *s, const struct request_post *p,
                      const struct membership *ms, struct post *ret, struct error *rejection)
{
    error_clear(rejection);
    post_copy(s, p, ms, ret);
    post_resolve(s, &p->in, "input", &ret->in, rejection);
    post_resolve(s, &p->out, "output", &ret->out, rejection);
    ret->fence = session_find_fence(s, p->fence, rejection);
    if (p->d.kind == COLLECTIVE_SPLIT && p->color >= 0 && !p->child)
        error_set(rejection, ERROR_INVALID_ARGUMENT, "split: no number for the communicator");
    if (s->in_flight > s->nslots)
        error_set(rejection, ERROR_QUOTA,
                  "more than %u posts and joins are unanswered (max_in_flight in the daemon's "
                  "configuration)",
                  s->nslots);
    ret->rejection = NULL;
    if (p->rejection.code)
        ret->rejection = &p->rejection;
    else if (rejection->code)
        ret->rejection = rejection;
}

/* Sets a split's child aside under its number. Return: 0, or -code, and the session is over. */
static int post_reserve_child(struct session *s, const struct request_post *p,
                              struct membership **ret)
{
    *ret = NULL;
    if (p->d.kind != COLLECTIVE_SPLIT || !p->child)
        return 0;
    if (map_get(&s->memberships, p->child))
        return session_refuse(s, "post: communicator number %u is in use", p->child);
    *ret = membership_new(s, p->child, MEMBERSHIP_RESERVED);
    return *ret ? 0 : session_give_up(s, ERROR_NO_MEMORY, "out of memory");
}

static void post_taken(struct session *s, int r)
{
    if (r < 0)
        session_give_up(s, ERROR_NO_MEMORY, "out of memory");
}

void session_post(struct session *s, const struct request *r, struct packet *packet)
{
    const struct request_post *p = &r->post;
    const struct place place = { .what = "post",
                                 .serial = r->serial,
                                 .comm = p->comm,
                                 .slot = p->slot,
                                 .signal = p->signal,
                                 .sequenced = takes_sequence(&p->d),
                                 .sequence = p->sequence };
    struct membership *ms = place_find(s, &place), *child;
    struct error rejection;
    struct post post;

    (void)packet;
    if (!ms || post_reserve_child(s, p, &child) < 0 ||
        slot_take(s, p->slot, r->serial, p->signal, child) < 0)
        return;
    post_fill(s, p, ms, &post, &rejection);
    post_taken(s, member_post(ms->member, &post, service_now()));
    if (p->d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        free(steal(&ms->expected));
        ms->nexpected = 0;
    }
}

/* ---- persistent operations ---- */

/* As a post that is rejected, in the start's place. */
static void start_reject(struct session *s, const struct membership *ms, uint32_t slot,
                         const struct error *why)
{
    const struct post post = { .serial = slot, .cell = &s->cells[slot], .rejection = why };

    post_taken(s, member_post(ms->member, &post, service_now()));
}

void session_start(struct session *s, const struct request *r, struct packet *p)
{
    const uint32_t slot = r->start.slot;
    const struct place place = { .what = "start",
                                 .serial = r->serial,
                                 .comm = r->start.comm,
                                 .slot = slot,
                                 .signal = r->start.signal,
                                 .sequenced = true,
                                 .sequence = r->start.sequence };
    struct membership *ms = place_find(s, &place);
    struct start start = { .id = r->start.persistent,
                           .serial = slot,
                           .cell = &s->cells[slot],
                           .signal = session_signal_of(s, slot, r->start.signal) };
    struct error rejection;

    (void)p;
    if (!ms || slot_take(s, slot, r->serial, r->start.signal, NULL) < 0)
        return;
    error_clear(&rejection);
    start.fence = session_find_fence(s, r->start.fence, &rejection);
    if (rejection.code)
        start_reject(s, ms, slot, &rejection);
    else
        post_taken(s, member_start(ms->member, &start, service_now()));
}

void session_persistent_close(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };
    struct membership *ms = membership_find(s, r->persistent_close.comm, &e);

    (void)p;
    if (ms && member_persistent_free(ms->member, r->persistent_close.persistent) < 0)
        error_set(&e, ERROR_NOT_FOUND, "persistent operation %u of communicator %u is not open",
                  r->persistent_close.persistent, r->persistent_close.comm);
    service_sweep_regions(s->service);
    session_reply_done(s, r->serial, &e);
}

/* ---- windows ---- */

/* Of a post that has been answered meanwhile: nothing to do. */
void session_staged(struct session *s, const struct request *r, struct packet *p)
{
    struct error ignored = { 0 };
    struct membership *ms = membership_find(s, r->staged.comm, &ignored);

    (void)p;
    if (ms && slot_find(s, r->staged.slot))
        member_staged(ms->member, r->staged.slot, r->staged.in_ready, r->staged.out_taken,
                      service_now());
}

/* ---- answers ---- */

void session_progressed(void *owner, struct member *m, uint64_t serial, uint64_t elements_done)
{
    struct session *s = owner;
    struct reply reply = { .kind = REPLY_PROGRESS, .serial = s->slots[serial].serial };

    (void)m;
    reply.progress.elements_done = elements_done;
    session_reply(s, &reply, -1);
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

/* All of it is set; to zero it first would take as long as the rest. */
static void completion_fill(const struct completion *c, struct reply_completion *ret)
{
    if (c->error)
        ret->error = *c->error;
    else
        error_clear(&ret->error);
    ret->sequence = c->sequence;
    ret->wait_us = c->wait_us;
    ret->run_us = c->run_us;
    ret->chunks = c->chunks;
    ret->chunk_elements = c->chunk_elements;
    ret->peak_bytes = c->peak_bytes;
    ret->algorithm = c->algorithm;
    ret->counts = c->counts;
    ret->ncounts = c->ncounts;
    ret->child_rank = c->child ? member_rank(c->child) : 0;
    ret->child_nranks = c->child ? member_nranks(c->child) : 0;
    ret->child_id = c->child ? member_id(c->child) : NULL;
    ret->persistent = c->persistent;
}

void session_completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct session *s = owner;
    struct slot *slot = &s->slots[serial];
    struct reply reply;

    (void)m;
    assert(slot->used);
    slot->used = false;
    s->in_flight--;
    child_arrive(s, slot, c);
    service_sweep_regions(s->service);
    session_signal(s, (uint32_t)serial, slot->signal);

    reply.kind = REPLY_COMPLETION;
    reply.serial = slot->serial;
    completion_fill(c, &reply.completion);
    session_reply(s, &reply, -1);
}
