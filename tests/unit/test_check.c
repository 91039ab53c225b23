/* The checker of plans must find what is wrong: each plan here has one fault, or barely none. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/plan/check.h"

#define EACH SPAN_EACH

static struct span in(uint32_t rank, uint64_t offset, uint64_t count)
{
    return (struct span){ BUFFER_IN, rank, offset, count };
}

static struct span out(uint32_t rank, uint64_t offset, uint64_t count)
{
    return (struct span){ BUFFER_OUT, rank, offset, count };
}

static void add(struct plan *p, enum step_kind kind, struct span src, struct span dst)
{
    assert_int_equal(plan_add(p, kind, src, dst), 0);
}

static const struct check_world gather_world = { 8, 24, 0, false, COLLECTIVE_ALL_GATHER };
static const struct check_world reduce_world = { 8, 8, 0, false, COLLECTIVE_ALL_REDUCE };

/* Checks and empties the plan. */
static void assert_fault(struct plan *p, const struct check_world *w, const char *words)
{
    struct text fault = { 0 };

    assert_int_equal(plan_check(p, w, &fault), -EINVAL);
    if (!strstr(fault.s, words))
        fail_msg("\"%s\" does not say \"%s\"", fault.s, words);
    plan_clear(p);
}

static void assert_sound(struct plan *p, const struct check_world *w)
{
    struct text fault = { 0 };

    if (plan_check(p, w, &fault))
        fail_msg("%s", fault.s);
    plan_clear(p);
}

TEST(checker_rejects_spans_outside_their_buffer)
{
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    assert_sound(&p, &gather_world);
    add(&p, STEP_COPY, in(0, 0, 8), out(EACH, 16, 8));
    assert_sound(&p, &gather_world);
    add(&p, STEP_COPY, in(0, 0, 8), out(EACH, 17, 8));
    assert_fault(&p, &gather_world, "do not lie in the 24 of out of rank 0");
    add(&p, STEP_COPY, in(0, 1, 8), out(EACH, 0, 8));
    assert_fault(&p, &gather_world, "do not lie in the 8 of in of rank 0");
    add(&p, STEP_COPY, in(0, UINT64_MAX, 2), out(0, 0, 2));
    assert_fault(&p, &gather_world, "do not lie");
    add(&p, STEP_COPY, in(3, 0, 8), out(EACH, 0, 8));
    assert_fault(&p, &gather_world, "no in of rank 3");
    add(&p, STEP_COPY, in(0, 0, 8), out(3, 0, 8));
    assert_fault(&p, &gather_world, "no out of rank 3");
}

TEST(checker_rejects_tensors_that_only_the_root_has)
{
    const struct check_world reduce = { 8, 8, 1, false, COLLECTIVE_REDUCE };
    const struct check_world broadcast = { 8, 8, 1, false, COLLECTIVE_BROADCAST };
    const struct check_world pair = { 8, 8, 0, false, COLLECTIVE_SEND };
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 2);
    add(&p, STEP_REDUCE, in(EACH, 0, 8), out(EACH, 0, 8));
    assert_fault(&p, &reduce, "no out of rank 0");
    add(&p, STEP_COPY, in(0, 0, 8), out(EACH, 0, 8));
    assert_fault(&p, &broadcast, "no in of rank 0");
    add(&p, STEP_COPY, in(1, 0, 8), out(1, 0, 8));
    assert_fault(&p, &pair, "no in of rank 1");
    add(&p, STEP_COPY, in(0, 0, 8), out(EACH, 0, 8));
    assert_fault(&p, &pair, "no out of rank 0");
}

TEST(checker_rejects_uneven_counts_and_second_sources)
{
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    add(&p, STEP_COPY, in(0, 0, 8), out(EACH, 0, 7));
    assert_fault(&p, &gather_world, "different counts");
    add(&p, STEP_COPY, in(EACH, 0, 8), out(0, 0, 8));
    assert_fault(&p, &gather_world, "more than one source");
    add(&p, STEP_REDUCE, in(0, 0, 8), out(0, 0, 8));
    p.steps[0].nsrc = 0;
    assert_fault(&p, &gather_world, "no source");
    add(&p, STEP_REDUCE, in(0, 0, 8), out(0, 0, 8));
    p.steps[0].ndst = UINT32_MAX;
    assert_fault(&p, &gather_world, "does not hold");
    add(&p, (enum step_kind)9, in(0, 0, 8), out(0, 0, 8));
    assert_fault(&p, &gather_world, "no known kind");
}

TEST(checker_rejects_waiting_forward_and_in_the_own_channel)
{
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, in(1, 0, 8), out(1, 0, 8));
    p.steps[0].after = 1;
    assert_fault(&p, &gather_world, "not before it");

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    p.steps[0].after = 0;
    assert_fault(&p, &gather_world, "not before it");

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, in(1, 0, 8), out(1, 0, 8));
    p.steps[1].channel = 0;
    p.steps[1].after = 0;
    assert_fault(&p, &gather_world, "own channel");

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    p.steps[0].channel = 1;
    assert_fault(&p, &gather_world, "channel that does not exist");
}

