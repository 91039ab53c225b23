#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "client/perf/scale_load.h"

/* The one process: both ranks of its communicators. */
struct holder {
    const struct memory_load *load;
    struct board *board;
    struct ruccl_conn *conn;
    struct ruccl_comm comms[2];
    struct ruccl_region *region;
    struct ruccl_conn **sessions; /* [n] */
    uint64_t n;                   /* of what the axis counts, held by now */
};

static int holder_fail(const struct holder *h, const char *doing)
{
    return board_fail(h->board, 0, doing);
}

/* ---------------------------------------------------------------- one more */

static int add_session(struct holder *h, const char *socket)
{
    struct ruccl_conn **sessions = realloc(h->sessions, (h->n + 1) * sizeof(struct ruccl_conn *));

    if (!sessions)
        return board_fail_memory(h->board, 0, "allocating sessions");
    h->sessions = sessions;
    if (ruccl_connect(socket, "ruccl-perf idle", &sessions[h->n]) < 0)
        return holder_fail(h, "opening idle sessions");
    return 0;
}

static int wait_and_release(struct ruccl_work *work)
{
    int r = ruccl_work_wait(work, -1);

    ruccl_work_release(work);
    return r;
}

static int add_communicator(struct holder *h, const char *socket)
{
    struct ruccl_work *works[2];
    struct ruccl_comm child;

    (void)socket;
    for (int rank = 0; rank < 2; rank++)
        if (ruccl_split_async(h->comms[rank], 0, rank, &child, &works[rank]) < 0)
            return holder_fail(h, "making communicators");
    for (int rank = 0; rank < 2; rank++)
        if (wait_and_release(works[rank]) < 0)
            return holder_fail(h, "making communicators");
    return 0;
}

/* Which the other rank never calls. */
static int add_operation(struct holder *h, const char *socket)
{
    const struct ruccl_tensor t = { RUCCL_F32, 1, { 2 }, h->region, 0, NULL };
    struct ruccl_work *work;

    (void)socket;
    if (ruccl_all_reduce_async(h->comms[0], &t, &t, RUCCL_SUM, &work) < 0)
        return holder_fail(h, "all_reduce");
    ruccl_work_release(work);
    return 0;
}

static int add_one(struct holder *h, const char *socket)
{
    switch (h->load->axis) {
    case AXIS_MEMORY_SESSIONS:
        return add_session(h, socket);
    case AXIS_MEMORY_COMMUNICATORS:
        return add_communicator(h, socket);
    default:
        return add_operation(h, socket);
    }
}

/* ---------------------------------------------------------------- all of it */

static int holder_join(struct holder *h, const char *socket)
{
    struct ruccl_work *works[2];
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (ruccl_connect(socket, "ruccl-perf scale", &h->conn) < 0)
        return holder_fail(h, "connecting");
    if (ruccl_new_id(h->conn, h->board->id) < 0)
        return holder_fail(h, "making a communicator id");
    for (uint32_t rank = 0; rank < 2; rank++)
        if (ruccl_join_async(h->conn, h->board->id, rank, 2, NULL, &h->comms[rank], &works[rank]) <
            0)
            return holder_fail(h, "joining");
    for (int rank = 0; rank < 2; rank++)
        if (wait_and_release(works[rank]) < 0)
            return holder_fail(h, "joining");
    return ruccl_alloc(h->conn, 8, &h->region) < 0 ? holder_fail(h, "allocating shared memory") : 0;
}

/* Returns when the daemon has handled all that was sent before. */
static int settle(const struct holder *h)
{
    char id[RUCCL_ID_BYTES];

    if (ruccl_new_id(h->conn, id) < 0 || ruccl_drop_id(h->conn, id) < 0)
        return holder_fail(h, "asking for an id");
    return 0;
}

/* In bytes: what is resident, and its share of that. */
static int read_memory(const struct holder *h, uint64_t ret[2])
{
    unsigned long long rss = 0, pss = 0;
    char path[64], line[128];
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)h->load->daemon);
    f = fopen(path, "re");
    if (!f)
        return board_fail_memory(h->board, 0, path);
    while (fgets(line, sizeof(line), f)) {
        sscanf(line, "Rss: %llu kB", &rss);
        sscanf(line, "Pss: %llu kB", &pss);
    }
    fclose(f);
    ret[0] = rss * 1024;
    ret[1] = pss * 1024;
    return 0;
}

static int grow(struct holder *h, const char *socket, uint64_t n)
{
    int r = 0;

    for (; r == 0 && h->n < n; h->n += r == 0)
        r = add_one(h, socket);
    return r == 0 ? settle(h) : r;
}

static int hold_more_and_more(struct holder *h, const char *socket)
{
    const struct axis *axis = axis_get(h->load->axis);
    uint64_t *results = board_times(h->board, 0);
    uint64_t base[2];
    int r;

    r = settle(h);
    if (r == 0)
        r = read_memory(h, base);
    for (uint64_t n = 0; r == 0 && (n = probe_next_n(h->load->o, axis, n)); results += 2) {
        r = grow(h, socket, n);
        if (r == 0)
            r = read_memory(h, results);
        for (int i = 0; r == 0 && i < 2; i++)
            results[i] -= MIN(base[i], results[i]);
        h->board->niters += r == 0;
    }
    return r;
}

enum rank_exit memory_load_run(const void *load, const char *socket, uint32_t rank,
                               struct board *board, int parent_fd)
{
    struct holder h = { .load = load, .board = board };
    int r;

    (void)parent_fd;
    r = holder_join(&h, socket);
    if (r == 0)
        r = hold_more_and_more(&h, socket);
    for (uint64_t i = 0; h.sessions && i < h.n; i++)
        ruccl_close(h.sessions[i]);
    ruccl_close(h.conn);
    free(h.sessions);
    return rank_exit(board, rank, r);
}
