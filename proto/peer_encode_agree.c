/* Agreements as they travel. */
#include <errno.h>
#include <string.h>

#include "proto/field.h"
#include "proto/peer_wire.h"

void peer_give_part(const struct peer_part *part, struct given_part *g, bool *fits)
{
    Ruccl__Peer__V1__Part *m = &g->part;

    ruccl__peer__v1__part__init(m);
    m->rank = part->rank;
    m->kind = part->d.kind;
    m->op = part->d.op;
    m->dtype = part->d.dtype;
    m->n_axes = part->d.shape.naxes;
    m->axes = (uint64_t *)part->d.shape.axes;
    if (part->d.shape.naxes > AXES_MAX)
        *fits = false;
    m->root = part->d.root;
    m->budget = part->d.budget;
    m->makes_persistent = part->makes_persistent;
    m->starts = part->starts;
    if (!part->rejection)
        return;
    ruccl__v1__error__init(&g->rejection);
    m->rejection = codec_give_error(part->rejection, &g->rejection);
}

static void give_parts(const struct peer_agree *agree, struct giving *g, Ruccl__Peer__V1__Agree *m)
{
    m->parts = peer_give_list(g, agree->nparts, RANKS_MAX, sizeof(struct given_part));
    m->n_parts = m->parts ? agree->nparts : 0;
    for (size_t i = 0; i < m->n_parts; i++)
        peer_give_part(&agree->parts[i], container_of(m->parts[i], struct given_part, part),
                       &g->fits);
}

static void give_rows(const struct peer_agree *agree, struct giving *g, Ruccl__Peer__V1__Agree *m)
{
    m->rows = peer_give_list(g, agree->nrows, RANKS_MAX, sizeof(*m->rows[0]));
    m->n_rows = m->rows ? agree->nrows : 0;
    for (size_t i = 0; i < m->n_rows; i++) {
        const struct peer_rows *rows = &agree->rows[i];

        ruccl__peer__v1__rows__init(m->rows[i]);
        m->rows[i]->rank = rows->rank;
        m->rows[i]->n_counts = codec_give_ncounts(rows->ncounts, &g->fits);
        m->rows[i]->counts = (uint64_t *)rows->counts;
        m->rows[i]->n_expected = codec_give_ncounts(rows->nexpected, &g->fits);
        m->rows[i]->expected = (uint64_t *)rows->expected;
        m->rows[i]->out_rows = rows->out_rows;
    }
}

static void give_colors(const struct peer_agree *agree, struct giving *g, Ruccl__Peer__V1__Agree *m)
{
    m->colors = peer_give_list(g, agree->ncolors, RANKS_MAX, sizeof(*m->colors[0]));
    m->n_colors = m->colors ? agree->ncolors : 0;
    for (size_t i = 0; i < m->n_colors; i++) {
        ruccl__peer__v1__color__init(m->colors[i]);
        m->colors[i]->rank = agree->colors[i].rank;
        m->colors[i]->color = agree->colors[i].color;
        m->colors[i]->key = agree->colors[i].key;
    }
}

/* In front of an agreement's body: its tag and length. At its start: what names the operation. At
 * its end: what differs by receiver. */
#define AGREE_HEAD_BYTES  6u
#define AGREE_NAMES_BYTES (2u + PEER_KEY_BYTES + 1u + VARINT_BYTES_MAX)
#define AGREE_TAIL_BYTES  (PEER_ENCLOSED_MAX + 16u)

/* Of the message that the body of an agreement is in. Ends at `end`; returns where it begins. */
static uint8_t *put_head(uint8_t *end, size_t len)
{
    uint8_t head[AGREE_HEAD_BYTES] = { MESSAGE_AGREE };
    const size_t n = (size_t)(varint_write(head + 1, len) - head);

    return memcpy(end - n, head, n);
}

/* What is enclosed, at the end of a body. Returns where it ends. */
static uint8_t *put_tail(uint8_t *at, const struct peer_agree *agree)
{
    if (!agree->enclosed)
        return at;
    *at++ = AGREE_ENCLOSED;
    *at++ = true;
    if (!agree->payload_bytes)
        return at;
    *at++ = AGREE_PAYLOAD;
    at = varint_write(at, agree->payload_bytes);
    return (uint8_t *)memcpy(at, agree->payload, agree->payload_bytes) + agree->payload_bytes;
}

