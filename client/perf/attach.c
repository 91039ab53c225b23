#include "client/perf/attach.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "client/perf/bench.h"
#include "client/perf/probe_options.h"
#include "client/perf/ranks.h"
#include "client/perf/report.h"

#define AUTO_ITERS 20u

/* What every rank notes the time of, in each attachment. */
enum stamp {
    STAMP_START,
    STAMP_CONNECTED,
    STAMP_IDENTIFIED, /* rank 0 only */
    STAMP_JOINING,
    STAMP_JOINED,
    STAMP_FIRST_CALL,
    STAMP_FIRST_DONE,
    STAMP_NEXT_CALL,
    STAMP_NEXT_DONE,
    STAMPS,
};

/* A stretch from the first rank's start to the last rank's end. */
static const struct part {
    const char *name;
    enum stamp from, to;
    bool only_root;
} parts[] = {
    { "connect", STAMP_START, STAMP_CONNECTED, false },
    { "id", STAMP_CONNECTED, STAMP_IDENTIFIED, true },
    { "join", STAMP_JOINING, STAMP_JOINED, false },
    { "attach", STAMP_START, STAMP_JOINED, false },
    { "first_call", STAMP_FIRST_CALL, STAMP_FIRST_DONE, false },
    { "next_call", STAMP_NEXT_CALL, STAMP_NEXT_DONE, false },
};

static uint64_t iters_of(const struct probe_options *o)
{
    return o->iters == OPTIONS_AUTO ? AUTO_ITERS : o->iters;
}

/* ---------------------------------------------------------------- in each rank's process */

struct attachment {
    struct board *board;
    uint32_t rank;
    uint64_t *stamps; /* [STAMPS] */
    struct ruccl_conn *conn;
    struct ruccl_comm comm;
    struct ruccl_region *region;
};

static void stamp(struct attachment *a, enum stamp s)
{
    a->stamps[s] = board_now_ns();
}

static int attach(struct attachment *a, const char *socket)
{
    int r;

    r = board_meet(a->board);
    if (r < 0)
        return r;
    stamp(a, STAMP_START);
    if (ruccl_connect(socket, "ruccl-perf attach", &a->conn) < 0)
        return board_fail(a->board, a->rank, "connecting");
    stamp(a, STAMP_CONNECTED);
    if (a->rank == 0 && ruccl_new_id(a->conn, a->board->id) < 0)
        return board_fail(a->board, a->rank, "making a communicator id");
    stamp(a, STAMP_IDENTIFIED);
    r = board_meet(a->board);
    if (r < 0)
        return r;
    stamp(a, STAMP_JOINING);
    if (ruccl_join(a->conn, a->board->id, a->rank, a->board->nranks, NULL, &a->comm) < 0)
        return board_fail(a->board, a->rank, "joining");
    stamp(a, STAMP_JOINED);
    return 0;
}

/* A call and its stamps, `s` and the one behind it. */
static int call(struct attachment *a, enum stamp s)
{
    const struct ruccl_tensor t = { RUCCL_F32, 1, { 2 }, a->region, 0, NULL };
    int r;

    r = board_meet(a->board);
    if (r < 0)
        return r;
    stamp(a, s);
    if (ruccl_all_reduce(a->comm, &t, &t, RUCCL_SUM) < 0)
        return board_fail(a->board, a->rank, "all_reduce");
    stamp(a, s + 1);
    return 0;
}

static int attach_once(struct attachment *a, const char *socket)
{
    int r;

    r = attach(a, socket);
    if (r < 0)
        return r;
    if (ruccl_alloc(a->conn, 8, &a->region) < 0)
        return board_fail(a->board, a->rank, "allocating shared memory");
    r = call(a, STAMP_FIRST_CALL);
    if (r == 0)
        r = call(a, STAMP_NEXT_CALL);
    if (r < 0)
        return r;
    return ruccl_leave(a->comm) < 0 ? board_fail(a->board, a->rank, "leaving") : 0;
}

static enum rank_exit attach_rank(const void *options, const char *socket, uint32_t rank,
                                  struct board *board, int parent_fd)
{
    const struct probe_options *o = options;
    int r = 0;

