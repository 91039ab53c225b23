#include "tests/unit/cluster.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transport/local.h"
#include "tests/contract/flaky_device.h"
#include "tests/contract/flaky_gpus.h"
#include "tests/unit/unit.h"

#define QUIET 64u /* turns without a message until all is still */
#define QUEUE 256u

struct letter {
    void *bytes;
    size_t len;
};

/* One end of a link; `from` is whose. */
struct link {
    uint32_t from, to;
    bool up, muted;
    int refs, expects;
    struct transport_peer *peer;
    struct link_facts facts;
    struct letter queue[QUEUE]; /* on their way from here */
    uint32_t first, n;
};

struct node {
    struct comms *comms;
    struct engine *engine;
    struct device *device, *gpus; /* NULL: none */
    struct transport *transport;
    struct staging *staging;
    struct link *links[CLUSTER_NODES];
    bool hidden, muted;
    char uuid[40], host[16], address[24];
};

static struct {
    uint32_t nnodes;
    uint64_t now, seed, delivered;
    struct node nodes[CLUSTER_NODES];
    struct cluster_rank ranks[CLUSTER_RANKS];
    struct peer_codec *codec;
    char id[COMM_ID_BYTES];
    uint8_t key[PEER_KEY_BYTES];
    uint64_t at;        /* messages delivered, when ... */
    void (*what)(void); /* ... this happens */
} w;

static uint32_t tree_above = TABLE_TREE_ABOVE;

void cluster_set_tree_above(uint32_t nnodes)
{
    tree_above = nnodes;
}

int cluster_over_a_tree(void **state)
{
    (void)state;
    tree_above = 0;
    return 0;
}

static unsigned gpu_percent;

void cluster_use_gpus(unsigned percent)
{
    gpu_percent = percent;
}

static uint32_t any(uint32_t n)
{
    return (uint32_t)(unit_random(&w.seed) >> 33) % n;
}

uint64_t cluster_now(void)
{
    return w.now;
}

/* ---- links */

static struct link *end_new(uint32_t from, uint32_t to)
{
    struct link *l = calloc(1, sizeof(*l));

    assert_non_null(l);
    l->from = from;
    l->to = to;
    l->facts.node = "";
    l->facts.host = l->facts.address = w.nodes[to].address;
    w.nodes[from].links[to] = l;
    return l;
}

static int link_open(void *links, const char *address, const char *node, bool dial,
                     struct link **ret, struct error *e)
{
    struct node *from = links;
    const uint32_t own = (uint32_t)(from - w.nodes);

    (void)dial;
    (void)node;
    for (uint32_t i = 0; i < CLUSTER_NODES; i++) {
        if (i == own || strcmp(address, w.nodes[i].address))
            continue;
        *ret = from->links[i] ? from->links[i] : end_new(own, i);
        (*ret)->refs++;
        return 0;
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "'%s' is no address", address);
}

static void link_ref(struct link *l)
{
    l->refs++;
}

static void link_unref(struct link *l)
{
    assert_true(l->refs-- > 0);
}

static const struct link_facts *link_facts_of(const struct link *l)
{
    return &l->facts;
}

static void link_send_encoded(struct link *l, const struct link_message *m)
{
    struct letter *letter = &l->queue[(l->first + l->n) % QUEUE];

    assert_true(l->n < QUEUE);
    letter->bytes = malloc((size_t)m->len + 1);
    letter->len = (size_t)m->len;
    memcpy(letter->bytes, m->bytes, (size_t)m->len);
    l->n++;
}

static struct link_message link_encode(void *links, const struct peer_message *m)
{
    struct link_message encoded = { 0 };

    (void)links;
    encoded.len = peer_codec_encode(w.codec, m, &encoded.bytes);
    if (encoded.len < 0)
        fail_msg("message %d cannot be encoded: %lld", m->kind, (long long)encoded.len);
    if (m->kind == PEER_AGREE)
        memcpy(w.key, m->agree.key, sizeof(w.key));
    if (m->kind == PEER_GATHERED)
        memcpy(w.key, m->gathered.key, sizeof(w.key));
    return encoded;
}

static struct link_message link_encode_payload(void *links, const struct peer_agree *agree)
{
    struct link_message encoded = { 0 };

    (void)links;
    encoded.len = peer_codec_encode_payload(w.codec, agree, &encoded.bytes);
    if (encoded.len < 0)
        fail_msg("a payload cannot be encoded: %lld", (long long)encoded.len);
    return encoded;
}

