/* Persistent operations: made once by all, started often, compared by number, let go by all. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/comm/persistent.h"
#include "tests/contract/flaky_device.h"

#define RANKS   3u
#define COUNT   7u
#define BYTES   4096u
#define OUT     2048u /* where the outputs are */
#define TIMEOUT 2000000u

struct person {
    struct member *member;
    struct mapping *memory;
    uint32_t answers, made;
    uint64_t sequence;
    struct error error; /* of the last answer */
};

static struct {
    uint64_t now;
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    struct person people[RANKS];
} w;

static uint64_t clock_now(void)
{
    return w.now;
}

static void joined(void *owner, struct member *m, const struct error *e)
{
    struct person *p = owner;

    assert_null(e);
    p->member = m;
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct person *p = owner;

    assert_true(m == p->member && serial == 9);
    p->answers++;
    p->made = c->persistent;
    p->sequence = c->sequence;
    p->error = c->error ? *c->error : (struct error){ 0 };
}

static void left(void *owner, struct member *m)
{
    struct person *p = owner;

    assert_true(p->member == m);
    p->member = NULL;
}

static struct mapping *make_memory(void)
{
    struct mapping *m;
    int fd = memfd_create("persistent", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0 && ftruncate(fd, BYTES) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(device_import_memfd(w.device, fd, BYTES, &m, NULL), 0);
    close(fd);
    return m;
}

static void form(void)
{
    char id[COMM_ID_BYTES];
    struct member *m;

    assert_int_equal(comms_id_new(w.comms, 1000, w.now, id, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct request_join request = { .id = id,
                                        .rank = r,
                                        .nranks = RANKS,
                                        .label = "job",
                                        .timeout_us = TIMEOUT,
                                        .algorithm = "" };
        struct join join = { &request, &w.people[r], r, 1000, (pid_t)(500 + r) };

        assert_int_equal(comms_join(w.comms, &join, w.now, &m, NULL), 0);
    }
}

static int open_world(void **state)
{
    const struct comm_events events = { joined, completed, left };
    struct comms_config config = { .now = clock_now,
                                   .host = "here",
                                   .node = "node",
                                   .overflow_uid = 65534,
                                   .id_lifetime_us = TIMEOUT,
                                   .chunk_bytes = 1 << 20,
                                   .max_comms = 1 };

    (void)state;
    memset(&w, 0, sizeof(w));
    w.now = 5;
    assert_int_equal(device_flaky.open(&(struct device_config){ 0 }, &w.device, NULL), 0);
    flaky_configure(w.device, &(struct flaky_config){ .seed = 1, .inline_percent = 100 });
    assert_int_equal(engine_new(w.device, NULL, NULL, &w.engine), 0);
    config.engine = w.engine;
    assert_int_equal(comms_new(&config, &events, &w.comms), 0);
    for (uint32_t r = 0; r < RANKS; r++)
        w.people[r].memory = make_memory();
    form();
    return 0;
}

/* Whatever a test has left behind, nobody holds memory once the members are gone. */
static int close_world(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        if (w.people[r].member)
            member_lost(w.people[r].member, "died", w.now);
    if (comms_count(w.comms) != 0)
        return -1;
    comms_free(w.comms);
    engine_free(w.engine);
    for (uint32_t r = 0; r < RANKS; r++) {
        if (w.people[r].memory && w.people[r].memory->refs != 1)
            return -1;
        mapping_unref(w.people[r].memory);
    }
    w.device->ops->close(w.device);
    return 0;
}

/* ---- what ranks do */

static struct post call(uint32_t rank, enum collective_id kind)
{
    return (struct post){ .serial = 9,
                          .d = { .kind = kind,
                                 .op = OPERATOR_SUM,
                                 .dtype = DTYPE_I32,
                                 .shape = { 1, { COUNT } },
                                 .budget = BUDGET_NONE },
                          .in = { w.people[rank].memory, 0 },
                          .out = { w.people[rank].memory, OUT } };
}

static void run(uint32_t rank, enum collective_id kind)
{
    struct post p = call(rank, kind);

    assert_int_equal(member_post(w.people[rank].member, &p, w.now), 0);
}

static void make(uint32_t rank, enum collective_id kind)
{
    struct post p = call(rank, kind);

    p.persistent = true;
    assert_int_equal(member_post(w.people[rank].member, &p, w.now), 0);
}

static void make_all(void)
{
    for (uint32_t r = 0; r < RANKS; r++)
        make(r, COLLECTIVE_ALL_REDUCE);
}

static void start(uint32_t rank, uint32_t id)
{
    const struct start s = { .id = id, .serial = 9 };

    assert_int_equal(member_start(w.people[rank].member, &s, w.now), 0);
}

static int32_t *output(uint32_t rank)
{
    return (int32_t *)((char *)w.people[rank].memory->base + OUT);
}

static void fill(int32_t value)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < COUNT; i++)
            ((int32_t *)w.people[r].memory->base)[i] = value * (int32_t)(r + 1);
}