int64_t peer_codec_encode_payload(struct peer_codec *c, const struct peer_agree *agree,
                                  const void **ret)
{
    uint8_t *start;
    size_t len;

    if (!c->agree)
        return -EINVAL;
    if (agree->payload_bytes > (agree->enclosed ? PEER_ENCLOSED_MAX : 0))
        return -EMSGSIZE;
    len = (size_t)(put_tail(c->agree + c->agree_bytes, agree) - c->agree);
    start = put_head(c->agree, len);
    len += (size_t)(c->agree - start);
    if (len > PEER_MESSAGE_BYTES)
        return -EMSGSIZE;
    *ret = start;
    return (int64_t)len;
}

/* Room for an agreement, of which `len` bytes stay whoever receives it; NULL: there is none. */
static uint8_t *make_room(struct peer_codec *c, size_t len)
{
    uint8_t *bytes = arena_alloc(&c->encode, AGREE_HEAD_BYTES + len + AGREE_TAIL_BYTES);

    return bytes ? bytes + AGREE_HEAD_BYTES : NULL;
}

int64_t peer_encode_known_agree(struct peer_codec *c, const struct peer_agree *agree,
                                const uint8_t *known, uint32_t len, const void **ret)
{
    uint8_t *at;

    peer_begin_encode(c);
    c->agree = make_room(c, AGREE_NAMES_BYTES + len);
    if (!c->agree)
        return -ENOMEM;
    at = c->agree;
    *at++ = AGREE_KEY;
    *at++ = PEER_KEY_BYTES;
    at = (uint8_t *)memcpy(at, agree->key, PEER_KEY_BYTES) + PEER_KEY_BYTES;
    if (agree->sequence) {
        *at++ = AGREE_SEQUENCE;
        at = varint_write(at, agree->sequence);
    }
    memcpy(at, known, len);
    c->agree_bytes = (size_t)(at - c->agree) + len;
    return peer_codec_encode_payload(c, agree, ret);
}

/* Parts of a message may come in any order: what differs by receiver comes last. */
static int64_t pack_agree(struct peer_codec *c, const struct giving *g,
                          const Ruccl__Peer__V1__Agree *body)
{
    if (c->encode.starved)
        return -ENOMEM;
    if (!g->fits)
        return -EMSGSIZE;
    c->agree_bytes = protobuf_c_message_get_packed_size(&body->base);
    if (c->agree_bytes > PEER_MESSAGE_BYTES)
        return -EMSGSIZE;
    c->agree = make_room(c, c->agree_bytes);
    if (!c->agree)
        return -ENOMEM;
    protobuf_c_message_pack(&body->base, c->agree);
    return 0;
}

/* An agreement, and what its field `verdict` points to. */
struct given_agree {
    Ruccl__Peer__V1__Agree agree;
    Ruccl__V1__Error verdict;
};

/* All but what names the operation, and the payload. */
static void give_agree(const struct peer_agree *agree, struct giving *g, struct given_agree *ret)
{
    Ruccl__Peer__V1__Agree *m = &ret->agree;

    ruccl__peer__v1__agree__init(m);
    m->plan = agree->plan;
    m->piece = agree->piece;
    give_parts(agree, g, m);
    give_rows(agree, g, m);
    give_colors(agree, g, m);
    if (!agree->verdict)
        return;
    ruccl__v1__error__init(&ret->verdict);
    m->verdict = codec_give_error(agree->verdict, &ret->verdict);
}

int64_t peer_encode_agree(struct peer_codec *c, const struct peer_agree *agree, struct giving *g,
                          const void **ret)
{
    struct given_agree given;
    int64_t r;

    give_agree(agree, g, &given);
    given.agree.key = peer_give_key(agree->key);
    given.agree.sequence = agree->sequence;
    r = pack_agree(c, g, &given.agree);
    return r < 0 ? r : peer_codec_encode_payload(c, agree, ret);
}

int64_t peer_encode_gathered(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Gathered body = RUCCL__PEER__V1__GATHERED__INIT;

    body.key = peer_give_key(m->gathered.key);
    body.sequence = m->gathered.sequence;
    body.agrees =
        peer_give_list(g, m->gathered.nagrees, PEER_NODES_MAX, sizeof(struct given_agree));
    body.n_agrees = body.agrees ? m->gathered.nagrees : 0;
    for (size_t i = 0; i < body.n_agrees; i++)
        give_agree(&m->gathered.agrees[i], g,
                   container_of(body.agrees[i], struct given_agree, agree));
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_GATHERED;
    g->message.gathered = &body;
    return peer_pack(g, ret);
}
