#include "tests/unit/window_caller.h"

#include <stdlib.h>
#include <string.h>

#define GUARD 64u

/* ---- the call */

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

uint8_t given(uint64_t i)
{
    return (uint8_t)(i * 7 + i / 4096);
}

uint8_t *memory_new(uint64_t shift, bool fill)
{
    uint8_t *m = malloc(COUNT + 2 * GUARD + shift);

    assert_non_null(m);
    memset(m, 0xee, COUNT + 2 * GUARD + shift);
    m += GUARD + shift;
    for (uint64_t i = 0; fill && i < COUNT; i++)
        m[i] = given(i);
    return m;
}

void memory_free(uint8_t *m, uint64_t shift)
{
    free(m - GUARD - shift);
}

void expect_guards(const uint8_t *m)
{
    for (uint64_t i = 0; i < GUARD; i++) {
        assert_int_equal(m[COUNT + i], 0xee);
        assert_int_equal(m[(int64_t)i - (int64_t)GUARD], 0xee);
    }
}

void open_pair(struct caller *c)
{
    *c = (struct caller){ .p = pair_start((struct behaviour){ .hold_posts = true }),
                          .kind = COLLECTIVE_ALL_REDUCE,
                          .block = COUNT,
                          .in_blocks = 1,
                          .out_blocks = 1 };
    c->comm = c->p.comm;
}

uint32_t staged_before(struct fake_daemon *d, const struct request *post)
{
    uint32_t n = 0;

    pthread_mutex_lock(&d->lock);
    for (uint32_t i = 0; d->requests[i].serial != post->serial; i++)
        n += d->requests[i].kind == REQUEST_STAGED;
    pthread_mutex_unlock(&d->lock);
    return n;
}

void call_begin(struct caller *c, uint32_t index)
{
    c->ready = c->taken = c->done = 0;
    pthread_create(&c->thread, NULL, call, c);
    c->post = fake_await(c->p.daemon, REQUEST_POST, index);
    c->nstaged = staged_before(c->p.daemon, &c->post);
}

void call_end(struct caller *c, int result)
{
    pthread_join(c->thread, NULL);
    assert_int_equal(c->result, result);
}

/* ---- the daemon */

void look(struct caller *c)
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

void tell_progress(struct caller *c)
{
    struct reply reply = { .kind = REPLY_PROGRESS, .serial = c->post.serial };

    reply.progress.elements_done = c->done;
    fake_answer(c->p.daemon, &reply, -1);
}

static uint8_t *place_of(const struct caller *c, const struct wire_operand *o)
{
    return o->region ? fake_find_region(c->p.daemon, o->region)->data + o->offset : NULL;
}

void move(struct caller *c, uint64_t n)
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

void complete(struct caller *c, enum error_code code)
{
    struct reply reply = { .kind = REPLY_COMPLETION, .serial = c->post.serial };

    reply.completion.algorithm = "";
    if (code)
        error_set(&reply.completion.error, code, "told");
    fake_answer(c->p.daemon, &reply, -1);
}

void move_all(struct caller *c, uint64_t most, uint64_t *seed)
{
    while (c->done < c->block) {
        move(c, 1 + unit_random(seed) % most);
        if (c->done < c->block)
            tell_progress(c);
    }
    complete(c, ERROR_NONE);
}

void expect_output(const uint8_t *m)
{
    for (uint64_t i = 0; i < COUNT; i++)
        if (m[i] != (uint8_t)(given(i) + 1))
            fail_msg("byte %llu of %u", (unsigned long long)i, COUNT);
    expect_guards(m);
}
