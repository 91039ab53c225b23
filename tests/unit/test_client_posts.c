/* What libruccl posts and what it rejects, against a daemon that is a thread of this process. */
#include "tests/unit/fake_daemon.h"

#include <string.h>

struct gather_case {
    const struct ruccl_tensor *in, *out;
    enum ruccl_code code;
};

TEST(a_rejected_call_takes_its_number_and_is_told_to_all)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t bytes[16];
    int other_conn_region;
    struct ruccl_tensor good_in = bytes_tensor(bytes, 2), good_out = bytes_tensor(bytes + 8, 8);
    struct ruccl_tensor many = { .dtype = RUCCL_U8, .naxes = 9 };
    struct ruccl_tensor wide = good_out, short_out = good_out, no_data = good_in;
    struct ruccl_tensor stranger = good_in, over = bytes_tensor(bytes + 1, 8);
    const struct gather_case cases[] = {
        { NULL, &good_out, RUCCL_INVALID_ARGUMENT },
        { &good_in, NULL, RUCCL_INVALID_ARGUMENT },
        { &many, &good_out, RUCCL_INVALID_SHAPE },
        { &good_in, &many, RUCCL_INVALID_SHAPE },
        { &good_in, &wide, RUCCL_INVALID_ARGUMENT },
        { &good_in, &short_out, RUCCL_INVALID_SHAPE },
        { &no_data, &good_out, RUCCL_INVALID_ARGUMENT },
        { &stranger, &good_out, RUCCL_INVALID_ARGUMENT },
        { &good_in, &over, RUCCL_OVERLAP },
    };

    wide.dtype = RUCCL_I8;
    short_out.shape[0] = 7;
    no_data.data = NULL;
    stranger.region = (struct ruccl_region *)&other_conn_region;
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct request q;

        assert_int_equal(ruccl_all_gather(p.comm, cases[i].in, cases[i].out), -(int)cases[i].code);
        q = fake_await(p.daemon, REQUEST_POST, i);
        assert_int_equal(q.post.sequence, i + 1);
        assert_int_equal(q.post.rejection.code, cases[i].code);
        assert_non_null(strstr(q.post.rejection.text, "all_gather: "));
        assert_int_equal(q.post.d.kind, COLLECTIVE_ALL_GATHER);
        assert_int_equal(q.post.in.region, 0);
    }
    assert_int_equal(ruccl_all_gather(p.comm, &good_in, &good_out), 0);
    pair_stop(&p);
}

TEST(what_the_daemon_judges_is_posted_as_it_is)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    uint8_t bytes[8];
    struct ruccl_tensor odd = bytes_tensor(bytes, 5), unknown = odd;
    struct ruccl_work *works[3];
    struct request q;

    unknown.dtype = (enum ruccl_dtype)77;
    assert_int_equal(ruccl_all_reduce_async(p.comm, &unknown, &unknown, RUCCL_SUM, &works[0]), 0);
    assert_int_equal(ruccl_broadcast_async(p.comm, &odd, &odd, 9, &works[1]), 0);
    assert_int_equal(ruccl_reduce_scatter_async(p.comm, &odd, &odd, (enum ruccl_op)55, &works[2]),
                     0);
    for (uint32_t i = 0; i < 3; i++) {
        q = fake_await(p.daemon, REQUEST_POST, i);
        assert_int_equal(q.post.rejection.code, ERROR_NONE);
        assert_int_equal(q.post.sequence, i + 1);
        ruccl_work_release(works[i]);
    }
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.d.dtype, 77);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 1).post.d.root, 9);
    assert_int_equal(q.post.d.op, 55);
    assert_int_equal(fake_count(p.daemon, REQUEST_REGION_OPEN), 0);
    pair_stop(&p);
}

TEST(a_denied_stage_is_a_rejection)
{
    struct pair p = pair_start((struct behaviour){ .deny_regions = true });
    uint8_t in[1], out[1];
    struct ruccl_tensor ti = bytes_tensor(in, 1), to = bytes_tensor(out, 1);

    assert_int_equal(ruccl_all_reduce(p.comm, &ti, &to, RUCCL_SUM), -RUCCL_QUOTA);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.rejection.code, ERROR_QUOTA);
    pair_stop(&p);
}

