/*
 * Blocking calls on large plain memory: what libruccl says to a daemon that reads and writes piece
 * by piece, and what it makes of its answers.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/window_caller.h"

/* ---- what it says */

TEST(a_large_blocking_call_says_that_it_has_a_window)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;
    uint64_t seed = 1;

    open_pair(&c);
    c.in = c.out = bytes_tensor(m, COUNT);
    call_begin(&c, 0);
    assert_int_equal(c.post.post.in.window, WINDOW);
    assert_int_equal(c.post.post.out.window, WINDOW);
    assert_int_equal(c.post.post.in.region, c.post.post.out.region);
    assert_int_equal(c.post.post.in.offset, c.post.post.out.offset);
    assert_int_equal(fake_find_region(c.p.daemon, c.post.post.in.region)->bytes, WINDOW);
    while (c.ready < WINDOW) /* as much as has room, and no more: look() */
        look(&c);
    sleep_ms(20);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), c.nstaged);
    move_all(&c, WINDOW / 4, &seed);
    call_end(&c, 0);
    expect_output(m);
    memory_free(m, 0);
    pair_stop(&c.p);
}

TEST(an_attended_work_has_a_window_while_anybody_waits)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;
    uint64_t seed = 1;

    open_pair(&c);
    c.attended = true;
    for (uint32_t round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < COUNT; i++)
            m[i] = given(i);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, round);
        assert_int_equal(c.post.post.in.window, WINDOW);
        assert_int_equal(c.post.post.out.window, WINDOW);
        move_all(&c, WINDOW / 4, &seed);
        call_end(&c, 0);
        expect_output(m);
    }
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* Whoever wraps it further keeps that. */
TEST(what_is_attended_moves_by_tests_and_nothing_moves_without)
{
    uint8_t *m = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(m, COUNT);
    struct ruccl_work *work;
    struct caller c;

    open_pair(&c);
    c.comm = ruccl_unbounded(ruccl_on_stream(ruccl_bounded(ruccl_attended(c.comm), 1), NULL));
    assert_int_equal(ruccl_all_reduce_async(c.comm, &t, &t, RUCCL_SUM, &work), 0);
    c.post = fake_await(c.p.daemon, REQUEST_POST, 0);
    assert_int_equal(c.post.post.in.window, WINDOW);
    sleep_ms(20);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), 0);
    assert_int_equal(ruccl_work_test(work), RUCCL_PENDING);
    assert_int_equal(fake_await(c.p.daemon, REQUEST_STAGED, 0).staged.in_ready, WINDOW / 4);
    assert_int_equal(ruccl_work_test(work), RUCCL_PENDING);
    assert_int_equal(fake_await(c.p.daemon, REQUEST_STAGED, 1).staged.in_ready, WINDOW / 2);
    complete(&c, ERROR_RANK_LOST);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_RANK_LOST);
    assert_int_equal(ruccl_work_test(work), -RUCCL_RANK_LOST);
    ruccl_work_release(work);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_ABORT), 0);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* Messages keep their order: behind another post there is no doubt. */
static void expect_aborts(struct caller *c, uint32_t posts, uint32_t n)
{
    struct ruccl_work *work;

    assert_int_equal(ruccl_barrier_async(c->comm, &work), 0);
    fake_await(c->p.daemon, REQUEST_POST, posts);
    assert_int_equal(fake_count(c->p.daemon, REQUEST_ABORT), n);
    ruccl_work_release(work);
}