static void expect_sum(int32_t value)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < COUNT; i++)
            assert_int_equal(output(r)[i], value * 6);
}

static void start_all(uint32_t id, int32_t value)
{
    fill(value);
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, id);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].error.code, 0);
    expect_sum(value);
}

/* Every rank that is there was told the same, and what comes next works. */
static void expect_error(enum error_code code, const char *text)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].error.code, code);
        assert_string_equal(w.people[r].error.text, text);
        assert_int_equal(w.people[r].made, 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        run(r, COLLECTIVE_BARRIER);
    assert_int_equal(w.people[0].error.code, 0);
}

static void free_all(uint32_t id)
{
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(member_persistent_free(w.people[r].member, id), 0);
}

static void step(void)
{
    while (flaky_pending(w.device) || engine_wants_turn(w.engine))
        engine_poll(w.engine);
}

/* ---- making */

TEST(making_moves_nothing_and_gives_a_number)
{
    fill(1);
    make_all();
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].error.code, 0);
        assert_int_equal(w.people[r].made, 1);
        assert_int_equal(w.people[r].sequence, 1);
    }
    expect_sum(0);
    assert_int_equal(flaky_taken(w.device), 0);
}

TEST(numbers_count_up_and_never_come_back)
{
    make_all();
    free_all(1);
    make_all();
    assert_int_equal(w.people[2].made, 2);
    make_all();
    assert_int_equal(w.people[0].made, 3);
    start_all(2, 5);
    start_all(3, 6);
}

TEST(ranks_that_make_different_things_are_told)
{
    struct post p = call(2, COLLECTIVE_ALL_REDUCE);

    p.persistent = true;
    p.d.op = OPERATOR_MAX;
    make(0, COLLECTIVE_ALL_REDUCE);
    make(1, COLLECTIVE_ALL_REDUCE);
    member_post(w.people[2].member, &p, w.now);
    expect_error(ERROR_MISMATCH, "all_reduce 1 of 'job': ranks disagree on the op: ranks 0, 1 said "
                                 "sum; rank 2 said max");
    make_all();
    assert_int_equal(w.people[0].made, 1);
}

TEST(to_make_and_to_run_differ)
{
    make(0, COLLECTIVE_ALL_REDUCE);
    run(1, COLLECTIVE_ALL_REDUCE);
    make(2, COLLECTIVE_ALL_REDUCE);
    expect_error(ERROR_MISMATCH,
                 "all_reduce 1 of 'job': ranks disagree on the collective: ranks 0, 2 "
                 "said persistent all_reduce; rank 1 said all_reduce");
    expect_sum(0);
}

TEST(overlapping_tensors_are_found_when_it_is_made)
{
    struct post p = call(0, COLLECTIVE_ALL_REDUCE);

    p.persistent = true;
    p.out.offset = 4;
    member_post(w.people[0].member, &p, w.now);
    make(1, COLLECTIVE_ALL_REDUCE);
    make(2, COLLECTIVE_ALL_REDUCE);
    expect_error(ERROR_OVERLAP, "all_reduce 1 of 'job': input and output of rank 0 overlap in a "
                                "way that is not in place");
}

TEST(a_budget_too_small_is_found_when_it_is_made)
{
    for (uint32_t r = 0; r < RANKS; r++) {
        struct post p = call(r, COLLECTIVE_ALL_REDUCE);

        p.persistent = true;
        p.d.budget = 11;
        member_post(w.people[r].member, &p, w.now);
    }
    expect_error(ERROR_BUDGET_TOO_SMALL,
                 "all_reduce 1 of 'job': a budget of 11 bytes is too small; the least "
                 "that works is 12");
}

