/* Tensors that pass through windows, of communicators over several nodes. */
#include "tests/unit/unit.h"

#include <string.h>

#include "tests/unit/cluster_calls.h"

#define RANKS 8u
#define MOST  (RANKS * 1003u) /* elements of a tensor */

/* What a rank's client brings and takes; as in struct window of the library. */
static struct passer {
    uint64_t in_window, out_window; /* 0: all of the tensor is there */
    uint32_t in_blocks, out_blocks;
    uint64_t ready, taken;
    int32_t given[MOST], got[MOST];
} passers[RANKS];

static uint64_t seed, block; /* elements of a block */
static bool slow;            /* rank 0 has the shortest windows that there are */

static const enum collective_id kinds[] = {
    COLLECTIVE_ALL_REDUCE, COLLECTIVE_REDUCE,         COLLECTIVE_BROADCAST, COLLECTIVE_ALL_GATHER,
    COLLECTIVE_GATHER,     COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_SCATTER,
};

/* Elements of a chunk under a budget. */
static uint64_t chunk_of(enum collective_id kind, uint64_t budget)
{
    const struct descriptor d = {
        .kind = kind, .dtype = DTYPE_I32, .budget = budget, .nranks = RANKS
    };

    return descriptor_chunk(&d);
}

static uint64_t choose_window(enum collective_id kind, uint64_t budget)
{
    const uint64_t chunk = budget == BUDGET_NONE ? 0 : chunk_of(kind, budget);
    const uint64_t window =
        chunk ? chunk * (1 + unit_random(&seed) % 8) : 4ull << unit_random(&seed) % 5;
    const bool fits = collective_get(kind)->shape == SHAPE_SAME || window < block;

    return fits && unit_random(&seed) % 3 ? window : 0;
}

/* Whether the rank has such a tensor. */
static bool has_tensor(enum collective_id kind, uint32_t rank, bool out)
{
    const uint32_t flag = out ? COLLECTIVE_OUT_AT_ROOT : COLLECTIVE_IN_AT_ROOT;

    return rank == ROOT || !(collective_get(kind)->flags & flag);
}

static uint32_t blocks_of(enum collective_id kind, bool out)
{
    return collective_get(kind)->shape == (out ? SHAPE_TIMES_R : SHAPE_OVER_R) ? RANKS : 1;
}

/* Of some nodes no rank has any: these may begin before they hear of the others', or after. */
static void begin(enum collective_id kind, uint64_t budget)
{
    const uint64_t nodes = unit_random(&seed) >> 32 | unit_random(&seed) >> 32;

    fill(RANKS, block);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct passer *p = &passers[r];
        struct post post = describe(r, RANKS, kind, block, budget);

        *p = (struct passer){ .in_blocks = blocks_of(kind, false),
                              .out_blocks = blocks_of(kind, true) };
        if (nodes >> cluster_rank(r)->node & 1 && has_tensor(kind, r, false))
            p->in_window = choose_window(kind, budget);
        if (nodes >> cluster_rank(r)->node & 1 && has_tensor(kind, r, true))
            p->out_window = choose_window(kind, budget);
        if (slow && r == 0)
            p->in_window = p->out_window = budget == BUDGET_NONE ? 4 : chunk_of(kind, budget);
        memcpy(p->given, cluster_in(r), p->in_blocks * block * sizeof(int32_t));
        if (p->in_window)
            memset(cluster_in(r), 0x77, p->in_blocks * block * sizeof(int32_t));
        post.in.window = p->in_window;
        post.out.window = p->out_window;
        cluster_rank(r)->progress = 0;
        assert_int_equal(cluster_post(r, &post), 0);
        cluster_deliver((uint32_t)(unit_random(&seed) % 8));
    }
}

static void take(struct passer *p, const int32_t *out, uint64_t done)
{
    for (; p->out_window && p->taken < done; p->taken++)
        for (uint32_t b = 0; b < p->out_blocks; b++)
            p->got[b * block + p->taken] = out[b * p->out_window + p->taken % p->out_window];
}

static void bring(struct passer *p, int32_t *in, uint64_t done)
{
    for (; p->in_window && p->ready < MIN(block, done + p->in_window); p->ready++)
        for (uint32_t b = 0; b < p->in_blocks; b++)
            in[b * p->in_window + p->ready % p->in_window] = p->given[b * block + p->ready];
}

