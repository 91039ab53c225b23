/* Communicators over many nodes: what they ask goes over a tree of them. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <string.h>

#include "daemon/comm/gather.h"
#include "tests/unit/cluster_calls.h"

static const uint32_t counts[] = { 2, 3, 4, 5, 8, 9, 17, 33 };

/* ---- the tree */

TEST(subtrees_are_their_roots_and_the_subtrees_of_their_children)
{
    for (uint32_t n = 1; n <= 70; n++) {
        uint32_t covered[70] = { 0 };

        for (uint32_t i = 0; i < n; i++) {
            const struct subtree s = gather_subtree(i, n);
            uint32_t size = 1;

            assert_int_equal(s.first, i);
            for (uint32_t child = i + 1; child < n; child++) {
                const struct subtree below = gather_subtree(child, n);

                if (gather_parent(child) != i)
                    continue;
                assert_true(below.end <= s.end);
                size += below.end - below.first;
            }
            assert_int_equal(size, s.end - s.first);
            for (uint32_t k = i; gather_parent(k) != k; k = gather_parent(k))
                covered[i]++;
            assert_true(covered[i] <= 7);
        }
        assert_int_equal(gather_subtree(0, n).end, n);
    }
}

/* ---- what it carries */

/* Two ranks on a third of the nodes, one on the others. Returns how many. */
static uint32_t place_on(uint32_t nnodes, uint32_t *place)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < nnodes; i++)
        place[n++] = i;
    for (uint32_t i = 0; i < nnodes && n < CLUSTER_RANKS; i += 3)
        place[n++] = i;
    return n;
}

/* Joined by ranks of this many nodes, which agree over a tree. */
static uint32_t open_many(uint32_t nnodes, uint64_t seed)
{
    uint32_t place[CLUSTER_RANKS];
    const uint32_t nranks = place_on(nnodes, place);

    cluster_set_tree_above(0);
    cluster_open(nnodes, seed);
    cluster_join(0, nranks, place);
    expect_joined(nranks);
    return nranks;
}

TEST(collectives_move_what_they_should_over_any_number_of_nodes)
{
    static const enum collective_id kinds[] = { COLLECTIVE_ALL_REDUCE, COLLECTIVE_GATHER,
                                                COLLECTIVE_BROADCAST, COLLECTIVE_ALL_TO_ALL };

    for (uint32_t i = 0; i < ARRAY_SIZE(counts); i++) {
        const uint32_t nranks = open_many(counts[i], i + 1);

        for (uint32_t k = 0; k < ARRAY_SIZE(kinds); k++) {
            for (uint64_t n = 3; n <= 203; n += 200) {
                fill(nranks, n);
                post_all(nranks, kinds[k], n, BUDGET_NONE);
                cluster_run();
                expect_moved(nranks, kinds[k], n);
            }
        }
        leave_all(nranks);
        cluster_close();
    }
}

