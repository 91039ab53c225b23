/*
 * A run: one operation's data movement, chunk by chunk. Binds a plan's spans to memory and hands its
 * steps to the device; knows no communicator, session or clock. Loop thread only.
 */
#ifndef DAEMON_EXEC_RUN_H
#define DAEMON_EXEC_RUN_H

#include "daemon/device/device.h"
#include "daemon/plan/chunk.h"
#include "daemon/plan/exchange.h"
#include "daemon/plan/plan.h"

struct run;

/* What to run. The arrays stay the caller's and must live until the run is done. */
struct run_spec {
    struct descriptor d; /* checked and agreed */
    uint32_t nparts;     /* ranks, or 2 for a pair: source, destination */
    const struct algorithm *algorithm;
    struct chunking chunking;
    const struct exchange *exchange; /* the exchanges only */
    void *const *in, *const *out;    /* [nparts]: first bytes; NULL where a part has no such tensor */
    struct mapping *const *mappings; /* all client memory behind them */
    uint32_t nmappings;
    uint32_t depth; /* chunks in flight at most, >= 1 */

    /* After each chunk (round) that is complete together with all before it. */
    void (*progress)(struct run *run, uint64_t chunks_done);
    /* Once, when nothing of the run is in flight any more. r: 0, -ECANCELED, -EFAULT, another errno. */
    void (*done)(struct run *run, int r);
    void *owner;
};

int run_new(const struct run_spec *spec, struct run **ret);
/* Must not be in an engine. Returns NULL; NULL is allowed. */
struct run *run_free(struct run *run);

void *run_owner(const struct run *run);
uint64_t run_chunks_done(const struct run *run);

/* For the engine */

/* Conditions of run_issue() */
#define RUN_WAITING 1 /* nothing to issue until a task is done */
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

struct list *run_link(struct run *run);       /* engine::runs */
struct run *run_of_link(struct list *link);

#endif
