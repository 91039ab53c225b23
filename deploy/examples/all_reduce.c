/* Forks ranks, each of which adds its number to everybody's. Usage: all_reduce [RANKS] */
#include <ruccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int check(int r)
{
    if (r < 0) {
        fprintf(stderr, "all_reduce: %s\n", ruccl_last_error()->text);
        exit(1);
    }
    return r;
}

static void run_rank(const char *id, unsigned rank, unsigned nranks)
{
    struct ruccl_conn *conn;
    struct ruccl_region *region;
    struct ruccl_comm comm;

    check(ruccl_connect(NULL, "all_reduce", &conn));
    check(ruccl_join(conn, id, rank, nranks, NULL, &comm));

    /* shared memory: the daemon works on it where it is */
    check(ruccl_alloc(conn, 1000 * sizeof(float), &region));
    float *values = ruccl_region_data(region);
    for (int i = 0; i < 1000; i++)
        values[i] = (float)(rank + 1);

    struct ruccl_tensor t = { .dtype = RUCCL_F32, .naxes = 1, .shape = { 1000 }, .region = region };
    check(ruccl_all_reduce(comm, &t, &t, RUCCL_SUM));
    printf("rank %u of %u: %g\n", rank, nranks, values[999]);

    check(ruccl_leave(comm));
    ruccl_free(region);
    ruccl_close(conn);
}

int main(int argc, char **argv)
{
    unsigned nranks = argc > 1 ? (unsigned)atoi(argv[1]) : 4;
    char id[RUCCL_ID_BYTES];
    struct ruccl_conn *conn;
    int status, failed = 0;

    /* one process makes the id; all others have to get it somehow, here by being forked */
    check(ruccl_connect(NULL, "all_reduce", &conn));
    check(ruccl_new_id(conn, id));
    ruccl_close(conn);

    for (unsigned rank = 0; rank < nranks; rank++)
        if (fork() == 0) {
            run_rank(id, rank, nranks);
            return 0;
        }
    while (wait(&status) > 0)
        failed |= status != 0;
    return failed;
}
