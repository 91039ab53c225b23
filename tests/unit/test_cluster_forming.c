/* Communicators over several nodes: how they form, or do not. */
#include "tests/unit/unit.h"

#include <string.h>

#include "tests/unit/cluster_calls.h"

/* ---- forming */

static void form(uint32_t nnodes, uint32_t root, uint32_t nranks, const uint32_t *place)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(nnodes, seed);
        cluster_join(root, nranks, place);
        expect_joined(nranks);
        leave_all(nranks);
        cluster_close();
    }
}

TEST(a_group_forms_wherever_its_ranks_are)
{
    form(1, 0, 8, alone);
    form(2, 0, 8, split_evenly);
    form(2, 1, 8, split_evenly);
    form(4, 2, 8, pairs);
    form(3, 1, 8, odd);
    form(4, 0, 4, singles);
}

TEST(a_root_without_ranks_only_coordinates)
{
    form(5, 4, 8, pairs);
    form(2, 1, 8, alone);
}

/* ---- what goes wrong while a group forms */

TEST(a_group_that_means_two_things_fails_for_all)
{
    for (uint32_t field = 0; field < 3; field++) {
        struct error e = { 0 };

        cluster_open(3, field + 1);
        cluster_id(0);
        for (uint32_t r = 0; r < 3; r++) {
            const bool odd_one = r == 2;

            assert_int_equal(
                cluster_join_as(r, r, odd_one && field == 0 ? 5 : 4, CLUSTER_UID,
                                odd_one && field == 1 ? 7 * CLUSTER_TIME : CLUSTER_TIME,
                                odd_one && field == 2 ? "ring" : "auto", &e),
                0);
            cluster_run();
        }
        expect_refused(3, ERROR_MISMATCH, "join: rank 2 said");
        cluster_close();
    }
}

TEST(a_rank_that_may_not_join_is_told_and_the_group_goes_on)
{
    struct error e;

    cluster_open(3, 3);
    cluster_id(0);
    assert_int_equal(join_one(0, 0, &e), 0);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    memset(&e, 0, sizeof(e));
    /* another user's, and a rank that is taken */
    assert_int_equal(cluster_join_as(2, 2, 4, CLUSTER_UID + 1, CLUSTER_TIME, "", &e), 0);
    cluster_run();
    assert_int_equal(cluster_rank(2)->join_error.code, ERROR_PERMISSION);
    cluster_leave(2);
    assert_int_equal(cluster_rank(2)->lefts, 1);
    assert_int_equal(cluster_join_as(4, 2, 5, CLUSTER_UID, CLUSTER_TIME, "wrong", &e),
                     -ERROR_UNSUPPORTED_ALGORITHM);
    *cluster_rank(2) = (struct cluster_rank){ .memory = cluster_rank(2)->memory };
    assert_int_equal(join_one(2, 2, &e), 0);
    assert_int_equal(join_one(3, 2, &e), 0);
    cluster_run();
    expect_joined(4);
    cluster_close();
}

TEST(a_rank_that_is_taken_on_another_node_is_refused)
{
    struct cluster_rank first;
    struct error e;

    cluster_open(3, 3);
    cluster_id(0);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    first = *cluster_rank(1);
    *cluster_rank(1) = (struct cluster_rank){ 0 };
    assert_int_equal(join_one(1, 2, &e), 0);
    cluster_run();
    assert_int_equal(cluster_rank(1)->join_error.code, ERROR_DUPLICATE_RANK);
    assert_non_null(
        strstr(cluster_rank(1)->join_error.text, "rank 1 is taken by pid 101 on host1"));
    cluster_leave(1);
    mapping_unref(cluster_rank(1)->memory);
    *cluster_rank(1) = first;
    cluster_close();
}

/* It came to its node before that node heard who is where. */
TEST(a_rank_that_comes_twice_does_not_harm_the_group)
{
    struct cluster_rank first;
    struct member *twice;
    struct error e;

    cluster_open(3, 3);
    cluster_id(0);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(join_one(r, r % 3, &e), 0);
    cluster_mute(0, true); /* what the root says is on its way */
    cluster_run();
    first = *cluster_rank(2);
    assert_int_equal(join_one(2, 1, &e), 0);
    twice = cluster_rank(2)->member;
    cluster_mute(0, false);
    cluster_run();
    assert_int_equal(cluster_rank(2)->joins, 2); /* of which one was refused */
    member_leave(twice, cluster_now());
    cluster_rank(2)->member = first.member;
    cluster_rank(2)->node = first.node;
    cluster_rank(2)->joins = 1;
    cluster_rank(2)->lefts = 0;
    expect_joined(4);
    leave_all(4);
    cluster_close();
}

