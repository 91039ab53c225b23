/* What the checker and the simulator say of plans between nodes that are broken in one place. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/plan/check.h"
#include "tests/unit/nodes.h"

/* An all_reduce of 8 elements on four nodes of two ranks, its plans emitted by a row and then
 * broken.
 */
struct broken {
    struct placement *nodes;
    struct world w;
    struct chunk c;
    uint64_t written[WORLD_RANKS];
};

static void broken_open_as(struct broken *b, const char *name, enum dtype_id dtype)
{
    const struct algorithm *a = algorithms;

    while (a->kind != COLLECTIVE_ALL_REDUCE || strcmp(a->name, name))
        a++;
    b->nodes = placement_of(4, 2);
    b->w = world_of(COLLECTIVE_ALL_REDUCE, dtype, OPERATOR_SUM, b->nodes, 8);
    chunk_init(&b->c, b->nodes);
    chunk_emit(&b->c, a, args_of(&b->w, 8));
    written_of(&b->w, 8, b->written);
}

static void broken_open(struct broken *b, const char *name)
{
    broken_open_as(b, name, DTYPE_BF16);
}

static void broken_close(struct broken *b)
{
    chunk_fini(&b->c);
    placement_free(b->nodes);
}

/* The i-th step of a kind in a node's plan. */
static struct step *broken_step(struct broken *b, uint32_t node, enum step_kind kind, uint32_t i)
{
    struct plan *p = &b->c.plans[node];

    for (uint32_t k = 0; k < p->nsteps; k++)
        if (p->steps[k].kind == kind && i-- == 0)
            return &p->steps[k];
    fail_msg("no such step");
    return NULL;
}

static void assert_checker_says(struct broken *b, uint64_t budget, const char *words)
{
    const struct check_world w = { .in_count = 8,
                                   .out_count = 8,
                                   .kind = COLLECTIVE_ALL_REDUCE,
                                   .nodes = b->nodes,
                                   .written = b->written };
    struct text fault = { 0 };
    int r = plans_check(b->c.plans, &w, 2, budget, &fault);

    assert_int_equal(r, *words ? -EINVAL : 0);
    if (!strstr(fault.s, words))
        fail_msg("\"%s\" does not say \"%s\"", fault.s, words);
    broken_close(b);
}

TEST(checker_takes_what_is_whole)
{
    struct broken b;

    broken_open(&b, "tree");
    assert_checker_says(&b, 2 * 8 * 2 + 8, "");
}

TEST(checker_finds_messages_that_do_not_meet)
{
    struct broken b;

    broken_open(&b, "tree");
    broken_step(&b, 1, STEP_SEND, 0)->tag = 7;
    assert_checker_says(&b, UINT64_MAX, "meets nothing");

    broken_open(&b, "tree");
    broken_step(&b, 1, STEP_SEND, 0)->peer = 2;
    assert_checker_says(&b, UINT64_MAX, "meets nothing");

    broken_open(&b, "direct");
    broken_step(&b, 1, STEP_SEND, 0)->peer = broken_step(&b, 1, STEP_SEND, 1)->peer;
    assert_checker_says(&b, UINT64_MAX, "is not the only one of its tag");

    broken_open(&b, "tree");
    b.c.plans[1].spans[broken_step(&b, 1, STEP_SEND, 0)->first_span].count--;
    assert_checker_says(&b, UINT64_MAX, "meets one of another count");

    broken_open(&b, "tree");
    b.c.plans[1].spans[broken_step(&b, 1, STEP_SEND, 0)->first_span] =
        (struct span){ BUFFER_IN, placement_rank(b.nodes, 1, 0), 0, 8 };
    assert_checker_says(&b, UINT64_MAX, "meets one of another width");

    broken_open(&b, "tree");
    broken_step(&b, 1, STEP_SEND, 0)->peer = 1;
    assert_checker_says(&b, UINT64_MAX, "is a message with no other node");
}

