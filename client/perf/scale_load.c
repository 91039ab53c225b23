#include "client/perf/scale_load.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>

#define WARMUP 3u /* calls, before which each communicator gets one */

/* One process of a load. */
struct loader {
    const struct load *load;
    struct board *board;
    uint32_t rank;
    struct ruccl_conn *conn;
    struct ruccl_comm *comms; /* [load->ncomms] */
    struct ruccl_region *region;
    struct ruccl_conn **idle; /* [load->nidle] */
};

static int loader_fail(const struct loader *l, const char *doing)
{
    return board_fail(l->board, l->rank, doing);
}

/* ---------------------------------------------------------------- a member */

static int member_join(struct loader *l, const char *socket)
{
    struct ruccl_comm comm;
    int r;

    l->comms = calloc(l->load->ncomms, sizeof(*l->comms));
    if (!l->comms)
        return board_fail_memory(l->board, l->rank, "allocating communicators");
    if (ruccl_connect(socket, "ruccl-perf scale", &l->conn) < 0)
        return loader_fail(l, "connecting");
    if (l->rank == 0 && ruccl_new_id(l->conn, l->board->id) < 0)
        return loader_fail(l, "making a communicator id");
    r = board_meet(l->board);
    if (r < 0)
        return r;
    if (ruccl_join(l->conn, l->board->id, l->rank, l->load->nmembers, NULL, &comm) < 0)
        return loader_fail(l, "joining");
    l->comms[0] = ruccl_bounded(comm, l->load->budget);
    for (uint32_t i = 1; i < l->load->ncomms; i++)
        if (ruccl_split(comm, 0, (int32_t)l->rank, &l->comms[i]) < 0)
            return loader_fail(l, "making communicators");
    if (ruccl_alloc(l->conn, l->load->bytes, &l->region) < 0)
        return loader_fail(l, "allocating shared memory");
    return 0;
}

static int member_call(struct loader *l, uint64_t ncalls)
{
    const struct ruccl_tensor t = {
        .dtype = RUCCL_F32, .naxes = 1, .shape = { l->load->bytes / 4 }, .region = l->region
    };

    for (uint64_t i = 0; i < ncalls; i++)
        if (ruccl_all_reduce(l->comms[i % l->load->ncomms], &t, &t, RUCCL_MAX) < 0)
            return loader_fail(l, "all_reduce");
    return 0;
}

static int member_measure(struct loader *l)
{
    uint64_t *times_ns = board_times(l->board, l->rank);
    int r;

    r = member_call(l, l->load->ncomms + WARMUP);
    if (r == 0)
        r = board_meet(l->board);
    for (uint32_t batch = 0; r == 0 && batch < LOAD_BATCHES; batch++) {
        uint64_t start_ns = board_now_ns();

        r = member_call(l, l->load->calls);
        times_ns[batch] = board_now_ns() - start_ns;
    }
    return r == 0 ? board_meet(l->board) : r;
}

/* ---------------------------------------------------------------- the idle ones */

static int crowd_connect(struct loader *l, const char *socket)
{
    struct rlimit files;
    int r;

    l->idle = calloc(l->load->nidle, sizeof(struct ruccl_conn *));
    if (!l->idle)
        return board_fail_memory(l->board, l->rank, "allocating sessions");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (uint32_t i = 0; i < l->load->nidle; i++)
        if (ruccl_connect(socket, "ruccl-perf idle", &l->idle[i]) < 0)
            return loader_fail(l, "opening idle sessions");
    /* Where members hand over the id, begin to measure, and have measured. */
    for (int meeting = 0; meeting < 3; meeting++) {
        r = board_meet(l->board);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ---------------------------------------------------------------- either */

static void loader_fini(struct loader *l)
{
    for (uint32_t i = 0; l->idle && i < l->load->nidle; i++)
        ruccl_close(l->idle[i]);
    ruccl_close(l->conn);
    free(l->idle);
    free(l->comms);
}

enum rank_exit load_run(const void *load, const char *socket, uint32_t rank, struct board *board,
                        int parent_fd)
{
    struct loader l = { .load = load, .board = board, .rank = rank };
    int r;

    (void)parent_fd;
    if (rank >= l.load->nmembers) {
        r = crowd_connect(&l, socket);
    } else {
        r = member_join(&l, socket);
        if (r == 0)
            r = member_measure(&l);
    }
    loader_fini(&l);
    return rank_exit(board, rank, r);
}
