/* What transport.h promises, of every row there is: nodes of one process over the loopback. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/transport/transport.h"

#define NODES_MAX 3u
#define NCHANNELS 2u
#define PARTS_MAX 37u
#define WAIT_S    30

struct node {
    struct transport *t;
    struct transport_peer *peers[NODES_MAX];
    struct channel *channels[NCHANNELS];
    unsigned nfailures;
    int failure;
};

/* The nodes, all connected with all; their descriptors are in an epoll as a loop has it. */
static struct {
    const struct transport_ops *ops;
    unsigned n;
    struct node nodes[NODES_MAX];
    int loop;
} world;

#define for_each_row(row) for (const struct transport_ops *const *row = transport_rows; *row; row++)

/* The row that is within one process and has no network. */
static bool is_local(const struct transport_ops *ops)
{
    return strcmp(ops->name, "local") == 0;
}

static const uint8_t keys[][TRANSPORT_KEY_BYTES] = { "the first channe", "the second chann",
                                                     "one nobody opens" };

static uint64_t now_ns(clockid_t clock)
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

static void open_node(unsigned i)
{
    const struct transport_config config = { .devices = "", .address = "127.0.0.1", .ports = "" };
    struct node *n = &world.nodes[i];
    struct epoll_event event = { .events = EPOLLIN };
    struct error e = { 0 };

    memset(n, 0, sizeof(*n));
    if (world.ops->open(&config, &n->t, &e) < 0)
        fail_msg("%s: %s", world.ops->name, e.text);
    for (unsigned c = 0; c < NCHANNELS; c++)
        assert_int_equal(world.ops->channel_open(n->t, keys[c], &n->channels[c]), 0);
    assert_int_equal(epoll_ctl(world.loop, EPOLL_CTL_ADD, world.ops->fd(n->t), &event), 0);
}

static struct transport_peer *make_peer(unsigned of)
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

static void connect_nodes(unsigned a, unsigned b)
{
    world.nodes[a].peers[b] = make_peer(a);
    world.nodes[b].peers[a] = make_peer(b);
    join_peers(world.nodes[a].peers[b], world.nodes[b].peers[a]);
}

static void free_peer(unsigned of, unsigned to)
{
    if (world.nodes[of].peers[to])
        world.ops->peer_free(world.nodes[of].peers[to]);
    world.nodes[of].peers[to] = NULL;
}

static void open_world(const struct transport_ops *ops, unsigned n)
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

static void close_world(void)
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

/* A turn of the loop: sleeps at most so long where nobody wants one. Returns whether it woke. */
static bool turn(int timeout_ms)
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

/* Until nobody has woken for a while. */
static void turn_until_quiet(void)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + WAIT_S * 1000000000ull;

    while (turn(100))
        if (now_ns(CLOCK_MONOTONIC) > until)
            fail_msg("it never sleeps");
}

static void turn_for(unsigned ms)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + ms * 1000000ull;

    while (now_ns(CLOCK_MONOTONIC) < until)
        turn(10);
}

/* A transfer and what became of it. */
struct item {
    struct transfer t;
    struct iovec parts[PARTS_MAX];
    uint8_t *bytes;
    int r; /* TRANSPORT_PENDING until it is done */
    unsigned ndone;
};

static void note_done(struct transfer *t, int r)
{
    struct item *it = t->owner;

    it->r = r;
    it->ndone++;
}

/* `nparts` parts of odd lengths; a byte in front and behind belongs to nobody. */
static void item_init(struct item *it, uint64_t name, uint64_t bytes, uint32_t nparts)
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

static void item_fini(struct item *it)
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

static void assert_received(const struct item *it)
{
    assert_int_equal(it->r, 0);
    assert_int_equal(it->bytes[0], 0xee);
    assert_int_equal(it->bytes[it->t.bytes + 1], 0xee);
    for (uint64_t i = 0; i < it->t.bytes; i++)
        if (it->bytes[1 + i] != pattern(it, i))
            fail_msg("byte %lu of %lu is wrong", i, it->t.bytes);
}

static void assert_untouched(const struct item *it)
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

