/*
 * ruCCL, through libruccl and the daemon at $RUCCL_SOCKET. Settings: shared (ruccl_alloc) and plain
 * memory, posted: the asynchronous form of an all_reduce in shared memory, and persistent: one that
 * is made once and started again and again. With $BENCH_BUDGET, all of it under a budget of so many
 * bytes.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "client/ruccl.h"

struct rank {
    const struct bench_options *o;
    struct ruccl_comm comm;
    struct ruccl_region *in_region, *out_region; /* NULL: plain memory */
    struct bench_buffers buffers;

    struct ruccl_tensor in, out;
    uint64_t send_counts[BENCH_MAX_RANKS];
    struct ruccl_persistent *persistent; /* NULL: every call says what it wants */
};

static const enum ruccl_dtype dtypes[] = {
    [BENCH_F32] = RUCCL_F32,
    [BENCH_F16] = RUCCL_F16,
    [BENCH_BF16] = RUCCL_BF16,
    [BENCH_I64] = RUCCL_I64,
};

static void check(int r, const char *what)
{
    if (r < 0)
        bench_fail("%s: %s", what, ruccl_last_error()->text);
}

static struct ruccl_tensor tensor(const struct rank *k, struct ruccl_region *region, void *data,
                                  uint64_t count)
{
    return (struct ruccl_tensor){
        .dtype = dtypes[k->o->dtype],
        .naxes = 1,
        .shape = { count },
        .region = region,
        .data = region ? NULL : data,
    };
}

static bool is_persistent(const struct bench_options *o)
{
    return !strcmp(o->setting, "persistent");
}

static void prepare_persistent(struct rank *k)
{
    ruccl_persistent_release(k->persistent);
    check(ruccl_all_reduce_init(k->comm, &k->in, &k->out, RUCCL_SUM, &k->persistent), "init");
}

static void prepare(void *context, const struct bench_case *c)
{
    struct rank *k = context;

    k->in = tensor(k, k->in_region, k->buffers.in, c->in_count);
    k->out = tensor(k, k->out_region, k->buffers.out, c->out_count);
    for (uint32_t i = 0; i < k->o->nranks; i++)
        k->send_counts[i] = c->n;
    if (is_persistent(k->o))
        prepare_persistent(k);
}

static bool is_posted(const struct bench_options *o)
{
    return !strcmp(o->setting, "posted");
}

static void finish(struct ruccl_work *work)
{
    check(ruccl_work_wait(work, -1), "wait");
    ruccl_work_release(work);
}

static void run_persistent(struct rank *k)
{
    struct ruccl_work *work;

    check(ruccl_start(k->persistent, &work), "start");
    finish(work);
}

static void run_posted(struct rank *k)
{
    struct ruccl_work *work;

    check(ruccl_all_reduce_async(k->comm, &k->in, &k->out, RUCCL_SUM, &work), "all_reduce_async");
    finish(work);
}

static void run(void *context)
{
    struct rank *k = context;
    int r = 0;

    if (k->persistent) {
        run_persistent(k);
        return;
    }
    if (is_posted(k->o)) {
        run_posted(k);
        return;
    }
    switch (k->o->collective) {
    case BENCH_ALL_REDUCE:
        r = ruccl_all_reduce(k->comm, &k->in, &k->out, RUCCL_SUM);
        break;
    case BENCH_ALL_GATHER:
        r = ruccl_all_gather(k->comm, &k->in, &k->out);
        break;
    case BENCH_REDUCE_SCATTER:
        r = ruccl_reduce_scatter(k->comm, &k->in, &k->out, RUCCL_SUM);
        break;
    case BENCH_BROADCAST:
        r = ruccl_broadcast(k->comm, &k->in, &k->out, 0);
        break;
    case BENCH_ALL_TO_ALL_V:
        r = ruccl_all_to_all_v(k->comm, &k->in, k->send_counts, &k->out, NULL, NULL);
        break;
    }
    check(r, "collective");
}

static const struct bench_contestant ruccl = { prepare, run, NULL };

static void *buffer_new(struct ruccl_conn *conn, const struct bench_options *o,
                        struct ruccl_region **ret_region)
{
    uint64_t bytes = bench_buffer_bytes(o);

    if (!strcmp(o->setting, "plain"))
        return bench_alloc(bytes);
    check(ruccl_alloc(conn, bytes, ret_region), "ruccl_alloc");
    return ruccl_region_data(*ret_region);
}

static struct ruccl_comm bounded(struct ruccl_comm comm)
{
    const char *budget = getenv("BENCH_BUDGET");

    return budget ? ruccl_bounded(comm, strtoull(budget, NULL, 10)) : comm;
}

static void rank_main(const struct bench_options *o, struct bench_board *board, uint32_t rank)
{
    struct rank k = { .o = o, .buffers.rank = rank };
    char *id = bench_board_text(board);
    struct ruccl_conn *conn;

    check(ruccl_connect(NULL, "bench", &conn), "connect");
    if (rank == 0)
        check(ruccl_new_id(conn, id), "new id");
    bench_meet(board, o->nranks);
    check(ruccl_join(conn, id, rank, o->nranks, NULL, &k.comm), "join");
    k.comm = bounded(k.comm);

    k.buffers.in = buffer_new(conn, o, &k.in_region);
    k.buffers.out = k.buffers.in;
    k.out_region = k.in_region;
    if (!bench_in_place(o))
        k.buffers.out = buffer_new(conn, o, &k.out_region);

    bench_loop(board, o, rank, o->nranks, &k.buffers, 1, &ruccl, &k);

    ruccl_persistent_release(k.persistent);
    bench_meet(board, o->nranks);
    check(ruccl_leave(k.comm), "leave");
    ruccl_close(conn);
}

int main(int argc, char **argv)
{
    struct bench_options o;

    bench_parse(argc, argv, &o);
    if ((is_persistent(&o) || is_posted(&o)) && o.collective != BENCH_ALL_REDUCE)
        return BENCH_UNSUPPORTED;
    return bench_fork(&o, bench_board_new(getenv("BENCH_BOARD")), rank_main);
}
