/*
 * Blocking calls on large plain memory: what libruccl says to a daemon that reads and writes piece
 * by piece, played by the test, and what it makes of its answers.
 */
#include "tests/unit/fake_daemon.h"

#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW (2u << 20) /* bytes, and elements, since all here are bytes */
#define COUNT  (2 * WINDOW + WINDOW / 2 + 12345)
#define BLOCK  (COUNT / NRANKS) /* of tensors that have one for each rank */
#define GUARD  64u

/* ---- the caller, in a thread of its own */

struct caller {
    struct pair p;
    struct ruccl_comm comm;
    enum collective_id kind;
    uint32_t root;
    bool attended; /* an all_reduce that two threads wait for, instead of a blocking call */
    struct ruccl_tensor in, out;
    int result;
    struct ruccl_error error;
    pthread_t thread;
    /* the daemon's side */
    struct request post;
    uint32_t nstaged; /* that have been looked at */
    uint64_t block;   /* bytes, of which a tensor has so many */
    uint32_t in_blocks, out_blocks;
    uint64_t ready, taken, done; /* of every block */
};

static void *wait_too(void *work)
{
    return ruccl_work_wait(work, -1) == 0 ? work : NULL;
}

/* In slices, and tested in between, while another thread waits for all of it. */
static int call_attended(struct caller *c)
{
    struct ruccl_work *work;
    pthread_t other;
    void *found;
    int r;

    r = ruccl_all_reduce_async(ruccl_attended(c->comm), &c->in, &c->out, RUCCL_SUM, &work);
    if (r < 0)
        return r;
    while ((r = ruccl_work_wait(work, 300)) == RUCCL_PENDING &&
           fake_count(c->p.daemon, REQUEST_STAGED) < 8)
        ruccl_work_test(work);
    pthread_create(&other, NULL, wait_too, work);
    while ((r = ruccl_work_wait(work, 300)) == RUCCL_PENDING)
        ruccl_work_test(work);
    pthread_join(other, &found);
    ruccl_work_release(work);
    return r == 0 && !found ? RUCCL_PENDING : r;
}

static void *call(void *arg)
{
    struct caller *c = arg;

    if (c->attended)
        c->result = call_attended(c);
    else if (c->kind == COLLECTIVE_ALL_GATHER)
        c->result = ruccl_all_gather(c->comm, &c->in, &c->out);
    else if (c->kind == COLLECTIVE_REDUCE_SCATTER)
        c->result = ruccl_reduce_scatter(c->comm, &c->in, &c->out, RUCCL_SUM);
    else if (c->kind == COLLECTIVE_BROADCAST)
        c->result = ruccl_broadcast(c->comm, &c->in, &c->out, c->root);
    else if (c->kind == COLLECTIVE_REDUCE)
        c->result = ruccl_reduce(c->comm, &c->in, &c->out, RUCCL_SUM, c->root);
    else
        c->result = ruccl_all_reduce(c->comm, &c->in, &c->out, RUCCL_SUM);
    if (c->result < 0)
        c->error = *ruccl_last_error();
    return NULL;
}

static uint8_t given(uint64_t i)
{
    return (uint8_t)(i * 7 + i / 4096);
}

/* Exactly so many bytes and their guards; the start is as unaligned as `shift` says. */
static uint8_t *memory_new(uint64_t shift, bool fill)
{
    uint8_t *m = malloc(COUNT + 2 * GUARD + shift);

    assert_non_null(m);
    memset(m, 0xee, COUNT + 2 * GUARD + shift);
    m += GUARD + shift;
    for (uint64_t i = 0; fill && i < COUNT; i++)
        m[i] = given(i);
    return m;
}

static void memory_free(uint8_t *m, uint64_t shift)
{
    free(m - GUARD - shift);
}

