/*
 * Windows: plain memory that passes through a short stage, piece by piece, while the collective
 * runs, so that the stage stays in the cache however large the tensor is. For blocking calls, whose
 * thread is there to copy; other calls stage all of it. With the connection's lock held.
 */
#ifndef CLIENT_WINDOW_H
#define CLIENT_WINDOW_H

#include "shared/mem.h"

struct ruccl_work;

#define WINDOW_BYTES (2u << 20)

/* Bytes throughout; what is counted begins at the tensor's start, and byte b lies at b % length. */
struct window {
    uint64_t length;     /* 0: there is none */
    uint64_t bytes;      /* of the tensor */
    const uint8_t *from; /* the input; NULL: it does not pass through */
    uint8_t *to;         /* the output, likewise */
    uint8_t *stage;      /* of both: the output of a piece takes its input's place */

    uint64_t ready; /* copied into the stage */
    uint64_t done;  /* the daemon has read and written it; by progress messages */
    uint64_t seen;  /* of `done`, when last looked at */
    uint64_t taken; /* copied out of the stage */

    uint32_t comm, width; /* for what the daemon is told, in elements */
};

/*
 * Copies until the work has ended, and then, if it ended well, what is left of its output. Lets go
 * of the lock meanwhile.
 */
void window_run(struct ruccl_work *w);

#endif
