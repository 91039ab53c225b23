#include "client/perf/ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/perf/signals.h"

/* After the first failure: the others learn of it through the daemon and the board, and say so. */
#define GRACE_MS 10000

/* ---------------------------------------------------------------- start and stop */

/* In the child. Its own process group: the terminal's ^C is for the parent, which stops it in
 * order. */
static _Noreturn void become_rank(const struct ranks *ranks, uint32_t rank, int parent_fd,
                                  pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(RANK_SENT_HOME);
    setpgid(0, 0);
    signals_restore();
    close(ranks->fd);
    close(ranks->site->signal_fd);
    _exit(ranks->job.run(ranks->job.context, ranks->site->socket, rank, ranks->board, parent_fd));
}

static int ranks_fork(struct ranks *ranks, int parent_fd)
{
    pid_t parent = getpid();

    for (uint32_t rank = 0; rank < ranks->job.nranks; rank++) {
        pid_t pid = fork();

        if (pid == 0)
            become_rank(ranks, rank, parent_fd, parent);
        if (pid < 0)
            return -errno;
        ranks->pids[rank] = pid;
        ranks->nalive++;
    }
    return 0;
}

int ranks_start(struct ranks *ranks, const struct ranks_job *job, const struct site *site)
{
    int fds[2] = { -1, -1 };
    int r;

    *ranks = (struct ranks){
        .job = *job,
        .site = site,
        .fd = -1,
        .board = board_new(job->nranks, job->ntimes),
        .pids = calloc(job->nranks, sizeof(pid_t)),
        .statuses = calloc(job->nranks, sizeof(int)),
    };
    if (!ranks->board || !ranks->pids || !ranks->statuses)
        r = -ENOMEM;
    else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
        r = -errno;
    else {
        ranks->fd = fds[0];
        fflush(NULL);
        r = ranks_fork(ranks, fds[1]);
        close(fds[1]);
    }
    if (r < 0)
        fprintf(stderr, "ruccl-perf: cannot start %u ranks: %s\n", job->nranks, strerror(-r));
    return r;
}

void ranks_stop(struct ranks *ranks)
{
    for (uint32_t rank = 0; ranks->pids && rank < ranks->job.nranks; rank++) {
        if (!ranks->pids[rank])
            continue;
        kill(ranks->pids[rank], SIGKILL);
        waitpid(ranks->pids[rank], NULL, 0);
    }
    if (ranks->fd >= 0)
        close(ranks->fd);
    free(ranks->pids);
    free(ranks->statuses);
    ranks->board = board_free(ranks->board);
}

/* ---------------------------------------------------------------- failures, in words */

static bool same_failure(const struct board_rank *a, const struct board_rank *b)
{
    return a->error.code == b->error.code && a->doing == b->doing &&
           !strcmp(a->error.text, b->error.text);
}

/* One line for all ranks that say the same as `first`; none if a lower rank has said it. */
static void report_error(const struct ranks *ranks, uint32_t first, uint32_t *scratch)
{
    const struct board_rank *corners = ranks->board->ranks;
    struct text who = { 0 };
    uint32_t n = 0;

    for (uint32_t rank = 0; rank < ranks->job.nranks; rank++) {
        if (!corners[rank].error.code || !same_failure(&corners[rank], &corners[first]))
            continue;
        if (rank < first)
            return;
        scratch[n++] = rank;
    }
    text_add_ranks(&who, scratch, n);
    fprintf(stderr, "ruccl-perf: %s: %s: %s: %s\n", who.s, corners[first].doing,
            ruccl_code_name((int)corners[first].error.code), corners[first].error.text);
}

static void report_failures(const struct ranks *ranks)
{
    uint32_t *scratch = calloc(ranks->job.nranks, sizeof(*scratch));

    for (uint32_t rank = 0; scratch && rank < ranks->job.nranks; rank++) {
        int status = ranks->statuses[rank];

        if (ranks->board->ranks[rank].error.code)
            report_error(ranks, rank, scratch);
        else if (WIFSIGNALED(status))
            fprintf(stderr, "ruccl-perf: rank %u was killed by signal %d (%s)\n", rank,
                    WTERMSIG(status), strsignal(WTERMSIG(status)));
        else if (WEXITSTATUS(status) && WEXITSTATUS(status) != RANK_SENT_HOME)
            fprintf(stderr, "ruccl-perf: rank %u ended with status %d\n", rank,
                    WEXITSTATUS(status));
    }
    free(scratch);
}

/* ---------------------------------------------------------------- watching */

/* Collects those that have ended. Return: whether one of them failed. */
static bool ranks_reap(struct ranks *ranks)
{
    bool failed = false;

    for (uint32_t rank = 0; rank < ranks->job.nranks; rank++) {
        int *status = &ranks->statuses[rank];

        if (!ranks->pids[rank] || waitpid(ranks->pids[rank], status, WNOHANG) <= 0)
            continue;
        ranks->pids[rank] = 0;
        ranks->nalive--;
        failed |= *status != 0;
    }
    return failed;
}

/* Something failed: gives the ranks time to say with what, then ends those that do not come home.
 */
static int ranks_give_up(struct ranks *ranks)
{
    board_break(ranks->board);
    for (int waited_ms = 0; ranks->nalive && waited_ms < GRACE_MS; waited_ms += 10) {
        usleep(10000);
        ranks_reap(ranks);
    }
    report_failures(ranks);
    for (uint32_t rank = 0; rank < ranks->job.nranks; rank++) {
        if (!ranks->pids[rank])
            continue;
        fprintf(stderr, "ruccl-perf: rank %u did not notice and is killed\n", rank);
        kill(ranks->pids[rank], SIGKILL);
        waitpid(ranks->pids[rank], NULL, 0);
        ranks->pids[rank] = 0;
    }
    if (ranks->site->daemon)
        own_daemon_ended(ranks->site->daemon);
    return -EIO;
}

int ranks_next(struct ranks *ranks, int *ret_signal)
{
    char byte = 0;

    if (ranks->owes_reply)
        send(ranks->fd, &byte, 1, 0);
    ranks->owes_reply = false;

    for (;;) {
        struct pollfd fds[] = {
            { .fd = ranks->site->signal_fd, .events = POLLIN },
            { .fd = ranks->fd, .events = POLLIN },
        };
        int stop = 0;

        if (poll(fds, ARRAY_SIZE(fds), -1) < 0 && errno != EINTR)
            return -errno;
        if (fds[0].revents)
            stop = signals_take(ranks->site->signal_fd);
        if (stop) {
            *ret_signal = stop;
            return RANKS_STOPPED;
        }
        if (ranks_reap(ranks) || (ranks->site->daemon && own_daemon_ended(ranks->site->daemon)))
            return ranks_give_up(ranks);
        if (!ranks->nalive)
            return RANKS_ENDED;
        if (!fds[1].revents)
            continue;
        if (read(ranks->fd, &byte, 1) == 1) {
            ranks->owes_reply = true;
            return RANKS_MEASURED;
        }
        close(ranks->fd); /* rank 0 has left, others may still be about to */
        ranks->fd = -1;
    }
}

int ranks_play(struct ranks *ranks, const struct ranks_job *job, const struct site *site,
               int *ret_signal)
{
    int r = ranks_start(ranks, job, site);

    return r < 0 ? r : ranks_next(ranks, ret_signal);
}
