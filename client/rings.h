/*
 * A connection's rings: messages to and from the daemon through shared memory. Who reads and who
 * sends is conn.h's rule; here is how. With the connection's lock held, but for rings_wait().
 */
#ifndef CLIENT_RINGS_H
#define CLIENT_RINGS_H

#include "shared/error.h"
#include "shared/mem.h"

struct ruccl_conn;

struct rings {
    struct client_rings *memory; /* NULL: all goes by the socket */
    struct ring_out requests;
    struct ring_in replies;
    int64_t spin_ns; /* before sleeping */
    unsigned misses; /* looks that found nothing, and waits without one, since the last that did */
};

/*
 * Hands rings to the daemon, whose own are `daemon`, mapped for as long as the connection is.
 * Return: 0, or -code worded in `e`.
 */
int rings_open(struct ruccl_conn *c, const struct daemon_rings *daemon, uint32_t spin_us,
               int64_t deadline, struct error *e);
void rings_close(struct rings *r);

/*
 * The leader's, without the lock: looks for a reply for a while, letting others run. Return:
 * whether there is one; if not, the daemon will ring for the next, and the socket is to be waited
 * at.
 */
bool rings_wait(struct rings *r, int64_t deadline);

#endif