static uint64_t messages_of_a_barrier(uint32_t nnodes)
{
    uint32_t place[CLUSTER_NODES];
    uint64_t before;

    for (uint32_t i = 0; i < nnodes; i++)
        place[i] = i;
    cluster_open(nnodes, 1);
    cluster_join(0, nnodes, place);
    before = cluster_delivered();
    post_all(nnodes, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    cluster_run();
    expect_all_told(nnodes, ERROR_NONE, NULL);
    before = cluster_delivered() - before;
    leave_all(nnodes);
    cluster_close();
    return before;
}

TEST(above_sixteen_nodes_a_message_goes_up_and_down_every_branch)
{
    cluster_set_tree_above(TABLE_TREE_ABOVE);
    assert_int_equal(messages_of_a_barrier(16), 16 * 15);
    assert_int_equal(messages_of_a_barrier(17), 2 * 16);
    assert_int_equal(messages_of_a_barrier(33), 2 * 32);
}

/* What is too long for one message goes in several. */
TEST(whatever_ranks_disagree_on_all_are_told_in_the_same_words)
{
    for (uint32_t i = 0; i < ARRAY_SIZE(counts); i++) {
        const uint32_t nranks = open_many(counts[i], i + 1);
        uint64_t before;

        for (uint32_t odd_one = 0; odd_one < nranks; odd_one += 3) {
            for (uint32_t r = 0; r < nranks; r++) {
                struct post post = describe(r, nranks, COLLECTIVE_ALL_REDUCE, 5, BUDGET_NONE);

                post.d.shape.axes[0] += r == odd_one;
                assert_int_equal(cluster_post(r, &post), 0);
            }
            cluster_run();
            expect_all_told(nranks, ERROR_MISMATCH, NULL);
        }
        before = cluster_delivered();
        for (uint32_t r = 0; r < nranks; r++) {
            struct post post = describe(r, nranks, COLLECTIVE_ALL_REDUCE, 5, BUDGET_NONE);

            post.in.offset = CLUSTER_BYTES; /* a long sentence of each */
            assert_int_equal(cluster_post(r, &post), 0);
        }
        cluster_run();
        expect_all_told(nranks, ERROR_OUT_OF_RANGE, NULL);
        assert_int_equal(cluster_delivered() - before > 2ull * (counts[i] - 1), counts[i] > 16);
        expect_works(nranks);
        leave_all(nranks);
        cluster_close();
    }
}

/* Words that go directly overtake what goes over the tree. */
TEST(a_split_settles_however_messages_overtake_each_other)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        const uint32_t nnodes = seed % 2 ? 9 : 5, nranks = open_many(nnodes, seed);

        for (uint32_t r = 0; r < nranks; r++) {
            struct post post = cluster_describe(r, COLLECTIVE_SPLIT, DTYPE_I32, 1);

            post.color = (int32_t)r % 2;
            assert_int_equal(cluster_post(r, &post), 0);
        }
        cluster_run();
        for (uint32_t r = 0; r < nranks; r++) {
            struct cluster_rank *rank = cluster_rank(r);

            if (rank->answers != 1 || rank->error.code || !rank->child)
                fail_msg("%llu: rank %u: %s", (unsigned long long)seed, r, rank->error.text);
            member_leave(rank->child, cluster_now());
        }
        expect_works(nranks);
        leave_all(nranks);
        cluster_close();
    }
}

/* Each leaves once it has its answer, be others still waiting for theirs. */
static void leave_at_once(uint32_t nnodes, uint64_t seed)
{
    uint32_t place[CLUSTER_RANKS];
    const uint32_t nranks = place_on(nnodes, place);

    cluster_open(nnodes, seed);
    cluster_join(0, nranks, place);
    post_all(nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    for (uint32_t i = 0; i < 4 * nnodes * nnodes; i++) {
        cluster_deliver(1);
        for (uint32_t r = 0; r < nranks; r++)
            if (cluster_rank(r)->answers && !cluster_rank(r)->leaving)
                cluster_leave(r);
    }
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (rank->answers != 1 || rank->error.code || rank->lefts != 1)
            fail_msg("%llu: rank %u: %s", (unsigned long long)seed, r, rank->error.text);
    }
    cluster_close();
}

TEST(who_leaves_with_its_answer_harms_nobody)
{
    for (uint64_t seed = 1; seed <= 20; seed++) {
        for (uint32_t tree = 0; tree < 2; tree++) {
            cluster_set_tree_above(tree ? 0 : TABLE_TREE_ABOVE);
            leave_at_once(3, seed);
            leave_at_once(9, seed);
        }
    }
}

/* ---- ends */

static void die(uint32_t rank)
{
    cluster_lose(rank);
}

static void abandon(uint32_t rank)
{
    cluster_leave(rank);
}

static void give_up(uint32_t rank)
{
    member_abort(cluster_rank(rank)->member, "enough", cluster_now());
}

static void vanish(uint32_t rank)
{
    cluster_kill(cluster_rank(rank)->node);
}

/* `victim`, whose node may be one that others' words go by, does it after k messages. */
static void fail_after(uint64_t k, uint32_t victim, bool posts, void (*end)(uint32_t rank),
                       enum error_code code)
{
    const uint32_t nranks = open_many(9, k * 10 + victim + 1);

    fill(nranks, 2001);
    for (uint32_t r = 0; r < nranks; r++) {
        struct post post = describe(r, nranks, COLLECTIVE_ALL_REDUCE, 2001, BUDGET_NONE);

        if (r != victim || posts)
            assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_deliver((uint32_t)k);
    if (cluster_rank(victim)->member)
        end(victim);
    cluster_run();
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);
        struct post post = describe(r, nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);

