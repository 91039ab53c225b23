#include <errno.h>
#include <string.h>

#include "proto/peer_wire.h"

static void take_key(struct codec *c, ProtobufCBinaryData m, uint8_t ret[PEER_KEY_BYTES])
{
    codec_take_bytes(c, m, PEER_KEY_BYTES, "key", ret);
}

static uint32_t take_length(struct codec *c, size_t n, uint32_t max, const char *what)
{
    if (n <= max)
        return (uint32_t)n;
    codec_complain(c, "%s: %zu are more than %u", what, n, max);
    return 0;
}

static const char *take_id(struct codec *c, char *s)
{
    return codec_take_string(c, s, CODEC_ID_MAX, "id");
}

static const char *take_algorithm(struct codec *c, char *s)
{
    return codec_take_string(c, s, CODEC_ALGORITHM_MAX, "algorithm");
}

static const char *take_node(struct codec *c, char *s)
{
    if (strnlen(s, PEER_NODE_BYTES + 1) != PEER_NODE_BYTES)
        codec_complain(c, "node is not %u bytes", PEER_NODE_BYTES);
    return codec_take_string(c, s, PEER_NODE_BYTES, "node");
}

static const char *take_host(struct codec *c, char *s)
{
    return codec_take_string(c, s, PEER_HOST_MAX, "host");
}

static const char *take_address(struct codec *c, char *s)
{
    return codec_take_string(c, s, PEER_ADDRESS_MAX, "address");
}

/* NULL for no error, as codec_take_error() says it. */
static const struct error *take_optional_error(struct codec *c, const Ruccl__V1__Error *m)
{
    if (!m || m->code == ERROR_NONE)
        return NULL;

    struct error *e = codec_alloc(c, sizeof(*e));
    if (!e)
        return NULL;
    memset(e, 0, sizeof(*e));
    codec_take_error(c, m, e);
    return e;
}

/* ------------------------------------------------ the link */

static void decode_hello(struct codec *c, const Ruccl__Peer__V1__Hello *m, struct peer_hello *ret)
{
    ret->version_min = m->version_min;
    ret->version_max = m->version_max;
    ret->node = take_node(c, m->node);
    ret->instance = m->instance;
    ret->ciphers = m->ciphers;
    codec_take_bytes(c, m->nonce, PEER_NONCE_BYTES, "nonce", ret->nonce);
    ret->host = take_host(c, m->host);
    ret->address = take_address(c, m->address);
}

static void decode_welcome(struct codec *c, const Ruccl__Peer__V1__Welcome *m,
                           struct peer_message *ret)
{
    if (m->hello)
        decode_hello(c, m->hello, &ret->welcome.hello);
    else
        codec_complain(c, "welcome: no hello");
    ret->welcome.version = m->version;
    codec_take_bytes(c, m->proof, PEER_PROOF_BYTES, "proof", ret->welcome.proof);
}

static void decode_payload(struct codec *c, const Ruccl__Peer__V1__Payload *m,
                           struct peer_message *ret)
{
    ret->payload.transport =
        codec_take_string(c, m->transport, PEER_TRANSPORT_MAX, "payload: transport");
    ret->payload.settings =
        codec_take_string(c, m->settings, PEER_SETTINGS_MAX, "payload: settings");
    ret->payload.address = m->address.data;
    ret->payload.address_bytes =
        take_length(c, m->address.len, PEER_PAYLOAD_MAX, "payload: bytes of address");
}

/* ------------------------------------------------ rendezvous */

static void decode_join(struct codec *c, const Ruccl__Peer__V1__Join *m, struct peer_message *ret)
{
    ret->join.id = take_id(c, m->id);
    ret->join.rank = m->rank;
    ret->join.nranks = m->nranks;
    ret->join.uid = m->uid;
    ret->join.pid = m->pid;
    ret->join.label = codec_take_string(c, m->label, CODEC_NAME_MAX, "label");
    ret->join.algorithm = take_algorithm(c, m->algorithm);
    ret->join.timeout_us = m->timeout_us;
}

