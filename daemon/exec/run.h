/*
 * A run: one operation's data movement on this node, piece by piece. Binds a plan's spans to
 * memory, hands its steps to the device and its messages to the transport; knows no communicator,
 * session or clock. Loop thread only.
 */
#ifndef DAEMON_EXEC_RUN_H
#define DAEMON_EXEC_RUN_H

#include "daemon/device/device.h"
#include "daemon/plan/chunk.h"
#include "daemon/plan/contents.h"
#include "daemon/plan/exchange.h"
#include "daemon/plan/placement.h"
#include "daemon/plan/plan.h"
#include "daemon/transport/transport.h"

struct fault_area;
struct run;
struct staging;

/*
 * How a part's tensors pass through windows (elements; 0: they do not): element i of a block is at
 * i modulo the window, the input from when it is ready, the output until it has been taken. Of a
 * tensor of several blocks these lie window behind window, and windows are shorter than blocks.
 * They are multiples of the chunks' length.
 */
struct run_stage {
    uint64_t in_window, out_window;
    /* elements from every block's start; engine_resume() after a change */
    uint64_t in_ready, out_taken;
};

/* Whether a chunk that ends at element `end` has to wait for it. */
static inline bool run_stage_holds(const struct run_stage *s, uint64_t end)
{
    return (s->in_window && s->in_ready < end) ||
           (s->out_window && end > s->out_window && s->out_taken < end - s->out_window);
}

/* The memory behind the tensors of an operation's parts. */
struct run_memory {
    void **in, **out; /* [nparts]: first bytes; NULL where a part has no such tensor */
    const struct run_stage **stages; /* [nparts]; NULL: the part has no window */
    uint32_t nstages;                /* that are not NULL */
    struct mapping **mappings;       /* [nmappings], room for 2 * nparts */
    uint32_t nmappings;
};

/* All NULL. Return: 0 or -ENOMEM. */
int run_memory_init(struct run_memory *m, uint32_t nparts);
void run_memory_fini(struct run_memory *m);

/* Where an operation's other parts are, and how its messages get there. */
struct run_network {
    struct channel *channel;
    struct transport_peer *const *peers; /* [nnodes]; NULL for this node */
    /* NULL: of a pair, whose plan is one message with the other end's node. */
    const struct placement *nodes;
    uint32_t node;       /* this one */
    uint64_t sequence;   /* of its messages' names */
    uint64_t first_unit; /* likewise: that of the first piece */
};

/* When it may begin. */
enum run_start {
    RUN_AT_ONCE,
    RUN_HELD, /* until engine_release() it does only what writes no output, and no messages */
    /* As held; and what it sends is collected before engine_submit() returns, if that can be done
     * at once: run_enclosed(). Of runs with contents whose plan sends first. What touches memory
     * of GPUs is only held: nothing of that can be done at once. */
    RUN_ENCLOSING,
    /* As held, but messages whose bytes lie in no output go. Nothing may be enclosed by anybody. */
    RUN_EARLY,
};

/* What to run. All that is pointed to stays the caller's and must live until the run is done. */
struct run_spec {
    const struct descriptor *d; /* checked and agreed */
    /* Ranks here, ascending: part i is rank placement_rank(nodes, node, i). Of a pair always 2,
     * source and destination: between nodes the one that is elsewhere has no memory. */
    uint32_t nparts;
    struct chunking chunking;
    /* Elements. Chunks are cut into pieces of it, the last of each chunk shorter, and pieces are
     * what plans are of; chunking.length: chunks are not cut. Not for the exchanges. */
    uint64_t piece_length;
    /* of a whole piece; of the last one of a whole chunk; of the last one of all */
    const struct plan *full, *last, *tail;
    /* of `tail`, where that is all and may be enclosed; NULL: nothing is, and nothing comes so */
    const struct contents *contents;
    /* the exchanges only, instead of plans */
    const struct algorithm *algorithm;
    const struct exchange *exchange;
    const struct run_memory *memory;
    /* Nothing is issued before all of them have passed; the error of one is the run's. */
    struct fence *const *fences;
    uint32_t nfences;
    /* What the device may write as soon as all is done; whoever submits writes it anyway, in done()
     * and where that does not run. Not where messages are. */
    const struct signal *signals;
    uint32_t nsignals;

