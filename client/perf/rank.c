#include "client/perf/rank.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/perf/pattern.h"

#define AUTO_ITERS_MIN 5u
#define AUTO_NS        UINT64_C(300000000) /* the time that calls of one size should take */
#define POISON         0xdb                /* what an output holds before the call */

/* Shared memory has a region, plain memory only data. */
struct buffer {
    struct ruccl_region *region;
    uint8_t *data;
};

struct rank {
    const struct options *o;
    struct board *board;
    struct board_rank *corner;
    uint32_t rank, nranks, width;
    int parent_fd;

    struct ruccl_conn *conn;
    struct ruccl_comm comm;
    struct buffer in, out; /* in place where both are there: only `in` owns memory */
    uint64_t *send_counts, *receive_counts;
    struct pattern_table *input, *expected;
};

/* One size: n, and the tensors over the start of the buffers. */
struct trial {
    uint64_t n, in_count, out_count;
    uint8_t *in_data, *out_data;
    struct ruccl_tensor in, out;
    struct call call;
};

static int rank_fail(struct rank *k, const char *doing)
{
    return board_fail(k->board, k->rank, doing);
}

static int rank_fail_memory(struct rank *k, const char *doing)
{
    return board_fail_memory(k->board, k->rank, doing);
}

static bool in_place(const struct rank *k)
{
    return k->o->in_place && workload_has_in(k->o->workload, k->rank) &&
           workload_has_out(k->o->workload, k->rank);
}

/* ---------------------------------------------------------------- memory */

static int buffer_init(struct rank *k, struct buffer *b, uint64_t bytes)
{
    bytes = MAX(bytes, 1);
    if (k->o->plain) {
        b->data = malloc(bytes);
        return b->data ? 0 : rank_fail_memory(k, "allocating plain memory");
    }
    if (ruccl_alloc(k->conn, bytes, &b->region) < 0)
        return rank_fail(k, "allocating shared memory");
    b->data = ruccl_region_data(b->region);
    return 0;
}

static void buffer_fini(struct buffer *b)
{
    if (b->region)
        ruccl_free(b->region);
    else
        free(b->data);
    *b = (struct buffer){ NULL, NULL };
}

/* Once, for the largest size: making memory is not what is measured. */
static int rank_allocate(struct rank *k)
{
    const struct workload *w = k->o->workload;
    uint64_t n = workload_count(w, k->o->max_bytes, k->width, k->nranks);
    uint64_t in_bytes = workload_in_count(w, n, k->nranks, k->rank) * k->width;
    uint64_t out_bytes = workload_out_count(w, n, k->nranks, k->rank) * k->width;
    int r;

    k->input = malloc(sizeof(*k->input));
    k->expected = malloc(sizeof(*k->expected));
    k->send_counts = calloc(k->nranks, sizeof(uint64_t));
    k->receive_counts = calloc(k->nranks, sizeof(uint64_t));
    if (!k->input || !k->expected || !k->send_counts || !k->receive_counts)
        return rank_fail_memory(k, "allocating tables");

    if (in_place(k))
        return buffer_init(k, &k->in, MAX(in_bytes, out_bytes));
    if (workload_has_in(w, k->rank)) {
        r = buffer_init(k, &k->in, in_bytes);
        if (r < 0)
            return r;
    }
    if (workload_has_out(w, k->rank))
        return buffer_init(k, &k->out, out_bytes);
    return 0;
}

/* ---------------------------------------------------------------- one size */

static struct ruccl_tensor tensor_at(const struct rank *k, const struct buffer *b, uint64_t offset,
                                     uint64_t count)
{
    return (struct ruccl_tensor){
        .dtype = (enum ruccl_dtype)k->o->dtype,
        .naxes = 1,
        .shape = { count },
        .region = b->region,
        .offset = b->region ? offset : 0,
        .data = b->region ? NULL : b->data + offset,
    };
}