TEST(what_moves_nothing_or_something_else_each_time_cannot_be_made)
{
    static const enum collective_id kinds[] = { COLLECTIVE_BARRIER, COLLECTIVE_SPLIT,
                                                COLLECTIVE_ALL_TO_ALL, COLLECTIVE_ALL_TO_ALL_V };

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        for (uint32_t r = 0; r < RANKS; r++)
            make(r, kinds[i]);
        assert_int_equal(w.people[1].error.code, ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(w.people[1].error.text, "cannot be made persistent"));
    }
    make(0, COLLECTIVE_SEND);
    make(0, COLLECTIVE_RECV);
    assert_int_equal(w.people[0].error.code, ERROR_INVALID_ARGUMENT);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(too_many_are_refused_for_all)
{
    for (uint32_t i = 0; i < PERSISTENT_MAX; i++)
        make_all();
    assert_int_equal(w.people[0].made, PERSISTENT_MAX);
    make_all();
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].error.code, ERROR_QUOTA);
    free_all(77);
    make_all();
    assert_int_equal(w.people[0].made, PERSISTENT_MAX + 1);
    start_all(76, 2);
    start_all(78, 3);
}

/* ---- starting */

TEST(a_start_does_what_was_agreed_each_time)
{
    make_all();
    for (int32_t i = 1; i < 50; i++)
        start_all(1, i);
    assert_int_equal(w.people[0].sequence, 50);
}

TEST(every_kind_that_can_be_made_can_be_started)
{
    static const enum collective_id kinds[] = {
        COLLECTIVE_ALL_REDUCE, COLLECTIVE_ALL_GATHER, COLLECTIVE_REDUCE_SCATTER,
        COLLECTIVE_BROADCAST,  COLLECTIVE_REDUCE,     COLLECTIVE_GATHER,
        COLLECTIVE_SCATTER,
    };

    fill(1);
    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        char once[RANKS][BYTES - OUT];

        for (uint32_t r = 0; r < RANKS; r++) {
            struct post p = call(r, kinds[i]);

            p.d.shape.axes[0] = 6;
            member_post(w.people[r].member, &p, w.now);
            assert_int_equal(w.people[0].error.code, 0);
        }
        for (uint32_t r = 0; r < RANKS; r++) {
            struct post p = call(r, kinds[i]);

            memcpy(once[r], output(r), BYTES - OUT);
            memset(output(r), 0, BYTES - OUT);
            p.d.shape.axes[0] = 6;
            p.persistent = true;
            member_post(w.people[r].member, &p, w.now);
        }
        assert_int_equal(w.people[0].made, i + 1);
        for (uint32_t r = 0; r < RANKS; r++)
            start(r, (uint32_t)i + 1);
        for (uint32_t r = 0; r < RANKS; r++) {
            assert_int_equal(w.people[r].error.code, 0);
            assert_memory_equal(output(r), once[r], BYTES - OUT);
            memset(output(r), 0, BYTES - OUT);
        }
    }
}

TEST(starts_mix_with_other_operations)
{
    make_all();
    make_all();
    for (int32_t i = 1; i < 10; i++) {
        start_all(1 + (uint32_t)i % 2, i);
        fill(-i);
        for (uint32_t r = 0; r < RANKS; r++)
            run(r, COLLECTIVE_ALL_REDUCE);
        expect_sum(-i);
        for (uint32_t r = 0; r < RANKS; r++)
            run(r, COLLECTIVE_BARRIER);
    }
}

TEST(starts_may_be_ahead_of_one_another)
{
    make_all();
    fill(3);
    for (uint32_t r = 0; r < RANKS; r++) {
        run(r, COLLECTIVE_BARRIER);
        start(r, 1);
        start(r, 1);
        run(r, COLLECTIVE_ALL_REDUCE);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, 5);
        assert_int_equal(w.people[r].error.code, 0);
    }
    expect_sum(3);
}

TEST(different_starts_are_told_apart)
{
    make_all();
    make_all();
    start(0, 2);
    start(1, 1);
    start(2, 2);
    expect_error(ERROR_MISMATCH, "all_reduce 3 of 'job': ranks disagree on the collective: ranks "
                                 "0, 2 said persistent operation 2; rank 1 said persistent "
                                 "operation 1");
    expect_sum(0);
    start_all(1, 4);
}

