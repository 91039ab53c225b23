/*
 * Operations: one collective of one communicator, from its first rank's arrival to the last answer.
 * One owner, the control thread; one machine:
 *
 *     ARRIVING -> AGREEING -> RUNNING -> DRAINING -> DONE
 *
 * Its parts are the ranks of this node. Between nodes, once all parts are there, every other node
 * is told what they ask (PEER_AGREE; where nodes are many, by way of each other: gather.h), and the
 * operation may exist before any part has arrived, because another node's word has.
 *
 * AGREEING: all ranks' requests are there and have been compared; it waits for the operations
 * before it.
 * DRAINING: decided, well or badly; waits until nothing touches the parts' memory any more.
 * Any state may go to DRAINING. Memory is let go, and ranks are told, at DONE only.
 */
#ifndef DAEMON_COMM_OP_H
#define DAEMON_COMM_OP_H

#include "daemon/comm/arrival.h"
#include "daemon/comm/group.h"
#include "daemon/comm/remote.h"
#include "daemon/exec/run.h"

/* How a node has settled what was agreed on. */
struct settlement {
    bool known;
    struct error *why; /* NULL: well */
};

enum op_state { OP_ARRIVING, OP_AGREEING, OP_RUNNING, OP_DRAINING, OP_DONE };

const char *op_state_name(enum op_state state);

struct op {
    struct comm *comm;
    struct list link;      // comm::ops or comm::pairs
    struct list unmatched; // comm::unmatched
    enum op_state state;
    uint64_t sequence; /* 0 for a pair */
    uint32_t nparts, narrived;

    uint32_t source, destination, tag; /* of a pair */

    uint64_t first_us; /* its first part's arrival; until then, when it came to be */
    uint64_t agreed_us, started_us;
    uint64_t deadline_us; /* while ARRIVING or RUNNING; TIME_NEVER before the first part */

    /* from agreement on */
    const struct algorithm *algorithm; /* NULL where nothing moves */
    struct chunking chunking;
    uint32_t depth; /* of these, or pieces of them, in flight */
    struct exchange *exchange;
    struct persistent *persistent; /* what it starts, or has made; NULL: neither */
    struct split_part *children;   /* [ranks]: what it has made of a split */
    struct run *run;
    struct recipe *recipe; /* that the run is of; NULL: it is of none, or there is no run */
    uint64_t peak_bytes;   /* of its run, once that is over */

    /* between nodes */
    struct remote **remotes;    /* [nnodes]: what the others ask; in the operation's own memory */
    uint64_t piece;             /* the least of theirs; 0: none has windows */
    uint32_t nremotes;          /* that are there */
    uint32_t nsettled;          /* other nodes that have settled */
    struct settlement *settled; /* [nnodes], once one has; or NULL */
    bool told;                  /* the others have been told what is asked here */
    bool passed;                /* what its subtree asks has been sent on: gather.h */
    bool alike;                 /* one of the parts here speaks for all */
    uint64_t plan;              /* digest of the plan that this node would follow; 0: none */
    bool cut;                   /* its run has lost a connection; the link's loss will say whose */
    bool misfit;                /* begun early, nodes' messages did not fit: the verdict says why */
    bool restarts;              /* its run is cancelled to be started in other chunks */
    bool settling;              /* its split or making is done here */
    struct error *verdict;      /* what only this node can see against it, or how it settled */
    struct offer *offer;        /* of a pair on two nodes, once there is one; else NULL */
    struct answer **answers;    /* [nnodes]: who is missing, once that has been asked; or NULL */
    struct run_network network; /* of its run */
    struct run_letter *letters; /* [nnodes], in its own memory, if anything was enclosed; or NULL */

    struct error error;         /* from DRAINING on; ERROR_NONE: success */
    struct arrival *arrivals[]; /* [nparts]: by rank; of a pair source, destination */
};

/* Whether it is one of several nodes. */
static inline bool op_is_wide(const struct op *op)
{
    return op->remotes != NULL;
}

/* The first part that has arrived; NULL: none. */
static inline struct arrival *op_first(const struct op *op)
{
    uint32_t i = 0;

    while (i < op->nparts && !op->arrivals[i])
        i++;
    return i < op->nparts ? op->arrivals[i] : NULL;
}

/* A new operation of `c`, appended to its list; sequence 0: a pair. Return: 0 or -ENOMEM. */
int op_new(struct comm *c, uint64_t sequence, uint64_t now, struct op **ret);

/* What kind it is, as far as is known: that of the lowest rank whose request is there. */
enum collective_id op_kind(const struct op *op);

/*
 * Takes a part's arrival. Once the last one and every other node's word are there, the operation is
 * agreed on, or fails for every part and may be over. Return: whether it may be started, when is
 * the communicator's to decide (op_start).
 */
bool op_arrive(struct op *op, uint32_t part, struct arrival *a, uint64_t now);

/* Takes what another node asks of it, which is the operation's now. May be over when this returns.
 */
void op_hear(struct op *op, uint32_t node, struct remote *remote, uint64_t now);

/* Whether it may be that another node has settled it, and has not said so before. */
bool op_may_settle(const struct op *op, uint32_t node);
/* What was agreed on has been settled on another node, well (no code) or badly. May be over when
 * this returns. */
void op_hear_settled(struct op *op, uint32_t node, const struct error *outcome, uint64_t now);

/* Answers an arrival that no operation will come of, and frees it. */
void op_refuse(struct arrival *a, uint64_t sequence, const struct error *cause);

/* From AGREEING: moves the data. May be over when this returns. */
void op_start(struct op *op, uint64_t now);

/* The part's windows have come further: see struct run_stage. May be over when this returns. */
void op_staged(struct op *op, uint32_t part, uint64_t in_ready, uint64_t out_taken, uint64_t now);

/* Ends it badly, from any state. The first cause stands. */
void op_fail(struct op *op, const struct error *cause, uint64_t now);

/*
 * Its time is up. Between nodes it may have some more: whoever has not spoken is asked for who is
 * missing, and is given a second for the answer. Return: whether it is over for good.
 */
bool op_is_overdue(struct op *op, uint64_t now);
/* Another node has answered; with the last answer there is nothing more to wait for. */
void op_hear_missing(struct op *op, uint32_t node, const struct peer_rank *ranks, uint32_t n,
                     uint64_t now);

/* Words a timeout of this operation: who arrived, who did not and what those did last. */
void op_timeout_error(const struct op *op, uint64_t now, struct error *ret);

/* The ranks, of all nodes, that as far as is known have (not) arrived, ascending; room for all, or
 * for two; or NULL. Returns how many. */
uint32_t op_ranks(const struct op *op, bool arrived, uint32_t *ret);

#endif