static void decode_nodes(struct codec *c, const Ruccl__Peer__V1__Form *m, struct peer_form *ret)
{
    uint32_t n = take_length(c, m->n_nodes, PEER_NODES_MAX, "form: nodes");
    struct peer_node *nodes = codec_alloc(c, n * sizeof(*nodes));

    if (!nodes)
        return;
    for (uint32_t i = 0; i < n; i++)
        nodes[i] = (struct peer_node){ .node = take_node(c, m->nodes[i]->node),
                                       .host = take_host(c, m->nodes[i]->host),
                                       .address = take_address(c, m->nodes[i]->address) };
    ret->nodes = nodes;
    ret->nnodes = n;
}

static void decode_rules(struct codec *c, const Ruccl__Peer__V1__Form *m, struct peer_form *ret)
{
    uint32_t n = take_length(c, m->n_rules, PEER_RULES_MAX, "form: rules");
    struct peer_rule *rules = codec_alloc(c, n * sizeof(*rules));

    if (!rules)
        return;
    for (uint32_t i = 0; i < n; i++)
        rules[i] = (struct peer_rule){ .kind = (enum collective_id)m->rules[i]->kind,
                                       .min_bytes = m->rules[i]->min_bytes,
                                       .algorithm = take_algorithm(c, m->rules[i]->algorithm) };
    ret->rules = rules;
    ret->nrules = n;
}

static void decode_form(struct codec *c, const Ruccl__Peer__V1__Form *m, struct peer_form *ret)
{
    ret->id = take_id(c, m->id);
    take_key(c, m->key, ret->key);
    ret->uid = m->uid;
    ret->label = codec_take_string(c, m->label, CODEC_NAME_MAX, "label");
    ret->algorithm = take_algorithm(c, m->algorithm);
    ret->timeout_us = m->timeout_us;
    decode_nodes(c, m, ret);
    ret->node_of_rank = m->node_of_rank;
    ret->pids = m->pids;
    ret->nranks = take_length(c, m->n_node_of_rank, RANKS_MAX, "form: ranks");
    if (m->n_pids != m->n_node_of_rank)
        codec_complain(c, "form: %zu pids of %zu ranks", m->n_pids, m->n_node_of_rank);
    ret->chunk_bytes = m->chunk_bytes;
    ret->depth = m->depth;
    ret->latency_us = m->latency_us;
    ret->message_us = m->message_us;
    ret->link_bytes_per_us = m->link_bytes_per_us;
    ret->memory_bytes_per_us = m->memory_bytes_per_us;
    decode_rules(c, m, ret);
    ret->tree_above = m->tree_above;
}

/* ------------------------------------------------ life */

static void decode_part(struct codec *c, const Ruccl__Peer__V1__Part *m, struct peer_part *ret)
{
    *ret = (struct peer_part){ .rank = m->rank,
                               .d = { .kind = (enum collective_id)m->kind,
                                      .op = (enum operator_id)m->op,
                                      .dtype = (enum dtype_id)m->dtype,
                                      .root = m->root,
                                      .budget = m->budget },
                               .makes_persistent = m->makes_persistent,
                               .starts = m->starts,
                               .rejection = take_optional_error(c, m->rejection) };
    codec_take_shape(c, m->axes, m->n_axes, "part", &ret->d.shape);
}

static void decode_parts(struct codec *c, const Ruccl__Peer__V1__Agree *m, struct peer_agree *ret)
{
    uint32_t n = take_length(c, m->n_parts, RANKS_MAX, "agree: parts");
    struct peer_part *parts = codec_alloc(c, n * sizeof(*parts));

    if (!parts)
        return;
    for (uint32_t i = 0; i < n; i++)
        decode_part(c, m->parts[i], &parts[i]);
    ret->parts = parts;
    ret->nparts = n;
}

