/* What comes over the links to other daemons, on its way to the communicator that it is for. */
#include "daemon/comm/links.h"

#include "daemon/comm/forming.h"
#include "daemon/comm/nodes.h"
#include "daemon/comm/talk.h"

static bool is_keyed(enum peer_kind kind)
{
    return kind >= PEER_AGREE;
}

void comms_link_message(struct comms *comms, struct link *l, const struct peer_message *m,
                        uint64_t now)
{
    struct comm *c;
    uint32_t node;

    if (!is_keyed(m->kind)) {
        forming_receive(comms, l, m, now);
        return;
    }
    c = talk_find(comms, m);
    if (!c || !nodes_find_link(c->nodes, l, &node))
        return;
    comm_hold(c);
    talk_receive(c, node, m, now);
    comm_drop(c);
}

/* Calls `visit` for every communicator. One may take others with it, and so the next is held. */
static void
for_each_comm(struct comms *comms, struct link *l, const struct error *why, uint64_t now,
              void (*visit)(struct comm *c, struct link *l, const struct error *why, uint64_t now))
{
    struct list *at = comms->comms.next;
    struct comm *next = NULL;

    if (at != &comms->comms)
        comm_hold(container_of(at, struct comm, link));
    while (at != &comms->comms) {
        struct comm *c = container_of(at, struct comm, link);

        visit(c, l, why, now);
        at = at->next;
        next = at == &comms->comms ? NULL : container_of(at, struct comm, link);
        if (next)
            comm_hold(next);
        comm_drop(c);
    }
}

static void comm_link_up(struct comm *c, struct link *l, const struct error *why, uint64_t now)
{
    uint32_t node;

    (void)why;
    if (c->forming && c->nodes && nodes_find_link(c->nodes, l, &node))
        forming_link_up(c->forming, now);
}

void comms_link_up(struct comms *comms, struct link *l, uint64_t now)
{
    for_each_comm(comms, l, NULL, now, comm_link_up);
}

static void lose_node(struct comm *c, uint32_t node, const struct error *why, uint64_t now)
{
    const bool matters = nodes_matter(c->nodes, node);
    struct text t = { 0 };
    struct error e = { 0 };

    nodes_lose(c->nodes, node);
    if (!matters)
        return;
    text_add_label(&t, c);
    text_add_node_ranks(&t, c->nodes, node);
    error_set(&e, ERROR_RANK_LOST, "%s lost: %s", t.s, why->text);
    error_add_node(&e, c->nodes, node);
    comm_fail(c, &e, now);
}

static void comm_link_lost(struct comm *c, struct link *l, const struct error *why, uint64_t now)
{
    uint32_t node;

    if (c->nodes && nodes_find_link(c->nodes, l, &node))
        lose_node(c, node, why, now);
    if (c->forming)
        forming_link_lost(c->forming, l, why, now);
    comm_run(c, now);
}

void comms_link_lost(struct comms *comms, struct link *l, const struct error *why, uint64_t now)
{
    for_each_comm(comms, l, why, now, comm_link_lost);
}
