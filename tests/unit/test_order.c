/* Which operation a call takes part in: far ahead, far behind, and with thousands waiting. */
#include "tests/unit/unit.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/comm/comm.h"
#include "tests/contract/flaky_device.h"

#define RANKS 4u
#define MANY  3000u

struct person {
    struct member *member;
    uint64_t sequence; /* of the last answer to a collective */
    uint32_t answers, failures;
    uint64_t serials[2 * MANY]; /* in the order of answers */
    uint32_t visits;
};

static struct {
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    struct person people[RANKS];
} w;

static uint64_t clock_now(void)
{
    return 7;
}

static void joined(void *owner, struct member *m, const struct error *e)
{
    assert_null(e);
    ((struct person *)owner)->member = m;
}

static void completed(void *owner, struct member *m, uint64_t serial, const struct completion *c)
{
    struct person *p = owner;

    (void)m;
    assert_true(p->answers < ARRAY_SIZE(p->serials));
    p->serials[p->answers++] = serial;
    p->failures += c->error != NULL;
    p->sequence = c->sequence;
}

static void left(void *owner, struct member *m)
{
    (void)m;
    ((struct person *)owner)->member = NULL;
}

static int open_world(void **state)
{
    const struct comm_events events = { joined, completed, left };
    struct comms_config config = { .now = clock_now,
                                   .host = "here",
                                   .node = "node",
                                   .overflow_uid = 65534,
                                   .id_lifetime_us = 1000,
                                   .chunk_bytes = 1 << 20,
                                   .max_comms = 1 };
    char id[COMM_ID_BYTES];
    struct member *m;

    (void)state;
    memset(&w, 0, sizeof(w));
    device_flaky.open(&(struct device_config){ 0 }, &w.device, NULL);
    engine_new(w.device, NULL, NULL, &w.engine);
    config.engine = w.engine;
    assert_int_equal(comms_new(&config, &events, &w.comms), 0);
    assert_int_equal(comms_id_new(w.comms, 1000, 7, id, NULL), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct request_join request = {
            .id = id, .rank = r, .nranks = RANKS, .label = "", .algorithm = ""
        };
        struct join join = { &request, &w.people[r], r, 1000, (pid_t)(500 + r) };

        assert_int_equal(comms_join(w.comms, &join, 7, &m, NULL), 0);
    }
    return 0;
}

static int close_world(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < RANKS; r++)
        if (w.people[r].member)
            member_lost(w.people[r].member, "died", 7);
    if (comms_count(w.comms) != 0)
        return -1;
    comms_free(w.comms);
    engine_free(w.engine);
    w.device->ops->close(w.device);
    return 0;
}

/* Of nothing: what is matched, not what is moved. */
static void post(uint32_t rank, enum collective_id kind, uint32_t peer, uint32_t tag,
                 uint64_t serial)
{
    struct post p = { .serial = serial,
                      .d = { .kind = kind,
                             .op = OPERATOR_SUM,
                             .dtype = DTYPE_U8,
                             .shape = { 1, { 0 } },
                             .budget = BUDGET_NONE },
                      .peer = peer,
                      .tag = tag };

    assert_int_equal(member_post(w.people[rank].member, &p, 7), 0);
}

static void run(uint32_t rank, enum collective_id kind)
{
    post(rank, kind, 0, 0, 0);
}

TEST(ranks_far_ahead_of_one_another_meet_in_every_operation)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint32_t i = 0; i < MANY - r; i++)
            run(r, i % 3 ? COLLECTIVE_BARRIER : COLLECTIVE_ALL_REDUCE);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, MANY - RANKS + 1);
        assert_int_equal(w.people[r].failures, 0);
        assert_int_equal(w.people[r].sequence, MANY - RANKS + 1);
    }
}

static void visit(void *owner)
{
    ((struct person *)owner)->visits++;
}

TEST(who_an_operation_waits_for_is_visited_and_nobody_else)
{
    for (uint32_t arrived = 0; arrived < RANKS; arrived++) {
        run(arrived, COLLECTIVE_BARRIER);
        member_visit_absent(w.people[0].member, visit);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(w.people[r].visits, r);

    /* of what it came to last, not of what others are at */
    run(1, COLLECTIVE_BARRIER);
    member_visit_absent(w.people[0].member, visit);
    assert_int_equal(w.people[0].visits, 0);
    member_visit_absent(w.people[1].member, visit);
    assert_int_equal(w.people[0].visits, 1);
}

TEST(ranks_overtake_one_another_at_random)
{
    uint64_t seed = 5;
    uint32_t posted[RANKS] = { 0 }, total = 0;

    while (total < RANKS * 500) {
        uint32_t r = (uint32_t)(unit_random(&seed) % RANKS);
        uint32_t n = (uint32_t)(unit_random(&seed) % 40);

        for (; n > 0 && posted[r] < 500; n--, total++)
            run(r, posted[r]++ % 2 ? COLLECTIVE_BARRIER : COLLECTIVE_ALL_GATHER);
    }
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, 500);
        assert_int_equal(w.people[r].failures, 0);
    }
}

