/*
 * A session's rings: requests and replies without the socket. A session is awake, its ring looked
 * at every turn of the loop, from its bell or an answer until nothing has come for a while; then
 * its ring is armed, and the client rings again. Who rings wakes those that its operation waits
 * for, too, so that one bell does for a communicator. While anybody is awake, the loop does not
 * sleep. Which clients sleep is looked up at the end of a turn, when the replies of all have been
 * put, and they are rung together: to look it up waits until what was put before is seen by others.
 */
#include "daemon/server/session_private.h"

#include <sched.h>
#include <string.h>

#include "daemon/device/fault.h"
#include "daemon/server/bells.h"

#define TAKES_PER_TURN 64u  /* requests of one session before the others have their turn */
#define CROWDED_US     200u /* that others had the CPU when we gave it away */

/* Who has the overflow uid is nobody in particular, and shares with nobody. */
static int open_belfry(struct session *s, struct error *e)
{
    struct service *service = s->service;
    struct list *belfries = s->uid == service->overflow_uid ? NULL : &service->belfries;
    int r = belfry_get(belfries, s->uid, &s->belfry);

    if (r < 0)
        return error_set_errno(e, -r, "make the bells");
    if (s->belfry->refs > 1)
        return 0; /* who made it was charged with its descriptor */
    r = quota_charge(&service->quotas, s->uid, QUOTA_FDS, 1, e);
    if (r < 0)
        s->belfry = belfry_put(s->belfry);
    return r;
}

static void close_belfry(struct session *s)
{
    if (s->belfry && s->belfry->refs == 1)
        quota_release(&s->service->quotas, s->uid, QUOTA_FDS, 1);
    s->belfry = belfry_put(s->belfry);
}

void session_rings_open(struct session *s, const struct request *r, struct packet *p)
{
    struct device *device = s->service->device;
    struct error e = { 0 };
    struct mapping *memory = NULL;
    struct client_rings *client;
    struct daemon_rings *ours;
    const struct fault_area *before;

    if (!s->service->config->rings || s->rings) {
        session_refuse(s, s->rings ? "a second rings_open" : "rings_open, but rings are off");
        return;
    }
    device_import_memfd(device, p->fds[0], sizeof(*client), &memory, &e);
    if (!memory || open_belfry(s, &e) < 0) {
        mapping_unref(memory);
        session_reply_done(s, r->serial, &e);
        return;
    }
    client = memory->base;
    ours = (struct daemon_rings *)((char *)s->cells + daemon_rings_offset(s->nslots));
    s->guard = (struct fault_area){ .mappings = &s->rings, .nmappings = 1 };
    s->requests = (struct ring_in){ .messages = &client->requests, .state = &ours->requests };
    s->replies = (struct ring_out){ .messages = &ours->replies, .state = &client->replies };
    before = fault_enter(&(struct fault_area){ .mappings = &memory, .nmappings = 1 });
    ring_arm(&s->requests, BELL_NONE); /* before the client hears of it, by the socket */
    fault_leave(before);
    session_reply(s, &(struct reply){ .kind = REPLY_DONE, .serial = r->serial }, s->belfry->fd);
    s->ours = ours;
    s->rings = memory;
}

void session_undo_rings(struct session *s)
{
    list_remove(&s->awake_link);
    list_remove(&s->owed_link);
    close_belfry(s);
    s->rings = mapping_unref(s->rings);
}

/* ---- requests */

static void session_stay_awake(struct session *s, uint64_t now)
{
    s->stirred = false;
    s->awake_until_us = now + s->service->config->spin_us;
}

/* Until its bell; not if there is something to take first. */
static void session_fall_asleep(struct session *s)
{
    const struct fault_area *before;
    bool asleep;

    before = fault_enter(&s->guard);
    asleep = ring_arm(&s->requests, BELL_NONE);
    fault_leave(before);
    if (asleep)
        list_remove(&s->awake_link);
    else
        ring_disarm(&s->requests);
}

static void session_wake(struct session *s)
{
    s->stirred = true; /* when that was, the next look knows */
    if (list_empty(&s->awake_link)) {
        ring_disarm(&s->requests);
        list_append(&s->service->awake, &s->awake_link);
    }
}

void session_bell(struct session *s, const struct request *r, struct packet *p)
{
    (void)r;
    (void)p;
    if (!s->rings) {
        session_refuse(s, "a bell without rings");
        return;
    }
    s->rang = true;
    session_wake(s);
}

static void wake_absent(void *owner)
{
    struct session *s = owner;

    if (s->rings && s->state == SESSION_SERVED)
        session_wake(s);
}

static void session_wake_peers(const struct session *s)
{
    const struct membership *ms;

    list_for_each(ms, &s->all_memberships, link)
        if (ms->member)
            member_visit_absent(ms->member, wake_absent);
}