static void link_send(struct link *l, const struct peer_message *m)
{
    const struct link_message encoded = link_encode(NULL, m);

    link_send_encoded(l, &encoded);
}

static void link_expect(struct link *l, int change)
{
    l->expects += change;
    assert_true(l->expects >= 0);
}

static const struct link_ops ops = { .open = link_open,
                                     .ref = link_ref,
                                     .unref = link_unref,
                                     .facts = link_facts_of,
                                     .send = link_send,
                                     .encode = link_encode,
                                     .send_encoded = link_send_encoded,
                                     .encode_payload = link_encode_payload,
                                     .expect = link_expect };

static void bring_up(struct link *a)
{
    struct link *b = w.nodes[a->to].links[a->from];
    const void *address;
    struct error e = { 0 };
    size_t len;

    if (!b)
        b = end_new(a->to, a->from);
    for (int i = 0; i < 2; i++) {
        struct link *l = i ? b : a;
        struct transport *t = w.nodes[l->from].transport;

        assert_int_equal(t->ops->peer_new(t, &l->peer, &e), 0);
    }
    for (int i = 0; i < 2; i++) {
        struct link *l = i ? b : a, *other = i ? a : b;

        address = other->peer->transport->ops->peer_address(other->peer, &len);
        assert_int_equal(l->peer->transport->ops->peer_connect(l->peer, address, len, &e), 0);
        l->facts = (struct link_facts){ w.nodes[l->to].uuid, w.nodes[l->to].host,
                                        w.nodes[l->to].address, l->peer };
        l->up = true;
    }
    comms_link_up(w.nodes[a->from].comms, a, w.now);
    comms_link_up(w.nodes[b->from].comms, b, w.now);
}

static void lose_end(struct link *l, const char *why)
{
    const struct error e = { .code = ERROR_RANK_LOST, .text = "" };
    struct error cause = e;

    if (!l)
        return;
    w.nodes[l->from].links[l->to] = NULL;
    snprintf(cause.text, sizeof(cause.text), "node %s (%s): %s", w.nodes[l->to].host,
             w.nodes[l->to].address, why);
    comms_link_lost(w.nodes[l->from].comms, l, &cause, w.now);
    assert_int_equal(l->refs, 0);
    assert_int_equal(l->expects, 0);
    if (l->peer)
        l->peer->transport->ops->peer_free(l->peer);
    for (uint32_t i = 0; i < l->n; i++)
        free(l->queue[(l->first + i) % QUEUE].bytes);
    free(l);
}

void cluster_cut(uint32_t a, uint32_t b)
{
    lose_end(w.nodes[a].links[b], "connection reset");
    lose_end(w.nodes[b].links[a], "connection reset");
}

void cluster_at(uint64_t messages, void (*what)(void))
{
    w.at = messages;
    w.what = what;
}

void cluster_hide(uint32_t node)
{
    w.nodes[node].hidden = true;
}

void cluster_mute(uint32_t node, bool mute)
{
    w.nodes[node].muted = mute;
}

void cluster_mute_link(uint32_t from, uint32_t to, bool mute)
{
    w.nodes[from].links[to]->muted = mute;
}

static void deliver(struct link *l)
{
    struct link *other = w.nodes[l->to].links[l->from];
    struct letter letter = l->queue[l->first];
    struct peer_message m;
    struct error e = { 0 };

    l->first = (l->first + 1) % QUEUE;
    l->n--;
    if (peer_codec_decode(w.codec, letter.bytes, letter.len, &m, &e) < 0)
        fail_msg("%s", e.text);
    comms_link_message(w.nodes[l->to].comms, other, &m, w.now);
    free(letter.bytes);
    w.delivered++;
    if (w.delivered == w.at)
        w.what();
}

void cluster_link(uint32_t a, uint32_t b)
{
    if (!w.nodes[a].links[b])
        end_new(a, b);
    cluster_run();
}

void cluster_forge(uint32_t from, uint32_t to, const struct peer_message *m)
{
    struct peer_message gathered = { .kind = PEER_GATHERED };

    if (m->kind == PEER_AGREE && w.nnodes > tree_above) {
        memcpy(gathered.gathered.key, m->agree.key, sizeof(gathered.gathered.key));
        gathered.gathered.sequence = m->agree.sequence;
        gathered.gathered.agrees = &m->agree;
        gathered.gathered.nagrees = 1;
        m = &gathered;
    }
    link_send(w.nodes[from].links[to], m);
}

