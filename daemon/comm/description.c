#include "daemon/comm/description.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>

void description_fini(struct description *d)
{
    placement_free(d->placement);
    free(d->nodes);
    free(d->pids);
    free(d->rules);
}

/* The node of every rank: a guest's number, or that behind the last guest's for our own. */
static int place(const struct comm *c, uint32_t nguests, struct placement **ret)
{
    uint32_t *hosts = calloc(c->nranks, sizeof(*hosts));
    int r;

    if (!hosts)
        return -ENOMEM;
    for (uint32_t i = 0; i < c->nranks; i++)
        hosts[i] = c->seats[i].member ? nguests : c->seats[i].node;
    r = placement_new(c->nranks, hosts, ret);
    free(hosts);
    return r;
}

static struct peer_node describe_node(const struct comm *c, const struct seat *seat,
                                      const struct link_facts *const *guests)
{
    const struct comms_config *own = &c->comms->config;
    const struct link_facts *facts;

    if (seat->member)
        return (struct peer_node){ own->node, own->host, own->address };
    facts = guests[seat->node];
    return (struct peer_node){ facts->node, facts->host, facts->address };
}

static void describe_ranks(struct description *d, const struct comm *c,
                           const struct link_facts *const *guests)
{
    for (uint32_t i = 0; i < d->placement->nnodes; i++)
        d->nodes[i] = describe_node(c, &c->seats[placement_rank(d->placement, i, 0)], guests);
    for (uint32_t i = 0; i < c->nranks; i++) {
        const struct seat *seat = &c->seats[i];

        d->pids[i] = (uint32_t)(seat->member ? seat->member->pid : seat->pid);
    }
    d->form.nodes = d->nodes;
    d->form.nnodes = d->placement->nnodes;
    d->form.node_of_rank = d->placement->nodes;
    d->form.pids = d->pids;
    d->form.nranks = c->nranks;
}

static void describe_table(struct description *d, const struct table *t)
{
    d->form.chunk_bytes = t->chunk_bytes;
    d->form.depth = t->depth;
    d->form.tree_above = t->tree_above;
    d->form.latency_us = t->machine.latency_us;
    d->form.message_us = t->machine.message_us;
    d->form.link_bytes_per_us = t->machine.link_bytes_per_us;
    d->form.memory_bytes_per_us = t->machine.memory_bytes_per_us;
    for (uint32_t i = 0; i < t->nrules; i++)
        d->rules[i] =
            (struct peer_rule){ t->rules[i].kind, t->rules[i].min_bytes, t->rules[i].algorithm };
    d->form.rules = d->rules;
    d->form.nrules = t->nrules;
}

int description_init(struct description *d, const struct comm *c,
                     const struct link_facts *const *guests, uint32_t nguests)
{
    const struct table *t = &c->comms->table;
    int r;

    *d = (struct description){ .form = { .id = c->id,
                                         .uid = (uint32_t)c->uid,
                                         .label = c->label,
                                         .algorithm = c->algorithm,
                                         .timeout_us = c->timeout_us } };
    r = place(c, nguests, &d->placement);
    if (r < 0)
        return r;
    d->nodes = calloc(d->placement->nnodes, sizeof(*d->nodes));
    d->pids = calloc(c->nranks, sizeof(*d->pids));
    d->rules = calloc(MAX(t->nrules, 1), sizeof(*d->rules));
    if (!d->nodes || !d->pids || !d->rules)
        return -ENOMEM;
    describe_ranks(d, c, guests);
    describe_table(d, t);
    randombytes_buf(d->form.key, sizeof(d->form.key));
    return 0;
}
