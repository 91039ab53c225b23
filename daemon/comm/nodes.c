#include "daemon/comm/nodes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/staging.h"

static const struct comms_config *config_of(const struct nodes *n)
{
    return &n->comm->comms->config;
}

static const struct link_ops *ops_of(const struct nodes *n)
{
    return config_of(n)->link_ops;
}

/* ---- where ranks are */

static int protocol_error(struct error *e, const char *what)
{
    return error_set(e, ERROR_PROTOCOL, "join: the root daemon described another group: %s", what);
}

static bool same_hosts(const struct placement *p, const uint32_t *node_of_rank)
{
    return !memcmp(p->nodes, node_of_rank, p->nranks * sizeof(*p->nodes));
}

/* Whether the ranks that are here are those that are said to be. */
static bool seats_match(const struct comm *c, const struct placement *p, uint32_t own)
{
    for (uint32_t r = 0; r < c->nranks; r++)
        if ((p->nodes[r] == own) != (c->seats[r].member != NULL))
            return false;
    return true;
}

static struct nodes *alloc(struct comm *c, struct placement *p)
{
    struct nodes *n = calloc(1, sizeof(*n) + p->nnodes * sizeof(n->items[0]));

    if (!n)
        return NULL;
    n->comm = c;
    n->peers = calloc(p->nnodes, sizeof(struct transport_peer *));
    if (!n->peers) {
        free(n);
        return NULL;
    }
    n->placement = p;
    return n;
}

/* ---- found by their keys: one of those that begin alike is in the map, the others hang on it */

static uint64_t beginning(const uint8_t key[PEER_KEY_BYTES])
{
    uint64_t start;

    memcpy(&start, key, sizeof(start));
    return start;
}

struct nodes *nodes_find(const struct comms *comms, const uint8_t key[PEER_KEY_BYTES])
{
    struct nodes *n = map_get(&comms->nodes, beginning(key));

    while (n && memcmp(n->key, key, sizeof(n->key)) != 0)
        n = n->alike;
    return n;
}

static int enter(struct nodes *n)
{
    struct map *map = &n->comm->comms->nodes;
    struct nodes *last = map_get(map, beginning(n->key));

    if (!last)
        return map_put(map, beginning(n->key), n);
    while (last->alike)
        last = last->alike;
    last->alike = n;
    return 0;
}

/* Also what has not been entered. */
static void withdraw(struct nodes *n)
{
    struct map *map = &n->comm->comms->nodes;
    struct nodes *at = map_get(map, beginning(n->key));

    if (at == n) {
        map_take(map, beginning(n->key));
        if (n->alike)
            map_put(map, beginning(n->key), n->alike); /* there is room: its own */
        return;
    }
    while (at && at->alike != n)
        at = at->alike;
    if (at)
        at->alike = n->alike;
}

/* ---- their life */

/* Its ranks' seats follow from the placement. */
static int attach(struct nodes *n, struct error *e)
{
    struct comm *c = n->comm;

    if (enter(n) < 0)
        return error_set(e, ERROR_NO_MEMORY, "no memory for a communicator");
    c->nodes = n;
    c->nparts = placement_count(n->placement, n->own);
    c->nremote = c->nranks - c->nparts;
    for (uint32_t r = 0; r < c->nranks; r++) {
        c->seats[r].node = n->placement->nodes[r];
        if (!c->seats[r].member)
            c->seats[r].state = SEAT_REMOTE;
    }
    return 0;
}

static int take_items(struct nodes *n, const struct peer_form *form, struct error *e)
{
    const char *own = config_of(n)->node;
    uint32_t found = 0;

    for (uint32_t i = 0; i < form->nnodes; i++) {
        struct node *node = &n->items[i];

        snprintf(node->name, sizeof(node->name), "%s", form->nodes[i].node);
        snprintf(node->host, sizeof(node->host), "%s", form->nodes[i].host);
        snprintf(node->address, sizeof(node->address), "%s", form->nodes[i].address);
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(n->items[k].name, node->name))
                return protocol_error(e, "a node is in it twice");
        if (!strcmp(node->name, own)) {
            n->own = i;
            found++;
        }
    }
    return found == 1 ? 0 : protocol_error(e, "this node is not in it");
}