        if (r == victim || !rank->member)
            continue;
        if (rank->answers == 1 && !rank->error.code) { /* it was too late for that */
            assert_int_equal(cluster_post(r, &post), 0);
            cluster_run();
        }
        if (rank->answers == 0 || rank->error.code != code)
            fail_msg("rank %u after %llu: rank %u has %u answers, %s", victim,
                     (unsigned long long)k, r, rank->answers, rank->error.text);
    }
    cluster_close();
}

/* Of nodes 0, the root; 4 and 6, in the middle; 3 and 8, leaves. */
TEST(the_end_of_any_node_of_the_tree_is_told_to_all)
{
    static const uint32_t victims[] = { 0, 3, 4, 6, 8 };

    for (uint32_t i = 0; i < ARRAY_SIZE(victims); i++) {
        for (uint64_t k = 0; k <= 17; k++) {
            const bool posts = k > 7 || k % 2;

            fail_after(k, victims[i], posts, die, ERROR_RANK_LOST);
            fail_after(k, victims[i], posts, abandon, ERROR_RANK_LEFT);
            fail_after(k, victims[i], posts, vanish, ERROR_RANK_LOST);
        }
        fail_after(i, victims[i], false, give_up, ERROR_ABORTED);
    }
}

TEST(a_lost_node_in_the_middle_is_named_on_all)
{
    const uint32_t nranks = open_many(9, 1);

    for (uint32_t r = 0; r < nranks; r++) {
        struct post post = describe(r, nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);

        if (r != 4)
            assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    cluster_kill(4);
    cluster_run();
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (r != 4 && strcmp(rank->error.text,
                             "'job': rank 4 (on host4) lost: node host4 (host4:7777): connection "
                             "reset"))
            fail_msg("rank %u: %s", r, rank->error.text);
    }
    cluster_close();
}

/* ---- who is missing */

static void run_out(void)
{
    cluster_run();
    cluster_wait(CLUSTER_TIME);
    cluster_run();
    cluster_wait(1); /* the answers are in */
    cluster_run();
}

TEST(a_timeout_names_who_is_missing_wherever_in_the_tree)
{
    for (uint32_t i = 0; i < ARRAY_SIZE(counts); i++) {
        for (uint32_t absent = 0; absent < counts[i]; absent += 1 + counts[i] / 6) {
            const uint32_t nranks = open_many(counts[i], i + 1);
            char words[128];

            snprintf(words, sizeof(words),
                     ", rank %u did not: rank %u (pid %u on host%u) last: ", absent, absent,
                     100 + absent, absent);
            for (uint32_t r = 0; r < nranks; r++) {
                struct post post = describe(r, nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);

                if (r != absent)
                    assert_int_equal(cluster_post(r, &post), 0);
            }
            run_out();
            for (uint32_t r = 0; r < nranks; r++) {
                const struct cluster_rank *rank = cluster_rank(r);

                if (r == absent)
                    continue;
                assert_int_equal(rank->answers, 1);
                if (rank->error.code != ERROR_TIMEOUT || !strstr(rank->error.text, words))
                    fail_msg("rank %u: %s", r, rank->error.text);
            }
            cluster_close();
        }
    }
}

/* Node 4 says nothing: what nodes 5 to 7 ask is known to them alone, and yet they are not blamed.
 */
TEST(only_the_silent_node_is_blamed_for_its_silence)
{
    const uint32_t nranks = open_many(9, 1);

    cluster_mute(4, true);
    post_all(nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    run_out();
    assert_int_equal(cluster_rank(0)->answers, 0);
    cluster_wait(1000000);
    cluster_run();
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (r == 4)
            continue;
        assert_int_equal(rank->error.code, ERROR_TIMEOUT);
        if (!strstr(rank->error.text, ", rank 4 did not: rank 4 (pid 104 on host4) whose node has "
                                      "not answered"))
            fail_msg("rank %u: %s", r, rank->error.text);
    }
    cluster_close();
}

