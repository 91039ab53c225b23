/*
 * What is refused outside of collectives: joins, pairs, handles and what is beyond a quota. Whoever
 * has nothing to do with it goes on.
 */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shared/base.h"
#include "tests/end_to_end/actors.h"
#include "tests/unit/unit.h"

#define RANKS 3u

static struct harness harness;

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

static void expect_ok(int r, const char *what)
{
    if (r != 0)
        fail_msg("%s: %s: %s", what, ruccl_code_name(r), ruccl_last_error()->text);
}

/* All ranks meet, which takes every one of them in order. */
static void expect_going_on(const struct world *w)
{
    struct ruccl_work *works[HARNESS_RANKS];

    for (uint32_t r = 0; r < w->nranks; r++)
        expect_ok(ruccl_barrier_async(w->comms[r], &works[r]), "barrier");
    for (uint32_t r = 0; r < w->nranks; r++)
        expect_done(works[r], "barrier");
}

/* ---- joins */

struct applicant {
    uint32_t rank, nranks;
    struct ruccl_join_options options;
    enum ruccl_code code;
    const char *words;
};

#define DEFAULTS RUCCL_JOIN_OPTIONS_INIT
#define ALGORITHM(text)                                                                            \
    {                                                                                              \
        NULL, 300000000, text                                                                      \
    }
#define LONGER_THAN_LABEL "a label that is longer than the sixty-three bytes that there are for it"

static void expect_code(int r, enum ruccl_code code, const char *words, const char *what)
{
    char missing[128];

    if (r != -(int)code)
        fail_msg("%s: %s, not %s: %s", what, r < 0 ? ruccl_code_name(r) : "success",
                 ruccl_code_name((int)code), r < 0 ? ruccl_last_error()->text : "");
    if (r < 0 && !words_in(ruccl_last_error()->text, words, missing))
        fail_msg("%s: no '%s' in: %s", what, missing, ruccl_last_error()->text);
}

/* Leaves again, whatever came of it. */
static int join_promptly(struct ruccl_conn *conn, const char *id, const struct applicant *a)
{
    struct ruccl_comm comm;
    struct ruccl_work *work;
    int r = ruccl_join_async(conn, id, a->rank, a->nranks, &a->options, &comm, &work);

    if (r < 0)
        return r;
    r = ruccl_work_wait(work, STAGE_PROMPT_US);
    expect_ok(ruccl_leave(comm), "leave of what may never have formed");
    /* once more, for the error that goes with it */
    if (r < 0)
        r = ruccl_work_wait(work, 0);
    ruccl_work_release(work);
    return r;
}

/* Until the daemon has taken all that was asked for before: of two connections, either may be heard
 * first. */
static void settle(struct ruccl_conn *conn)
{
    char id[RUCCL_ID_BYTES];

    expect_ok(ruccl_new_id(conn, id), "an id");
    expect_ok(ruccl_drop_id(conn, id), "dropping it");
}

static void wait_for_two(struct ruccl_conn *conn, const char *id, struct ruccl_comm *ret_comm,
                         struct ruccl_work **ret_work)
{
    expect_ok(ruccl_join_async(conn, id, 0, 2, NULL, ret_comm, ret_work), "join");
    settle(conn);
    assert_int_equal(ruccl_work_test(*ret_work), RUCCL_PENDING);
}

