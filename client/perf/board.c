#include "client/perf/board.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Yields before sleeping: enough for ranks that have a core each, little for those that share one.
 */
#define SPINS 100

struct board *board_new(uint32_t nranks, uint64_t iters_max)
{
    size_t ranks_at = sizeof(struct board);
    size_t times_at = ranks_at + nranks * sizeof(struct board_rank);
    size_t len_bytes = times_at + nranks * iters_max * sizeof(uint64_t);
    char *base = mmap(NULL, len_bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct board *b = (struct board *)base;

    if (base == MAP_FAILED)
        return NULL;
    b->nranks = nranks;
    b->iters_max = iters_max;
    b->len_bytes = len_bytes;
    b->stop_at = UINT64_MAX;
    b->ranks = (struct board_rank *)(base + ranks_at);
    b->times_ns = (uint64_t *)(base + times_at);
    return b;
}

struct board *board_free(struct board *b)
{
    if (b)
        munmap(b, b->len_bytes);
    return NULL;
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* At most 100 ms, so that a process killed before it could wake anyone holds nobody up. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    const struct timespec timeout = { .tv_nsec = 100000000 };

    syscall(SYS_futex, word, FUTEX_WAIT, value, &timeout, NULL, 0);
}

int board_meet(struct board *b)
{
    uint32_t generation = atomic_load(&b->generation);

    if (atomic_fetch_add(&b->narrived, 1) + 1 == b->nranks) {
        atomic_store(&b->narrived, 0);
        atomic_store(&b->generation, generation + 1);
        futex_wake_all(&b->generation);
        return 0;
    }

    for (unsigned int i = 0; atomic_load(&b->generation) == generation; i++) {
        if (atomic_load(&b->broken))
            return -ECANCELED;
        if (i < SPINS)
            sched_yield();
        else
            futex_wait(&b->generation, generation);
    }
    return 0;
}

void board_break(struct board *b)
{
    atomic_store(&b->broken, true);
    futex_wake_all(&b->generation);
}

int board_fail(struct board *b, uint32_t rank, const char *doing)
{
    b->ranks[rank].error = *ruccl_last_error();
    b->ranks[rank].doing = doing;
    board_break(b);
    return -EIO;
}

int board_fail_memory(struct board *b, uint32_t rank, const char *doing)
{
    struct ruccl_error *error = &b->ranks[rank].error;

    *error = (struct ruccl_error){ .code = RUCCL_NO_MEMORY };
    snprintf(error->text, sizeof(error->text), "malloc: %s", strerror(errno));
    b->ranks[rank].doing = doing;
    board_break(b);
    return -ENOMEM;
}

uint64_t board_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
