/*
 * Arrivals: one rank's part of one operation, and what can be said against it without asking the
 * other ranks.
 */
#ifndef DAEMON_COMM_ARRIVAL_H
#define DAEMON_COMM_ARRIVAL_H

#include "daemon/comm/comm.h"
#include "daemon/comm/persistent.h"
#include "daemon/exec/run.h"
#include "daemon/plan/recipe.h"

struct arrival {
    struct comm *comm;
    struct member *member; /* NULL once the member is lost: nobody to tell */
    uint32_t rank;
    uint64_t serial;
    uint64_t at_us;
    struct descriptor d;          /* of a start the kind only */
    struct recipe *recipe;        /* NULL where rejected, of the exchanges, and of a start */
    struct operand in, out;       /* hold references; no mapping where nothing is touched */
    uint64_t in_bytes, out_bytes; /* 0 where there is no such tensor, or an empty one */
    struct run_stage stage;
    uint64_t told; /* of its windows: chunks that had passed when its client last heard of it */
    struct fence *fence;  /* holds a reference; NULL: none */
    struct signal signal; /* likewise */
    uint64_t out_rows;
    uint64_t *counts, *expected; /* [d.nranks] or NULL; the exchanges only */
    int32_t color, key;
    uint32_t child_number;
    bool makes_persistent;
    uint32_t starts;            /* the persistent operation that it starts; 0: none */
    struct progress_cell *cell; /* NULL once the member is lost */
    struct error *rejection;    /* NULL: none */
};

/*
 * Copies a post, checks it, and takes references. What is wrong with it ends up as its `rejection`.
 * Return: 0 or -ENOMEM.
 */
int arrival_new(const struct post *post, struct member *m, uint64_t now, struct arrival **ret);

/* Of a persistent operation of this kind; without a check. Return: 0 or -ENOMEM. */
int arrival_new_start(const struct start *start, enum collective_id kind, struct member *m,
                      uint64_t now, struct arrival **ret);

/* The first rejection stands; copied. Return: 0 or -ENOMEM. */
int arrival_reject(struct arrival *a, const struct error *why);

/* Of one that has lost its memory: -ERROR_MEMORY_FAULT worded in `e`. `which`: "input", "output".
 */
int operand_check_fault(const struct operand *o, const char *operation, const char *which,
                        struct error *e);
static inline bool operand_is_faulty(const struct operand *o)
{
    return o->mapping && atomic_load_explicit(&o->mapping->fault, memory_order_relaxed);
}

/* A copy with a reference of its own, and its end. */
void operand_take(struct operand *o, const struct operand *from);
void operand_drop(struct operand *o);

/* Lets go of the tensors, of the fence and of the signal's cells. */
void arrival_drop_memory(struct arrival *a);
/* Returns NULL; NULL is allowed. */
struct arrival *arrival_free(struct arrival *a);
DEFINE_CLEANUP(struct arrival *, arrival_free)

static inline bool arrival_has_window(const struct arrival *a)
{
    return a->stage.in_window || a->stage.out_window;
}

/* Bytes of its mapping that an operand of `bytes` bytes takes. */
uint64_t operand_extent(const struct arrival *a, const struct operand *o, uint64_t bytes);

/* Enters one part's operands into the memory of a run. */
void operands_bind(const struct operand *in, const struct operand *out, struct run_memory *m,
                   uint32_t part);

#endif