/* Refused by themselves: whoever waits for the right one does not notice. */
TEST(impossible_joins_are_refused_and_harm_nobody)
{
    static const struct applicant impossible[] = {
        { 0, 2, DEFAULTS, RUCCL_DUPLICATE_RANK, "rank 0 is taken by pid " },
        { 2, 2, DEFAULTS, RUCCL_INVALID_ARGUMENT, "rank 2 is not below world size 2" },
        { 1, 0, DEFAULTS, RUCCL_INVALID_ARGUMENT, "world size 0" },
        { 1, RUCCL_MAX_RANKS + 1, DEFAULTS, RUCCL_INVALID_ARGUMENT, "world size 4097" },
        { 1, 2, ALGORITHM("magic"), RUCCL_UNSUPPORTED_ALGORITHM, "'magic' is not known" },
        { 1, 2, ALGORITHM("an algorithm with a long name"), RUCCL_UNSUPPORTED_ALGORITHM,
          "an algorithm with a long name" },
        { 1, 2, { LONGER_THAN_LABEL, 0, NULL }, RUCCL_INVALID_ARGUMENT, "label" },
    };
    static const char *const strangers[] = {
        "",
        "nonsense",
        "rc1-",
        "rc1-aaaaaaaaaaaaaaaaaaaaaaaaaa@00000000-0000-0000-0000-000000000000",
        "%s%n\n\x7f\xff",
    };
    const struct applicant right = { 1, 2, DEFAULTS, RUCCL_OK, NULL };
    char id[RUCCL_ID_BYTES], too_long[RUCCL_ID_BYTES + 1];
    struct ruccl_conn *first, *second;
    struct ruccl_comm comm;
    struct ruccl_work *work;

    harness_start(&harness, NULL);
    expect_ok(ruccl_connect(harness.socket, NULL, &first), "connect");
    expect_ok(ruccl_connect(harness.socket, NULL, &second), "connect");
    expect_ok(ruccl_new_id(first, id), "new_id");
    wait_for_two(first, id, &comm, &work);
    for (size_t i = 0; i < ARRAY_SIZE(impossible); i++)
        expect_code(join_promptly(second, id, &impossible[i]), impossible[i].code,
                    impossible[i].words, "an impossible join");
    for (size_t i = 0; i < ARRAY_SIZE(strangers); i++)
        expect_code(join_promptly(second, strangers[i], &right), RUCCL_NOT_FOUND, "by id",
                    "a stranger's id");
    memset(too_long, 'a', sizeof(too_long) - 1);
    too_long[sizeof(too_long) - 1] = '\0';
    expect_code(join_promptly(second, too_long, &right), RUCCL_INVALID_ARGUMENT, "128 bytes",
                "an id that is too long");

    assert_int_equal(ruccl_work_test(work), RUCCL_PENDING);
    expect_ok(join_promptly(second, id, &right), "the right one");
    expect_ok(ruccl_work_wait(work, STAGE_PROMPT_US), "the first one's join");
    ruccl_work_release(work);
    expect_code(join_promptly(second, id, &right), RUCCL_DUPLICATE_RANK,
                "good for one communicator", "an id used again");
    expect_ok(ruccl_leave(comm), "leave");
    expect_code(join_promptly(second, id, &right), RUCCL_NOT_FOUND, "over", "an id used up");

    expect_ok(ruccl_new_id(first, id), "new_id");
    expect_ok(ruccl_drop_id(first, id), "drop_id");
    expect_code(ruccl_drop_id(first, id), RUCCL_NOT_FOUND, id, "an id dropped twice");
    expect_code(join_promptly(second, id, &right), RUCCL_NOT_FOUND, id, "a dropped id");
    ruccl_close(first);
    ruccl_close(second);
}

/* The group can never form: everyone who is there is told. */
TEST(ranks_that_mean_different_groups_are_all_told)
{
    static const struct applicant others[] = {
        { 1, 3, DEFAULTS, RUCCL_MISMATCH, "rank 1 said world size 3|2" },
        { 1, 2, { NULL, 1000000, NULL }, RUCCL_MISMATCH, "rank 1 said a timeout of 1000000 us" },
        { 1, 2, ALGORITHM("ring"), RUCCL_MISMATCH, "rank 1 said algorithm 'ring'|'auto'" },
    };
    struct ruccl_conn *first, *second;

    harness_start(&harness, NULL);
    expect_ok(ruccl_connect(harness.socket, NULL, &first), "connect");
    expect_ok(ruccl_connect(harness.socket, NULL, &second), "connect");
    for (size_t i = 0; i < ARRAY_SIZE(others); i++) {
        char id[RUCCL_ID_BYTES];
        struct ruccl_comm comm;
        struct ruccl_work *work;

        expect_ok(ruccl_new_id(first, id), "new_id");
        wait_for_two(first, id, &comm, &work);
        expect_code(join_promptly(second, id, &others[i]), others[i].code, others[i].words,
                    "the one who differs");
        expect_code(ruccl_work_wait(work, STAGE_PROMPT_US), others[i].code, others[i].words,
                    "the one before");
        assert_int_equal(ruccl_last_error()->ranks[0], 1);
        ruccl_work_release(work);
        expect_ok(ruccl_leave(comm), "leave of what never formed");
    }
    ruccl_close(first);
    ruccl_close(second);
}

