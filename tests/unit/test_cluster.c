/* Communicators over several nodes: how they agree, and what they move. */
#include "tests/unit/unit.h"

#include <malloc.h>
#include <string.h>

#include "daemon/comm/persistent.h"
#include "tests/unit/cluster_calls.h"

/* ---- running */

static const enum collective_id movers[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_BROADCAST,
    COLLECTIVE_REDUCE,     COLLECTIVE_GATHER,     COLLECTIVE_SCATTER,        COLLECTIVE_ALL_TO_ALL,
};

static void move(uint32_t nnodes, uint32_t nranks, const uint32_t *place, uint64_t seed)
{
    static const uint64_t lengths[] = { 0, 1, 3, 101, 1021, 3001 };
    uint32_t answers = 0;

    cluster_open(nnodes, seed);
    cluster_join(0, nranks, place);
    expect_joined(nranks);
    for (uint32_t k = 0; k < 8; k++) {
        for (uint32_t i = 0; i < 6; i++) {
            const uint64_t budget = (i + k + seed) % 3 ? BUDGET_NONE : 4096 * nranks;

            fill(nranks, lengths[i]);
            post_all(nranks, movers[k], lengths[i], budget);
            cluster_run();
            answers++;
            for (uint32_t r = 0; r < nranks; r++)
                if (cluster_rank(r)->answers != answers)
                    fail_msg("%s of %llu: no answer for rank %u", collective_get(movers[k])->name,
                             (unsigned long long)lengths[i], r);
            expect_moved(nranks, movers[k], lengths[i]);
        }
    }
    leave_all(nranks);
    cluster_close();
}

TEST(every_collective_moves_what_it_should)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        move(2, 8, split_evenly, seed);
        move(4, 8, pairs, seed);
        move(3, 8, odd, seed);
        move(4, 4, singles, seed);
    }
}

TEST(a_barrier_waits_for_all)
{
    struct post post;

    cluster_open(2, 5);
    cluster_join(0, 8, split_evenly);
    for (uint32_t r = 0; r < 8; r++) {
        for (uint32_t k = 0; k < 8; k++)
            assert_int_equal(cluster_rank(k)->answers, 0);
        post = cluster_describe(r, COLLECTIVE_BARRIER, DTYPE_I32, 1);
        assert_int_equal(cluster_post(r, &post), 0);
        cluster_run();
    }
    for (uint32_t k = 0; k < 8; k++)
        assert_int_equal(cluster_rank(k)->answers, 1);
    cluster_close();
}

/* Sums of floats show the order of additions. */
static void sum_floats(uint32_t nnodes, const uint32_t *place, uint64_t n, float *ret)
{
    uint64_t seed = 99;

    cluster_open(nnodes, 3);
    cluster_join(0, 8, place);
    for (uint32_t r = 0; r < 8; r++) {
        float *in = cluster_in(r);

        for (uint64_t i = 0; i < n; i++)
            in[i] = ((float)(unit_random(&seed) % 2001) - 1000.0f) / 7.0f *
                    (float)(1u << unit_random(&seed) % 20);
    }
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_F32, n);

        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    for (uint32_t r = 0; r < 8; r++) {
        assert_int_equal(cluster_rank(r)->answers, 1);
        assert_int_equal(cluster_rank(r)->error.code, 0);
        assert_memory_equal(cluster_out(r), cluster_out(0), n * sizeof(float));
    }
    memcpy(ret, cluster_out(0), n * sizeof(float));
    cluster_close();
}

TEST(one_two_and_four_nodes_give_the_same_bits)
{
    static float one[3001], two[3001], four[3001];

    for (uint64_t n = 7; n <= 3001; n += 2994) {
        sum_floats(1, alone, n, one);
        sum_floats(2, split_evenly, n, two);
        sum_floats(4, pairs, n, four);
        assert_memory_equal(one, two, n * sizeof(float));
        assert_memory_equal(one, four, n * sizeof(float));
    }
}

/* ---- agreement */