/* Every client takes what is there, and brings what there is room for. */
static void pass(uint32_t answers)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct cluster_rank *rank = cluster_rank(r);
        struct passer *p = &passers[r];

        if (!rank->member || rank->answers > answers)
            continue;
        take(p, cluster_out(r), rank->progress);
        bring(p, cluster_in(r), rank->progress);
        if (p->in_window || p->out_window)
            member_staged(rank->member, 1, p->ready, p->taken, cluster_now());
    }
}

/* Puts what has passed where it would be without windows. */
static void end(uint32_t answers)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct passer *p = &passers[r];

        if (cluster_rank(r)->answers != answers + 1)
            fail_msg("rank %u: %u answers, not %u", r, cluster_rank(r)->answers, answers + 1);
        take(p, cluster_out(r), block);
        if (p->out_window)
            memcpy(cluster_out(r), p->got, p->out_blocks * block * sizeof(int32_t));
    }
}

static bool all_answered(uint32_t answers)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (cluster_rank(r)->answers == answers)
            return false;
    return true;
}

static void go_on(uint32_t answers)
{
    for (uint32_t i = 0; i <= 2 * block && !all_answered(answers); i++) {
        pass(answers);
        cluster_run();
    }
}

static void move(uint32_t nnodes, const uint32_t *place, const uint64_t *budgets, uint32_t n)
{
    static const uint64_t blocks[] = { 9, 101, 1003 };
    uint32_t answers = 0;

    cluster_open(nnodes, seed);
    cluster_join(0, RANKS, place);
    for (uint32_t k = 0; k < ARRAY_SIZE(kinds); k++)
        for (uint32_t i = 0; i < ARRAY_SIZE(blocks) * n; i++, answers++) {
            block = blocks[i / n];
            begin(kinds[k], budgets[i % n]);
            go_on(answers);
            end(answers);
            expect_moved(RANKS, kinds[k], block);
        }
    leave_all(RANKS);
    cluster_close();
}

TEST(windows_of_any_kind_pass_between_nodes)
{
    static const uint64_t none[] = { BUDGET_NONE };

    for (uint64_t round = 1; round <= 5; round++) {
        seed = round;
        move(2, split_evenly, none, 1);
        move(4, pairs, none, 1);
        move(3, odd, none, 1);
    }
}

TEST(windows_pass_between_nodes_under_any_budget)
{
    static const uint64_t budgets[] = { RANKS * 4 * 8, RANKS * 4 * 37 + 5, RANKS * 4 * 300 };

    for (uint64_t round = 1; round <= 5; round++) {
        seed = 100 + round;
        move(2, split_evenly, budgets, 3);
        move(3, odd, budgets, 3);
    }
}

/* ---- the end in the middle */

static void cut(void)
{
    cluster_cut(0, 2);
}

static void kill_node(void)
{
    cluster_kill(2);
}

static void lose_rank(void)
{
    cluster_lose(4);
}

/* Goes wrong after so many rounds of passing; the others are told, whatever they were waiting for.
 */
static void fail_after(uint32_t rounds, void (*what)(void), uint64_t budget)
{
    cluster_open(3, seed);
    cluster_join(0, RANKS, odd);
    block = 251;
    slow = true;
    begin(COLLECTIVE_ALL_REDUCE, budget);
    slow = false;
    for (uint32_t i = 0; i < rounds; i++) {
        pass(0);
        cluster_deliver(3);
    }
    what();
    for (uint32_t i = 0; i < 20; i++) {
        pass(0);
        cluster_run();
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (!rank->member)
            continue;
        assert_int_equal(rank->answers, 1);
        assert_int_equal(rank->error.code, ERROR_RANK_LOST);
    }
    cluster_close();
}

TEST(whatever_ends_in_the_middle_all_are_told)
{
    static void (*const whats[])(void) = { cut, kill_node, lose_rank };
    static const uint64_t budgets[] = { BUDGET_NONE, RANKS * 4 * 8 };

    for (uint32_t i = 0; i < ARRAY_SIZE(whats); i++)
        for (uint32_t rounds = 0; rounds < 12; rounds++)
            for (uint32_t b = 0; b < ARRAY_SIZE(budgets); b++) {
                seed = 1 + 1000 * i + 10 * rounds + b;
                fail_after(rounds, whats[i], budgets[b]);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_of_any_kind_pass_between_nodes),
        cmocka_unit_test(windows_pass_between_nodes_under_any_budget),
        cmocka_unit_test(whatever_ends_in_the_middle_all_are_told),
    };

    return cmocka_run_group_tests_name("cluster_windows", tests, NULL, NULL);
}
