/* The rank processes as their parent sees them: started, watched, and never left behind. */
#ifndef CLIENT_PERF_RANKS_H
#define CLIENT_PERF_RANKS_H

#include <sys/types.h>

#include "client/perf/board.h"
#include "client/perf/rank.h"
#include "client/perf/site.h"

/* What the processes do. */
struct ranks_job {
    uint32_t nranks;
    uint64_t ntimes; /* places that each rank has on the board */
    /* In each process; only rank 0 may use `parent_fd`: see ranks_next(). */
    enum rank_exit (*run)(const void *context, const char *socket, uint32_t rank,
                          struct board *board, int parent_fd);
    const void *context;
};

struct ranks {
    struct ranks_job job;
    const struct site *site;
    struct board *board;
    int fd; /* to rank 0: a byte when the board is complete, one back when it is read */
    bool owes_reply;
    uint32_t nalive;
    pid_t *pids;   /* [job.nranks]; 0: has ended */
    int *statuses; /* [job.nranks]; of waitpid, once ended */
};

enum ranks_event {
    RANKS_ENDED = 0,    /* all of them, in good order */
    RANKS_MEASURED = 1, /* the board is complete and holds still until the next ranks_next() */
    RANKS_STOPPED = 2,  /* by a signal to this process */
};

/* Return: 0, or -errno with the reason on stderr; ranks_stop() is due in either case. */
int ranks_start(struct ranks *ranks, const struct ranks_job *job, const struct site *site);

/*
 * Waits for the next event. Return: an event; *ret_signal belongs to RANKS_STOPPED; or -EIO if a
 * rank or the daemon failed: all ranks have then ended and stderr says who failed with what.
 */
int ranks_next(struct ranks *ranks, int *ret_signal);

/*
 * From the start to the end, for a job that hands nothing over before. Return: as ranks_next(), or
 * as ranks_start(); ranks_stop() is due, and the board may be read before it.
 */
int ranks_play(struct ranks *ranks, const struct ranks_job *job, const struct site *site,
               int *ret_signal);

/* Kills what still runs and frees the rest. */
void ranks_stop(struct ranks *ranks);

#endif
