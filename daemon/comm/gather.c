#include "daemon/comm/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/comm/nodes.h"
#include "daemon/comm/talk.h"
#include "daemon/comm/telling.h"

/* About what one message carries, unless what a single node asks is more. */
#define MESSAGE_BYTES (16u * 1024u)

/* ---- the tree */

struct subtree gather_subtree(uint32_t node, uint32_t nnodes)
{
    const uint32_t lowest = node & -node;

    return (struct subtree){ node, node ? MIN(nnodes, node + lowest) : nnodes };
}

uint32_t gather_parent(uint32_t node)
{
    return node & (node - 1);
}

static struct subtree subtree_of(const struct nodes *n, uint32_t node)
{
    return gather_subtree(node, n->placement->nnodes);
}

static bool is_in(const struct subtree *s, uint32_t node)
{
    return s->first <= node && node < s->end;
}

/* ---- what is sent on */

static void send_down(const struct nodes *n, const struct peer_message *m)
{
    const struct subtree own = subtree_of(n, n->own);
    struct link_message encoded;

    if (own.end == own.first + 1)
        return;
    encoded = nodes_encode(n, m);
    for (uint32_t bit = 1; own.first + bit < own.end; bit <<= 1)
        node_send_encoded(n, own.first + bit, &encoded);
}

static void send_on(const struct nodes *n, const struct peer_message *m)
{
    if (n->own == 0)
        send_down(n, m);
    else
        node_send(n, gather_parent(n->own), m);
}

/* No less than it takes as it travels. */
static size_t size_of(const struct peer_agree *a)
{
    size_t bytes = 64 + (a->verdict ? sizeof(*a->verdict) : 0) + a->ncolors * 24ull;

    for (uint32_t i = 0; i < a->nparts; i++)
        bytes += sizeof(a->parts[i]) + (a->parts[i].rejection ? sizeof(struct error) : 0);
    for (uint32_t i = 0; i < a->nrows; i++)
        bytes += 32 + 8ull * (a->rows[i].ncounts + a->rows[i].nexpected);
    return bytes;
}

/* How many of them go with the first in one message. */
static uint32_t count_fitting(const struct peer_agree *agrees, uint32_t n)
{
    size_t bytes = size_of(&agrees[0]);
    uint32_t i = 1;

    while (i < n && bytes + size_of(&agrees[i]) <= MESSAGE_BYTES)
        bytes += size_of(&agrees[i++]);
    return i;
}

static void send_all_on(const struct op *op, const struct peer_agree *agrees, uint32_t n)
{
    struct peer_message m = { .kind = PEER_GATHERED, .gathered = { .sequence = op->sequence } };

    memcpy(m.gathered.key, op->comm->nodes->key, sizeof(m.gathered.key));
    for (uint32_t i = 0; i < n; i += m.gathered.nagrees) {
        m.gathered.agrees = agrees + i;
        m.gathered.nagrees = count_fitting(agrees + i, n - i);
        send_on(op->comm->nodes, &m);
    }
}

static bool is_whole(const struct op *op, const struct subtree *s)
{
    for (uint32_t i = s->first; i < s->end; i++)
        if (i != op->comm->nodes->own && !op->remotes[i])
            return false;
    return op->told;
}

int gather_pass(struct op *op)
{
    const struct nodes *n = op->comm->nodes;
    const struct subtree s = subtree_of(n, n->own);
    struct peer_agree *agrees;
    struct telling own;
    int r;

    if (!nodes_are_many(n) || op->passed || !is_whole(op, &s))
        return 0;
    agrees = calloc(s.end - s.first, sizeof(*agrees));
    if (!agrees)
        return -ENOMEM;
    r = telling_init(&own, op);
    if (r == 0) {
        agrees[0] = own.agree;
        for (uint32_t i = s.first + 1; i < s.end; i++)
            agrees[i - s.first] = telling_of(op, i);
        send_all_on(op, agrees, s.end - s.first);
        op->passed = true;
    }
    telling_fini(&own);
    free(agrees);
    return r;
}

/* ---- what comes */

/* From a child: only what its own subtree asks. */
static const char *check(const struct comm *c, uint32_t node, const struct peer_message *m)
{
    const struct nodes *n = c->nodes;
    const struct subtree theirs = subtree_of(n, node);
    const bool down = n->own > 0 && node == gather_parent(n->own);

    if (!nodes_are_many(n) || (!down && (node == 0 || gather_parent(node) != n->own)))
        return "agreements that are not its to pass on";
    for (uint32_t i = 0; i < m->gathered.nagrees; i++) {
        const uint32_t rank = m->gathered.agrees[i].parts[0].rank;

        if (rank >= c->nranks || (!down && !is_in(&theirs, n->placement->nodes[rank])))
            return "an agreement of a rank that is not there";
    }
    return NULL;
}

void gather_receive(struct comm *c, uint32_t node, const struct peer_message *m, uint64_t now)
{
    const struct nodes *n = c->nodes;
    const struct subtree own = subtree_of(n, n->own);
    const char *wrong = check(c, node, m);
    const bool down = node < n->own;

    if (wrong) {
        talk_fail_for(c, node, wrong, now);
        return;
    }
    if (down)
        send_down(n, m);
    for (uint32_t i = 0; i < m->gathered.nagrees && c->state != COMM_FAILED; i++) {
        const struct peer_agree *agree = &m->gathered.agrees[i];
        const uint32_t from = n->placement->nodes[agree->parts[0].rank];

        if (!down || !is_in(&own, from))
            talk_hear(c, from, agree, now);
    }
}