/* One rank of the last node is of another mind in one field; all hear it in the same words. */
static void differ(void (*change)(struct post *post), enum error_code code, const char *text)
{
    cluster_open(3, 7);
    cluster_join(1, 8, odd);
    fill(8, 101);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = describe(r, 8, COLLECTIVE_REDUCE, 101, BUDGET_NONE);

        if (r == 5)
            change(&post);
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    expect_all_told(8, code, text);
    for (uint32_t i = 0; i < CLUSTER_BYTES / 2; i++)
        assert_int_equal(((uint8_t *)cluster_out(ROOT))[i], 0x5a);
    expect_works(8);
    leave_all(8);
    cluster_close();
}

static void another_kind(struct post *post)
{
    post->d.kind = COLLECTIVE_ALL_REDUCE;
}

static void another_op(struct post *post)
{
    post->d.op = OPERATOR_MAX;
}

static void another_dtype(struct post *post)
{
    post->d.dtype = DTYPE_F32;
}

static void another_shape(struct post *post)
{
    post->d.shape.axes[0] = 100;
}

static void more_axes(struct post *post)
{
    post->d.shape = (struct shape){ 2, { 101, 1 } };
}

static void another_root(struct post *post)
{
    post->d.root = 2;
}

static void another_budget(struct post *post)
{
    post->d.budget = 1 << 20;
}

static void made_persistent(struct post *post)
{
    post->persistent = true;
}

static void wrong_op(struct post *post)
{
    post->d.op = (enum operator_id)99;
}

static void outside(struct post *post)
{
    post->in.offset = CLUSTER_BYTES;
}

TEST(every_field_is_compared_across_nodes)
{
    differ(another_kind, ERROR_MISMATCH,
           "reduce 1 of 'job': ranks disagree on the collective: ranks 0-4, 6, 7 said reduce; rank "
           "5 said all_reduce");
    differ(
        another_op, ERROR_MISMATCH,
        "reduce 1 of 'job': ranks disagree on the op: ranks 0-4, 6, 7 said sum; rank 5 said max");
    differ(another_dtype, ERROR_MISMATCH, NULL);
    differ(another_shape, ERROR_MISMATCH, NULL);
    differ(more_axes, ERROR_MISMATCH, NULL);
    differ(another_root, ERROR_MISMATCH, NULL);
    differ(another_budget, ERROR_MISMATCH, NULL);
    differ(made_persistent, ERROR_MISMATCH, NULL);
}

/* Each node begins what it alone was asked, and their messages do not fit each other. */
TEST(nodes_that_differ_in_what_they_have_begun_end_it_and_go_on)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(4, seed);
        cluster_join(0, 4, singles);
        for (uint32_t r = 0; r < 4; r++) {
            const uint64_t n = r == seed % 4 ? 5003 : 7001 + seed;
            struct post post = describe(r, 4, COLLECTIVE_ALL_REDUCE, n, BUDGET_NONE);

            assert_int_equal(cluster_post(r, &post), 0);
        }
        cluster_run();
        expect_all_told(4, ERROR_MISMATCH, NULL);
        expect_works(4);
        leave_all(4);
        cluster_close();
    }
}

TEST(what_one_rank_rejects_all_hear_of)
{
    differ(wrong_op, ERROR_INVALID_OPERATION,
           "reduce 1 of 'job': rank 5: op 99 is not a known operation");
    differ(outside, ERROR_OUT_OF_RANGE, NULL);
}

TEST(overlap_on_one_node_is_told_to_all)
{
    cluster_open(2, 3);
    cluster_join(0, 8, split_evenly);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_I32, 8);

        if (r == 6)
            post.out.offset = 16;
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    expect_all_told(
        8, ERROR_OVERLAP,
        "all_reduce 1 of 'job': input and output of rank 6 overlap in a way that is not "
        "in place");
    expect_works(8);
    cluster_close();
}