    (void)parent_fd;
    for (uint64_t i = 0; r == 0 && i < iters_of(o); i++) {
        struct attachment a = {
            .board = board,
            .rank = rank,
            .stamps = board_times(board, rank) + i * STAMPS,
        };

        r = attach_once(&a, socket);
        ruccl_close(a.conn);
    }
    return rank_exit(board, rank, r);
}

/* ---------------------------------------------------------------- what came of it */

static uint64_t part_ns(const struct board *board, const struct part *part, uint64_t i)
{
    uint64_t from = UINT64_MAX, to = 0;

    for (uint32_t rank = 0; rank < (part->only_root ? 1 : board->nranks); rank++) {
        const uint64_t *stamps = board_times(board, rank) + i * STAMPS;

        from = MIN(from, stamps[part->from]);
        to = MAX(to, stamps[part->to]);
    }
    return to - from;
}

struct spread {
    double median_us, q25_us, q75_us, min_us, max_us;
};

/* Over `times_ns`, which it sorts. */
static struct spread spread_of(uint64_t *times_ns, uint64_t n)
{
    const double median = (double)report_median(times_ns, n);

    return (struct spread){
        .median_us = median / 1e3,
        .q25_us = (double)times_ns[(n - 1) / 4] / 1e3,
        .q75_us = (double)times_ns[(n - 1) - (n - 1) / 4] / 1e3,
        .min_us = (double)times_ns[0] / 1e3,
        .max_us = (double)times_ns[n - 1] / 1e3,
    };
}

static int print_json(const struct probe_options *o, const char *name, const struct spread *s)
{
    json_t *row = json_pack("{s:s, s:s, s:i, s:I, s:f, s:f, s:f, s:f, s:f}", "measure", "attach",
                            "part", name, "ranks", (int)o->nranks, "iters", (json_int_t)iters_of(o),
                            "median_us", s->median_us, "q25_us", s->q25_us, "q75_us", s->q75_us,
                            "min_us", s->min_us, "max_us", s->max_us);

    return report_json(stdout, row);
}

static void print_header(const struct probe_options *o, const struct site *site)
{
    printf(
        "# ruccl-perf attach: %u rank%s, %llu times, %s daemon\n"
        "# us from the first rank's start to the last rank's end; attach: connect, id and join;\n"
        "# calls: all_reduce of 8 B in shared memory\n"
        "# %-12s %11s %11s %11s %11s %11s\n",
        o->nranks, o->nranks == 1 ? "" : "s", (unsigned long long)iters_of(o), site_daemon(site),
        "part", "median", "1st quart", "3rd quart", "least", "most");
}

static int print_parts(const struct probe_options *o, const struct board *board,
                       const struct site *site)
{
    const uint64_t n = iters_of(o);
    static uint64_t times_ns[OPTIONS_ITERS_MAX];

    if (!o->json)
        print_header(o, site);
    for (size_t p = 0; p < ARRAY_SIZE(parts); p++) {
        struct spread s;
        int r = 0;

        for (uint64_t i = 0; i < n; i++)
            times_ns[i] = part_ns(board, &parts[p], i);
        s = spread_of(times_ns, n);
        if (o->json)
            r = print_json(o, parts[p].name, &s);
        else
            printf("  %-12s %11.2f %11.2f %11.2f %11.2f %11.2f\n", parts[p].name, s.median_us,
                   s.q25_us, s.q75_us, s.min_us, s.max_us);
        if (r < 0)
            return BENCH_BAD;
    }
    return fflush(stdout) == 0 ? BENCH_GOOD : BENCH_BAD;
}

static int attach_at(const struct site *site, const void *options)
{
    const struct probe_options *o = options;
    const struct ranks_job job = { o->nranks, iters_of(o) * STAMPS, attach_rank, o };
    struct ranks ranks;
    int status = BENCH_BAD, signal, r;

    r = ranks_play(&ranks, &job, site, &signal);
    if (r == RANKS_ENDED)
        status = print_parts(o, ranks.board, site);
    else if (r == RANKS_STOPPED)
        status = BENCH_SIGNAL + signal;
    ranks_stop(&ranks);
    return status;
}

int attach_run(int argc, char **argv)
{
    struct probe_options o;
    int status;

    return probe_take_arguments(argc, argv, &o, &status) ? site_run(o.socket, attach_at, &o)
                                                         : status;
}