/* Return: 0, or below zero where there is none, now or any more. */
static int session_take_request(struct session *s, struct packet *p)
{
    const struct fault_area *before;
    int r;

    before = fault_enter(&s->guard);
    r = ring_take(&s->requests, p->bytes, &p->len);
    fault_leave(before);
    if (fault_found(&s->guard)) /* the client's memory may fail under us */
        return session_give_up(s, ERROR_MEMORY_FAULT,
                               "the memory of the rings could not be backed with pages");
    if (r == RING_EMPTY)
        return -1;
    return r < 0 ? session_refuse(s, "its ring holds what no message is") : 0;
}

unsigned session_take_requests(struct session *s, unsigned limit)
{
    struct packet *p = &s->service->taken;
    unsigned n = 0;

    p->nfds = 0;
    while (s->rings && s->state < SESSION_DOOMED && n < limit && session_take_request(s, p) == 0) {
        session_handle(s, p);
        n++;
    }
    return n;
}

/* Return: whether something was there. */
static bool session_look(struct session *s, unsigned cpu, uint64_t now)
{
    ring_note_look(&s->requests, cpu);
    if (session_take_requests(s, TAKES_PER_TURN)) {
        session_stay_awake(s, now);
        if (s->rang)
            session_wake_peers(s);
        s->rang = false;
        return true;
    }
    if (s->stirred)
        session_stay_awake(s, now);
    if (now >= s->awake_until_us)
        session_fall_asleep(s);
    return false;
}

/*
 * Lets others run. Where they are busy, not looking like us, they keep the CPU for long, and
 * whoever sleeps is given it sooner than whoever gives it away: then everybody falls asleep, to be
 * rung.
 */
static void sessions_yield(struct service *service, uint64_t now)
{
    struct session *s, *tmp;

    sched_yield();
    if (service_now() - now < CROWDED_US)
        return;
    list_for_each_safe(s, tmp, &service->awake, awake_link)
        session_fall_asleep(s);
}

bool sessions_are_awake(const struct service *service)
{
    return !list_empty(&service->awake);
}

void sessions_look(struct service *service)
{
    const unsigned cpu = (unsigned)sched_getcpu();
    const uint64_t now = service_now();
    struct session *s, *tmp;
    bool found = false;

    list_for_each_safe(s, tmp, &service->awake, awake_link)
        found |= session_look(s, cpu, now);
    sessions_ring(service);
    if (!found && sessions_are_awake(service))
        sessions_yield(service, now);
}

/* ---- replies */

static void session_send_bell(struct session *s)
{
    struct reply bell = { .kind = REPLY_BELL };
    uint8_t *out = s->service->out;
    int r = codec_encode_reply(&bell, out);

    /* no room: it has not read the socket yet, and wakes for that */
    r = packet_send(s->socket, out, (uint32_t)r, -1);
    if (r < 0)
        session_doom(s, "disconnected");
}

/* One bell for all who hear it; nobody else is woken for one alone. */
static void session_ring(struct session *s)
{
    const uint32_t bell = ring_taken_bell(&s->replies);
    uint32_t *due = &s->belfry->due[bell];

    if (bell == BELL_NONE)
        session_send_bell(s);
    else if (*due == 1)
        bell_ring(&s->ours->bell, 1);
    else if (*due > 1)
        bell_ring(&s->belfry->bells->rung[bell], s->belfry->refs);
    *due = 0;
}

/* Whether the client may be asleep. */
static bool session_take_bell(struct session *s)
{
    const struct fault_area *before = fault_enter(&s->guard);
    const bool asleep = ring_take_bell(&s->replies);

    fault_leave(before);
    return asleep;
}

void sessions_ring(struct service *service)
{
    struct session *s, *tmp;

    list_for_each_safe(s, tmp, &service->owed, owed_link) {
        if (session_take_bell(s))
            s->belfry->due[ring_taken_bell(&s->replies)]++;
        else
            list_remove(&s->owed_link);
    }
    while (!list_empty(&service->owed)) {
        s = list_first(&service->owed, struct session, owed_link);
        list_remove(&s->owed_link);
        session_ring(s);
    }
}

void session_ring_for_socket(struct session *s)
{
    if (!s->rings)
        return;
    atomic_fetch_add_explicit(&s->ours->mail, 1, memory_order_release);
    bell_ring(&s->ours->bell, 1);
}

bool session_put_reply(struct session *s, const void *bytes, uint32_t len)
{
    const struct fault_area *before;
    bool put;

    if (!s->rings)
        return false;
    before = fault_enter(&s->guard);
    put = ring_put(&s->replies, bytes, len) == 0;
    fault_leave(before);
    if (!put)
        return false;
    if (list_empty(&s->owed_link))
        list_append(&s->service->owed, &s->owed_link);
    session_wake(s); /* who is answered soon asks again */
    return true;
}