static struct mapping *make_memory(void)
{
    struct mapping *m;
    int fd = memfd_create("order", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    assert_int_equal(device_import_memfd(w.device, fd, 4096, &m, NULL), 0);
    close(fd);
    return m;
}

/* A failed operation is over before those in front of it that still run: a hole in their order. */
TEST(operations_behind_a_failed_one_are_found_while_one_before_it_runs)
{
    struct mapping *memory = make_memory();

    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t r = 0; r < RANKS; r++) {
            struct post p = { .d = { .kind = COLLECTIVE_ALL_REDUCE,
                                     .op = OPERATOR_SUM,
                                     .dtype = i && r == 2 ? DTYPE_I8 : DTYPE_U8,
                                     .shape = { 1, { 8 } },
                                     .budget = BUDGET_NONE },
                              .in = { memory, r * 64 },
                              .out = { memory, r * 64 } };

            assert_int_equal(member_post(w.people[r].member, &p, 7), 0);
            if (i && r < 2) /* two are ahead of the failure, two behind it */
                run(r, COLLECTIVE_BARRIER);
        }
    mapping_unref(memory);
    assert_int_equal(flaky_pending(w.device), 1);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, 1);
        assert_int_equal(w.people[r].sequence, 2);
    }

    for (uint32_t r = RANKS; r-- > 2;)
        run(r, COLLECTIVE_BARRIER);
    for (uint32_t r = 0; r < RANKS; r++)
        run(r, COLLECTIVE_BARRIER);
    while (flaky_pending(w.device))
        engine_poll(w.engine);
    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w.people[r].answers, 4);
        assert_int_equal(w.people[r].failures, 1);
        assert_int_equal(w.people[r].sequence, 4);
    }
}

TEST(pairs_of_one_kind_are_matched_in_order)
{
    for (uint32_t i = 0; i < MANY; i++)
        post(0, COLLECTIVE_SEND, 1, 5, i);
    for (uint32_t i = 0; i < MANY; i++)
        post(1, COLLECTIVE_RECV, 0, 5, i);
    for (uint32_t i = 0; i < MANY; i++) {
        assert_int_equal(w.people[0].serials[i], i);
        assert_int_equal(w.people[1].serials[i], i);
    }
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(pairs_are_told_apart_by_source_destination_and_tag)
{
    post(0, COLLECTIVE_SEND, 1, 1, 10);
    post(0, COLLECTIVE_SEND, 1, 33, 11); /* of the same list */
    post(0, COLLECTIVE_SEND, 2, 1, 12);
    post(1, COLLECTIVE_SEND, 0, 1, 13);
    post(1, COLLECTIVE_RECV, 0, 33, 20);
    assert_int_equal(w.people[0].serials[0], 11);
    post(2, COLLECTIVE_RECV, 0, 1, 21);
    assert_int_equal(w.people[0].serials[1], 12);
    post(0, COLLECTIVE_RECV, 1, 1, 22);
    assert_int_equal(w.people[0].serials[2], 22);
    post(1, COLLECTIVE_RECV, 0, 1, 23);
    assert_int_equal(w.people[0].serials[3], 10);
    assert_int_equal(comms_unfinished(w.comms), 0);
}

TEST(receivers_may_come_first_and_tags_in_any_order)
{
    for (uint32_t i = 0; i < MANY; i++)
        post(3, COLLECTIVE_RECV, 2, i, i);
    for (uint32_t i = MANY; i-- > 0;)
        post(2, COLLECTIVE_SEND, 3, i, i);
    for (uint32_t i = 0; i < MANY; i++)
        assert_int_equal(w.people[3].serials[i], MANY - 1 - i);
}

#define CASE(claim) cmocka_unit_test_setup_teardown(claim, open_world, close_world)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(ranks_far_ahead_of_one_another_meet_in_every_operation),
        CASE(who_an_operation_waits_for_is_visited_and_nobody_else),
        CASE(ranks_overtake_one_another_at_random),
        CASE(operations_behind_a_failed_one_are_found_while_one_before_it_runs),
        CASE(pairs_of_one_kind_are_matched_in_order),
        CASE(pairs_are_told_apart_by_source_destination_and_tag),
        CASE(receivers_may_come_first_and_tags_in_any_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
