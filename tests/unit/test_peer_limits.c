#include "tests/unit/unit.h"

#include <float.h>
#include <math.h>

#include "proto/peer.pb-c.h"
#include "tests/peer_wire.h"

typedef Ruccl__Peer__V1__PeerMessage wire_message; /* as it travels, unchecked */

static void *allocate(void *arena, size_t bytes)
{
    return arena_alloc(arena, bytes);
}

static void deallocate(void *arena, void *p)
{
    (void)arena;
    (void)p;
}

static char *text(size_t n)
{
    char *s = take(n + 1);

    return memset(s, 'a', n);
}

/* `n` times the first of a list of messages. */
static void *repeat(void *list, size_t n)
{
    void **all = take(n * sizeof(*all));

    for (size_t i = 0; i < n; i++)
        all[i] = *(void **)list;
    return all;
}

/* X(KIND, kind, field, limit): a string, and the bytes that it may have. */
#define STRING_LIST(X)                                                                             \
    X(HELLO, hello, node, PEER_NODE_BYTES)                                                         \
    X(HELLO, hello, host, PEER_HOST_MAX)                                                           \
    X(HELLO, hello, address, PEER_ADDRESS_MAX)                                                     \
    X(PAYLOAD, payload, transport, PEER_TRANSPORT_MAX)                                             \
    X(PAYLOAD, payload, settings, PEER_SETTINGS_MAX)                                               \
    X(JOIN, join, id, CODEC_ID_MAX)                                                                \
    X(JOIN, join, label, CODEC_NAME_MAX)                                                           \
    X(JOIN, join, algorithm, CODEC_ALGORITHM_MAX)                                                  \
    X(REFUSED, refused, id, CODEC_ID_MAX)                                                          \
    X(WITHDRAW, withdraw, id, CODEC_ID_MAX)                                                        \
    X(FORM, form, id, CODEC_ID_MAX)                                                                \
    X(FORM, form, label, CODEC_NAME_MAX)                                                           \
    X(FORM, form, algorithm, CODEC_ALGORITHM_MAX)                                                  \
    X(READY, ready, id, CODEC_ID_MAX)                                                              \
    X(GO, go, id, CODEC_ID_MAX)

#define LONG_STRING(KIND, kind, field, limit)                                                      \
    static void long_##kind##_##field(wire_message *w, struct peer_message *m)                     \
    {                                                                                              \
        w->kind->field = text((limit) + 1);                                                        \
        m->kind.field = text((limit) + 1);                                                         \
    }
STRING_LIST(LONG_STRING)
#undef LONG_STRING

static void short_node(wire_message *w, struct peer_message *m)
{
    w->hello->node = text(PEER_NODE_BYTES - 1);
    m->hello.node = w->hello->node;
}

static void no_node(wire_message *w, struct peer_message *m)
{
    w->hello->node = text(0);
    m->hello.node = NULL;
}

static void long_payload_address(wire_message *w, struct peer_message *m)
{
    w->payload->address.len = PEER_PAYLOAD_MAX + 1;
    w->payload->address.data = take(PEER_PAYLOAD_MAX + 1);
    m->payload.address_bytes = PEER_PAYLOAD_MAX + 1;
}

static void refused_without_error(wire_message *w, struct peer_message *m)
{
    w->refused->error = NULL;
    m->refused.error.code = ERROR_NONE;
}

static void withdraw_without_error(wire_message *w, struct peer_message *m)
{
    w->withdraw->error->code = ERROR_NONE;
    m->withdraw.error.code = ERROR_NONE;
}

static void fail_without_error(wire_message *w, struct peer_message *m)
{
    w->fail->error = NULL;
    m->fail.error.code = ERROR_NONE;
}

static void offer_without_number(wire_message *w, struct peer_message *m)
{
    w->offer->number = 0;
    m->offer.number = 0;
}

static void accept_without_number(wire_message *w, struct peer_message *m)
{
    w->accept->number = 0;
    m->accept.number = 0;
}

static void axes_of_offer(wire_message *w, struct peer_message *m)
{
    w->offer->part->axes = take((AXES_MAX + 1) * sizeof(uint64_t));
    w->offer->part->n_axes = AXES_MAX + 1;
    m->offer.part.d.shape.naxes = AXES_MAX + 1;
}

