/* Nodes of one process over the loopback, and what they send each other. */
#include "tests/contract/transport_world.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct world world;

const uint8_t channel_keys[][TRANSPORT_KEY_BYTES] = { "the first channe", "the second chann",
                                                      "one nobody opens" };

bool is_local(const struct transport_ops *ops)
{
    return strcmp(ops->name, "local") == 0;
}

uint64_t now_ns(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void note_failure(void *owner, int err)
{
    struct node *n = owner;

    n->nfailures++;
    n->failure = err;
}

void open_node(unsigned i)
{
    const struct transport_config config = { .devices = "", .address = "127.0.0.1", .ports = "" };
    struct node *n = &world.nodes[i];
    struct epoll_event event = { .events = EPOLLIN };
    struct error e = { 0 };

    memset(n, 0, sizeof(*n));
    if (world.ops->open(&config, &n->t, &e) < 0)
        fail_msg("%s: %s", world.ops->name, e.text);
    for (unsigned c = 0; c < NCHANNELS; c++)
        assert_int_equal(world.ops->channel_open(n->t, channel_keys[c], &n->channels[c]), 0);
    assert_int_equal(epoll_ctl(world.loop, EPOLL_CTL_ADD, world.ops->fd(n->t), &event), 0);
}

struct transport_peer *make_peer(unsigned of)
{
    struct transport_peer *p;
    struct error e = { 0 };

    if (world.ops->peer_new(world.nodes[of].t, &p, &e) < 0)
        fail_msg("%s: %s", world.ops->name, e.text);
    world.ops->peer_watch(p, note_failure, &world.nodes[of]);
    return p;
}

static void join_peers(struct transport_peer *a, struct transport_peer *b)
{
    struct transport_peer *const both[] = { a, b };
    struct error e = { 0 };

    for (unsigned i = 0; i < 2; i++) {
        size_t len;
        const void *address = world.ops->peer_address(both[!i], &len);

        assert_in_range(len, 1, TRANSPORT_ADDRESS_MAX);
        if (world.ops->peer_connect(both[i], address, len, &e) < 0)
            fail_msg("%s: %s", world.ops->name, e.text);
    }
}

void connect_nodes(unsigned a, unsigned b)
{
    world.nodes[a].peers[b] = make_peer(a);
    world.nodes[b].peers[a] = make_peer(b);
    join_peers(world.nodes[a].peers[b], world.nodes[b].peers[a]);
}

void free_peer(unsigned of, unsigned to)
{
    if (world.nodes[of].peers[to])
        world.ops->peer_free(world.nodes[of].peers[to]);
    world.nodes[of].peers[to] = NULL;
}

void open_world(const struct transport_ops *ops, unsigned n)
{
    world.ops = ops;
    world.n = n;
    world.loop = epoll_create1(EPOLL_CLOEXEC);
    for (unsigned i = 0; i < n; i++)
        open_node(i);
    for (unsigned i = 0; i < n; i++)
        for (unsigned j = i + 1; j < n; j++)
            connect_nodes(i, j);
}

void close_world(void)
{
    for (unsigned i = 0; i < world.n; i++) {
        struct node *n = &world.nodes[i];

        for (unsigned j = 0; j < world.n; j++)
            free_peer(i, j);
        for (unsigned c = 0; c < NCHANNELS; c++)
            if (n->channels[c])
                world.ops->channel_close(n->channels[c]);
        world.ops->close(n->t);
    }
    close(world.loop);
}

bool turn(int timeout_ms)
{
    struct epoll_event event;
    bool awake = false;

    for (unsigned i = 0; i < world.n; i++)
        awake |= world.ops->wants_turn(world.nodes[i].t);
    if (epoll_wait(world.loop, &event, 1, awake ? 0 : timeout_ms) > 0)
        awake = true;
    for (unsigned i = 0; i < world.n; i++)
        world.ops->poll(world.nodes[i].t);
    return awake;
}

void turn_for(unsigned ms)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + ms * 1000000ull;

    while (now_ns(CLOCK_MONOTONIC) < until)
        turn(10);
}

static void note_done(struct transfer *t, int r)
{
    struct item *it = t->owner;

    it->r = r;
    it->ndone++;
}

