/* The inside of a run, for run.c, units.c, bind.c, messages.c, bounce.c and slot.c alone. */
#ifndef DAEMON_EXEC_RUN_PRIVATE_H
#define DAEMON_EXEC_RUN_PRIVATE_H

#include "daemon/device/fault.h"
#include "daemon/exec/run.h"
#include "daemon/exec/staging.h"

enum step_state { STEP_WAITING, STEP_ISSUED, STEP_DONE };

/* A piece in flight; for the exchanges, one source's part of a round. */
struct slot {
    const struct plan *plan;
    struct plan own;        /* the exchanges emit here */
    bool planned;           /* `plan` is that of the next unit to be opened here */
    uint64_t unit;          /* which it is */
    uint64_t first;         /* element that it starts at */
    uint64_t planned_bytes; /* the peak of its plan; 0 where there is no budget */
    uint64_t staged_bytes;  /* of scratch and partials */
    struct staging_block *staging;
    uint8_t *scratch, *partials;
    uint8_t *bounce;     /* what its messages carry to and from GPUs; bounce.h */
    uint64_t *bounce_at; /* [nchannels]: where each has its own part of it, of one message */
    uint32_t remaining;
    uint32_t lowest;                 /* no step below it is waiting */
    uint32_t undone;                 /* all steps below it are done */
    uint8_t *state;                  /* [nsteps] enum step_state */
    uint32_t *turn;                  /* [nchannels] the step whose turn it is */
    uint32_t nstate, nturn, nbounce; /* room */
};

struct run_task {
    struct task task;
    struct run *run;
    struct slot *slot;
    uint32_t step;
    uint64_t touched;            /* bytes */
    void **pointers;             /* sources, then destinations */
    struct source_group *groups; /* of sources, where they are not one */
    uint32_t pointers_room, groups_room;
    struct list link; // run::tasks, while free
};

struct bounce_copy {
    struct task task;
    uint32_t tensor;  /* its place in run::far */
    void *far, *near; /* of a GPU, and of the slot's bounce */
};

struct message;

/* What of a message lies on GPUs, and how far the copying of it has come. */
struct bounce {
    struct bounce_copy *copies;
    uint32_t room;
    uint32_t ncopies, submitted, pending;
    uint64_t bytes;
    int result;
    void (*then)(struct message *m, int r);
};

struct message {
    struct transfer transfer;
    struct run *run;
    struct slot *slot; /* NULL: it was enclosed, and its step is done */
    uint32_t step;
    uint64_t counted; /* bytes that lie in tensors */
    struct iovec *parts;
    uint32_t parts_room;
    struct bounce bounce;
    struct list link; // run::messages, run::under_way or run::bouncing
};

/* What is collected to go with an agreement: by node, then by tag. */
struct enclosure {
    bool wanted;
    uint32_t waiting; /* sends that are not collected yet */
    uint8_t *bytes;
    uint64_t room;
};

struct run {
    struct run_spec spec;
    struct list link;        // engine::runs
    struct run_means *means; /* NULL until it is issued for the first time */
    struct device *device;   /* does its tasks; from then on */
    uint32_t nparts;         /* room */
    uint32_t depth;          /* likewise */
    uint32_t width, wide;    /* bytes an element, and an accumulator */
    struct run_memory memory;
    struct fence **fences; /* [nparts] */
    uint32_t passed;       /* of spec.fences */
    bool *far;             /* [2 * nparts]: a part's input, and its output, is on a GPU */
    bool bounces;          /* messages may carry such memory */
    uint64_t straight_min; /* bytes from which on they carry it as it is, where there is no other */
    struct fault_area area;
    struct signal *signals; /* [nparts] */

    /* Units are issued in order, spec.depth at most at once; unit u lives in slot u % depth. */
    uint64_t units, opened, complete;
    uint32_t units_per_chunk;
    struct slot *slots;
    bool held;

    struct list tasks; /* free ones */
    uint32_t ntasks;
    struct list messages;  /* free ones */
    struct list under_way; /* struct message: the transport's */
    struct list bouncing;  /* struct message: being copied */
    const struct run_letter *letters;
    struct enclosure enclosure;
    uint32_t in_flight; /* tasks and messages */

    uint64_t planned_bytes;     /* of the units that are open */
    uint64_t bytes, peak_bytes; /* staged and under way */

    atomic_bool cancel;
    bool cancelled; /* messages under way have been told */
    int result;
};

static inline bool run_stopped(const struct run *run)
{
    return atomic_load_explicit(&run->cancel, memory_order_relaxed);
}

static inline void run_count(struct run *run, uint64_t bytes)
{
    run->bytes += bytes;
    run->peak_bytes = MAX(run->peak_bytes, run->bytes);
}

static inline void run_uncount(struct run *run, uint64_t bytes)
{
    run->bytes -= bytes;
}

/* Its first failure is its result; nothing more is issued. */
void run_fail(struct run *run, int r);
/* The step is done, and perhaps its unit. */
void run_step_done(struct run *run, struct slot *s, uint32_t step);
#endif
