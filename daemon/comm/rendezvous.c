/* How communicators come to be: ids, joins, splits. */
#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/group.h"
#include "daemon/plan/plan.h"

#define ID_CHARS 26u /* 130 random bits, 5 a character */
#define ID_BYTES 17u

/* An id that nobody has joined. */
struct ticket {
    struct list link; // comms::tickets
    char id[COMM_ID_BYTES];
    uid_t uid;
    uint64_t lapses_us;
};

bool comms_same_uid(const struct comms *comms, uid_t a, uid_t b)
{
    return a == b && a != comms->config.overflow_uid;
}

static void id_format(const struct comms *comms, const uint8_t bits[ID_BYTES],
                      char ret[COMM_ID_BYTES])
{
    static const char alphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
    char text[ID_CHARS + 1] = { 0 };

    for (uint32_t i = 0; i < ID_CHARS; i++) {
        uint32_t bit = 5 * i;
        uint32_t two =
            (uint32_t)bits[bit / 8] << 8 | (bit / 8 + 1 < ID_BYTES ? bits[bit / 8 + 1] : 0);

        text[i] = alphabet[two >> (11 - bit % 8) & 31];
    }
    snprintf(ret, COMM_ID_BYTES, "rc1-%s@%s", text, comms->config.node);
}

static struct ticket *find_ticket(const struct comms *comms, const char *id)
{
    struct ticket *t;

    list_for_each(t, &comms->tickets, link)
        if (!strcmp(t->id, id))
            return t;
    return NULL;
}

static struct comm *find_comm(const struct comms *comms, const char *id)
{
    struct comm *c;

    list_for_each(c, &comms->comms, link)
        if (!strcmp(c->id, id))
            return c;
    return NULL;
}

static int check_quota(const struct comms *comms, uid_t uid, struct error *e)
{
    const struct comm *c;
    const struct ticket *t;
    uint32_t n = 0;

    list_for_each(c, &comms->comms, link)
        n += c->uid == uid;
    list_for_each(t, &comms->tickets, link)
        n += t->uid == uid;
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
        r = check_quota(comms, uid, e);
    if (r < 0)
        return r;
    t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(e, ERROR_NO_MEMORY, "no memory for an id");

    randombytes_buf(bits, sizeof(bits));
    id_format(comms, bits, t->id);
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
    free(t);
}

static int not_found(const char *id, struct error *e)
{
    return error_set(e, ERROR_NOT_FOUND,
                     "no communicator can be joined by id '%s': it was not made here, was dropped, "
                     "has lapsed unjoined, or its communicator is over",
                     id);
}

int comms_id_drop(struct comms *comms, uid_t uid, const char *id, struct error *e)
{
    struct ticket *t = find_ticket(comms, id);

    if (!t || !comms_same_uid(comms, t->uid, uid))
        return not_found(id, e);
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
static int found(struct comms *comms, struct ticket *t, const struct join *join, uint64_t now,
                 struct comm **ret, struct error *e)
{
    const struct request_join *r = join->request;
    struct comm *c;

    if (comm_new(comms, t->id, t->uid, r->nranks, &c) < 0)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a communicator of %u ranks",
                         r->nranks);
    snprintf(c->label, sizeof(c->label), "%s", r->label);
    snprintf(c->algorithm, sizeof(c->algorithm), "%s", algorithm_of(r));
    c->timeout_us = r->timeout_us;
    c->forming_deadline_us = comm_deadline(c, now);
    comms_note_deadline(comms, c->forming_deadline_us);
    ticket_free(t);
    *ret = c;
    return 0;
}