static void decode_rows(struct codec *c, const Ruccl__Peer__V1__Agree *m, struct peer_agree *ret)
{
    uint32_t n = take_length(c, m->n_rows, RANKS_MAX, "agree: rows");
    struct peer_rows *rows = codec_alloc(c, n * sizeof(*rows));

    if (!rows)
        return;
    for (uint32_t i = 0; i < n; i++) {
        const Ruccl__Peer__V1__Rows *r = m->rows[i];

        rows[i] =
            (struct peer_rows){ .rank = r->rank,
                                .counts = r->counts,
                                .ncounts = codec_take_ncounts(c, r->n_counts, "rows"),
                                .expected = r->expected,
                                .nexpected = codec_take_ncounts(c, r->n_expected, "rows: expected"),
                                .out_rows = r->out_rows };
    }
    ret->rows = rows;
    ret->nrows = n;
}

static void decode_colors(struct codec *c, const Ruccl__Peer__V1__Agree *m, struct peer_agree *ret)
{
    uint32_t n = take_length(c, m->n_colors, RANKS_MAX, "agree: colors");
    struct peer_color *colors = codec_alloc(c, n * sizeof(*colors));

    if (!colors)
        return;
    for (uint32_t i = 0; i < n; i++)
        colors[i] =
            (struct peer_color){ m->colors[i]->rank, m->colors[i]->color, m->colors[i]->key };
    ret->colors = colors;
    ret->ncolors = n;
}

/* All but what names the operation, and the payload. */
static void decode_asked(struct codec *c, const Ruccl__Peer__V1__Agree *m, struct peer_agree *ret)
{
    ret->plan = m->plan;
    ret->piece = m->piece;
    decode_parts(c, m, ret);
    ret->verdict = take_optional_error(c, m->verdict);
    decode_rows(c, m, ret);
    decode_colors(c, m, ret);
}

static void decode_agree(struct codec *c, const Ruccl__Peer__V1__Agree *m, struct peer_agree *ret)
{
    take_key(c, m->key, ret->key);
    ret->sequence = m->sequence;
    decode_asked(c, m, ret);
    ret->enclosed = m->enclosed;
    ret->payload = m->payload.data;
    ret->payload_bytes =
        take_length(c, m->payload.len, PEER_ENCLOSED_MAX, "agree: bytes of payload");
}

static void decode_gathered(struct codec *c, const Ruccl__Peer__V1__Gathered *m,
                            struct peer_message *ret)
{
    uint32_t n = take_length(c, m->n_agrees, PEER_NODES_MAX, "gathered: agreements");
    struct peer_agree *agrees = codec_alloc(c, n * sizeof(*agrees));

    take_key(c, m->key, ret->gathered.key);
    ret->gathered.sequence = m->sequence;
    if (!agrees)
        return;
    for (uint32_t i = 0; i < n; i++) {
        agrees[i] = (struct peer_agree){ .sequence = m->sequence };
        memcpy(agrees[i].key, ret->gathered.key, sizeof(agrees[i].key));
        decode_asked(c, m->agrees[i], &agrees[i]);
    }
    ret->gathered.agrees = agrees;
    ret->gathered.nagrees = n;
}

static void decode_missing(struct codec *c, const Ruccl__Peer__V1__Missing *m,
                           struct peer_message *ret)
{
    uint32_t n = take_length(c, m->n_ranks, RANKS_MAX, "missing: ranks");
    struct peer_rank *ranks = codec_alloc(c, n * sizeof(*ranks));

    take_key(c, m->key, ret->missing.key);
    ret->missing.sequence = m->sequence;
    if (!ranks)
        return;
    for (uint32_t i = 0; i < n; i++)
        ranks[i] = (struct peer_rank){ .rank = m->ranks[i]->rank,
                                       .pid = m->ranks[i]->pid,
                                       .last = codec_take_string(c, m->ranks[i]->last,
                                                                 PEER_TEXT_MAX, "missing: last") };
    ret->missing.ranks = ranks;
    ret->missing.nranks = n;
}

static void decode_offer(struct codec *c, const Ruccl__Peer__V1__Offer *m, struct peer_message *ret)
{
    take_key(c, m->key, ret->offer.key);
    ret->offer.number = m->number;
    ret->offer.destination = m->destination;
    ret->offer.tag = m->tag;
    if (m->part)
        decode_part(c, m->part, &ret->offer.part);
    else
        codec_complain(c, "offer: no part");
}

/* ------------------------------------------------ every kind */