TEST(checker_rejects_unordered_overlap_and_takes_ordered)
{
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, in(1, 0, 8), out(0, 7, 8));
    assert_fault(&p, &gather_world, "steps 0 and 1 may touch element 7 of rank 0");

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, in(0, 0, 8), out(0, 8, 8));
    assert_sound(&p, &gather_world); /* neighbours, and one input read twice */

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, out(0, 4, 4), out(1, 0, 4));
    assert_fault(&p, &gather_world, "steps 0 and 1");

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, out(0, 4, 4), out(1, 0, 4));
    p.steps[1].after = 0;
    assert_sound(&p, &gather_world);

    add(&p, STEP_COPY, in(0, 0, 8), out(0, 0, 8));
    add(&p, STEP_COPY, in(1, 0, 8), out(0, 0, 8));
    p.steps[1].channel = 0;
    assert_sound(&p, &gather_world);
}

TEST(checker_finds_overlap_behind_a_long_span)
{
    const struct check_world w = { 8, 1000, 0, false, COLLECTIVE_ALL_GATHER };
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    add(&p, STEP_COPY, out(1, 0, 500), out(0, 0, 500));
    for (uint64_t i = 0; i < 9; i++)
        add(&p, STEP_COPY, in(2, 0, 8), out(0, 500 + 10 * i, 8));
    add(&p, STEP_COPY, in(2, 0, 8), out(0, 499, 8));
    assert_fault(&p, &w, "steps 0 and 10 may touch element 499 of rank 0");
}

TEST(checker_knows_where_in_place_tensors_meet)
{
    const struct check_world gather = { 8, 24, 0, true, COLLECTIVE_ALL_GATHER };
    const struct check_world scatter = { 24, 8, 0, true, COLLECTIVE_REDUCE_SCATTER };
    const struct check_world reduce = { 8, 8, 0, true, COLLECTIVE_ALL_REDUCE };
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 3);
    add(&p, STEP_COPY, in(1, 0, 8), out(EACH, 8, 8)); /* onto itself at rank 1 */
    assert_sound(&p, &gather);
    add(&p, STEP_COPY, in(1, 0, 7), out(EACH, 9, 7)); /* shifted by one onto itself */
    assert_fault(&p, &gather, "steps 0 and 0");
    add(&p, STEP_COPY, in(1, 0, 8), out(EACH, 16, 8)); /* onto rank 2's input, */
    add(&p, STEP_COPY, in(2, 0, 8), out(EACH, 0, 8));  /* which this one reads */
    assert_fault(&p, &gather, "element 16 of rank 2");

    add(&p, STEP_REDUCE, in(EACH, 8, 8), out(1, 0, 8));
    assert_sound(&p, &scatter);
    add(&p, STEP_REDUCE, in(EACH, 8, 8), out(1, 0, 8));
    add(&p, STEP_REDUCE, in(EACH, 8, 8), out(2, 0, 8));
    assert_fault(&p, &scatter, "element 8 of rank 1");
    add(&p, STEP_REDUCE, in(EACH, 7, 8), out(1, 0, 8));
    assert_fault(&p, &scatter, "steps 0 and 0");

    add(&p, STEP_REDUCE, in(EACH, 0, 8), out(EACH, 0, 8));
    assert_sound(&p, &reduce);
    add(&p, STEP_REDUCE, in(EACH, 0, 4), out(EACH, 2, 4));
    assert_fault(&p, &reduce, "steps 0 and 0");
    add(&p, STEP_REDUCE, in(EACH, 0, 4), out(EACH, 2, 4));
    assert_sound(&p, &reduce_world);
    add(&p, STEP_COPY, in(0, 0, 4), out(1, 0, 4)); /* rank 1's input, */
    add(&p, STEP_COPY, in(1, 0, 4), out(0, 4, 4)); /* read here, at any time */
    assert_fault(&p, &reduce, "element 0 of rank 1");
}

TEST(order_follows_channels_and_waits_but_nothing_else)
{
    /* channel 0: 0, 2, 5; channel 1: 1, 3, 6; channel 2: 4; channel 3: 7 */
    static const uint32_t channels[] = { 0, 1, 0, 1, 2, 0, 1, 3 };
    static const uint32_t after[] = { STEP_NONE, STEP_NONE, STEP_NONE, 2, 1, STEP_NONE, 5, 3 };
    static const char *const ordered[] = { "..++.+++", "...++.++", "...+.+++", "......++",
                                           "........", "......+.", "........", "........" };
    _cleanup_(plan_fini) struct plan p;

    plan_init(&p, 1);
    for (uint32_t i = 0; i < ARRAY_SIZE(channels); i++) {
        add(&p, STEP_COPY, in(0, 0, 1), out(0, 0, 1));
        p.steps[i].channel = channels[i];
        p.steps[i].after = after[i];
    }
    for (uint32_t a = 0; a < ARRAY_SIZE(channels); a++)
        for (uint32_t b = 0; b < ARRAY_SIZE(channels); b++)
            assert_int_equal(plan_ordered(&p, a, b), ordered[a][b] == '+');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checker_rejects_spans_outside_their_buffer),
        cmocka_unit_test(checker_rejects_tensors_that_only_the_root_has),
        cmocka_unit_test(checker_rejects_uneven_counts_and_second_sources),
        cmocka_unit_test(checker_rejects_waiting_forward_and_in_the_own_channel),
        cmocka_unit_test(checker_rejects_unordered_overlap_and_takes_ordered),
        cmocka_unit_test(checker_finds_overlap_behind_a_long_span),
        cmocka_unit_test(checker_knows_where_in_place_tensors_meet),
        cmocka_unit_test(order_follows_channels_and_waits_but_nothing_else),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
