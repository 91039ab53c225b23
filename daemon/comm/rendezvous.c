/* How communicators come to be: ids, joins, splits. */
#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/forming.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/rendezvous.h"
#include "daemon/plan/plan.h"

#define ID_CHARS 26u /* 130 random bits, 5 a character */

/* An id that nobody has joined; or, with a failure, one of a group of several nodes that could not
 * form, for those of its ranks that come to ask when it is gone. */
struct ticket {
    struct list link; // comms::tickets
    char id[COMM_ID_BYTES];
    uid_t uid;
    uint64_t lapses_us;
    struct error *failure;
};

/* `home`: the address of the daemon that made it, or its node. */
static void id_format(const char *home, const uint8_t bits[ID_BYTES], char ret[COMM_ID_BYTES])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
    char text[ID_CHARS + 1] = { 0 };

    for (uint32_t i = 0; i < ID_CHARS; i++) {
        uint32_t bit = 5 * i;
        uint32_t two =
            (uint32_t)bits[bit / 8] << 8 | (bit / 8 + 1 < ID_BYTES ? bits[bit / 8 + 1] : 0);

        text[i] = alphabet[two >> (11 - bit % 8) & 31];
    }
    snprintf(ret, COMM_ID_BYTES, "rc1-%s@%s", text, home);
}

static const char *own_home(const struct comms *comms)
{
    return comms->config.link_ops ? comms->config.address : comms->config.node;
}

/* NULL: it is no id. */
static const char *id_home(const char *id)
{
    const char *at = strchr(id, '@');

    return at ? at + 1 : NULL;
}

/* Whether an id is of a daemon that can be asked: its address is in it, and is not our own. */
static bool is_elsewhere(const struct comms *comms, const char *id)
{
    const char *home = id_home(id);

    return comms->config.link_ops && home && strchr(home, ':') && strcmp(home, own_home(comms));
}

static struct ticket *find_ticket(const struct comms *comms, const char *id)
{
    struct ticket *t;

    list_for_each(t, &comms->tickets, link)
        if (!strcmp(t->id, id))
            return t;
    return NULL;
}

struct comm *rendezvous_find(const struct comms *comms, const char *id)
{
    struct comm *c;

    list_for_each(c, &comms->comms, link)
        if (!c->nameless && !strcmp(c->id, id))
            return c;
    return NULL;
}

int rendezvous_check_quota(const struct comms *comms, uid_t uid, struct error *e)
{
    const struct comm *c;
    const struct ticket *t;
    uint32_t n = 0;

    list_for_each(c, &comms->comms, link)
        n += c->uid == uid;
    list_for_each(t, &comms->tickets, link)
        n += t->uid == uid && !t->failure;
    if (n < comms->config.max_comms)
        return 0;
    return error_set(e, ERROR_QUOTA,
                     "uid %u has %u communicators and ids; max_communicators allows %u",
                     (unsigned)uid, n, comms->config.max_comms);
}

static int check_stopping(const struct comms *comms, struct error *e)
{
    return comms->stopping ? error_set(e, ERROR_DAEMON_STOPPING,
                                       "the daemon is stopping and forms no new communicators")
                           : 0;
}

int comms_id_new(struct comms *comms, uid_t uid, uint64_t now, char ret[COMM_ID_BYTES],
                 struct error *e)
{
    uint8_t bits[ID_BYTES];
    struct ticket *t;
    int r;

    r = check_stopping(comms, e);
    if (r == 0)
        r = rendezvous_check_quota(comms, uid, e);
    if (r < 0)
        return r;
    t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, ERROR_NO_MEMORY, "no memory for an id");

    randombytes_buf(bits, sizeof(bits));
    id_format(own_home(comms), bits, t->id);
    t->uid = uid;
    t->lapses_us = now + comms->config.id_lifetime_us;
    list_append(&comms->tickets, &t->link);
    comms_note_deadline(comms, t->lapses_us);
    memcpy(ret, t->id, sizeof(t->id));
    return 0;
}

static void ticket_free(struct ticket *t)
{
    list_remove(&t->link);
    free(t->failure);
    free(t);
}

static int not_found(const struct comms *comms, const char *id, struct error *e)
{
    const char *home = id_home(id);

    if (!comms->config.link_ops && home && strchr(home, ':'))
        return error_set(
            e, ERROR_NOT_FOUND,
            "id '%s' was made by the daemon at %s, and the one here serves its own node "
            "alone: 'listen' is not set in its configuration",
            id, home);
    return error_set(e, ERROR_NOT_FOUND,
                     "no communicator can be joined by id '%s': it was not made here, was dropped, "
                     "has lapsed unjoined, or its communicator is over",
                     id);
}