TEST(an_id_that_nobody_knows_is_refused_by_its_daemon)
{
    struct error e;

    cluster_open(2, 3);
    cluster_id(0);
    assert_int_equal(comms_id_drop(cluster_comms(0), CLUSTER_UID, cluster_id_text(), &e), 0);
    assert_int_equal(join_one(0, 1, &e), 0);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    expect_refused(2, ERROR_NOT_FOUND, "no communicator can be joined by id");
    cluster_leave(0);
    cluster_leave(1);
    assert_int_equal(comms_count(cluster_comms(1)), 0);
    cluster_close();
}

TEST(a_root_that_cannot_be_reached_is_named)
{
    struct error e;

    cluster_open(2, 3);
    cluster_id(0);
    cluster_hide(0);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    expect_refused(2, ERROR_RANK_LOST, "the daemon that made the id, host0:7777");
    cluster_close();
}

TEST(a_group_that_is_not_complete_in_time_says_who_is_missing)
{
    struct error e;

    cluster_open(3, 3);
    cluster_id(0);
    assert_int_equal(join_one(1, 1, &e), 0);
    assert_int_equal(join_one(2, 2, &e), 0);
    cluster_run();
    cluster_wait(CLUSTER_TIME);
    cluster_run();
    expect_refused(4, ERROR_TIMEOUT, "2 of 4 ranks joined, missing: ranks 0, 3");
    cluster_close();
}

TEST(a_root_that_does_not_answer_is_waited_for_in_vain)
{
    struct error e;

    cluster_open(2, 3);
    cluster_id(0);
    cluster_mute(0, true);
    cluster_mute(1, true);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    cluster_wait(CLUSTER_TIME + 2000000);
    expect_refused(4, ERROR_TIMEOUT, "no answer from the daemon that made the id, host0:7777");
    cluster_close();
}

TEST(a_node_without_staging_is_named_to_all)
{
    cluster_open(3, 3);
    cluster_set_staging(2, 100); /* and a chunk of each of three nodes is 12 KiB */
    cluster_join(0, 8, odd);
    expect_refused(8, ERROR_QUOTA, "node host2 (host2:7777) has 100 bytes of staging left");
    cluster_unset_staging(2, 100);
    cluster_close();
}

TEST(a_client_or_node_that_dies_while_its_group_forms_takes_it_along)
{
    for (uint32_t k = 0; k < 60; k++) {
        struct error e;

        cluster_open(3, k + 1);
        cluster_id(k % 3);
        for (uint32_t r = 0; r < 4; r++)
            assert_int_equal(join_one(r, r % 3, &e), 0);
        cluster_deliver(k / 2);
        if (k % 2)
            cluster_lose(1);
        else
            cluster_kill(1);
        cluster_run();
        cluster_wait(CLUSTER_TIME + FORMING_TIME); /* the node may have died before it asked */
        cluster_run();
        for (uint32_t r = 0; r < 4; r++) {
            const struct cluster_rank *rank = cluster_rank(r);

            if (r == 1)
                continue;
            assert_int_equal(rank->joins, 1);
            if (!rank->join_error.code) { /* it was too late for that */
                struct post post = cluster_describe(r, COLLECTIVE_BARRIER, DTYPE_I32, 1);

                assert_int_equal(cluster_post(r, &post), 0);
                assert_int_equal(rank->error.code, ERROR_RANK_LOST);
            } else if (rank->join_error.code != ERROR_TIMEOUT || k % 2) {
                assert_int_equal(rank->join_error.code, ERROR_RANK_LOST);
            }
        }
        cluster_close();
    }
}

static const char *const uuids[] = { "00000000-0000-0000-0000-000000000000",
                                     "00000000-0000-0000-0000-000000000001",
                                     "00000000-0000-0000-0000-000000000002" };

