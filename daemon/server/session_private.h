/* The inside of a session, for the files of sessions alone. */
#ifndef DAEMON_SERVER_SESSION_PRIVATE_H
#define DAEMON_SERVER_SESSION_PRIVATE_H

#include "daemon/device/fault.h"
#include "daemon/server/session.h"

enum session_state {
    SESSION_STRANGER, /* has not said hello; may do nothing else */
    SESSION_SERVED,
    SESSION_DOOMED, /* neither reads nor is told anything; on service::doomed */
    SESSION_ENDED,  /* holds nothing any more; waits for libuv to let go of its handles */
};

/* A post's place: its progress cell, and what its answer needs. */
struct slot {
    bool used;
    uint64_t serial;
    uint32_t signal;          /* 0: none */
    struct membership *child; /* split: the membership to be; NULL: none */
};

enum membership_state {
    MEMBERSHIP_RESERVED, /* the child of a split that is not done; no member yet */
    MEMBERSHIP_JOINING,
    MEMBERSHIP_READY,
    MEMBERSHIP_BROKEN, /* joining failed: can only leave */
    MEMBERSHIP_LEAVING,
};

struct membership {
    struct list link; // session::all_memberships
    uint32_t number;  /* the client's */
    enum membership_state state;
    struct member *member;
    bool join_owed; /* the join has not been answered */
    uint64_t join_serial, leave_serial;
    uint64_t *expected; /* for the next all_to_all_v */
    uint32_t nexpected;
};

struct session {
    struct service *service;
    struct list link;        // service::sessions
    struct list doomed_link; // service::doomed
    struct list timed_link;  // service::timed, while there is a deadline
    enum session_state state;
    uint64_t number;
    uid_t uid;
    pid_t pid;
    char name[CODEC_NAME_MAX + 1];

    int socket, pidfd;
    uv_poll_t socket_poll, pidfd_poll;
    unsigned open_handles;
    int polled;        /* libuv events asked for on the socket */
    uint64_t deadline; /* of the hello */

    const char *why;       /* DOOMED: for the other members, "died" */
    struct error farewell; /* DOOMED: for the client; code ERROR_NONE: nothing to say */

    struct request_repeats known; /* of its requests */

    struct list outgoing; /* struct outgoing */
    uint32_t noutgoing;
    size_t outgoing_bytes;

    bool charged;                /* a session and its descriptors, to the uid's quotas */
    struct progress_cell *cells; /* and the daemon's rings behind them */
    struct slot *slots;          /* [slots_room], which follows what the client uses */
    uint32_t slots_room;
    uint32_t nslots;    /* it may use */
    uint32_t in_flight; /* posts and joins that are not answered */

    /* once the client has handed over its rings; they are NULL before */
    struct mapping *rings;
    struct fault_area guard; /* of what reads them, against memory that is not there */
    struct ring_in requests;
    struct ring_out replies;
    struct list awake_link; // service::awake, while its ring is looked at unasked
    struct list owed_link;  // service::owed, from a reply until its client is rung, if it sleeps
    struct belfry *belfry;
    struct daemon_rings *ours; /* in the memory behind `cells` */
    bool rang;                 /* and nothing has been taken since */
    bool stirred;              /* woken or answered, and not looked at since */
    uint64_t awake_until_us;   /* unless something comes */

    struct map regions;  /* the client's number -> struct region */
    struct map memories; /* device and inode -> struct memory */
    uint64_t region_bytes;

    struct map fences;               /* the client's number -> struct fence */
    struct mapping *signals;         /* cells of 32 bits, one a slot; NULL before they are opened */
    struct fault_area signals_guard; /* of what writes them */

    struct list all_memberships;
    struct map memberships;     /* the client's number -> struct membership */
    struct map members;         /* struct member -> struct membership */
    struct membership *joining; /* whose comms_join() is running */
};

/* session.c */

/* When it is to be over unless that changes; TIME_NEVER: not at all. */
void session_set_deadline(struct session *s, uint64_t at);
void session_doom(struct session *s, const char *why);
/* Dooms it for breaking the protocol. Always returns -ERROR_PROTOCOL. */
int session_refuse(struct session *s, const char *format, ...) _printf_(2, 3);
/* Dooms it, and tells the client why. */
void session_dismiss(struct session *s, const struct error *cause);
/* Likewise, worded here. Always returns -code. */
int session_give_up(struct session *s, enum error_code code, const char *format, ...)
    _printf_(3, 4);