static void expect_guards(const uint8_t *m)
{
    for (uint64_t i = 0; i < GUARD; i++) {
        assert_int_equal(m[COUNT + i], 0xee);
        assert_int_equal(m[(int64_t)i - (int64_t)GUARD], 0xee);
    }
}

static void open_pair(struct caller *c)
{
    *c = (struct caller){ .p = pair_start((struct behaviour){ .hold_posts = true }),
                          .kind = COLLECTIVE_ALL_REDUCE,
                          .block = COUNT,
                          .in_blocks = 1,
                          .out_blocks = 1 };
    c->comm = c->p.comm;
}

/* What was staged for the calls before a post. */
static uint32_t staged_before(struct fake_daemon *d, const struct request *post)
{
    uint32_t n = 0;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; d->requests[i].serial != post->serial; i++)
        n += d->requests[i].kind == REQUEST_STAGED;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* The `index`-th post of the connection. */
static void call_begin(struct caller *c, uint32_t index)
{
    c->ready = c->taken = c->done = 0;
    pthread_create(&c->thread, NULL, call, c);
    c->post = fake_await(c->p.daemon, REQUEST_POST, index);
    c->nstaged = staged_before(c->p.daemon, &c->post);
}

static void call_end(struct caller *c, int result)
{
    pthread_join(c->thread, NULL);
    assert_int_equal(c->result, result);
}

/* ---- the daemon */

/* Looks at one more word of the client's: it never goes back, nor too far. */
static void look(struct caller *c)
{
    const struct request q = fake_await(c->p.daemon, REQUEST_STAGED, c->nstaged++);
    const bool out = c->post.post.out.window, shares = out && c->in_blocks == c->out_blocks;

    assert_int_equal(q.staged.comm, c->post.post.comm);
    assert_int_equal(q.staged.slot, c->post.post.slot);
    assert_true(q.staged.in_ready >= c->ready && q.staged.out_taken >= c->taken);
    c->ready = q.staged.in_ready;
    c->taken = q.staged.out_taken;
    assert_true(c->taken <= c->done && (out || c->taken == 0));
    assert_true(c->ready <= MIN((shares ? c->taken : c->done) + c->post.post.in.window, c->block));
}

static void tell_progress(struct caller *c)
{
    struct reply reply = { .kind = REPLY_PROGRESS, .serial = c->post.serial };

    reply.progress.elements_done = c->done;
    fake_answer(c->p.daemon, &reply, -1);
}

static uint8_t *place_of(const struct caller *c, const struct wire_operand *o)
{
    return o->region ? fake_find_region(c->p.daemon, o->region)->data + o->offset : NULL;
}

/* Moves up to `n` bytes more, and waits for the client until it may. As a collective of this rank
 * alone would: each byte plus one, or of what a root elsewhere gives. */
static void move(struct caller *c, uint64_t n)
{
    const struct wire_operand *in = &c->post.post.in, *out = &c->post.post.out;
    const uint8_t *from = place_of(c, in);
    uint8_t *to = place_of(c, out);

    for (; n > 0 && c->done < c->block; n--, c->done++) {
        const uint64_t i = c->done;

        while ((in->window && c->ready <= i) || (out->window && c->taken + out->window <= i))
            look(c);
        for (uint32_t b = 0; from && b < c->in_blocks; b++)
            if (from[in->window ? b * in->window + i % in->window : b * c->block + i] !=
                given(b * c->block + i))
                fail_msg("byte %llu of block %u of the input", (unsigned long long)i, b);
        for (uint32_t b = 0; to && b < c->out_blocks; b++)
            to[out->window ? b * out->window + i % out->window : b * c->block + i] =
                (uint8_t)(given(i) + 1 + b);
    }
}

static void complete(struct caller *c, enum error_code code)
{
    struct reply reply = { .kind = REPLY_COMPLETION, .serial = c->post.serial };

    reply.completion.algorithm = "";
    if (code)
        error_set(&reply.completion.error, code, "told");
    fake_answer(c->p.daemon, &reply, -1);
}

