/* The inside of operations: what the files op*.c and windows.c share. */
#ifndef DAEMON_COMM_OP_PRIVATE_H
#define DAEMON_COMM_OP_PRIVATE_H

#include "daemon/comm/agreement.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/op.h"
#include "daemon/comm/persistent_private.h"

/* op.c */

void op_set_state(struct op *op, enum op_state state);
/* Appends "all_reduce 7 of 'train'". */
void op_title(const struct op *op, struct text *t);
int op_system_error(const struct op *op, int err, struct error *e);
/* Writes what has been moved where clients see it. */
void op_progress(const struct op *op, uint64_t chunks);
/* The operation is decided: `cause`, or success. Nothing more is issued; done once nothing is in
 * flight. */
void op_end(struct op *op, const struct error *cause, uint64_t now);
/* From DRAINING, once nothing is in flight. */
void op_done(struct op *op, uint64_t now);
/* Ends it with what the comparison (`compared`: what comes behind it, for all ranks alike) has
 * against it. */
void op_disagree(struct op *op, const struct error *why, bool compared, uint64_t now);
/* Ends it with what has gone wrong on this node alone. Others count on it: between nodes the
 * communicator fails. */
void op_break(struct op *op, const struct error *why, uint64_t now);
/* Keeps a run for the next operation. */
void op_give_run(struct op *op);

/* Makes its letters, of which none has come or gone, if it has none. */
void op_make_letters(struct op *op);

/* op_agree.c */

struct frame comm_frame(const struct comm *c);
/* What is moved, in which chunks. */
void op_take_choice(struct op *op, const struct choice *c);
/* Every part is there: tells the other nodes. False: there was no memory for it, and the
 * communicator has failed. */
bool op_tell(struct op *op, uint64_t now);
/* Another node has spoken. Where they are many, sends on what is complete. False: as above. */
bool op_pass(struct op *op, uint64_t now);
/* All requests are there. Return: whether it may be started. */
bool op_agree(struct op *op, uint64_t now);

/* op_run.c */

/* Begins to move the data. `start`: as in struct run_spec. Return: 0, it is over already;
 * ENGINE_PENDING; or -errno. */
int op_start_run(struct op *op, enum run_start start);
/* Words how a run has failed, without the title. */
void op_run_error(const struct op *op, int err, struct error *ret);
/* A run is over. */
void op_ended(struct op *op, int r, uint64_t now);

/* op_settle.c */

void op_start_making(struct op *op, uint64_t now);
void op_start_split(struct op *op, uint64_t now);
/* Takes back what a failed operation has made. */
void op_undo(struct op *op);
void op_free_settled(struct op *op);

/* op_wait.c */

/* A run has lost a connection: the link's loss, which says whose it was, is waited for. */
void op_wait_for_link(struct op *op, uint64_t now);
void op_free_answers(struct op *op);

#endif