static void trial_init(struct trial *t, struct rank *k, uint64_t bytes)
{
    const struct workload *w = k->o->workload;
    const struct buffer *out = in_place(k) ? &k->in : &k->out;
    uint64_t n = workload_count(w, bytes, k->width, k->nranks);
    uint64_t block = k->rank * n * k->width;
    uint64_t in_at = in_place(k) && w->in_place == IN_PLACE_IN_AT_RANK ? block : 0;
    uint64_t out_at = in_place(k) && w->in_place == IN_PLACE_OUT_AT_RANK ? block : 0;

    *t = (struct trial){
        .n = n,
        .in_count = workload_in_count(w, n, k->nranks, k->rank),
        .out_count = workload_out_count(w, n, k->nranks, k->rank),
    };
    t->call = (struct call){
        .comm = k->comm,
        .op = (enum ruccl_op)k->o->op,
        .send_counts = k->send_counts,
        .receive_counts = k->receive_counts,
    };

    if (workload_has_in(w, k->rank)) {
        t->in_data = k->in.data + in_at;
        t->in = tensor_at(k, &k->in, in_at, t->in_count);
        t->call.in = &t->in;
    }
    if (workload_has_out(w, k->rank)) {
        t->out_data = out->data + out_at;
        t->out = tensor_at(k, out, out_at, t->out_count);
        t->call.out = &t->out;
    }
    for (uint32_t i = 0; i < k->nranks; i++) {
        k->send_counts[i] = workload_pair_rows(n, k->nranks, k->rank, i);
        k->receive_counts[i] = workload_pair_rows(n, k->nranks, i, k->rank);
    }
}

static struct pattern pattern_of(const struct rank *k, uint64_t round)
{
    return (struct pattern){ k->o->dtype, k->o->op, k->nranks, round };
}

/* Poison first: in place, the input lies in the output. */
static void trial_prepare(const struct trial *t, struct rank *k, uint64_t round)
{
    const struct pattern p = pattern_of(k, round);

    if (t->call.out)
        memset(t->out_data, POISON, t->out_count * k->width);
    if (t->call.in) {
        pattern_input(&p, k->rank, t->in_count, k->input);
        pattern_fill(k->input, t->in_data, t->in_count);
    }
}

static uint64_t trial_count_wrong(const struct trial *t, struct rank *k, uint64_t round)
{
    const struct workload *w = k->o->workload;
    const struct pattern p = pattern_of(k, round);
    const uint8_t *at = t->out_data;
    uint64_t nwrong = 0;

    for (uint32_t i = 0; t->call.out && i < workload_nsegments(w, k->nranks); i++) {
        struct segment s = w->expect(t->n, k->nranks, k->rank, i);

        if (s.reduced)
            pattern_reduced(&p, s.first + s.count, k->expected);
        else
            pattern_input(&p, s.source, s.first + s.count, k->expected);
        nwrong += pattern_count_wrong(k->expected, at, s.first, s.count);
        at += s.count * k->width;
    }

    if (t->call.in && !in_place(k))
        nwrong += pattern_count_wrong(k->input, t->in_data, 0, t->in_count);
    return nwrong;
}

/* Rank 0 decides for all, at a meeting. */
static bool enough(const struct rank *k, uint64_t niters, uint64_t since_ns)
{
    if (k->o->iters != OPTIONS_AUTO)
        return niters >= k->o->iters;
    if (niters >= k->board->iters_max)
        return true;
    return niters >= AUTO_ITERS_MIN && board_now_ns() - since_ns >= AUTO_NS;
}

/* The board is complete: lets the parent read it, and makes it ready for the next size. */
static int rank_hand_over(struct rank *k, uint64_t n, uint64_t niters)
{
    struct board *b = k->board;
    char byte = 0;
    int r;

    r = board_meet(b);
    if (r < 0)
        return r;
    if (k->rank == 0) {
        b->n = n;
        b->niters = niters;
        if (write(k->parent_fd, &byte, 1) != 1 || read(k->parent_fd, &byte, 1) != 1) {
            board_break(b);
            return -ECANCELED;
        }
        atomic_store(&b->stop_at, UINT64_MAX);
    }
    return board_meet(b);
}