/* In steps of up to `most` bytes, and tells of each. */
static void move_all(struct caller *c, uint64_t most, uint64_t *seed)
{
    while (c->done < c->block) {
        move(c, 1 + unit_random(seed) % most);
        if (c->done < c->block)
            tell_progress(c);
    }
    complete(c, ERROR_NONE);
}

static void expect_output(const uint8_t *m)
{
    for (uint64_t i = 0; i < COUNT; i++)
        if (m[i] != (uint8_t)(given(i) + 1))
            fail_msg("byte %llu of %u", (unsigned long long)i, COUNT);
    expect_guards(m);
}

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

/* ---- the end in the middle */

TEST(a_failure_while_it_copies_ends_the_call)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;

    open_pair(&c);
    for (uint32_t i = 0; i < 30; i++) {
        for (uint64_t k = 0; k < COUNT; k++)
            m[k] = given(k);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, i);
        move(&c, WINDOW / 4 + i * 30011);
        tell_progress(&c);
        if (i % 2)
            sleep_ms(1);
        complete(&c, ERROR_RANK_LOST);
        call_end(&c, -RUCCL_RANK_LOST);
        assert_string_equal(c.error.text, "told");
        expect_guards(m);
        for (uint64_t k = c.done; k < COUNT; k++)
            assert_int_equal(m[k], given(k));
    }
    assert_int_equal(c.p.daemon->regions_opened, 1);
    memory_free(m, 0);
    pair_stop(&c.p);
}

TEST(a_rejected_call_has_no_window)
{
    uint8_t *m = memory_new(0, true);
    struct caller c;

    open_pair(&c);
    c.in = c.out = bytes_tensor(m, COUNT);
    c.out.data = m + 1;
    call_begin(&c, 0);
    assert_int_equal(c.post.post.rejection.code, ERROR_OVERLAP);
    assert_int_equal(c.post.post.in.window, 0);
    fake_complete(c.p.daemon, &c.post, ERROR_NONE, "");
    call_end(&c, -RUCCL_OVERLAP);
    assert_int_equal(fake_count(c.p.daemon, REQUEST_STAGED), 0);
    memory_free(m, 0);
    pair_stop(&c.p);
}

/* ---- the end while it copies: a page of the output that lets nobody by until it is told to */

#define PAGE 4096u

static struct {
    uint8_t *page;
    sem_t reached, go;
} gate;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)context;
    if ((uintptr_t)info->si_addr / PAGE != (uintptr_t)gate.page / PAGE) {
        struct sigaction action = { .sa_handler = SIG_DFL };

        sigaction(signal, &action, NULL);
        return;
    }
    sem_post(&gate.reached);
    while (sem_wait(&gate.go) != 0)
        ;
    mprotect(gate.page, PAGE, PROT_READ | PROT_WRITE);
}

/* The client copies out what has been done, as far as the gate. */
static void stand_at_gate(struct caller *c, uint8_t *m)
{
    const struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

    sigaction(SIGSEGV, &action, NULL);
    sem_init(&gate.reached, 0, 0);
    sem_init(&gate.go, 0, 0);
    gate.page = m + 16 * PAGE;
    assert_int_equal(mprotect(gate.page, PAGE, PROT_READ), 0);
    c->in = c->out = bytes_tensor(m, COUNT);
    call_begin(c, 0);
    move(c, WINDOW / 2);
    tell_progress(c);
    while (sem_wait(&gate.reached) != 0)
        ;
}

static void leave_gate(struct caller *c, int result)
{
    const struct sigaction action = { .sa_handler = SIG_DFL };

    sem_post(&gate.go);
    call_end(c, result);
    sigaction(SIGSEGV, &action, NULL);
}

