/* Communicators over several nodes: how they end, and that all are told. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "tests/unit/cluster_calls.h"

/* What the survivors do in a short life: join, two operations, a split, parting. */
static void live(uint32_t nranks, const uint32_t *place)
{
    struct error e = { 0 };

    cluster_id(0);
    for (uint32_t r = 0; r < nranks; r++)
        cluster_join_as(r, place[r], nranks, CLUSTER_UID, CLUSTER_TIME, "", &e);
    cluster_run();
    cluster_wait(CLUSTER_TIME + FORMING_TIME); /* for those who died before they had asked */
    cluster_run();
    for (uint32_t call = 0; call < 4; call++) {
        const uint64_t n =
            call < 3 ? 2001 : 5003; /* with the request, and begun before the verdict */

        for (uint32_t r = 0; r < nranks; r++) {
            struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_I32, n);

            if (!cluster_rank(r)->member || cluster_rank(r)->join_error.code ||
                cluster_rank(r)->leaving)
                continue;
            if (call == 1)
                post = cluster_describe(r, COLLECTIVE_SPLIT, DTYPE_I32, 1);
            post.color = (int32_t)r % 2;
            post.persistent = call == 2;
            assert_int_equal(cluster_post(r, &post), 0);
        }
        cluster_run();
    }
    for (uint32_t r = 0; r < nranks; r++)
        if (cluster_rank(r)->child)
            member_leave(cluster_rank(r)->child, cluster_now());
    for (uint32_t r = 0; r < nranks; r++)
        if (cluster_rank(r)->member && !cluster_rank(r)->leaving)
            cluster_leave(r);
    cluster_run();
}

/* Who leaves before the others. */
static uint32_t leaver;

/* Everyone who is left has been told everything, and of nothing but these. */
static void expect_told(uint64_t k, enum error_code code, enum error_code other)
{
    for (uint32_t r = 0; r < 6; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        assert_null(rank->member);
        if (rank->lefts == 0 || r == leaver) /* it was the one that ended */
            continue;
        assert_int_equal(rank->joins, 1);
        if (!rank->join_error.code && rank->answers != 4)
            fail_msg("after %llu: rank %u has %u answers", (unsigned long long)k, r, rank->answers);
        for (uint32_t i = 0; i < rank->answers; i++)
            if (rank->codes[i] && rank->codes[i] != (int)code && rank->codes[i] != (int)other)
                fail_msg("after %llu: rank %u: %s", (unsigned long long)k, r, rank->error.text);
    }
}

/* Something happens after every message in turn of a short life. */
static void walk(void (*what)(void), enum error_code code, enum error_code other)
{
    uint64_t last = 1;

    for (uint64_t k = 0; k <= last; k++) { /* 0: nothing does */
        cluster_open(3, k);
        cluster_at(k, what);
        live(6, odd);
        expect_told(k, k ? code : ERROR_NONE, other);
        if (k == 0)
            last = cluster_delivered();
        cluster_close();
    }
    assert_true(last > 40);
}

static void cut_root_and_guest(void)
{
    cluster_cut(0, 2);
}

static void cut_guests(void)
{
    cluster_cut(1, 2);
}

static void kill_guest(void)
{
    cluster_kill(2);
}

static void kill_root(void)
{
    cluster_kill(0);
}

static void lose_one(void)
{
    if (cluster_rank(5)->member)
        cluster_lose(5);
}

static void leave_one(void)
{
    if (cluster_rank(3)->member && !cluster_rank(3)->leaving)
        cluster_leave(3);
}

static void abort_one(void)
{
    if (cluster_rank(2)->member)
        member_abort(cluster_rank(2)->member, "enough", cluster_now());
}