TEST(checker_finds_nodes_that_wait_for_each_other)
{
    struct broken b;
    struct step *recv, *send, swap;

    /* node 2 awaits the result before it has sent its part */
    broken_open(&b, "tree");
    send = broken_step(&b, 2, STEP_SEND, 0);
    recv = broken_step(&b, 2, STEP_RECV, 1);
    swap = *send;
    *send = *recv;
    *recv = swap;
    assert_checker_says(&b, UINT64_MAX, "node 0 waits for ever");
}

TEST(checker_finds_staging_that_is_short_or_beyond_the_budget)
{
    struct broken b;

    broken_open(&b, "tree");
    b.c.plans[0].partials--;
    assert_checker_says(&b, UINT64_MAX, "do not lie in the 15 that are staged");

    broken_open(&b, "tree");
    assert_checker_says(&b, 2 * 8 * 2 + 7, "a peak of 40 elements is above the budget of 39");
}

TEST(checker_finds_steps_that_do_not_wait)
{
    struct broken b;

    broken_open(&b, "direct");
    broken_step(&b, 3, STEP_REDUCE, 1)->after = STEP_NONE;
    assert_checker_says(&b, UINT64_MAX, "may touch element");

    broken_open(&b, "halving-doubling");
    broken_step(&b, 3, STEP_SEND, 1)->after = STEP_NONE;
    assert_checker_says(&b, UINT64_MAX, "may touch element");
}

TEST(checker_finds_outputs_written_twice_or_not_at_all)
{
    struct broken b;

    broken_open(&b, "tree");
    b.c.plans[2].nsteps--; /* the copy to the second rank */
    assert_checker_says(&b, UINT64_MAX, "are written, not 8");

    broken_open(&b, "tree");
    b.c.plans[0].spans[broken_step(&b, 0, STEP_REDUCE, 0)->first_span + 2] =
        (struct span){ BUFFER_OUT, SPAN_EACH, 0, 8 };
    assert_checker_says(&b, UINT64_MAX, "is written twice");
}

/* Runs what the checker cannot tell from what is right: with many inputs, since most sums of a few
 * elements are the same in every order. */
static bool broken_agrees(struct broken *b)
{
    bool agrees = true;

    for (int i = 0; i < 50; i++) {
        world_fill(&b->w);
        world_run(&b->w, b->c.plans);
        agrees = agrees && world_agrees(&b->w);
        world_fini(&b->w);
    }
    broken_close(b);
    return agrees;
}

TEST(simulator_finds_sums_in_another_order_and_sums_rounded_twice)
{
    struct broken b;
    struct span *spans, swap;

    broken_open(&b, "tree");
    assert_true(broken_agrees(&b));

    broken_open_as(&b, "direct", DTYPE_F32);
    spans = &b.c.plans[1].spans[broken_step(&b, 1, STEP_REDUCE, 1)->first_span];
    swap = spans[1];
    spans[1] = spans[2];
    spans[2] = swap;
    assert_false(broken_agrees(&b));

    /* node 1's sum comes rounded, as an element would */
    broken_open(&b, "tree");
    b.c.plans[1].spans[broken_step(&b, 1, STEP_REDUCE, 0)->first_span + 1] =
        (struct span){ BUFFER_OUT, placement_rank(b.nodes, 1, 0), 0, 8 };
    b.c.plans[1].spans[broken_step(&b, 1, STEP_SEND, 0)->first_span] =
        (struct span){ BUFFER_OUT, placement_rank(b.nodes, 1, 0), 0, 8 };
    assert_false(broken_agrees(&b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_takes_what_is_whole),
        cmocka_unit_test(checker_finds_messages_that_do_not_meet),
        cmocka_unit_test(checker_finds_nodes_that_wait_for_each_other),
        cmocka_unit_test(checker_finds_staging_that_is_short_or_beyond_the_budget),
        cmocka_unit_test(checker_finds_steps_that_do_not_wait),
        cmocka_unit_test(checker_finds_outputs_written_twice_or_not_at_all),
        cmocka_unit_test(simulator_finds_sums_in_another_order_and_sums_rounded_twice),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