TEST(a_start_and_another_call_are_told_apart)
{
    make_all();
    start(0, 1);
    run(1, COLLECTIVE_ALL_REDUCE);
    start(2, 1);
    expect_error(ERROR_MISMATCH, "all_reduce 2 of 'job': ranks disagree on the collective: ranks "
                                 "0, 2 said persistent operation 1; rank 1 said all_reduce");
    start(0, 1);
    run(1, COLLECTIVE_BARRIER);
    start(2, 1);
    expect_error(ERROR_MISMATCH, "all_reduce 4 of 'job': ranks disagree on the collective: ranks "
                                 "0, 2 said persistent operation 1; rank 1 said barrier");
    start_all(1, 4);
}

TEST(a_number_that_stands_for_nothing_is_a_rejection_in_its_place)
{
    make_all();
    start(0, 1);
    start(1, 2);
    start(2, 1);
    expect_error(ERROR_NOT_FOUND,
                 "all_reduce 2 of 'job': rank 1: persistent operation 2 is not open");
    start(0, 0);
    start(1, 1);
    start(2, 1);
    expect_error(ERROR_NOT_FOUND,
                 "all_reduce 4 of 'job': rank 0: persistent operation 0 is not open");
}

TEST(a_start_writes_progress)
{
    struct progress_cell cell = { 0 };
    const struct start s = { .id = 1, .serial = 9, .cell = &cell };
    struct progress p;

    make_all();
    fill(1);
    assert_int_equal(member_start(w.people[0].member, &s, w.now), 0);
    start(1, 1);
    start(2, 1);
    assert_true(progress_read(&cell, &p));
    assert_int_equal(p.chunks_done, 1);
    assert_int_equal(p.chunks_total, 1);
    assert_int_equal(p.elements_done, COUNT);
    assert_int_equal(p.elements_total, COUNT);
}

/* ---- what goes wrong */

TEST(a_start_that_not_all_make_times_out_by_name)
{
    make_all();
    start(0, 1);
    w.now += TIMEOUT;
    comms_tick(w.comms, w.now);
    assert_int_equal(w.people[0].error.code, ERROR_TIMEOUT);
    assert_non_null(strstr(w.people[0].error.text, "all_reduce 2 of 'job': timeout"));
    assert_non_null(strstr(w.people[0].error.text, "rank 0 arrived, ranks 1, 2 did not"));
    start(1, 1);
    assert_int_equal(w.people[1].error.code, ERROR_TIMEOUT);
}

TEST(a_death_ends_starts_and_lets_the_memory_go_with_the_last)
{
    make_all();
    start(0, 1);
    member_lost(w.people[1].member, "died", w.now);
    w.people[1].member = NULL;
    assert_int_equal(w.people[0].error.code, ERROR_RANK_LOST);
    start(2, 1);
    assert_int_equal(w.people[2].error.code, ERROR_RANK_LOST);
    assert_int_equal(w.people[1].memory->refs, 3); /* the others may hold on to it */
    member_leave(w.people[0].member, w.now);
    assert_int_equal(member_persistent_free(w.people[2].member, 1), 0);
    assert_int_equal(w.people[1].memory->refs, 1);
}

TEST(a_death_in_the_middle_of_a_start_waits_for_the_device)
{
    flaky_configure(w.device, &(struct flaky_config){ .seed = 1, .stuck_task = 1 });
    make_all();
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, 1);
    assert_int_equal(flaky_pending(w.device), 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        member_lost(w.people[r].member, "died", w.now);
        w.people[r].member = NULL;
    }
    assert_int_equal(w.people[0].memory->refs, 3); /* the device still works in it */
    step();
    assert_int_equal(w.people[0].memory->refs, 1);
    assert_int_equal(comms_count(w.comms), 0);
}

TEST(a_failed_start_fails_alone)
{
    flaky_configure(w.device,
                    &(struct flaky_config){
                        .seed = 1, .inline_percent = 100, .fail_task = 2, .fail_errno = EIO });
    make_all();
    start_all(1, 1);
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, 1);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].error.code, ERROR_SYSTEM);
    start_all(1, 2);
}

TEST(lost_memory_fails_the_start_and_is_refused_by_name_thereafter)
{
    make_all();
    atomic_store(&w.people[1].memory->fault, true);
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, 1);
    expect_error(ERROR_MEMORY_FAULT,
                 "all_reduce 2 of 'job': rank 1: persistent operation 1: the input's region lost "
                 "its memory in an earlier operation; free it");
}