TEST(what_cannot_be_planned_fails_on_all_nodes_alike)
{
    cluster_open(2, 3);
    cluster_join(0, 8, split_evenly);
    post_all(8, COLLECTIVE_ALL_REDUCE, 101, 1);
    cluster_run();
    expect_all_told(8, ERROR_BUDGET_TOO_SMALL, NULL);
    expect_works(8);
    cluster_close();
}

/* ---- exchanges */

static uint64_t rows_of(uint32_t from, uint32_t to)
{
    return (from + 2) * (to + 1) % 7;
}

static void post_exchange(uint32_t r, uint64_t out_rows, const uint64_t *expected)
{
    struct post post = cluster_describe(r, COLLECTIVE_ALL_TO_ALL_V, DTYPE_I32, 0);
    uint64_t counts[8], rows = 0;

    for (uint32_t to = 0; to < 8; to++) {
        counts[to] = rows_of(r, to);
        rows += counts[to];
    }
    post.d.shape = (struct shape){ 2, { rows, 3 } };
    post.counts = counts;
    post.ncounts = 8;
    post.expected = expected;
    post.nexpected = expected ? 8 : 0;
    post.out_rows = out_rows;
    assert_int_equal(cluster_post(r, &post), 0);
}

static void expect_exchanged(void)
{
    for (uint32_t r = 0; r < 8; r++) {
        const int32_t *out = cluster_out(r);

        assert_int_equal(cluster_rank(r)->error.code, 0);
        for (uint32_t s = 0; s < 8; s++) {
            uint64_t before = 0;

            assert_int_equal(cluster_rank(r)->counts[s], rows_of(s, r));
            for (uint32_t to = 0; to < r; to++)
                before += rows_of(s, to);
            for (uint64_t i = 0; i < 3 * rows_of(s, r); i++)
                assert_int_equal(*out++, value(s, 3 * before + i));
        }
    }
}

TEST(an_exchange_moves_rows_of_all_sizes)
{
    cluster_open(3, 11);
    cluster_join(0, 8, odd);
    fill(8, 100);
    for (uint32_t r = 0; r < 8; r++)
        post_exchange(r, 100, NULL);
    cluster_run();
    expect_exchanged();
    leave_all(8);
    cluster_close();
}

TEST(counts_that_do_not_fit_are_told_to_all)
{
    uint64_t expected[8];

    cluster_open(3, 11);
    cluster_join(0, 8, odd);
    fill(8, 100);
    for (uint32_t r = 0; r < 8; r++)
        post_exchange(r, r == 4 ? 1 : 100, NULL);
    cluster_run();
    expect_all_told(8, ERROR_CAPACITY, NULL);
    for (uint32_t s = 0; s < 8; s++)
        expected[s] = rows_of(s, 3) + (s == 5);
    for (uint32_t r = 0; r < 8; r++)
        post_exchange(r, 100, r == 3 ? expected : NULL);
    cluster_run();
    expect_all_told(8, ERROR_UNEXPECTED_COUNTS, NULL);
    for (uint32_t r = 0; r < 8; r++)
        post_exchange(r, 100, NULL);
    cluster_run();
    expect_exchanged();
    cluster_close();
}

/* ---- status */

struct seen {
    uint32_t communicators, members, present, remote;
};

static void see(void *context, const struct status_item *item)
{
    struct seen *seen = context;

    if (item->kind == STATUS_COMMUNICATOR) {
        seen->communicators++;
        seen->present = item->communicator.present;
        return;
    }
    seen->members++;
    seen->remote += !strcmp(item->member.last, "on host2") && item->member.pid >= 100;
}

TEST(status_shows_members_of_other_nodes_and_where_they_are)
{
    struct seen seen = { 0 };

    cluster_open(3, 2);
    cluster_join(0, 8, odd);
    post_all(3, COLLECTIVE_BARRIER, 1, BUDGET_NONE);
    comms_status(cluster_comms(1), 0, cluster_now(), see, &seen);
    assert_int_equal(seen.communicators, 1);
    assert_int_equal(seen.members, 8);
    assert_int_equal(seen.present, 8);
    assert_int_equal(seen.remote, 3);
    cluster_close();
}

