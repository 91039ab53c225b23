/*
 * MPI, built once for each implementation; started by its mpirun, which knows the settings. Ranks
 * meet in the file $BENCH_BOARD. Setting: polling, for ranks that look after MPI's messages while
 * they wait for each other: between hosts Open MPI needs it, whose others may still be sending.
 */
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

struct rank {
    const struct bench_options *o;
    MPI_Datatype dtype;
    struct bench_buffers buffers;

    int n;
    int counts[BENCH_MAX_RANKS], displacements[BENCH_MAX_RANKS];
};

static void prepare(void *context, const struct bench_case *c)
{
    struct rank *k = context;

    k->n = (int)c->n;
    for (uint32_t i = 0; i < k->o->nranks; i++) {
        k->counts[i] = k->n;
        k->displacements[i] = (int)i * k->n;
    }
}

/* Errors end the program: that is what MPI does unless told otherwise. */
static void run(void *context)
{
    struct rank *k = context;
    void *in = k->buffers.in, *out = k->buffers.out;

    switch (k->o->collective) {
    case BENCH_ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, out, k->n, k->dtype, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_GATHER:
        MPI_Allgather(in, k->n, k->dtype, out, k->n, k->dtype, MPI_COMM_WORLD);
        break;
    case BENCH_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(in, out, k->n, k->dtype, MPI_SUM, MPI_COMM_WORLD);
        break;
    case BENCH_BROADCAST:
        MPI_Bcast(out, k->n, k->dtype, 0, MPI_COMM_WORLD);
        break;
    case BENCH_ALL_TO_ALL_V:
        MPI_Alltoallv(in, k->counts, k->displacements, k->dtype, out, k->counts, k->displacements,
                      k->dtype, MPI_COMM_WORLD);
        break;
    }
}

/* Any call that has MPI look. */
static void look(void *context)
{
    int found;

    (void)context;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
}

static const struct bench_contestant sleeping = { prepare, run, NULL };
static const struct bench_contestant polling = { prepare, run, look };

/* Neither implementation adds 16-bit floats; as words they can be moved. */
static MPI_Datatype choose_dtype(const struct bench_options *o)
{
    bool reduces = o->collective == BENCH_ALL_REDUCE || o->collective == BENCH_REDUCE_SCATTER;

    if (o->dtype == BENCH_F32)
        return MPI_FLOAT;
    if (o->dtype == BENCH_I64)
        return MPI_INT64_T;
    return reduces ? MPI_DATATYPE_NULL : MPI_UINT16_T;
}

int main(int argc, char **argv)
{
    struct bench_options o;
    struct rank k = { .o = &o };
    int rank, nranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    bench_parse(argc, argv, &o);
    if (o.nranks != (uint32_t)nranks || !getenv("BENCH_BOARD"))
        bench_fail("wants as many ranks as mpirun has made, and BENCH_BOARD");

    k.dtype = choose_dtype(&o);
    if (k.dtype == MPI_DATATYPE_NULL) {
        MPI_Finalize();
        return BENCH_UNSUPPORTED;
    }
    k.buffers.rank = (uint32_t)rank;
    k.buffers.in = bench_alloc(bench_buffer_bytes(&o));
    k.buffers.out = bench_in_place(&o) ? k.buffers.in : bench_alloc(bench_buffer_bytes(&o));

    bench_loop(bench_board_new(getenv("BENCH_BOARD")), &o, k.buffers.rank, o.nranks, &k.buffers, 1,
               strcmp(o.setting, "polling") ? &sleeping : &polling, &k);
    MPI_Finalize();
    return BENCH_GOOD;
}
