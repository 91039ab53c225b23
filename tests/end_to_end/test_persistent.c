/* Persistent operations through the library: made by all, started often, and refused. */
#include "tests/end_to_end/persistent_world.h"

#include <string.h>

#define MOST 1024u

/* ---- starting */

TEST(every_kind_gives_what_its_call_gives_at_every_start)
{
    struct ruccl_persistent *p[KINDS][RANKS];
    struct set sets[KINDS], other;

    open_all();
    set_alloc(&other);
    for (int kind = 0; kind < KINDS; kind++) {
        set_alloc(&sets[kind]);
        made_of(&sets[kind], (enum kind)kind, (uint32_t)kind % RANKS, p[kind]);
    }
    for (uint32_t round = 0; round < 40; round++) {
        struct ruccl_work *works[KINDS][RANKS], *calls[RANKS];

        set_fill(&other, round);
        for (int kind = 0; kind < KINDS; kind++)
            set_fill(&sets[kind], round);
        for (uint32_t r = 0; r < RANKS; r++) { /* some before an ordinary call, some behind it */
            const struct ruccl_tensor in = vector_of(other.in[r], COUNT);
            const struct ruccl_tensor out = vector_of(other.out[r], COUNT);

            for (int kind = 0; kind < 3; kind++)
                works[kind][r] = started(p[kind][r]);
            assert_int_equal(ruccl_broadcast_async(world.comms[r], &in, &out, 1, &calls[r]), 0);
            for (int kind = 3; kind < KINDS; kind++)
                works[kind][r] = started(p[kind][r]);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            expect_done(calls[r], "broadcast");
            for (int kind = 0; kind < KINDS; kind++)
                expect_done(works[kind][r], "start");
        }
        expect_outputs(&other, BROADCAST, 1, round);
        for (int kind = 0; kind < KINDS; kind++)
            expect_outputs(&sets[kind], (enum kind)kind, (uint32_t)kind % RANKS, round);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        release_all(p[kind]);
        set_free(&sets[kind]);
    }
    set_free(&other);
    world_close(&world);
}

TEST(floats_are_exact_at_every_start)
{
    const uint64_t count = 100003;
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct tensors t;

    open_all();
    tensors_init(&t, &world, count * sizeof(float), false);
    for (uint32_t r = 0; r < RANKS; r++)
        makers[r] = (struct maker){
            .comm = ruccl_bounded(world.comms[r], 90000),
            .in = { .dtype = RUCCL_F32, .naxes = 1, .shape = { count }, .region = t.in[r].region },
            .out = { .dtype = RUCCL_F32, .naxes = 1, .shape = { count }, .region = t.out[r].region }
        };
    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, 0);
        p[r] = makers[r].made;
    }
    for (uint64_t round = 0; round < 8; round++) {
        tensors_fill(&t, RUCCL_F32, 17 + round);
        tensors_expect_reduction(&t, RUCCL_SUM, count);
        start_all(p);
        tensors_expect_unchanged(&t);
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(reference_difference(RUCCL_F32, t.expected, t.out[r].bytes, count),
                             count);
    }
    release_all(p);
    tensors_fini(&t);
    world_close(&world);
}

TEST(different_starts_fail_for_all_and_no_more)
{
    struct ruccl_persistent *a[RANKS], *b[RANKS];
    struct ruccl_work *works[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, a);
    made_of(&s, ALL_REDUCE, 0, b);
    for (uint32_t r = 0; r < RANKS; r++)
        works[r] = started(r == 1 ? b[r] : a[r]);
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_failure(works[r], RUCCL_MISMATCH, "starts of two");
        assert_int_equal(ruccl_last_error()->ranks[0], 1);
    }
    expect_going_on(a, &s);

    for (uint32_t r = 0; r < RANKS; r++) {
        const struct ruccl_tensor t = vector_of(s.in[r], COUNT);

        if (r == 2)
            assert_int_equal(ruccl_all_reduce_async(world.comms[r], &t, &t, RUCCL_SUM, &works[r]),
                             0);
        else
            works[r] = started(b[r]);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        expect_failure(works[r], RUCCL_MISMATCH, "a start and a call");
        assert_int_equal(ruccl_last_error()->ranks[0], 2);
    }
    expect_going_on(b, &s);
    release_all(a);
    release_all(b);
    set_free(&s);
    world_close(&world);
}

/* ---- making what cannot be */

static void expect_not_made(struct maker makers[RANKS], enum ruccl_code code, const char *words)
{
    char missing[128];

    make_all(makers);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, -(int)code);
        assert_null(makers[r].made);
        if (!words_in(makers[r].error.text, words, missing))
            fail_msg("no '%s' in: %s", missing, makers[r].error.text);
    }
}

