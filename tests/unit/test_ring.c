/* Rings: what goes in comes out, nobody sleeps through it, and the other side may lie. */
#include "shared/ring.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#define STEP      8u /* a record is a length and its bytes, padded to this */
#define LAST_STEP (RING_BYTES - STEP)

static struct ring_messages messages;
static struct ring_state consumer;
static struct ring_out out;
static struct ring_in in;

/* Both ends, as if `place` bytes had gone through. */
static void ring_open_at(uint64_t place)
{
    memset(&messages, 0xee, sizeof(messages));
    atomic_store(&messages.tail, place);
    atomic_store(&consumer.head, place);
    atomic_store(&consumer.armed, 0);
    out = (struct ring_out){ .messages = &messages, .state = &consumer, .tail = place };
    in = (struct ring_in){ .messages = &messages, .state = &consumer, .head = place };
}

static void fill(uint8_t *bytes, uint32_t len, uint64_t seed)
{
    for (uint32_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

static int put(uint32_t len, uint64_t seed)
{
    static uint8_t bytes[RING_MESSAGE_MAX];

    fill(bytes, len, seed);
    return ring_put(&out, bytes, len);
}

static int take_any(void)
{
    static uint8_t bytes[RING_MESSAGE_MAX];
    uint32_t len = 0;

    return ring_take(&in, bytes, &len);
}

static void expect_taken(uint32_t len, uint64_t seed)
{
    static uint8_t bytes[RING_MESSAGE_MAX], expected[RING_MESSAGE_MAX];
    uint32_t taken = 0;

    memset(bytes, 0xdd, len);
    assert_int_equal(ring_take(&in, bytes, &taken), 0);
    assert_int_equal(taken, len);
    fill(expected, len, seed);
    assert_int_equal(memcmp(bytes, expected, len), 0);
}

/* ---- what goes in comes out */

static const uint32_t lens[] = {
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    11,
    12,
    13,
    100,
    4091,
    4092,
    4093,
    RING_MESSAGE_MAX - 1,
    RING_MESSAGE_MAX,
};

TEST(messages_of_every_length_come_out_in_order)
{
    ring_open_at(0);
    for (uint32_t round = 0; round < 50; round++)
        for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
            uint32_t next = lens[(i + round) % 12];

            assert_int_equal(put(lens[i], i), 0);
            assert_int_equal(put(next, i + 1), 0);
            assert_false(ring_is_empty(&in));
            expect_taken(lens[i], i);
            expect_taken(next, i + 1);
            assert_true(ring_is_empty(&in));
            assert_int_equal(take_any(), RING_EMPTY);
        }
}

static void pass_two_at(uint64_t place, uint32_t len)
{
    atomic_store(&messages.tail, place);
    atomic_store(&consumer.head, place);
    out.tail = in.head = place;
    assert_int_equal(put(len, place), 0);
    assert_int_equal(put(9, place + 1), 0);
    expect_taken(len, place);
    expect_taken(9, place + 1);
}

TEST(messages_wrap_around_at_every_offset)
{
    ring_open_at(0);
    for (uint64_t place = 0; place < RING_BYTES; place += STEP)
        for (uint32_t i = 0; lens[i] <= 100; i++)
            pass_two_at(place, lens[i]);
    for (uint64_t place = 0; place < RING_BYTES; place += 61 * STEP)
        pass_two_at(place, RING_MESSAGE_MAX);
    for (uint64_t back = 0; back < 32; back++)
        for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++)
            pass_two_at(LAST_STEP - back * STEP, lens[i]);
}

TEST(the_count_of_bytes_may_overflow)
{
    ring_open_at(UINT64_MAX - 7 - 16 * STEP);
    for (uint32_t i = 0; i < 100; i++) {
        assert_int_equal(put(20, i), 0);
        assert_int_equal(put(5, i), 0);
        expect_taken(20, i);
        expect_taken(5, i);
    }
    assert_in_range(in.head, 1, 1u << 20);
}

