/* What a communicator that has formed does: it splits, matches pairs, refuses, and ends. */
#include "tests/unit/group_world.h"

/* ---- the end */

TEST(all_leave_in_good_order_and_nothing_is_left)
{
    form(3);
    for (uint32_t r = 0; r < 3; r++) {
        member_leave(w.people[r].member, w.now);
        assert_int_equal(w.people[r].lefts, 1);
    }
    assert_int_equal(comms_count(w.comms), 0);
    assert_int_equal(join(0, 3), -ERROR_NOT_FOUND);
}

TEST(who_calls_after_a_leave_is_told_who_left)
{
    form(3);
    member_leave(w.people[1].member, w.now);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LEFT);
    assert_int_equal(w.people[0].error.ranks[0], 1);
    post_kind(2, COLLECTIVE_BARRIER);
    assert_string_equal(w.people[2].error.text, w.people[0].error.text);
}

TEST(the_first_failure_is_sticky)
{
    form(2);
    member_abort(w.people[0].member, "first", w.now);
    member_abort(w.people[1].member, "second", w.now);
    for (uint32_t r = 0; r < 2; r++) {
        post_kind(r, COLLECTIVE_BARRIER);
        assert_int_equal(w.people[r].error.code, ERROR_ABORTED);
        assert_non_null(strstr(w.people[r].error.text, "aborted by rank 0: first"));
    }
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_death_among_idle_ranks_fails_the_next_call_at_once)
{
    form(2);
    member_lost(w.people[0].member, "disconnected", w.now);
    w.people[0].member = NULL;
    post_kind(1, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[1].error.code, ERROR_RANK_LOST);
    assert_non_null(strstr(w.people[1].error.text, "disconnected"));
}

TEST(a_timeout_names_who_arrived_and_what_the_others_did_last)
{
    form(3);
    for (uint32_t r = 0; r < 3; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    post_kind(0, COLLECTIVE_BARRIER);
    w.now += 2 * SECOND;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(w.people[0].error.text, "barrier 2 of 'job'"));
    assert_non_null(strstr(w.people[0].error.text, "rank 0 arrived, ranks 1, 2 did not"));
    assert_non_null(strstr(w.people[0].error.text, "rank 1 (pid 501 on here) last: barrier 1"));
}

