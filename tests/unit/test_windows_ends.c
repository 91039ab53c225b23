/* What ends a call with windows in the middle, and that it leaves nothing. */
#include "tests/unit/windows_world.h"

/* Posts, and goes as far as `chunks` chunks into it. */
static void begin(uint64_t chunks)
{
    set_all(WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], chunks * 8, true);
        staged(r, chunks * 8, 0);
    }
}

static void expect_memory_free(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].memory->refs, 1);
}

TEST(a_failing_chunk_ends_it_for_all)
{
    flaky_configure(w.device,
                    &(struct flaky_config){ .seed = 1, .fail_task = 2, .fail_errno = EIO });
    begin(4);
    step();
    expect_failure(ERROR_SYSTEM, "all_reduce 1 of 'job'");
    expect_memory_free();
    for (uint32_t r = 0; r < RANKS; r++)
        staged(r, COUNT, COUNT);
    assert_true(flaky_taken(w.device) <= 3);
    set_all(0, 0, false);
    run_all(COLLECTIVE_ALL_REDUCE); /* the communicator goes on */
    step();
    expect_all_sums();
}

TEST(a_death_while_all_wait_for_data_is_told_at_once)
{
    begin(2);
    step();
    assert_int_equal(w.people[0].done, 16);
    member_lost(w.people[1].member, "died", w.now);
    w.people[1].member = NULL;
    expect_failure(ERROR_RANK_LOST, "rank 1 (pid 501 on here) died");
    expect_memory_free();
}

TEST(a_death_while_data_moves_waits_for_the_device)
{
    begin(2);
    assert_int_equal(flaky_pending(w.device), 2);
    member_lost(w.people[2].member, "died", w.now);
    w.people[2].member = NULL;
    assert_int_equal(w.people[0].answers, 0);
    staged(0, COUNT, COUNT); /* too late */
    assert_int_equal(flaky_taken(w.device), 2);
    step();
    expect_failure(ERROR_RANK_LOST, "rank 2 (pid 502 on here) died");
    expect_memory_free();
    assert_int_equal(flaky_taken(w.device), 2);
}

TEST(an_abort_ends_it)
{
    begin(3);
    step();
    member_abort(w.people[0].member, "enough", w.now);
    expect_failure(ERROR_ABORTED, "aborted by rank 0: enough");
    expect_memory_free();
}

TEST(a_timeout_names_whose_memory_is_waited_for)
{
    begin(1);
    step();
    bring(&w.people[0], 8, true);
    bring(&w.people[2], 8, true);
    staged(0, 16, 0);
    staged(2, 16, 0);
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    expect_failure(ERROR_TIMEOUT, "its memory is waited for: rank 1 (pid 501 on here)");
    assert_int_equal(w.people[0].error.nranks, 1);
    assert_int_equal(w.people[0].error.ranks[0], 1);
    expect_memory_free();
}

TEST(a_timeout_names_who_does_not_take_its_output)
{
    set_windows(2, 0, WINDOW, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    step();
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    expect_failure(ERROR_TIMEOUT, "its memory is waited for: rank 2 (pid 502 on here)");
    assert_int_equal(w.people[0].error.ranks[0], 2);
    expect_memory_free();
}

TEST(a_timeout_of_the_device_names_nobody)
{
    flaky_configure(w.device, &(struct flaky_config){ .seed = 1, .stuck_task = 1 });
    begin(1);
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    step();
    expect_failure(ERROR_TIMEOUT, "of moving data");
    assert_int_equal(w.people[0].error.nranks, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WINDOWS_TEST(a_failing_chunk_ends_it_for_all),
        WINDOWS_TEST(a_death_while_all_wait_for_data_is_told_at_once),
        WINDOWS_TEST(a_death_while_data_moves_waits_for_the_device),
        WINDOWS_TEST(an_abort_ends_it),
        WINDOWS_TEST(a_timeout_names_whose_memory_is_waited_for),
        WINDOWS_TEST(a_timeout_names_who_does_not_take_its_output),
        WINDOWS_TEST(a_timeout_of_the_device_names_nobody),
    };

    return cmocka_run_group_tests_name("windows_ends", tests, NULL, NULL);
}
