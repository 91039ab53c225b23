/* Windows: tensors of an operation that pass through a part of memory, piece by piece. */
#ifndef DAEMON_COMM_WINDOWS_H
#define DAEMON_COMM_WINDOWS_H

#include "daemon/comm/op.h"

/* Elements of the longest piece that passes through every window of this node's parts; 0: there is
 * none. A power of two. With a budget its chunks pass, and this only says that there are windows.
 */
uint64_t windows_piece(const struct op *op);

/* Of two such lengths the one that passes through both nodes' windows. */
uint64_t windows_lesser(uint64_t a, uint64_t b);

/* As far as is known, that of all nodes. */
uint64_t windows_least_piece(const struct op *op);

/* The first part's recipe is the operation's: with windows, here or on another node, one for chunks
 * that fit them, as those of a budget do. Return: 0 or -code. */
int windows_fit(struct op *op, struct error *e);

/* For those who copy meanwhile, whenever a piece of their windows, about, has passed; the end they
 * hear of by their completion. */
void windows_tell_progress(const struct op *op, uint64_t chunks);

/* Of moving data: names the ranks that do not bring or take it. */
void windows_add_laggards(const struct op *op, struct text *t, struct error *e);

#endif