/* Spoiled in all ways, one node of a form; the first is asked for first. */
static void spoil_node(wire_message *w, struct peer_message *m, struct peer_node node)
{
    struct peer_node *nodes = take(m->form.nnodes * sizeof(*nodes));

    memcpy(nodes, m->form.nodes, m->form.nnodes * sizeof(*nodes));
    nodes[1] = node;
    m->form.nodes = nodes;
    w->form->nodes[1]->node = (char *)node.node;
    w->form->nodes[1]->host = (char *)node.host;
    w->form->nodes[1]->address = (char *)node.address;
}

static void short_node_of_form(wire_message *w, struct peer_message *m)
{
    spoil_node(w, m, (struct peer_node){ text(PEER_NODE_BYTES - 1), "", "" });
}

static void long_node_of_form(wire_message *w, struct peer_message *m)
{
    spoil_node(w, m, (struct peer_node){ text(PEER_NODE_BYTES + 1), "", "" });
}

static void long_host_of_form(wire_message *w, struct peer_message *m)
{
    spoil_node(w, m, (struct peer_node){ NODE_A, text(PEER_HOST_MAX + 1), "" });
}

static void long_address_of_form(wire_message *w, struct peer_message *m)
{
    spoil_node(w, m, (struct peer_node){ NODE_A, "", text(PEER_ADDRESS_MAX + 1) });
}

static void no_nodes(wire_message *w, struct peer_message *m)
{
    w->form->n_nodes = 0;
    m->form.nnodes = 0;
}

static void many_nodes(wire_message *w, struct peer_message *m)
{
    w->form->nodes = repeat(w->form->nodes, PEER_NODES_MAX + 1);
    w->form->n_nodes = PEER_NODES_MAX + 1;
    m->form = form_of(PEER_NODES_MAX + 1, (struct peer_node){ NODE_A, "", "" });
    m->form.nranks = RANKS_MAX;
}

static void no_ranks(wire_message *w, struct peer_message *m)
{
    w->form->n_node_of_rank = w->form->n_pids = 0;
    m->form.nranks = 0;
}

static void many_ranks(wire_message *w, struct peer_message *m)
{
    uint32_t *zeros = take((RANKS_MAX + 1) * sizeof(*zeros));

    w->form->node_of_rank = w->form->pids = zeros;
    w->form->n_node_of_rank = w->form->n_pids = RANKS_MAX + 1;
    m->form.node_of_rank = m->form.pids = zeros;
    m->form.nranks = RANKS_MAX + 1;
    m->form.nnodes = 1;
}

static void many_rules(wire_message *w, struct peer_message *m)
{
    w->form->rules = repeat(w->form->rules, PEER_RULES_MAX + 1);
    w->form->n_rules = PEER_RULES_MAX + 1;
    m->form.rules = take((PEER_RULES_MAX + 1) * sizeof(*m->form.rules));
    m->form.nrules = PEER_RULES_MAX + 1;
}

static void long_rule(wire_message *w, struct peer_message *m)
{
    struct peer_rule *rule = take(sizeof(*rule));

    w->form->rules[0]->algorithm = text(CODEC_ALGORITHM_MAX + 1);
    rule->algorithm = text(CODEC_ALGORITHM_MAX + 1);
    m->form.rules = rule;
    m->form.nrules = 1;
}

/* Of the sample's five ranks on two nodes. */
static void place(wire_message *w, struct peer_message *m, const uint32_t node_of_rank[5])
{
    uint32_t *copy = take(5 * sizeof(*copy));

    memcpy(copy, node_of_rank, 5 * sizeof(*copy));
    w->form->node_of_rank = copy;
    m->form.node_of_rank = copy;
}

static void node_beyond_the_last(wire_message *w, struct peer_message *m)
{
    place(w, m, (const uint32_t[]){ 0, 1, 0, 1, 2 });
}

static void node_without_ranks(wire_message *w, struct peer_message *m)
{
    place(w, m, (const uint32_t[]){ 0, 0, 0, 0, 0 });
}

static void nodes_out_of_order(wire_message *w, struct peer_message *m)
{
    place(w, m, (const uint32_t[]){ 1, 0, 0, 0, 1 });
}