TEST(root_only_tensors_are_ignored_elsewhere)
{
    struct pair p = pair_start((struct behaviour){ .rank = 1 });
    uint8_t in[2], out[8];
    struct ruccl_tensor ti = bytes_tensor(in, 2), to = bytes_tensor(out, 8);
    struct request q;

    assert_int_equal(ruccl_gather(p.comm, &ti, NULL, 0), 0);
    assert_int_equal(ruccl_gather(p.comm, &ti, &to, 1), 0);
    assert_int_equal(ruccl_broadcast(p.comm, NULL, &ti, 0), 0);
    assert_int_equal(ruccl_scatter(p.comm, &to, &ti, 0), 0);
    assert_int_equal(ruccl_reduce(p.comm, &ti, &to, RUCCL_SUM, 0), 0);
    q = fake_await(p.daemon, REQUEST_POST, 3);
    assert_int_equal(q.post.d.shape.axes[0], 2);
    assert_int_equal(q.post.in.region, 0);
    assert_int_not_equal(q.post.out.region, 0);
    pair_stop(&p);
}

TEST(pairs_take_no_number_and_splits_do)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    struct ruccl_comm child;
    uint8_t byte[1];
    struct ruccl_tensor t = bytes_tensor(byte, 1);
    struct request q;

    assert_int_equal(ruccl_send(p.comm, &t, 2, 5), 0);
    assert_int_equal(ruccl_recv(p.comm, &t, 3, 6), 0);
    assert_int_equal(ruccl_split(p.comm, 1, -7, &child), 0);
    assert_int_equal(ruccl_rank(child), 1);
    assert_int_equal(ruccl_world_size(child), 2);
    assert_string_equal(ruccl_id(child), "rc1-child@here");
    assert_int_equal(ruccl_split(p.comm, RUCCL_COLOR_NONE, 0, &child), 0);
    assert_null(child.member);
    q = fake_await(p.daemon, REQUEST_POST, 0);
    assert_int_equal(q.post.sequence, 0);
    assert_int_equal(q.post.peer, 2);
    assert_int_equal(q.post.tag, 5);
    q = fake_await(p.daemon, REQUEST_POST, 1);
    assert_int_not_equal(q.post.out.region, 0);
    q = fake_await(p.daemon, REQUEST_POST, 2);
    assert_int_equal(q.post.sequence, 1);
    assert_int_equal(q.post.key, -7);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 3).post.sequence, 2);
    pair_stop(&p);
}

TEST(budgets_wrap_and_unwrap)
{
    struct pair p = pair_start((struct behaviour){ 0 });

    assert_int_equal(ruccl_barrier(ruccl_bounded(p.comm, 0)), 0);
    assert_int_equal(ruccl_barrier(ruccl_unbounded(ruccl_bounded(p.comm, 5))), 0);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 0).post.d.budget, 0);
    assert_true(fake_await(p.daemon, REQUEST_POST, 1).post.d.budget == RUCCL_NO_BUDGET);
    pair_stop(&p);
}

TEST(exchange_counts_are_checked_and_come_back)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[3] = { 1, 2, 3 }, out[5];
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(out, 5);
    uint64_t good[NRANKS] = { 1, 0, 2, 0 }, few[NRANKS] = { 1 };
    uint64_t negative[NRANKS] = { (uint64_t)-1, 4 }, received[NRANKS];

    memset(out, 0xee, sizeof(out));
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, few, &to, NULL, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, negative, &to, NULL, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_non_null(strstr(ruccl_last_error()->text, "negative"));
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, good, &to, good, received), 0);
    assert_int_equal(received[1], 2);
    assert_int_equal(fake_await(p.daemon, REQUEST_POST, 2).post.out_rows, 5);
    assert_int_equal(fake_count(p.daemon, REQUEST_EXPECT), 1);
    /* The two rows that came, and no more. */
    assert_int_equal(out[1], 3);
    assert_int_equal(out[2], 0xee);
    pair_stop(&p);
}

/* More than are kept for later. */
#define MANY 100u

static void assert_is_new(struct ruccl_work *work)
{
    const struct ruccl_progress nothing = { 0 };
    struct ruccl_progress progress;
    struct ruccl_stats stats;

    assert_int_equal(ruccl_work_test(work), RUCCL_PENDING);
    assert_int_equal(ruccl_work_progress(work, &progress), 0);
    assert_memory_equal(&progress, &nothing, sizeof(progress));
    assert_int_equal(ruccl_work_stats(work, &stats), -RUCCL_INVALID_ARGUMENT);
}

