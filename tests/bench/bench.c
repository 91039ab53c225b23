#include "bench.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#define SPIN_NS   200000 /* parties yield so long before they sleep */
#define MAX_CALLS 512    /* timed ones of one size */

#define LARGE_BYTES  (UINT64_C(16) << 20)
#define MEDIUM_BYTES (UINT64_C(1) << 20)

struct bench_board {
    _Alignas(64) uint32_t narrived;
    _Alignas(64) uint32_t generation; /* of meetings; a futex */
    _Alignas(64) uint32_t stop;       /* party 0 has had enough calls */
    char text[256];
    uint64_t times_ns[BENCH_MAX_RANKS][MAX_CALLS];
};

void bench_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fprintf(stderr, "%s: ", program_invocation_short_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(BENCH_BAD);
}

/* ---------------------------------------------------------------- the command line */

static const char *const collectives[] = {
    [BENCH_ALL_REDUCE] = "all_reduce",         [BENCH_ALL_GATHER] = "all_gather",
    [BENCH_REDUCE_SCATTER] = "reduce_scatter", [BENCH_BROADCAST] = "broadcast",
    [BENCH_ALL_TO_ALL_V] = "all_to_all_v",
};

static const char *const dtypes[] = {
    [BENCH_F32] = "f32",
    [BENCH_F16] = "f16",
    [BENCH_BF16] = "bf16",
    [BENCH_I64] = "i64",
};
static const uint32_t widths[] = { 4, 2, 2, 8 };

static uint32_t find(const char *const *names, uint32_t nnames, const char *name)
{
    for (uint32_t i = 0; i < nnames; i++)
        if (!strcmp(names[i], name))
            return i;
    fprintf(stderr, "%s: unknown: %s\n", program_invocation_short_name, name);
    exit(BENCH_USAGE);
}

/* "150ms" is a time, "1000x" a number of calls. */
static void parse_budget(const char *text, struct bench_options *o)
{
    char *unit;
    double value = strtod(text, &unit);

    if (!strcmp(unit, "x"))
        o->ncalls = (uint64_t)value;
    else
        o->budget_s = value / 1000;
}

void bench_parse(int argc, char **argv, struct bench_options *ret)
{
    struct bench_options o = { .setting = argc > 6 ? argv[6] : "" };

    if (argc < 6 || argc > 7) {
        fprintf(stderr, "Usage: %s COLLECTIVE DTYPE RANKS BUDGET BYTES[,BYTES...] [SETTING]\n",
                argv[0]);
        exit(BENCH_USAGE);
    }

    o.collective = find(collectives, ARRAY_SIZE(collectives), argv[1]);
    o.dtype = find(dtypes, ARRAY_SIZE(dtypes), argv[2]);
    o.width = widths[o.dtype];
    o.nranks = (uint32_t)strtoul(argv[3], NULL, 10);
    if (o.nranks < 1 || o.nranks > BENCH_MAX_RANKS)
        bench_fail("1 to %d ranks", BENCH_MAX_RANKS);
    parse_budget(argv[4], &o);

    for (char *at = argv[5]; *at && o.nsizes < BENCH_MAX_SIZES; at += *at == ',')
        o.sizes[o.nsizes++] = strtoull(at, &at, 10);
    *ret = o;
}

bool bench_in_place(const struct bench_options *o)
{
    return o->collective == BENCH_ALL_REDUCE || o->collective == BENCH_BROADCAST;
}

static void case_init(struct bench_case *c, const struct bench_options *o, uint64_t bytes)
{
    uint64_t nblocks = bench_in_place(o) ? 1 : o->nranks;
    uint64_t n = bytes / o->width / nblocks;

    n = n ? n : 1;
    *c = (struct bench_case){ .bytes = bytes, .n = n, .in_count = n, .out_count = n };
    if (o->collective == BENCH_REDUCE_SCATTER || o->collective == BENCH_ALL_TO_ALL_V)
        c->in_count = n * o->nranks;
    if (o->collective == BENCH_ALL_GATHER || o->collective == BENCH_ALL_TO_ALL_V)
        c->out_count = n * o->nranks;
}