void rendezvous_bury(const struct comm *c, uint64_t now)
{
    struct ticket *t = calloc(1, sizeof(*t));
    struct error *failure = malloc(sizeof(*failure));

    if (!t || !failure) { /* then they hear that it is over */
        free(t);
        free(failure);
        return;
    }
    *failure = c->failure;
    memcpy(t->id, c->id, sizeof(t->id));
    t->uid = c->uid;
    t->failure = failure;
    t->lapses_us = now + c->comms->config.id_lifetime_us;
    list_append(&c->comms->tickets, &t->link);
    comms_note_deadline(c->comms, t->lapses_us);
}

int comms_id_drop(struct comms *comms, uid_t uid, const char *id, struct error *e)
{
    struct ticket *t = find_ticket(comms, id);

    if (!t || t->failure || !comms_same_uid(comms, t->uid, uid))
        return not_found(comms, id, e);
    ticket_free(t);
    return 0;
}

uint64_t rendezvous_tick(struct comms *comms, uint64_t now)
{
    struct ticket *t, *tmp;
    uint64_t next = TIME_NEVER;

    list_for_each_safe(t, tmp, &comms->tickets, link) {
        if (t->lapses_us <= now)
            ticket_free(t);
        else
            next = MIN(next, t->lapses_us);
    }
    return next;
}

/* ---- joining */

static int check_request(const struct request_join *r, struct error *e)
{
    if (r->nranks == 0 || r->nranks > RANKS_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "join: world size %u is not between 1 and %u",
                         r->nranks, RANKS_MAX);
    if (r->rank >= r->nranks)
        return error_set(e, ERROR_INVALID_ARGUMENT, "join: rank %u is not below world size %u",
                         r->rank, r->nranks);
    if (r->algorithm[0] && !algorithm_name_known(r->algorithm))
        return error_set(e, ERROR_UNSUPPORTED_ALGORITHM, "join: algorithm '%s' is not known",
                         r->algorithm);
    return 0;
}

static const char *algorithm_of(const struct request_join *r)
{
    return r->algorithm[0] ? r->algorithm : "auto";
}

/* The first to come says what the group is. The new comm is held. */
static int found(struct comms *comms, uid_t uid, const struct request_join *r, uint64_t now,
                 struct comm **ret, struct error *e)
{
    struct comm *c;

    if (comm_new(comms, r->id, uid, r->nranks, &c) < 0)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a communicator of %u ranks",
                         r->nranks);
    snprintf(c->label, sizeof(c->label), "%s", r->label);
    snprintf(c->algorithm, sizeof(c->algorithm), "%s", algorithm_of(r));
    c->timeout_us = r->timeout_us;
    c->forming_deadline_us = comm_deadline(c, now);
    comms_note_deadline(comms, c->forming_deadline_us);
    *ret = c;
    return 0;
}

/* The root is another daemon: it is asked for every rank that comes here. */
static int found_guest(struct comms *comms, const struct join *join, uint64_t now,
                       struct comm **ret, struct error *e)
{
    struct comm *c;
    int r;

    r = rendezvous_check_quota(comms, join->uid, e);
    if (r == 0)
        r = found(comms, join->uid, join->request, now, &c, e);
    if (r < 0)
        return r;
    r = forming_ask(c, id_home(c->id), e);
    if (r < 0) {
        comm_drop(c);
        return r;
    }
    *ret = c;
    return 0;
}

static int has_failed(const struct error *why, struct error *e)
{
    return error_set(e, why->code, "join: the communicator has failed: %s", why->text);
}

static int check_seat(const struct comm *c, const struct request_join *r, struct error *e)
{
    const struct seat *seat = r->rank < c->nranks ? &c->seats[r->rank] : NULL;

    if (c->state == COMM_FAILED)
        return has_failed(&c->failure, e);
    if (seat && seat->member)
        error_set(e, ERROR_DUPLICATE_RANK, "join: rank %u is taken by pid %d already", r->rank,
                  (int)seat->member->pid);
    else if (seat && seat->state == SEAT_REMOTE && c->state == COMM_FORMING)
        error_set(e, ERROR_DUPLICATE_RANK, "join: rank %u is taken by pid %d on %s already",
                  r->rank, (int)seat->pid, forming_host(c, r->rank));
    else if (c->state != COMM_FORMING)
        error_set(e, ERROR_DUPLICATE_RANK,
                  "join: the communicator has formed already, and rank %u was in it; an id is good "
                  "for one communicator",
                  r->rank);
    else
        return 0;
    error_add_rank(e, r->rank);
    return -ERROR_DUPLICATE_RANK;
}

bool rendezvous_differs(const struct comm *c, const struct request_join *r, struct error *ret)
{
    struct text t = { 0 };

    if (r->nranks != c->nranks)
        text_add(&t, "world size %u, those before it %u", r->nranks, c->nranks);
    else if (r->timeout_us != c->timeout_us)
        text_add(&t, "a timeout of %llu us, those before it %llu us",
                 (unsigned long long)r->timeout_us, (unsigned long long)c->timeout_us);
    else if (strcmp(algorithm_of(r), c->algorithm))
        text_add(&t, "algorithm '%s', those before it '%s'", algorithm_of(r), c->algorithm);
    else
        return false;
    error_set(ret, ERROR_MISMATCH, "join: rank %u said %s", r->rank, t.s);
    error_add_rank(ret, r->rank);
    return true;
}

