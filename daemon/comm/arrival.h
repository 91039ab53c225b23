/*
 * Arrivals: one rank's part of one operation, and what can be said against it without asking the
 * other ranks.
 */
#ifndef DAEMON_COMM_ARRIVAL_H
#define DAEMON_COMM_ARRIVAL_H

#include "daemon/comm/comm.h"

struct arrival {
    struct member *member; /* NULL once the member is lost: nobody to tell */
    uint32_t rank;
    uint64_t serial;
    uint64_t at_us;
    struct descriptor d;
    struct operand in, out;       /* hold references; no mapping where nothing is touched */
    uint64_t in_bytes, out_bytes; /* 0 where there is no such tensor, or an empty one */
    uint64_t out_rows;
    uint64_t *counts, *expected; /* [d.nranks] or NULL; the exchanges only */
    int32_t color, key;
    uint32_t child_number;
    struct progress_cell *cell; /* NULL once the member is lost */
    struct error rejection;     /* ERROR_NONE: none */
};

/*
 * Copies a post, checks it, and takes references. What is wrong with it ends up as its `rejection`.
 * Return: 0 or -ENOMEM.
 */
int arrival_new(const struct post *post, struct member *m, uint64_t now, struct arrival **ret);
/* Lets go of the tensors. */
void arrival_drop_memory(struct arrival *a);
/* Returns NULL; NULL is allowed. */
struct arrival *arrival_free(struct arrival *a);
DEFINE_CLEANUP(struct arrival *, arrival_free)

/* The operand's first byte, or NULL where there is none. */
void *operand_address(const struct operand *o);

#endif
