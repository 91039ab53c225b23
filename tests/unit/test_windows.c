/*
 * Windows: what the daemon reads and writes when, of tensors that pass through a short stage, and
 * that a client that lies harms only itself.
 */
#include "tests/unit/windows_world.h"

/* ---- gates */

TEST(a_chunk_waits_for_every_ranks_input)
{
    set_all(WINDOW, 0, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(flaky_taken(w.device), 0);
        bring(&w.people[r], 8, false);
        staged(r, 7, 0);
        assert_int_equal(flaky_taken(w.device), 0);
    }
    staged(0, 8, 0);
    staged(2, 8, 0);
    assert_int_equal(flaky_taken(w.device), 0);
    staged(1, 8, 0);
    assert_int_equal(flaky_taken(w.device), 1);
    step();
    assert_int_equal(flaky_taken(w.device), 1);
    assert_int_equal(w.people[1].done, 8);
    go_on(COUNT);
    expect_all_sums();
}

TEST(a_chunk_waits_until_the_output_in_its_place_is_taken)
{
    set_windows(1, 0, WINDOW, false);
    run_all(COLLECTIVE_ALL_REDUCE);
    step();
    assert_int_equal(flaky_taken(w.device), 4);
    assert_int_equal(w.people[1].done, WINDOW);
    staged(1, 0, 7);
    assert_int_equal(flaky_taken(w.device), 4);
    take(&w.people[1], 16);
    staged(1, 0, 16);
    step();
    assert_int_equal(flaky_taken(w.device), 6);
    go_on(5);
    expect_all_sums();
}

TEST(what_is_staged_before_the_others_come_counts)
{
    set_windows(0, WINDOW, 0, false);
    run(0, COLLECTIVE_ALL_REDUCE);
    bring(&w.people[0], WINDOW, false);
    staged(0, WINDOW, 0);
    run(1, COLLECTIVE_ALL_REDUCE);
    run(2, COLLECTIVE_ALL_REDUCE);
    step();
    assert_int_equal(w.people[0].done, WINDOW);
    go_on(1);
    expect_all_sums();
}

TEST(only_who_has_a_window_is_told_of_progress)
{
    set_windows(2, WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    bring(&w.people[2], WINDOW, true);
    staged(2, WINDOW, 0);
    step();
    assert_int_equal(w.people[2].done, WINDOW);
    assert_int_equal(w.people[0].done, 0);
    go_on(3);
    expect_all_sums();
}

TEST(a_window_longer_than_the_tensor_is_all_of_it)
{
    set_all(512, 512, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], COUNT, true);
        staged(r, COUNT, 0);
    }
    step();
    for (uint32_t r = 0; r < RANKS; r++)
        take(&w.people[r], COUNT);
    expect_all_sums();
}

/* ---- any mixture */

/* Elements of a chunk under the budget; 0: there is none. */
static uint64_t chunk_of(enum collective_id kind)
{
    const struct descriptor d = {
        .kind = kind, .dtype = DTYPE_I32, .budget = w.budget, .nranks = RANKS
    };

    return w.budget == BUDGET_NONE ? 0 : descriptor_chunk(&d);
}

/* Of tensors in blocks shorter than these. */
static uint64_t random_window(enum collective_id kind, uint64_t *seed)
{
    const uint64_t chunk = chunk_of(kind), times = 1 + unit_random(seed) % 9;

    if (chunk == 0)
        return (const uint64_t[]){ 0, 4, 16, 32, 64 }[unit_random(seed) % 5];
    if (unit_random(seed) % 4 == 0 ||
        (collective_get(kind)->shape != SHAPE_SAME && times * chunk >= COUNT))
        return 0;
    return times * chunk;
}

static bool takes_part(enum collective_id kind, uint32_t rank, uint32_t root, bool output)
{
    const uint32_t flags = collective_get(kind)->flags;

    return rank == root || !(flags & (output ? COLLECTIVE_OUT_AT_ROOT : COLLECTIVE_IN_AT_ROOT));
}

static void mix(enum collective_id kind, uint32_t root, uint64_t *seed)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const bool in_place = collective_get(kind)->shape == SHAPE_SAME && unit_random(seed) % 2;
        const uint64_t in = random_window(kind, seed), out = random_window(kind, seed);

        set_windows(r, in, in_place ? in : out, in_place);
        /* what does not count has no window that anybody moves */
        if (!takes_part(kind, r, root, false))
            w.people[r].in_window = 0;
        if (!takes_part(kind, r, root, true))
            w.people[r].out_window = 0;
    }
}

/* What a rank's output holds at `i` of a block. */
static int32_t right(enum collective_id kind, uint32_t root, uint32_t rank, uint32_t block,
                     uint32_t i)
{
    switch (kind) {
    case COLLECTIVE_BROADCAST:
        return w.people[root].given[i];
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return w.people[block].given[i];
    case COLLECTIVE_SCATTER:
        return w.people[root].given[rank * COUNT + i];
    case COLLECTIVE_REDUCE_SCATTER:
        return (int32_t)(6 * (rank * COUNT + i + 1));
    default:
        return (int32_t)(6 * (i + 1));
    }
}

static void expect_mixed(enum collective_id kind, uint32_t root)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct person *p = &w.people[r];
        const int32_t *got = p->out_window ? p->got : out_memory(p);

        if (p->error.code)
            fail_msg("%s, budget %lld: %s", collective_get(kind)->name, (long long)w.budget,
                     p->error.text);
        for (uint32_t k = 0; k < p->out_blocks * COUNT && takes_part(kind, r, root, true); k++)
            assert_int_equal(got[k], right(kind, root, r, k / COUNT, k % COUNT));
    }
}

