/* The rank processes as their parent sees them: started, watched, and never left behind. */
#ifndef CLIENT_PERF_RANKS_H
#define CLIENT_PERF_RANKS_H

#include <sys/types.h>

#include "client/perf/board.h"
#include "client/perf/options.h"
#include "client/perf/own_daemon.h"

struct ranks {
    const struct options *o;
    struct own_daemon *daemon; /* NULL: somebody else's */
    struct board *board;
    int signal_fd;
    int fd; /* to rank 0: a byte when the board is complete, one back when it is read */
    bool owes_reply;
    uint32_t nalive;
    pid_t *pids;   /* [o->nranks]; 0: has ended */
    int *statuses; /* [o->nranks]; of waitpid, once ended */
};

enum ranks_event {
    RANKS_ENDED = 0,    /* all of them, in good order */
    RANKS_MEASURED = 1, /* the board is complete and holds still until the next ranks_next() */
    RANKS_STOPPED = 2,  /* by a signal to this process */
};

/* Return: 0, or -errno with the reason on stderr; ranks_stop() is due in either case. */
int ranks_start(struct ranks *ranks, const struct options *o, const char *socket,
                struct own_daemon *daemon, int signal_fd);

/*
 * Waits for the next event. Return: an event; *ret_signal belongs to RANKS_STOPPED; or -EIO if a
 * rank or the daemon failed: all ranks have then ended and stderr says who failed with what.
 */
int ranks_next(struct ranks *ranks, int *ret_signal);

/* Kills what still runs and frees the rest. */
void ranks_stop(struct ranks *ranks);

#endif