/* Node 1 with ranks 0 and 1 of 4 waits for node 0, its root, which says this. */
static void describe_group(uint32_t own, uint32_t other, const uint32_t *node_of_rank,
                           uint32_t nnodes, uint32_t nranks)
{
    const struct peer_node nodes[2] = { { uuids[own], "a", "host1:7777" },
                                        { uuids[other], "b", "host0:7777" } };
    const uint32_t pids[5] = { 1, 2, 3, 4, 5 };
    struct peer_message m = { .kind = PEER_FORM,
                              .form = { .algorithm = "auto",
                                        .nodes = nodes,
                                        .nnodes = nnodes,
                                        .node_of_rank = node_of_rank,
                                        .pids = pids,
                                        .nranks = nranks,
                                        .chunk_bytes = 4096,
                                        .depth = 2,
                                        .latency_us = 1,
                                        .message_us = 1,
                                        .link_bytes_per_us = 1,
                                        .memory_bytes_per_us = 1 } };
    struct error e;

    cluster_open(3, 1);
    cluster_id(0);
    assert_int_equal(join_one(0, 1, &e), 0);
    assert_int_equal(join_one(1, 1, &e), 0);
    cluster_run();
    m.form.id = cluster_id_text();
    cluster_forge(0, 1, &m);
    cluster_run();
    expect_refused(2, ERROR_PROTOCOL, "the root daemon described another group");
    cluster_close();
}

TEST(a_group_that_a_root_makes_up_fails)
{
    static const uint32_t good[] = { 0, 0, 1, 1, 1 };
    static const uint32_t more[] = { 0, 0, 0, 1 }, one[] = { 0, 0, 0, 0 };

    describe_group(1, 0, good, 2, 5); /* of another size */
    describe_group(2, 0, good, 2, 4); /* without this node */
    describe_group(1, 1, good, 2, 4); /* with it twice */
    describe_group(1, 0, more, 2, 4); /* with a rank here that is not */
    describe_group(1, 0, one, 1, 4);  /* all of it here */
}

/* What only a root, a guest or a node of the group may say is not listened to from another. */
TEST(strangers_are_not_listened_to)
{
    static const enum peer_kind kinds[] = { PEER_REFUSED, PEER_WITHDRAW, PEER_READY, PEER_GO };
    struct error e;

    cluster_open(3, 1);
    cluster_id(0);
    assert_int_equal(join_one(0, 0, &e), 0);
    assert_int_equal(join_one(1, 1, &e), 0);
    assert_int_equal(join_one(2, 1, &e), 0);
    cluster_run();
    for (uint32_t to = 0; to < 2; to++) {
        for (uint32_t i = 0; i < 4; i++) {
            struct peer_message m = { .kind = kinds[i] };

            if (kinds[i] == PEER_REFUSED) {
                m.refused.id = cluster_id_text();
                m.refused.rank = PEER_ALL_RANKS;
                m.refused.error = (struct error){ .code = ERROR_ABORTED, .text = "no" };
            } else if (kinds[i] == PEER_WITHDRAW) {
                m.withdraw.id = cluster_id_text();
                m.withdraw.error = (struct error){ .code = ERROR_ABORTED, .text = "no" };
            } else if (kinds[i] == PEER_READY) {
                m.ready.id = cluster_id_text();
            } else {
                m.go.id = cluster_id_text();
            }
            cluster_link(2, to);
            cluster_forge(2, to, &m);
            cluster_run();
        }
    }
    assert_int_equal(join_one(3, 1, &e), 0);
    cluster_run();
    expect_joined(4);
    cluster_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_forms_wherever_its_ranks_are),
        cmocka_unit_test(a_root_without_ranks_only_coordinates),
        cmocka_unit_test(a_group_that_means_two_things_fails_for_all),
        cmocka_unit_test(a_rank_that_may_not_join_is_told_and_the_group_goes_on),
        cmocka_unit_test(a_rank_that_is_taken_on_another_node_is_refused),
        cmocka_unit_test(a_rank_that_comes_twice_does_not_harm_the_group),
        cmocka_unit_test(an_id_that_nobody_knows_is_refused_by_its_daemon),
        cmocka_unit_test(a_root_that_cannot_be_reached_is_named),
        cmocka_unit_test(a_group_that_is_not_complete_in_time_says_who_is_missing),
        cmocka_unit_test(a_root_that_does_not_answer_is_waited_for_in_vain),
        cmocka_unit_test(a_node_without_staging_is_named_to_all),
        cmocka_unit_test(a_client_or_node_that_dies_while_its_group_forms_takes_it_along),
        cmocka_unit_test(a_group_that_a_root_makes_up_fails),
        cmocka_unit_test(strangers_are_not_listened_to),
    };

    return cmocka_run_group_tests_name("each tells each", tests, NULL, NULL) +
           cmocka_run_group_tests_name("over a tree", tests, cluster_over_a_tree, NULL);
}
