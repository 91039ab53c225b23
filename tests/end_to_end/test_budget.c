/* Budgets of eight ranks: which are too small, and how long the chunks of the others are. */
#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

struct budget {
    uint64_t bytes, chunk_elements; /* 0: refused */
};

TEST(the_least_budget_of_eight_ranks_is_named_and_works)
{
    static const struct budget budgets[] = { { 15, 0 }, { 16, 1 }, { 17, 1 },         { 0, 0 },
                                             { 31, 1 }, { 32, 2 }, { 1 << 20, 65536 } };
    struct ruccl_region *regions[HARNESS_RANKS];
    struct ruccl_work *works[HARNESS_RANKS];
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, 8, 8);
    for (uint32_t r = 0; r < 8; r++)
        assert_int_equal(ruccl_alloc(w.conns[r], 74, &regions[r]), 0);
    for (size_t i = 0; i < ARRAY_SIZE(budgets); i++) {
        const struct budget *b = &budgets[i];

        for (uint32_t r = 0; r < 8; r++) {
            const struct ruccl_tensor t = {
                .dtype = RUCCL_BF16, .naxes = 1, .shape = { 37 }, .region = regions[r]
            };

            assert_int_equal(ruccl_all_reduce_async(ruccl_bounded(w.comms[r], b->bytes), &t, &t,
                                                    RUCCL_SUM, &works[r]),
                             0);
        }
        for (uint32_t r = 0; r < 8; r++) {
            struct ruccl_stats stats;
            char missing[128];

            if (!b->chunk_elements) {
                assert_int_equal(ruccl_work_wait(works[r], STAGE_PROMPT_US),
                                 -RUCCL_BUDGET_TOO_SMALL);
                assert_true(words_in(ruccl_last_error()->text, "least that works is 16", missing));
                assert_int_equal(ruccl_last_error()->nranks, 8);
            } else {
                assert_int_equal(ruccl_work_wait(works[r], STAGE_PROMPT_US), 0);
                assert_int_equal(ruccl_work_stats(works[r], &stats), 0);
                assert_int_equal(stats.chunk_elements, b->chunk_elements);
                assert_int_equal(stats.chunks, (37 + b->chunk_elements - 1) / b->chunk_elements);
            }
            ruccl_work_release(works[r]);
        }
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(the_least_budget_of_eight_ranks_is_named_and_works, stop_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
