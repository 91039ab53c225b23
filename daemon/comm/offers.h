/*
 * Offers: pairs whose ends are on two nodes. The source's node offers what is sent (PEER_OFFER);
 * the destination's matches it with its receive, compares the two, answers (PEER_ACCEPT), and both
 * begin. For comm's own files.
 */
#ifndef DAEMON_COMM_OFFERS_H
#define DAEMON_COMM_OFFERS_H

#include "daemon/comm/arrival.h"
#include "daemon/comm/group.h"
#include "daemon/plan/plan.h"
#include "proto/peer_codec.h"

/* Of a pair, from when the offer has been made or has come. */
struct offer {
    uint64_t number;        /* counted by the source's node, for each other node, from 1 */
    uint32_t node;          /* the other one */
    struct peer_part part;  /* at the destination's: the source's request ... */
    struct error rejection; /* ... and what it points to */
    struct plan full, tail; /* one message each */
};

/* A send, or receive, of a member here, whose peer is on another node. `a` is taken unless this
 * fails: -ENOMEM. */
int offers_send(struct comm *c, const struct post *post, struct arrival *a, uint64_t now);
int offers_receive(struct comm *c, const struct post *post, struct arrival *a, uint64_t now);

/* What another node has said. */
void offers_hear(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now);
void offers_hear_answer(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now);

/* Whether a pair waits for a rank of another node. */
bool offers_wait_for(const struct comm *c, uint32_t rank);

/* Returns NULL; NULL is allowed. */
struct offer *offer_free(struct offer *o);

#endif
