#include "client/perf/workload.h"

#include <string.h>

/* ---------------------------------------------------------------- bandwidth factors */

static double factor_none(uint32_t nranks)
{
    (void)nranks;
    return 1;
}

/* A rank's own share stays where it is. */
static double factor_others(uint32_t nranks)
{
    return (double)(nranks - 1) / nranks;
}

static double factor_all_reduce(uint32_t nranks)
{
    return 2 * factor_others(nranks);
}

/* ---------------------------------------------------------------- what outputs must hold */

static struct segment expect_nothing(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)n, (void)nranks, (void)rank, (void)s;
    return (struct segment){ .count = 0 };
}

static struct segment expect_reduction(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks, (void)rank, (void)s;
    return (struct segment){ .reduced = true, .count = n };
}

static struct segment expect_own_reduction(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks, (void)s;
    return (struct segment){ .reduced = true, .first = rank * n, .count = n };
}

static struct segment expect_roots(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks, (void)rank, (void)s;
    return (struct segment){ .source = WORKLOAD_ROOT, .count = n };
}

static struct segment expect_roots_block(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks, (void)s;
    return (struct segment){ .source = WORKLOAD_ROOT, .first = rank * n, .count = n };
}

static struct segment expect_everyones(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks, (void)rank;
    return (struct segment){ .source = s, .count = n };
}

static struct segment expect_blocks(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)nranks;
    return (struct segment){ .source = s, .first = rank * n, .count = n };
}

static struct segment expect_rows(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    uint64_t first = 0;

    for (uint32_t destination = 0; destination < rank; destination++)
        first += workload_pair_rows(n, nranks, s, destination);
    return (struct segment){ .source = s,
                             .first = first,
                             .count = workload_pair_rows(n, nranks, s, rank) };
}

static struct segment expect_predecessors(uint64_t n, uint32_t nranks, uint32_t rank, uint32_t s)
{
    (void)s;
    return (struct segment){ .source = (rank + nranks - 1) % nranks, .count = n };
}

/* ---------------------------------------------------------------- calls */

static int run_all_reduce(const struct call *c)
{
    return ruccl_all_reduce(c->comm, c->in, c->out, c->op);
}

static int run_all_gather(const struct call *c)
{
    return ruccl_all_gather(c->comm, c->in, c->out);
}

static int run_reduce_scatter(const struct call *c)
{
    return ruccl_reduce_scatter(c->comm, c->in, c->out, c->op);
}

static int run_broadcast(const struct call *c)
{
    return ruccl_broadcast(c->comm, c->in, c->out, WORKLOAD_ROOT);
}

static int run_reduce(const struct call *c)
{
    return ruccl_reduce(c->comm, c->in, c->out, c->op, WORKLOAD_ROOT);
}

static int run_gather(const struct call *c)
{
    return ruccl_gather(c->comm, c->in, c->out, WORKLOAD_ROOT);
}

static int run_scatter(const struct call *c)
{
    return ruccl_scatter(c->comm, c->in, c->out, WORKLOAD_ROOT);
}

static int run_all_to_all(const struct call *c)
{
    return ruccl_all_to_all(c->comm, c->in, c->out);
}

static int run_all_to_all_v(const struct call *c)
{
    return ruccl_all_to_all_v(c->comm, c->in, c->send_counts, c->out, c->receive_counts, NULL);
}

static int run_barrier(const struct call *c)
{
    return ruccl_barrier(c->comm);
}

/* A ring: to the next rank, from the one before, both under way at once. */
static int run_sendrecv(const struct call *c)
{
    uint32_t rank = ruccl_rank(c->comm), nranks = ruccl_world_size(c->comm);
    struct ruccl_work *recv, *send;
    int r;

    r = ruccl_recv_async(c->comm, c->out, (rank + nranks - 1) % nranks, 0, &recv);
    if (r < 0)
        return r;

    r = ruccl_send_async(c->comm, c->in, (rank + 1) % nranks, 0, &send);
    if (r >= 0) {
        r = ruccl_work_wait(send, -1);
        ruccl_work_release(send);
    }
    if (r >= 0)
        r = ruccl_work_wait(recv, -1);
    ruccl_work_release(recv);
    return r;
}

/* ---------------------------------------------------------------- the table */

