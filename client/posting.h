/*
 * Postings: calls on their way to becoming a Post. What this library alone can see of the arguments
 * is checked, and the message filled in but for where the bytes are. With the connection's lock
 * held.
 */
#ifndef CLIENT_POSTING_H
#define CLIENT_POSTING_H

#include "client/conn.h"
#include "client/gpu.h"
#include "client/post.h"

struct ruccl_region;

/* A tensor on its way into a message. */
struct operand {
    const char *name;             /* "in" or "out" */
    const struct ruccl_tensor *t; /* NULL: this rank has none, or none that counts */
    uint64_t bytes;
    uintptr_t address;
    struct ruccl_region *region; /* NULL: plain memory */
    uint64_t offset;             /* in it */
    bool copied;                 /* goes through a stage: plain memory, or a GPU's */
};

struct posting {
    struct ruccl_conn *conn;
    struct ruccl_member *member;
    const struct call *call;
    const struct collective *row;
    bool waits;    /* the caller's thread is there until it is done */
    bool attended; /* some thread is, so that it can copy meanwhile */
    struct operand in, out;
    struct gpu_place place; /* in a stream, where a tensor is in a GPU's memory */
    bool fenced;            /* the daemon itself touches such memory */
    bool met;               /* it has its sequence number, from a meeting (meeting.h) */
    struct request q;       /* a post, whose rejection is behind all else */
};

/* A call's, of no connection yet. */
void posting_init(struct posting *p, struct ruccl_comm comm, const struct call *call);

/* What is wrong becomes the message's rejection. */
void posting_prepare(struct posting *p);

/* The rejection is set: nothing else counts. */
void posting_reject(struct posting *p);

/* "f32"; of a number that names none, words that say so. */
const char *posting_dtype(uint32_t dtype);

/* Of two operands: whether they share bytes in the way that their collective allows; in another. */
bool posting_is_in_place(const struct posting *p);
bool posting_overlaps(const struct posting *p);

#endif