static int check_seat(const struct comm *c, const struct request_join *r, struct error *e)
{
    const struct seat *seat = r->rank < c->nranks ? &c->seats[r->rank] : NULL;

    if (c->state == COMM_FAILED)
        return error_set(e, c->failure.code, "join: the communicator has failed: %s",
                         c->failure.text);
    if (seat && seat->member)
        error_set(e, ERROR_DUPLICATE_RANK, "join: rank %u is taken by pid %d already", r->rank,
                  (int)seat->member->pid);
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

/* A rank that means another group than those before it: the group can never form. */
static bool differs(const struct comm *c, const struct request_join *r, struct error *ret)
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

static void formed(struct comm *c)
{
    comm_set_state(c, COMM_READY);
    c->forming_deadline_us = TIME_NEVER;
    for (uint32_t r = 0; r < c->nranks; r++)
        c->comms->events.joined(c->seats[r].member->owner, c->seats[r].member, NULL);
}

/* Seats the newcomer, or, where it means another group, fails everyone who is there. */
static int enter(struct comm *c, const struct join *join, uint64_t now, struct member **ret,
                 struct error *e)
{
    const struct request_join *r = join->request;
    struct error mismatch = { 0 };
    struct member *m;

    if (differs(c, r, &mismatch)) {
        comm_fail(c, &mismatch, now);
        *e = mismatch;
        return -ERROR_MISMATCH;
    }
    if (comm_seat(c, r->rank, join->owner, join->session, join->pid, &m) < 0)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a member");
    m->last_us = now;
    *ret = m;
    return 0;
}

int comms_join(struct comms *comms, const struct join *join, uint64_t now, struct member **ret,
               struct error *e)
{
    const struct request_join *request = join->request;
    struct comm *c = find_comm(comms, request->id);
    struct ticket *t = c ? NULL : find_ticket(comms, request->id);
    int r;

    r = check_stopping(comms, e);
    if (r == 0)
        r = check_request(request, e);
    if (r < 0)
        return r;
    if (!c && !t)
        return not_found(request->id, e);
    if (!comms_same_uid(comms, c ? c->uid : t->uid, join->uid))
        return error_set(e, ERROR_PERMISSION,
                         "join: the communicator belongs to uid %u, you are uid %u",
                         (unsigned)(c ? c->uid : t->uid), (unsigned)join->uid);
    if (c) {
        r = check_seat(c, request, e);
        if (r < 0)
            return r;
        comm_hold(c);
    } else {
        r = found(comms, t, join, now, &c, e);
        if (r < 0)
            return r;
    }

    r = enter(c, join, now, ret, e);
    if (r == 0 && c->ntaken == c->nranks)
        formed(c);
    comm_drop(c);
    return r;
}

void rendezvous_expire(struct comm *c, uint64_t now)
{
    uint32_t *missing = malloc(c->nranks * sizeof(*missing));
    struct text t = { 0 };
    struct error e = { 0 };
    uint32_t n = 0;

    c->forming_deadline_us = TIME_NEVER;
    for (uint32_t r = 0; missing && r < c->nranks; r++) {
        if (!c->seats[r].member) {
            missing[n++] = r;
            error_add_rank(&e, r);
        }
    }
    if (c->label[0])
        text_add(&t, "'%s': ", c->label);
    text_add(&t, "join: timeout after %.3g s; %u of %u ranks joined, missing: ",
             (double)c->timeout_us / 1e6, c->ntaken, c->nranks);
    if (missing)
        text_add_ranks(&t, missing, n);
    error_set(&e, ERROR_TIMEOUT, "%s", t.s);
    free(missing);
    comm_fail(c, &e, now);
}

/* ---- splitting */

/* Every node derives the same id; nobody who knows neither the parent's nor the child's can. */
static void child_id(const struct comm *parent, uint64_t sequence, int32_t color,
                     char ret[COMM_ID_BYTES])
{
    char seed[COMM_ID_BYTES + 64];
    uint8_t bits[ID_BYTES];
    int n =
        snprintf(seed, sizeof(seed), "%s/%llu/%d", parent->id, (unsigned long long)sequence, color);

    crypto_generichash(bits, sizeof(bits), (const uint8_t *)seed, (unsigned long long)n, NULL, 0);
    id_format(parent->comms, bits, ret);
}

static int part_compare(const void *a, const void *b)
{
    const struct split_part *x = *(struct split_part *const *)a,
                            *y = *(struct split_part *const *)b;

    if (x->color != y->color)
        return x->color < y->color ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->parent->rank > y->parent->rank) - (x->parent->rank < y->parent->rank);
}

static int make_child(struct comm *parent, uint64_t sequence, struct split_part **parts, uint32_t n,
                      struct error *e)
{
    char id[COMM_ID_BYTES];
    struct comm *c;
    int r;

    r = check_quota(parent->comms, parent->uid, e);
    if (r < 0)
        return r;
    child_id(parent, sequence, parts[0]->color, id);
    if (comm_new(parent->comms, id, parent->uid, n, &c) < 0)
        return error_set(e, ERROR_NO_MEMORY, "split: no memory for a communicator");
    memcpy(c->label, parent->label, sizeof(c->label));
    memcpy(c->algorithm, parent->algorithm, sizeof(c->algorithm));
    c->timeout_us = parent->timeout_us;
    for (uint32_t i = 0; i < n; i++) {
        struct member *m = parts[i]->parent;

        if (comm_seat(c, i, m->owner, m->session, m->pid, &parts[i]->child) < 0) {
            for (uint32_t k = 0; k < i; k++)
                parts[k]->child = NULL;
            comm_discard(c);
            return error_set(e, ERROR_NO_MEMORY, "split: no memory for a member");
        }
        parts[i]->child->last_us = m->last_us;
    }
    comm_set_state(c, COMM_READY);
    comm_drop(c);
    return 0;
}

static void discard_children(struct split_part *parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct comm *c = parts[i].child ? parts[i].child->comm : NULL;

        if (!c)
            continue;
        for (uint32_t k = i; k < n; k++)
            if (parts[k].child && parts[k].child->comm == c)
                parts[k].child = NULL;
        comm_hold(c);
        comm_discard(c);
    }
}

int rendezvous_split(struct comm *parent, uint64_t sequence, struct split_part *parts,
                     struct error *e)
{
    struct split_part **sorted = calloc(parent->nranks, sizeof(*sorted));
    uint32_t end, first = 0;
    int r = 0;

    if (!sorted)
        return error_set(e, ERROR_NO_MEMORY, "split: no memory");
    for (uint32_t i = 0; i < parent->nranks; i++)
        sorted[i] = &parts[i];
    qsort(sorted, parent->nranks, sizeof(*sorted), part_compare);

    while (first < parent->nranks && sorted[first]->color < 0)
        first++;
    for (; first < parent->nranks && r == 0; first = end) {
        end = first + 1;
        while (end < parent->nranks && sorted[end]->color == sorted[first]->color)
            end++;
        r = make_child(parent, sequence, sorted + first, end - first, e);
    }
    free(sorted);
    if (r < 0)
        discard_children(parts, parent->nranks);
    return r;
}