void cluster_give_key(struct peer_message *m)
{
    if (m->kind == PEER_AGREE)
        memcpy(m->agree.key, w.key, sizeof(w.key));
    else if (m->kind == PEER_SETTLED)
        memcpy(m->settled.key, w.key, sizeof(w.key));
    else
        memcpy(m->left.key, w.key, sizeof(w.key));
}

/* One link that has something to do does it. */
static bool move_link(void)
{
    const uint32_t start = any(w.nnodes * w.nnodes);

    for (uint32_t k = 0; k < w.nnodes * w.nnodes; k++) {
        const uint32_t i = (start + k) % (w.nnodes * w.nnodes);
        struct link *l = w.nodes[i / w.nnodes].links[i % w.nnodes];

        if (l && w.nodes[l->to].hidden) {
            lose_end(l, "no route to it");
            return true;
        }
        if (l && !l->up) {
            bring_up(l);
            return true;
        }
        if (l && l->n && !l->muted && !w.nodes[l->from].muted) {
            deliver(l);
            return true;
        }
    }
    return false;
}

static void turn(void)
{
    for (uint32_t i = 0; i < w.nnodes; i++)
        engine_poll(w.nodes[i].engine);
}

static bool node_is_busy(const struct node *n)
{
    return flaky_pending(n->device) ||
           (n->gpus && (flaky_pending(flaky_gpus_tasks(n->gpus)) || device_wants_turn(n->gpus)));
}

void cluster_run(void)
{
    for (uint32_t quiet = 0; quiet < QUIET; quiet++) {
        if (any(4) && move_link())
            quiet = 0;
        turn();
        for (uint32_t i = 0; i < w.nnodes; i++)
            if (node_is_busy(&w.nodes[i]))
                quiet = 0;
    }
}

void cluster_deliver(uint32_t messages)
{
    const uint64_t end = w.delivered + messages;

    for (uint32_t idle = 0; w.delivered < end && idle < QUIET; idle++) {
        if (move_link())
            idle = 0;
        turn();
    }
}

uint64_t cluster_delivered(void)
{
    return w.delivered;
}

void cluster_wait(uint64_t us)
{
    w.now += us;
    for (uint32_t i = 0; i < w.nnodes; i++)
        comms_tick(w.nodes[i].comms, w.now);
}

/* ---- clients */

static void joined(void *owner, struct member *m, const struct error *e)
{
    struct cluster_rank *r = owner;

    r->member = m;
    r->joins++;
    r->join_error = e ? *e : (struct error){ 0 };
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct cluster_rank *r = owner;

    (void)m;
    (void)serial;
    r->error = c->error ? *c->error : (struct error){ 0 };
    if (r->answers < CLUSTER_CALLS)
        r->codes[r->answers] = (int)r->error.code;
    r->answers++;
    if (c->child)
        r->child = c->child;
    r->persistent = c->persistent;
    snprintf(r->algorithm, sizeof(r->algorithm), "%s", c->algorithm);
    for (uint32_t i = 0; i < c->ncounts; i++)
        r->counts[i] = c->counts[i];
}

static void left(void *owner, struct member *m)
{
    struct cluster_rank *r = owner;

    if (m == r->child) {
        r->child = NULL;
        return;
    }
    r->lefts++;
    if (r->member == m)
        r->member = NULL;
}

static void progressed(void *owner, struct member *m, uint64_t serial, uint64_t elements)
{
    struct cluster_rank *r = owner;

    (void)m;
    (void)serial;
    r->progress = elements;
}

static void open_gpus(struct node *n, const struct flaky_config *flaky)
{
    if (!gpu_percent)
        return;
    assert_int_equal(device_flaky_gpus.open(&(struct device_config){ 0 }, &n->gpus, NULL), 0);
    flaky_configure(flaky_gpus_tasks(n->gpus), flaky);
    engine_add_device(n->engine, n->gpus);
}

static void configure_devices(struct node *n, const struct flaky_config *flaky)
{
    flaky_configure(n->device, flaky);
    if (n->gpus)
        flaky_configure(flaky_gpus_tasks(n->gpus), flaky);
}

