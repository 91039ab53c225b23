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

enum buffer {
    BUFFER_IN,  /* a rank's input */
    BUFFER_OUT, /* a rank's output */
};

#define SPAN_EACH UINT32_MAX /* as a span's rank: one such span of every rank, in rank order */

struct span {
    enum buffer buffer;
    uint32_t rank;          /* or SPAN_EACH */
    uint64_t offset, count; /* from the buffer's first element, the chunk's start added */
};

enum step_kind {
    STEP_COPY,   /* one source to every destination; onto itself it is nothing */
    STEP_REDUCE, /* every source, in the canonical tree order, to every destination */
};

#define STEP_NONE UINT32_MAX

/* All spans of a step have the same count. Steps of one channel run in order. */
struct step {
    enum step_kind kind;
    uint32_t channel;
    uint32_t after; /* a lower-numbered step of another channel that must be done; or STEP_NONE */
    uint32_t first_span, nsrc, ndst; /* plan::spans[first_span..): sources, then destinations */
};

struct plan {
    uint32_t nranks;
    uint32_t nchannels;
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

/* What an emitter is told about one chunk. */
struct plan_args {
    enum collective_id kind;
    uint32_t nranks;
    uint32_t root;
    uint64_t stride; /* elements between the blocks of two ranks: n of the chunk table */
    uint64_t count;  /* elements of this chunk */

    /* all_to_all(_v), instead of stride and count: one source's part of one round */
    const struct exchange *exchange;
    uint32_t source;
    uint64_t round;
    uint64_t rows;         /* p, a pair and round */
    uint64_t row_elements; /* elements of one row */
};

/*
 * An algorithm: the row that the table in algorithms.c holds. Every kind that moves something has
 * at least one. A pair (send, recv) is planned as two ranks: 0 is the source, 1 the destination.
 */
struct algorithm {
    enum collective_id kind;
    const char *name;
    /* Whether it gives the bits of the canonical tree on this placement. */
    bool (*fits)(const struct descriptor *d);
    /* Estimated time of the whole operation (`d` checked), us, to choose among those that fit. */
    double (*cost)(const struct descriptor *d);
    /*
     * Appends one chunk's steps, offsets counted from the chunk's start; for the exchanges, those
     * of one source and round, offsets counted from the first row. Return: 0 or -ENOMEM; what was
     * appended before that is for plan_clear().
     */
    int (*emit)(struct plan *p, const struct plan_args *args);
};

/* Whether `name` is one an operator may force ("auto", "hierarchical", "direct", "ring", ...). */
bool algorithm_name_known(const char *name);

/*
 * The cheapest row that fits, or the one called `forced` (NULL or "auto": none forced). `d` is
 * checked. Not for barrier and split: nothing moves, so there is nothing to choose.
 * Return: 0, or -ERROR_UNSUPPORTED_ALGORITHM naming the ones that would fit.
 */
int algorithm_choose(const struct descriptor *d, const char *forced, const struct algorithm **ret,
                     struct error *e);

/* The whole table, for tests and tools; a COLLECTIVE_NONE row at the end. */
extern const struct algorithm algorithms[];

#endif