TEST(a_join_that_waits_too_long_names_who_is_missing)
{
    const struct applicant early = { 1, 4, { "lonely", 200000, NULL }, RUCCL_TIMEOUT, NULL };
    struct ruccl_conn *conn;
    char id[RUCCL_ID_BYTES];

    harness_start(&harness, NULL);
    expect_ok(ruccl_connect(harness.socket, NULL, &conn), "connect");
    expect_ok(ruccl_new_id(conn, id), "new_id");
    expect_code(join_promptly(conn, id, &early), early.code,
                "lonely|0.2 s|1 of 4 ranks joined|ranks 0, 2, 3", "a lonely join");
    assert_int_equal(ruccl_last_error()->nranks, 3);
    ruccl_close(conn);
}

TEST(a_forced_algorithm_that_does_not_fit_is_refused_each_time)
{
    const struct ruccl_join_options ring = ALGORITHM("ring");
    struct ruccl_work *works[2];
    struct ruccl_comm comms[2];
    struct ruccl_conn *conn;
    char id[RUCCL_ID_BYTES];
    float values[2] = { 1, 2 };

    harness_start(&harness, NULL);
    expect_ok(ruccl_connect(harness.socket, NULL, &conn), "connect");
    expect_ok(ruccl_new_id(conn, id), "new_id");
    for (uint32_t r = 0; r < 2; r++)
        expect_ok(ruccl_join_async(conn, id, r, 2, &ring, &comms[r], &works[r]), "join");
    for (uint32_t r = 0; r < 2; r++)
        expect_done(works[r], "join");
    for (int round = 0; round < 2; round++) {
        for (uint32_t r = 0; r < 2; r++) {
            const struct ruccl_tensor t = { .dtype = RUCCL_F32, .data = &values[r] };

            expect_ok(ruccl_all_reduce_async(comms[r], &t, &t, RUCCL_SUM, &works[r]), "all_reduce");
        }
        for (uint32_t r = 0; r < 2; r++) {
            expect_code(ruccl_work_wait(works[r], STAGE_PROMPT_US), RUCCL_UNSUPPORTED_ALGORITHM,
                        "\"ring\" does not fit|hierarchical", "a ring on one node");
            assert_int_equal(ruccl_last_error()->nranks, 2);
            ruccl_work_release(works[r]);
        }
        for (uint32_t r = 0; r < 2; r++)
            expect_ok(ruccl_barrier_async(comms[r], &works[r]), "barrier");
        for (uint32_t r = 0; r < 2; r++)
            expect_done(works[r], "barrier");
    }
    assert_true(values[0] == 1 && values[1] == 2);
    ruccl_close(conn);
}

/* ---- point to point */

/* What both say, and what both are told. */
struct pair {
    enum ruccl_dtype sent, received;
    uint64_t nsent, nreceived;
    enum ruccl_code code;
    const char *words;
};