static void send_item(struct item *it, unsigned from, unsigned to, unsigned channel)
{
    fill(it);
    submit(it, true, from, to, channel);
}

static void recv_item(struct item *it, unsigned at, unsigned from, unsigned channel)
{
    submit(it, false, at, from, channel);
}

static void await(const struct item *items, size_t n)
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

static void assert_no_failures(void)
{
    for (unsigned i = 0; i < world.n; i++)
        assert_int_equal(world.nodes[i].nfailures, 0);
}

/* Of node 0. */
static void await_failure(void)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + WAIT_S * 1000000000ull;

    while (!world.nodes[0].nfailures && now_ns(CLOCK_MONOTONIC) < until)
        turn(10);
    assert_int_equal(world.nodes[0].nfailures, 1);
}

static const uint64_t sizes[] = { 0, 1, 13, 8192, 65536, 65537, (1 << 20) + 1, 64 << 20 };

static void exchange_one(uint64_t bytes, uint32_t send_parts, uint32_t recv_parts, bool late)
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

TEST(messages_of_any_size_and_any_parts_arrive_before_and_after_they_are_asked_for)
{
    static const uint32_t nparts[] = { 1, 3, PARTS_MAX };

    for_each_row(row)
    {
        open_world(*row, 2);
        for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
            for (unsigned late = 0; late < 2; late++)
                for (size_t i = 0; i < ARRAY_SIZE(nparts); i++)
                    exchange_one(sizes[s], nparts[i], nparts[(i + late) % 3], late);
        }
        exchange_one(0, 0, 0, false);
        exchange_one(0, 0, 0, true);
        assert_no_failures();
        close_world();
    }
}

#define NMANY 200u

/* In the order of `order`, the first half of the receives ahead of all sends. */
static void exchange_many(unsigned a, unsigned b, unsigned channel, struct item *sends,
                          struct item *recvs, const unsigned *order)
{
    for (unsigned i = 0; i < NMANY; i++) {
        const uint64_t bytes = i % 97 ? i * 11 % 5000 : 100000 + i;

        item_init(&sends[i], i, bytes, 1 + i % 4);
        item_init(&recvs[i], i, bytes, 1 + i % 3);
    }
    for (unsigned i = 0; i < NMANY / 2; i++)
        recv_item(&recvs[order[i]], b, a, channel);
    for (unsigned i = 0; i < NMANY; i++)
        send_item(&sends[i], a, b, channel);
}

static void check_many(struct item *sends, struct item *recvs)
{
    await(sends, NMANY);
    await(recvs, NMANY);
    for (unsigned i = 0; i < NMANY; i++) {
        assert_int_equal(sends[i].r, 0);
        assert_received(&recvs[i]);
        item_fini(&sends[i]);
        item_fini(&recvs[i]);
    }
}

static void shuffle(unsigned *order, unsigned n)
{
    uint64_t seed = 7;

    for (unsigned i = 0; i < n; i++)
        order[i] = i;
    for (unsigned i = n - 1; i > 0; i--) {
        const unsigned j = (unsigned)(unit_random(&seed) % (i + 1)), kept = order[i];

        order[i] = order[j];
        order[j] = kept;
    }
}

TEST(many_messages_are_matched_by_name_in_both_directions_of_two_channels)
{
    static struct item sends[4][NMANY], recvs[4][NMANY];
    unsigned order[NMANY];

    shuffle(order, NMANY);
    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned k = 0; k < 4; k++)
            exchange_many(k % 2, !(k % 2), k / 2, sends[k], recvs[k], order);
        turn_for(5);
        for (unsigned k = 0; k < 4; k++)
            for (unsigned i = NMANY / 2; i < NMANY; i++)
                recv_item(&recvs[k][order[i]], !(k % 2), k % 2, k / 2);
        for (unsigned k = 0; k < 4; k++)
            check_many(sends[k], recvs[k]);
        assert_no_failures();
        close_world();
    }
}

