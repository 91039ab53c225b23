/*
 * Plans: one chunk of a collective as data. A plan thinks and never acts: it knows no element type,
 * address, clock or socket. Offsets and counts are in elements.
 *
 * The participants of a plan are nodes; the ranks of a node appear as its buffers.
 */
#ifndef DAEMON_PLAN_PLAN_H
#define DAEMON_PLAN_PLAN_H

#include "shared/collective.h"

struct exchange;
struct load;
struct placement;

enum buffer {
    BUFFER_IN,      /* a rank's input */
    BUFFER_OUT,     /* a rank's output */
    BUFFER_SCRATCH, /* the node's, of elements; `rank` means nothing */
    BUFFER_PARTIAL, /* the node's, of accumulators, as wide as sums are made in; likewise */
};

/* As a span's rank: one such span of every rank here, in rank order. */
#define SPAN_EACH UINT32_MAX

struct span {
    enum buffer buffer;
    uint32_t rank;          /* or SPAN_EACH */
    uint64_t offset, count; /* from the buffer's first element, the chunk's start added */
};

enum step_kind {
    STEP_COPY, /* one source to every destination; onto itself it is nothing */
    /*
     * Every source, in the canonical tree order, to every destination. A SPAN_EACH is one source:
     * the tree of its ranks. Into OUT a sum is finished (mean divides) and rounded; into PARTIAL it
     * is neither.
     */
    STEP_REDUCE,
    STEP_SEND, /* its sources one behind the other, as one message to a peer */
    STEP_RECV, /* one message from a peer, over its destinations one behind the other */
};

#define STEP_NONE UINT32_MAX
#define STEP_ALL  (UINT32_MAX - 1) /* as `after`: every step before this one */

/*
 * Steps of one channel run in order. All spans of a copy or a reduction have the same count. A
 * message is elements or accumulators, not both; from one node to another no two have the same tag.
 */
struct step {
    enum step_kind kind;
    uint32_t channel;
    uint32_t after; /* a lower-numbered step of another channel that must be done; or as above */
    uint32_t first_span, nsrc, ndst; /* plan::spans[first_span..): sources, then destinations */
    uint32_t peer, tag;              /* messages only: the other node, and which of them it is */
};

static inline bool step_is_message(const struct step *s)
{
    return s->kind == STEP_SEND || s->kind == STEP_RECV;
}

static inline bool span_is_tensor(const struct span *s)
{
    return s->buffer == BUFFER_IN || s->buffer == BUFFER_OUT;
}

/* One node's part of a chunk. */
struct plan {
    uint32_t nranks; /* here */
    uint32_t nchannels;
    uint64_t scratch, partials; /* staging: elements, accumulators */
    int error;                  /* -ENOMEM once plan_step() and its kin found no room */
    struct step *steps;
    uint32_t nsteps, steps_cap;
    struct span *spans;
    uint32_t nspans, spans_cap;
};

void plan_init(struct plan *p, uint32_t nranks);
void plan_fini(struct plan *p);
/* Forgets the steps, keeps the room. */
void plan_clear(struct plan *p);

/*
 * Appends a step with one span on either side, on a channel of its own.
 * Return: 0, or -ENOMEM with the plan unchanged.
 */
int plan_add(struct plan *p, enum step_kind kind, struct span src, struct span dst);

/*
 * Appends a step without spans, or a span to the last step, sources first. Without room they
 * append nothing more and set `error`. Return: the step's number, or STEP_NONE without room.
 */
uint32_t plan_step(struct plan *p, struct step step);
void plan_source(struct plan *p, struct span span);
void plan_destination(struct plan *p, struct span span);

/* All elements (accumulators) of a span: of a SPAN_EACH those of every rank here. */
static inline uint64_t span_total(const struct plan *p, const struct span *s)
{
    return s->count * (span_is_tensor(s) && s->rank == SPAN_EACH ? p->nranks : 1);
}

/* Of all that a step's spans hold, with so many bytes an element, and an accumulator. */
uint64_t step_bytes(const struct plan *p, const struct step *s, uint32_t width, uint32_t wide);

/*
 * The most that may be staged or under way at once, in elements, an accumulator as wide as `wide`
 * of them: scratch, partials, and of every channel its largest message as far as it lies in
 * tensors. What lies in scratch or partials is counted there.
 */
uint64_t plan_peak(const struct plan *p, uint32_t wide);

bool step_writes_out(const struct plan *p, const struct step *s);
/* Reads or writes one. */
bool step_touches_out(const struct plan *p, const struct step *s);

/*
 * Whether all that it sends can be sent before anything is received and any OUT written: no SEND
 * waits for a RECV, or for a step that writes an OUT. Return: 0, or -ENOMEM: it was not found out.
 */
int plan_sends_first(const struct plan *p, bool *ret);

/* What an emitter is told about one chunk. */
struct plan_args {
    enum collective_id kind;
    uint32_t nranks;
    uint32_t root;
    uint64_t stride; /* elements between the blocks of two ranks: n of the chunk table */
    uint64_t count;  /* elements of this chunk */

    /* between nodes; NULL: all ranks are on one */
    const struct placement *nodes;
    uint32_t node; /* whose plan this is */

    /* all_to_all(_v), instead of stride and count: one source's part of one round */
    const struct exchange *exchange;
    uint32_t source; /* between nodes: this one of every node's ranks, 0 the lowest */
    uint64_t round;
    uint64_t rows;         /* p, a pair and round */
    uint64_t row_elements; /* elements of one row */
};

/* One chunk as its price sees it. */
struct load {
    enum collective_id kind;
    uint32_t nnodes, ranks; /* ranks of every node */
    uint64_t count;         /* as plan_args::count; of a pair for the exchanges */
    uint32_t wide;          /* elements as wide as one accumulator */
};

/* What the slowest node does, one thing after another; in elements, but for the messages. */
struct cost {
    double messages; /* each waiting for the one before */
    double posted;   /* messages through the busier direction of its link, waiting or not */
    double sent;     /* through the busier direction of its link */
    double touched;  /* of its memory, read and written */
    uint64_t peak;   /* as plan_peak() */
};

/*
 * An algorithm: the row that the table in algorithms.c holds. Every kind that moves something has
 * at least one. A pair (send, recv) is planned as two ranks: 0 is the source, 1 the destination.
 */
struct algorithm {
    enum collective_id kind;
    const char *name;
    /* Whether it gives the bits of the canonical tree of `d` (checked) on so many nodes. */
    bool (*fits)(const struct descriptor *d, uint32_t nnodes);
    /* What one chunk takes, of as many ranks on every node, in closed form. */
    struct cost (*cost)(const struct load *l);
    /*
     * Appends one chunk's steps of one node, offsets counted from the chunk's start; for the
     * exchanges, those of one source and round, offsets counted from the first row. Return: 0 or
     * -ENOMEM; what was appended before that is for plan_clear().
     */
    int (*emit)(struct plan *p, const struct plan_args *args);
};

/* Whether `name` is one an operator may force ("auto", "hierarchical", "direct", "ring", ...). */
bool algorithm_name_known(const char *name);

/* Appends all of them but "auto". */
void text_add_algorithms(struct text *t);

/* The whole table, for tests and tools; a COLLECTIVE_NONE row at the end. */
extern const struct algorithm algorithms[];

#endif