TEST(pairs_that_disagree_are_both_told_and_nobody_else)
{
    static const struct pair pairs[] = {
        { RUCCL_I32, RUCCL_F32, 4, 4, RUCCL_MISMATCH, "the dtype|rank 0 said i32|rank 2 said f32" },
        { RUCCL_I32, RUCCL_I32, 4, 3, RUCCL_MISMATCH, "the shape|rank 0 said [4]|rank 2 said [3]" },
        { RUCCL_I32, RUCCL_I32, 4, 4, RUCCL_OK, NULL },
    };
    struct world w;

    harness_start(&harness, NULL);
    world_open(&w, &harness, RANKS, RANKS);
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        const struct pair *p = &pairs[i];
        int32_t in[4] = { 1, 2, 3, 4 }, out[4] = { 0 };
        const struct ruccl_tensor sent = {
            .dtype = p->sent, .naxes = 1, .shape = { p->nsent }, .data = in
        };
        const struct ruccl_tensor received = {
            .dtype = p->received, .naxes = 1, .shape = { p->nreceived }, .data = out
        };
        struct ruccl_work *works[2];

        expect_ok(ruccl_send_async(w.comms[0], &sent, 2, 5, &works[0]), "send");
        expect_ok(ruccl_recv_async(w.comms[2], &received, 0, 5, &works[1]), "recv");
        for (int end = 0; end < 2; end++) {
            expect_code(ruccl_work_wait(works[end], STAGE_PROMPT_US), p->code, p->words, "a pair");
            ruccl_work_release(works[end]);
        }
        assert_int_equal(memcmp(in, out, sizeof(in)) == 0, p->code == RUCCL_OK);
        assert_int_equal(out[0], p->code == RUCCL_OK);
        expect_going_on(&w);
    }
    world_close(&w);
}

TEST(a_peer_that_is_no_rank_is_refused_to_the_caller_alone)
{
    struct world w;
    int32_t value = 0;
    const struct ruccl_tensor t = { .dtype = RUCCL_I32, .data = &value };

    harness_start(&harness, NULL);
    world_open(&w, &harness, RANKS, RANKS);
    expect_code(ruccl_send(w.comms[0], &t, RANKS, 0), RUCCL_INVALID_ARGUMENT,
                "send|peer 3 is not below world size 3", "send to nobody");
    expect_code(ruccl_recv(w.comms[1], &t, UINT32_MAX, 0), RUCCL_INVALID_ARGUMENT,
                "recv|peer 4294967295", "recv from nobody");
    expect_code(ruccl_send(w.comms[0], NULL, RANKS, 0), RUCCL_INVALID_ARGUMENT, "in is NULL",
                "send of nothing to nobody");
    expect_going_on(&w);
    world_close(&w);
}

/* ---- handles */

