#include "tests/unit/cluster_calls.h"

#include <string.h>

#include "tests/unit/unit.h"

const uint32_t split_evenly[8] = { 0, 0, 0, 0, 1, 1, 1, 1 };
const uint32_t pairs[8] = { 0, 0, 1, 1, 2, 2, 3, 3 };
const uint32_t alone[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
const uint32_t odd[8] = { 2, 0, 1, 0, 2, 2, 1, 0 };
const uint32_t singles[4] = { 3, 1, 0, 2 };

void expect_joined(uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (rank->joins != 1 || rank->join_error.code)
            fail_msg("rank %u: %u joins, %s", r, rank->joins, rank->join_error.text);
    }
}

void leave_all(uint32_t nranks)
{
    for (uint32_t r = 0; r < nranks; r++)
        cluster_leave(r);
    cluster_run();
    for (uint32_t r = 0; r < nranks; r++)
        assert_int_equal(cluster_rank(r)->lefts, 1);
}

int32_t value(uint32_t rank, uint64_t i)
{
    return (int32_t)(rank * 1000003 + i * 7 + 1);
}

void fill(uint32_t nranks, uint64_t count)
{
    for (uint32_t r = 0; r < nranks; r++) {
        int32_t *in = cluster_in(r);

        for (uint64_t i = 0; i < count * nranks; i++)
            in[i] = value(r, i);
        memset(cluster_out(r), 0x5a, CLUSTER_BYTES / 2);
    }
}

int32_t sum(uint32_t nranks, uint64_t i)
{
    int32_t v = 0;

    for (uint32_t r = 0; r < nranks; r++)
        v += value(r, i);
    return v;
}

/* Element i of what rank r has in the end; blocks are of n elements. */
static int32_t wanted(enum collective_id kind, uint32_t nranks, uint32_t r, uint64_t n, uint64_t i)
{
    switch (kind) {
    case COLLECTIVE_ALL_REDUCE:
    case COLLECTIVE_REDUCE:
        return sum(nranks, i);
    case COLLECTIVE_REDUCE_SCATTER:
        return sum(nranks, r * n + i);
    case COLLECTIVE_ALL_GATHER:
    case COLLECTIVE_GATHER:
        return value((uint32_t)(i / n), i % n);
    case COLLECTIVE_BROADCAST:
        return value(ROOT, i);
    case COLLECTIVE_SCATTER:
        return value(ROOT, r * n + i);
    default: /* all_to_all: block r of every rank */
        return value((uint32_t)(i / n), r * n + i % n);
    }
}

static bool in_is_long(enum collective_id kind)
{
    return kind == COLLECTIVE_REDUCE_SCATTER || kind == COLLECTIVE_ALL_TO_ALL;
}

static bool out_is_long(enum collective_id kind)
{
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_GATHER ||
           kind == COLLECTIVE_ALL_TO_ALL;
}

struct post describe(uint32_t rank, uint32_t nranks, enum collective_id kind, uint64_t n,
                     uint64_t budget)
{
    struct post post = cluster_describe(rank, kind, DTYPE_I32, in_is_long(kind) ? n * nranks : n);

    if (collective_get(kind)->flags & COLLECTIVE_HAS_ROOT)
        post.d.root = ROOT;
    post.d.budget = budget;
    return post;
}

void post_all(uint32_t nranks, enum collective_id kind, uint64_t n, uint64_t budget)
{
    for (uint32_t r = 0; r < nranks; r++) {
        struct post post = describe(r, nranks, kind, n, budget);

        assert_int_equal(cluster_post(r, &post), 0);
    }
}

void expect_moved(uint32_t nranks, enum collective_id kind, uint64_t n)
{
    const bool at_root = collective_get(kind)->flags & COLLECTIVE_OUT_AT_ROOT;

    for (uint32_t r = 0; r < nranks; r++) {
        const int32_t *out = cluster_out(r);
        const struct cluster_rank *rank = cluster_rank(r);

        if (rank->error.code)
            fail_msg("%s: rank %u: %s", collective_get(kind)->name, r, rank->error.text);
        for (uint64_t i = 0; i < (out_is_long(kind) ? n * nranks : n) && (!at_root || r == ROOT);
             i++)
            if (out[i] != wanted(kind, nranks, r, n, i))
                fail_msg("%s of %llu by %s: rank %u: element %llu", collective_get(kind)->name,
                         (unsigned long long)n, rank->algorithm, r, (unsigned long long)i);
    }
}

void expect_all_told(uint32_t nranks, enum error_code code, const char *text)
{
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (rank->error.code != code || (text && strcmp(rank->error.text, text)))
            fail_msg("rank %u: %u: %s", r, rank->error.code, rank->error.text);
        assert_string_equal(rank->error.text, cluster_rank(0)->error.text);
        assert_int_equal(rank->error.nranks, cluster_rank(0)->error.nranks);
    }
}

void expect_works(uint32_t nranks)
{
    fill(nranks, 101);
    post_all(nranks, COLLECTIVE_ALL_REDUCE, 101, BUDGET_NONE);
    cluster_run();
    expect_moved(nranks, COLLECTIVE_ALL_REDUCE, 101);
}

/* Every rank hears that the group cannot form, and why; nothing is left behind. */
void expect_refused(uint32_t nranks, enum error_code code, const char *part)
{
    for (uint32_t r = 0; r < nranks; r++) {
        const struct cluster_rank *rank = cluster_rank(r);

        if (!rank->member)
            continue;
        if (rank->joins != 1 || rank->join_error.code != code ||
            !strstr(rank->join_error.text, part))
            fail_msg("rank %u: %u joins: %u: %s", r, rank->joins, rank->join_error.code,
                     rank->join_error.text);
    }
}

int join_one(uint32_t rank, uint32_t node, struct error *e)
{
    memset(e, 0, sizeof(*e));
    return cluster_join_as(rank, node, 4, CLUSTER_UID, CLUSTER_TIME, "", e);
}