static const struct workload workloads[] = {
    { "all_reduce", COLLECTIVE_ALL_REDUCE, IN_PLACE_SAME, factor_all_reduce, expect_reduction,
      run_all_reduce },
    { "all_gather", COLLECTIVE_ALL_GATHER, IN_PLACE_IN_AT_RANK, factor_others, expect_everyones,
      run_all_gather },
    { "reduce_scatter", COLLECTIVE_REDUCE_SCATTER, IN_PLACE_OUT_AT_RANK, factor_others,
      expect_own_reduction, run_reduce_scatter },
    { "broadcast", COLLECTIVE_BROADCAST, IN_PLACE_SAME, factor_none, expect_roots, run_broadcast },
    { "reduce", COLLECTIVE_REDUCE, IN_PLACE_SAME, factor_none, expect_reduction, run_reduce },
    { "gather", COLLECTIVE_GATHER, IN_PLACE_NONE, factor_others, expect_everyones, run_gather },
    { "scatter", COLLECTIVE_SCATTER, IN_PLACE_NONE, factor_others, expect_roots_block,
      run_scatter },
    { "all_to_all", COLLECTIVE_ALL_TO_ALL, IN_PLACE_NONE, factor_others, expect_blocks,
      run_all_to_all },
    { "all_to_all_v", COLLECTIVE_ALL_TO_ALL_V, IN_PLACE_NONE, factor_others, expect_rows,
      run_all_to_all_v },
    { "sendrecv", COLLECTIVE_SEND, IN_PLACE_NONE, factor_none, expect_predecessors, run_sendrecv },
    { "barrier", COLLECTIVE_BARRIER, IN_PLACE_NONE, factor_none, expect_nothing, run_barrier },
};

const struct workload *workload_by_name(const char *name)
{
    for (size_t i = 0; i < ARRAY_SIZE(workloads); i++)
        if (!strcmp(workloads[i].name, name))
            return &workloads[i];
    return NULL;
}

static uint32_t flags(const struct workload *w)
{
    return collective_get(w->kind)->flags;
}

bool workload_has_op(const struct workload *w)
{
    return flags(w) & COLLECTIVE_HAS_OP;
}

bool workload_has_data(const struct workload *w)
{
    return collective_get(w->kind)->shape != SHAPE_NONE;
}

/* How many times n a rank's larger tensor holds: what nccl-tests calls the size. */
static uint64_t blocks(const struct workload *w, uint32_t nranks)
{
    switch (collective_get(w->kind)->shape) {
    case SHAPE_NONE:
        return 0;
    case SHAPE_SAME:
        return 1;
    default:
        return nranks;
    }
}

uint64_t workload_count(const struct workload *w, uint64_t bytes, uint32_t width, uint32_t nranks)
{
    uint64_t unit = blocks(w, nranks) * width;

    return unit ? bytes / unit : 0;
}

uint64_t workload_bytes(const struct workload *w, uint64_t n, uint32_t width, uint32_t nranks)
{
    return n * blocks(w, nranks) * width;
}

bool workload_has_in(const struct workload *w, uint32_t rank)
{
    return workload_has_data(w) && (!(flags(w) & COLLECTIVE_IN_AT_ROOT) || rank == WORKLOAD_ROOT);
}

bool workload_has_out(const struct workload *w, uint32_t rank)
{
    return workload_has_data(w) && (!(flags(w) & COLLECTIVE_OUT_AT_ROOT) || rank == WORKLOAD_ROOT);
}

uint64_t workload_in_count(const struct workload *w, uint64_t n, uint32_t nranks, uint32_t rank)
{
    if (!workload_has_in(w, rank))
        return 0;
    return collective_get(w->kind)->shape == SHAPE_TIMES_R ? n : n * blocks(w, nranks);
}

uint64_t workload_out_count(const struct workload *w, uint64_t n, uint32_t nranks, uint32_t rank)
{
    if (!workload_has_out(w, rank))
        return 0;
    return collective_get(w->kind)->shape == SHAPE_OVER_R ? n : n * blocks(w, nranks);
}

uint32_t workload_nsegments(const struct workload *w, uint32_t nranks)
{
    enum shape_rule shape = collective_get(w->kind)->shape;

    return shape == SHAPE_TIMES_R || shape == SHAPE_EXCHANGE ? nranks : 1;
}

/* Rows before the k-th share: shares grow evenly from none, and R of them make R * n. */
static uint64_t rows_before(uint64_t n, uint32_t nranks, uint64_t k)
{
    uint64_t shares = nranks > 1 ? (uint64_t)nranks * (nranks - 1) : 1;
    uint64_t upto = nranks > 1 ? k * (k - 1) : k;
    uint64_t rows = n * nranks;

    if (!k)
        return 0;
    return rows / shares * upto + rows % shares * upto / shares;
}

uint64_t workload_pair_rows(uint64_t n, uint32_t nranks, uint32_t source, uint32_t destination)
{
    uint64_t share = (source + destination) % nranks;

    return rows_before(n, nranks, share + 1) - rows_before(n, nranks, share);
}
