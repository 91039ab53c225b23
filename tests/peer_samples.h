/*
 * One message or more of every kind between daemons, with least and greatest values, and what a
 * decoded message says as text. For the peer codec's tests and the fuzzer's first inputs.
 */
#ifndef TESTS_PEER_SAMPLES_H
#define TESTS_PEER_SAMPLES_H

#include <float.h>

#include "proto/peer_codec.h"
#include "tests/codec_samples.h"

#define NODE_A        "00000000-0000-4000-8000-00000000000a"
#define NODE_B        "ffffffff-ffff-4fff-bfff-fffffffffffb"
#define HOST_64       X16("host")
#define ADDRESS_128   X16("[fe80::1") /* as long as any, if no address */
#define LAST_127      X16("reduce ") "6, 2.1 s ago..."
#define SETTINGS_1023 X16(NAME_63) "segment=16384 b"
#define LONG_NAME     "twenty-three-characters"

_Static_assert(sizeof(NODE_A) - 1 == PEER_NODE_BYTES, "");
_Static_assert(sizeof(HOST_64) - 1 == PEER_HOST_MAX, "");
_Static_assert(sizeof(ADDRESS_128) - 1 == PEER_ADDRESS_MAX, "");
_Static_assert(sizeof(LAST_127) - 1 == PEER_TEXT_MAX, "");
_Static_assert(sizeof(SETTINGS_1023) - 1 == PEER_SETTINGS_MAX, "");
_Static_assert(sizeof(LONG_NAME) - 1 == PEER_TRANSPORT_MAX, "");
_Static_assert(sizeof(LONG_NAME) - 1 == CODEC_ALGORITHM_MAX, "");

/* `n` bytes of a key, nonce, proof or payload, none like its neighbour. */
static inline void sample_bytes(uint8_t *ret, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = (uint8_t)(0xff - i);
}

static inline const void *sample_payload(void)
{
    static uint8_t bytes[PEER_ENCLOSED_MAX];

    sample_bytes(bytes, sizeof(bytes));
    return bytes;
}

static inline struct peer_hello sample_hello(void)
{
    struct peer_hello h = { .version_min = UINT32_MAX,
                            .version_max = 1,
                            .node = NODE_A,
                            .instance = UINT64_MAX,
                            .ciphers = UINT32_MAX,
                            .host = HOST_64,
                            .address = ADDRESS_128 };

    sample_bytes(h.nonce, sizeof(h.nonce));
    return h;
}

/* `e` is what the part's rejection lies in. */
static inline struct peer_part sample_part(const struct error *e)
{
    struct peer_part p = { .rank = UINT32_MAX,
                           .d = { .kind = COLLECTIVE_ALL_TO_ALL_V,
                                  .op = OPERATOR_XOR,
                                  .dtype = DTYPE_PACKED_U32,
                                  .shape = { .naxes = AXES_MAX },
                                  .root = UINT32_MAX,
                                  .budget = BUDGET_NONE },
                           .makes_persistent = true,
                           .starts = UINT32_MAX,
                           .rejection = e };

    for (uint32_t i = 0; i < AXES_MAX; i++)
        p.d.shape.axes[i] = UINT64_MAX - i;
    return p;
}

static inline struct peer_form sample_form(void)
{
    static const struct peer_node nodes[] = { { NODE_B, HOST_64, ADDRESS_128 },
                                              { NODE_A, "", "" } };
    static const uint32_t node_of_rank[] = { 0, 0, 1, 0, 1 };
    static const uint32_t pids[] = { 1, UINT32_MAX, 0, 7, 8 };
    static const struct peer_rule rules[] = { { COLLECTIVE_ALL_REDUCE, 0, LONG_NAME },
                                              { COLLECTIVE_SPLIT, UINT64_MAX, "" },
                                              { (enum collective_id)UINT32_MAX, 1, "ring" } };
    struct peer_form f = { .id = ID_128,
                           .uid = UINT32_MAX,
                           .label = NAME_63,
                           .algorithm = LONG_NAME,
                           .timeout_us = UINT64_MAX,
                           .nodes = nodes,
                           .nnodes = ARRAY_SIZE(nodes),
                           .node_of_rank = node_of_rank,
                           .pids = pids,
                           .nranks = ARRAY_SIZE(pids),
                           .chunk_bytes = UINT64_MAX,
                           .depth = UINT32_MAX,
                           .latency_us = DBL_MAX,
                           .message_us = DBL_TRUE_MIN,
                           .link_bytes_per_us = 1.5,
                           .memory_bytes_per_us = 3,
                           .rules = rules,
                           .nrules = ARRAY_SIZE(rules),
                           .tree_above = UINT32_MAX };

    sample_bytes(f.key, sizeof(f.key));
    return f;
}