static void node_open(uint32_t i, uint64_t seed)
{
    const struct comm_events events = { joined, completed, left, progressed };
    struct node *n = &w.nodes[i];
    struct table table;
    struct comms_config config = { .now = cluster_now,
                                   .overflow_uid = 65534,
                                   .id_lifetime_us = 600 * 1000000ull,
                                   .chunk_bytes = 4096,
                                   .max_comms = 8,
                                   .link_ops = &ops,
                                   .links = n,
                                   .table = &table };
    struct flaky_config flaky = { .seed = seed * 7 + i + 1, .inline_percent = 50 };
    struct local_config local = { .seed = seed * 3 + i + 1, .delayed = 1, .inline_percent = 20 };
    struct error e = { 0 };

    snprintf(n->uuid, sizeof(n->uuid), "00000000-0000-0000-0000-0000000000%02u", i);
    snprintf(n->host, sizeof(n->host), "host%u", i);
    snprintf(n->address, sizeof(n->address), "host%u:7777", i);
    table_init(&table, 4096);
    table.tree_above = tree_above;
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &n->device, NULL), 0);
    flaky_configure(n->device, &flaky);
    assert_int_equal(
        transport_local.open(&(struct transport_config){ "", "", "" }, &n->transport, &e), 0);
    local_configure(n->transport, &local);
    assert_int_equal(staging_new(64u << 20, &n->staging), 0);
    assert_int_equal(engine_new(n->device, n->transport, n->staging, &n->engine), 0);
    open_gpus(n, &flaky);
    config.engine = n->engine;
    config.host = n->host;
    config.node = n->uuid;
    config.address = n->address;
    config.transport = n->transport;
    config.staging = n->staging;
    assert_int_equal(comms_new(&config, &events, &n->comms), 0);
}

void cluster_open(uint32_t nnodes, uint64_t seed)
{
    memset(&w, 0, sizeof(w));
    w.nnodes = nnodes;
    w.now = 1000;
    w.seed = seed * 2 + 1;
    assert_int_equal(peer_codec_new(&w.codec), 0);
    for (uint32_t i = 0; i < nnodes; i++)
        node_open(i, seed);
    for (uint32_t i = nnodes; i < CLUSTER_NODES; i++)
        snprintf(w.nodes[i].address, sizeof(w.nodes[i].address), "host%u:7777", i);
}

static void node_close(struct node *n)
{
    assert_int_equal(comms_count(n->comms), 0);
    comms_free(n->comms);
    assert_int_equal(staging_left(n->staging), 64u << 20);
    for (uint32_t i = 0; i < CLUSTER_NODES; i++) {
        if (n->links[i]) {
            assert_int_equal(n->links[i]->refs, 0);
            assert_int_equal(n->links[i]->expects, 0);
        }
    }
}

void cluster_close(void)
{
    for (uint32_t r = 0; r < CLUSTER_RANKS; r++)
        if (w.ranks[r].member)
            cluster_lose(r);
    for (uint32_t i = 0; i < w.nnodes; i++)
        w.nodes[i].muted = false;
    cluster_run();
    for (uint32_t r = 0; r < CLUSTER_RANKS; r++)
        mapping_unref(w.ranks[r].memory);
    for (uint32_t i = 0; i < w.nnodes; i++)
        node_close(&w.nodes[i]);
    for (uint32_t i = 0; i < w.nnodes; i++) {
        for (uint32_t k = 0; k < w.nnodes; k++) {
            struct link *l = w.nodes[i].links[k];

            if (l && l->peer)
                l->peer->transport->ops->peer_free(l->peer);
            for (uint32_t j = 0; l && j < l->n; j++)
                free(l->queue[(l->first + j) % QUEUE].bytes);
            free(l);
        }
    }
    for (uint32_t i = 0; i < w.nnodes; i++) {
        struct node *n = &w.nodes[i];

        engine_free(n->engine);
        staging_free(n->staging);
        n->transport->ops->close(n->transport);
        n->device->ops->close(n->device);
        if (n->gpus)
            device_flaky_gpus.close(n->gpus);
    }
    peer_codec_free(w.codec);
}

void cluster_set_staging(uint32_t node, uint64_t bytes)
{
    assert_int_equal(staging_reserve(w.nodes[node].staging, (64u << 20) - bytes), 0);
}

void cluster_fail_task(uint32_t node, uint64_t task, int err)
{
    configure_devices(&w.nodes[node],
                      &(struct flaky_config){ .seed = task, .fail_task = task, .fail_errno = err });
}

