/*
 * What end-to-end tests stand on: a daemon of their own, and worlds of ranks in this process.
 * Everything here fails the running test by itself where something goes wrong.
 */
#ifndef TESTS_END_TO_END_HARNESS_H
#define TESTS_END_TO_END_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "client/ruccl.h"

#define HARNESS_RANKS       8
#define HARNESS_PATIENCE_US 60000000 /* nothing that works takes longer */

/* Full work under sanitizers would take too long; RUCCL_TEST_FULL=1 and =0 overrule this. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HARNESS_SANITIZED true
#else
#define HARNESS_SANITIZED false
#endif
bool harness_full(void);

/* ---- a private daemon */

struct harness {
    pid_t pid; /* 0: not running */
    int log;   /* what it wrote; a memfd */
    char dir[48], socket[64];
};

/*
 * Starts $RUCCLD on a socket in a new directory and waits until it answers. `options` ends with
 * NULL, or is NULL. It dies with this process, whatever happens.
 */
void harness_start(struct harness *h, const char *const *options);

/*
 * Stops it in good order: it must have no name in /dev/shm, exit with status 0 within a deadline,
 * and leave nothing in its directory. It is gone, by force if need be, and its directory too,
 * before anything is asserted. Return: 0, or -1 with the reasons and its log on stderr, for use in
 * a teardown; 0 where none was started.
 */
int harness_stop(struct harness *h);

/* Kills it, and takes away what it could not. */
void harness_kill(struct harness *h);

/* What it holds at the moment. */
struct harness_usage {
    unsigned fds, mappings;
    uint64_t resident_bytes; /* private memory: pages that clients share with it are not its own */
};
struct harness_usage harness_usage(const struct harness *h);

/* Waits until it holds no more fds and mappings than it did at `before`; fails after a deadline. */
void harness_expect_usage(const struct harness *h, const struct harness_usage *before);

/* ---- a world of ranks */

struct world {
    uint32_t nranks, nconns;
    bool across; /* its ranks are not all of one node */
    struct ruccl_conn *conns[HARNESS_RANKS];
    struct ruccl_comm comms[HARNESS_RANKS];
    uint64_t sequence; /* of the last collective that every rank has called */
};

/* nconns: nranks, or 1 for all ranks on one connection. */
void world_open(struct world *w, const struct harness *h, uint32_t nranks, uint32_t nconns);
/* The same with a daemon on each of two nodes: rank r is on nodes[node_of[r]]. */
void world_open_across(struct world *w, const struct harness nodes[2], const uint32_t *node_of,
                       uint32_t nranks);
/* One more communicator of the same ranks, over the connections of `of`. */
void world_join(struct world *w, const struct world *of);
void world_leave(struct world *w); /* the connections stay */
void world_close(struct world *w);
struct ruccl_conn *world_conn(const struct world *w, uint32_t rank);

/* Waits for a work and releases it; `what` in words, for a failure. */
void expect_done(struct ruccl_work *work, const char *what);
void expect_failure(struct ruccl_work *work, enum ruccl_code code, const char *what);

#endif
