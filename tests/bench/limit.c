/*
 * What the memory can do: two threads that have every rank's buffers mapped do the work of the
 * collective, each its half, with nobody to ask and nobody to tell. Buffers are memfds like those
 * of ruccl_alloc. Elements are f32 whatever the type: the limit is one of bytes.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"

#define NTHREADS      2
#define ONE_THREAD    16384 /* bytes a rank up to which one thread is faster alone */
#define HUGE_BYTES    (UINT64_C(2) << 20)
#define MADV_COLLAPSE 25 /* Linux 6.1; not in every <sys/mman.h> */

/* As wide as the registers of the target: wider ones the compiler copies through memory. */
#ifdef __AVX512F__
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef float vector __attribute__((vector_size(VECTOR_BYTES), aligned(4)));
#define LANES (sizeof(vector) / sizeof(float))

struct worker {
    struct bench_board *board;
    const struct bench_options *o;
    struct bench_buffers *all; /* of all ranks */
    uint32_t number;

    uint64_t n;
    uint64_t first, end; /* this worker's elements of 0..n */
};

/* Inlined with a constant number of ranks, so that the loops over them vanish. */
static inline __attribute__((always_inline)) void sum_ranks(float *const *in, float *const *out,
                                                            uint64_t n, uint32_t nin, uint32_t nout)
{
    uint64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        vector sum = *(const vector *)(in[0] + i);

        for (uint32_t r = 1; r < nin; r++)
            sum += *(const vector *)(in[r] + i);
        for (uint32_t r = 0; r < nout; r++)
            *(vector *)(out[r] + i) = sum;
    }
    for (; i < n; i++) {
        float sum = in[0][i];

        for (uint32_t r = 1; r < nin; r++)
            sum += in[r][i];
        for (uint32_t r = 0; r < nout; r++)
            out[r][i] = sum;
    }
}

static void sum(float *const *in, float *const *out, uint64_t n, uint32_t nin, uint32_t nout)
{
    if (nin == 2 && nout == 2)
        sum_ranks(in, out, n, 2, 2);
    else if (nin == 4 && nout == 4)
        sum_ranks(in, out, n, 4, 4);
    else if (nin == 8 && nout == 8)
        sum_ranks(in, out, n, 8, 8);
    else
        sum_ranks(in, out, n, nin, nout);
}

static void all_reduce(const struct worker *w)
{
    float *at[BENCH_MAX_RANKS];

    for (uint32_t r = 0; r < w->o->nranks; r++)
        at[r] = (float *)w->all[r].out + w->first;
    sum(at, at, w->end - w->first, w->o->nranks, w->o->nranks);
}

static void reduce_scatter(const struct worker *w)
{
    float *in[BENCH_MAX_RANKS];

    for (uint32_t to = 0; to < w->o->nranks; to++) {
        float *out = (float *)w->all[to].out + w->first;

        for (uint32_t r = 0; r < w->o->nranks; r++)
            in[r] = (float *)w->all[r].in + to * w->n + w->first;
        sum(in, &out, w->end - w->first, w->o->nranks, 1);
    }
}

/* Copies this worker's part of a block of n elements. */
static void copy(const struct worker *w, void *out, uint64_t out_at, const void *in, uint64_t in_at)
{
    memcpy((float *)out + out_at + w->first, (const float *)in + in_at + w->first,
           (w->end - w->first) * sizeof(float));
}

static void move(const struct worker *w)
{
    for (uint32_t from = 0; from < w->o->nranks; from++)
        for (uint32_t to = 0; to < w->o->nranks; to++) {
            const struct bench_buffers *in = &w->all[from], *out = &w->all[to];

            if (w->o->collective == BENCH_ALL_GATHER)
                copy(w, out->out, from * w->n, in->in, 0);
            else if (w->o->collective == BENCH_ALL_TO_ALL_V)
                copy(w, out->out, from * w->n, in->in, to * w->n);
            else if (from == 0 && to != 0)
                copy(w, out->out, 0, in->in, 0);
        }
}

static void prepare(void *context, const struct bench_case *c)
{
    struct worker *w = context;
    uint64_t half = c->bytes <= ONE_THREAD ? c->n : c->n / NTHREADS / LANES * LANES;

    w->n = c->n;
    w->first = w->number ? half : 0;
    w->end = w->number ? c->n : half;
}

static void run(void *context)
{
    struct worker *w = context;

    if (w->first == w->end)
        return;
    if (w->o->collective == BENCH_ALL_REDUCE)
        all_reduce(w);
    else if (w->o->collective == BENCH_REDUCE_SCATTER)
        reduce_scatter(w);
    else
        move(w);
}

static const struct bench_contestant limit = { prepare, run, NULL };

/* Aligned, populated and collapsed to huge pages as far as the kernel can. */
static void *buffer_new(uint64_t bytes)
{
    int fd = memfd_create("limit", MFD_CLOEXEC);
    char *base = mmap(NULL, bytes + HUGE_BYTES, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *data = (char *)(((uintptr_t)base + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES);

    if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 || base == MAP_FAILED ||
        mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
        bench_fail("mapping memory: %s", strerror(errno));
    close(fd);
    memset(data, 0, bytes);
    madvise(data, bytes, MADV_COLLAPSE);
    return data;
}

/* Fills and checks the buffers of every other rank. */
static void *worker_main(void *context)
{
    struct worker *w = context;
    struct bench_buffers mine[BENCH_MAX_RANKS];
    uint32_t nmine = 0;

    for (uint32_t r = w->number; r < w->o->nranks; r += NTHREADS)
        mine[nmine++] = w->all[r];
    bench_loop(w->board, w->o, w->number, NTHREADS, mine, nmine, &limit, w);
    return NULL;
}

int main(int argc, char **argv)
{
    struct bench_buffers all[BENCH_MAX_RANKS];
    struct worker workers[NTHREADS];
    struct bench_options o;
    struct bench_board *board;
    pthread_t thread;

    bench_parse(argc, argv, &o);
    o.dtype = BENCH_F32;
    o.width = sizeof(float);

    board = bench_board_new(NULL);
    for (uint32_t r = 0; r < o.nranks; r++) {
        all[r].rank = r;
        all[r].in = buffer_new(bench_buffer_bytes(&o));
        all[r].out = bench_in_place(&o) ? all[r].in : buffer_new(bench_buffer_bytes(&o));
    }
    for (uint32_t i = 0; i < NTHREADS; i++)
        workers[i] = (struct worker){ .board = board, .o = &o, .all = all, .number = i };

    if (pthread_create(&thread, NULL, worker_main, &workers[1]))
        bench_fail("no thread");
    worker_main(&workers[0]);
    pthread_join(thread, NULL);
    return BENCH_GOOD;
}
