/* How communicators come to be: ids and joins. */
#include "tests/unit/group_world.h"

#include <stdio.h>

/* ---- ids */

TEST(an_id_is_printable_and_short_and_never_the_same)
{
    char other[COMM_ID_BYTES];

    new_id();
    assert_int_equal(strncmp(w.id, "rc1-", 4), 0);
    assert_int_equal(strcspn(w.id, "@"), 4 + 26);
    assert_string_equal(strchr(w.id, '@'), "@node");
    comms_id_new(w.comms, UID, w.now, other, &w.e);
    assert_string_not_equal(w.id, other);
}

TEST(an_unjoined_id_lapses)
{
    new_id();
    assert_int_equal(comms_deadline(w.comms), w.now + LIFETIME);
    w.now += LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(comms_deadline(w.comms), TIME_NEVER);
    assert_int_equal(join(0, 1), -ERROR_NOT_FOUND);
}

TEST(without_a_network_another_nodes_id_is_answered_with_advice)
{
    snprintf(w.id, sizeof(w.id), "rc1-abcdefghijklmnopqrstuvwxyz@10.0.0.1:7777");
    assert_int_equal(join(0, 2), -ERROR_NOT_FOUND);
    assert_non_null(strstr(w.e.text, "the daemon at 10.0.0.1:7777"));
    assert_non_null(strstr(w.e.text, "'listen' is not set"));
}

TEST(a_dropped_id_is_gone_and_only_its_owner_drops_it)
{
    new_id();
    assert_int_equal(comms_id_drop(w.comms, UID + 1, w.id, NULL), -ERROR_NOT_FOUND);
    assert_int_equal(comms_id_drop(w.comms, UID, w.id, NULL), 0);
    assert_int_equal(comms_id_drop(w.comms, UID, w.id, NULL), -ERROR_NOT_FOUND);
    assert_int_equal(join(0, 1), -ERROR_NOT_FOUND);
}

TEST(ids_count_towards_the_quota)
{
    for (int i = 0; i < 4; i++)
        new_id();
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, &w.e), -ERROR_QUOTA);
    assert_non_null(strstr(w.e.text, "max_communicators"));
    assert_int_equal(comms_id_new(w.comms, UID + 1, w.now, w.id, NULL), 0);
    comms_set_max(w.comms, 5);
    new_id();
    assert_int_equal(comms_id_new(w.comms, UID, w.now, w.id, NULL), -ERROR_QUOTA);
}

/* ---- joins */

TEST(the_last_rank_completes_the_group)
{
    new_id();
    assert_int_equal(join(1, 2), 0);
    assert_int_equal(w.people[1].joins, 0);
    assert_int_equal(join(0, 2), 0);
    assert_int_equal(w.people[0].joins, 1);
    assert_int_equal(w.people[1].joins, 1);
    assert_int_equal(w.people[1].error.code, 0);
    assert_int_equal(member_rank(w.people[1].member), 1);
    assert_int_equal(member_nranks(w.people[1].member), 2);
}

TEST(a_stranger_may_not_join)
{
    new_id();
    assert_int_equal(join_as(0, UID + 1, 0, 1, 0, ""), -ERROR_PERMISSION);
    assert_int_equal(join(0, 1), 0);
}

TEST(the_overflow_uid_matches_nobody)
{
    assert_int_equal(comms_id_new(w.comms, OVERFLOW, w.now, w.id, NULL), 0);
    assert_int_equal(join_as(0, OVERFLOW, 0, 1, 0, ""), -ERROR_PERMISSION);
}

TEST(impossible_ranks_and_sizes_are_refused)
{
    new_id();
    assert_int_equal(join(0, 0), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join(2, 2), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join_as(0, UID, UINT32_MAX, UINT32_MAX, 0, ""), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join(0, RANKS_MAX + 1), -ERROR_INVALID_ARGUMENT);
    assert_int_equal(join_as(0, UID, 0, 1, 0, "magic"), -ERROR_UNSUPPORTED_ALGORITHM);
    assert_int_equal(join(0, 1), 0);
}

TEST(a_duplicate_rank_is_refused_and_the_group_does_not_notice)
{
    new_id();
    join(0, 2);
    assert_int_equal(join_as(3, UID, 0, 2, 2 * SECOND, ""), -ERROR_DUPLICATE_RANK);
    assert_non_null(strstr(w.e.text, "pid 500"));
    assert_int_equal(join(1, 2), 0);
    assert_int_equal(w.people[0].error.code, 0);
    assert_int_equal(join_as(3, UID, 1, 2, 2 * SECOND, ""), -ERROR_DUPLICATE_RANK);
}

