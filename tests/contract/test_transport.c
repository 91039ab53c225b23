/* What transport.h promises, of every row there is: messages arrive, and a row says what it is. */
#include "tests/contract/transport_world.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const uint64_t sizes[] = { 0, 1, 13, 8192, 65536, 65537, (1 << 20) + 1, 64 << 20 };

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

/* Until nobody has woken for a while. */
static void turn_until_quiet(void)
{
    const uint64_t until = now_ns(CLOCK_MONOTONIC) + WAIT_S * 1000000000ull;

    while (turn(100))
        if (now_ns(CLOCK_MONOTONIC) > until)
            fail_msg("it never sleeps");
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            messages_of_any_size_and_any_parts_arrive_before_and_after_they_are_asked_for),
        cmocka_unit_test(many_messages_are_matched_by_name_in_both_directions_of_two_channels),
        cmocka_unit_test(three_nodes_exchange_with_each_other),
        cmocka_unit_test(another_number_of_bytes_ends_the_receive_and_nothing_is_written),
        cmocka_unit_test(a_sender_far_ahead_of_its_receiver_fails_nobody),
        cmocka_unit_test(an_idle_transport_sleeps_and_a_message_wakes_it),
        cmocka_unit_test(a_transport_says_what_it_is_and_refuses_what_it_cannot_use),
        cmocka_unit_test(a_transport_says_which_messages_it_moves_from_and_to_gpus),
        cmocka_unit_test(what_the_range_of_ports_has_no_room_for_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
