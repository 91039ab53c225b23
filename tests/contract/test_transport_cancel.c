/* What transport.h promises of messages that nobody wants any more: cancelled ones, and those of
 * operations and channels that are gone. */
#include "tests/contract/transport_world.h"

#include <errno.h>

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
            world.ops->channel_open(world.nodes[1].t, channel_keys[0], &world.nodes[1].channels[0]),
            0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            what_comes_for_a_channel_that_is_not_open_is_dropped_and_its_sender_goes_on),
        cmocka_unit_test(a_channel_may_close_on_messages_that_nobody_took),
        cmocka_unit_test(messages_of_forgotten_operations_are_dropped_before_and_after_they_come),
        cmocka_unit_test(a_cancelled_receive_ends_and_its_memory_is_left_alone),
        cmocka_unit_test(a_transfer_cancelled_in_the_middle_ends_one_way_or_the_other),
        cmocka_unit_test(a_cancelled_send_that_nobody_takes_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