static inline struct peer_agree sample_agree(void)
{
    static struct error error;
    static struct peer_part parts[3];
    static const struct peer_rows rows[] = { { .rank = 0 },
                                             { 3, sample_counts, RANKS_MAX, sample_counts,
                                               RANKS_MAX, UINT64_MAX },
                                             { UINT32_MAX, sample_counts, 1, NULL, 0, 1 } };
    static const struct peer_color colors[] = { { 0, INT32_MIN, INT32_MAX },
                                                { 1, 0, 0 },
                                                { UINT32_MAX, INT32_MAX, INT32_MIN } };
    struct peer_agree a = { .sequence = UINT64_MAX,
                            .plan = UINT64_MAX,
                            .piece = 1ull << 40,
                            .parts = parts,
                            .nparts = ARRAY_SIZE(parts),
                            .verdict = &error,
                            .rows = rows,
                            .nrows = ARRAY_SIZE(rows),
                            .colors = colors,
                            .ncolors = ARRAY_SIZE(colors),
                            .enclosed = true,
                            .payload = sample_payload(),
                            .payload_bytes = PEER_ENCLOSED_MAX };

    error = sample_error();
    parts[1] = (struct peer_part){ .rank = 1, .d = { .kind = COLLECTIVE_BARRIER } };
    parts[2] = sample_part(&error);
    sample_bytes(a.key, sizeof(a.key));
    return a;
}

/* Of two nodes, with this key. */
static inline const struct peer_agree *sample_agrees(const uint8_t key[PEER_KEY_BYTES])
{
    static const struct peer_part nothing;
    static struct peer_part parts[2];
    static struct peer_agree agrees[2];

    agrees[1] = sample_agree();
    agrees[1].enclosed = false;
    agrees[1].payload = NULL;
    agrees[1].payload_bytes = 0;
    parts[0] = agrees[1].parts[1];
    parts[1] = agrees[1].parts[2];
    agrees[1].parts = parts;
    agrees[1].nparts = 2;
    agrees[0] = (struct peer_agree){ .sequence = UINT64_MAX, .parts = &nothing, .nparts = 1 };
    for (uint32_t i = 0; i < 2; i++)
        memcpy(agrees[i].key, key, PEER_KEY_BYTES);
    return agrees;
}

/* Sample i, of increasing i from 0; false behind the last. Of a kind's samples the last says most.
 */