/* Nobody would copy, and others would wait in vain. */
TEST(an_attended_work_released_early_aborts_its_communicator)
{
    uint8_t *m = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(m, COUNT), just = bytes_tensor(m, WINDOW);
    struct ruccl_work *work;
    struct caller c;

    open_pair(&c);
    assert_int_equal(ruccl_all_reduce_async(ruccl_attended(c.comm), &just, &just, RUCCL_SUM, &work),
                     0);
    ruccl_work_release(work);
    assert_int_equal(fake_await(c.p.daemon, REQUEST_POST, 0).post.in.window, 0);
    assert_int_equal(ruccl_all_reduce_async(ruccl_attended(c.comm), &t, &t, RUCCL_SUM, &work), 0);
    c.post = fake_await(c.p.daemon, REQUEST_POST, 1);
    ruccl_work_release(work);
    assert_int_equal(fake_await(c.p.daemon, REQUEST_ABORT, 0).abort.comm, c.post.post.comm);
    expect_aborts(&c, 2, 1);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* One whose end has come and not been looked at, and one whose input was all that there is. */
TEST(an_attended_work_that_needs_nobody_is_released_as_any)
{
    uint8_t *m = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(m, COUNT);
    struct ruccl_work *work;
    struct caller c;
    uint32_t other;

    open_pair(&c);
    assert_int_equal(ruccl_all_reduce_async(ruccl_attended(c.comm), &t, &t, RUCCL_SUM, &work), 0);
    c.post = fake_await(c.p.daemon, REQUEST_POST, 0);
    complete(&c, ERROR_TIMEOUT);
    ruccl_work_release(work);

    other = (ruccl_rank(c.comm) + 1) % NRANKS;
    assert_int_equal(ruccl_reduce_async(ruccl_attended(c.comm), &t, NULL, RUCCL_SUM, other, &work),
                     0);
    c.post = fake_await(c.p.daemon, REQUEST_POST, 1);
    c.nstaged = staged_before(c.p.daemon, &c.post);
    while (c.ready < COUNT) {
        assert_int_equal(ruccl_work_wait(work, 1000), RUCCL_PENDING);
        while (c.nstaged < fake_count(c.p.daemon, REQUEST_STAGED))
            look(&c);
        c.done = c.ready;
        tell_progress(&c);
    }
    ruccl_work_release(work);
    expect_aborts(&c, 2, 0);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* Whoever waits on the connection, for whatever it is, copies. */
TEST(another_call_moves_what_is_attended)
{
    uint8_t *m = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(m, COUNT);
    struct ruccl_work *work, *behind;
    struct caller c;

    open_pair(&c);
    assert_int_equal(ruccl_all_reduce_async(ruccl_attended(c.comm), &t, &t, RUCCL_SUM, &work), 0);
    c.post = fake_await(c.p.daemon, REQUEST_POST, 0);
    assert_int_equal(ruccl_barrier_async(c.comm, &behind), 0);
    fake_await(c.p.daemon, REQUEST_POST, 1);
    sleep_ms(20);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), 0);
    assert_int_equal(ruccl_work_wait(behind, 50000), RUCCL_PENDING);
    assert_true(fake_count(c.p.daemon, REQUEST_STAGED) > 0);
    complete(&c, ERROR_RANK_LOST);
    assert_int_equal(ruccl_work_wait(work, -1), -RUCCL_RANK_LOST);
    ruccl_work_release(work);
    ruccl_work_release(behind);
    memory_free(m, 0);
    pair_stop(&c.p);
}

TEST(windows_are_counted_in_elements)
{
    static const enum ruccl_dtype dtypes[] = { RUCCL_BF16, RUCCL_F32, RUCCL_I64, RUCCL_C128 };
    uint8_t *m = memory_new(0, false);
    struct caller c;

    open_pair(&c);
    c.kind = COLLECTIVE_BROADCAST;
    for (uint32_t i = 0; i < ARRAY_SIZE(dtypes); i++) {
        const uint32_t width = ruccl_dtype_bytes(dtypes[i]);

        c.in = c.out = bytes_tensor(m, COUNT / width);
        c.in.dtype = c.out.dtype = dtypes[i];
        call_begin(&c, i);
        assert_int_equal(c.post.post.in.window, WINDOW / width);
        do
            c.ready = fake_await(c.p.daemon, REQUEST_STAGED, c.nstaged++).staged.in_ready;
        while (c.ready < WINDOW / width);
        assert_int_equal(c.ready, WINDOW / width);
        complete(&c, ERROR_TIMEOUT);
        call_end(&c, -RUCCL_TIMEOUT);
    }
    memory_free(m, 0);
    pair_stop(&c.p);
}

static void expect_no_window(struct caller *c, uint32_t index, int result)
{
    const struct request q = fake_await(c->p.daemon, REQUEST_POST, index);

    assert_int_equal(result, 0);
    assert_int_equal(q.post.in.window, 0);
    assert_int_equal(q.post.out.window, 0);
}

TEST(what_is_short_in_long_chunks_or_not_waited_for_is_staged_whole)
{
    uint8_t *m = memory_new(0, true), *all = malloc(WINDOW);
    const struct ruccl_tensor just = bytes_tensor(m, WINDOW), large = bytes_tensor(m, COUNT);
    const struct ruccl_tensor block = bytes_tensor(m, WINDOW / NRANKS);
    const struct ruccl_tensor blocks = bytes_tensor(all, WINDOW);
    struct caller c = { .p = pair_start((struct behaviour){ 0 }) };
    const struct ruccl_comm comm = c.p.comm;
    struct ruccl_work *work;

    expect_no_window(&c, 0, ruccl_all_reduce(comm, &just, &just, RUCCL_SUM));
    expect_no_window(
        &c, 1,
        ruccl_all_reduce(ruccl_bounded(comm, NRANKS * (COUNT / 3)), &large, &large, RUCCL_SUM));
    expect_no_window(&c, 2, ruccl_all_reduce_async(comm, &large, &large, RUCCL_SUM, &work));
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    expect_no_window(&c, 3, ruccl_all_gather(comm, &block, &blocks));
    expect_no_window(&c, 4, ruccl_send(comm, &large, 1, 0));
    expect_no_window(&c, 5,
                     ruccl_all_reduce(ruccl_bounded(comm, NRANKS - 1), &large, &large, RUCCL_SUM));
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), 0);
    memory_free(m, 0);
    free(all);
    pair_stop(&c.p);
}