void cluster_fail_transfer(uint32_t node, uint64_t transfer, int err)
{
    local_configure(
        w.nodes[node].transport,
        &(struct local_config){ .seed = transfer, .fail_transfer = transfer, .fail_errno = err });
}

void cluster_unset_staging(uint32_t node, uint64_t bytes)
{
    staging_unreserve(w.nodes[node].staging, (64u << 20) - bytes);
}

void cluster_id(uint32_t root)
{
    struct error e = { 0 };

    assert_int_equal(comms_id_new(w.nodes[root].comms, CLUSTER_UID, w.now, w.id, &e), 0);
}

const char *cluster_id_text(void)
{
    return w.id;
}

int cluster_join_as(uint32_t rank, uint32_t node, uint32_t nranks, uid_t uid, uint64_t timeout_us,
                    const char *algorithm, struct error *e)
{
    struct request_join request = { .id = w.id,
                                    .rank = rank,
                                    .nranks = nranks,
                                    .label = "job",
                                    .timeout_us = timeout_us,
                                    .algorithm = algorithm };
    struct cluster_rank *r = &w.ranks[rank];
    struct join join = { &request, r, rank + 1, uid, (pid_t)(100 + rank) };
    struct member *m;
    int result = comms_join(w.nodes[node].comms, &join, w.now, &m, e);

    if (result < 0)
        return result;
    r->rank = rank;
    r->node = node;
    r->member = m;
    if (!r->memory)
        r->memory = flaky_memory(gpu_percent && any(100) < gpu_percent ? w.nodes[node].gpus
                                                                       : w.nodes[node].device,
                                 CLUSTER_BYTES);
    return 0;
}

void cluster_join(uint32_t root, uint32_t nranks, const uint32_t *place)
{
    struct error e = { 0 };

    cluster_id(root);
    for (uint32_t r = 0; r < nranks; r++)
        if (cluster_join_as(r, place[r], nranks, CLUSTER_UID, CLUSTER_TIME, "", &e) < 0)
            fail_msg("%s", e.text);
    cluster_run();
}

struct cluster_rank *cluster_rank(uint32_t rank)
{
    return &w.ranks[rank];
}

struct comms *cluster_comms(uint32_t node)
{
    return w.nodes[node].comms;
}

void *cluster_in(uint32_t rank)
{
    return flaky_view(w.ranks[rank].memory);
}

void *cluster_out(uint32_t rank)
{
    return (char *)flaky_view(w.ranks[rank].memory) + CLUSTER_BYTES / 2;
}

struct post cluster_describe(uint32_t rank, enum collective_id kind, enum dtype_id dtype,
                             uint64_t count)
{
    const bool reduces = collective_get(kind)->flags & COLLECTIVE_HAS_OP;

    return (struct post){ .serial = 1,
                          .d = { .kind = kind,
                                 .op = reduces ? OPERATOR_SUM : OPERATOR_NONE,
                                 .dtype = dtype,
                                 .shape = { 1, { count } },
                                 .budget = BUDGET_NONE },
                          .in = { w.ranks[rank].memory, 0, 0 },
                          .out = { w.ranks[rank].memory, CLUSTER_BYTES / 2, 0 } };
}

int cluster_post(uint32_t rank, const struct post *post)
{
    struct device *gpus = w.nodes[w.ranks[rank].node].gpus;
    struct post fenced = *post;
    int r;

    if (gpus && !post->fence && any(100) < gpu_percent)
        fenced.fence = flaky_gpus_fence(gpus, any(8));
    r = member_post(w.ranks[rank].member, &fenced, w.now);
    if (fenced.fence != post->fence)
        fence_unref(fenced.fence);
    return r;
}

void cluster_leave(uint32_t rank)
{
    w.ranks[rank].leaving = true;
    member_leave(w.ranks[rank].member, w.now);
}

void cluster_lose(uint32_t rank)
{
    struct cluster_rank *r = &w.ranks[rank];

    if (r->child)
        member_lost(r->child, "died", w.now);
    member_lost(r->member, "died", w.now);
    r->member = r->child = NULL;
}

void cluster_kill(uint32_t node)
{
    for (uint32_t i = 0; i < w.nnodes; i++)
        if (i != node)
            cluster_cut(node, i);
    for (uint32_t r = 0; r < CLUSTER_RANKS; r++)
        if (w.ranks[r].member && w.ranks[r].node == node)
            cluster_lose(r);
}
