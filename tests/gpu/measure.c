/*
 * Measures all_reduce of f32 among processes that share a GPU, or up to G of them: beside what one
 * copies in the same run, a kernel without work, and NCCL where that agrees to run. "of copy" is
 * the time in which that copying would move 2 * N * S bytes, what N ranks with S each have to read
 * and write, over the time it took.
 *
 *   measure [--ranks N,...] [--gpus G] [--max-bytes B] [--socket PATH] [--fake]
 *   measure [--gpus G] --probe    prints how many there are, and no more
 *
 * Starts $RUCCLD, or uses the daemon at PATH. Looks at the ends of every result. The tests' driver
 * is no GPU: its numbers mean nothing, and are printed only where --fake asks for them.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/gpus.h"
#include "tests/end_to_end/harness.h"
#include "tests/gpu/measure.h"

#define COPY_BYTES (1ull << 30)
#define COPIES     10
#define LAUNCHES   200
#define LOOKED_AT  1024u /* elements at either end */
#define SIZE_STEP  8u    /* from one size to the next, but for the last */
#define SIZE_MIN   8u

struct options {
    uint32_t ranks[MEASURE_RANKS], nranks, ngpus;
    uint64_t max_bytes;
    const char *socket;
    bool fake, probe;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "measure: %s: %s\n", what, why);
    _exit(1);
}

static void ok(int r, const char *what)
{
    if (r < 0)
        die(what, ruccl_last_error()->text);
}

uint64_t measure_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t measure_median(uint64_t *values, uint32_t n)
{
    qsort(values, n, sizeof(values[0]), compare);
    return values[n / 2];
}

uint32_t measure_calls(uint64_t bytes)
{
    return bytes <= 64u << 10    ? MEASURE_CALLS
           : bytes <= 16u << 20  ? 50
           : bytes <= 256u << 20 ? 20
                                 : 8;
}

/* ---- what the GPU does by itself */

static double time_copies(CUdeviceptr from, CUdeviceptr to, uint64_t bytes, CUstream stream)
{
    uint64_t ns[COPIES];

    for (int i = 0; i <= COPIES; i++) { /* the first warms up */
        const uint64_t start = measure_now_ns();

        CU(cuMemcpyAsync(to, from, bytes, stream));
        CU(cuStreamSynchronize(stream));
        if (i)
            ns[i - 1] = measure_now_ns() - start;
    }
    return 2e9 * (double)bytes / (double)measure_median(ns, COPIES);
}

static uint64_t time_empty(CUstream stream)
{
    uint64_t ns[LAUNCHES];

    for (int i = 0; i < LAUNCHES; i++) {
        const uint64_t start = measure_now_ns();

        gpus_launch_empty(stream);
        CU(cuStreamSynchronize(stream));
        ns[i] = measure_now_ns() - start;
    }
    return measure_median(ns, LAUNCHES);
}

static void learn_gpu(struct board *b)
{
    const uint64_t bytes = gpus_are_fake() ? 1u << 20 : COPY_BYTES;
    CUdeviceptr from, to;
    size_t free_bytes, total;
    CUstream stream;

    memcpy(b->gpu, gpus.name, sizeof(b->gpu));
    CU(cuMemGetInfo_v2(&free_bytes, &total));
    b->free_bytes = free_bytes;
    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    from = gpus_allocate(bytes);
    to = gpus_allocate(bytes);
    b->copy_rate = time_copies(from, to, bytes, stream);
    b->empty_ns = time_empty(stream);
}

/* ---- a rank */

struct rank {
    uint32_t number;
    CUdeviceptr in, out;
    struct ruccl_region *in_region, *out_region;
    struct ruccl_comm comm;
};

static void barrier(struct board *b)
{
    pthread_barrier_wait(&b->barrier);
}

static void rank_open(struct board *b, struct rank *rank)
{
    const uint64_t bytes = b->bytes[b->nsizes - 1];
    struct ruccl_conn *conn;
    CUstream stream;

    CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    ok(ruccl_connect(b->socket, "measure", &conn), "connect");
    if (rank->number == 0)
        ok(ruccl_new_id(conn, b->id), "new_id");
    barrier(b);
    ok(ruccl_join(conn, b->id, rank->number, b->nranks, NULL, &rank->comm), "join");
    rank->comm = ruccl_on_stream(rank->comm, stream);
    rank->in = gpus_allocate(bytes);
    rank->out = gpus_allocate(bytes);
    ok(ruccl_register_cuda(conn, (void *)(uintptr_t)rank->in, bytes, &rank->in_region), "register");
    ok(ruccl_register_cuda(conn, (void *)(uintptr_t)rank->out, bytes, &rank->out_region),
       "register");
}

static void write_ends(const struct rank *rank, uint64_t bytes)
{
    const uint64_t n = MIN(bytes, LOOKED_AT * sizeof(float));
    float values[LOOKED_AT];

    for (uint32_t i = 0; i < LOOKED_AT; i++)
        values[i] = (float)(rank->number + 1);
    gpus_write(rank->in, values, n);
    gpus_write(rank->in + bytes - n, values, n);
}