    uint32_t depth; /* pieces in flight, at most; >= 1, and no more than the run was made for */
    const struct run_network *network; /* NULL: all parts are on this node */
    /* Of staging and messages under way: pieces are in flight as far as they fit, one always.
     * UINT64_MAX: as many as it takes. */
    uint64_t budget_bytes;
    enum run_start start; /* at once where all parts are on this node */

    /* After each chunk (round) that is complete together with all before it. */
    void (*progress)(struct run *run, uint64_t chunks_done);
    /*
     * Once, when nothing of the run is in flight any more, also while it is held (a step has
     * failed). r: 0, -ECANCELED, -EFAULT, what a message failed with (-ECONNRESET: a peer is gone;
     * -EMSGSIZE), -EPROTO: a letter of the wrong length; what a fence failed with; or another
     * errno.
     */
    void (*done)(struct run *run, int r);
    void *owner;
};

/* A run for operations of up to `nparts` parts, one after the other; `depth` pieces in flight at
 * most, >= 1. It keeps what room one operation needed for the next. Return: 0 or -ENOMEM. */
int run_new(uint32_t nparts, uint32_t depth, struct run **ret);
/* Must not be in an engine. Returns NULL; NULL is allowed. */
struct run *run_free(struct run *run);

/* Room for what the next operation's spec::memory points to. */
struct run_memory *run_memory(struct run *run);
/* Likewise spec::fences, one for each part. */
struct fence **run_fences(struct run *run);
/* Likewise spec::signals. */
struct signal *run_signals(struct run *run);

/* Readies it for one operation. It must not be in an engine. Return: 0 or -errno. */
int run_prepare(struct run *run, const struct run_spec *spec);

void *run_owner(const struct run *run);
uint64_t run_chunks_done(const struct run *run);
/* Whether nothing has been issued because a fence has not passed. */
bool run_is_fenced(const struct run *run);

/*
 * The most that was staged and under way at once so far, in wire bytes: scratch and partials of the
 * pieces in flight, and what of the messages that are not done lies in tensors, or is enclosed and
 * not delivered. Stays readable until the next run_prepare(). Letters that come are not counted:
 * they are the control link's.
 */
uint64_t run_peak_bytes(const struct run *run);

/*
 * Of a run that was started RUN_ENCLOSING, before engine_release(): all that it sends to `node`,
 * message by message, ascending by tag. NULL: it has not been collected, or not yet, or is more
 * than the budget allows: it may be released with nothing delivered. Not NULL where there are no
 * bytes.
 */
const void *run_enclosed(const struct run *run, uint32_t node, uint32_t *ret_bytes);

/* What came and went with the messages of others; one for each node. */
struct run_letter {
    const void *bytes; /* what that node's run had enclosed; NULL: its messages come themselves */
    uint32_t len;
    bool delivered; /* the caller has sent along what was enclosed for that node */
};

/* For the engine */

/* Who does the work of runs. */
struct run_means {
    struct device *device;
    struct device *gpus;     /* NULL: none. Does all of a run that touches memory of it */
    struct staging *staging; /* NULL where there is no network */
    bool stirred;            /* a message was done: runs have a turn due */
};

/* Conditions of run_issue() */
#define RUN_WAITING 1 /* nothing to issue until a task, message, fence or window has moved on */
#define RUN_BUSY    2 /* the device has no room */
#define RUN_MORE    3 /* the allowance is used up, there is more to issue */

/*
 * Issues steps until there is nothing to issue. Work done at once, on this thread, is charged to
 * *allowance_bytes. Always with the same `means`, which outlive the run.
 * Return: 0, the run has ended (see run_result); or a condition.
 */
int run_issue(struct run *run, struct run_means *means, uint64_t *allowance_bytes);
/* Lets a held run go on; run_issue() is next. `letters`: see engine_release(). */
void run_release(struct run *run, const struct run_letter *letters);
/* Nothing more is issued; what is in flight is told to stop. */
void run_cancel(struct run *run);
/* Whether nothing is in flight and nothing will be issued. */
bool run_ended(const struct run *run);
int run_result(const struct run *run);
void run_finish(struct run *run); /* runs spec.done */

struct list *run_link(struct run *run); /* engine::runs */
struct run *run_of_link(struct list *link);
/* The client memory that its messages touch; NULL where there are none. */
struct fault_area *run_area(struct run *run);

#endif