static inline bool sample_peer(uint32_t i, struct peer_message *ret)
{
    static const struct peer_part nothing;
    static const struct peer_rank ranks[] = { { 0, 0, "" }, { UINT32_MAX, UINT32_MAX, LAST_127 } };
    static struct error rejection;
    struct peer_message m = { 0 };

    switch (i) {
    case 0:
        m.kind = PEER_HELLO;
        m.hello.node = NODE_B;
        break;
    case 1:
        m.kind = PEER_HELLO;
        m.hello = sample_hello();
        break;
    case 2:
        m.kind = PEER_WELCOME;
        m.welcome.hello = sample_hello();
        m.welcome.version = UINT32_MAX;
        sample_bytes(m.welcome.proof, PEER_PROOF_BYTES);
        break;
    case 3:
        m.kind = PEER_PROOF;
        sample_bytes(m.proof.proof, PEER_PROOF_BYTES);
        break;
    case 4:
        m.kind = PEER_PAYLOAD;
        break;
    case 5:
        m.kind = PEER_PAYLOAD;
        m.payload.transport = LONG_NAME;
        m.payload.settings = SETTINGS_1023;
        m.payload.address = sample_payload();
        m.payload.address_bytes = PEER_PAYLOAD_MAX;
        break;
    case 6:
        m.kind = PEER_PING;
        break;
    case 7:
        m.kind = PEER_PONG;
        break;
    case 8:
        m.kind = PEER_BYE;
        break;
    case 9:
        m.kind = PEER_BYE;
        m.bye.error = sample_error();
        break;
    case 10:
        m.kind = PEER_JOIN;
        break;
    case 11:
        m.kind = PEER_JOIN;
        m.join.id = ID_128;
        m.join.rank = m.join.nranks = m.join.uid = m.join.pid = UINT32_MAX;
        m.join.label = NAME_63;
        m.join.algorithm = LONG_NAME;
        m.join.timeout_us = UINT64_MAX;
        break;
    case 12:
        m.kind = PEER_REFUSED;
        m.refused.id = ID_128;
        m.refused.rank = PEER_ALL_RANKS;
        m.refused.error = sample_error();
        break;
    case 13:
        m.kind = PEER_WITHDRAW;
        m.withdraw.id = ID_128;
        m.withdraw.error = sample_error();
        break;
    case 14:
        m.kind = PEER_FORM;
        m.form = sample_form();
        break;
    case 15:
        m.kind = PEER_READY;
        break;
    case 16:
        m.kind = PEER_READY;
        m.ready.id = ID_128;
        m.ready.error = sample_error();
        break;
    case 17:
        m.kind = PEER_GO;
        m.go.id = ID_128;
        break;
    case 18:
        m.kind = PEER_AGREE;
        m.agree.parts = &nothing;
        m.agree.nparts = 1;
        break;
    case 19:
        m.kind = PEER_AGREE;
        m.agree.parts = &nothing;
        m.agree.nparts = 1;
        m.agree.enclosed = true; /* nothing */
        break;
    case 20:
        m.kind = PEER_AGREE;
        m.agree = sample_agree();
        break;
    case 21:
        m.kind = PEER_SETTLED;
        break;
    case 22:
        m.kind = PEER_SETTLED;
        sample_bytes(m.settled.key, PEER_KEY_BYTES);
        m.settled.sequence = UINT64_MAX;
        m.settled.error = sample_error();
        break;
    case 23:
        m.kind = PEER_FAIL;
        sample_bytes(m.fail.key, PEER_KEY_BYTES);
        m.fail.error = sample_error();
        break;
    case 24:
        m.kind = PEER_LEFT;
        sample_bytes(m.left.key, PEER_KEY_BYTES);
        m.left.rank = UINT32_MAX;
        m.left.sequence = UINT64_MAX;
        break;
    case 25:
        m.kind = PEER_ASK;
        sample_bytes(m.ask.key, PEER_KEY_BYTES);
        m.ask.sequence = UINT64_MAX;
        break;
    case 26:
        m.kind = PEER_MISSING;
        break;
    case 27:
        m.kind = PEER_MISSING;
        sample_bytes(m.missing.key, PEER_KEY_BYTES);
        m.missing.sequence = UINT64_MAX;
        m.missing.ranks = ranks;
        m.missing.nranks = ARRAY_SIZE(ranks);
        break;
    case 28:
        m.kind = PEER_OFFER;
        m.offer.number = 1;
        break;
    case 29:
        rejection = sample_error();
        m.kind = PEER_OFFER;
        sample_bytes(m.offer.key, PEER_KEY_BYTES);
        m.offer.number = UINT64_MAX;
        m.offer.destination = m.offer.tag = UINT32_MAX;
        m.offer.part = sample_part(&rejection);
        break;
    case 30:
        m.kind = PEER_ACCEPT;
        m.accept.number = 1;
        break;
    case 31:
        m.kind = PEER_ACCEPT;
        sample_bytes(m.accept.key, PEER_KEY_BYTES);
        m.accept.number = UINT64_MAX;
        m.accept.error = sample_error();
        break;
    case 32:
        m.kind = PEER_GATHERED;
        sample_bytes(m.gathered.key, PEER_KEY_BYTES);
        m.gathered.sequence = UINT64_MAX;
        m.gathered.agrees = sample_agrees(m.gathered.key);
        m.gathered.nagrees = 2;
        break;
    default:
        return false;
    }
    *ret = m;
    return true;
}

