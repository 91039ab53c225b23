/*
 * Bells (shared/mem.h): one belfry for the sessions of a uid, so that nobody hears or rings those
 * of another. Whoever is to be rung is noted, and all are rung together: a client that is woken may
 * be given the daemon's CPU at once, and would keep it from those that come behind.
 */
#ifndef DAEMON_SERVER_BELLS_H
#define DAEMON_SERVER_BELLS_H

#include <sys/types.h>

#include "shared/list.h"
#include "shared/mem.h"

struct belfry {
    struct list link; // service::belfries
    uid_t uid;
    unsigned refs;
    int fd; /* of the memory, for clients */
    struct bells *bells;
    uint32_t due[1u << RING_BELL_BITS]; /* how many are to be rung by each; 0 between two turns */
};

/* Among `belfries`, made if need be; NULL: one that nobody else will get. A reference. Return: 0,
 * or -errno. */
int belfry_get(struct list *belfries, uid_t uid, struct belfry **ret);
/* Gives the reference back; NULL is fine. Return: NULL. */
struct belfry *belfry_put(struct belfry *b);

/* Wakes those who sleep at a bell, `most` at most: a client could have any number sleep there. */
void bell_ring(_Atomic uint32_t *bell, unsigned most);

#endif
