/*
 * Operations: one collective of one communicator, from its first rank's arrival to the last answer.
 * One owner, the control thread; one machine:
 *
 *     ARRIVING -> AGREEING -> RUNNING -> DRAINING -> DONE
 *
 * AGREEING: every part is there and has been compared; it waits for the operations before it.
 * DRAINING: decided, well or badly; waits until nothing touches the parts' memory any more.
 * Any state may go to DRAINING. Memory is let go, and ranks are told, at DONE only.
 */
#ifndef DAEMON_COMM_OP_H
#define DAEMON_COMM_OP_H

#include "daemon/comm/arrival.h"
#include "daemon/comm/group.h"
#include "daemon/exec/run.h"

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

    uint64_t first_us, agreed_us, started_us;
    uint64_t deadline_us; /* while ARRIVING or RUNNING */

    /* from agreement on */
    const struct algorithm *algorithm; /* NULL where nothing moves */
    struct chunking chunking;
    struct exchange *exchange;
    struct persistent *persistent; /* what it starts, or has made; NULL: neither */
    struct run *run;

    struct error error;         /* from DRAINING on; ERROR_NONE: success */
    struct arrival *arrivals[]; /* [nparts]: by rank; of a pair source, destination */
};

/* A new operation of `c`, appended to its list; sequence 0: a pair. Return: 0 or -ENOMEM. */
int op_new(struct comm *c, uint64_t sequence, uint64_t now, struct op **ret);

/* What kind it is, as far as is known: that of its first arrival. */
enum collective_id op_kind(const struct op *op);

/*
 * Takes a part's arrival. With the last one the operation is agreed on, or fails for every part and
 * may be over. Return: whether it may be started, when is the communicator's to decide (op_start).
 */
bool op_arrive(struct op *op, uint32_t part, struct arrival *a, uint64_t now);

/* Answers an arrival that no operation will come of, and frees it. */
void op_refuse(struct arrival *a, uint64_t sequence, const struct error *cause);

/* From AGREEING: moves the data. May be over when this returns. */
void op_start(struct op *op, uint64_t now);

/* The part's windows have come further: see struct run_stage. May be over when this returns. */
void op_staged(struct op *op, uint32_t part, uint64_t in_ready, uint64_t out_taken, uint64_t now);

/* Ends it badly, from any state. The first cause stands. */
void op_fail(struct op *op, const struct error *cause, uint64_t now);

/* Words a timeout of this operation: who arrived, who did not and what those did last. */
void op_timeout_error(const struct op *op, uint64_t now, struct error *ret);

/* The parts that have (not) arrived, as ranks, ascending; room for nparts. Returns how many. */
uint32_t op_ranks(const struct op *op, bool arrived, uint32_t *ret);

#endif