/* ---- what it makes of progress */

TEST(output_is_exact_whatever_the_pieces)
{
    static const uint64_t mosts[] = { WINDOW / 4, 300007, WINDOW };
    static const uint64_t shifts[] = { 0, 1, 16, 3 };
    struct caller c;
    uint64_t seed = 3;

    open_pair(&c);
    for (uint32_t i = 0; i < 6; i++) {
        const uint64_t shift = shifts[i % 4];
        uint8_t *in = memory_new(shift, true), *out = i % 2 ? in : memory_new(shift, false);

        c.in = bytes_tensor(in, COUNT);
        c.out = bytes_tensor(out, COUNT);
        call_begin(&c, i);
        move_all(&c, mosts[i % 3], &seed);
        call_end(&c, 0);
        expect_output(out);
        for (uint64_t k = 0; out != in && k < COUNT; k++)
            assert_int_equal(in[k], given(k));
        memory_free(in, shift);
        if (out != in)
            memory_free(out, shift);
    }
    assert_int_equal(c.p.daemon->regions_opened, 1); /* the stage is one and the same */
    pair_stop(&c.p);
}

TEST(with_a_budget_windows_are_of_whole_chunks)
{
    static const uint64_t chunks[] = { 1, 7, 100003, WINDOW / 4, WINDOW / 4 + 1, COUNT / 5 };
    uint8_t *m = memory_new(1, true);
    struct caller c;
    uint64_t seed = 8;

    open_pair(&c);
    for (uint32_t i = 0; i < ARRAY_SIZE(chunks); i++) {
        uint64_t window;

        for (uint64_t k = 0; k < COUNT; k++)
            m[k] = given(k);
        c.comm = ruccl_bounded(c.p.comm, NRANKS * chunks[i] + NRANKS - 1);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, i);
        window = c.post.post.in.window;
        assert_int_equal(window % (4 * chunks[i]), 0);
        assert_true(window < COUNT && (window <= WINDOW || window == 4 * chunks[i]));
        assert_int_equal(c.post.post.out.window, window);
        move_all(&c, 500000, &seed);
        call_end(&c, 0);
        expect_output(m);
    }
    memory_free(m, 1);
    pair_stop(&c.p);
}

static void expect_blocks(const struct caller *c, const uint8_t *m)
{
    for (uint32_t b = 0; b < c->out_blocks; b++)
        for (uint64_t i = 0; i < BLOCK; i++)
            if (m[b * (uint64_t)BLOCK + i] != (uint8_t)(given(i) + 1 + b))
                fail_msg("byte %llu of block %u", (unsigned long long)i, b);
}

/* A window for every block, one behind the other, of both tensors' what one's would be. */
TEST(tensors_of_blocks_have_a_window_for_each)
{
    uint8_t *whole = memory_new(0, true), *part = memory_new(3, true);
    const struct ruccl_tensor blocks = bytes_tensor(whole, NRANKS * (uint64_t)BLOCK);
    const struct ruccl_tensor block = bytes_tensor(part, BLOCK);
    struct caller c;
    uint64_t seed = 9;

    open_pair(&c);
    c.block = BLOCK;
    c.in_blocks = NRANKS;
    c.kind = COLLECTIVE_REDUCE_SCATTER;
    c.in = blocks;
    c.out = block;
    call_begin(&c, 0);
    assert_int_equal(c.post.post.in.window, WINDOW / NRANKS);
    assert_int_equal(c.post.post.out.window, WINDOW / NRANKS);
    assert_int_equal(c.post.post.out.offset, WINDOW);
    move_all(&c, 200003, &seed);
    call_end(&c, 0);
    c.out_blocks = 1;
    expect_blocks(&c, part);

    for (uint64_t i = 0; i < BLOCK; i++)
        part[i] = given(i);
    c.in_blocks = 1;
    c.out_blocks = NRANKS;
    c.kind = COLLECTIVE_ALL_GATHER;
    c.comm = ruccl_bounded(c.p.comm, NRANKS * 5003);
    c.in = block;
    c.out = blocks;
    call_begin(&c, 1);
    assert_int_equal(c.post.post.in.window % (4 * 5003), 0);
    assert_int_equal(c.post.post.out.window, c.post.post.in.window);
    assert_int_equal(c.post.post.out.offset, c.post.post.in.window);
    move_all(&c, 200003, &seed);
    call_end(&c, 0);
    expect_blocks(&c, whole);
    expect_guards(whole);
    memory_free(whole, 0);
    memory_free(part, 3);
    pair_stop(&c.p);
}

