#include "daemon/server/session_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- memberships ---- */

/* Under its number from now on; room for its member is made as well, so that gaining one succeeds.
 */
struct membership *membership_new(struct session *s, uint32_t number, enum membership_state state)
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

void membership_free(struct session *s, struct membership *ms)
{
    map_take(&s->memberships, ms->number);
    list_remove(&ms->link);
    free(ms->expected);
    free(ms);
}

void membership_set_member(struct session *s, struct membership *ms, struct member *m)
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
struct membership *membership_find(struct session *s, uint32_t number, struct error *e)
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

/* ---- meeting without the daemon ---- */

void session_slate_open(struct session *s, const struct request *r, struct packet *p)
{
    struct reply reply = { .kind = REPLY_DONE, .serial = r->serial };
    struct membership *ms = membership_find(s, r->slate_open.comm, &reply.done);
    int fd = -1;

    (void)p;
    if (ms && ms->state == MEMBERSHIP_READY && s->rings && s->service->config->slates)
        member_slate(ms->member, s->uid, &fd, &reply.done);
    session_reply(s, &reply, fd);
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
    service_sweep_regions(s->service);
    session_reply_done(s, serial, &none);
}

const struct comm_events session_events = {
    .joined = on_joined,
    .completed = session_completed,
    .progressed = session_progressed,
    .left = on_left,
};