TEST(an_idle_communicator_never_times_out)
{
    form(2);
    w.now += 1000 * LIFETIME;
    comms_tick(w.comms, w.now);
    for (uint32_t r = 0; r < 2; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(w.people[0].answers, 1);
}

TEST(a_stopping_daemon_forms_nothing_new_and_finishes_what_runs)
{
    char other[COMM_ID_BYTES];

    form(2);
    comms_stop(w.comms);
    assert_int_equal(comms_id_new(w.comms, UID, w.now, other, NULL), -ERROR_DAEMON_STOPPING);
    assert_int_equal(join_as(3, UID, 0, 2, 0, ""), -ERROR_DAEMON_STOPPING);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(comms_unfinished(w.comms), 1);
    post_kind(1, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, 0);
    split(0, 0, 0);
    split(1, 0, 0);
    assert_int_equal(w.people[1].error.code, ERROR_DAEMON_STOPPING);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

/* ---- splits */

TEST(a_split_orders_by_key_then_rank)
{
    form(4);
    split(0, 7, 1);
    split(1, 7, 0);
    split(2, RANKS_MAX, 0);
    split(3, 7, 0);
    const uint32_t ranks[] = { 2, 0, 0, 1 }, sizes[] = { 3, 3, 1, 3 };

    for (uint32_t r = 0; r < 4; r++) {
        assert_non_null(w.people[r].child);
        assert_int_equal(w.people[r].child_number, 70 + r);
        assert_int_equal(member_rank(w.people[r].child), ranks[r]);
        assert_int_equal(member_nranks(w.people[r].child), sizes[r]);
    }
    assert_string_equal(member_id(w.people[0].child), member_id(w.people[3].child));
    assert_string_not_equal(member_id(w.people[0].child), member_id(w.people[2].child));
    for (uint32_t r = 0; r < 4; r++)
        member_lost(w.people[r].child, "died", w.now);
}

TEST(a_negative_color_gets_nothing)
{
    form(2);
    split(0, -1, 0);
    split(1, 0, 0);
    assert_null(w.people[0].child);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(member_nranks(w.people[1].child), 1);
    member_lost(w.people[1].child, "died", w.now);
}

TEST(a_split_over_the_quota_fails_for_all_and_leaves_nothing)
{
    form(5);
    for (uint32_t r = 0; r < 5; r++)
        split(r, (int32_t)r, 0);
    for (uint32_t r = 0; r < 5; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_QUOTA);
        assert_null(w.people[r].child);
    }
    assert_int_equal(comms_count(w.comms), 1);
    for (uint32_t r = 0; r < 5; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[4].error.code, 0);
}

TEST(a_child_outlives_its_parent)
{
    form(2);
    split(0, 0, 0);
    split(1, 0, 0);
    for (uint32_t r = 0; r < 2; r++) {
        struct member *child = w.people[r].child;

        member_leave(w.people[r].member, w.now);
        w.people[r].member = child;
    }
    assert_int_equal(comms_count(w.comms), 1);
    for (uint32_t r = 0; r < 2; r++)
        post_kind(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[1].error.code, 0);
}

/* ---- pairs */

TEST(pairs_match_by_peer_and_tag_in_order)
{
    form(3);
    pair(0, COLLECTIVE_SEND, 1, 5, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 0, 6, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 2, 5, DTYPE_F32);
    assert_int_equal(comms_unfinished(w.comms), 3);
    pair(1, COLLECTIVE_RECV, 0, 5, DTYPE_F32);
    assert_int_equal(w.people[0].answers, 1);
    assert_int_equal(w.people[1].answers, 1);
    pair(2, COLLECTIVE_SEND, 1, 5, DTYPE_F32);
    pair(0, COLLECTIVE_SEND, 1, 6, DTYPE_F32);
    assert_int_equal(w.people[1].answers, 3);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_rank_may_send_to_itself)
{
    form(1);
    pair(0, COLLECTIVE_SEND, 0, 0, DTYPE_U8);
    pair(0, COLLECTIVE_RECV, 0, 0, DTYPE_U8);
    assert_int_equal(w.people[0].answers, 2);
    assert_int_equal(w.people[0].error.code, 0);
}

TEST(a_pair_that_disagrees_fails_for_both_and_for_nobody_else)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 1, 0, DTYPE_F32);
    pair(1, COLLECTIVE_RECV, 0, 0, DTYPE_F64);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_MISMATCH);
        post_kind(r, COLLECTIVE_BARRIER);
    }
    assert_int_equal(w.people[1].error.code, 0);
}

TEST(a_peer_out_of_range_fails_the_caller_at_once)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 2, 0, DTYPE_F32);
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(a_pair_takes_no_sequence_number)
{
    form(1);
    pair(0, COLLECTIVE_SEND, 0, 0, DTYPE_U8);
    assert_int_equal(member_sequence(w.people[0].member), 1);
    post_kind(0, COLLECTIVE_BARRIER);
    assert_int_equal(member_sequence(w.people[0].member), 2);
}

TEST(an_unmatched_pair_times_out)
{
    form(2);
    pair(0, COLLECTIVE_SEND, 1, 9, DTYPE_F32);
    w.now += 2 * SECOND;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(w.people[0].error.text, "rank 0 arrived, rank 1 did not"));
}

TEST(an_unmatched_pair_with_itself_says_which_half_is_missing)
{
    static const struct {
        enum collective_id kind;
        const char *why;
    } rows[] = {
        { COLLECTIVE_SEND,
          "send of 'job': timeout after 2 s; no recv with tag 9 at rank 1 (itself)" },
        { COLLECTIVE_RECV,
          "recv of 'job': timeout after 2 s; no send with tag 9 at rank 1 (itself)" },
    };

    for (size_t i = 0; i < 2; i++) {
        form(2);
        pair(1, rows[i].kind, 1, 9, DTYPE_F32);
        w.now += 2 * SECOND;
        comms_tick(w.comms, w.now);
        assert_int_equal(w.people[1].error.code, ERROR_TIMEOUT);
        assert_string_equal(w.people[1].error.text, rows[i].why);
        assert_int_equal(w.people[1].error.nranks, 1);
        assert_int_equal(w.people[1].error.ranks[0], 1);
        for (uint32_t r = 0; r < 2; r++)
            member_leave(w.people[r].member, w.now);
    }
}

