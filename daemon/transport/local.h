/*
 * The transport within one process: what tests of all that stands on transports use. Its peers find
 * each other by address whatever transport they were made on, so that every transport is a node.
 *
 * A message leaves in its sender's transport_poll() and comes in its receiver's: each touches its
 * own memory alone. One seed, one story; no clock. All of a process's transports are one thread's.
 */
#ifndef DAEMON_TRANSPORT_LOCAL_H
#define DAEMON_TRANSPORT_LOCAL_H

#include "daemon/transport/transport.h"

extern const struct transport_ops transport_local;

/* All zero, as after open: everything moves at the next poll, in order. */
struct local_config {
    uint64_t seed;           /* not 0: what may move or come does so in random order */
    unsigned delayed;        /* so many of what may move stay for a later poll; one never does */
    unsigned inline_percent; /* of sends and receives that may, move within the call */
    uint64_t eager_bytes;    /* messages of at most so many bytes leave before they are awaited */
    uint64_t fail_transfer;  /* the k-th transfer from here on, from 1, fails ... */
    int fail_errno;          /* ... with this, > 0; its other end waits on */
    bool fail_at_once;       /* it is not taken */
    /* Messages of memory of GPUs are moved by this. NULL: none are */
    void (*copy_gpu)(void *to, const void *from, uint64_t bytes);
    uint64_t gpu_bytes_min; /* beneath which they are not either */
};

/* Starts a new story: transfers are counted anew. */
void local_configure(struct transport *t, const struct local_config *config);

/* The network between the peer and its other end breaks: both find the other gone. */
void local_lose(struct transport_peer *p);

/* Transfers taken and not done, and messages that have left and not come. */
unsigned local_pending(const struct transport *t);

#endif
