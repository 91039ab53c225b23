#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "proto/peer_wire.h"

int peer_codec_new(struct peer_codec **ret)
{
    _cleanup_(peer_codec_freep) struct peer_codec *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    if (codec_init(&c->decode, PEER_MESSAGE_BYTES, PEER_MEMORY_BYTES) < 0)
        return -ENOMEM;
    if (arena_init(&c->encode, PEER_MEMORY_BYTES) < 0)
        return -ENOMEM;
    *ret = steal(&c);
    return 0;
}

struct peer_codec *peer_codec_free(struct peer_codec *c)
{
    if (!c)
        return NULL;
    codec_fini(&c->decode);
    arena_fini(&c->encode);
    free(c);
    return NULL;
}

static bool is_measure(double v)
{
    return isfinite(v) && v > 0;
}

/* Nodes are numbered as they turn up by rank, and each does. */
static bool nodes_are_ordered(const struct peer_form *f)
{
    uint32_t seen = 0;

    for (uint32_t rank = 0; rank < f->nranks; rank++) {
        if (f->node_of_rank[rank] > seen)
            return false;
        seen += f->node_of_rank[rank] == seen;
    }
    return seen == f->nnodes;
}

static const char *object_to_form(const struct peer_form *f)
{
    if (f->nranks == 0)
        return "form: no ranks";
    if (!nodes_are_ordered(f))
        return "form: nodes are not ordered by lowest rank";
    if (f->chunk_bytes == 0)
        return "form: chunk_bytes is 0";
    if (f->depth == 0)
        return "form: depth is 0";
    if (!is_measure(f->latency_us) || !is_measure(f->message_us) ||
        !is_measure(f->link_bytes_per_us) || !is_measure(f->memory_bytes_per_us))
        return "form: a measure is not finite and above 0";
    return NULL;
}

static const char *object_to_agree(const struct peer_agree *a)
{
    if (a->nparts == 0)
        return "agree: no parts";
    for (uint32_t i = 1; i < a->nparts; i++)
        if (a->parts[i].rank <= a->parts[i - 1].rank)
            return "agree: parts do not ascend";
    for (uint32_t i = 1; i < a->nrows; i++)
        if (a->rows[i].rank <= a->rows[i - 1].rank)
            return "agree: rows do not ascend";
    for (uint32_t i = 1; i < a->ncolors; i++)
        if (a->colors[i].rank <= a->colors[i - 1].rank)
            return "agree: colors do not ascend";
    if (a->payload_bytes > 0 && !a->enclosed)
        return "agree: payload that is not enclosed";
    return NULL;
}

static const char *object_to_gathered(const struct peer_agree *agrees, uint32_t nagrees)
{
    const char *objection = nagrees == 0 ? "gathered: no agreements" : NULL;

    for (uint32_t i = 0; !objection && i < nagrees; i++) {
        objection = object_to_agree(&agrees[i]);
        if (!objection && i > 0 && agrees[i].parts[0].rank <= agrees[i - 1].parts[0].rank)
            objection = "gathered: agreements do not ascend";
    }
    return objection;
}

static const char *object_to_missing(const struct peer_rank *ranks, uint32_t nranks)
{
    for (uint32_t i = 1; i < nranks; i++)
        if (ranks[i].rank <= ranks[i - 1].rank)
            return "missing: ranks do not ascend";
    return NULL;
}

const char *peer_objection(const struct peer_message *m)
{
    switch (m->kind) {
    case PEER_FORM:
        return object_to_form(&m->form);
    case PEER_AGREE:
        return object_to_agree(&m->agree);
    case PEER_GATHERED:
        return object_to_gathered(m->gathered.agrees, m->gathered.nagrees);
    case PEER_MISSING:
        return object_to_missing(m->missing.ranks, m->missing.nranks);
    case PEER_REFUSED:
        return m->refused.error.code == ERROR_NONE ? "refused: no error" : NULL;
    case PEER_WITHDRAW:
        return m->withdraw.error.code == ERROR_NONE ? "withdraw: no error" : NULL;
    case PEER_FAIL:
        return m->fail.error.code == ERROR_NONE ? "fail: no error" : NULL;
    case PEER_OFFER:
        return m->offer.number == 0 ? "offer: number is 0" : NULL;
    case PEER_ACCEPT:
        return m->accept.number == 0 ? "accept: number is 0" : NULL;
    default:
        return NULL;
    }
}