TEST(whatever_ends_after_any_message_all_others_are_told)
{
    leaver = UINT32_MAX;
    walk(cut_root_and_guest, ERROR_RANK_LOST, ERROR_RANK_LOST);
    walk(cut_guests, ERROR_RANK_LOST, ERROR_RANK_LOST);
    walk(kill_guest, ERROR_RANK_LOST, ERROR_RANK_LOST);
    walk(kill_root, ERROR_RANK_LOST, ERROR_RANK_LOST);
    walk(lose_one, ERROR_RANK_LOST, ERROR_RANK_LOST);
    leaver = 3;
    walk(leave_one, ERROR_RANK_LEFT, ERROR_RANK_LEFT);
    leaver = UINT32_MAX;
    walk(abort_one, ERROR_ABORTED, ERROR_ABORTED);
}

/* A device or the network fails one node's part of moving the data. */
static void fail_moving(uint64_t n, bool network, uint64_t which, int err, enum error_code code)
{
    cluster_open(3, which);
    cluster_join(0, 8, odd);
    fill(8, n);
    if (network)
        cluster_fail_transfer(1, which, err);
    else
        cluster_fail_task(1, which, err);
    post_all(8, COLLECTIVE_ALL_REDUCE, n, BUDGET_NONE);
    cluster_run();
    cluster_wait(2000000); /* for a link to notice what its payload has */
    cluster_run();
    for (uint32_t r = 0; r < 8; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        assert_int_equal(rank->answers, 1);
        if (rank->error.code && rank->error.code != code)
            fail_msg("%llu: rank %u: %s", (unsigned long long)which, r, rank->error.text);
    }
    post_all(8, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    cluster_run();
    for (uint32_t r = 0; r < 8; r++)
        assert_int_equal(cluster_rank(r)->answers, 2);
    cluster_close();
}

TEST(what_fails_on_one_node_fails_on_all)
{
    for (uint64_t which = 1; which <= 6; which++) {
        fail_moving(5, false, which, EFAULT, ERROR_MEMORY_FAULT);
        fail_moving(5, false, which, EIO, ERROR_SYSTEM);
        fail_moving(5003, false, which, EFAULT, ERROR_MEMORY_FAULT);
        fail_moving(5003, true, which, EIO, ERROR_SYSTEM);
        fail_moving(5003, true, which, ECONNRESET, ERROR_RANK_LOST);
    }
}

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

/* Rank 5 of node 2 does it after k messages, while all others are in an operation. */
static void fail_after(uint64_t k, void (*end)(uint32_t rank), enum error_code code)
{
    cluster_open(3, k + 1);
    cluster_join(0, 8, odd);
    fill(8, 3001);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = describe(r, 8, COLLECTIVE_ALL_REDUCE, 3001, BUDGET_NONE);

        if (r == 5 && k < 8)
            continue;
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_deliver((uint32_t)k);
    end(5);
    cluster_run();
    for (uint32_t r = 0; r < 8; r++) {
        const struct cluster_rank *rank = cluster_rank(r);
        struct post post = describe(r, 8, COLLECTIVE_ALL_REDUCE, 3, BUDGET_NONE);

        if (r == 5 || !rank->member)
            continue;
        if (rank->answers == 1 && !rank->error.code) { /* it was too late for that */
            assert_int_equal(cluster_post(r, &post), 0);
            cluster_run();
        }
        if (rank->answers == 0 || rank->error.code != code)
            fail_msg("after %llu: rank %u has %u answers, %s", (unsigned long long)k, r,
                     rank->answers, rank->error.text);
    }
    cluster_close();
}

TEST(the_end_of_a_rank_is_told_to_all_nodes)
{
    for (uint64_t k = 0; k < 24; k++) {
        fail_after(k, die, ERROR_RANK_LOST);
        fail_after(k, abandon, ERROR_RANK_LEFT);
        fail_after(k, give_up, ERROR_ABORTED);
        fail_after(k, vanish, ERROR_RANK_LOST);
    }
}

TEST(a_lost_node_is_named_with_its_ranks)
{
    cluster_open(3, 1);
    cluster_join(0, 8, odd);
    post_all(4, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    cluster_kill(2);
    cluster_run();
    assert_string_equal(cluster_rank(1)->error.text,
                        "'job': ranks 0, 4, 5 (on host2) lost: node host2 (host2:7777): connection "
                        "reset");
    cluster_close();
}

TEST(a_timeout_names_who_is_missing_on_every_node)
{
    struct post post;

    cluster_open(3, 1);
    cluster_join(0, 8, odd);
    expect_works(8);
    for (uint32_t r = 0; r < 8; r++) {
        post = cluster_describe(r, COLLECTIVE_BARRIER, DTYPE_I32, 1);
        if (r != 5 && r != 3)
            assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    cluster_wait(CLUSTER_TIME);
    cluster_run();
    cluster_wait(1); /* the answers are in */
    cluster_run();
    for (uint32_t r = 0; r < 8; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (r == 5 || r == 3)
            continue;
        assert_int_equal(rank->answers, 2);
        assert_int_equal(rank->error.code, ERROR_TIMEOUT);
        if (!strstr(rank->error.text, "ranks 0-2, 4, 6, 7 arrived, ranks 3, 5 did not") ||
            !strstr(rank->error.text, "rank 3 (pid 103 on host0) last: all_reduce 1, 30.0 s ago; "
                                      "rank 5 (pid 105 on host2) last: all_reduce 1, 30.0 s ago"))
            fail_msg("rank %u: %s", r, rank->error.text);
    }
    cluster_close();
}

TEST(a_node_that_does_not_answer_is_not_waited_for_longer)
{
    struct post post;

    cluster_open(2, 1);
    cluster_join(0, 8, split_evenly);
    cluster_mute(1, true);
    for (uint32_t r = 0; r < 4; r++) {
        post = cluster_describe(r, COLLECTIVE_BARRIER, DTYPE_I32, 1);
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    cluster_wait(CLUSTER_TIME);
    cluster_run();
    assert_int_equal(cluster_rank(0)->answers, 0);
    cluster_wait(1000000);
    assert_int_equal(cluster_rank(0)->error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(cluster_rank(0)->error.text, "whose node has not answered"));
    cluster_close();
}

/* ---- what a peer has no right to say */

static struct peer_part good_part(uint32_t rank)
{
    return (struct peer_part){ .rank = rank, .d = { .kind = COLLECTIVE_BARRIER } };
}

static void forge(void (*make)(struct peer_message *m, struct peer_part *parts))
{
    struct peer_part parts[4] = { good_part(4), good_part(5), good_part(6), good_part(7) };
    struct peer_message m = { .kind = PEER_AGREE,
                              .agree = { .sequence = 2, .parts = parts, .nparts = 1 } };

    cluster_open(2, 1);
    cluster_join(0, 8, split_evenly);
    expect_works(8);
    make(&m, parts);
    cluster_give_key(&m);
    cluster_forge(1, 0, &m);
    cluster_run();
    post_all(4, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    cluster_run();
    expect_all_told(4, ERROR_PROTOCOL, NULL);
    assert_non_null(strstr(cluster_rank(0)->error.text, "node host1 (host1:7777) sent"));
    cluster_close();
}

static void early(struct peer_message *m, struct peer_part *parts)
{
    (void)parts;
    m->agree.sequence = 3;
}

static void late(struct peer_message *m, struct peer_part *parts)
{
    (void)parts;
    m->agree.sequence = 1;
}

static void others_rank(struct peer_message *m, struct peer_part *parts)
{
    (void)m;
    parts[0].rank = 3;
}

static void too_few(struct peer_message *m, struct peer_part *parts)
{
    (void)parts;
    m->agree.nparts = 2;
}

static void no_dtype(struct peer_message *m, struct peer_part *parts)
{
    (void)m;
    parts[0].d.kind = COLLECTIVE_ALL_REDUCE;
    parts[0].d.dtype = (enum dtype_id)99;
}

static void no_counts(struct peer_message *m, struct peer_part *parts)
{
    m->agree.nparts = 4;
    for (uint32_t i = 0; i < 4; i++)
        parts[i].d = (struct descriptor){ .kind = COLLECTIVE_ALL_TO_ALL_V,
                                          .dtype = DTYPE_I32,
                                          .shape = { 1, { 3 } } };
}

static void no_colors(struct peer_message *m, struct peer_part *parts)
{
    (void)m;
    parts[0].d.kind = COLLECTIVE_SPLIT;
}

static void settled(struct peer_message *m, struct peer_part *parts)
{
    (void)parts;
    *m = (struct peer_message){ .kind = PEER_SETTLED, .settled = { .sequence = 2 } };
}

static void left_another(struct peer_message *m, struct peer_part *parts)
{
    (void)parts;
    *m = (struct peer_message){ .kind = PEER_LEFT, .left = { .rank = 2 } };
}

TEST(what_makes_no_sense_fails_the_communicator_and_nothing_else)
{
    forge(early);
    forge(late);
    forge(others_rank);
    forge(too_few);
    forge(no_dtype);
    forge(no_counts);
    forge(no_colors);
    forge(settled);
    forge(left_another);
}

TEST(a_peer_cannot_be_endlessly_ahead)
{
    struct peer_part part = good_part(4);
    struct peer_message m = { .kind = PEER_AGREE,
                              .agree = { .sequence = 2, .parts = &part, .nparts = 1 } };

    cluster_open(2, 1);
    cluster_join(0, 8, split_evenly);
    expect_works(8);
    cluster_give_key(&m);
    for (; m.agree.sequence < 5000; m.agree.sequence++) {
        cluster_forge(1, 0, &m);
        if (m.agree.sequence % 100 == 0)
            cluster_run();
    }
    cluster_run();
    post_all(4, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    expect_all_told(4, ERROR_PROTOCOL, NULL);
    cluster_close();
}

/* ---- pairs */

static void post_pair(uint32_t rank, enum collective_id kind, uint32_t peer, uint32_t tag,
                      uint64_t count)
{
    struct post post = cluster_describe(rank, kind, DTYPE_I32, count);

    post.peer = peer;
    post.tag = tag;
    assert_int_equal(cluster_post(rank, &post), 0);
}

TEST(a_pair_does_not_outlive_its_other_end)
{
    for (uint32_t k = 0; k < 6; k++) {
        const bool sends = k % 2;

        cluster_open(3, k + 1);
        cluster_join(0, 8, odd);
        post_pair(1, sends ? COLLECTIVE_SEND : COLLECTIVE_RECV, 5, 9, 100);
        if (k < 2)
            cluster_lose(5);
        else if (k < 4)
            cluster_leave(5);
        else
            cluster_kill(2);
        cluster_run();
        assert_int_equal(cluster_rank(1)->answers, 1);
        assert_int_equal(cluster_rank(1)->error.code,
                         k == 2 || k == 3 ? ERROR_RANK_LEFT : ERROR_RANK_LOST);
        cluster_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_ends_after_any_message_all_others_are_told),
        cmocka_unit_test(what_fails_on_one_node_fails_on_all),
        cmocka_unit_test(the_end_of_a_rank_is_told_to_all_nodes),
        cmocka_unit_test(a_lost_node_is_named_with_its_ranks),
        cmocka_unit_test(a_timeout_names_who_is_missing_on_every_node),
        cmocka_unit_test(a_node_that_does_not_answer_is_not_waited_for_longer),
        cmocka_unit_test(what_makes_no_sense_fails_the_communicator_and_nothing_else),
        cmocka_unit_test(a_peer_cannot_be_endlessly_ahead),
        cmocka_unit_test(a_pair_does_not_outlive_its_other_end),
    };

    int failed = cmocka_run_group_tests_name("each tells each", tests, NULL, NULL);

    cluster_use_gpus(50);
    failed += cmocka_run_group_tests_name("some of the memory is on GPUs", tests, NULL, NULL);
    cluster_use_gpus(0);
    return failed + cmocka_run_group_tests_name("over a tree", tests, cluster_over_a_tree, NULL);
}