TEST(memory_lost_in_a_start_names_its_rank)
{
    flaky_configure(w.device,
                    &(struct flaky_config){
                        .seed = 1, .inline_percent = 100, .fail_task = 1, .fail_errno = EFAULT });
    make_all();
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].error.code, ERROR_MEMORY_FAULT);
        assert_int_equal(w.people[r].error.nranks, 1);
        assert_int_equal(w.people[r].error.ranks[0], 0);
    }
}

/* ---- letting go */

TEST(memory_stays_until_all_have_freed_it)
{
    struct mapping *memory = w.people[0].memory;

    make_all();
    assert_int_equal(memory->refs, 3);
    mapping_ref(memory);
    mapping_unref(w.people[0].memory); /* its region is closed: it is still mapped, and used */
    start_all(1, 7);
    mapping_unref(memory);
    mapping_ref(memory);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(memory->refs, 3);
        assert_int_equal(member_persistent_free(w.people[r].member, 1), 0);
    }
    assert_int_equal(memory->refs, 1);
}

TEST(what_is_freed_is_freed_once_and_cannot_be_started)
{
    make_all();
    assert_int_equal(member_persistent_free(w.people[0].member, 1), 0);
    assert_int_equal(member_persistent_free(w.people[0].member, 1), -ENOENT);
    assert_int_equal(member_persistent_free(w.people[0].member, 2), -ENOENT);
    for (uint32_t r = 0; r < RANKS; r++)
        start(r, 1);
    expect_error(ERROR_NOT_FOUND,
                 "all_reduce 2 of 'job': rank 0: persistent operation 1 is not open");
}

TEST(a_start_outlives_its_freeing)
{
    flaky_configure(w.device, &(struct flaky_config){ .seed = 1 });
    make_all();
    fill(2);
    start(0, 1);
    assert_int_equal(member_persistent_free(w.people[0].member, 1), 0);
    start(1, 1);
    start(2, 1);
    assert_int_equal(member_persistent_free(w.people[1].member, 1), 0);
    assert_int_equal(member_persistent_free(w.people[2].member, 1), 0);
    assert_int_equal(w.people[0].answers, 1);
    step();
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, 2);
        assert_int_equal(w.people[r].error.code, 0);
        assert_int_equal(w.people[r].memory->refs, 1);
    }
    expect_sum(2);
}

TEST(who_leaves_frees_what_it_has)
{
    make_all();
    make_all();
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[2].memory->refs, 5);
        member_leave(w.people[r].member, w.now);
        assert_null(w.people[r].member);
    }
    assert_int_equal(w.people[2].memory->refs, 1);
    assert_int_equal(comms_count(w.comms), 0);
}

#define CASE(claim) cmocka_unit_test_setup_teardown(claim, open_world, close_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(making_moves_nothing_and_gives_a_number),
        CASE(numbers_count_up_and_never_come_back),
        CASE(ranks_that_make_different_things_are_told),
        CASE(to_make_and_to_run_differ),
        CASE(overlapping_tensors_are_found_when_it_is_made),
        CASE(a_budget_too_small_is_found_when_it_is_made),
        CASE(what_moves_nothing_or_something_else_each_time_cannot_be_made),
        CASE(too_many_are_refused_for_all),
        CASE(a_start_does_what_was_agreed_each_time),
        CASE(every_kind_that_can_be_made_can_be_started),
        CASE(starts_mix_with_other_operations),
        CASE(starts_may_be_ahead_of_one_another),
        CASE(different_starts_are_told_apart),
        CASE(a_start_and_another_call_are_told_apart),
        CASE(a_number_that_stands_for_nothing_is_a_rejection_in_its_place),
        CASE(a_start_writes_progress),
        CASE(a_start_that_not_all_make_times_out_by_name),
        CASE(a_death_ends_starts_and_lets_the_memory_go_with_the_last),
        CASE(a_death_in_the_middle_of_a_start_waits_for_the_device),
        CASE(a_failed_start_fails_alone),
        CASE(lost_memory_fails_the_start_and_is_refused_by_name_thereafter),
        CASE(memory_lost_in_a_start_names_its_rank),
        CASE(memory_stays_until_all_have_freed_it),
        CASE(what_is_freed_is_freed_once_and_cannot_be_started),
        CASE(a_start_outlives_its_freeing),
        CASE(who_leaves_frees_what_it_has),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