static void no_chunk(wire_message *w, struct peer_message *m)
{
    w->form->chunk_bytes = 0;
    m->form.chunk_bytes = 0;
}

static void no_depth(wire_message *w, struct peer_message *m)
{
    w->form->depth = 0;
    m->form.depth = 0;
}

static void zero_measure(wire_message *w, struct peer_message *m)
{
    w->form->latency_us = 0;
    m->form.latency_us = 0;
}

static void negative_measure(wire_message *w, struct peer_message *m)
{
    w->form->message_us = -DBL_TRUE_MIN;
    m->form.message_us = -DBL_TRUE_MIN;
}

static void infinite_measure(wire_message *w, struct peer_message *m)
{
    w->form->link_bytes_per_us = HUGE_VAL;
    m->form.link_bytes_per_us = HUGE_VAL;
}

static void measure_that_is_no_number(wire_message *w, struct peer_message *m)
{
    w->form->memory_bytes_per_us = NAN;
    m->form.memory_bytes_per_us = NAN;
}

static void no_parts(wire_message *w, struct peer_message *m)
{
    w->agree->n_parts = 0;
    m->agree.nparts = 0;
}

static void many_parts(wire_message *w, struct peer_message *m)
{
    w->agree->parts = repeat(w->agree->parts, RANKS_MAX + 1);
    w->agree->n_parts = RANKS_MAX + 1;
    m->agree.parts = parts_of(RANKS_MAX + 1, (struct peer_part){ 0 });
    m->agree.nparts = RANKS_MAX + 1;
}

static void many_rows(wire_message *w, struct peer_message *m)
{
    w->agree->rows = repeat(w->agree->rows, RANKS_MAX + 1);
    w->agree->n_rows = RANKS_MAX + 1;
    m->agree.rows = rows_of(RANKS_MAX + 1, (struct peer_rows){ 0 });
    m->agree.nrows = RANKS_MAX + 1;
}

static void many_colors(wire_message *w, struct peer_message *m)
{
    w->agree->colors = repeat(w->agree->colors, RANKS_MAX + 1);
    w->agree->n_colors = RANKS_MAX + 1;
    m->agree.colors = colors_of(RANKS_MAX + 1);
    m->agree.ncolors = RANKS_MAX + 1;
}

static void same_part_twice(wire_message *w, struct peer_message *m)
{
    struct peer_part *parts = parts_of(3, (struct peer_part){ 0 });

    w->agree->parts[2]->rank = w->agree->parts[1]->rank;
    parts[2].rank = parts[1].rank;
    m->agree.parts = parts;
}

static void rows_that_descend(wire_message *w, struct peer_message *m)
{
    struct peer_rows *rows = rows_of(3, (struct peer_rows){ 0 });

    w->agree->rows[2]->rank = 1; /* behind 3 */
    rows[2].rank = 0;
    m->agree.rows = rows;
}

static void same_color_twice(wire_message *w, struct peer_message *m)
{
    struct peer_color *colors = colors_of(3);

    w->agree->colors[2]->rank = w->agree->colors[1]->rank;
    colors[2].rank = colors[1].rank;
    m->agree.colors = colors;
}

static void many_counts(wire_message *w, struct peer_message *m)
{
    uint64_t *zeros = take((RANKS_MAX + 1) * sizeof(*zeros));

    w->agree->rows[0]->counts = zeros;
    w->agree->rows[0]->n_counts = RANKS_MAX + 1;
    m->agree.rows = rows_of(3, (struct peer_rows){ .counts = zeros, .ncounts = RANKS_MAX + 1 });
}

static void many_expected(wire_message *w, struct peer_message *m)
{
    uint64_t *zeros = take((RANKS_MAX + 1) * sizeof(*zeros));

    w->agree->rows[0]->expected = zeros;
    w->agree->rows[0]->n_expected = RANKS_MAX + 1;
    m->agree.rows = rows_of(3, (struct peer_rows){ .expected = zeros, .nexpected = RANKS_MAX + 1 });
}