static void decode_body(struct codec *c, const Ruccl__Peer__V1__PeerMessage *m,
                        struct peer_message *ret)
{
    switch (m->body_case) {
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_HELLO:
        ret->kind = PEER_HELLO;
        decode_hello(c, m->hello, &ret->hello);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_WELCOME:
        ret->kind = PEER_WELCOME;
        decode_welcome(c, m->welcome, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_PROOF:
        ret->kind = PEER_PROOF;
        codec_take_bytes(c, m->proof->proof, PEER_PROOF_BYTES, "proof", ret->proof.proof);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_PAYLOAD:
        ret->kind = PEER_PAYLOAD;
        decode_payload(c, m->payload, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_PING:
        ret->kind = PEER_PING;
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_PONG:
        ret->kind = PEER_PONG;
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_BYE:
        ret->kind = PEER_BYE;
        codec_take_error(c, m->bye->error, &ret->bye.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_JOIN:
        ret->kind = PEER_JOIN;
        decode_join(c, m->join, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_REFUSED:
        ret->kind = PEER_REFUSED;
        ret->refused.id = take_id(c, m->refused->id);
        ret->refused.rank = m->refused->rank;
        codec_take_error(c, m->refused->error, &ret->refused.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_WITHDRAW:
        ret->kind = PEER_WITHDRAW;
        ret->withdraw.id = take_id(c, m->withdraw->id);
        codec_take_error(c, m->withdraw->error, &ret->withdraw.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_FORM:
        ret->kind = PEER_FORM;
        decode_form(c, m->form, &ret->form);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_READY:
        ret->kind = PEER_READY;
        ret->ready.id = take_id(c, m->ready->id);
        codec_take_error(c, m->ready->error, &ret->ready.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_GO:
        ret->kind = PEER_GO;
        ret->go.id = take_id(c, m->go->id);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_AGREE:
        ret->kind = PEER_AGREE;
        decode_agree(c, m->agree, &ret->agree);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_GATHERED:
        ret->kind = PEER_GATHERED;
        decode_gathered(c, m->gathered, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_SETTLED:
        ret->kind = PEER_SETTLED;
        take_key(c, m->settled->key, ret->settled.key);
        ret->settled.sequence = m->settled->sequence;
        codec_take_error(c, m->settled->error, &ret->settled.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_FAIL:
        ret->kind = PEER_FAIL;
        take_key(c, m->fail->key, ret->fail.key);
        codec_take_error(c, m->fail->error, &ret->fail.error);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_LEFT:
        ret->kind = PEER_LEFT;
        take_key(c, m->left->key, ret->left.key);
        ret->left.rank = m->left->rank;
        ret->left.sequence = m->left->sequence;
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_ASK:
        ret->kind = PEER_ASK;
        take_key(c, m->ask->key, ret->ask.key);
        ret->ask.sequence = m->ask->sequence;
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_MISSING:
        ret->kind = PEER_MISSING;
        decode_missing(c, m->missing, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_OFFER:
        ret->kind = PEER_OFFER;
        decode_offer(c, m->offer, ret);
        return;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_ACCEPT:
        ret->kind = PEER_ACCEPT;
        take_key(c, m->accept->key, ret->accept.key);
        ret->accept.number = m->accept->number;
        codec_take_error(c, m->accept->error, &ret->accept.error);
        return;
    default:
        codec_complain(c, "a peer's message says nothing known");
    }
}

int peer_codec_decode(struct peer_codec *c, const void *bytes, size_t len, struct peer_message *ret,
                      struct error *e)
{
    struct codec *codec = &c->decode;
    struct peer_message message = { 0 };

    const Ruccl__Peer__V1__PeerMessage *m = codec_unpack(
        codec, &ruccl__peer__v1__peer_message__descriptor, bytes, len, peer_memory_more(len), e);
    if (!m)
        return codec->result;
    decode_body(codec, m, &message);
    if (codec->result < 0)
        return codec->result;

    const char *objection = peer_objection(&message);
    if (objection) {
        codec_complain(codec, "%s", objection);
        return codec->result;
    }
    *ret = message;
    return 0;
}