TEST(what_one_rank_cannot_make_nobody_gets)
{
    static int32_t plain[COUNT];
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    made_of(&s, ALL_REDUCE, 0, p);
    makers_init(makers, &s, ALL_REDUCE, 0);
    makers[1].in.region = NULL;
    makers[1].in.data = plain;
    expect_not_made(makers, RUCCL_INVALID_ARGUMENT,
                    "rank 1: |in of a persistent operation must be in a region");
    makers_init(makers, &s, ALL_REDUCE, 0);
    makers[2].out.shape[0]--;
    expect_not_made(makers, RUCCL_INVALID_SHAPE, "rank 2: |out has shape [5002]");
    makers_init(makers, &s, BROADCAST, 0);
    makers[0].root = RANKS;
    expect_not_made(makers, RUCCL_INVALID_ROOT, "rank 0: |root 3 is not below");
    makers_init(makers, &s, GATHER, 0);
    makers[1].root = 1;
    expect_not_made(makers, RUCCL_MISMATCH, "ranks disagree on the root|rank 1 said 1");
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

TEST(tensors_that_only_the_root_has_may_be_anything_elsewhere)
{
    struct ruccl_persistent *p[2][RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    for (int i = 0; i < 2; i++) {
        makers_init(makers, &s, i ? SCATTER : REDUCE, 1);
        for (uint32_t r = 0; r < RANKS; r += 2) {
            struct ruccl_tensor *other = i ? &makers[r].in : &makers[r].out;

            other->region = (struct ruccl_region *)(uintptr_t)(r + 1);
        }
        make_all(makers);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(makers[r].result, 0);
            p[i][r] = makers[r].made;
        }
        set_fill(&s, 3);
        start_all(p[i]);
        expect_outputs(&s, i ? SCATTER : REDUCE, 1, 3);
    }
    release_all(p[0]);
    release_all(p[1]);
    set_free(&s);
    world_close(&world);
}

TEST(arguments_that_are_not_there_are_named)
{
    struct ruccl_work *work;

    open_all();
    assert_int_equal(ruccl_all_reduce_init(world.comms[0], NULL, NULL, RUCCL_SUM, NULL),
                     -RUCCL_INVALID_ARGUMENT);
    assert_string_equal(ruccl_last_error()->text, "all_reduce_init: ret is NULL");
    assert_int_equal(ruccl_gather_init((struct ruccl_comm){ 0 }, NULL, NULL, 0,
                                       &(struct ruccl_persistent *){ NULL }),
                     -RUCCL_INVALID_ARGUMENT);
    assert_int_equal(ruccl_start(NULL, &work), -RUCCL_INVALID_ARGUMENT);
    ruccl_persistent_release(NULL);
    world_close(&world);
}

static void *make_many(void *arg)
{
    struct maker *m = arg;
    static struct ruccl_persistent *made[RANKS][MOST];
    struct ruccl_persistent **mine = made[ruccl_rank(m->comm)];

    for (uint32_t i = 0; i < MOST && m->result == 0; i++)
        m->result = make_one(m, &mine[i]);
    if (m->result == 0)
        m->result = make_one(m, &m->made);
    m->error = *ruccl_last_error();
    ruccl_persistent_release(mine[5]);
    if (make_one(m, &mine[5]) < 0)
        m->result = -1;
    for (uint32_t i = 0; i < MOST; i++)
        ruccl_persistent_release(mine[i]);
    return NULL;
}

TEST(a_communicator_has_a_thousand_and_no_more)
{
    struct ruccl_persistent *p[RANKS];
    struct maker makers[RANKS];
    struct set s;

    open_all();
    set_alloc(&s);
    makers_init(makers, &s, ALL_REDUCE, 0);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_create(&makers[r].thread, NULL, make_many, &makers[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        pthread_join(makers[r].thread, NULL);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(makers[r].result, -RUCCL_QUOTA);
        assert_non_null(strstr(makers[r].error.text, "1024"));
    }
    made_of(&s, ALL_REDUCE, 0, p);
    expect_going_on(p, &s);
    release_all(p);
    set_free(&s);
    world_close(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        PERSISTENT_TEST(every_kind_gives_what_its_call_gives_at_every_start),
        PERSISTENT_TEST(floats_are_exact_at_every_start),
        PERSISTENT_TEST(different_starts_fail_for_all_and_no_more),
        PERSISTENT_TEST(what_one_rank_cannot_make_nobody_gets),
        PERSISTENT_TEST(tensors_that_only_the_root_has_may_be_anything_elsewhere),
        PERSISTENT_TEST(arguments_that_are_not_there_are_named),
        PERSISTENT_TEST(a_communicator_has_a_thousand_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