static inline void say_hello(FILE *f, const struct peer_hello *h)
{
    fprintf(f, "versions %u-%u instance=%" PRIu64 " ciphers=%#x", h->version_min, h->version_max,
            h->instance, h->ciphers);
    say_string(f, "node", h->node);
    say_string(f, "host", h->host);
    say_string(f, "address", h->address);
    say_bytes(f, "nonce", h->nonce, sizeof(h->nonce));
}

static inline void say_form(FILE *f, const struct peer_form *form)
{
    say_bytes(f, "form", form->key, PEER_KEY_BYTES);
    say_string(f, "id", form->id);
    say_string(f, "label", form->label);
    say_string(f, "algorithm", form->algorithm);
    fprintf(f, " uid=%u timeout=%" PRIu64, form->uid, form->timeout_us);
    for (uint32_t i = 0; i < form->nnodes; i++) {
        say_string(f, "\nnode", form->nodes[i].node);
        say_string(f, "host", form->nodes[i].host);
        say_string(f, "address", form->nodes[i].address);
    }
    fprintf(f, "\nranks");
    for (uint32_t i = 0; i < form->nranks; i++)
        fprintf(f, " %u:%u", form->node_of_rank[i], form->pids[i]);
    fprintf(f, "\ntree above %u", form->tree_above);
    fprintf(f, "\nchunk=%" PRIu64 " depth=%u %a %a %a %a", form->chunk_bytes, form->depth,
            form->latency_us, form->message_us, form->link_bytes_per_us, form->memory_bytes_per_us);
    for (uint32_t i = 0; i < form->nrules; i++)
        fprintf(f, "\nrule %u %" PRIu64 " %s", form->rules[i].kind, form->rules[i].min_bytes,
                form->rules[i].algorithm);
}

static inline void say_part(FILE *f, const struct peer_part *p)
{
    fprintf(f, "\npart %u kind=%u op=%u dtype=%u root=%u budget=%" PRIu64 " of %u", p->rank,
            p->d.kind, p->d.op, p->d.dtype, p->d.root, p->d.budget, p->d.nranks);
    fprintf(f, " makes=%d starts=%u axes=[", p->makes_persistent, p->starts);
    for (uint32_t i = 0; i < p->d.shape.naxes; i++)
        fprintf(f, " %" PRIu64, p->d.shape.axes[i]);
    fprintf(f, "]");
    if (p->rejection)
        say_error(f, p->rejection);
}

static inline void say_agree(FILE *f, const struct peer_agree *a)
{
    say_bytes(f, "agree", a->key, PEER_KEY_BYTES);
    fprintf(f, " sequence=%" PRIu64 " plan=%" PRIu64, a->sequence, a->plan);
    for (uint32_t i = 0; i < a->nparts; i++)
        say_part(f, &a->parts[i]);
    if (a->verdict)
        say_error(f, a->verdict);
    for (uint32_t i = 0; i < a->nrows; i++) {
        fprintf(f, "\nrows %u out=%" PRIu64, a->rows[i].rank, a->rows[i].out_rows);
        say_counts(f, a->rows[i].counts, a->rows[i].ncounts);
        say_counts(f, a->rows[i].expected, a->rows[i].nexpected);
    }
    for (uint32_t i = 0; i < a->ncolors; i++)
        fprintf(f, "\ncolor %u %d %d", a->colors[i].rank, a->colors[i].color, a->colors[i].key);
    fprintf(f, "\nenclosed=%d", a->enclosed);
    say_bytes(f, "payload", a->payload, a->payload_bytes);
}