static int rank_measure(struct rank *k, uint64_t bytes)
{
    struct board *b = k->board;
    uint64_t *times_ns = board_times(b, k->rank);
    uint64_t warmup = options_warmup(k->o, bytes);
    uint64_t round, since_ns = 0;
    struct trial t;
    int r;

    trial_init(&t, k, bytes);
    k->corner->nwrong = 0;

    for (round = 0;; round++) {
        if (k->o->check || round == 0)
            trial_prepare(&t, k, round);
        if (round == warmup)
            since_ns = board_now_ns();
        if (k->rank == 0 && round > warmup && enough(k, round - warmup, since_ns))
            atomic_store(&b->stop_at, round);

        r = board_meet(b);
        if (r < 0)
            return r;
        if (round >= atomic_load(&b->stop_at))
            break;

        uint64_t start_ns = board_now_ns();

        r = k->o->workload->run(&t.call);
        if (r < 0)
            return rank_fail(k, k->o->workload->name);
        if (round >= warmup)
            times_ns[round - warmup] = board_now_ns() - start_ns;
        if (k->o->check) {
            /* Whoever compares keeps a CPU busy: not before everybody's time is taken. */
            r = board_meet(b);
            if (r < 0)
                return r;
            k->corner->nwrong += trial_count_wrong(&t, k, round);
        }
    }
    return rank_hand_over(k, t.n, round - warmup);
}

/* ---------------------------------------------------------------- the whole life */

static int rank_join(struct rank *k, const char *socket)
{
    struct ruccl_comm comm;
    char name[32];
    int r;

    snprintf(name, sizeof(name), "ruccl-perf rank %u", k->rank);
    if (ruccl_connect(socket, name, &k->conn) < 0)
        return rank_fail(k, "connecting");
    if (k->rank == 0 && ruccl_new_id(k->conn, k->board->id) < 0)
        return rank_fail(k, "making a communicator id");

    r = board_meet(k->board);
    if (r < 0)
        return r;

    if (ruccl_join(k->conn, k->board->id, k->rank, k->nranks, NULL, &comm) < 0)
        return rank_fail(k, "joining");
    k->comm = k->o->budget == BUDGET_NONE ? comm : ruccl_bounded(comm, k->o->budget);
    return 0;
}

static int rank_measure_all(struct rank *k)
{
    uint64_t bytes = k->o->min_bytes;
    int r;

    do {
        r = rank_measure(k, bytes);
        if (r < 0)
            return r;
    } while (options_next_bytes(k->o, &bytes));

    if (ruccl_leave(k->comm) < 0)
        return rank_fail(k, "leaving");
    return 0;
}

static void rank_fini(struct rank *k)
{
    buffer_fini(&k->in);
    buffer_fini(&k->out);
    ruccl_close(k->conn);
    free(k->send_counts);
    free(k->receive_counts);
    free(k->input);
    free(k->expected);
}

enum rank_exit rank_exit(const struct board *board, uint32_t rank, int r)
{
    if (r >= 0)
        return RANK_DONE;
    return board->ranks[rank].error.code ? RANK_FAILED : RANK_SENT_HOME;
}

enum rank_exit rank_run(const void *options, const char *socket, uint32_t rank, struct board *board,
                        int parent_fd)
{
    const struct options *o = options;
    struct rank k = {
        .o = o,
        .board = board,
        .corner = &board->ranks[rank],
        .rank = rank,
        .nranks = o->nranks,
        .width = dtype_get(o->dtype)->width,
        .parent_fd = parent_fd,
    };
    int r;

    r = rank_join(&k, socket);
    if (r >= 0)
        r = rank_allocate(&k);
    if (r >= 0)
        r = rank_measure_all(&k);
    rank_fini(&k);

    return rank_exit(board, rank, r);
}