TEST(three_nodes_exchange_with_each_other)
{
    struct item sends[NODES_MAX][NODES_MAX], recvs[NODES_MAX][NODES_MAX];

    for_each_row(row)
    {
        open_world(*row, 3);
        for (unsigned k = 0; k < 9; k++) {
            const unsigned i = k / 3, j = k % 3;

            item_init(&sends[i][j], k, 300000 * k, 2);
            item_init(&recvs[i][j], k, 300000 * k, 1);
            sends[i][j].r = recvs[i][j].r = 0;
            if (i == j)
                continue;
            recv_item(&recvs[i][j], j, i, 0);
            send_item(&sends[i][j], i, j, 0);
        }
        await(&sends[0][0], 9);
        await(&recvs[0][0], 9);
        for (unsigned k = 0; k < 9; k++) {
            if (k / 3 != k % 3)
                assert_received(&recvs[k / 3][k % 3]);
            item_fini(&sends[k / 3][k % 3]);
            item_fini(&recvs[k / 3][k % 3]);
        }
        assert_no_failures();
        close_world();
    }
}

/* A small message and a large one to node 1, which nobody there will take. */
static void send_two(struct item items[2])
{
    item_init(&items[0], 1, 100, 1);
    item_init(&items[1], 2, 1 << 20, 1);
    send_item(&items[0], 0, 1, 0);
    send_item(&items[1], 0, 1, 0);
}

static void await_two(struct item items[2])
{
    await(items, 2);
    assert_int_equal(items[0].r, 0);
    assert_int_equal(items[1].r, 0);
    item_fini(&items[0]);
    item_fini(&items[1]);
    assert_no_failures();
}

TEST(what_comes_for_a_channel_that_is_not_open_is_dropped_and_its_sender_goes_on)
{
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        world.ops->channel_close(world.nodes[1].channels[0]);
        world.nodes[1].channels[0] = NULL;
        send_two(items);
        await_two(items);
        /* and does not turn up once it is open */
        assert_int_equal(
            world.ops->channel_open(world.nodes[1].t, keys[0], &world.nodes[1].channels[0]), 0);
        item_init(&items[0], 1, 100, 1);
        recv_item(&items[0], 1, 0, 0);
        turn_for(10);
        assert_int_equal(items[0].r, TRANSPORT_PENDING);
        transfer_cancel(&items[0].t);
        await(&items[0], 1);
        item_fini(&items[0]);
        close_world();
    }
}

TEST(a_channel_may_close_on_messages_that_nobody_took)
{
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        send_two(items);
        turn_for(10);
        world.ops->channel_close(world.nodes[1].channels[0]);
        world.nodes[1].channels[0] = NULL;
        await_two(items);
        close_world();
    }
}

/* What has come, what still comes, and what comes for later operations. */
TEST(messages_of_forgotten_operations_are_dropped_before_and_after_they_come)
{
    struct item items[2], later[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned after = 0; after < 2; after++) {
            if (after)
                world.ops->channel_forget(world.nodes[1].channels[0], 1);
            send_two(items); /* of operation 1 */
            item_init(&later[0], 5, 1 << 20, 1);
            item_init(&later[1], 5, 1 << 20, 1);
            send_item(&later[0], 0, 1, 0);
            turn_for(10);
            if (!after)
                world.ops->channel_forget(world.nodes[1].channels[0], 1);
            await_two(items);
            recv_item(&later[1], 1, 0, 0);
            await(later, 2);
            assert_int_equal(later[1].r, 0);
            item_fini(&later[0]);
            item_fini(&later[1]);
        }
        close_world();
    }
}

TEST(another_number_of_bytes_ends_the_receive_and_nothing_is_written)
{
    static const uint64_t said[] = { 0, 1, 1000, 1 << 20 };
    static const uint64_t asked[] = { 1, 0, 999, (1 << 20) - 1, (1 << 20) + 1 };
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned k = 0; k < ARRAY_SIZE(said) * ARRAY_SIZE(asked) * 2; k++) {
            const uint64_t s = said[k / 2 % 4], a = asked[k / 8];

            if (s == a)
                continue;
            item_init(&items[0], k, s, 1);
            item_init(&items[1], k, a, 2);
            if (k % 2)
                recv_item(&items[1], 1, 0, 0);
            send_item(&items[0], 0, 1, 0);
            turn_for(k % 2 ? 0 : 3);
            if (k % 2 == 0)
                recv_item(&items[1], 1, 0, 0);
            await(items, 2);
            assert_int_equal(items[1].r, -EMSGSIZE);
            assert_true(items[0].r == 0 || items[0].r == -EMSGSIZE);
            assert_untouched(&items[1]);
            item_fini(&items[0]);
            item_fini(&items[1]);
        }
        exchange_one(1 << 20, 1, 1, false);
        assert_no_failures();
        close_world();
    }
}