static uint64_t wrong_at(const struct rank *rank, uint64_t at, uint64_t bytes, float sum)
{
    float values[LOOKED_AT];
    uint64_t wrong = 0;

    gpus_read(values, rank->out + at, bytes);
    for (uint64_t i = 0; i < bytes / sizeof(float); i++)
        wrong += values[i] != sum;
    return wrong;
}

static uint64_t wrong_ends(const struct rank *rank, uint64_t bytes, uint32_t nranks)
{
    const uint64_t n = MIN(bytes, LOOKED_AT * sizeof(float));
    const float sum = (float)(nranks * (nranks + 1) / 2);

    return wrong_at(rank, 0, n, sum) + wrong_at(rank, bytes - n, n, sum);
}

static uint64_t median_of_slowest(struct board *b, uint32_t calls)
{
    uint64_t slowest[MEASURE_CALLS] = { 0 };

    for (uint32_t r = 0; r < b->nranks; r++)
        for (uint32_t i = 0; i < calls; i++)
            slowest[i] = MAX(slowest[i], b->call_ns[r][i]);
    return measure_median(slowest, calls);
}

static void rank_measure(struct board *b, struct rank *rank, uint32_t size)
{
    const uint64_t bytes = b->bytes[size];
    const uint32_t calls = measure_calls(bytes);
    const struct ruccl_tensor in = { .dtype = RUCCL_F32,
                                     .naxes = 1,
                                     .shape = { bytes / sizeof(float) },
                                     .region = rank->in_region };
    struct ruccl_tensor out = in;
    uint64_t wrong;

    out.region = rank->out_region;
    write_ends(rank, bytes);
    for (uint32_t call = 0; call <= calls; call++) { /* the first warms up */
        uint64_t start;

        barrier(b);
        start = measure_now_ns();
        ok(ruccl_all_reduce(rank->comm, &in, &out, RUCCL_SUM), "all_reduce");
        if (call)
            b->call_ns[rank->number][call - 1] = measure_now_ns() - start;
    }
    wrong = wrong_ends(rank, bytes, b->nranks);
    barrier(b);
    __atomic_fetch_add(&b->wrong, wrong, __ATOMIC_RELAXED);
    if (rank->number == 0)
        b->median_ns[size] = median_of_slowest(b, calls);
    barrier(b);
}

static void rank_run(struct board *b, uint32_t number)
{
    struct rank rank = { .number = number };

    gpus_enter(number);
    rank_open(b, &rank);
    for (uint32_t size = 0; size < b->nsizes; size++)
        rank_measure(b, &rank, size);
    ok(ruccl_leave(rank.comm), "leave");
}

/* ---- processes */

enum job { LEARN, RANK, PEER };

static pid_t start(struct board *b, enum job job, uint32_t number)
{
    const pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0)
        die("fork", strerror(errno));
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    gpus.alone = true;
    if (getppid() != parent || gpus_open(b->ngpus) < 0)
        _exit(1);
    if (job == LEARN)
        learn_gpu(b);
    else if (job == PEER)
        measure_peer(b);
    else
        rank_run(b, number);
    _exit(0);
}

/* Which of them ended; the others go on. */
static uint32_t await_one(const pid_t *pids, uint32_t n, int *ret_status)
{
    for (;;) {
        const pid_t pid = waitpid(-1, ret_status, 0);

        if (pid < 0)
            die("wait", strerror(errno));
        for (uint32_t i = 0; i < n; i++)
            if (pids[i] == pid)
                return i;
    }
}

/* All end well, or, from the first that does not, are ended. */
static bool await(pid_t *pids, uint32_t n)
{
    bool good = true;
    int status;

    for (uint32_t left = n; left > 0; left--) {
        pids[await_one(pids, n, &status)] = 0;
        if (status == 0 || !good)
            continue;
        good = false;
        for (uint32_t i = 0; i < n; i++)
            if (pids[i])
                kill(pids[i], SIGKILL);
    }
    return good;
}

/* ---- the table */

static void print_rows(const struct board *b)
{
    for (uint32_t i = 0; i < b->nsizes; i++) {
        const double ns = (double)b->median_ns[i], bytes = (double)b->bytes[i];
        const double ideal_ns = 1e9 * 2 * b->nranks * bytes / b->copy_rate;

        printf("%5u %12llu %10.1f %9.2f %7.1f%%", b->nranks, (unsigned long long)b->bytes[i],
               ns / 1e3, bytes / ns, 100 * ideal_ns / ns);
        if (b->peer_ns[i])
            printf(" %10.1f\n", (double)b->peer_ns[i] / 1e3);
        else
            printf(" %10s\n", "-");
    }
    printf("      8 B take %.1f times a kernel without work",
           (double)b->median_ns[0] / (double)b->empty_ns);
    printf(b->peer[0] ? "; %s\n" : "%s\n", b->peer);
}