/* ---- full, and room again */

static void fill_up_and_drain(uint32_t len, uint64_t place)
{
    const uint32_t record = (4 + len + STEP - 1) / STEP * STEP, fit = RING_BYTES / record;

    ring_open_at(place);
    for (uint32_t i = 0; i < fit; i++) {
        assert_true(ring_has_room(&out, len));
        assert_int_equal(put(len, i), 0);
    }
    for (int again = 0; again < 2; again++) {
        assert_false(ring_has_room(&out, len));
        assert_int_equal(put(len, 99), RING_FULL);
    }
    expect_taken(len, 0);
    assert_int_equal(put(len, fit), 0);
    assert_int_equal(put(len, 99), RING_FULL);
    for (uint32_t i = 1; i <= fit; i++)
        expect_taken(len, i);
    assert_int_equal(take_any(), RING_EMPTY);
}

TEST(a_full_ring_takes_no_more_and_loses_nothing)
{
    for (uint32_t i = 0; i < ARRAY_SIZE(lens); i++) {
        fill_up_and_drain(lens[i], 0);
        fill_up_and_drain(lens[i], LAST_STEP);
        fill_up_and_drain(lens[i], RING_BYTES / 2 + STEP);
    }
}

/* ---- bells */

TEST(a_bell_is_due_once_for_every_arming)
{
    ring_open_at(0);
    assert_int_equal(put(1, 0), 0);
    assert_false(ring_take_bell(&out)); /* never armed */
    expect_taken(1, 0);
    for (uint32_t round = 0; round < 5; round++) {
        assert_true(ring_arm(&in, 0));
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(put(1, i), 0);
            assert_int_equal(ring_take_bell(&out), i == 0);
        }
        for (uint32_t i = 0; i < 3; i++)
            expect_taken(1, i);
    }
    for (uint32_t round = 0; round < 3; round++) { /* from one sleep to the next, awake between */
        ring_disarm(&in);
        assert_false(ring_take_bell(&out));
        assert_true(ring_arm(&in, 0));
        assert_true(ring_take_bell(&out));
        assert_false(ring_take_bell(&out));
    }
}

TEST(who_sleeps_says_which_bell_it_hears)
{
    const uint32_t last = (1u << RING_BELL_BITS) - 1;

    ring_open_at(0);
    for (uint32_t bell = 0; bell <= last; bell++) {
        assert_true(ring_arm(&in, bell));
        assert_true(ring_take_bell(&out));
        assert_int_equal(ring_taken_bell(&out), bell);
    }
    atomic_store(&consumer.armed, UINT64_MAX); /* a lie, and still one that there is */
    assert_true(ring_take_bell(&out));
    assert_int_equal(ring_taken_bell(&out), last);
}

TEST(who_is_awake_is_not_rung)
{
    ring_open_at(0);
    assert_true(ring_arm(&in, 0));
    ring_disarm(&in);
    assert_int_equal(put(1, 0), 0);
    assert_false(ring_take_bell(&out));
}

/* Which would take its word from the producer's CPU. */
TEST(who_is_awake_does_not_say_so_again)
{
    ring_open_at(0);
    assert_true(ring_arm(&in, 0));
    ring_disarm(&in);
    assert_int_equal(atomic_load(&consumer.armed), 0);
    atomic_store(&consumer.armed, 7);
    ring_disarm(&in);
    assert_int_equal(atomic_load(&consumer.armed), 7);
}

TEST(who_has_something_to_take_does_not_go_to_sleep)
{
    ring_open_at(0);
    assert_int_equal(put(1, 0), 0);
    assert_false(ring_arm(&in, 0));
    expect_taken(1, 0);
    assert_true(ring_arm(&in, 0));
}

/* Without timeouts: one bell too few and the test hangs, until the alarm ends it. */
#define MESSAGES   200000u
#define BODY_MAX   2000u
#define PATIENCE_S 240u