TEST(a_cancelled_receive_ends_and_its_memory_is_left_alone)
{
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned k = 0; k < 2; k++) {
            item_init(&items[0], k, k ? 1 << 20 : 100, 1);
            item_init(&items[1], k, k ? 1 << 20 : 100, 1);
            recv_item(&items[1], 1, 0, 0);
            transfer_cancel(&items[1].t);
            await(&items[1], 1);
            assert_int_equal(items[1].r, -ECANCELED);
            send_item(&items[0], 0, 1, 0);
            turn_for(10);
            assert_untouched(&items[1]);
            item_fini(&items[1]);
            /* the message is there for who asks next */
            item_init(&items[1], k, k ? 1 << 20 : 100, 1);
            recv_item(&items[1], 1, 0, 0);
            await(items, 2);
            assert_received(&items[1]);
            item_fini(&items[0]);
            item_fini(&items[1]);
        }
        close_world();
    }
}

TEST(a_transfer_cancelled_in_the_middle_ends_one_way_or_the_other)
{
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned k = 0; k < 40; k++) {
            item_init(&items[0], k, 8 << 20, 1);
            item_init(&items[1], k, 8 << 20, 1);
            recv_item(&items[1], 1, 0, 0);
            send_item(&items[0], 0, 1, 0);
            for (unsigned i = 0; i < k; i++)
                turn(0);
            for (unsigned i = 0; i < 2; i++)
                if (items[i].r == TRANSPORT_PENDING)
                    transfer_cancel(&items[i].t);
            await(items, 2);
            if (items[1].r != -ECANCELED)
                assert_received(&items[1]);
            assert_true(items[0].r == 0 || items[0].r == -ECANCELED);
            item_fini(&items[0]);
            item_fini(&items[1]);
        }
        assert_no_failures();
        close_world();
    }
}

TEST(a_cancelled_send_that_nobody_takes_ends)
{
    struct item items[2];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned k = 0; k < 4; k++) {
            item_init(&items[0], k, 1 << 20, 1);
            send_item(&items[0], 0, 1, 0);
            turn_for(k % 2 ? 10 : 0);
            assert_int_equal(items[0].r, TRANSPORT_PENDING);
            transfer_cancel(&items[0].t);
            transfer_cancel(&items[0].t);
            await(items, 1);
            assert_int_equal(items[0].r, -ECANCELED);
            item_fini(&items[0]);
        }
        exchange_one(1 << 20, 1, 1, false);
        assert_no_failures();
        close_world();
    }
}

/* More than any memory set aside for messages nobody waits for. */
#define NFLOOD      400u
#define FLOOD_BYTES 16000u

TEST(a_sender_far_ahead_of_its_receiver_fails_nobody)
{
    static struct item sends[NFLOOD], recvs[NFLOOD];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned i = 0; i < NFLOOD; i++) {
            item_init(&sends[i], i, FLOOD_BYTES, 1);
            item_init(&recvs[i], i, FLOOD_BYTES, 1);
            send_item(&sends[i], 0, 1, 0);
        }
        turn_for(30);
        for (unsigned i = NFLOOD; i-- > 0;)
            recv_item(&recvs[i], 1, 0, 0);
        await(sends, NFLOOD);
        await(recvs, NFLOOD);
        for (unsigned i = 0; i < NFLOOD; i++) {
            assert_received(&recvs[i]);
            item_fini(&sends[i]);
            item_fini(&recvs[i]);
        }
        assert_no_failures();
        close_world();
    }
}

#define NPENDING 12u