static void take_table(struct table *t, const struct peer_form *form)
{
    table_init(t, form->chunk_bytes);
    t->depth = form->depth;
    t->tree_above = form->tree_above;
    t->machine.latency_us = form->latency_us;
    t->machine.message_us = form->message_us;
    t->machine.link_bytes_per_us = form->link_bytes_per_us;
    t->machine.memory_bytes_per_us = form->memory_bytes_per_us;
    t->nrules = MIN(form->nrules, TABLE_RULES_MAX);
    for (uint32_t i = 0; i < t->nrules; i++) {
        t->rules[i].kind = form->rules[i].kind;
        t->rules[i].min_bytes = form->rules[i].min_bytes;
        snprintf(t->rules[i].algorithm, sizeof(t->rules[i].algorithm), "%s",
                 form->rules[i].algorithm);
    }
}

int nodes_new(struct comm *c, const struct peer_form *form, struct error *e)
{
    struct placement *p = NULL;
    struct nodes *n;
    int r;

    if (form->nranks != c->nranks)
        return protocol_error(e, "its world size differs");
    r = placement_new(form->nranks, form->node_of_rank, &p);
    if (r == -ENOMEM)
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a communicator");
    if (r < 0 || p->nnodes != form->nnodes || p->nnodes < 2 || !same_hosts(p, form->node_of_rank)) {
        placement_free(p);
        return protocol_error(e, "its nodes are out of order");
    }
    n = alloc(c, p);
    if (!n) {
        placement_free(p);
        return error_set(e, ERROR_NO_MEMORY, "join: no memory for a communicator");
    }
    memcpy(n->key, form->key, sizeof(n->key));
    take_table(&n->table, form);
    r = take_items(n, form, e);
    if (r == 0 && !seats_match(c, p, n->own))
        r = protocol_error(e, "the ranks here are others");
    if (r == 0)
        r = attach(n, e);
    if (r < 0) {
        nodes_free(n);
        return r;
    }
    for (uint32_t i = 0; i < c->nranks; i++)
        c->seats[i].pid = (pid_t)form->pids[i];
    return 0;
}

/* Numbers the nodes of a child by its own lowest ranks. */
static int place_child(const struct comm *parent, const uint32_t *ranks, uint32_t nranks,
                       struct placement **ret)
{
    uint32_t *number = calloc(parent->nodes->placement->nnodes, sizeof(*number));
    uint32_t *hosts = calloc(nranks, sizeof(*hosts));
    uint32_t next = 0;
    int r = number && hosts ? 0 : -ENOMEM;

    for (uint32_t i = 0; r == 0 && i < nranks; i++) {
        uint32_t node = parent->nodes->placement->nodes[ranks[i]];

        if (!number[node])
            number[node] = ++next;
        hosts[i] = number[node] - 1;
    }
    if (r == 0)
        r = placement_new(nranks, hosts, ret);
    free(number);
    free(hosts);
    return r;
}

int nodes_new_child(struct comm *c, const struct comm *parent, const uint32_t *ranks,
                    const uint8_t key[PEER_KEY_BYTES], struct error *e)
{
    const struct nodes *from = parent->nodes;
    struct placement *p = NULL;
    struct nodes *n = NULL;

    if (place_child(parent, ranks, c->nranks, &p) == 0)
        n = alloc(c, p);
    if (!n) {
        placement_free(p);
        return error_set(e, ERROR_NO_MEMORY, "split: no memory for a communicator");
    }
    memcpy(n->key, key, sizeof(n->key));
    n->table = from->table;
    for (uint32_t i = 0; i < p->nnodes; i++) {
        const uint32_t node = from->placement->nodes[ranks[placement_rank(p, i, 0)]];

        n->items[i] = from->items[node];
        n->items[i].agreed = n->items[i].offered = n->items[i].heard = 0;
        n->items[i].nwaiting = 0;
        if (node == from->own)
            n->own = i;
        else if (n->items[i].link)
            ops_of(n)->ref(n->items[i].link);
    }
    for (uint32_t r = 0; r < c->nranks; r++)
        c->seats[r].pid = parent->seats[ranks[r]].pid;
    if (attach(n, e) < 0) {
        nodes_free(n);
        return -ERROR_NO_MEMORY;
    }
    if (!nodes_are_up(n))
        return error_set(e, ERROR_RANK_LOST, "split: a node of the communicator is lost");
    return nodes_prepare(n, e);
}

struct nodes *nodes_free(struct nodes *n)
{
    if (!n)
        return NULL;
    withdraw(n);
    for (uint32_t i = 0; i < n->placement->nnodes; i++)
        if (n->items[i].link)
            nodes_lose(n, i);
    if (n->channel)
        n->channel->transport->ops->channel_close(n->channel);
    if (n->reserved)
        staging_unreserve(config_of(n)->staging, n->reserved);
    placement_free(n->placement);
    free(n->peers);
    free(n);
    return NULL;
}

/* ---- links */