static sem_t bell;
static uint32_t nbells;

static uint32_t next_message(uint64_t *seed, uint8_t *bytes)
{
    uint64_t random = unit_random(seed);
    uint32_t len = 1 + (uint32_t)(random >> 32) % (random % 8 ? 64 : BODY_MAX);

    memset(bytes, (int)(random & 0xff), len);
    return len;
}

static void dawdle(uint64_t random)
{
    for (volatile uint64_t i = (random >> 32) % 256; i; i--)
        ;
}

/*
 * Most messages come at about the time when the consumer, done with the others, goes to sleep. If
 * it has slept through one, this does not end.
 */
static void aim(uint64_t random)
{
    if (random % 8 == 0)
        return;
    for (uint32_t i = 1; atomic_load(&consumer.head) != out.tail; i++)
        if (i % 256 == 0)
            sched_yield();
    dawdle(random);
}

static void *produce(void *unused)
{
    uint8_t bytes[BODY_MAX];
    uint64_t seed = 11, aims = 12;

    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t len = next_message(&seed, bytes);

        aim(unit_random(&aims));
        while (ring_put(&out, bytes, len) == RING_FULL)
            sched_yield();
        if (ring_take_bell(&out)) {
            nbells++;
            sem_post(&bell);
        }
    }
    return unused;
}

/* Lightly at first, so that both threads run and meet more often. */
static void sleep_until_rung(void)
{
    for (uint32_t i = 0; i < 2000; i++)
        if (sem_trywait(&bell) == 0)
            return;
    while (sem_wait(&bell))
        ;
}

static void expect_next(uint64_t *seed)
{
    static uint8_t bytes[RING_MESSAGE_MAX], expected[BODY_MAX];
    uint32_t len = 0, wanted = next_message(seed, expected);

    assert_int_equal(ring_take(&in, bytes, &len), 0);
    assert_int_equal(len, wanted);
    assert_int_equal(memcmp(bytes, expected, len), 0);
}

TEST(no_message_is_slept_through)
{
    uint64_t seed = 11, delays = 13;
    uint32_t nsleeps = 0;
    pthread_t producer;

    ring_open_at(0);
    assert_int_equal(sem_init(&bell, 0, 0), 0);
    nbells = 0;
    alarm(PATIENCE_S);
    assert_int_equal(pthread_create(&producer, NULL, produce, NULL), 0);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        dawdle(unit_random(&delays));
        while (ring_is_empty(&in))
            if (ring_arm(&in, 0)) {
                sleep_until_rung();
                ring_disarm(&in);
                nsleeps++;
            }
        expect_next(&seed);
    }
    pthread_join(producer, NULL);
    alarm(0);
    sem_destroy(&bell);
    assert_int_equal(take_any(), RING_EMPTY);
    assert_in_range(nsleeps, 100, MESSAGES);
    assert_in_range(nbells, nsleeps, MESSAGES);
}

/* ---- lies */

static void expect_refused(uint64_t tail)
{
    const uint64_t head = in.head;

    atomic_store(&messages.tail, tail);
    assert_int_equal(take_any(), -EPROTO);
    assert_int_equal(in.head, head);
    assert_int_equal(atomic_load(&consumer.head), head);
}

TEST(a_tail_that_cannot_be_is_refused)
{
    const uint64_t place = 5 * RING_BYTES + LAST_STEP;

    ring_open_at(place);
    assert_int_equal(put(20, 0), 0);
    for (uint64_t odd = 1; odd < STEP; odd++)
        expect_refused(place + 24 + odd);
    expect_refused(place + RING_BYTES + STEP);
    expect_refused(place - STEP);
    expect_refused(0);
    expect_refused(UINT64_MAX);
    expect_refused(place + (1ull << 32));
    expect_refused(place + (1ull << 63));
    atomic_store(&messages.tail, place + 24);
    expect_taken(20, 0);
}

