/* Windows that make no sense: each is refused in its words, and the communicator goes on. */
#include "tests/unit/windows_world.h"

static void expect_rejected(const struct post *odd, enum error_code code, const char *words)
{
    struct post even = call(1, odd->d.kind, 0);

    even.d.budget = odd->d.budget;
    even.persistent = odd->persistent;
    post(0, odd);
    post(1, &even);
    even = call(2, odd->d.kind, 0);
    even.d.budget = odd->d.budget;
    even.persistent = odd->persistent;
    post(2, &even);
    expect_failure(code, words);
    assert_int_equal(w.people[0].error.ranks[0], 0);
    assert_int_equal(flaky_taken(w.device), 0);
}

TEST(exchanges_and_what_is_persistent_take_no_windows)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_TO_ALL, 0);
    p.d.shape.axes[0] = COUNT - COUNT % RANKS;
    post(0, &p);
    assert_int_equal(w.people[0].answers, 0);
    run(1, COLLECTIVE_ALL_TO_ALL);
    run(2, COLLECTIVE_ALL_TO_ALL);
    assert_int_equal(w.people[1].error.code, ERROR_INVALID_ARGUMENT);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.persistent = true;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "but takes none");
}

TEST(windows_are_powers_of_two_or_of_whole_chunks)
{
    static const char power[] = "takes one of a power of two, at least 4, without a budget";
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.in.window = 2;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "input has a window of 2 elements");
    expect_failure(ERROR_INVALID_ARGUMENT, power);
    p.in.window = 48;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, power);
    p.d.budget = RANKS * 5 * sizeof(int32_t);
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "takes one of whole chunks with a budget");
    p.d.budget = 2;
    expect_rejected(&p, ERROR_BUDGET_TOO_SMALL, "the least that works is 12");
    p.d.budget = BUDGET_NONE;
    p.in.window = UINT64_MAX / 3;
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, power);
}

TEST(windows_of_blocks_are_shorter_than_these)
{
    struct post p;

    set_windows(0, 128, 0, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    expect_rejected(&p, ERROR_INVALID_ARGUMENT, "takes one that is shorter than a rank's block");
    set_windows(0, 0, 64, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    p.out.offset = BYTES - RANKS * 64 * sizeof(int32_t) + sizeof(int32_t);
    expect_rejected(&p, ERROR_OUT_OF_RANGE, "output of 768 bytes");
}

/* Where they would lie if they had no windows is not where they lie. */
TEST(what_would_be_in_place_without_windows_is_not)
{
    struct post p;

    for (uint32_t r = 1; r < RANKS; r++)
        set_windows(r, 0, 0, false);
    set_windows(0, 16, 16, false);
    p = call(0, COLLECTIVE_ALL_GATHER, 0);
    p.out.offset = 0;
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
}

TEST(pairs_take_no_windows)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_SEND, 0);
    p.peer = 1;
    post(0, &p);
    run(1, COLLECTIVE_RECV);
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(w.people[1].error.code, ERROR_INVALID_ARGUMENT);
}

TEST(a_window_lies_in_its_region)
{
    struct post p;

    set_windows(0, WINDOW, 0, false);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    p.in.offset = BYTES - WINDOW * sizeof(int32_t) + sizeof(int32_t);
    expect_rejected(&p, ERROR_OUT_OF_RANGE, "input of 128 bytes");
    p.in.offset = BYTES - 1;
    expect_rejected(&p, ERROR_MISALIGNED, "");
    p.in.offset = 0;
    p.in.window = 1ull << 63; /* no bytes that 64 bits hold; the tensor has fewer */
    post(0, &p);
    run(1, COLLECTIVE_ALL_REDUCE);
    run(2, COLLECTIVE_ALL_REDUCE);
    bring(&w.people[0], COUNT, false);
    memcpy(in_memory(&w.people[0]), w.people[0].given, sizeof(w.people[0].given));
    staged(0, COUNT, 0);
    step();
    expect_all_sums();
}

/* The same bytes, but not the same elements at the same time. */
TEST(in_place_is_of_one_window)
{
    struct post p;

    set_windows(0, WINDOW, 2 * WINDOW, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
    set_windows(0, WINDOW, 0, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
    set_windows(0, 0, WINDOW, true);
    p = call(0, COLLECTIVE_ALL_REDUCE, 0);
    expect_rejected(&p, ERROR_OVERLAP, "rank 0 overlap");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WINDOWS_TEST(exchanges_and_what_is_persistent_take_no_windows),
        WINDOWS_TEST(windows_are_powers_of_two_or_of_whole_chunks),
        WINDOWS_TEST(windows_of_blocks_are_shorter_than_these),
        WINDOWS_TEST(what_would_be_in_place_without_windows_is_not),
        WINDOWS_TEST(pairs_take_no_windows),
        WINDOWS_TEST(a_window_lies_in_its_region),
        WINDOWS_TEST(in_place_is_of_one_window),
    };

    return cmocka_run_group_tests_name("windows_refused", tests, NULL, NULL);
}