static void axes_of_part(wire_message *w, struct peer_message *m)
{
    w->agree->parts[0]->axes = take((AXES_MAX + 1) * sizeof(uint64_t));
    w->agree->parts[0]->n_axes = AXES_MAX + 1;
    m->agree.parts = parts_of(3, (struct peer_part){ .d.shape.naxes = AXES_MAX + 1 });
}

static void long_enclosed(wire_message *w, struct peer_message *m)
{
    w->agree->payload.data = take(PEER_ENCLOSED_MAX + 1);
    w->agree->payload.len = PEER_ENCLOSED_MAX + 1;
    m->agree.payload_bytes = PEER_ENCLOSED_MAX + 1;
}

static void payload_not_enclosed(wire_message *w, struct peer_message *m)
{
    w->agree->enclosed = false;
    m->agree.enclosed = false;
}

static void no_gathered(wire_message *w, struct peer_message *m)
{
    w->gathered->n_agrees = 0;
    m->gathered.nagrees = 0;
}

static void many_gathered(wire_message *w, struct peer_message *m)
{
    struct peer_agree *agrees = take((PEER_NODES_MAX + 1) * sizeof(*agrees));
    struct peer_part *parts = parts_of(PEER_NODES_MAX + 1, (struct peer_part){ 0 });

    for (uint32_t i = 0; i <= PEER_NODES_MAX; i++)
        agrees[i] = (struct peer_agree){ .parts = &parts[i], .nparts = 1 };
    w->gathered->agrees = repeat(w->gathered->agrees, PEER_NODES_MAX + 1);
    w->gathered->n_agrees = PEER_NODES_MAX + 1;
    m->gathered.agrees = agrees;
    m->gathered.nagrees = PEER_NODES_MAX + 1;
}

static void same_gathered_twice(wire_message *w, struct peer_message *m)
{
    struct peer_agree *agrees = take(2 * sizeof(*agrees));

    agrees[0] = agrees[1] = m->gathered.agrees[1];
    w->gathered->agrees[0] = w->gathered->agrees[1];
    m->gathered.agrees = agrees;
}

static void gathered_without_parts(wire_message *w, struct peer_message *m)
{
    struct peer_agree *agrees = take(2 * sizeof(*agrees));

    memcpy(agrees, m->gathered.agrees, 2 * sizeof(*agrees));
    agrees[1].nparts = 0;
    w->gathered->agrees[1]->n_parts = 0;
    m->gathered.agrees = agrees;
}

static void many_missing(wire_message *w, struct peer_message *m)
{
    w->missing->ranks = repeat(w->missing->ranks, RANKS_MAX + 1);
    w->missing->n_ranks = RANKS_MAX + 1;
    m->missing.ranks = ranks_of(RANKS_MAX + 1, "");
    m->missing.nranks = RANKS_MAX + 1;
}

static void same_missing_twice(wire_message *w, struct peer_message *m)
{
    struct peer_rank *ranks = ranks_of(2, "");

    w->missing->ranks[1]->rank = w->missing->ranks[0]->rank;
    ranks[1].rank = ranks[0].rank;
    m->missing.ranks = ranks;
}

static void long_last(wire_message *w, struct peer_message *m)
{
    w->missing->ranks[0]->last = text(PEER_TEXT_MAX + 1);
    m->missing.ranks = ranks_of(2, text(PEER_TEXT_MAX + 1));
}

