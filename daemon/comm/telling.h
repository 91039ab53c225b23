/*
 * Tellings: what the ranks of a node ask of an operation, as other nodes are told it. Nothing is
 * copied that the operation has. For comm's own files.
 */
#ifndef DAEMON_COMM_TELLING_H
#define DAEMON_COMM_TELLING_H

#include "daemon/comm/op.h"

struct telling {
    struct peer_agree agree; /* nothing is enclosed */
    struct peer_part *parts;
    struct peer_rows *rows;
    struct peer_color *colors;
};

/* Of this node, all of whose parts are there. Return: 0 or -ENOMEM; telling_fini() in any case. */
int telling_init(struct telling *t, const struct op *op);
void telling_fini(struct telling *t);

/* Of another node, once it has spoken: as it came. */
struct peer_agree telling_of(const struct op *op, uint32_t node);

#endif