/* Sends and receives of all sizes, of which some are matched and some are not. */
static void start_pending(struct item items[NPENDING])
{
    for (unsigned i = 0; i < NPENDING; i++) {
        const unsigned node = i % 2;
        const bool outgoing = i / 2 % 2;

        item_init(&items[i], i / 4 * 2 + (node ^ outgoing) + (i >= 8 ? 100 * i : 0),
                  3u << (i / 4 * 9), 1);
        if (outgoing)
            send_item(&items[i], node, !node, 0);
        else
            recv_item(&items[i], node, !node, 0);
    }
}

static void assert_none_pending(struct item items[NPENDING], unsigned node)
{
    for (unsigned i = node; i < NPENDING; i += 2) {
        assert_int_not_equal(items[i].r, TRANSPORT_PENDING);
        assert_in_range(items[i].ndone, 0, 1);
    }
}

static void fini_pending(struct item items[NPENDING])
{
    for (unsigned i = 0; i < NPENDING; i++)
        item_fini(&items[i]);
}

TEST(a_peer_freed_ends_what_is_pending_before_it_returns)
{
    struct item items[NPENDING];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned turns = 0; turns < 12; turns++) {
            start_pending(items);
            for (unsigned i = 0; i < turns; i++)
                turn(0);
            free_peer(0, 1);
            assert_none_pending(items, 0);
            turn_for(5);
            free_peer(1, 0);
            assert_none_pending(items, 1);
            fini_pending(items);
            connect_nodes(0, 1);
            exchange_one(200000, 1, 1, false);
        }
        close_world();
    }
}

TEST(peers_are_remade_fifty_times_with_large_sends_under_way)
{
    struct item items[8];

    for_each_row(row)
    {
        open_world(*row, 2);
        for (unsigned round = 0; round < 50; round++) {
            for (unsigned i = 0; i < 8; i++) {
                item_init(&items[i], i / 2, 2 << 20, 1);
                if (i % 2)
                    recv_item(&items[i], i / 4, !(i / 4), 0);
                else
                    send_item(&items[i], !(i / 4), i / 4, 0);
            }
            for (unsigned i = 0; i < round; i++)
                turn(0);
            free_peer(round % 2, !(round % 2));
            free_peer(!(round % 2), round % 2);
            for (unsigned i = 0; i < 8; i++) {
                assert_int_not_equal(items[i].r, TRANSPORT_PENDING);
                item_fini(&items[i]);
            }
            connect_nodes(0, 1);
        }
        exchange_one(1 << 20, 1, 1, false);
        close_world();
    }
}

TEST(a_peer_that_is_not_connected_may_be_freed)
{
    for_each_row(row)
    {
        struct item it;
        struct transport_peer *p;

        open_world(*row, 2);
        p = make_peer(0);
        item_init(&it, 1, 1000, 1);
        it.r = channel_recv(world.nodes[0].channels[0], p, &it.t);
        turn_for(2);
        world.ops->peer_free(p);
        assert_int_equal(it.r, -ECONNRESET);
        item_fini(&it);
        close_world();
    }
}

TEST(a_peer_whose_other_end_is_gone_already_is_found_lost)
{
    for_each_row(row)
    {
        uint8_t address[TRANSPORT_ADDRESS_MAX];
        struct transport_peer *gone, *p;
        const void *bytes;
        struct error e = { 0 };
        struct item it;
        size_t len;

        open_world(*row, 2);
        gone = make_peer(1);
        bytes = world.ops->peer_address(gone, &len);
        memcpy(address, bytes, len);
        world.ops->peer_free(gone);
        p = make_peer(0);
        item_init(&it, 1, 100000, 1);
        if (world.ops->peer_connect(p, address, len, &e) == 0) {
            it.r = channel_send(world.nodes[0].channels[0], p, &it.t);
            await_failure();
        }
        world.ops->peer_free(p);
        assert_int_not_equal(it.r, TRANSPORT_PENDING);
        item_fini(&it);
        exchange_one(1 << 20, 1, 1, false);
        close_world();
    }
}