/* Every field that a message of its kind has. */
static inline void say_peer(FILE *f, const struct peer_message *m)
{
    fprintf(f, "%d ", m->kind);
    switch (m->kind) {
    case PEER_HELLO:
        say_hello(f, &m->hello);
        break;
    case PEER_WELCOME:
        say_hello(f, &m->welcome.hello);
        fprintf(f, " version=%u", m->welcome.version);
        say_bytes(f, "proof", m->welcome.proof, PEER_PROOF_BYTES);
        break;
    case PEER_PROOF:
        say_bytes(f, "proof", m->proof.proof, PEER_PROOF_BYTES);
        break;
    case PEER_PAYLOAD:
        say_string(f, "transport", m->payload.transport);
        say_string(f, "settings", m->payload.settings);
        say_bytes(f, "address", m->payload.address, m->payload.address_bytes);
        break;
    case PEER_PING:
    case PEER_PONG:
        break;
    case PEER_BYE:
        say_error(f, &m->bye.error);
        break;
    case PEER_JOIN:
        say_string(f, "id", m->join.id);
        say_string(f, "label", m->join.label);
        say_string(f, "algorithm", m->join.algorithm);
        fprintf(f, " %u of %u uid=%u pid=%u timeout=%" PRIu64, m->join.rank, m->join.nranks,
                m->join.uid, m->join.pid, m->join.timeout_us);
        break;
    case PEER_REFUSED:
        say_string(f, "id", m->refused.id);
        fprintf(f, " %u", m->refused.rank);
        say_error(f, &m->refused.error);
        break;
    case PEER_WITHDRAW:
        say_string(f, "id", m->withdraw.id);
        say_error(f, &m->withdraw.error);
        break;
    case PEER_FORM:
        say_form(f, &m->form);
        break;
    case PEER_READY:
        say_string(f, "id", m->ready.id);
        say_error(f, &m->ready.error);
        break;
    case PEER_GO:
        say_string(f, "id", m->go.id);
        break;
    case PEER_AGREE:
        say_agree(f, &m->agree);
        break;
    case PEER_SETTLED:
        say_bytes(f, "settled", m->settled.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64, m->settled.sequence);
        say_error(f, &m->settled.error);
        break;
    case PEER_FAIL:
        say_bytes(f, "fail", m->fail.key, PEER_KEY_BYTES);
        say_error(f, &m->fail.error);
        break;
    case PEER_GATHERED:
        say_bytes(f, "gathered", m->gathered.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64, m->gathered.sequence);
        for (uint32_t i = 0; i < m->gathered.nagrees; i++)
            say_agree(f, &m->gathered.agrees[i]);
        break;
    case PEER_LEFT:
        say_bytes(f, "left", m->left.key, PEER_KEY_BYTES);
        fprintf(f, " %u %" PRIu64, m->left.rank, m->left.sequence);
        break;
    case PEER_ASK:
        say_bytes(f, "ask", m->ask.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64, m->ask.sequence);
        break;
    case PEER_MISSING:
        say_bytes(f, "missing", m->missing.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64, m->missing.sequence);
        for (uint32_t i = 0; i < m->missing.nranks; i++) {
            fprintf(f, "\n%u:%u", m->missing.ranks[i].rank, m->missing.ranks[i].pid);
            say_string(f, "last", m->missing.ranks[i].last);
        }
        break;
    case PEER_OFFER:
        say_bytes(f, "offer", m->offer.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64 " to %u tag=%u", m->offer.number, m->offer.destination,
                m->offer.tag);
        say_part(f, &m->offer.part);
        break;
    case PEER_ACCEPT:
        say_bytes(f, "accept", m->accept.key, PEER_KEY_BYTES);
        fprintf(f, " %" PRIu64, m->accept.number);
        say_error(f, &m->accept.error);
        break;
    }
}

#endif
