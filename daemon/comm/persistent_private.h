/* The inside of persistent operations, for op.c and comm.c. */
#ifndef DAEMON_COMM_PERSISTENT_PRIVATE_H
#define DAEMON_COMM_PERSISTENT_PRIVATE_H

#include "daemon/comm/arrival.h"
#include "daemon/comm/group.h"

struct persistent_part {
    struct operand in, out; /* hold references */
    bool held;              /* its member may start it */
};

struct persistent {
    struct comm *comm;
    uint32_t id;
    unsigned refs; /* parts that are held, and operations */
    struct recipe *recipe;
    struct run_memory memory;
    struct persistent_part parts[]; /* [nparts] of the communicator */
};

struct op;

/* Makes one of an operation that all agreed on, of whose tensors it takes the references; with one
 * reference for the caller. Return: 0, or -ERROR_NO_MEMORY or -ERROR_QUOTA worded in `e`. */
int persistent_new(const struct op *op, struct persistent **ret, struct error *e);
struct persistent *persistent_ref(struct persistent *p);
/* Returns NULL; NULL is allowed. */
struct persistent *persistent_unref(struct persistent *p);

/* Another node could not make its part: all parts let go of it. The caller has a reference. */
void persistent_take_back(struct persistent *p);

/* NULL: there is none of that number. */
struct persistent *persistent_find(const struct comm *c, uint32_t id);

/* Lets go of all that a member has, which is about to go. */
void persistents_forget(struct member *m);
void persistents_fini(struct persistents *l);

#endif