TEST(an_idle_transport_sleeps_and_a_message_wakes_it)
{
    struct item items[2];

    for_each_row(row)
    {
        uint64_t used;
        unsigned nawake = 0;

        open_world(*row, 2);
        exchange_one(1 << 20, 1, 1, true);
        turn_for(50);
        item_init(&items[1], 1000, 100, 1);
        recv_item(&items[1], 1, 0, 0);
        turn_until_quiet();
        used = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        for (unsigned i = 0; i < 5; i++)
            nawake += turn(60);
        assert_int_equal(nawake, 0);
        assert_true(now_ns(CLOCK_PROCESS_CPUTIME_ID) - used < 20000000);

        item_init(&items[0], 1000, 100, 1);
        send_item(&items[0], 0, 1, 0);
        await(items, 2);
        assert_received(&items[1]);
        item_fini(&items[0]);
        item_fini(&items[1]);
        close_world();
    }
}

static void assert_refused(const struct transport_ops *ops, const char *devices,
                           const char *address, const char *ports)
{
    const struct transport_config config = { devices, address, ports };
    struct error e = { 0 };
    struct transport *t;

    assert_true(ops->open(&config, &t, &e) < 0);
    assert_true(strlen(e.text) > 0);
}

TEST(a_transport_says_what_it_is_and_refuses_what_it_cannot_use)
{
    for_each_row(row)
    {
        open_world(*row, 2);
        assert_true(strlen(world.ops->describe(world.nodes[0].t)) > 0);
        assert_string_equal(world.ops->settings(world.nodes[0].t),
                            world.ops->settings(world.nodes[1].t));
        close_world();
        if (is_local(*row))
            continue;
        assert_refused(*row, "nosuch0", "127.0.0.1", "");
        assert_refused(*row, "", "192.0.2.77", "");
        assert_refused(*row, "", "a.host", "");
        assert_refused(*row, "", "127.0.0.1", "41000");
        assert_refused(*row, "", "127.0.0.1", "41000-41001,");
        assert_refused(*row, "", "127.0.0.1", "41001-41000");
        assert_refused(*row, "", "127.0.0.1", "41000-65536");
    }
}

/* What the network is has to do with it; here it is the loopback. */
TEST(a_transport_says_which_messages_it_moves_from_and_to_gpus)
{
    for_each_row(row)
    {
        uint64_t least;

        open_world(*row, 2);
        least = (*row)->gpu_bytes_min(world.nodes[0].t);
        assert_true(least > 0);
        assert_int_equal(least, transport_gpu_bytes_min(world.nodes[1].t));
        if (strcmp((*row)->name, "ucx") != 0)
            assert_true(least == TRANSPORT_NO_GPUS);
        close_world();
    }
}

/* Some rows have a port for each peer, others one for all. */
TEST(what_the_range_of_ports_has_no_room_for_is_refused)
{
    for_each_row(row)
    {
        const unsigned port = 20000 + (unsigned)getpid() % 10000;
        char ports[32];
        const struct transport_config config = { "", "127.0.0.1", ports };
        struct transport *transports[4];
        struct transport_peer *peers[4];
        struct error e = { 0 };
        unsigned n = 0;

        if (is_local(*row))
            continue;
        snprintf(ports, sizeof(ports), "%u-%u", port, port + 1);
        while (n < 4 && (*row)->open(&config, &transports[n], &e) == 0) {
            if ((*row)->peer_new(transports[n], &peers[n], &e) < 0) {
                (*row)->close(transports[n]);
                break;
            }
            n++;
        }
        assert_true(n <= 2);
        assert_non_null(strstr(e.text, ports));
        while (n-- > 0) {
            (*row)->peer_free(peers[n]);
            (*row)->close(transports[n]);
        }
    }
}

/* The other node is a process, to be killed in the middle. */

static void tell_address(int fd, struct transport_peer *p)
{
    size_t len;
    const void *address = world.ops->peer_address(p, &len);

    assert_int_equal(send(fd, address, len, 0), (ssize_t)len);
}

static void meet(int fd, struct transport_peer *p)
{
    uint8_t address[TRANSPORT_ADDRESS_MAX];
    struct error e = { 0 };
    ssize_t n;

    tell_address(fd, p);
    n = recv(fd, address, sizeof(address), 0);
    assert_true(n > 0);
    assert_int_equal(world.ops->peer_connect(p, address, (size_t)n, &e), 0);
}

#define NTRAFFIC 12u