/* Posts MANY, the `round`-th time, and answers them; all fail, or all are well. */
static void post_many(struct pair *p, uint32_t round, enum error_code code)
{
    struct ruccl_work *works[MANY];
    struct ruccl_stats stats;
    uint64_t counts[NRANKS];

    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(ruccl_barrier_async(p->comm, &works[i]), 0);
        assert_is_new(works[i]);
    }
    for (uint32_t i = 0; i < MANY; i++) {
        const struct request q = fake_await(p->daemon, REQUEST_POST, round * MANY + i);

        fake_complete(p->daemon, &q, code, "as it was told");
    }
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(ruccl_work_wait(works[i], -1), -(int)code);
        assert_int_equal(ruccl_work_stats(works[i], &stats), 0);
        assert_int_equal(stats.sequence, round * MANY + i + 1);
        assert_int_equal(ruccl_work_receive_counts(works[i], counts), -RUCCL_INVALID_ARGUMENT);
        ruccl_work_release(works[i]);
    }
}

TEST(works_are_used_again_as_if_they_were_new)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true, .slots = MANY });

    post_many(&p, 0, ERROR_ABORTED);
    post_many(&p, 1, ERROR_NONE);
    post_many(&p, 2, ERROR_TIMEOUT);
    pair_stop(&p);
}

TEST(a_work_let_go_is_not_used_again_before_its_answer)
{
    struct pair p = pair_start((struct behaviour){ .hold_posts = true });
    struct ruccl_work *first, *second;
    struct request q[2];

    assert_int_equal(ruccl_barrier_async(p.comm, &first), 0);
    ruccl_work_release(first);
    assert_int_equal(ruccl_barrier_async(p.comm, &second), 0);
    assert_true(second != first);
    for (uint32_t i = 0; i < 2; i++)
        q[i] = fake_await(p.daemon, REQUEST_POST, i);
    fake_complete(p.daemon, &q[0], ERROR_ABORTED, "nobody hears it");
    assert_int_equal(ruccl_work_wait(second, 10000), RUCCL_PENDING);
    fake_complete(p.daemon, &q[1], ERROR_NONE, "");
    assert_int_equal(ruccl_work_wait(second, -1), 0);
    ruccl_work_release(second);
    pair_stop(&p);
}

TEST(a_capacity_has_a_size_too)
{
    struct pair p = pair_start((struct behaviour){ 0 });
    uint8_t in[3] = { 0 };
    struct ruccl_tensor ti = bytes_tensor(in, 3), to = bytes_tensor(in, 1ull << 63), flat = ti;
    uint64_t counts[NRANKS] = { 3 };

    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, counts, &to, NULL, NULL),
                     -RUCCL_INVALID_SHAPE);
    assert_non_null(
        strstr(ruccl_last_error()->text, "all_to_all_v: out has more bytes than fit in 63 bits"));
    flat.naxes = 2;
    flat.shape[1] = 7;
    flat.shape[0] = 9;
    assert_int_equal(ruccl_all_to_all_v(p.comm, &ti, counts, &flat, NULL, NULL),
                     -RUCCL_INVALID_SHAPE);
    assert_non_null(
        strstr(ruccl_last_error()->text, "all_to_all_v: out has shape [9, 7], but it must be [9]"));
    pair_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rejected_call_takes_its_number_and_is_told_to_all),
        cmocka_unit_test(what_the_daemon_judges_is_posted_as_it_is),
        cmocka_unit_test(a_denied_stage_is_a_rejection),
        cmocka_unit_test(root_only_tensors_are_ignored_elsewhere),
        cmocka_unit_test(pairs_take_no_number_and_splits_do),
        cmocka_unit_test(budgets_wrap_and_unwrap),
        cmocka_unit_test(exchange_counts_are_checked_and_come_back),
        cmocka_unit_test(works_are_used_again_as_if_they_were_new),
        cmocka_unit_test(a_work_let_go_is_not_used_again_before_its_answer),
        cmocka_unit_test(a_capacity_has_a_size_too),
    };

    return cmocka_run_group_tests_name("client_posts", tests, NULL, NULL);
}
