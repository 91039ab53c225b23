/*
 * Prices: what an operation takes by one algorithm, on a machine that is four numbers. Closed form
 * from the rows' costs, for any number of nodes; nothing is planned for it, but to know the peak
 * where some nodes have more ranks than others.
 */
#ifndef DAEMON_PLAN_PRICE_H
#define DAEMON_PLAN_PRICE_H

#include "daemon/plan/placement.h"
#include "daemon/plan/plan.h"

struct machine {
    double latency_us;          /* of a message between two nodes, before its first byte */
    double message_us;          /* that a message keeps a link busy, beside its bytes */
    double link_bytes_per_us;   /* of a node, each direction */
    double memory_bytes_per_us; /* of a node, what is read and what is written together */
};

extern const struct machine machine_default; /* TCP between nodes, memory that is shared */

/* An operation, and into what it may be cut. */
struct job {
    struct load load;              /* `count`: all of a block; `ranks`: of the node that has most */
    const struct placement *nodes; /* NULL: as many ranks on every node */
    uint32_t root;
    uint32_t width;  /* bytes an element */
    uint64_t length; /* of a chunk, elements; up to `count` */
    bool whole;      /* chunks stay as they are */
    uint64_t budget; /* elements staged or under way on a node; UINT64_MAX: as many as it takes */
    uint32_t depth;  /* pieces in flight at most */
};

struct price {
    uint64_t length; /* of the pieces that chunks are cut into, elements */
    uint64_t pieces;
    uint32_t depth;   /* pieces in flight */
    struct cost cost; /* of one piece */
    double us;        /* of all */
};

/* One piece by itself, us. */
double price_cost(const struct cost *c, uint32_t width, const struct machine *m);

/*
 * The most that one piece of `count` elements stages or has under way on any node, in elements:
 * what the nodes' plans would. Of an exchange it may be more than that: as though the two nodes
 * with most ranks met in every message. Return: 0 or -ENOMEM.
 */
int price_peak(const struct algorithm *a, const struct job *j, uint64_t count, uint64_t *ret);

/*
 * The cheapest way to cut chunks into pieces within the budget: as long as they can be, halves of
 * that, quarters ... A piece starts when one before it ends, or, sooner, when link and memory are
 * free for it.
 * Return: 0, -ENOMEM, or PRICE_NONE: not even one element at a time is within the budget.
 */
#define PRICE_NONE 1
int price_job(const struct algorithm *a, const struct job *j, const struct machine *m,
              struct price *ret);

/* What no algorithm is below, us: a message's latency, and what has to pass the busiest link. */
double price_bound_latency(const struct job *j, const struct machine *m);
double price_bound_link(const struct job *j, const struct machine *m);

/* Elements as wide as one accumulator of `op` on `dtype`. */
uint32_t price_wide(enum operator_id op, enum dtype_id dtype);

#endif