int nodes_open_links(struct nodes *n, struct error *e)
{
    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        struct node *node = &n->items[i];
        int r;

        if (i == n->own)
            continue;
        r = ops_of(n)->open(config_of(n)->links, node->address, node->name, n->own < i, &node->link,
                            e);
        if (r < 0)
            return r;
        if (n->expecting)
            ops_of(n)->expect(node->link, 1);
    }
    return 0;
}

bool nodes_are_up(struct nodes *n)
{
    bool up = true;

    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        const struct link *l = n->items[i].link;

        if (i == n->own)
            continue;
        n->peers[i] = l ? ops_of(n)->facts(l)->peer : NULL;
        up = up && n->peers[i];
    }
    return up;
}

/* What one piece of an operation stages, about, unless a larger budget lets it stage more: a chunk
 * of every node's. What bounces counts as under way for a piece's length, and so is within it. */
static uint64_t promise(const struct nodes *n)
{
    uint64_t bytes = UINT64_MAX;

    mul_u64(n->table.chunk_bytes, n->placement->nnodes, &bytes);
    return bytes;
}

int nodes_prepare(struct nodes *n, struct error *e)
{
    const struct comms_config *config = config_of(n);
    const uint64_t bytes = promise(n);

    if (staging_reserve(config->staging, bytes) < 0)
        return error_set(e, ERROR_QUOTA,
                         "join: node %s (%s) has %llu bytes of staging left and a communicator "
                         "takes %llu; raise max_staging there",
                         config->host, config->address,
                         (unsigned long long)staging_left(config->staging),
                         (unsigned long long)bytes);
    n->reserved = bytes;
    if (config->transport->ops->channel_open(config->transport, n->key, &n->channel) < 0)
        return error_set(e, ERROR_NO_MEMORY, "join: node %s (%s): no memory for a channel",
                         config->host, config->address);
    return 0;
}

bool nodes_find_link(const struct nodes *n, const struct link *l, uint32_t *ret)
{
    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        if (n->items[i].link == l) {
            *ret = i;
            return true;
        }
    }
    return false;
}

void nodes_lose(struct nodes *n, uint32_t node)
{
    struct link *l = steal(&n->items[node].link);

    n->peers[node] = NULL;
    if (n->expecting)
        ops_of(n)->expect(l, -1);
    ops_of(n)->unref(l);
}

bool nodes_matter(const struct nodes *n, uint32_t node)
{
    for (uint32_t i = 0; i < placement_count(n->placement, node); i++)
        if (n->comm->seats[placement_rank(n->placement, node, i)].state == SEAT_REMOTE)
            return true;
    return false;
}

void node_send(const struct nodes *n, uint32_t node, const struct peer_message *m)
{
    if (n->items[node].link)
        ops_of(n)->send(n->items[node].link, m);
}

struct link_message nodes_encode(const struct nodes *n, const struct peer_message *m)
{
    return ops_of(n)->encode(config_of(n)->links, m);
}

struct link_message nodes_encode_payload(const struct nodes *n, const struct peer_agree *agree)
{
    return ops_of(n)->encode_payload(config_of(n)->links, agree);
}

void node_send_encoded(const struct nodes *n, uint32_t node, const struct link_message *m)
{
    if (n->items[node].link)
        ops_of(n)->send_encoded(n->items[node].link, m);
}

void nodes_send(const struct nodes *n, const struct peer_message *m)
{
    const struct link_message encoded = nodes_encode(n, m);

    for (uint32_t i = 0; i < n->placement->nnodes; i++)
        node_send_encoded(n, i, &encoded);
}

void nodes_expect(struct nodes *n)
{
    const bool unfinished = n->comm->state == COMM_FORMING || n->comm->nops > 0;

    if (n->expecting == unfinished)
        return;
    n->expecting = unfinished;
    for (uint32_t i = 0; i < n->placement->nnodes; i++)
        if (n->items[i].link)
            ops_of(n)->expect(n->items[i].link, unfinished ? 1 : -1);
}

/* ---- words */

void text_add_node(struct text *t, const struct node *node)
{
    text_add(t, "node %s (%s)", node->host, node->address);
}

void text_add_node_ranks(struct text *t, const struct nodes *n, uint32_t node)
{
    const struct placement *p = n->placement;

    text_add_ranks(t, p->ranks + p->first[node], placement_count(p, node));
    text_add(t, " (on %s)", n->items[node].host);
}

void error_add_node(struct error *e, const struct nodes *n, uint32_t node)
{
    for (uint32_t i = 0; i < placement_count(n->placement, node); i++)
        error_add_rank(e, placement_rank(n->placement, node, i));
}