static void choose_sizes(struct board *b, uint64_t max_bytes)
{
    const uint64_t sharers = div_up_u64(b->nranks, b->ngpus);
    const uint64_t room = b->free_bytes / 10 * 8 / (2 * sharers); /* contexts take some too */
    uint64_t bytes = SIZE_MIN;

    b->nsizes = 0;
    while (bytes < MIN(max_bytes, room) && b->nsizes < MEASURE_SIZES - 1) {
        b->bytes[b->nsizes++] = bytes;
        bytes *= SIZE_STEP;
    }
    b->bytes[b->nsizes++] = MIN(max_bytes, room) & ~(uint64_t)4095;
}

static bool measure_world(struct board *b)
{
    pid_t pids[MEASURE_RANKS], peer;
    pthread_barrierattr_t shared;

    memset(b->median_ns, 0, sizeof(b->median_ns));
    memset(b->peer_ns, 0, sizeof(b->peer_ns));
    b->peer[0] = '\0';
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&b->barrier, &shared, b->nranks);
    for (uint32_t i = 0; i < b->nranks; i++)
        pids[i] = start(b, RANK, i);
    if (!await(pids, b->nranks))
        return false;
    peer = start(b, PEER, 0);
    if (!await(&peer, 1))
        snprintf(b->peer, sizeof(b->peer), "the process with NCCL failed");
    print_rows(b);
    fflush(stdout);
    return true;
}

static bool measure_all(struct board *b, const struct options *o)
{
    pid_t learner = start(b, LEARN, 0);

    if (!await(&learner, 1))
        return false;
    printf("all_reduce of f32, ranks are processes on %u x %s%s\n", b->ngpus, b->gpu,
           o->fake ? ": THE TESTS' DRIVER, THESE NUMBERS MEAN NOTHING" : "");
    printf("copy within the GPU: %.1f GB/s (read and written); a kernel without work: %.1f us\n",
           b->copy_rate / 1e9, (double)b->empty_ns / 1e3);
    printf("%5s %12s %10s %9s %8s %10s\n", "ranks", "bytes/rank", "time us", "GB/s", "of copy",
           "NCCL us");
    for (uint32_t i = 0; i < o->nranks; i++) {
        b->nranks = o->ranks[i];
        choose_sizes(b, o->max_bytes);
        if (!measure_world(b))
            return false;
    }
    printf("wrong elements: %llu\n", (unsigned long long)b->wrong);
    return b->wrong == 0;
}

/* ---- options */

static _Noreturn void usage(void)
{
    fprintf(stderr,
            "usage: measure [--ranks N,...] [--gpus G] [--max-bytes B] [--socket PATH] [--fake]\n"
            "N: 1 to %u; G: 1 to %u; B: 4096 or more\n",
            MEASURE_RANKS, GPUS_MAX);
    exit(2);
}

static void parse_ranks(struct options *o, char *list)
{
    char *rest;

    o->nranks = 0;
    for (char *n = strtok_r(list, ",", &rest); n; n = strtok_r(NULL, ",", &rest)) {
        const int ranks = atoi(n);

        if (ranks < 1 || ranks > MEASURE_RANKS || o->nranks == MEASURE_RANKS)
            usage();
        o->ranks[o->nranks++] = (uint32_t)ranks;
    }
}

static struct options parse(int argc, char **argv)
{
    struct options o = { .ranks = { 2, 4, 8 }, .nranks = 3, .ngpus = 1, .max_bytes = 1ull << 30 };

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--fake") == 0)
            o.fake = true;
        else if (strcmp(argv[i], "--probe") == 0)
            o.probe = true;
        else if (i + 1 == argc)
            usage();
        else if (strcmp(argv[i], "--ranks") == 0)
            parse_ranks(&o, argv[++i]);
        else if (strcmp(argv[i], "--gpus") == 0)
            o.ngpus = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--max-bytes") == 0)
            o.max_bytes = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--socket") == 0)
            o.socket = argv[++i];
        else
            usage();
    }
    if (o.max_bytes < 4096 || o.nranks == 0 || o.ngpus < 1 || o.ngpus > GPUS_MAX)
        usage();
    return o;
}

int main(int argc, char **argv)
{
    const struct options o = parse(argc, argv);
    struct harness harness = { 0 };
    struct board *b;
    uint32_t ngpus;
    bool good;

    if (!o.fake)
        setenv("GPUS", "real", 1);
    ngpus = gpus_probe(o.ngpus);
    if (!ngpus)
        return GPUS_SKIP;
    if (o.probe) {
        printf("%u\n", ngpus);
        return 0;
    }
    b = mmap(NULL, sizeof(*b), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED)
        die("mmap", strerror(errno));
    b->ngpus = ngpus;
    if (!o.socket)
        harness_start(&harness, NULL);
    snprintf(b->socket, sizeof(b->socket), "%s", o.socket ? o.socket : harness.socket);
    good = measure_all(b, &o);
    if (!o.socket && harness_stop(&harness) < 0)
        good = false;
    return good ? 0 : 1;
}