/* Both processes do the same; half of the transfers find their other half. */
static void start_traffic(struct item *items)
{
    for (unsigned i = 0; i < NTRAFFIC; i++) {
        item_init(&items[i], i / 2, i % 4 < 2 ? 4 << 20 : 10000, 1);
        if (i % 2)
            send_item(&items[i], 0, 0, 0);
        else if (i % 3)
            recv_item(&items[i], 0, 0, 0);
        else
            items[i].r = 0;
    }
}

/* Node 0's peer 0 is the other process. */
static void be_killed(const struct transport_ops *ops, int fd)
{
    static struct item items[NTRAFFIC];

    world.ops = ops;
    world.n = 1;
    world.loop = epoll_create1(EPOLL_CLOEXEC);
    open_node(0);
    world.nodes[0].peers[0] = make_peer(0);
    meet(fd, world.nodes[0].peers[0]);
    start_traffic(items);
    for (;;)
        turn(1000);
}

static void survive(const struct transport_ops *ops, unsigned round)
{
    static struct item items[NTRAFFIC];
    int fds[2];
    pid_t child;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
    child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        alarm(WAIT_S);
        close(fds[0]);
        be_killed(ops, fds[1]);
    }
    close(fds[1]);
    if (!world.nodes[0].t)
        open_node(0);
    world.nodes[0].nfailures = 0;
    world.nodes[0].peers[0] = make_peer(0);
    meet(fds[0], world.nodes[0].peers[0]);
    start_traffic(items);
    for (unsigned i = 0; i < round * 4; i++)
        turn(1);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    await_failure();
    turn_for(5);
    free_peer(0, 0);
    for (unsigned i = 0; i < NTRAFFIC; i++) {
        assert_int_not_equal(items[i].r, TRANSPORT_PENDING);
        item_fini(&items[i]);
    }
    close(fds[0]);
}

TEST(a_killed_process_is_noticed_once_and_the_survivor_lives)
{
    for_each_row(row)
    {
        if (is_local(*row))
            continue;
        world.ops = *row;
        world.n = 1;
        world.loop = epoll_create1(EPOLL_CLOEXEC);
        memset(&world.nodes[0], 0, sizeof(world.nodes[0]));
        for (unsigned round = 0; round < 20; round++)
            survive(*row, round);
        turn_for(20);
        close_world();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            messages_of_any_size_and_any_parts_arrive_before_and_after_they_are_asked_for),
        cmocka_unit_test(many_messages_are_matched_by_name_in_both_directions_of_two_channels),
        cmocka_unit_test(three_nodes_exchange_with_each_other),
        cmocka_unit_test(
            what_comes_for_a_channel_that_is_not_open_is_dropped_and_its_sender_goes_on),
        cmocka_unit_test(a_channel_may_close_on_messages_that_nobody_took),
        cmocka_unit_test(messages_of_forgotten_operations_are_dropped_before_and_after_they_come),
        cmocka_unit_test(another_number_of_bytes_ends_the_receive_and_nothing_is_written),
        cmocka_unit_test(a_cancelled_receive_ends_and_its_memory_is_left_alone),
        cmocka_unit_test(a_transfer_cancelled_in_the_middle_ends_one_way_or_the_other),
        cmocka_unit_test(a_cancelled_send_that_nobody_takes_ends),
        cmocka_unit_test(a_sender_far_ahead_of_its_receiver_fails_nobody),
        cmocka_unit_test(a_peer_freed_ends_what_is_pending_before_it_returns),
        cmocka_unit_test(peers_are_remade_fifty_times_with_large_sends_under_way),
        cmocka_unit_test(a_peer_that_is_not_connected_may_be_freed),
        cmocka_unit_test(a_peer_whose_other_end_is_gone_already_is_found_lost),
        cmocka_unit_test(an_idle_transport_sleeps_and_a_message_wakes_it),
        cmocka_unit_test(a_transport_says_what_it_is_and_refuses_what_it_cannot_use),
        cmocka_unit_test(a_transport_says_which_messages_it_moves_from_and_to_gpus),
        cmocka_unit_test(what_the_range_of_ports_has_no_room_for_is_refused),
        cmocka_unit_test(a_killed_process_is_noticed_once_and_the_survivor_lives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
