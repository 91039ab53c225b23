/*
 * Communicators of this node: ids, who takes part, and the order of their operations. Loop thread
 * only. Protocol logic without sockets or clocks: requests come as calls with the time, answers go
 * out through struct comm_events, so that tests are the clients. Their ranks may be on other nodes,
 * whose daemons are reached by links (links.h), so that tests are the network, too.
 *
 * Times are microseconds of one monotonic clock.
 */
#ifndef DAEMON_COMM_COMM_H
#define DAEMON_COMM_COMM_H

#include <sys/types.h>

#include "daemon/device/device.h"
#include "daemon/exec/engine.h"
#include "proto/codec.h"
#include "shared/collective.h"
#include "shared/mem.h"

#define COMM_ID_BYTES (CODEC_ID_MAX + 1)
#define TIME_NEVER    UINT64_MAX

struct comms;
struct link_ops;
struct staging;
struct table;
struct transport;
struct member; /* one rank of one communicator, held by one session */

/* How an operation ended for one rank. Pointers are valid during the call only. */
struct completion {
    const struct error *error; /* NULL: success */
    uint64_t sequence;
    uint64_t wait_us, run_us;
    uint64_t chunks, chunk_elements, peak_bytes;
    const char *algorithm;
    const uint64_t *counts; /* all_to_all_v: rows from each rank */
    uint32_t ncounts;
    /* split */
    struct member *child;  /* NULL: none; else a member that has joined, its owner the parent's */
    uint32_t child_number; /* as given in the post */
    uint32_t persistent;   /* the persistent operation that was made; 0: none */
};

/*
 * The answers. Handlers must not call back into comm. `owner` is what comms_join() was given; no
 * event of a member comes after member_lost() or the event `left`.
 */
struct comm_events {
    /* The group is complete, or (e) cannot be: the member is then of use only to leave. */
    void (*joined)(void *owner, struct member *m, const struct error *e);
    void (*completed)(void *owner, struct member *m, uint64_t serial, const struct completion *c);
    /* Answer to member_leave(): `m` is gone when this returns. */
    void (*left)(void *owner, struct member *m);
    /* Of a post with windows: so many elements from the start have been read and written. */
    void (*progressed)(void *owner, struct member *m, uint64_t serial, uint64_t elements_done);
};

struct comms_config {
    struct engine *engine;
    uint64_t (*now)(void);   /* the clock, for what ends between two calls */
    const char *host;        /* this host's name, for error texts */
    const char *node;        /* this node, for ids: 36 characters of a UUID */
    uid_t overflow_uid;      /* matches nobody, not even itself */
    uint64_t id_lifetime_us; /* of an id that nobody has joined */
    uint64_t chunk_bytes;    /* a chunk's length without a budget */
    uint32_t max_comms;      /* per uid */

    /* What slates take is charged to whose the id was: 0, or -code worded in `e`. NULL: no slates */
    int (*charge)(void *books, uid_t uid, uint64_t bytes, struct error *e);
    void (*release)(void *books, uid_t uid, uint64_t bytes);
    void *books;

    /* several nodes; `link_ops` NULL: this daemon serves its own node alone */
    const char *address; /* where other daemons reach this one, for ids: 97 bytes at the most */
    const struct link_ops *link_ops;
    void *links; /* for link_ops::open */
    struct transport *transport;
    struct staging *staging;
    const struct table *table; /* for those whose root this is, copied; NULL: as table_init() */
};

/* Return: 0, -EINVAL (the address is too long), -ENOMEM or -ENOSYS. */
int comms_new(const struct comms_config *config, const struct comm_events *events,
              struct comms **ret);
/* No member may be left. Returns NULL; NULL is allowed. */
struct comms *comms_free(struct comms *comms);

/* When comms_tick() next has something to do; TIME_NEVER if not before another call. */
uint64_t comms_deadline(const struct comms *comms);
/* Does what is due: timeouts, ids that lapse. */
void comms_tick(struct comms *comms, uint64_t now);

/* An id for one communicator of `uid`. Errors: QUOTA, DAEMON_STOPPING. */
int comms_id_new(struct comms *comms, uid_t uid, uint64_t now, char ret[COMM_ID_BYTES],
                 struct error *e);
/* Errors: NOT_FOUND, also where the id is in use already. */
int comms_id_drop(struct comms *comms, uid_t uid, const char *id, struct error *e);

struct join {
    const struct request_join *request;
    void *owner;
    uint64_t session; /* for status */
    uid_t uid;
    pid_t pid;
};

