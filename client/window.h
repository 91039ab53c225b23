/*
 * Windows: plain memory that passes through a short stage, piece by piece, while the collective
 * runs, so that the stage stays in the cache however large the tensor is. For blocking calls and
 * attended works, for which a thread is there to copy; other calls stage all of it. With the
 * connection's lock held.
 */
#ifndef CLIENT_WINDOW_H
#define CLIENT_WINDOW_H

#include "client/conn.h"

struct ruccl_work;

#define WINDOW_BYTES (2u << 20) /* of all of a tensor's, about; also from which on it has them */

/* One tensor of it: blocks, one behind the other, as are their windows. */
struct window_side {
    uint8_t *tensor; /* NULL: it does not pass through */
    uint8_t *stage;
    uint32_t blocks;
};

/* Bytes throughout; what is counted begins at every block's start, and byte b of it lies at
 * b % length of its window. */
struct window {
    uint64_t length; /* 0: there is none */
    uint64_t piece;  /* what is copied at a time; divides the length */
    uint64_t bytes;  /* of a block */
    /* where they have one stage, the output of a piece takes its input's place */
    struct window_side in, out;

    uint64_t ready; /* copied into the stage */
    uint64_t done;  /* the daemon has read and written it; by progress messages */
    uint64_t taken; /* copied out of the stage */

    uint32_t comm, width; /* for what the daemon is told, in elements */
    bool copying;         /* a thread is at it */
    struct chore chore;
};

/*
 * From the post on until its answer: whoever waits for anything on the connection copies, a piece
 * at a time and one thread at a time. Lets go of the lock meanwhile.
 */
void window_begin(struct ruccl_work *w);
void window_end(struct ruccl_work *w);

/* What is left of the output, if it ended well, once nobody copies. Lets go of the lock, too. */
void window_take_rest(struct ruccl_work *w);

/* The tensors may go, so that nothing is copied any more: if anything is left, the communicator is
 * aborted. Waits for whoever copies. */
void window_abandon(struct ruccl_work *w);

#endif