/* ---- split and persistent operations */

TEST(a_split_makes_groups_across_nodes)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        cluster_open(3, seed);
        cluster_join(0, 8, odd);
        for (uint32_t r = 0; r < 8; r++) {
            struct post post = cluster_describe(r, COLLECTIVE_SPLIT, DTYPE_I32, 1);

            /* 0, 1, 2, 4: of all nodes, in another order; 3, 7 of one; 5, 6 none */
            post.color = r == 5 || r == 6 ? -1 : r == 3 || r == 7;
            post.key = -(int32_t)r;
            assert_int_equal(cluster_post(r, &post), 0);
        }
        cluster_run();
        for (uint32_t r = 0; r < 8; r++) {
            struct cluster_rank *rank = cluster_rank(r);

            assert_int_equal(rank->answers, 1);
            assert_int_equal(rank->error.code, 0);
            assert_int_equal(rank->child != NULL, r != 5 && r != 6);
        }
        assert_int_equal(member_rank(cluster_rank(4)->child), 0);
        assert_int_equal(member_nranks(cluster_rank(0)->child), 4);
        assert_string_equal(member_id(cluster_rank(0)->child), member_id(cluster_rank(2)->child));
        assert_int_equal(member_nranks(cluster_rank(3)->child), 2);
        fill(8, 101);
        for (uint32_t r = 0; r < 5; r++) {
            struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_I32, 101);

            if (r != 3)
                assert_int_equal(member_post(cluster_rank(r)->child, &post, cluster_now()), 0);
        }
        cluster_run();
        for (uint32_t r = 0; r < 5; r++)
            for (uint64_t i = 0; r != 3 && i < 101; i++)
                assert_int_equal(((int32_t *)cluster_out(r))[i],
                                 value(0, i) + value(1, i) + value(2, i) + value(4, i));
        for (uint32_t r = 0; r < 8; r++)
            if (r != 5 && r != 6)
                member_leave(cluster_rank(r)->child, cluster_now());
        expect_works(8);
        leave_all(8);
        cluster_close();
    }
}

/* The quota of one node is used up: nobody gets a child. */
TEST(a_split_that_one_node_refuses_makes_nothing)
{
    char id[COMM_ID_BYTES];
    struct error e = { 0 };

    cluster_open(2, 1);
    cluster_join(0, 8, split_evenly);
    for (uint32_t i = 0; i < 7; i++)
        assert_int_equal(comms_id_new(cluster_comms(1), CLUSTER_UID, cluster_now(), id, &e), 0);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = cluster_describe(r, COLLECTIVE_SPLIT, DTYPE_I32, 1);

        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    expect_all_told(8, ERROR_QUOTA, NULL);
    assert_int_equal(comms_count(cluster_comms(0)), 1);
    assert_int_equal(comms_count(cluster_comms(1)), 1);
    expect_works(8);
    cluster_close();
}

static void start(uint32_t rank, uint32_t id, uint64_t serial)
{
    const struct start s = { .id = id, .serial = serial };

    assert_int_equal(member_start(cluster_rank(rank)->member, &s, cluster_now()), 0);
}

TEST(persistent_operations_start_on_all_nodes)
{
    cluster_open(3, 2);
    cluster_join(0, 8, odd);
    fill(8, 101);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_I32, 101);

        post.persistent = true;
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    for (uint32_t r = 0; r < 8; r++)
        assert_int_equal(cluster_rank(r)->persistent, 1);
    for (uint32_t k = 0; k < 3; k++) {
        fill(8, 101);
        for (uint32_t r = 0; r < 8; r++)
            start(r, 1, 1);
        cluster_run();
        expect_moved(8, COLLECTIVE_ALL_REDUCE, 101);
    }
    for (uint32_t r = 0; r < 8; r++)
        start(r, r == 2 ? 2 : 1, 1);
    cluster_run();
    expect_all_told(8, ERROR_NOT_FOUND, NULL);
    for (uint32_t r = 0; r < 8; r++)
        assert_int_equal(member_persistent_free(cluster_rank(r)->member, 1), 0);
    expect_works(8);
    leave_all(8);
    cluster_close();
}