static void write_len(uint64_t place, uint32_t len)
{
    memcpy(&messages.bytes[place % RING_BYTES], &len, sizeof(len));
}

TEST(a_length_that_cannot_be_is_refused)
{
    static const uint32_t wrong[] = {
        0,          21,         RING_MESSAGE_MAX, RING_MESSAGE_MAX + 1,
        RING_BYTES, 0x7fffffff, UINT32_MAX - 8,   UINT32_MAX
    };

    for (uint64_t place = 0; place < RING_BYTES; place += LAST_STEP) {
        ring_open_at(place);
        assert_int_equal(put(20, 0), 0);
        for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
            write_len(place, wrong[i]);
            expect_refused(place + 24);
        }
        write_len(place, RING_MESSAGE_MAX + 1); /* also where there is so much */
        expect_refused(place + RING_BYTES);
        write_len(place, 20);
        atomic_store(&messages.tail, place + 24);
        expect_taken(20, 0);
    }
}

static void *change_len(void *stop)
{
    while (!atomic_load((_Atomic bool *)stop))
        for (uint32_t i = 0; i < 4; i++)
            write_len(0, (const uint32_t[]){ 20, UINT32_MAX, 4, 0 }[i]);
    return NULL;
}

/* On the heap and of the size that was promised, so that a sanitizer sees what goes beyond. */
TEST(a_length_that_changes_under_the_consumer_is_one_or_the_other)
{
    uint8_t *bytes = test_malloc(RING_MESSAGE_MAX);
    _Atomic bool stop = false;
    pthread_t liar;
    uint32_t len;

    ring_open_at(0);
    assert_int_equal(put(20, 0), 0);
    assert_int_equal(pthread_create(&liar, NULL, change_len, &stop), 0);
    for (uint32_t i = 0; i < 300000; i++) {
        int r;

        in.head = 0;
        len = 77;
        r = ring_take(&in, bytes, &len);
        if (r == 0 ? len != 20 && len != 4 : r != -EPROTO)
            fail_msg("%d with a length of %u", r, len);
        if (in.head != (r == 0 ? (len == 20 ? 24u : STEP) : 0))
            fail_msg("head %lu after a length of %u", (unsigned long)in.head, len);
    }
    atomic_store(&stop, true);
    pthread_join(liar, NULL);
    test_free(bytes);
}

TEST(a_head_that_cannot_be_is_a_full_ring)
{
    const uint64_t place = 3 * RING_BYTES;

    ring_open_at(place);
    for (uint64_t i = 0; i < RING_BYTES / 16; i++)
        assert_int_equal(put(12, i), 0);
    static const int64_t wrong[] = { STEP,
                                     1,
                                     4096,
                                     RING_BYTES,
                                     INT64_MAX,
                                     -(int64_t)RING_BYTES - 8,
                                     -3 * (int64_t)RING_BYTES - 24 };

    for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        atomic_store(&consumer.head, out.tail + (uint64_t)wrong[i]);
        assert_false(ring_has_room(&out, 1));
        assert_int_equal(put(1, 0), RING_FULL);
    }
    assert_int_equal(atomic_load(&messages.tail), place + RING_BYTES);
    atomic_store(&consumer.head, place);
    expect_taken(12, 0);
}

/* It is in another CPU's cache. */
TEST(the_consumers_place_is_looked_at_for_want_of_room_only)
{
    const uint64_t fit = RING_BYTES / 24;

    ring_open_at(0);
    atomic_store(&consumer.head, UINT64_MAX);
    for (uint64_t i = 0; i < fit; i++)
        assert_int_equal(put(20, i), 0);
    assert_int_equal(put(20, fit), RING_FULL);
    atomic_store(&consumer.head, 0);
    for (uint64_t i = 0; i < fit; i++)
        expect_taken(20, i);
    for (uint64_t i = 0; i < fit; i++)
        assert_int_equal(put(20, i), 0);
}