/*
 * Return: 0, and the member, whose joined() event follows or has run in this call; or -code worded
 * in `e`, and the group goes on without having noticed: NOT_FOUND, PERMISSION, DUPLICATE_RANK,
 * INVALID_ARGUMENT, UNSUPPORTED_ALGORITHM, QUOTA, DAEMON_STOPPING. A world size, timeout or
 * algorithm that differs from those who came before fails the group: joined() with MISMATCH for
 * all.
 *
 * An id that another daemon has made is asked for there, and what that one has against the rank
 * comes by joined(), as does that it cannot be reached, or that a node has no staging left (QUOTA).
 */
int comms_join(struct comms *comms, const struct join *join, uint64_t now, struct member **ret,
               struct error *e);

struct operand {
    struct mapping *mapping; /* NULL: none. member_post() takes references of its own */
    uint64_t offset;         /* bytes */
    uint64_t window;         /* elements of each block; 0: all of the tensor is there */
    unsigned *holds; /* goes up and down with the references that are taken; NULL: nobody counts.
                      * Must stay while it is not 0 */
};

struct post {
    uint64_t serial;
    struct descriptor d; /* as it came; d.nranks is filled in */
    struct operand in, out;
    uint64_t out_rows;
    const uint64_t *counts, *expected; /* copied; expected may be NULL */
    uint32_t ncounts, nexpected;
    uint32_t peer, tag;
    int32_t color, key;
    uint32_t child_number;
    struct progress_cell *cell; /* written until the post is completed or the member lost */
    bool persistent;            /* make a persistent operation of it: persistent.h */
    struct fence *fence;        /* nothing is touched before it has passed; NULL: none. Likewise */
    /* May be written before the post is completed, once its tensors are left alone for good.
     * Whoever posts writes it then, again or for the first time. Likewise */
    struct signal signal;
    const struct error *rejection; /* NULL: none */
};

/* Takes part in the member's next operation. Always answered by completed(), perhaps in this call.
 * Return: 0, or -ENOMEM with nothing taken. */
int member_post(struct member *m, const struct post *post, uint64_t now);

/* How far a post with windows has come on the client's side, in elements: struct run_stage. Nothing
 * happens where there is no such post. */
void member_staged(struct member *m, uint64_t serial, uint64_t in_ready, uint64_t out_taken,
                   uint64_t now);

/* Calls `visit` with the owner of every member that the operation `m` came to last still waits for.
 */
void member_visit_absent(const struct member *m, void (*visit)(void *owner));

/* Answered by left(), perhaps in this call, once no operation of the member is unfinished. */
void member_leave(struct member *m, uint64_t now);

/* Fails the communicator with ABORTED, for all. */
void member_abort(struct member *m, const char *text, uint64_t now);

/* The member's process died or disconnected: fails the communicator for the others, if it still
 * matters to them. `why`: "died", "disconnected". No more events; `m` must not be used again. */
void member_lost(struct member *m, const char *why, uint64_t now);

const char *member_id(const struct member *m);
uint32_t member_rank(const struct member *m);
uint32_t member_nranks(const struct member *m);
uint64_t member_sequence(const struct member *m); /* of the next operation */

/*
 * The memory where the members may meet without the daemon (shared/slate.h), for a session of
 * `uid`; *ret_fd stays the communicator's. -1: they may not, since some are on other nodes, or
 * anybody else's, or too many, or an algorithm is asked for. Return: 0, or -code worded in `e`.
 */
int member_slate(struct member *m, uid_t uid, int *ret_fd, struct error *e);

/* The member's next operation has this number: those that are left out have been carried out there.
 * Return: whether that may be so; if not, nothing has changed. */
bool member_continue_at(struct member *m, uint64_t sequence);

/* Follows a change of configuration; what there is already stays. */
void comms_set_max(struct comms *comms, uint32_t max_comms);

/* From now on nothing new: ids, joins and splits are refused. */
void comms_stop(struct comms *comms);
/* Operations and joins that are not finished. */
uint32_t comms_unfinished(const struct comms *comms);
/* Fails every communicator, with the same cause. */
void comms_fail_all(struct comms *comms, const struct error *cause, uint64_t now);

uint32_t comms_count(const struct comms *comms);

/* Calls `emit` for every communicator that `uid` may see (0: all), each followed by its members. */
void comms_status(const struct comms *comms, uid_t uid, uint64_t now,
                  void (*emit)(void *context, const struct status_item *item), void *context);

#endif