uint64_t bench_buffer_bytes(const struct bench_options *o)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < o->nsizes; i++) {
        struct bench_case c;
        uint64_t count;

        case_init(&c, o, o->sizes[i]);
        count = c.in_count > c.out_count ? c.in_count : c.out_count;
        most = count * o->width > most ? count * o->width : most;
    }
    return most;
}

void *bench_alloc(uint64_t bytes)
{
    void *data;

    if (posix_memalign(&data, 4096, bytes))
        bench_fail("no memory");
    memset(data, 0, bytes);
    return data;
}

/* ---------------------------------------------------------------- meeting */

struct bench_board *bench_board_new(const char *path)
{
    int flags = path ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
    int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    void *board;

    if (path && (fd < 0 || ftruncate(fd, sizeof(struct bench_board)) < 0))
        bench_fail("%s: %s", path, strerror(errno));
    board = mmap(NULL, sizeof(struct bench_board), PROT_READ | PROT_WRITE, flags, fd, 0);
    if (board == MAP_FAILED)
        bench_fail("mmap: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return board;
}

char *bench_board_text(struct bench_board *board)
{
    return board->text;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Waits as a bench_contestant says. */
static void board_meet(struct bench_board *board, uint32_t nparties, void (*idle)(void *context),
                       void *context)
{
    uint32_t generation = __atomic_load_n(&board->generation, __ATOMIC_SEQ_CST);
    uint64_t since_ns;

    if (__atomic_add_fetch(&board->narrived, 1, __ATOMIC_SEQ_CST) == nparties) {
        __atomic_store_n(&board->narrived, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&board->generation, generation + 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &board->generation, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        return;
    }

    since_ns = now_ns();
    while (__atomic_load_n(&board->generation, __ATOMIC_SEQ_CST) == generation) {
        if (idle)
            idle(context);
        if (idle || now_ns() - since_ns < SPIN_NS)
            sched_yield();
        else
            syscall(SYS_futex, &board->generation, FUTEX_WAIT, generation, NULL, NULL, 0);
    }
}

void bench_meet(struct bench_board *board, uint32_t nparties)
{
    board_meet(board, nparties, NULL, NULL);
}

/* ---------------------------------------------------------------- what is right */

/*
 * Element i of rank r is a small whole number: sums are exact in every type, whatever their order,
 * and no rank's input looks like another's. It has a short period, so that a block of it made once
 * fills and checks buffers at the speed of memcpy and memcmp.
 */
#define PERIOD     13
#define BLOCK      (PERIOD * 256)
#define EVERY_RANK UINT32_MAX /* the sum over all */

struct block {
    uint8_t bytes[BLOCK * 8];
    uint64_t len_bytes;
};

static uint32_t value_at(const struct bench_options *o, uint32_t rank, uint64_t i)
{
    uint32_t sum = 0;

    if (rank != EVERY_RANK)
        return (uint32_t)((rank * 5 + i) % PERIOD);
    for (uint32_t r = 0; r < o->nranks; r++)
        sum += value_at(o, r, i);
    return sum;
}

static void encode(enum bench_dtype dtype, uint32_t value, uint8_t *ret)
{
    float f32 = (float)value;
    int64_t i64 = value;
    uint32_t bits;
    uint16_t half;

    memcpy(&bits, &f32, sizeof(bits));
    switch (dtype) {
    case BENCH_F32:
        memcpy(ret, &f32, sizeof(f32));
        break;
    case BENCH_I64:
        memcpy(ret, &i64, sizeof(i64));
        break;
    case BENCH_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(ret, &half, sizeof(half));
        break;
    case BENCH_F16: /* whole and small: only the exponent's bias differs */
        half = value ? (uint16_t)((bits >> 13) - ((127 - 15) << 10)) : 0;
        memcpy(ret, &half, sizeof(half));
        break;
    }
}

static void block_make(struct block *b, const struct bench_options *o, uint32_t rank,
                       uint64_t first)
{
    b->len_bytes = (uint64_t)BLOCK * o->width;
    for (uint64_t i = 0; i < BLOCK; i++)
        encode(o->dtype, value_at(o, rank, first + i % PERIOD), b->bytes + i * o->width);
}

static void block_fill(const struct block *b, uint8_t *to, uint64_t len_bytes)
{
    for (uint64_t at = 0; at < len_bytes; at += b->len_bytes)
        memcpy(to + at, b->bytes, len_bytes - at < b->len_bytes ? len_bytes - at : b->len_bytes);
}

static bool block_equals(const struct block *b, const uint8_t *data, uint64_t len_bytes)
{
    for (uint64_t at = 0; at < len_bytes; at += b->len_bytes)
        if (memcmp(data + at, b->bytes,
                   len_bytes - at < b->len_bytes ? len_bytes - at : b->len_bytes))
            return false;
    return true;
}

static void buffers_fill(const struct bench_buffers *s, const struct bench_options *o,
                         const struct bench_case *c)
{
    struct block block;

    block_make(&block, o, s->rank, 0);
    if (s->out != s->in)
        memset(s->out, 0xdb, c->out_count * o->width);
    block_fill(&block, s->in, c->in_count * o->width);
}

/* An output is a row of segments of n elements: one, or one from each rank. */
static void buffers_check(const struct bench_buffers *s, const struct bench_options *o,
                          const struct bench_case *c)
{
    bool reduced = o->collective == BENCH_ALL_REDUCE || o->collective == BENCH_REDUCE_SCATTER;
    bool scattered = o->collective == BENCH_REDUCE_SCATTER || o->collective == BENCH_ALL_TO_ALL_V;
    uint64_t len_bytes = c->n * o->width;
    struct block block;

    for (uint32_t i = 0; i < c->out_count / c->n; i++) {
        block_make(&block, o, reduced ? EVERY_RANK : i, scattered ? s->rank * c->n : 0);
        if (!block_equals(&block, (uint8_t *)s->out + i * len_bytes, len_bytes))
            bench_fail("rank %u: wrong elements in segment %u at %llu bytes", s->rank, i,
                       (unsigned long long)c->bytes);
    }
}

/* ---------------------------------------------------------------- the loop */

struct loop {
    struct bench_board *board;
    const struct bench_options *o;
    uint32_t party, nparties;
    const struct bench_buffers *buffers;
    uint32_t nbuffers;
    const struct bench_contestant *contestant;
    void *context;
};

static void loop_meet(const struct loop *l)
{
    board_meet(l->board, l->nparties, l->contestant->idle, l->context);
}

/* Leaves zeros where the next call works in place: sums of sums would overflow. */
static void loop_verify(const struct loop *l, const struct bench_case *c)
{
    for (uint32_t i = 0; i < l->nbuffers; i++)
        buffers_fill(&l->buffers[i], l->o, c);
    loop_meet(l);
    l->contestant->run(l->context);
    loop_meet(l);
    for (uint32_t i = 0; i < l->nbuffers; i++) {
        buffers_check(&l->buffers[i], l->o, c);
        if (bench_in_place(l->o))
            memset(l->buffers[i].in, 0, c->in_count * l->o->width);
    }
    loop_meet(l);
}

static void loop_warm_up(const struct loop *l, const struct bench_case *c)
{
    uint32_t ncalls = c->bytes >= LARGE_BYTES ? 1 : c->bytes >= MEDIUM_BYTES ? 3 : 20;

    for (uint32_t i = 0; i < ncalls; i++)
        l->contestant->run(l->context);
    loop_meet(l);
}

static uint32_t loop_time(const struct loop *l, const struct bench_case *c)
{
    bool large = c->bytes >= LARGE_BYTES;
    uint64_t box_ns = (uint64_t)(l->o->budget_s * 1e9) * (large ? 2 : 1);
    uint32_t least = large ? 3 : 10;
    uint64_t since_ns = now_ns();
    uint32_t ncalls = 0;

    if (l->party == 0)
        __atomic_store_n(&l->board->stop, 0, __ATOMIC_SEQ_CST);
    do {
        uint64_t start_ns;

        loop_meet(l);
        start_ns = now_ns();
        l->contestant->run(l->context);
        l->board->times_ns[l->party][ncalls++] = now_ns() - start_ns;
        if (l->party == 0 &&
            (ncalls == MAX_CALLS || (ncalls >= least && now_ns() - since_ns > box_ns)))
            __atomic_store_n(&l->board->stop, 1, __ATOMIC_SEQ_CST);
        loop_meet(l);
    } while (!__atomic_load_n(&l->board->stop, __ATOMIC_SEQ_CST));
    return ncalls;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Party 0, while the others wait for it. */
static void loop_print(const struct loop *l, const struct bench_case *c, uint32_t ncalls)
{
    uint64_t *slowest = l->board->times_ns[0];

    for (uint32_t i = 0; i < ncalls; i++)
        for (uint32_t p = 1; p < l->nparties; p++)
            if (l->board->times_ns[p][i] > slowest[i])
                slowest[i] = l->board->times_ns[p][i];
    qsort(slowest, ncalls, sizeof(*slowest), compare_times);
    printf("%llu %.3f %.3f %.3f %u\n", (unsigned long long)c->bytes,
           (double)slowest[ncalls / 2] / 1e3, (double)slowest[ncalls / 10] / 1e3,
           (double)slowest[ncalls * 9 / 10] / 1e3, ncalls);
    fflush(stdout);
}

static void loop_measure(const struct loop *l, const struct bench_case *c)
{
    uint32_t ncalls;

    loop_verify(l, c);
    loop_warm_up(l, c);
    ncalls = loop_time(l, c);
    if (l->party == 0)
        loop_print(l, c, ncalls);
    loop_verify(l, c);
}

void bench_loop(struct bench_board *board, const struct bench_options *o, uint32_t party,
                uint32_t nparties, const struct bench_buffers *buffers, uint32_t nbuffers,
                const struct bench_contestant *contestant, void *context)
{
    const struct loop l = { board, o, party, nparties, buffers, nbuffers, contestant, context };

    for (uint32_t i = 0; i < o->nsizes; i++) {
        struct bench_case c;

        case_init(&c, o, o->sizes[i]);
        loop_meet(&l);
        contestant->prepare(context, &c);
        loop_meet(&l);
        if (!o->ncalls)
            loop_measure(&l, &c);
        for (uint64_t call = 0; call < o->ncalls; call++)
            contestant->run(context);
    }
}

/* ---------------------------------------------------------------- ranks */

static _Noreturn void become_rank(const struct bench_options *o, struct bench_board *board,
                                  void (*rank_main)(const struct bench_options *o,
                                                    struct bench_board *board, uint32_t rank),
                                  uint32_t rank, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(BENCH_BAD);
    rank_main(o, board, rank);
    exit(BENCH_GOOD);
}

/* Those that this process makes. */
static void find_ranks(const struct bench_options *o, uint32_t *ret_first, uint32_t *ret_last)
{
    const char *ranks = getenv("BENCH_RANKS");
    uint32_t first = 0, last = o->nranks - 1;

    if (ranks && (sscanf(ranks, "%u-%u", &first, &last) != 2 || last >= o->nranks))
        bench_fail("BENCH_RANKS: %s", ranks);
    *ret_first = first;
    *ret_last = last;
}

int bench_fork(const struct bench_options *o, struct bench_board *board,
               void (*rank_main)(const struct bench_options *o, struct bench_board *board,
                                 uint32_t rank))
{
    pid_t parent = getpid();
    uint32_t first, last;
    int status;

    find_ranks(o, &first, &last);
    for (uint32_t rank = first; rank <= last; rank++) {
        pid_t pid = fork();

        if (pid == 0)
            become_rank(o, board, rank_main, rank, parent);
        if (pid < 0)
            bench_fail("fork: %s", strerror(errno));
    }

    /* the first failure ends it: this process' end is that of the other ranks */
    while (wait(&status) > 0) {
        if (!WIFEXITED(status))
            bench_fail("a rank was killed by signal %d", WTERMSIG(status));
        if (WEXITSTATUS(status) != BENCH_GOOD)
            return WEXITSTATUS(status);
    }
    return BENCH_GOOD;
}
