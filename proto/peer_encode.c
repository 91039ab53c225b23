#include <errno.h>
#include <string.h>

#include "proto/peer_wire.h"

void peer_begin_encode(struct peer_codec *c)
{
    arena_reset(&c->encode, peer_memory_more(PEER_MESSAGE_BYTES));
    c->agree = NULL;
}

int64_t peer_pack(struct giving *g, const void **ret)
{
    const ProtobufCMessage *m = &g->message.base;

    if (g->arena->starved)
        return -ENOMEM;
    if (!g->fits)
        return -EMSGSIZE;

    size_t len = protobuf_c_message_get_packed_size(m);
    if (len > PEER_MESSAGE_BYTES)
        return -EMSGSIZE;

    uint8_t *bytes = arena_alloc(g->arena, len);
    if (!bytes)
        return -ENOMEM;
    *ret = bytes;
    return (int64_t)protobuf_c_message_pack(m, bytes);
}

ProtobufCBinaryData peer_give_bytes(const void *bytes, uint32_t len, uint32_t max, bool *fits)
{
    if (len > max)
        *fits = false;
    return (ProtobufCBinaryData){ len, (uint8_t *)bytes };
}

ProtobufCBinaryData peer_give_key(const uint8_t key[PEER_KEY_BYTES])
{
    return (ProtobufCBinaryData){ PEER_KEY_BYTES, (uint8_t *)key };
}

void *peer_give_list(struct giving *g, uint32_t n, uint32_t max, size_t bytes)
{
    if (n > max) {
        g->fits = false;
        return NULL;
    }

    void **list = arena_alloc(g->arena, n * sizeof(*list));
    uint8_t *messages = arena_alloc(g->arena, n * bytes);

    if (!list || !messages) {
        g->fits = false;
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++)
        list[i] = messages + i * bytes;
    return list;
}

static char *give_id(const char *s, bool *fits)
{
    return codec_give_string(s, CODEC_ID_MAX, fits);
}

static char *give_label(const char *s, bool *fits)
{
    return codec_give_string(s, CODEC_NAME_MAX, fits);
}

static char *give_algorithm(const char *s, bool *fits)
{
    return codec_give_string(s, CODEC_ALGORITHM_MAX, fits);
}

static char *give_node(const char *s, bool *fits)
{
    if (!s || strnlen(s, PEER_NODE_BYTES) < PEER_NODE_BYTES)
        *fits = false;
    return codec_give_string(s, PEER_NODE_BYTES, fits);
}

static char *give_host(const char *s, bool *fits)
{
    return codec_give_string(s, PEER_HOST_MAX, fits);
}

static char *give_address(const char *s, bool *fits)
{
    return codec_give_string(s, PEER_ADDRESS_MAX, fits);
}

/* ------------------------------------------------ the link */

static void give_hello(const struct peer_hello *hello, Ruccl__Peer__V1__Hello *m, bool *fits)
{
    ruccl__peer__v1__hello__init(m);
    m->version_min = hello->version_min;
    m->version_max = hello->version_max;
    m->node = give_node(hello->node, fits);
    m->instance = hello->instance;
    m->ciphers = hello->ciphers;
    m->nonce = (ProtobufCBinaryData){ PEER_NONCE_BYTES, (uint8_t *)hello->nonce };
    m->host = give_host(hello->host, fits);
    m->address = give_address(hello->address, fits);
}

static int64_t encode_hello(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Hello body;

    give_hello(&m->hello, &body, &g->fits);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_HELLO;
    g->message.hello = &body;
    return peer_pack(g, ret);
}

static int64_t encode_welcome(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Welcome body = RUCCL__PEER__V1__WELCOME__INIT;
    Ruccl__Peer__V1__Hello hello;

    give_hello(&m->welcome.hello, &hello, &g->fits);
    body.hello = &hello;
    body.version = m->welcome.version;
    body.proof = (ProtobufCBinaryData){ PEER_PROOF_BYTES, (uint8_t *)m->welcome.proof };
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_WELCOME;
    g->message.welcome = &body;
    return peer_pack(g, ret);
}

static int64_t encode_proof(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Proof body = RUCCL__PEER__V1__PROOF__INIT;

    body.proof = (ProtobufCBinaryData){ PEER_PROOF_BYTES, (uint8_t *)m->proof.proof };
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_PROOF;
    g->message.proof = &body;
    return peer_pack(g, ret);
}

static int64_t encode_payload(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Payload body = RUCCL__PEER__V1__PAYLOAD__INIT;

    body.transport = codec_give_string(m->payload.transport, PEER_TRANSPORT_MAX, &g->fits);
    body.settings = codec_give_string(m->payload.settings, PEER_SETTINGS_MAX, &g->fits);
    body.address =
        peer_give_bytes(m->payload.address, m->payload.address_bytes, PEER_PAYLOAD_MAX, &g->fits);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_PAYLOAD;
    g->message.payload = &body;
    return peer_pack(g, ret);
}