/* What is said of a start is told, whatever lay where its arrival is. */
TEST(starts_say_nothing_that_they_were_not_told)
{
    cluster_open(2, 4);
    mallopt(M_PERTURB, 0xa5);
    cluster_join(0, 8, split_evenly);
    fill(8, 101);
    for (uint32_t r = 0; r < 8; r++) {
        struct post post = cluster_describe(r, COLLECTIVE_ALL_REDUCE, DTYPE_I32, 101);

        post.persistent = true;
        assert_int_equal(cluster_post(r, &post), 0);
    }
    cluster_run();
    /* more at once than there are arrivals that have been used before */
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t r = 0; r < 8; r++)
            start(r, 1, k);
    cluster_run();
    expect_moved(8, COLLECTIVE_ALL_REDUCE, 101);
    leave_all(8);
    cluster_close();
    mallopt(M_PERTURB, 0);
}

/* ---- pairs */

static void post_pair(uint32_t rank, enum collective_id kind, uint32_t peer, uint32_t tag,
                      uint64_t count)
{
    struct post post = cluster_describe(rank, kind, DTYPE_I32, count);

    post.peer = peer;
    post.tag = tag;
    assert_int_equal(cluster_post(rank, &post), 0);
}

TEST(pairs_match_in_order_whoever_comes_first)
{
    static const uint64_t lengths[] = { 0, 1, 1021, 5003 };

    for (uint64_t seed = 1; seed <= 8; seed++) {
        cluster_open(3, seed);
        cluster_join(0, 8, odd);
        for (uint32_t i = 0; i < 4; i++) {
            fill(8, lengths[i]);
            if (seed % 2)
                post_pair(5, COLLECTIVE_RECV, 1, 9, lengths[i]);
            cluster_deliver((uint32_t)seed);
            post_pair(1, COLLECTIVE_SEND, 5, 9, lengths[i]);
            cluster_run();
            assert_int_equal(cluster_rank(5)->answers, seed % 2 ? i + 1 : i);
            if (seed % 2 == 0)
                post_pair(5, COLLECTIVE_RECV, 1, 9, lengths[i]);
            cluster_run();
            assert_int_equal(cluster_rank(5)->answers, i + 1);
            assert_int_equal(cluster_rank(1)->answers, i + 1);
            assert_int_equal(cluster_rank(5)->error.code, 0);
            for (uint64_t k = 0; k < lengths[i]; k++)
                assert_int_equal(((int32_t *)cluster_out(5))[k], value(1, k));
        }
        /* both on one node */
        post_pair(1, COLLECTIVE_SEND, 3, 9, 8);
        post_pair(3, COLLECTIVE_RECV, 1, 9, 8);
        cluster_run();
        assert_int_equal(cluster_rank(3)->answers, 1);
        expect_works(8);
        leave_all(8);
        cluster_close();
    }
}

TEST(ends_of_a_pair_that_disagree_are_told_the_same)
{
    cluster_open(3, 4);
    cluster_join(0, 8, odd);
    post_pair(1, COLLECTIVE_SEND, 5, 9, 100);
    post_pair(5, COLLECTIVE_RECV, 1, 9, 101);
    cluster_run();
    assert_int_equal(cluster_rank(1)->error.code, ERROR_MISMATCH);
    assert_string_equal(cluster_rank(1)->error.text, cluster_rank(5)->error.text);
    assert_string_equal(
        cluster_rank(1)->error.text,
        "send of 'job': ranks disagree on the shape: rank 1 said [100]; rank 5 said "
        "[101]");
    expect_works(8);
    cluster_close();
}

