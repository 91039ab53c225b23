/* The life of one rank's process, from connecting to leaving. */
#ifndef CLIENT_PERF_RANK_H
#define CLIENT_PERF_RANK_H

#include "client/perf/board.h"
#include "client/perf/options.h"

enum rank_exit {
    RANK_DONE = 0,
    RANK_FAILED = 1,    /* its board_rank says with what */
    RANK_SENT_HOME = 2, /* another rank failed, or the parent is gone */
};

/* How a process ends whose work came to `r`, 0 or -errno. */
enum rank_exit rank_exit(const struct board *board, uint32_t rank, int r);

/*
 * Measures every size as the struct options at `options` say. After each one rank 0 writes a byte
 * to `parent_fd` and goes on when it has one back; meanwhile the board holds still.
 */
enum rank_exit rank_run(const void *options, const char *socket, uint32_t rank, struct board *board,
                        int parent_fd);

#endif
