/*
 * The inside of comm: what its files share. Nobody else includes it.
 *
 * comms owns comm owns member and op. A comm lives while it has members, unfinished operations or a
 * hold: every way into comm from outside holds it, since any answer may end the last thing that
 * needed it; functions below may count on that.
 */
#ifndef DAEMON_COMM_GROUP_H
#define DAEMON_COMM_GROUP_H

#include "daemon/comm/comm.h"
#include "daemon/comm/spares.h"
#include "daemon/plan/recipe.h"
#include "shared/list.h"

enum comm_state {
    COMM_FORMING, /* some ranks have not joined */
    COMM_READY,
    COMM_FAILED, /* for good, with comm::failure */
};

const char *comm_state_name(enum comm_state state);

/* What became of a rank's place. */
enum seat_state { SEAT_EMPTY, SEAT_TAKEN, SEAT_LEFT, SEAT_LOST };

struct seat {
    enum seat_state state;
    struct member *member; /* SEAT_TAKEN only */
};

struct arrival;
struct op;
struct persistent;
struct run;

struct comms {
    struct comms_config config;
    struct table table;
    struct comm_events events;
    struct list comms;   /* struct comm */
    struct list tickets; /* struct ticket: ids that nobody has joined */
    uint32_t ncomms;
    uint64_t next_number;
    uint64_t deadline; /* nothing is due before it */
    bool stopping;
};

#define UNMATCHED_LISTS 32u

/* Ascending by id. */
struct persistents {
    struct persistent **items;
    uint32_t n, room;
    uint32_t last_id;
};

struct comm {
    struct comms *comms;
    struct list link; // comms::comms
    uint64_t number;
    char id[COMM_ID_BYTES];
    char label[CODEC_NAME_MAX + 1];
    char algorithm[CODEC_ALGORITHM_MAX + 1];
    uid_t uid; /* of its creator */
    uint32_t nranks;
    uint64_t timeout_us; /* 0: none */

    enum comm_state state;
    struct error failure;
    uint64_t forming_deadline_us;
    struct seat *seats; /* [nranks] */
    uint32_t ntaken, nleaving, ngone;

    struct list ops;   /* struct op, by sequence: done first, then running, agreed, arriving */
    struct list pairs; /* struct op of send and recv, in order of their first arrival */
    struct list unmatched[UNMATCHED_LISTS]; /* those of pairs that wait, by what they wait for */
    uint32_t nops;
    uint64_t completed;
    uint32_t holds;

    /* so that an operation like one before it allocates nothing and plans nothing */
    struct recipes recipes;
    struct spares spare_arrivals;         /* struct arrival */
    struct spares spare_ops, spare_pairs; /* struct op of `nranks` parts, and of 2 */
    struct run *spare_run;                /* or NULL */

    struct persistents persistents;
};

struct member {
    struct comm *comm;
    uint32_t rank;
    void *owner;
    uint64_t session;
    pid_t pid;
    uint64_t sequence;   /* of its next operation */
    uint32_t unfinished; /* operations it has arrived at */
    struct op *last_op;  /* the last of comm::ops that it has arrived at; NULL once that is over */
    bool leaving;

    /* for people: what it did last */
    enum collective_id last_kind; /* COLLECTIVE_NONE: joined */
    uint64_t last_sequence, last_us;
};

/* comm.c */

/* A new comm in state FORMING, without members, held once. Return: 0 or -ENOMEM. */
int comm_new(struct comms *comms, const char *id, uid_t uid, uint32_t nranks, struct comm **ret);
void comm_set_state(struct comm *c, enum comm_state state);
void comm_hold(struct comm *c);
void comm_drop(struct comm *c); /* frees it if nothing needs it any more */

/* When what begins now is overdue; TIME_NEVER without a timeout. */
uint64_t comm_deadline(const struct comm *c, uint64_t now);

/* Seats a new member. The seat is empty. Return: 0 or -ENOMEM. */
int comm_seat(struct comm *c, uint32_t rank, void *owner, uint64_t session, pid_t pid,
              struct member **ret);
/* The first failure stands; `cause` is copied. Ends every operation. */
void comm_fail(struct comm *c, const struct error *cause, uint64_t now);
/* Starts what may start: collectives one after the other, pairs as they come. */
void comm_run(struct comm *c, uint64_t now);
/* Takes part in the member's next operation, `a`'s owner now unless it fails: -ENOMEM. */
int member_arrive(struct member *m, struct arrival *a, uint64_t now);
/* One of its operations has ended for `m`. */
void member_finished(struct member *m);

void comms_note_deadline(struct comms *comms, uint64_t at);

/* Appends "all_reduce 7 of 'train'"; sequence 0: without it. */
void text_add_operation(struct text *t, const struct comm *c, enum collective_id kind,
                        uint64_t sequence);
/* Appends "all_reduce 6", and the other form "all_reduce 6, 2.1 s ago". */
void text_add_last_call(struct text *t, const struct member *m);
void text_add_last(struct text *t, const struct member *m, uint64_t now);

/* Frees a comm that nobody has heard of, with its members. */
void comm_discard(struct comm *c);

/* rendezvous.c */

bool comms_same_uid(const struct comms *comms, uid_t a, uid_t b);
/* Lets lapsed ids go; returns when the next one lapses. */
uint64_t rendezvous_tick(struct comms *comms, uint64_t now);
/* Fails a forming communicator whose time is up. */
void rendezvous_expire(struct comm *c, uint64_t now);
/* The communicators of a split that all agreed on; on failure there are none. `colors` by rank. */
struct split_part {
    int32_t color, key;
    struct member *parent;
    struct member *child; /* out: NULL for a negative color */
};
int rendezvous_split(struct comm *parent, uint64_t sequence, struct split_part *parts,
                     struct error *e);

#endif
