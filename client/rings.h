/*
 * A connection's rings: messages to and from the daemon through shared memory, and where to sleep
 * until there are any. Who reads and who sends is conn.h's rule; here is how. With the connection's
 * lock held, unless told otherwise.
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
    const struct bells *bells;
    const struct daemon_rings *daemon; /* whose bell is heard */
    uint32_t bell;                     /* as is this one; BELL_NONE: the kernel cannot wait so */
    uint32_t mail;                     /* daemon_rings::mail when last looked at */
    _Atomic uint32_t nudges;           /* of a sleeper, by another thread */
    int64_t spin_ns;             /* before sleeping */
    unsigned misses; /* looks that found nothing, and waits without one, since the last that did */
};

/*
 * Hands rings to the daemon, whose own are `daemon`, mapped for as long as the connection is.
 * Return: 0, or -code worded in `e`.
 */
int rings_open(struct ruccl_conn *c, const struct daemon_rings *daemon, uint32_t spin_us,
               int64_t deadline, struct error *e);
void rings_close(struct rings *r);

/* Hears the bell that all ranks of a communicator with this id hear. */
void rings_hear(struct rings *r, const char *id);

/* The leader's, without the lock: looks for a reply for a while, letting others run. Return:
 * whether there is one. */
bool rings_look(struct rings *r, int64_t deadline);

/*
 * Then: sleeps until a bell rings, or rings_nudge() has been called since there were so many
 * `nudges`; for a moment only, since the socket, which tells of the daemon's end, is not heard.
 * Return: whether to look at the ring; false: the socket is to be waited at.
 */
bool rings_sleep(struct rings *r, uint32_t nudges, int64_t deadline);

/* Whether something has been sent by the socket since this was last asked. */
bool rings_tell_of_mail(struct rings *r);

void rings_nudge(struct rings *r);

#endif