/* What turns the full sample of a kind into one that must neither come nor go. */
static const struct fault {
    enum peer_kind kind;
    void (*spoil)(wire_message *w, struct peer_message *m);
    const char *complaint;
} faults[] = {
#define LONG_STRING(KIND, kind, field, limit) { PEER_##KIND, long_##kind##_##field, #field " is " },
    STRING_LIST(LONG_STRING)
#undef LONG_STRING
        { PEER_HELLO, short_node, "node is not 36 bytes" },
    { PEER_HELLO, no_node, "node is not 36 bytes" },
    { PEER_PAYLOAD, long_payload_address, "1025 are more than 1024" },
    { PEER_REFUSED, refused_without_error, "refused: no error" },
    { PEER_WITHDRAW, withdraw_without_error, "withdraw: no error" },
    { PEER_FAIL, fail_without_error, "fail: no error" },
    { PEER_OFFER, offer_without_number, "offer: number is 0" },
    { PEER_OFFER, axes_of_offer, "9 axes" },
    { PEER_ACCEPT, accept_without_number, "accept: number is 0" },
    { PEER_FORM, short_node_of_form, "node is not 36 bytes" },
    { PEER_FORM, long_node_of_form, "node is not 36 bytes" },
    { PEER_FORM, long_host_of_form, "host is longer than 64" },
    { PEER_FORM, long_address_of_form, "address is longer than 128" },
    { PEER_FORM, no_nodes, "not ordered" },
    { PEER_FORM, many_nodes, "nodes: 4097" },
    { PEER_FORM, no_ranks, "no ranks" },
    { PEER_FORM, many_ranks, "ranks: 4097" },
    { PEER_FORM, many_rules, "rules: 257" },
    { PEER_FORM, long_rule, "algorithm is longer than 23" },
    { PEER_FORM, node_beyond_the_last, "not ordered" },
    { PEER_FORM, node_without_ranks, "not ordered" },
    { PEER_FORM, nodes_out_of_order, "not ordered" },
    { PEER_FORM, no_chunk, "chunk_bytes is 0" },
    { PEER_FORM, no_depth, "depth is 0" },
    { PEER_FORM, zero_measure, "measure" },
    { PEER_FORM, negative_measure, "measure" },
    { PEER_FORM, infinite_measure, "measure" },
    { PEER_FORM, measure_that_is_no_number, "measure" },
    { PEER_AGREE, no_parts, "no parts" },
    { PEER_AGREE, many_parts, "parts: 4097" },
    { PEER_AGREE, many_rows, "rows: 4097" },
    { PEER_AGREE, many_colors, "colors: 4097" },
    { PEER_AGREE, same_part_twice, "parts do not ascend" },
    { PEER_AGREE, rows_that_descend, "rows do not ascend" },
    { PEER_AGREE, same_color_twice, "colors do not ascend" },
    { PEER_AGREE, many_counts, "4097 counts" },
    { PEER_AGREE, many_expected, "expected: 4097 counts" },
    { PEER_AGREE, axes_of_part, "9 axes" },
    { PEER_AGREE, long_enclosed, "8193 are more than 8192" },
    { PEER_AGREE, payload_not_enclosed, "not enclosed" },
    { PEER_GATHERED, no_gathered, "no agreements" },
    { PEER_GATHERED, many_gathered, "agreements: 4097" },
    { PEER_GATHERED, same_gathered_twice, "agreements do not ascend" },
    { PEER_GATHERED, gathered_without_parts, "no parts" },
    { PEER_MISSING, many_missing, "ranks: 4097" },
    { PEER_MISSING, same_missing_twice, "ranks do not ascend" },
    { PEER_MISSING, long_last, "last is longer than 127" },
};

/* The full sample of a kind as it travels, to be changed at will; in `memory`. */
static wire_message *wire_sample(enum peer_kind kind)
{
    ProtobufCAllocator allocator = { allocate, deallocate, &memory };
    struct peer_message m = full_sample(kind);
    size_t len;
    uint8_t *bytes = encoded(&m, &len);
    wire_message *w = ruccl__peer__v1__peer_message__unpack(&allocator, len, bytes);

    assert_non_null(w);
    return w;
}

static void assert_wire_refused(const wire_message *w, const char *complaint)
{
    size_t len = ruccl__peer__v1__peer_message__get_packed_size(w);
    uint8_t *bytes = take(len);

    ruccl__peer__v1__peer_message__pack(w, bytes);
    assert_refused(bytes, len, complaint);
}

TEST(what_breaks_a_limit_is_neither_decoded_nor_encoded)
{
    for (size_t i = 0; i < ARRAY_SIZE(faults); i++) {
        const struct fault *fault = &faults[i];

        forget();

        struct peer_message m = full_sample(fault->kind);
        wire_message *w = wire_sample(fault->kind);
        const void *bytes = NULL;

        fault->spoil(w, &m);
        assert_wire_refused(w, fault->complaint);
        if (peer_codec_encode(codec, &m, &bytes) != -EMSGSIZE)
            fail_msg("encoded in spite of '%s'", fault->complaint);
        assert_null(bytes);
    }
}