TEST(handles_that_are_not_good_are_refused)
{
    const struct ruccl_comm none = { NULL, RUCCL_NO_BUDGET };
    struct ruccl_conn *conn;
    struct ruccl_region *region;
    struct ruccl_comm comm;
    struct ruccl_work *work;
    char id[RUCCL_ID_BYTES];
    int memfd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    harness_start(&harness, NULL);
    expect_ok(ruccl_connect(harness.socket, NULL, &conn), "connect");
    expect_code(ruccl_barrier(none), RUCCL_INVALID_ARGUMENT, "no member", "no communicator");
    expect_code(ruccl_leave(none), RUCCL_INVALID_ARGUMENT, "no member", "no communicator");
    expect_code(ruccl_work_wait(NULL, 0), RUCCL_INVALID_ARGUMENT, "work is NULL", "no work");
    expect_code(ruccl_alloc(conn, 0, &region), RUCCL_INVALID_ARGUMENT, "0 bytes", "no bytes");
    expect_code(ruccl_alloc(conn, UINT64_MAX, &region), RUCCL_INVALID_ARGUMENT, "bytes",
                "all the bytes there are");
    expect_code(ruccl_register(conn, -1, 4096, &region), RUCCL_INVALID_ARGUMENT, "descriptor",
                "no descriptor");
    expect_code(ruccl_register(conn, STDIN_FILENO, 4096, &region), RUCCL_INVALID_ARGUMENT, "memfd",
                "no memfd");
    assert_int_equal(ftruncate(memfd, 4096), 0);
    expect_code(ruccl_register(conn, memfd, 4096, &region), RUCCL_INVALID_ARGUMENT, "F_SEAL_SHRINK",
                "no seals");
    assert_int_equal(fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    expect_code(ruccl_register(conn, memfd, 4096, &region), RUCCL_INVALID_ARGUMENT, "F_SEAL_GROW",
                "half the seals");
    assert_int_equal(fcntl(memfd, F_ADD_SEALS, F_SEAL_GROW), 0);
    expect_code(ruccl_register(conn, memfd, 4097, &region), RUCCL_INVALID_ARGUMENT,
                "4096 bytes, fewer than 4097", "too few bytes");
    expect_ok(ruccl_register(conn, memfd, 4096, &region), "register");

    expect_ok(ruccl_new_id(conn, id), "new_id");
    wait_for_two(conn, id, &comm, &work);
    expect_code(ruccl_barrier(comm), RUCCL_INVALID_ARGUMENT, "has not formed", "too early");
    ruccl_close(conn);
    expect_code(ruccl_work_wait(work, 0), RUCCL_CLOSED, "ruccl_close()", "a work of a closed one");
    expect_code(ruccl_work_wait(work, -1), RUCCL_CLOSED, "ruccl_close()", "the same again");
    ruccl_work_release(work);
    close(memfd);
}

/* ---- quotas */

static const char *const small_quotas[] = {
    "--set", "max_regions=4",  "--set", "max_region_bytes=1MiB", "--set", "max_communicators=3",
    "--set", "max_sessions=3", "--set", "max_in_flight=8",       NULL,
};

static void expect_region_quotas(struct ruccl_conn *conn)
{
    struct ruccl_region *regions[4], *more;

    for (int i = 0; i < 4; i++)
        expect_ok(ruccl_alloc(conn, 1000, &regions[i]), "alloc");
    expect_code(ruccl_alloc(conn, 1000, &more), RUCCL_QUOTA, "max_regions|4 regions", "a fifth");
    ruccl_free(regions[3]);
    expect_code(ruccl_alloc(conn, 1 << 20, &more), RUCCL_QUOTA, "max_region_bytes", "a large one");
    expect_ok(ruccl_alloc(conn, 1000, &more), "alloc after a free");
    ruccl_free(more);
    for (int i = 0; i < 3; i++)
        ruccl_free(regions[i]);
    expect_ok(ruccl_alloc(conn, 1 << 20, &more), "alloc of all there is");
    ruccl_free(more);
}

static void expect_communicator_quotas(struct ruccl_conn *conn)
{
    char ids[3][RUCCL_ID_BYTES], more[RUCCL_ID_BYTES];
    const struct applicant alone = { 0, 1, DEFAULTS, RUCCL_OK, NULL };

    for (int i = 0; i < 3; i++)
        expect_ok(ruccl_new_id(conn, ids[i]), "new_id");
    expect_code(ruccl_new_id(conn, more), RUCCL_QUOTA, "max_communicators", "a fourth id");
    expect_ok(join_promptly(conn, ids[0], &alone), "join");
    expect_ok(ruccl_new_id(conn, more), "new_id after one is over");
    expect_ok(ruccl_drop_id(conn, ids[1]), "drop_id");
    expect_ok(ruccl_drop_id(conn, ids[2]), "drop_id");
    expect_ok(ruccl_drop_id(conn, more), "drop_id");
}

static void expect_session_quotas(void)
{
    const int64_t until_us = stage_now_us() + STAGE_PROMPT_US;
    struct ruccl_conn *more[2], *third;
    int r;

    /* one is open already; a connection that was closed is forgotten a moment later */
    for (int i = 0; i < 2; i++)
        while ((r = ruccl_connect(harness.socket, NULL, &more[i])) < 0)
            if (stage_now_us() > until_us)
                expect_ok(r, "connect");
    expect_code(ruccl_connect(harness.socket, NULL, &third), RUCCL_QUOTA, "max_sessions",
                "a fourth connection");
    ruccl_close(more[0]);
    while ((r = ruccl_connect(harness.socket, NULL, &third)) < 0)
        if (stage_now_us() > until_us)
            expect_ok(r, "connect after a close");
    ruccl_close(third);
    ruccl_close(more[1]);
}

/* A plain tensor needs a stage, and for that there is no room: refused in its slot, for all. */
static void expect_staging_quotas(struct ruccl_conn *conn)
{
    static float values[1 << 20];
    struct ruccl_comm comms[2];
    struct ruccl_work *works[2];
    char id[RUCCL_ID_BYTES];

    expect_ok(ruccl_new_id(conn, id), "new_id");
    for (uint32_t r = 0; r < 2; r++)
        expect_ok(ruccl_join_async(conn, id, r, 2, NULL, &comms[r], &works[r]), "join");
    for (uint32_t r = 0; r < 2; r++)
        expect_done(works[r], "join");
    for (int round = 0; round < 2; round++) {
        for (uint32_t r = 0; r < 2; r++) {
            struct ruccl_tensor t = { .dtype = RUCCL_F32,
                                      .naxes = 1,
                                      .shape = { round == 0 ? 1 << 20 : 1000 },
                                      .data = values };

            t.data = r ? values + 1000 : values;
            expect_ok(ruccl_broadcast_async(comms[r], &t, &t, 0, &works[r]), "broadcast");
        }
        for (uint32_t r = 0; r < 2; r++) {
            if (round == 0)
                expect_code(ruccl_work_wait(works[r], STAGE_PROMPT_US), RUCCL_QUOTA,
                            "broadcast 1: |max_region_bytes", "a stage");
            else
                expect_ok(ruccl_work_wait(works[r], STAGE_PROMPT_US), "broadcast");
            ruccl_work_release(works[r]);
        }
    }
    for (uint32_t r = 0; r < 2; r++)
        expect_ok(ruccl_leave(comms[r]), "leave");
}

#define EAGER 30 /* works at once, of a connection that may have 8 */

static void *post_eagerly(void *context)
{
    struct ruccl_work *works[EAGER];
    const struct ruccl_comm *comm = context;

    for (int i = 0; i < EAGER; i++)
        if (ruccl_barrier_async(*comm, &works[i]) < 0)
            return NULL;
    for (int i = 0; i < EAGER; i++) {
        if (ruccl_work_wait(works[i], HARNESS_PATIENCE_US) != 0)
            return NULL;
        ruccl_work_release(works[i]);
    }
    return context;
}

/* Who posts more than may be in flight waits; nobody is refused for it. */
static void expect_flight_quotas(void)
{
    pthread_t threads[2];
    struct world w;
    void *done;

    world_open(&w, &harness, 2, 2);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, post_eagerly, &w.comms[i]);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &done);
        assert_ptr_equal(done, &w.comms[i]);
    }
    world_close(&w);
}

TEST(quotas_are_kept_and_leave_everything_else_working)
{
    struct ruccl_conn *conn;

    harness_start(&harness, small_quotas);
    expect_ok(ruccl_connect(harness.socket, NULL, &conn), "connect");
    for (int round = 0; round < 3; round++) {
        expect_region_quotas(conn);
        expect_communicator_quotas(conn);
        expect_session_quotas();
    }
    expect_staging_quotas(conn);
    expect_flight_quotas();
    ruccl_close(conn);
}

int main(void)
{
#define CLAIM(name) cmocka_unit_test_teardown(name, stop_daemon)
    const struct CMUnitTest tests[] = {
        CLAIM(impossible_joins_are_refused_and_harm_nobody),
        CLAIM(ranks_that_mean_different_groups_are_all_told),
        CLAIM(a_join_that_waits_too_long_names_who_is_missing),
        CLAIM(a_forced_algorithm_that_does_not_fit_is_refused_each_time),
        CLAIM(pairs_that_disagree_are_both_told_and_nobody_else),
        CLAIM(a_peer_that_is_no_rank_is_refused_to_the_caller_alone),
        CLAIM(handles_that_are_not_good_are_refused),
        CLAIM(quotas_are_kept_and_leave_everything_else_working),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