void item_init(struct item *it, uint64_t name, uint64_t bytes, uint32_t nparts)
{
    uint64_t at = 0;

    memset(it, 0, sizeof(*it));
    it->bytes = malloc(bytes + 2);
    assert_non_null(it->bytes);
    memset(it->bytes, 0xee, bytes + 2);
    it->t = (struct transfer){
        .name = { .sequence = 1 + name / 5, .unit = name % 5, .tag = (uint32_t)(name * 7) },
        .parts = it->parts,
        .nparts = nparts,
        .bytes = bytes,
        .done = note_done,
        .owner = it,
    };
    for (uint32_t i = 0; i < nparts; i++) {
        const uint64_t share = i + 1 == nparts ? bytes - at : MIN(bytes - at, bytes / nparts | 1);

        it->parts[i] = (struct iovec){ it->bytes + 1 + at, share };
        at += share;
    }
}

void item_fini(struct item *it)
{
    free(it->bytes);
}

static uint8_t pattern(const struct item *it, uint64_t i)
{
    return (uint8_t)(i * 31 + (i >> 8) + it->t.name.tag + it->t.name.sequence);
}

static void fill(struct item *it)
{
    for (uint64_t i = 0; i < it->t.bytes; i++)
        it->bytes[1 + i] = pattern(it, i);
}

void assert_received(const struct item *it)
{
    assert_int_equal(it->r, 0);
    assert_int_equal(it->bytes[0], 0xee);
    assert_int_equal(it->bytes[it->t.bytes + 1], 0xee);
    for (uint64_t i = 0; i < it->t.bytes; i++)
        if (it->bytes[1 + i] != pattern(it, i))
            fail_msg("byte %lu of %lu is wrong", i, it->t.bytes);
}

void assert_untouched(const struct item *it)
{
    for (uint64_t i = 0; i < it->t.bytes + 2; i++)
        assert_int_equal(it->bytes[i], 0xee);
}

static void submit(struct item *it, bool outgoing, unsigned from, unsigned to, unsigned channel)
{
    struct channel *c = world.nodes[from].channels[channel];
    struct transport_peer *p = world.nodes[from].peers[to];
    int r = outgoing ? channel_send(c, p, &it->t) : channel_recv(c, p, &it->t);

    assert_int_equal(it->ndone, 0);
    it->r = r;
}

void send_item(struct item *it, unsigned from, unsigned to, unsigned channel)
{
    fill(it);
    submit(it, true, from, to, channel);
}

void recv_item(struct item *it, unsigned at, unsigned from, unsigned channel)
{
    submit(it, false, at, from, channel);
}

void await(const struct item *items, size_t n)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + WAIT_S * 1000000000ull;

    for (size_t i = 0; i < n; i++) {
        while (items[i].r == TRANSPORT_PENDING) {
            if (now_ns(CLOCK_MONOTONIC) > until)
                fail_msg("%s: transfer %zu of %zu does not end", world.ops->name, i, n);
            turn(100);
        }
        assert_in_range(items[i].ndone, 0, 1);
    }
}

void assert_no_failures(void)
{
    for (unsigned i = 0; i < world.n; i++)
        assert_int_equal(world.nodes[i].nfailures, 0);
}

void await_failure(void)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + WAIT_S * 1000000000ull;

    while (!world.nodes[0].nfailures && now_ns(CLOCK_MONOTONIC) < until)
        turn(10);
    assert_int_equal(world.nodes[0].nfailures, 1);
}

void exchange_one(uint64_t bytes, uint32_t send_parts, uint32_t recv_parts, bool late)
{
    static uint64_t name;
    struct item items[2];

    name++;
    item_init(&items[0], name, bytes, send_parts);
    item_init(&items[1], name, bytes, recv_parts);
    if (!late)
        recv_item(&items[1], 1, 0, 0);
    send_item(&items[0], 0, 1, 0);
    if (late) {
        turn_for(5);
        recv_item(&items[1], 1, 0, 0);
    }
    await(items, 2);
    assert_int_equal(items[0].r, 0);
    assert_received(&items[1]);
    item_fini(&items[0]);
    item_fini(&items[1]);
}
