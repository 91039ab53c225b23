/* What the processes of scale do: jobs for ranks_start(). */
#ifndef CLIENT_PERF_SCALE_LOAD_H
#define CLIENT_PERF_SCALE_LOAD_H

#include <sys/types.h>

#include "client/perf/probe_options.h"
#include "client/perf/rank.h"

#define LOAD_BATCHES 10u

/*
 * The first `nmembers` processes call all_reduce, one call after the other, on each of `ncomms`
 * communicators in turn; if `nidle` is not 0, one more process holds so many idle sessions.
 */
struct load {
    uint32_t nmembers, ncomms, nidle;
    uint64_t bytes, budget;
    uint64_t calls; /* in each of the LOAD_BATCHES */
};

/* Leaves LOAD_BATCHES times, each of `calls` calls, on the board of every member. */
enum rank_exit load_run(const void *load, const char *socket, uint32_t rank, struct board *board,
                        int parent_fd);

/* One process that makes the daemon hold ever more of what the axis counts. */
struct memory_load {
    enum axis_id axis;
    pid_t daemon;
    const struct probe_options *o;
};

#define MEMORY_POINTS_MAX 64u

/* Leaves what that added, {resident bytes, share of them}, for each n on the board. */
enum rank_exit memory_load_run(const void *load, const char *socket, uint32_t rank,
                               struct board *board, int parent_fd);

#endif