void rendezvous_formed(struct comm *c)
{
    comm_set_state(c, COMM_READY);
    c->forming_deadline_us = TIME_NEVER;
    if (c->nodes)
        nodes_expect(c->nodes);
    for (uint32_t r = 0; r < c->nranks; r++)
        if (c->seats[r].member)
            c->comms->events.joined(c->seats[r].member->owner, c->seats[r].member, NULL);
}

void rendezvous_advance(struct comm *c, uint64_t now)
{
    if (c->state != COMM_FORMING || c->ntaken + c->nremote < c->nranks)
        return;
    if (c->nremote)
        forming_tell(c->forming, now);
    else
        rendezvous_formed(c);
}

/* Seats the newcomer, or, where it means another group, fails everyone who is there. */
static int enter(struct comm *c, const struct join *join, uint64_t now, struct member **ret,
                 struct error *e)
{
    const struct request_join *r = join->request;
    struct error mismatch = { 0 };
    struct member *m;

    if (rendezvous_differs(c, r, &mismatch)) {
        comm_fail(c, &mismatch, now);
        *e = mismatch;
        return -ERROR_MISMATCH;
    }
    if (comm_seat(c, r->rank, join->owner, join->session, join->pid, &m) < 0)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a member");
    m->posted.at_us = now;
    *ret = m;
    return 0;
}

int rendezvous_admit(struct comms *comms, const struct join *join, bool local, uint64_t now,
                     struct comm **ret, struct error *e)
{
    const struct request_join *request = join->request;
    struct comm *c = rendezvous_find(comms, request->id);
    struct ticket *t = c ? NULL : find_ticket(comms, request->id);
    int r;

    r = check_stopping(comms, e);
    if (r == 0)
        r = check_request(request, e);
    if (r < 0)
        return r;
    if (!c && !t && local && is_elsewhere(comms, request->id))
        return found_guest(comms, join, now, ret, e);
    if ((!c && !t) || (!local && c && forming_is_guest(c->forming)))
        return not_found(comms, request->id, e);
    /* of a guest the root says who may join */
    if (!forming_is_guest(c ? c->forming : NULL) &&
        !comms_same_uid(comms, c ? c->uid : t->uid, join->uid))
        return error_set(e, ERROR_PERMISSION,
                         "join: the communicator belongs to uid %u, you are uid %u",
                         (unsigned)(c ? c->uid : t->uid), (unsigned)join->uid);
    if (c) {
        r = check_seat(c, request, e);
        if (r == 0)
            comm_hold(c);
    } else if (t->failure) {
        r = has_failed(t->failure, e);
    } else {
        r = found(comms, t->uid, request, now, &c, e);
        if (r == 0)
            ticket_free(t);
    }
    if (r == 0)
        *ret = c;
    return r;
}

int comms_join(struct comms *comms, const struct join *join, uint64_t now, struct member **ret,
               struct error *e)
{
    struct comm *c;
    int r;

    r = rendezvous_admit(comms, join, true, now, &c, e);
    if (r < 0)
        return r;
    r = enter(c, join, now, ret, e);
    if (r == 0 && forming_is_guest(c->forming))
        forming_ask_for(c->forming, *ret, join->uid);
    else if (r == 0)
        rendezvous_advance(c, now);
    comm_drop(c);
    return r;
}

/* Who has not come, where that is known here. */
static void add_missing(const struct comm *c, struct text *t, struct error *e)
{
    uint32_t *missing = malloc(c->nranks * sizeof(*missing));
    uint32_t n = 0;

    for (uint32_t r = 0; missing && r < c->nranks; r++) {
        if (c->seats[r].state == SEAT_EMPTY) {
            missing[n++] = r;
            error_add_rank(e, r);
        }
    }
    text_add(t, "%u of %u ranks joined, missing: ", c->ntaken + c->nremote, c->nranks);
    if (missing)
        text_add_ranks(t, missing, n);
    free(missing);
}

void rendezvous_expire(struct comm *c, uint64_t now)
{
    struct text t = { 0 };
    struct error e = { 0 };

    c->forming_deadline_us = TIME_NEVER;
    text_add_label(&t, c);
    text_add(&t, "join: timeout after %.3g s; ", (double)c->timeout_us / 1e6);
    if (!forming_add_late(c->forming, &t, &e))
        add_missing(c, &t, &e);
    error_set(&e, ERROR_TIMEOUT, "%s", t.s);
    comm_fail(c, &e, now);
}

void rendezvous_child_id(const struct comm *parent, const uint8_t bits[ID_BYTES],
                         char ret[COMM_ID_BYTES])
{
    id_format(id_home(parent->id), bits, ret);
}