TEST(neither_side_reads_back_its_own_place)
{
    ring_open_at(0);
    for (uint64_t n = 1; n < 10; n++) {
        atomic_store(&messages.tail, 8 * 77);
        assert_int_equal(put(20, n), 0);
        assert_int_equal(atomic_load(&messages.tail), n * 24);
        atomic_store(&consumer.head, 8 * 77);
        expect_taken(20, n);
        assert_int_equal(atomic_load(&consumer.head), n * 24);
    }
}

/* A new number for every arming, whatever became of the old one. */
TEST(an_arming_is_known_by_its_number_alone)
{
    ring_open_at(0);
    assert_true(ring_arm(&in, 0));
    assert_true(ring_take_bell(&out));
    atomic_store(&consumer.armed, 0);
    assert_true(ring_arm(&in, 0));
    assert_int_equal(atomic_load(&consumer.armed) >> RING_BELL_BITS, 2);
    assert_true(ring_take_bell(&out));
}

static void stay_on(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    assert_int_equal(sched_setaffinity(0, sizeof(set), &set), 0);
}

TEST(a_consumer_is_kept_waiting_by_who_has_its_cpu_and_does_not_sleep)
{
    struct ring_watch w = { 0 };
    cpu_set_t before;

    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    stay_on(sched_getcpu());
    ring_open_at(0);
    ring_note_look(&in, (unsigned)sched_getcpu());
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 5; i++) /* the first sees the look */
            assert_false(ring_consumer_is_kept_waiting(&out, &w, 4));
        assert_true(ring_consumer_is_kept_waiting(&out, &w, 4));
        ring_note_look(&in, (unsigned)sched_getcpu());
    }
    ring_arm(&in, 0);
    for (unsigned i = 0; i < 10; i++)
        assert_false(ring_consumer_is_kept_waiting(&out, &w, 4));
    sched_setaffinity(0, sizeof(before), &before);
}

TEST(a_consumer_elsewhere_is_not_kept_waiting)
{
    struct ring_watch w = { 0 };

    ring_open_at(0);
    atomic_store(&consumer.looks, 1u << RING_CPU_BITS | ((1u << RING_CPU_BITS) - 1));
    for (unsigned i = 0; i < 10; i++)
        assert_false(ring_consumer_is_kept_waiting(&out, &w, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_every_length_come_out_in_order),
        cmocka_unit_test(messages_wrap_around_at_every_offset),
        cmocka_unit_test(the_count_of_bytes_may_overflow),
        cmocka_unit_test(a_full_ring_takes_no_more_and_loses_nothing),
        cmocka_unit_test(a_bell_is_due_once_for_every_arming),
        cmocka_unit_test(who_sleeps_says_which_bell_it_hears),
        cmocka_unit_test(who_is_awake_is_not_rung),
        cmocka_unit_test(who_is_awake_does_not_say_so_again),
        cmocka_unit_test(who_has_something_to_take_does_not_go_to_sleep),
        cmocka_unit_test(no_message_is_slept_through),
        cmocka_unit_test(a_tail_that_cannot_be_is_refused),
        cmocka_unit_test(a_length_that_cannot_be_is_refused),
        cmocka_unit_test(a_length_that_changes_under_the_consumer_is_one_or_the_other),
        cmocka_unit_test(a_head_that_cannot_be_is_a_full_ring),
        cmocka_unit_test(the_consumers_place_is_looked_at_for_want_of_room_only),
        cmocka_unit_test(neither_side_reads_back_its_own_place),
        cmocka_unit_test(an_arming_is_known_by_its_number_alone),
        cmocka_unit_test(a_consumer_is_kept_waiting_by_who_has_its_cpu_and_does_not_sleep),
        cmocka_unit_test(a_consumer_elsewhere_is_not_kept_waiting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
