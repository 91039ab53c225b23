/*
 * Works: tickets for what was posted. A work is held by the user and, while it is unfinished, by
 * the table of pending requests; it holds its connection. With the connection's lock held.
 */
#ifndef CLIENT_WORK_H
#define CLIENT_WORK_H

#include "client/conn.h"
#include "client/gpu.h"
#include "client/window.h"

struct ruccl_member;
struct ruccl_region;

enum work_state {
    WORK_UNFINISHED,
    WORK_STAGED,  /* its output is still in the stage, or its window in use */
    WORK_COPYING, /* a thread copies it out */
    WORK_DONE,
};

/* How output that is copied comes out of its stage. */
struct work_output {
    void *to; /* NULL: nothing to copy */
    const void *from;
    uint64_t bytes;
    uint64_t row_bytes; /* not 0: all_to_all_v, which copies only the rows that came */
    bool to_gpu;        /* in the stream of the work's place */
};

struct ruccl_work {
    struct pending pending;
    struct ruccl_conn *conn;
    unsigned refs;
    enum work_state state;
    bool hidden; /* its caller waits for it and has no ticket, by which to ask how it went */

    uint32_t slot;
    uint64_t cell_version; /* the cell's before the post: what is still there is someone else's */
    struct ruccl_progress progress;
    struct ruccl_stats stats;
    uint32_t ncounts; /* all_to_all_v: the world size, else 0 */
    uint64_t *counts;

    struct ruccl_region *stage_in, *stage_out;
    struct ruccl_region *held_in, *held_out; /* the caller's, which may free them meanwhile */
    struct work_output output;
    struct window window;
    struct gpu_place place;
    uint32_t *ret_persistent;     /* the number that it gives a persistent operation; may be NULL */
    struct ruccl_member *member;  /* whose collective it is, while it is unfinished; referenced */
    struct ruccl_member *forming; /* what a join or split makes; referenced */
    struct error error;           /* the outcome, once WORK_DONE */
};

/* An unfinished work with a slot of its own, held by the caller. Waits while no slot is free. */
int work_new(struct ruccl_conn *c, uint32_t ncounts, struct ruccl_work **ret, struct error *e);

/* Enters the work for the answer to `q`, which is a collective of `m`'s, or else NULL: before
 * sending it, in one's turn. */
void work_expect(struct ruccl_work *w, struct request *q, struct ruccl_member *m);

/* It is done, well, without an answer; its counts, statistics and progress are there. */
void work_skip(struct ruccl_work *w);

/*
 * When posted: what is put into the stream of `place`, held, from now on sees the result. Where the
 * driver cannot, the work is waited for. Gives up the lock.
 */
void work_wait_in_stream(struct ruccl_work *w, const struct gpu_place *place);

/* Lets go, at any time. */
void work_unref(struct ruccl_work *w);

/* With the connection, whose every work is idle by then. */
void works_free_idle(struct ruccl_conn *c);

/* Waits, copies output out, and returns the outcome as ruccl_work_wait() does, worded in `e`. */
int work_finish(struct ruccl_work *w, int64_t deadline, struct error *e);

#endif
