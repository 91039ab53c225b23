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
#include "daemon/plan/table.h"
#include "shared/list.h"
#include "shared/map.h"

enum comm_state {
    COMM_FORMING, /* some ranks have not joined */
    COMM_READY,
    COMM_FAILED, /* for good, with comm::failure */
};

const char *comm_state_name(enum comm_state state);

/* What became of a rank's place: SEAT_TAKEN by a member here, SEAT_REMOTE by one of another node.
 */
enum seat_state { SEAT_EMPTY, SEAT_TAKEN, SEAT_REMOTE, SEAT_LEFT, SEAT_LOST };

struct seat {
    enum seat_state state;
    struct member *member; /* SEAT_TAKEN only */
    /* of a rank of another node, also when it has left; `node` is one of comm::nodes, or of
     * comm::forming until there are nodes */
    uint32_t node;
    pid_t pid;
    uint64_t end; /* SEAT_LEFT: the first operation that it had no part in */
};

struct arrival;
struct forming;
struct nodes;
struct op;
struct persistent;
struct run;
struct slate;

struct comms {
    struct comms_config config;
    struct table table; /* by which all is planned that has its root here */
    struct comm_events events;
    struct list comms;   /* struct comm */
    struct list tickets; /* struct ticket: ids that nobody has joined */
    struct map nodes;    /* struct nodes, by how their keys begin */
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
    uint32_t ntaken, nremote, nleaving, ngone;
    bool nameless; /* nobody finds it by its id any more */

    /* several nodes */
    struct forming *forming; /* while it is FORMING, if other nodes take part; else NULL */
    struct nodes *nodes;     /* NULL: all ranks are here, or who is where is not known yet */
    uint32_t nparts;         /* ranks here: the parts of its operations are these, ascending */
    uint64_t newest;         /* the sequence of its newest operation */
    uint64_t reached;        /* that of the newest that a rank here has come to */

    struct list ops;   /* struct op, by sequence: done first, then running, agreed, arriving */
    struct list pairs; /* struct op of send and recv, in order of their first arrival */
    struct list unmatched[UNMATCHED_LISTS]; /* those of pairs that wait, by what they wait for */
    uint32_t nops;
    uint64_t completed;
    uint32_t holds;

    /* so that an operation like one before it allocates nothing and plans nothing */
    struct recipes recipes;
    struct spares spare_arrivals;         /* struct arrival */
    struct spares spare_ops, spare_pairs; /* struct op of `nparts` parts, and of 2 */
    struct run *spare_run;                /* or NULL */

    struct persistents persistents;

    struct slate *slate; /* NULL: no member has asked for it */
    int slate_fd;
};

/* What a member did last, for people. */
struct last_call {
    enum collective_id kind; /* COLLECTIVE_NONE: joined */
    uint64_t sequence;       /* 0: it has none */
    uint64_t at_us;
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

    struct last_call posted;
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
/* Takes a member out of a group that goes on without it, and tells it why: joined(). */
void comm_expel(struct member *m, const struct error *why, uint64_t now);
/* The first failure stands; `cause` is copied. Ends every operation, and tells other nodes. */
void comm_fail(struct comm *c, const struct error *cause, uint64_t now);
/* Starts what may start: collectives one after the other, pairs as they come. */
void comm_run(struct comm *c, uint64_t now);
/* Takes part in the member's next operation, `a`'s owner now unless it fails: -ENOMEM. */
int member_arrive(struct member *m, struct arrival *a, uint64_t now);
/* One of its operations has ended for `m`. */
void member_finished(struct member *m);

/* The operation of this sequence number, which is there or the next to come. Return: 0 or -ENOMEM.
 */
int comm_find_op(struct comm *c, uint64_t sequence, uint64_t now, struct op **ret);
/* Fails the communicator if an operation waits for a member that is on its way out. */
void comm_check_leaving(struct comm *c, uint64_t now);
/* Fails the communicator if a `kind` would need a rank that has left: any that had no part in
 * operation `sequence`, or `peer`. */
void comm_check_left(struct comm *c, enum collective_id kind, const uint32_t *peer,
                     uint64_t sequence, uint64_t now);

/* Frees a comm that nobody has heard of, with its members. */
void comm_discard(struct comm *c);

/* comms.c */

void comms_note_deadline(struct comms *comms, uint64_t at);
bool comms_same_uid(const struct comms *comms, uid_t a, uid_t b);

/* words.c */

/* Posted, or carried out at the slate. */
struct last_call last_call(const struct member *m);

/* Appends "all_reduce 7 of 'train'"; sequence 0: without it. */
void text_add_operation(struct text *t, const struct comm *c, enum collective_id kind,
                        uint64_t sequence);
/* Appends "'train': ", if the communicator has a label. */
void text_add_label(struct text *t, const struct comm *c);
/* Appends "rank 3 (pid 7 on host)". */
void text_add_rank(struct text *t, uint32_t rank, pid_t pid, const char *host);
/* Appends "all_reduce 6", and the other form "all_reduce 6, 2.1 s ago". */
void text_add_last_call(struct text *t, const struct last_call *last);
void text_add_last(struct text *t, const struct member *m, uint64_t now);
/* Words what a member's end means for the others: "rank 3 (pid 7 on host) <what>; last: ..." */
void gone_error(const struct member *m, enum error_code code, const char *what, uint64_t now,
                struct error *ret);

#endif