static int64_t encode_ping(struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Ping body = RUCCL__PEER__V1__PING__INIT;

    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_PING;
    g->message.ping = &body;
    return peer_pack(g, ret);
}

static int64_t encode_pong(struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Pong body = RUCCL__PEER__V1__PONG__INIT;

    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_PONG;
    g->message.pong = &body;
    return peer_pack(g, ret);
}

static int64_t encode_bye(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Bye body = RUCCL__PEER__V1__BYE__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.error = codec_give_error(&m->bye.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_BYE;
    g->message.bye = &body;
    return peer_pack(g, ret);
}

/* ------------------------------------------------ rendezvous */

static int64_t encode_join(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Join body = RUCCL__PEER__V1__JOIN__INIT;

    body.id = give_id(m->join.id, &g->fits);
    body.rank = m->join.rank;
    body.nranks = m->join.nranks;
    body.uid = m->join.uid;
    body.pid = m->join.pid;
    body.label = give_label(m->join.label, &g->fits);
    body.algorithm = give_algorithm(m->join.algorithm, &g->fits);
    body.timeout_us = m->join.timeout_us;
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_JOIN;
    g->message.join = &body;
    return peer_pack(g, ret);
}

static int64_t encode_refused(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Refused body = RUCCL__PEER__V1__REFUSED__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.id = give_id(m->refused.id, &g->fits);
    body.rank = m->refused.rank;
    body.error = codec_give_error(&m->refused.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_REFUSED;
    g->message.refused = &body;
    return peer_pack(g, ret);
}

static int64_t encode_withdraw(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Withdraw body = RUCCL__PEER__V1__WITHDRAW__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.id = give_id(m->withdraw.id, &g->fits);
    body.error = codec_give_error(&m->withdraw.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_WITHDRAW;
    g->message.withdraw = &body;
    return peer_pack(g, ret);
}

static void give_nodes(const struct peer_form *form, struct giving *g, Ruccl__Peer__V1__Form *m)
{
    m->nodes = peer_give_list(g, form->nnodes, PEER_NODES_MAX, sizeof(*m->nodes[0]));
    m->n_nodes = m->nodes ? form->nnodes : 0;
    for (size_t i = 0; i < m->n_nodes; i++) {
        ruccl__peer__v1__node__init(m->nodes[i]);
        m->nodes[i]->node = give_node(form->nodes[i].node, &g->fits);
        m->nodes[i]->host = give_host(form->nodes[i].host, &g->fits);
        m->nodes[i]->address = give_address(form->nodes[i].address, &g->fits);
    }
}

static void give_rules(const struct peer_form *form, struct giving *g, Ruccl__Peer__V1__Form *m)
{
    m->rules = peer_give_list(g, form->nrules, PEER_RULES_MAX, sizeof(*m->rules[0]));
    m->n_rules = m->rules ? form->nrules : 0;
    for (size_t i = 0; i < m->n_rules; i++) {
        ruccl__peer__v1__rule__init(m->rules[i]);
        m->rules[i]->kind = form->rules[i].kind;
        m->rules[i]->min_bytes = form->rules[i].min_bytes;
        m->rules[i]->algorithm = give_algorithm(form->rules[i].algorithm, &g->fits);
    }
}

static int64_t encode_form(const struct peer_form *form, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Form body = RUCCL__PEER__V1__FORM__INIT;

    body.id = give_id(form->id, &g->fits);
    body.key = peer_give_key(form->key);
    body.uid = form->uid;
    body.label = give_label(form->label, &g->fits);
    body.algorithm = give_algorithm(form->algorithm, &g->fits);
    body.timeout_us = form->timeout_us;
    give_nodes(form, g, &body);
    body.n_node_of_rank = body.n_pids = codec_give_ncounts(form->nranks, &g->fits);
    body.node_of_rank = (uint32_t *)form->node_of_rank;
    body.pids = (uint32_t *)form->pids;
    body.chunk_bytes = form->chunk_bytes;
    body.depth = form->depth;
    body.latency_us = form->latency_us;
    body.message_us = form->message_us;
    body.link_bytes_per_us = form->link_bytes_per_us;
    body.memory_bytes_per_us = form->memory_bytes_per_us;
    give_rules(form, g, &body);
    body.tree_above = form->tree_above;
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_FORM;
    g->message.form = &body;
    return peer_pack(g, ret);
}

static int64_t encode_ready(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Ready body = RUCCL__PEER__V1__READY__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.id = give_id(m->ready.id, &g->fits);
    body.error = codec_give_error(&m->ready.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_READY;
    g->message.ready = &body;
    return peer_pack(g, ret);
}

static int64_t encode_go(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Go body = RUCCL__PEER__V1__GO__INIT;

    body.id = give_id(m->go.id, &g->fits);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_GO;
    g->message.go = &body;
    return peer_pack(g, ret);
}

/* ------------------------------------------------ life */

static int64_t encode_settled(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Settled body = RUCCL__PEER__V1__SETTLED__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.key = peer_give_key(m->settled.key);
    body.sequence = m->settled.sequence;
    body.error = codec_give_error(&m->settled.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_SETTLED;
    g->message.settled = &body;
    return peer_pack(g, ret);
}

static int64_t encode_fail(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Fail body = RUCCL__PEER__V1__FAIL__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.key = peer_give_key(m->fail.key);
    body.error = codec_give_error(&m->fail.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_FAIL;
    g->message.fail = &body;
    return peer_pack(g, ret);
}

static int64_t encode_left(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Left body = RUCCL__PEER__V1__LEFT__INIT;

    body.key = peer_give_key(m->left.key);
    body.rank = m->left.rank;
    body.sequence = m->left.sequence;
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_LEFT;
    g->message.left = &body;
    return peer_pack(g, ret);
}

static int64_t encode_ask(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Ask body = RUCCL__PEER__V1__ASK__INIT;

    body.key = peer_give_key(m->ask.key);
    body.sequence = m->ask.sequence;
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_ASK;
    g->message.ask = &body;
    return peer_pack(g, ret);
}

static int64_t encode_missing(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Missing body = RUCCL__PEER__V1__MISSING__INIT;

    body.key = peer_give_key(m->missing.key);
    body.sequence = m->missing.sequence;
    body.ranks = peer_give_list(g, m->missing.nranks, RANKS_MAX, sizeof(*body.ranks[0]));
    body.n_ranks = body.ranks ? m->missing.nranks : 0;
    for (size_t i = 0; i < body.n_ranks; i++) {
        const struct peer_rank *rank = &m->missing.ranks[i];

        ruccl__peer__v1__rank__init(body.ranks[i]);
        body.ranks[i]->rank = rank->rank;
        body.ranks[i]->pid = rank->pid;
        body.ranks[i]->last = codec_give_string(rank->last, PEER_TEXT_MAX, &g->fits);
    }
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_MISSING;
    g->message.missing = &body;
    return peer_pack(g, ret);
}

static int64_t encode_offer(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Offer body = RUCCL__PEER__V1__OFFER__INIT;
    struct given_part part;

    body.key = peer_give_key(m->offer.key);
    body.number = m->offer.number;
    body.destination = m->offer.destination;
    body.tag = m->offer.tag;
    peer_give_part(&m->offer.part, &part, &g->fits);
    body.part = &part.part;
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_OFFER;
    g->message.offer = &body;
    return peer_pack(g, ret);
}

static int64_t encode_accept(const struct peer_message *m, struct giving *g, const void **ret)
{
    Ruccl__Peer__V1__Accept body = RUCCL__PEER__V1__ACCEPT__INIT;
    Ruccl__V1__Error error = RUCCL__V1__ERROR__INIT;

    body.key = peer_give_key(m->accept.key);
    body.number = m->accept.number;
    body.error = codec_give_error(&m->accept.error, &error);
    g->message.body_case = RUCCL__PEER__V1__PEER_MESSAGE__BODY_ACCEPT;
    g->message.accept = &body;
    return peer_pack(g, ret);
}

/* ------------------------------------------------ every kind */

int64_t peer_codec_encode(struct peer_codec *c, const struct peer_message *m, const void **ret)
{
    struct giving g = { .arena = &c->encode, .fits = !peer_objection(m) };

    ruccl__peer__v1__peer_message__init(&g.message);
    peer_begin_encode(c);
    switch (m->kind) {
    case PEER_HELLO:
        return encode_hello(m, &g, ret);
    case PEER_WELCOME:
        return encode_welcome(m, &g, ret);
    case PEER_PROOF:
        return encode_proof(m, &g, ret);
    case PEER_PAYLOAD:
        return encode_payload(m, &g, ret);
    case PEER_PING:
        return encode_ping(&g, ret);
    case PEER_PONG:
        return encode_pong(&g, ret);
    case PEER_BYE:
        return encode_bye(m, &g, ret);
    case PEER_JOIN:
        return encode_join(m, &g, ret);
    case PEER_REFUSED:
        return encode_refused(m, &g, ret);
    case PEER_WITHDRAW:
        return encode_withdraw(m, &g, ret);
    case PEER_FORM:
        return encode_form(&m->form, &g, ret);
    case PEER_READY:
        return encode_ready(m, &g, ret);
    case PEER_GO:
        return encode_go(m, &g, ret);
    case PEER_AGREE:
        return peer_encode_agree(c, &m->agree, &g, ret);
    case PEER_GATHERED:
        return peer_encode_gathered(m, &g, ret);
    case PEER_SETTLED:
        return encode_settled(m, &g, ret);
    case PEER_FAIL:
        return encode_fail(m, &g, ret);
    case PEER_LEFT:
        return encode_left(m, &g, ret);
    case PEER_ASK:
        return encode_ask(m, &g, ret);
    case PEER_MISSING:
        return encode_missing(m, &g, ret);
    case PEER_OFFER:
        return encode_offer(m, &g, ret);
    case PEER_ACCEPT:
        return encode_accept(m, &g, ret);
    }
    return -EINVAL;
}