static void expect_join_mismatch(uint32_t nranks, uint64_t timeout_us, const char *algorithm,
                                 const char *word)
{
    new_id();
    join(0, 3);
    assert_int_equal(join_as(1, UID, 1, nranks, timeout_us, algorithm), -ERROR_MISMATCH);
    assert_non_null(strstr(w.e.text, word));
    assert_int_equal(w.people[0].error.code, ERROR_MISMATCH);
    assert_string_equal(w.people[0].error.text, w.e.text);
    assert_int_equal(join(2, 3), -ERROR_MISMATCH);
    member_leave(w.people[0].member, w.now);
    assert_int_equal(comms_count(w.comms), 0);
}

TEST(ranks_that_mean_another_group_fail_it_for_all)
{
    expect_join_mismatch(4, 2 * SECOND, "", "world size 4");
    expect_join_mismatch(3, 3 * SECOND, "", "timeout");
    expect_join_mismatch(3, 2 * SECOND, "hierarchical", "algorithm");
}

TEST(a_join_times_out_naming_who_is_missing)
{
    new_id();
    join(1, 4);
    w.now += SECOND;
    comms_tick(w.comms, w.now);
    join(2, 4);
    assert_int_equal(w.people[1].joins, 0);
    w.now += SECOND;
    comms_tick(w.comms, w.now);
    for (uint32_t r = 1; r <= 2; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_TIMEOUT);
        assert_non_null(strstr(w.people[r].error.text, "missing: ranks 0, 3"));
        assert_int_equal(w.people[r].error.nranks, 2);
    }
    assert_int_equal(join(0, 4), -ERROR_TIMEOUT);
}

TEST(a_timeout_of_none_never_comes)
{
    new_id();
    join_as(0, UID, 0, 2, 0, "");
    assert_int_equal(comms_deadline(w.comms), 5 + LIFETIME); /* the id's, gone by now */
    w.now += 100 * LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(comms_deadline(w.comms), TIME_NEVER);
    assert_int_equal(w.people[0].joins, 0);
}

TEST(an_endless_timeout_does_not_wrap)
{
    new_id();
    join_as(0, UID, 0, 2, UINT64_MAX - 1, "");
    w.now += 100 * LIFETIME;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].joins, 0);
}

TEST(a_death_while_forming_is_told_by_name)
{
    new_id();
    join(0, 3);
    join(1, 3);
    member_lost(w.people[1].member, "died", w.now);
    w.people[1].member = NULL;
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LOST);
    assert_non_null(strstr(w.people[0].error.text, "rank 1 (pid 501 on here) died"));
    assert_int_equal(w.people[1].joins, 0);
}

TEST(leaving_while_forming_is_told_too)
{
    new_id();
    join(0, 2);
    member_leave(w.people[0].member, w.now);
    assert_int_equal(w.people[0].lefts, 1);
    assert_int_equal(comms_count(w.comms), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        GROUP_TEST(an_id_is_printable_and_short_and_never_the_same),
        GROUP_TEST(an_unjoined_id_lapses),
        GROUP_TEST(without_a_network_another_nodes_id_is_answered_with_advice),
        GROUP_TEST(a_dropped_id_is_gone_and_only_its_owner_drops_it),
        GROUP_TEST(ids_count_towards_the_quota),
        GROUP_TEST(the_last_rank_completes_the_group),
        GROUP_TEST(a_stranger_may_not_join),
        GROUP_TEST(the_overflow_uid_matches_nobody),
        GROUP_TEST(impossible_ranks_and_sizes_are_refused),
        GROUP_TEST(a_duplicate_rank_is_refused_and_the_group_does_not_notice),
        GROUP_TEST(ranks_that_mean_another_group_fail_it_for_all),
        GROUP_TEST(a_join_times_out_naming_who_is_missing),
        GROUP_TEST(a_timeout_of_none_never_comes),
        GROUP_TEST(an_endless_timeout_does_not_wrap),
        GROUP_TEST(a_death_while_forming_is_told_by_name),
        GROUP_TEST(leaving_while_forming_is_told_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
