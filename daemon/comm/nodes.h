/*
 * Nodes: the other side of a communicator whose ranks are on several nodes. Where they are, the
 * links and the channel to them, and the table that all of them plan by. For comm's own files.
 */
#ifndef DAEMON_COMM_NODES_H
#define DAEMON_COMM_NODES_H

#include "daemon/comm/group.h"
#include "daemon/comm/links.h"
#include "daemon/plan/table.h"

/* Operations that another node may have come to and no rank here has. */
#define AHEAD_MAX 4096u

struct node {
    char name[PEER_NODE_BYTES + 1]; /* its UUID */
    char host[PEER_HOST_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
    struct link *link; /* NULL: this node, or not opened yet, or lost */
    uint64_t agreed;   /* the sequence of the last PEER_AGREE that came */
    /* offers (offers.h) made to it, heard of it, and of these waiting for a receive */
    uint64_t offered, heard;
    uint32_t nwaiting;
};

struct nodes {
    struct comm *comm;
    struct nodes *alike; /* another whose key begins like this one's; NULL: none */
    uint8_t key[PEER_KEY_BYTES];
    struct placement *placement;
    uint32_t own; /* this node */
    struct table table;
    struct channel *channel;       /* NULL until nodes_prepare() */
    uint64_t spoilt; /* the last operation that may have left messages; 0: none has */
    struct transport_peer **peers; /* [nnodes]: NULL: this node, or its link is not up */
    uint64_t reserved;             /* bytes of staging */
    bool expecting;                /* the links have been told that something is unfinished */
    struct node items[];           /* [nnodes], by lowest rank */
};

/*
 * Checks what a root says of a communicator whose ranks here are seated, and seats the others.
 * comm::nodes is there on success. Return: 0, or -code worded in `e`.
 */
int nodes_new(struct comm *c, const struct peer_form *form, struct error *e);

/*
 * A part of the communicator `parent` has become one: its rank r is the parent's ranks[r]. Its
 * members are seated. comm::nodes is there on success. Return: 0, or -code worded in `e`.
 */
int nodes_new_child(struct comm *c, const struct comm *parent, const uint32_t *ranks,
                    const uint8_t key[PEER_KEY_BYTES], struct error *e);

/* Lets go of links, channel and promises. NULL is allowed; returns NULL. */
struct nodes *nodes_free(struct nodes *n);

/* Those of the communicator that has this key; of several the oldest; NULL: there is none. */
struct nodes *nodes_find(const struct comms *comms, const uint8_t key[PEER_KEY_BYTES]);

/* Opens the links that are not: to those behind this one by dialling. Return: 0 or -code. */
int nodes_open_links(struct nodes *n, struct error *e);
/* Looks at its links again; returns whether all are up. */
bool nodes_are_up(struct nodes *n);
/* Once they are: opens the channel, and reserves staging. Return: 0 or -code worded in `e`. */
int nodes_prepare(struct nodes *n, struct error *e);

/* The node at the other end of a link. False: it is none of these. */
bool nodes_find_link(const struct nodes *n, const struct link *l, uint32_t *ret);
/* The link to a node is lost: lets go of it. */
void nodes_lose(struct nodes *n, uint32_t node);
/* Whether a rank of that node is still a member. */
bool nodes_matter(const struct nodes *n, uint32_t node);

/* To every other node whose link is not lost, encoded once; and to one. */
void nodes_send(const struct nodes *n, const struct peer_message *m);
void node_send(const struct nodes *n, uint32_t node, const struct peer_message *m);

/* In two steps, as in links.h. */
struct link_message nodes_encode(const struct nodes *n, const struct peer_message *m);
struct link_message nodes_encode_payload(const struct nodes *n, const struct peer_agree *agree);
void node_send_encoded(const struct nodes *n, uint32_t node, const struct link_message *m);

/* Tells the links whether the communicator has something unfinished. */
void nodes_expect(struct nodes *n);

/* Appends "node host (address)"; and "ranks 3-5 (on host)". */
void text_add_node(struct text *t, const struct node *node);
void text_add_node_ranks(struct text *t, const struct nodes *n, uint32_t node);
/* Adds the ranks of a node to those concerned. */
void error_add_node(struct error *e, const struct nodes *n, uint32_t node);

/* A part of this node's, and its rank. */
static inline uint32_t comm_part(const struct comm *c, uint32_t rank)
{
    return c->nodes ? c->nodes->placement->index[rank] : rank;
}

static inline uint32_t comm_part_rank(const struct comm *c, uint32_t part)
{
    return c->nodes ? placement_rank(c->nodes->placement, c->nodes->own, part) : part;
}

/* Whether what they ask of an operation goes over a tree of them: gather.h. */
static inline bool nodes_are_many(const struct nodes *n)
{
    return n->placement->nnodes > n->table.tree_above;
}

static inline uint32_t comm_nnodes(const struct comm *c)
{
    return c->nodes ? c->nodes->placement->nnodes : 1;
}

#endif
