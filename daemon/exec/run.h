/*
 * A run: one operation's data movement, chunk by chunk. Binds a plan's spans to memory and hands
 * its steps to the device; knows no communicator, session or clock. Loop thread only.
 */
#ifndef DAEMON_EXEC_RUN_H
#define DAEMON_EXEC_RUN_H

#include "daemon/device/device.h"
#include "daemon/plan/chunk.h"
#include "daemon/plan/exchange.h"
#include "daemon/plan/plan.h"

struct run;

/*
 * How a part's tensors pass through windows (elements; 0: they do not): element i is at i modulo the
 * window, the input from when it is ready, the output until it has been taken. Windows are multiples
 * of the chunks' length.
 */
struct run_stage {
    uint64_t in_window, out_window;
    uint64_t in_ready, out_taken; /* elements from the start; engine_resume() after a change */
};

/* Whether a chunk that ends at element `end` has to wait for it. */
static inline bool run_stage_holds(const struct run_stage *s, uint64_t end)
{
    return (s->in_window && s->in_ready < end) ||
           (s->out_window && end > s->out_window && s->out_taken < end - s->out_window);
}

/* The memory behind the tensors of an operation's parts. */
struct run_memory {
    void **in, **out;          /* [nparts]: first bytes; NULL where a part has no such tensor */
    const struct run_stage **stages; /* [nparts]; NULL: the part has no window */
    uint32_t nstages;                /* that are not NULL */
    struct mapping **mappings; /* [nmappings], room for 2 * nparts */
    uint32_t nmappings;
};

/* All NULL. Return: 0 or -ENOMEM. */
int run_memory_init(struct run_memory *m, uint32_t nparts);
void run_memory_fini(struct run_memory *m);

/* What to run. All that is pointed to stays the caller's and must live until the run is done. */
struct run_spec {
    const struct descriptor *d; /* checked and agreed */
    uint32_t nparts;            /* ranks, or 2 for a pair: source, destination */
    struct chunking chunking;
    const struct plan *full, *tail; /* of a chunk of full length, and of the last one */
    /* the exchanges only, instead of plans */
    const struct algorithm *algorithm;
    const struct exchange *exchange;
    const struct run_memory *memory;

    /* After each chunk (round) that is complete together with all before it. */
    void (*progress)(struct run *run, uint64_t chunks_done);
    /* Once, when nothing of the run is in flight any more. r: 0, -ECANCELED, -EFAULT, another
     * errno. */
    void (*done)(struct run *run, int r);
    void *owner;
};

/* A run for operations of up to `nparts` parts, one after the other; `depth` chunks in flight at
 * most, >= 1. It keeps what room one operation needed for the next. Return: 0 or -ENOMEM. */
int run_new(uint32_t nparts, uint32_t depth, struct run **ret);
/* Must not be in an engine. Returns NULL; NULL is allowed. */
struct run *run_free(struct run *run);

/* Room for what the next operation's spec::memory points to. */
struct run_memory *run_memory(struct run *run);

/* Readies it for one operation. It must not be in an engine. Return: 0 or -errno. */
int run_prepare(struct run *run, const struct run_spec *spec);

void *run_owner(const struct run *run);
uint64_t run_chunks_done(const struct run *run);

/* For the engine */

/* Conditions of run_issue() */
#define RUN_WAITING 1 /* nothing to issue until a task is done, or a window has moved on */
#define RUN_BUSY    2 /* the device has no room */
#define RUN_MORE    3 /* the allowance is used up, there is more to issue */

/*
 * Issues steps to `device` until there is nothing to issue. Work done at once, on this thread, is
 * charged to *allowance_bytes. Return: 0, the run has ended (see run_result); or a condition.
 */
int run_issue(struct run *run, struct device *device, uint64_t *allowance_bytes);
/* Nothing more is issued; what is in flight is told to stop. */
void run_cancel(struct run *run);
/* Whether nothing is in flight and nothing will be issued. */
bool run_ended(const struct run *run);
int run_result(const struct run *run);
void run_finish(struct run *run); /* runs spec.done */

struct list *run_link(struct run *run); /* engine::runs */
struct run *run_of_link(struct list *link);

#endif
