/* What transport.h promises of peers that come and go, in every state and by every way. */
#include "tests/contract/transport_world.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

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
        cmocka_unit_test(a_peer_freed_ends_what_is_pending_before_it_returns),
        cmocka_unit_test(peers_are_remade_fifty_times_with_large_sends_under_way),
        cmocka_unit_test(a_peer_that_is_not_connected_may_be_freed),
        cmocka_unit_test(a_peer_whose_other_end_is_gone_already_is_found_lost),
        cmocka_unit_test(a_killed_process_is_noticed_once_and_the_survivor_lives),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