/* All have come, and say so; but node 2's word for itself and node 3 is still on its way. */
static void hold_up(void)
{
    const uint32_t nranks = open_many(4, 1);

    cluster_mute_link(2, 0, true);
    post_all(nranks, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    run_out();
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(cluster_rank(r)->answers, 0);
}

TEST(what_is_on_its_way_when_time_is_up_may_still_come)
{
    hold_up();
    cluster_mute_link(2, 0, false);
    cluster_run();
    expect_all_told(6, ERROR_NONE, NULL);
    assert_int_equal(cluster_rank(3)->answers, 1);
    cluster_close();
}

TEST(what_does_not_come_is_a_timeout_that_blames_no_rank)
{
    hold_up();
    cluster_wait(1000000);
    assert_int_equal(cluster_rank(3)->answers, 1);
    assert_int_equal(cluster_rank(3)->error.code, ERROR_TIMEOUT);
    assert_int_equal(cluster_rank(3)->error.nranks, 0);
    assert_non_null(
        strstr(cluster_rank(3)->error.text, "; ranks 0-5 arrived, but what they ask did not"));
    cluster_mute_link(2, 0, false);
    cluster_close();
}

/* ---- what a peer has no right to say */

/* Node `from` tells node `to` of nine what rank `rank` asks. `few`: not over a tree. */
static void forge(uint32_t from, uint32_t to, uint32_t rank, bool few, bool by_itself,
                  const char *words)
{
    const struct peer_part part = { .rank = rank, .d = { .kind = COLLECTIVE_BARRIER } };
    struct peer_agree agree = { .sequence = 2, .parts = &part, .nparts = 1 };
    struct peer_message m = { .kind = PEER_AGREE, .agree = agree }, gathered = { 0 };
    uint32_t place[CLUSTER_RANKS];

    place_on(9, place);
    cluster_set_tree_above(few ? TABLE_TREE_ABOVE : 0);
    cluster_open(9, 1);
    cluster_join(0, 9, place);
    expect_works(9);
    cluster_give_key(&m);
    gathered.kind = PEER_GATHERED;
    memcpy(gathered.gathered.key, m.agree.key, PEER_KEY_BYTES);
    gathered.gathered.sequence = 2;
    gathered.gathered.agrees = &agree;
    gathered.gathered.nagrees = 1;
    cluster_set_tree_above(TABLE_TREE_ABOVE); /* and what is forged goes as it is */
    cluster_forge(from, to, by_itself ? &m : &gathered);
    cluster_run();
    post_all(9, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    cluster_run();
    expect_all_told(9, ERROR_PROTOCOL, NULL);
    if (!strstr(cluster_rank(0)->error.text, words))
        fail_msg("%s", cluster_rank(0)->error.text);
    cluster_close();
}

TEST(who_passes_on_what_is_not_its_to_pass_on_fails_the_communicator)
{
    const char *const not_its = "sent agreements that are not its to pass on";
    const char *const not_there = "sent an agreement of a rank that is not there";

    forge(1, 0, 1, true, false, not_its);
    forge(3, 0, 3, false, false, not_its);   /* a grandchild */
    forge(0, 3, 1, false, false, not_its);   /* a grandparent */
    forge(5, 6, 5, false, false, not_its);   /* a sibling */
    forge(4, 0, 3, false, false, not_there); /* of another subtree */
    forge(4, 0, 8, false, false, not_there);
    forge(4, 0, 9, false, false, not_there);
    forge(0, 4, 9, false, false, not_there);
    forge(1, 0, 1, false, true, "sent an agreement by itself, of many");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(subtrees_are_their_roots_and_the_subtrees_of_their_children),
        cmocka_unit_test(collectives_move_what_they_should_over_any_number_of_nodes),
        cmocka_unit_test(above_sixteen_nodes_a_message_goes_up_and_down_every_branch),
        cmocka_unit_test(whatever_ranks_disagree_on_all_are_told_in_the_same_words),
        cmocka_unit_test(a_split_settles_however_messages_overtake_each_other),
        cmocka_unit_test(who_leaves_with_its_answer_harms_nobody),
        cmocka_unit_test(the_end_of_any_node_of_the_tree_is_told_to_all),
        cmocka_unit_test(a_lost_node_in_the_middle_is_named_on_all),
        cmocka_unit_test(a_timeout_names_who_is_missing_wherever_in_the_tree),
        cmocka_unit_test(only_the_silent_node_is_blamed_for_its_silence),
        cmocka_unit_test(what_is_on_its_way_when_time_is_up_may_still_come),
        cmocka_unit_test(what_does_not_come_is_a_timeout_that_blames_no_rank),
        cmocka_unit_test(who_passes_on_what_is_not_its_to_pass_on_fails_the_communicator),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