static void try_mixture(enum collective_id kind, uint32_t root, uint64_t *seed)
{
    mix(kind, root, seed);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct post p = call(r, kind, root);

        post(r, &p);
    }
    go_on(1 + unit_random(seed) % 40);
    expect_mixed(kind, root);
}

static const enum collective_id kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,         COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_GATHER,     COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCATTER,
};

static void try_mixtures(uint64_t seed)
{
    static const uint64_t budgets[] = { BUDGET_NONE,    RANKS * 4 * 7 + 11, RANKS * 4,
                                        RANKS * 4 * 33, RANKS * 4 * 100,    RANKS * 4 * 1000 };

    for (unsigned round = 0; round < 200 * ARRAY_SIZE(kinds); round++) {
        flaky_configure(w.device, &(struct flaky_config){ .seed = round + 1,
                                                          .busy_percent = round % 4 * 20,
                                                          .inline_percent = round % 5 * 25 });
        w.budget = budgets[unit_random(&seed) % ARRAY_SIZE(budgets)];
        try_mixture(kinds[round % ARRAY_SIZE(kinds)], (uint32_t)(unit_random(&seed) % RANKS),
                    &seed);
    }
}

TEST(windows_of_any_kind_mix_and_the_bits_are_right)
{
    try_mixtures(11);
}

/* A chunk is as long as the budget says, and who copies is not told of each where they are short.
 */
TEST(with_a_budget_its_chunks_pass)
{
    w.budget = RANKS * 5 * sizeof(int32_t);
    set_all(40, 40, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++)
        bring(&w.people[r], 40, true);
    staged(0, 40, 0);
    staged(1, 14, 0);
    staged(2, 40, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 2);
    assert_int_equal(w.people[0].done, 10);
    staged(1, 15, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 3);
    assert_int_equal(w.people[0].done, 10);
    staged(1, 40, 0);
    step();
    assert_int_equal(flaky_taken(w.device), 8);
    assert_true(w.people[0].done >= 40);
    go_on(11);
    expect_all_sums();
}

/* ---- lies */

TEST(numbers_that_go_back_mean_nothing)
{
    set_all(WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        bring(&w.people[r], 16, true);
        staged(r, 16, 0);
        staged(r, 3, 0);
    }
    step();
    assert_int_equal(w.people[0].done, 16);
    go_on(8);
    expect_all_sums();
}

TEST(who_says_too_much_gets_what_lies_there_and_harms_nobody_else)
{
    set_windows(1, WINDOW, WINDOW, true);
    run_all(COLLECTIVE_ALL_REDUCE);
    memset(w.people[1].memory->base, 0, BYTES);
    staged(1, UINT64_MAX, UINT64_MAX);
    step();
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].error.code, 0);
    for (uint32_t i = 0; i < WINDOW; i++) /* the first turn of the window was all zero */
        assert_int_equal(out_memory(&w.people[0])[i], 4 * (i + 1));
    for (uint32_t i = WINDOW; i < BYTES / sizeof(int32_t); i++)
        assert_int_equal(in_memory(&w.people[1])[i], 0);
}

TEST(what_nobody_waits_for_is_ignored)
{
    set_all(0, 0, false);
    run(0, COLLECTIVE_BARRIER);
    staged(0, 5, 5);
    member_staged(w.people[0].member, SERIAL + 1, 5, 5, w.now);
    run(1, COLLECTIVE_BARRIER);
    run(2, COLLECTIVE_BARRIER);
    staged(0, 5, 5); /* of one that is over */
    assert_int_equal(w.people[2].error.code, 0);

    run_all(COLLECTIVE_ALL_REDUCE);
    staged(1, UINT64_MAX, UINT64_MAX); /* of one without windows, while it runs */
    step();
    expect_all_sums();
}

TEST(a_persistent_operation_has_no_windows_to_move)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct post p = call(r, COLLECTIVE_ALL_REDUCE, 0);

        p.persistent = true;
        post(r, &p);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(member_start(w.people[r].member,
                                      &(struct start){ .id = w.people[r].made, .serial = SERIAL },
                                      w.now),
                         0);
    staged(2, 1, UINT64_MAX);
    step();
    expect_all_sums();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WINDOWS_TEST(a_chunk_waits_for_every_ranks_input),
        WINDOWS_TEST(a_chunk_waits_until_the_output_in_its_place_is_taken),
        WINDOWS_TEST(what_is_staged_before_the_others_come_counts),
        WINDOWS_TEST(only_who_has_a_window_is_told_of_progress),
        WINDOWS_TEST(a_window_longer_than_the_tensor_is_all_of_it),
        WINDOWS_TEST(windows_of_any_kind_mix_and_the_bits_are_right),
        WINDOWS_TEST(with_a_budget_its_chunks_pass),
        WINDOWS_TEST(numbers_that_go_back_mean_nothing),
        WINDOWS_TEST(who_says_too_much_gets_what_lies_there_and_harms_nobody_else),
        WINDOWS_TEST(what_nobody_waits_for_is_ignored),
        WINDOWS_TEST(a_persistent_operation_has_no_windows_to_move),
    };

    return cmocka_run_group_tests_name("windows", tests, NULL, NULL);
}
