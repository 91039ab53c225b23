/*
 * A connection's rings: messages to and from the daemon through shared memory, and where to sleep
 * until there are any. Who reads and who sends is conn.h's rule; here is how. With the connection's
 * lock held, unless told otherwise.
 */
#ifndef CLIENT_RINGS_H
#define CLIENT_RINGS_H

#include "client/patience.h"
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
    uint32_t mail;                     /* of daemon_rings::mail, how much has been taken */
    _Atomic uint32_t nudges;           /* of a sleeper, by another thread */
    struct patience patience;          /* before sleeping */
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
 * Then, likewise: sleeps until `bell`, the one that is heard, or the connection's own rings, or
 * rings_nudge() has been called since there were so many `nudges`; for a moment only, since the
 * socket, which tells of the daemon's end, is not heard. Return: 0, what there is to find is to be
 * looked for; RINGS_TIMEOUT; or -errno: the kernel cannot wait so. But for 0, the socket is to be
 * waited at.
 */
int rings_sleep(struct rings *r, uint32_t bell, uint32_t nudges, int64_t deadline);

/* Condition of rings_sleep() */
#define RINGS_TIMEOUT 1

/* How much has been sent by the socket to clients that do not hear it; whether there is more than
 * was taken; and that all up to `mail` has been. */
uint32_t rings_mail(const struct rings *r);
bool rings_have_mail(const struct rings *r);
void rings_take_mail(struct rings *r, uint32_t mail);

void rings_nudge(struct rings *r);

#endif
