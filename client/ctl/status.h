/* What a daemon told about itself: its items in the order they came, in memory of our own. */
#ifndef CLIENT_CTL_STATUS_H
#define CLIENT_CTL_STATUS_H

#include "proto/codec.h"

struct status {
    struct status_item *items;
    size_t nitems, room;
};

void status_fini(struct status *s);

/* Adds a copy, strings and all; NULL becomes "". Return: 0 or -ENOMEM. */
int status_add(struct status *s, const struct status_item *item);

/*
 * The next item of `kind` behind `previous` (NULL: the first), NULL behind the last:
 *     for (item = NULL; (item = status_next(s, STATUS_SESSION, item));)
 */
const struct status_item *status_next(const struct status *s, enum status_kind kind,
                                      const struct status_item *previous);

/* The same for the members of a communicator. */
const struct status_item *status_next_member(const struct status *s, uint64_t communicator,
                                             const struct status_item *previous);

#endif