TEST(a_send_to_a_rank_that_left_fails)
{
    form(3);
    member_leave(w.people[1].member, w.now);
    pair(0, COLLECTIVE_SEND, 2, 0, DTYPE_F32);
    pair(2, COLLECTIVE_RECV, 0, 0, DTYPE_F32);
    assert_int_equal(w.people[2].error.code, 0);
    pair(0, COLLECTIVE_SEND, 1, 0, DTYPE_F32);
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LEFT);
}

/* ---- odd requests */

TEST(an_unknown_kind_is_a_rejection_in_its_slot)
{
    form(2);
    post_kind(0, (enum collective_id)99);
    post_kind(1, COLLECTIVE_BARRIER);
    for (uint32_t r = 0; r < 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_INVALID_ARGUMENT);
        assert_int_equal(w.people[r].error.ranks[0], 0);
        post_kind(r, COLLECTIVE_BARRIER);
    }
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(w.people[1].error.code, 0);
}

TEST(a_tensor_that_is_missing_is_a_rejection)
{
    form(1);
    post(0, (struct post){ .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                  .op = OPERATOR_SUM,
                                  .dtype = DTYPE_F32,
                                  .shape = { 1, { 3 } } } });
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(w.people[0].error.text, "needs an input tensor of 12 bytes"));
}

TEST(fifty_communicators_in_quick_succession)
{
    for (int i = 0; i < 50; i++) {
        form(PEOPLE);
        for (uint32_t r = 0; r < PEOPLE; r++)
            post_kind(r, COLLECTIVE_BARRIER);
        for (uint32_t r = 0; r < PEOPLE; r++) {
            assert_int_equal(w.people[r].error.code, 0);
            member_leave(w.people[r].member, w.now);
        }
    }
    assert_int_equal(comms_count(w.comms), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        GROUP_TEST(all_leave_in_good_order_and_nothing_is_left),
        GROUP_TEST(who_calls_after_a_leave_is_told_who_left),
        GROUP_TEST(the_first_failure_is_sticky),
        GROUP_TEST(a_death_among_idle_ranks_fails_the_next_call_at_once),
        GROUP_TEST(a_timeout_names_who_arrived_and_what_the_others_did_last),
        GROUP_TEST(an_idle_communicator_never_times_out),
        GROUP_TEST(a_stopping_daemon_forms_nothing_new_and_finishes_what_runs),
        GROUP_TEST(a_split_orders_by_key_then_rank),
        GROUP_TEST(a_negative_color_gets_nothing),
        GROUP_TEST(a_split_over_the_quota_fails_for_all_and_leaves_nothing),
        GROUP_TEST(a_child_outlives_its_parent),
        GROUP_TEST(pairs_match_by_peer_and_tag_in_order),
        GROUP_TEST(a_rank_may_send_to_itself),
        GROUP_TEST(a_pair_that_disagrees_fails_for_both_and_for_nobody_else),
        GROUP_TEST(a_peer_out_of_range_fails_the_caller_at_once),
        GROUP_TEST(a_pair_takes_no_sequence_number),
        GROUP_TEST(an_unmatched_pair_times_out),
        GROUP_TEST(an_unmatched_pair_with_itself_says_which_half_is_missing),
        GROUP_TEST(a_send_to_a_rank_that_left_fails),
        GROUP_TEST(an_unknown_kind_is_a_rejection_in_its_slot),
        GROUP_TEST(a_tensor_that_is_missing_is_a_rejection),
        GROUP_TEST(fifty_communicators_in_quick_succession),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
