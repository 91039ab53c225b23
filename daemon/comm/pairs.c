#include "daemon/comm/pairs.h"

#include "daemon/comm/nodes.h"
#include "daemon/comm/offers.h"
#include "daemon/comm/op.h"

static bool has_part(const struct op *op, uint32_t part)
{
    return op->arrivals[part] || (part == 0 && op->offer);
}

int pairs_find(struct comm *c, uint32_t source, uint32_t destination, uint32_t tag, uint32_t part,
               uint64_t now, struct op **ret)
{
    struct list *list = &c->unmatched[(source * 31 + destination * 7 + tag) % UNMATCHED_LISTS];
    struct op *op;
    int r;

    list_for_each(op, list, unmatched) {
        if (op->source != source || op->destination != destination || op->tag != tag)
            continue;
        if (has_part(op, part))
            break;
        list_remove(&op->unmatched);
        *ret = op;
        return 0;
    }
    r = op_new(c, 0, now, &op);
    if (r < 0)
        return r;
    op->source = source;
    op->destination = destination;
    op->tag = tag;
    list_append(list, &op->unmatched);
    *ret = op;
    return 0;
}

int pairs_arrive(struct member *m, const struct post *post, struct arrival *a, uint64_t now)
{
    struct comm *c = m->comm;
    uint32_t part = post->d.kind == COLLECTIVE_SEND ? 0 : 1;
    uint32_t source = part == 0 ? m->rank : post->peer;
    uint32_t destination = part == 0 ? post->peer : m->rank;
    struct op *op;
    int r;

    if (post->peer >= c->nranks) { /* nobody to be told but the caller */
        op_refuse(a, 0, a->rejection);
        return 0;
    }
    if (c->nodes && c->nodes->placement->nodes[post->peer] != c->nodes->own)
        return part == 0 ? offers_send(c, post, a, now) : offers_receive(c, post, a, now);
    r = pairs_find(c, source, destination, post->tag, part, now, &op);
    if (r < 0)
        return r;
    if (op_arrive(op, part, a, now))
        op_start(op, now);
    return 0;
}