TEST(a_rank_may_have_only_an_input_or_only_an_output)
{
    uint8_t *m = memory_new(0, true), *out = memory_new(5, false);
    struct caller c;
    uint64_t seed = 4;

    open_pair(&c);
    c.kind = COLLECTIVE_REDUCE;
    c.root = 1;
    c.in = bytes_tensor(m, COUNT);
    call_begin(&c, 0);
    assert_int_equal(c.post.post.out.region, 0);
    move_all(&c, 400009, &seed);
    call_end(&c, 0);

    c.kind = COLLECTIVE_BROADCAST;
    c.out = bytes_tensor(out, COUNT);
    call_begin(&c, 1);
    assert_int_equal(c.post.post.in.region, 0);
    move_all(&c, 400009, &seed);
    call_end(&c, 0);
    expect_output(out);
    memory_free(m, 0);
    memory_free(out, 5);
    pair_stop(&c.p);
}

TEST(one_tensor_may_be_in_a_region_and_the_other_in_a_window)
{
    struct ruccl_region *region;
    uint8_t *m = memory_new(0, true), *data;
    struct caller c;
    uint64_t seed = 5;

    open_pair(&c);
    assert_int_equal(ruccl_alloc(c.p.conn, COUNT, &region), 0);
    data = ruccl_region_data(region);
    c.in = bytes_tensor(m, COUNT);
    c.out = bytes_tensor(NULL, COUNT);
    c.out.region = region;
    call_begin(&c, 0);
    assert_int_equal(c.post.post.in.window, WINDOW);
    assert_int_equal(c.post.post.out.window, 0);
    move_all(&c, 300000, &seed);
    call_end(&c, 0);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_int_equal(data[i], (uint8_t)(given(i) + 1));

    for (uint64_t i = 0; i < COUNT; i++)
        data[i] = given(i);
    c.in = c.out;
    c.out = bytes_tensor(m, COUNT);
    call_begin(&c, 1);
    assert_int_equal(c.post.post.in.window, 0);
    assert_int_equal(c.post.post.out.window, WINDOW);
    move_all(&c, 300000, &seed);
    call_end(&c, 0);
    expect_output(m);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* A daemon that errs must not lead the library out of its memory. */
TEST(progress_behind_the_end_or_back_is_harmless)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;
    uint64_t seed = 6;

    open_pair(&c);
    c.kind = COLLECTIVE_BROADCAST;
    c.root = 1;
    c.out = bytes_tensor(m, COUNT);
    call_begin(&c, 0);
    move(&c, 1000);
    tell_progress(&c);
    c.done = 10;
    tell_progress(&c);
    c.done = UINT64_MAX;
    tell_progress(&c);
    complete(&c, ERROR_NONE);
    call_end(&c, 0);
    expect_guards(m);

    c.kind = COLLECTIVE_ALL_REDUCE; /* and what is said of a call that is over is of no other */
    for (uint64_t i = 0; i < COUNT; i++)
        m[i] = given(i);
    c.in = c.out;
    tell_progress(&c);
    call_begin(&c, 1);
    move_all(&c, 200000, &seed);
    call_end(&c, 0);
    expect_output(m);
    memory_free(m, 0);
    pair_stop(&c.p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_blocking_call_says_that_it_has_a_window),
        cmocka_unit_test(an_attended_work_has_a_window_while_anybody_waits),
        cmocka_unit_test(what_is_attended_moves_by_tests_and_nothing_moves_without),
        cmocka_unit_test(an_attended_work_released_early_aborts_its_communicator),
        cmocka_unit_test(an_attended_work_that_needs_nobody_is_released_as_any),
        cmocka_unit_test(another_call_moves_what_is_attended),
        cmocka_unit_test(windows_are_counted_in_elements),
        cmocka_unit_test(what_is_short_in_long_chunks_or_not_waited_for_is_staged_whole),
        cmocka_unit_test(output_is_exact_whatever_the_pieces),
        cmocka_unit_test(with_a_budget_windows_are_of_whole_chunks),
        cmocka_unit_test(tensors_of_blocks_have_a_window_for_each),
        cmocka_unit_test(a_rank_may_have_only_an_input_or_only_an_output),
        cmocka_unit_test(one_tensor_may_be_in_a_region_and_the_other_in_a_window),
        cmocka_unit_test(progress_behind_the_end_or_back_is_harmless),
    };

    return cmocka_run_group_tests_name("client_windows", tests, NULL, NULL);
}
