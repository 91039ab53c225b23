/*
 * A blocking call on plain memory that passes through windows, in a thread of its own, and the
 * daemon that reads and writes it piece by piece, played by the test. For a program's tests, one
 * after the other.
 */
#ifndef TESTS_UNIT_WINDOW_CALLER_H
#define TESTS_UNIT_WINDOW_CALLER_H

#include "tests/unit/fake_daemon.h"

#define WINDOW (2u << 20) /* bytes, and elements, since all here are bytes */
#define COUNT  (2 * WINDOW + WINDOW / 2 + 12345)
#define BLOCK  (COUNT / NRANKS) /* of tensors that have one for each rank */

struct caller {
    struct pair p;
    struct ruccl_comm comm;
    enum collective_id kind;
    uint32_t root;
    bool attended; /* an all_reduce that two threads wait for, instead of a blocking call */
    struct ruccl_tensor in, out;
    int result;
    struct ruccl_error error;
    pthread_t thread;
    /* the daemon's side */
    struct request post;
    uint32_t nstaged; /* that have been looked at */
    uint64_t block;   /* bytes, of which a tensor has so many */
    uint32_t in_blocks, out_blocks;
    uint64_t ready, taken, done; /* of every block */
};

/* ---- memory of the caller's */

/* What byte `i` of an input is. */
uint8_t given(uint64_t i);
/* COUNT bytes and their guards; the start is as unaligned as `shift` says. An input, if filled. */
uint8_t *memory_new(uint64_t shift, bool fill);
void memory_free(uint8_t *m, uint64_t shift);
void expect_guards(const uint8_t *m);
/* COUNT bytes, each one more than was given, and the guards. */
void expect_output(const uint8_t *m);

/* ---- the call */

/* A pair of connections, one of which calls: an all_reduce, unless that is changed. */
void open_pair(struct caller *c);
/* Begins; it is the `index`-th post of the connection. */
void call_begin(struct caller *c, uint32_t index);
void call_end(struct caller *c, int result);

/* ---- the daemon */

/* What was staged for the calls before a post. */
uint32_t staged_before(struct fake_daemon *d, const struct request *post);
/* Looks at one more word of the client's: it never goes back, nor too far. */
void look(struct caller *c);
void tell_progress(struct caller *c);
/* Moves up to `n` bytes more, and waits for the client until it may. As a collective of this rank
 * alone would: each byte plus one, or of what a root elsewhere gives. */
void move(struct caller *c, uint64_t n);
/* Moves all in steps of up to `most` bytes, tells of each, and completes the call. */
void move_all(struct caller *c, uint64_t most, uint64_t *seed);
void complete(struct caller *c, enum error_code code);

#endif