/* Sends a reply, with `fd` if that is not -1; queues both where the socket has no room. Return: 0,
 * or -EMSGSIZE with nothing done. What else goes wrong dooms the session. */
int session_reply(struct session *s, const struct reply *reply, int fd);
/* Answers with the outcome: `e` with code ERROR_NONE is success. */
void session_reply_done(struct session *s, uint64_t serial, const struct error *e);

/* Watches the process, so that its death ends the session. Takes the pidfd, on success. */
int session_watch_process(struct session *s, int pidfd);

/* requests.c */

/* Handles one datagram; its fds that are still there are the caller's to close. */
void session_handle(struct session *s, struct packet *p);
/* Releases what hello took. */
void session_undo_hello(struct session *s);

/* rings.c */

void session_rings_open(struct session *s, const struct request *r, struct packet *p);
void session_bell(struct session *s, const struct request *r, struct packet *p);
/* Handles up to `limit` requests of the ring, if there is one; returns how many. */
unsigned session_take_requests(struct session *s, unsigned limit);
/* Puts a reply into the ring, and sees to it that the client is rung. False: there is no ring, or
 * no room. */
bool session_put_reply(struct session *s, const void *bytes, uint32_t len);
/* Rings a client that sleeps where the socket is not heard, when there is news at the socket. */
void session_ring_for_socket(struct session *s);
void session_undo_rings(struct session *s);

/* regions.c */

void session_region_open(struct session *s, const struct request *r, struct packet *p);
void session_region_close(struct session *s, const struct request *r, struct packet *p);
/* Fills in the operand's mapping. False: there is no such region. */
bool session_find_region(const struct session *s, uint32_t number, struct operand *ret);
/* Always returns -ERROR_INVALID_ARGUMENT, worded in `e`. */
int service_refuse_gpus(const struct service *service, const char *what, struct error *e);
void session_undo_regions(struct session *s);

/* fences.c */

void session_fence_open(struct session *s, const struct request *r, struct packet *p);
void session_fence_close(struct session *s, const struct request *r, struct packet *p);
/* NULL for 0; also, with the reason in `rejection`, where there is none of that number. */
struct fence *session_find_fence(const struct session *s, uint32_t number, struct error *rejection);
void session_slate_open(struct session *s, const struct request *r, struct packet *p);
void session_signals_open(struct session *s, const struct request *r, struct packet *p);
/* As who may write it sees it; not 0 only where there are cells. */
struct signal session_signal_of(const struct session *s, uint32_t slot, uint32_t signal);
/* Stores into the slot's cell, at the end of whatever had it; likewise. A stream may have done so
 * before: the client does not use the slot again before it has the answer. May doom the session. */
void session_signal(struct session *s, uint32_t slot, uint32_t signal);
void session_undo_fences(struct session *s);

/* members.c */

/* Under its number from now on; room for its member is made as well, so that gaining one succeeds.
 */
struct membership *membership_new(struct session *s, uint32_t number, enum membership_state state);
void membership_free(struct session *s, struct membership *ms);
void membership_set_member(struct session *s, struct membership *ms, struct member *m);
/* One that the client may use; NULL, with the reason in `e`, if there is none of that number. */
struct membership *membership_find(struct session *s, uint32_t number, struct error *e);

void session_join(struct session *s, const struct request *r, struct packet *p);
void session_leave(struct session *s, const struct request *r, struct packet *p);
void session_abort(struct session *s, const struct request *r, struct packet *p);
void session_undo_members(struct session *s);

/* posts.c */

void session_expect(struct session *s, const struct request *r, struct packet *p);
void session_post(struct session *s, const struct request *r, struct packet *p);
void session_start(struct session *s, const struct request *r, struct packet *p);
void session_persistent_close(struct session *s, const struct request *r, struct packet *p);
void session_staged(struct session *s, const struct request *r, struct packet *p);
/* Of struct comm_events. */
void session_completed(void *owner, struct member *m, uint64_t serial, const struct completion *c);
void session_progressed(void *owner, struct member *m, uint64_t serial, uint64_t elements_done);

/* status.c */

void session_status(struct session *s, const struct request *r, struct packet *p);

#endif
