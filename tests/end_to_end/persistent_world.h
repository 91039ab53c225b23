/*
 * Persistent operations of all ranks of one communicator, made and started together. Functions fail
 * the test where they fail.
 */
#ifndef TESTS_END_TO_END_PERSISTENT_WORLD_H
#define TESTS_END_TO_END_PERSISTENT_WORLD_H

#include "tests/unit/unit.h"

#include <pthread.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/end_to_end/reference.h"
#include "tests/end_to_end/tensors.h"

#define RANKS 3u
#define COUNT 5003u /* elements of a block */

enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, GATHER, SCATTER, KINDS };

extern struct harness harness;
extern struct stage *stage;
extern struct world world;

/* A test with a daemon of its own, once it has started it. */
#define PERSISTENT_TEST(claim) cmocka_unit_test_teardown(claim, stop)
int stop(void **state);
/* The daemon, and the world of all ranks. */
void open_all(void);

/* All ranks' tensors of one operation, as long as any kind needs. */
struct set {
    struct ruccl_region *in[RANKS], *out[RANKS];
};

void set_alloc(struct set *s);
void set_free(struct set *s);
/* Inputs that differ by round, and empty outputs. */
void set_fill(const struct set *s, uint32_t round);
/* What is right after that. */
void expect_outputs(const struct set *s, enum kind kind, uint32_t root, uint32_t round);

/* Of one rank. Making waits for the others, so each has a thread. */
struct maker {
    pthread_t thread;
    struct ruccl_comm comm;
    enum kind kind;
    uint32_t root;
    struct ruccl_tensor in, out;
    struct ruccl_persistent *made;
    int result;
    struct ruccl_error error;
};

void makers_init(struct maker makers[RANKS], const struct set *s, enum kind kind, uint32_t root);
/* Return: as the library's call. */
int make_one(const struct maker *m, struct ruccl_persistent **ret);
void make_all(struct maker makers[RANKS]);
/* One that must succeed. */
void made_of(const struct set *s, enum kind kind, uint32_t root,
             struct ruccl_persistent *ret[RANKS]);

struct ruccl_work *started(struct ruccl_persistent *p);
void start_all(struct ruccl_persistent *p[RANKS]);
void release_all(struct ruccl_persistent *p[RANKS]);
/* The communicator goes on: an ordinary call, and a start. */
void expect_going_on(struct ruccl_persistent *p[RANKS], const struct set *s);

#endif
