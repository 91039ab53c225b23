/* Descriptions: what a root tells its guests of a group whose ranks are all seated. For forming.c.
 */
#ifndef DAEMON_COMM_DESCRIPTION_H
#define DAEMON_COMM_DESCRIPTION_H

#include "daemon/comm/group.h"
#include "daemon/comm/links.h"

/* A form, and the memory behind it. Points into the comm and the facts. */
struct description {
    struct peer_form form;
    struct placement *placement;
    struct peer_node *nodes;
    uint32_t *pids;
    struct peer_rule *rules;
};

/* Seats of other nodes name theirs by an index of `guests`; with a new key. Return: 0 or -ENOMEM;
 * description_fini() either way. */
int description_init(struct description *d, const struct comm *c,
                     const struct link_facts *const *guests, uint32_t nguests);
void description_fini(struct description *d);

#endif