static uint8_t *pages_new(void)
{
    uint8_t *m = mmap(NULL, COUNT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(m != MAP_FAILED);
    for (uint64_t i = 0; i < COUNT; i++)
        m[i] = given(i);
    return m;
}

/* Its stage is nobody else's until it has stopped copying. */
TEST(a_failure_during_a_copy_leaves_it_its_stage)
{
    uint8_t *m = pages_new(), *other = memory_new(0, true);
    const struct ruccl_tensor t = bytes_tensor(other, WINDOW);
    struct ruccl_work *work;
    struct request second;
    struct caller c;

    open_pair(&c);
    stand_at_gate(&c, m);
    complete(&c, ERROR_RANK_LOST);
    assert_int_equal(ruccl_drop_id(c.p.conn, "x"), 0); /* reads the completion in passing */
    assert_int_equal(ruccl_all_reduce_async(c.comm, &t, &t, RUCCL_SUM, &work), 0);
    second = fake_await(c.p.daemon, REQUEST_POST, 1);
    assert_int_not_equal(second.post.in.region, c.post.post.in.region);
    fake_complete(c.p.daemon, &second, ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(work, -1), 0);
    ruccl_work_release(work);
    leave_gate(&c, -RUCCL_RANK_LOST);

    assert_int_equal(ruccl_all_reduce_async(c.comm, &t, &t, RUCCL_SUM, &work), 0);
    ruccl_work_release(work);
    assert_int_equal(c.p.daemon->regions_opened, 2); /* both stages came back */
    munmap(m, COUNT);
    pair_stop(&c.p);
    memory_free(other, 0);
}

TEST(a_daemon_lost_during_a_copy_leaves_it_its_stage)
{
    uint8_t *m = pages_new();
    struct caller c;

    open_pair(&c);
    stand_at_gate(&c, m);
    fake_die(c.p.daemon);
    assert_int_equal(ruccl_drop_id(c.p.conn, "x"), -RUCCL_DAEMON_LOST);
    leave_gate(&c, -RUCCL_DAEMON_LOST);
    munmap(m, COUNT);
    pair_stop(&c.p);
}

static void end_in_the_middle(void (*end)(struct caller *c), int result)
{
    uint8_t *m = memory_new(0, true);
    const int before = count_fds();

    for (uint32_t i = 0; i < 10; i++) {
        struct caller c;

        open_pair(&c);
        c.in = c.out = bytes_tensor(m, COUNT);
        call_begin(&c, 0);
        move(&c, 1 + i * (WINDOW / 10));
        for (uint64_t k = 0; k < c.done; k++)
            m[k] = given(k);
        tell_progress(&c);
        end(&c);
        call_end(&c, result);
        expect_guards(m);
        if (c.p.conn)
            ruccl_close(c.p.conn);
        fake_stop(c.p.daemon);
        for (uint64_t k = 0; k < COUNT; k++)
            m[k] = given(k);
    }
    assert_int_equal(count_fds(), before);
    memory_free(m, 0);
}

static void by_death(struct caller *c)
{
    fake_die(c->p.daemon);
}

static void by_close(struct caller *c)
{
    ruccl_close(c->p.conn);
    c->p.conn = NULL;
}

TEST(a_lost_daemon_ends_the_call)
{
    end_in_the_middle(by_death, -RUCCL_DAEMON_LOST);
}

TEST(close_ends_the_call)
{
    end_in_the_middle(by_close, -RUCCL_CLOSED);
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
        cmocka_unit_test(a_failure_while_it_copies_ends_the_call),
        cmocka_unit_test(a_rejected_call_has_no_window),
        cmocka_unit_test(a_failure_during_a_copy_leaves_it_its_stage),
        cmocka_unit_test(a_daemon_lost_during_a_copy_leaves_it_its_stage),
        cmocka_unit_test(a_lost_daemon_ends_the_call),
        cmocka_unit_test(close_ends_the_call),
    };

    return cmocka_run_group_tests_name("client_windows", tests, NULL, NULL);
}