/* Of `w`, the bytes that are a key, or of a key's kind; NULL: it has none. */
static ProtobufCBinaryData *secret_of(wire_message *w)
{
    switch (w->body_case) {
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_HELLO:
        return &w->hello->nonce;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_WELCOME:
        return &w->welcome->proof;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_PROOF:
        return &w->proof->proof;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_FORM:
        return &w->form->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_AGREE:
        return &w->agree->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_GATHERED:
        return &w->gathered->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_SETTLED:
        return &w->settled->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_FAIL:
        return &w->fail->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_LEFT:
        return &w->left->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_ASK:
        return &w->ask->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_MISSING:
        return &w->missing->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_OFFER:
        return &w->offer->key;
    case RUCCL__PEER__V1__PEER_MESSAGE__BODY_ACCEPT:
        return &w->accept->key;
    default:
        return NULL;
    }
}

TEST(keys_nonces_and_proofs_of_another_length_are_refused)
{
    uint32_t seen = 0;

    for (enum peer_kind kind = 0; kind < KINDS; kind++) {
        forget();

        wire_message *w = wire_sample(kind);
        ProtobufCBinaryData *secret = secret_of(w);

        if (!secret)
            continue;
        seen++;

        size_t len = secret->len;

        for (size_t n = 0; n <= 2 * len; n++) {
            if (n == len)
                continue;
            *secret = (ProtobufCBinaryData){ n, take(2 * len) };
            assert_wire_refused(w, " bytes but ");
        }
    }
    assert_int_equal(seen, 13);
}

TEST(welcome_without_a_hello_is_refused)
{
    forget();

    wire_message *w = wire_sample(PEER_WELCOME);

    w->welcome->hello = NULL;
    assert_wire_refused(w, "welcome: no hello");
}

TEST(offer_without_a_part_is_refused)
{
    forget();

    wire_message *w = wire_sample(PEER_OFFER);

    w->offer->part = NULL;
    assert_wire_refused(w, "offer: no part");
}

TEST(form_with_more_or_fewer_pids_than_ranks_is_refused)
{
    forget();

    wire_message *w = wire_sample(PEER_FORM);

    w->form->n_pids--;
    assert_wire_refused(w, "form: 4 pids of 5 ranks");
    w->form->pids = take(6 * sizeof(*w->form->pids));
    w->form->n_pids = 6;
    assert_wire_refused(w, "form: 6 pids of 5 ranks");
}

TEST(error_with_ranks_that_do_not_add_up_is_refused)
{
    forget();

    wire_message *w = wire_sample(PEER_AGREE);

    w->agree->parts[2]->rejection->nranks = ERROR_RANKS_MAX - 1;
    assert_wire_refused(w, "ranks listed");
}

TEST(message_without_a_known_body_is_refused)
{
    static const uint8_t later[] = { 0xba, 0x01, 0 }; /* field 23, which is none yet */

    assert_refused("", 0, "says nothing known");
    assert_refused(later, sizeof(later), "says nothing known");
}

TEST(message_over_the_size_limit_is_refused_unread)
{
    uint8_t *zeros = calloc(1, PEER_MESSAGE_BYTES + 1);

    assert_refused(zeros, PEER_MESSAGE_BYTES + 1, "longer than 8388608");
    free(zeros);
}

TEST(decode_may_go_without_an_error_to_word)
{
    struct peer_message m;

    assert_int_equal(peer_codec_decode(codec, "", 0, &m, NULL), -EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_breaks_a_limit_is_neither_decoded_nor_encoded),
        cmocka_unit_test(keys_nonces_and_proofs_of_another_length_are_refused),
        cmocka_unit_test(welcome_without_a_hello_is_refused),
        cmocka_unit_test(offer_without_a_part_is_refused),
        cmocka_unit_test(form_with_more_or_fewer_pids_than_ranks_is_refused),
        cmocka_unit_test(error_with_ranks_that_do_not_add_up_is_refused),
        cmocka_unit_test(message_without_a_known_body_is_refused),
        cmocka_unit_test(message_over_the_size_limit_is_refused_unread),
        cmocka_unit_test(decode_may_go_without_an_error_to_word),
    };

    return cmocka_run_group_tests(tests, peer_setup, peer_teardown);
}
