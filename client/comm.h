/* Members: one rank's part in a communicator. With the connection's lock held. */
#ifndef CLIENT_COMM_H
#define CLIENT_COMM_H

#include "client/conn.h"
#include "client/patience.h"

enum member_state {
    MEMBER_FORMING, /* its join or split is under way */
    MEMBER_READY,
    MEMBER_FAILED, /* to form; good for leaving only */
};

struct ruccl_member {
    struct ruccl_conn *conn;
    unsigned refs; /* the table's, and that of the work that forms it */
    enum member_state state;
    uint32_t number;
    uint32_t rank, nranks;
    uint64_t next_sequence; /* of its next collective; they begin at 1 */
    uint32_t unfinished;    /* collectives that were posted */
    char id[RUCCL_ID_BYTES];
    struct list link; // ruccl_conn::members

    /* for meetings (meeting.h) */
    bool slate_asked;
    bool at_slate; /* a meeting has begun, which has not ended or been posted */
    struct slate *slate;
    struct patience patience;
};

/* A forming member under a number of its own, held by the connection. */
int member_new(struct ruccl_conn *c, struct ruccl_member **ret, struct error *e);
struct ruccl_member *member_ref(struct ruccl_member *m);
void member_unref(struct ruccl_member *m);

/* One of its collectives is over, and lets go of it. */
void member_finish(struct ruccl_member *m);

/*
 * It formed, as the completion of its split says; NULL: by a join, which knew beforehand. False for
 * a completion that makes no sense.
 */
bool member_form(struct ruccl_member *m, const struct reply_completion *done);
void member_fail(struct ruccl_member *m);

/* When the connection has ended: lets go of all. */
void members_free_all(struct ruccl_conn *c);

#endif