TEST(what_one_end_of_a_pair_rejects_the_other_hears)
{
    for (uint32_t bad = 0; bad < 2; bad++) {
        cluster_open(3, 4);
        cluster_join(0, 8, odd);
        for (uint32_t end = 0; end < 2; end++) {
            const uint32_t rank = end ? 5 : 1;
            struct post post =
                cluster_describe(rank, end ? COLLECTIVE_RECV : COLLECTIVE_SEND, DTYPE_I32, 100);

            post.peer = end ? 1 : 5;
            if (end == bad)
                post.in.offset = post.out.offset = CLUSTER_BYTES;
            assert_int_equal(cluster_post(rank, &post), 0);
            cluster_run();
        }
        assert_int_equal(cluster_rank(1)->error.code, ERROR_OUT_OF_RANGE);
        assert_string_equal(cluster_rank(1)->error.text, cluster_rank(5)->error.text);
        assert_int_equal(cluster_rank(5)->error.ranks[0], bad ? 5 : 1);
        expect_works(8);
        cluster_close();
    }
}

/* They need not have the same budget; the message is cut the same way at both. */
TEST(ends_of_a_pair_go_by_the_budget_of_the_source)
{
    for (uint32_t k = 0; k < 2; k++) {
        cluster_open(3, 4);
        cluster_join(0, 8, odd);
        fill(8, 700);
        for (uint32_t end = 0; end < 2; end++) {
            const uint32_t rank = end ? 5 : 1;
            struct post post =
                cluster_describe(rank, end ? COLLECTIVE_RECV : COLLECTIVE_SEND, DTYPE_I32, 5003);

            post.peer = end ? 1 : 5;
            if (end == k)
                post.d.budget = 400;
            assert_int_equal(cluster_post(rank, &post), 0);
        }
        cluster_run();
        for (uint32_t r = 1; r <= 5; r += 4) {
            if (cluster_rank(r)->answers != 1 || cluster_rank(r)->error.code)
                fail_msg("rank %u: %u answers, %s", r, cluster_rank(r)->answers,
                         cluster_rank(r)->error.text);
        }
        for (uint64_t i = 0; i < 5003; i++)
            assert_int_equal(((int32_t *)cluster_out(5))[i], value(1, i));
        cluster_close();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_collective_moves_what_it_should),
        cmocka_unit_test(a_barrier_waits_for_all),
        cmocka_unit_test(one_two_and_four_nodes_give_the_same_bits),
        cmocka_unit_test(every_field_is_compared_across_nodes),
        cmocka_unit_test(nodes_that_differ_in_what_they_have_begun_end_it_and_go_on),
        cmocka_unit_test(what_one_rank_rejects_all_hear_of),
        cmocka_unit_test(overlap_on_one_node_is_told_to_all),
        cmocka_unit_test(what_cannot_be_planned_fails_on_all_nodes_alike),
        cmocka_unit_test(an_exchange_moves_rows_of_all_sizes),
        cmocka_unit_test(counts_that_do_not_fit_are_told_to_all),
        cmocka_unit_test(status_shows_members_of_other_nodes_and_where_they_are),
        cmocka_unit_test(a_split_makes_groups_across_nodes),
        cmocka_unit_test(a_split_that_one_node_refuses_makes_nothing),
        cmocka_unit_test(persistent_operations_start_on_all_nodes),
        cmocka_unit_test(starts_say_nothing_that_they_were_not_told),
        cmocka_unit_test(pairs_match_in_order_whoever_comes_first),
        cmocka_unit_test(ends_of_a_pair_that_disagree_are_told_the_same),
        cmocka_unit_test(what_one_end_of_a_pair_rejects_the_other_hears),
        cmocka_unit_test(ends_of_a_pair_go_by_the_budget_of_the_source),
    };

    int failed = cmocka_run_group_tests_name("each tells each", tests, NULL, NULL);

    cluster_use_gpus(50);
    failed += cmocka_run_group_tests_name("some of the memory is on GPUs", tests, NULL, NULL);
    cluster_use_gpus(0);
    return failed + cmocka_run_group_tests_name("over a tree", tests, cluster_over_a_tree, NULL);
}
