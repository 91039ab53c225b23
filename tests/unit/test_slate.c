/* Slates: a meeting ends in one way for all, its memory serves the next, and calls are compared. */
#include "shared/slate.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/unit.h"

static struct slate *slate;

static int let_go(void **state)
{
    (void)state;
    free(slate);
    slate = NULL;
    return 0;
}

/* As the daemon makes one: zero. */
static void make_slate(uint32_t nranks)
{
    free(slate);
    slate = aligned_alloc(128, slate_size(nranks));
    assert_non_null(slate);
    memset(slate, 0, slate_size(nranks));
}

static void all_arrive(uint32_t nranks, uint64_t sequence)
{
    for (uint32_t r = 1; r < nranks; r++)
        assert_int_equal(slate_arrive(slate, nranks, sequence), SLATE_OPEN);
    assert_int_equal(slate_arrive(slate, nranks, sequence), SLATE_MET);
}

/* ---- how a meeting ends */

TEST(a_meeting_is_open_until_the_last_has_come)
{
    static const uint32_t sizes[] = { 1, 2, 3, SLATE_RANKS_MAX };

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (uint64_t sequence = 1; sequence < 4; sequence++) {
            make_slate(sizes[i]);
            for (uint32_t r = 1; r < sizes[i]; r++) {
                assert_int_equal(slate_look(slate, sizes[i], sequence), SLATE_OPEN);
                assert_int_equal(slate_arrive(slate, sizes[i], sequence), SLATE_OPEN);
            }
            assert_int_equal(slate_look(slate, sizes[i], sequence), SLATE_OPEN);
            assert_int_equal(slate_arrive(slate, sizes[i], sequence), SLATE_MET);
            assert_int_equal(slate_look(slate, sizes[i], sequence), SLATE_MET);
            assert_int_equal(slate_close(slate, sizes[i], sequence), SLATE_MET); /* too late */
            assert_int_equal(slate_look(slate, sizes[i], sequence), SLATE_MET);
        }
}

TEST(who_closes_closes_it_for_all)
{
    for (uint32_t come = 0; come < 3; come++) {
        make_slate(3);
        for (uint32_t r = 0; r < come; r++)
            assert_int_equal(slate_arrive(slate, 3, 7), SLATE_OPEN);
        assert_int_equal(slate_close(slate, 3, 7), SLATE_CLOSED);
        assert_int_equal(slate_close(slate, 3, 7), SLATE_CLOSED);
        for (uint32_t r = come; r < 3; r++)
            assert_int_equal(slate_arrive(slate, 3, 7), SLATE_CLOSED);
        assert_int_equal(slate_look(slate, 3, 7), SLATE_CLOSED);
    }
}

TEST(one_who_is_too_many_is_sent_away_and_changes_nothing)
{
    make_slate(2);
    all_arrive(2, 5);
    for (int i = 0; i < 300; i++) /* more than a counter of arrivals could count */
        assert_int_equal(slate_arrive(slate, 2, 5), SLATE_CLOSED);
    assert_int_equal(slate_look(slate, 2, 5), SLATE_MET);
    assert_int_equal(slate_look(slate, 2, 6), SLATE_OPEN);
    assert_int_equal(slate_look(slate, 2, 7), SLATE_OPEN);
}

TEST(a_meeting_that_is_past_is_closed)
{
    make_slate(2);
    all_arrive(2, 5);
    assert_int_equal(slate_arrive(slate, 2, 7), SLATE_OPEN);
    assert_int_equal(slate_look(slate, 2, 5), SLATE_CLOSED);
    assert_int_equal(slate_arrive(slate, 2, 5), SLATE_CLOSED);
    assert_int_equal(slate_close(slate, 2, 5), SLATE_CLOSED);
    assert_int_equal(slate_arrive(slate, 2, 7), SLATE_MET); /* none of this concerned it */

    assert_int_equal(slate_close(slate, 2, 1001), SLATE_CLOSED);
    assert_int_equal(slate_arrive(slate, 2, 9), SLATE_CLOSED);
    assert_int_equal(slate_arrive(slate, 2, 1001), SLATE_CLOSED);
    assert_int_equal(slate_arrive(slate, 2, 1003), SLATE_OPEN);
}

/* Every pattern of what became of the meetings before. */
TEST(the_memory_of_a_meeting_serves_the_next_whatever_became_of_it)
{
    uint64_t seed = 11;

    make_slate(3);
    for (uint64_t sequence = 1; sequence < 5000; sequence++) {
        assert_int_equal(slate_look(slate, 3, sequence), SLATE_OPEN);
        switch (unit_random(&seed) % 4) {
        case 0: /* nobody came here: all went to the daemon without a word */
            break;
        case 1:
            assert_int_equal(slate_arrive(slate, 3, sequence), SLATE_OPEN);
            assert_int_equal(slate_close(slate, 3, sequence), SLATE_CLOSED);
            assert_int_equal(slate_arrive(slate, 3, sequence), SLATE_CLOSED);
            break;
        case 2:
            assert_int_equal(slate_close(slate, 3, sequence), SLATE_CLOSED);
            break;
        default:
            all_arrive(3, sequence);
        }
    }
}

TEST(seats_lie_apart_and_take_turns)
{
    const uint8_t *end;

    make_slate(5);
    end = (uint8_t *)slate + slate_size(5);
    for (uint64_t a = 1; a < 3; a++)
        for (uint32_t r = 0; r < 5; r++) {
            struct slate_seat *seat = slate_seat(slate, 5, a, r);

            assert_ptr_equal(slate_seat(slate, 5, a + SLATE_MEETINGS, r), seat);
            assert_true((uint8_t *)seat >= (uint8_t *)slate + sizeof(*slate));
            assert_true((uint8_t *)(seat + 1) <= end);
            assert_int_equal((uintptr_t)seat % 128, 0);
            for (uint64_t b = 1; b < 3; b++)
                for (uint32_t k = 0; k < 5; k++)
                    if (a != b || r != k)
                        assert_ptr_not_equal(slate_seat(slate, 5, b, k), seat);
        }
}

TEST(one_that_is_shut_says_so_and_leaves_meetings_alone)
{
    make_slate(2);
    assert_false(slate_is_shut(slate));
    assert_int_equal(slate_arrive(slate, 2, 1), SLATE_OPEN);
    slate_shut(slate);
    slate_shut(slate);
    assert_true(slate_is_shut(slate));
    assert_int_equal(slate_arrive(slate, 2, 1), SLATE_MET);
    assert_int_equal(slate_close(slate, 2, 2), SLATE_CLOSED);
}

TEST(the_last_where_all_have_met_is_known)
{
    make_slate(2);
    assert_int_equal(slate_last_met(slate, 2, 0), 0);
    assert_int_equal(slate_last_met(slate, 2, 1), 0);
    slate_arrive(slate, 2, 1);
    assert_int_equal(slate_last_met(slate, 2, 1), 0);
    slate_arrive(slate, 2, 1);
    assert_int_equal(slate_last_met(slate, 2, 1), 1);
    assert_int_equal(slate_last_met(slate, 2, 0), 0);
    all_arrive(2, 2);
    assert_int_equal(slate_last_met(slate, 2, 0), 2);
    assert_int_equal(slate_last_met(slate, 2, 1), 1);
    slate_close(slate, 2, 3);
    assert_int_equal(slate_last_met(slate, 2, 1), 0);
    all_arrive(2, 1ull << 40);
    assert_int_equal(slate_last_met(slate, 2, 0), 1ull << 40);
}

/* ---- whether calls agree */

static const struct slate_call some_call = {
    .kind = 1, .op = 2, .dtype = 3, .root = 1, .budget = 9, .naxes = 3, .axes = { 4, 5, 6 }
};

/* Three ranks of three processes that ask for the same. */
static void seat_all(uint64_t sequence)
{
    make_slate(3);
    for (uint32_t r = 0; r < 3; r++) {
        struct slate_seat *seat = slate_seat(slate, 3, sequence, r);

        seat->call = some_call;
        seat->process = 100 + r;
    }
}

TEST(calls_agree_where_every_field_does)
{
    for (uint64_t sequence = 1; sequence < 3; sequence++)
        for (uint32_t rank = 0; rank < 3; rank++) {
            struct slate_seat *seat;
            uint64_t *fields;

            seat_all(sequence);
            seat = slate_seat(slate, 3, sequence, rank);
            fields = (uint64_t *)&seat->call;
            assert_true(slate_agrees(slate, 3, sequence));
            for (size_t i = 0; i < sizeof(seat->call) / sizeof(*fields); i++)
                for (unsigned bit = 0; bit < 64; bit += 21) {
                    fields[i] ^= 1ull << bit;
                    assert_false(slate_agrees(slate, 3, sequence));
                    fields[i] ^= 1ull << bit;
                }
            seat->room = seat->counts[0] = 7; /* each rank's own */
            assert_true(slate_agrees(slate, 3, sequence));
        }
}

static bool agree_with(uint64_t process_a, struct slate_extent in_a, struct slate_extent out_a,
                       uint64_t process_b, struct slate_extent in_b, struct slate_extent out_b)
{
    bool agree;

    for (int turn = 0; turn < 2; turn++) { /* whoever is which of the three */
        struct slate_seat *a, *b;

        seat_all(1);
        a = slate_seat(slate, 3, 1, turn ? 2 : 0);
        b = slate_seat(slate, 3, 1, turn ? 1 : 2);
        *a = (struct slate_seat){
            .call = some_call, .process = process_a, .in = in_a, .out = out_a
        };
        *b = (struct slate_seat){
            .call = some_call, .process = process_b, .in = in_b, .out = out_b
        };
        if (turn > 0)
            assert_int_equal(slate_agrees(slate, 3, 1), agree);
        agree = slate_agrees(slate, 3, 1);
    }
    return agree;
}

TEST(tensors_that_share_memory_disagree_within_a_process)
{
    const struct slate_extent none = { 0 }, ab = { 100, 200 }, bc = { 200, 300 }, b = { 199, 201 },
                              a = { 150, 151 }, wide = { 50, 350 };

    assert_true(agree_with(1, ab, bc, 1, none, none));
    assert_true(agree_with(1, none, ab, 1, none, bc));
    assert_true(agree_with(1, ab, none, 1, bc, none));
    assert_true(agree_with(1, ab, ab, 1, bc, bc)); /* in place */

    assert_false(agree_with(1, ab, none, 1, ab, none)); /* also where both only read */
    assert_false(agree_with(1, ab, none, 1, a, none));
    assert_false(agree_with(1, none, ab, 1, none, ab));
    assert_false(agree_with(1, none, ab, 1, none, b));
    assert_false(agree_with(1, none, b, 1, none, bc));
    assert_false(agree_with(1, none, a, 1, ab, none));
    assert_false(agree_with(1, ab, none, 1, none, a));
    assert_false(agree_with(1, ab, none, 1, none, wide));
    assert_false(agree_with(1, ab, ab, 1, ab, ab));

    assert_true(agree_with(1, none, ab, 2, none, ab)); /* not the same bytes */
    assert_true(agree_with(1, ab, ab, 2, ab, ab));
}

TEST(an_extent_without_bytes_is_nowhere)
{
    const struct slate_extent none = { 0 }, ab = { 100, 200 }, empty = { 150, 150 };

    assert_true(agree_with(1, empty, none, 1, none, ab));
    assert_true(agree_with(1, none, empty, 1, ab, none));
    assert_true(agree_with(1, none, empty, 1, none, empty));
}

/* ---- by threads */

#define THREADS 4u
#define ROUNDS  20000u
#define LEN     96u

static _Atomic uint32_t nmet[ROUNDS + 1], nclosed[ROUNDS + 1];
static _Atomic uint32_t seen_wrong, verdicts_differ;

static uint8_t byte_of(uint64_t sequence, uint32_t rank, uint32_t i)
{
    return (uint8_t)(sequence * 31 + rank * 7 + i);
}

static void take_seat(uint64_t sequence, uint32_t rank)
{
    struct slate_seat *seat = slate_seat(slate, THREADS, sequence, rank);

    seat->call = some_call;
    seat->call.axes[0] = sequence;
    for (uint32_t i = 0; i < LEN; i++)
        seat->bytes[i] = byte_of(sequence, rank, i);
}

static void see_all(uint64_t sequence)
{
    bool right = slate_agrees(slate, THREADS, sequence);

    for (uint32_t r = 0; r < THREADS; r++)
        for (uint32_t i = 0; i < LEN; i++)
            right = right &&
                    slate_seat(slate, THREADS, sequence, r)->bytes[i] == byte_of(sequence, r, i);
    if (!right)
        atomic_fetch_add(&seen_wrong, 1);
}

static enum slate_state meet(uint64_t sequence, uint64_t looks)
{
    enum slate_state state = slate_arrive(slate, THREADS, sequence);

    for (; state == SLATE_OPEN; looks--) {
        if (looks == 0)
            return slate_close(slate, THREADS, sequence);
        sched_yield();
        state = slate_look(slate, THREADS, sequence);
    }
    return state;
}

/* What all do in the daemon, where a meeting was closed. False: somebody else has met. */
static bool wait_for_all(uint64_t sequence)
{
    atomic_fetch_add(&nclosed[sequence], 1);
    while (atomic_load(&nclosed[sequence]) < THREADS) {
        if (atomic_load(&nmet[sequence]) || atomic_load(&verdicts_differ)) {
            atomic_store(&verdicts_differ, 1);
            return false;
        }
        sched_yield();
    }
    return true;
}

static void *play_rank(void *arg)
{
    const uint32_t rank = (uint32_t)(uintptr_t)arg;
    uint64_t seed = 100 + rank;

    for (uint64_t sequence = 1; sequence <= ROUNDS; sequence++) {
        const uint64_t choice = unit_random(&seed) % 64;

        if (choice == 0) /* one who does not come, and says so */
            slate_close(slate, THREADS, sequence);
        else
            take_seat(sequence, rank);
        if (choice == 0 || meet(sequence, choice == 1 ? 0 : 4 * choice) == SLATE_CLOSED) {
            if (!wait_for_all(sequence))
                return NULL;
            continue;
        }
        atomic_fetch_add(&nmet[sequence], 1);
        see_all(sequence);
    }
    return NULL;
}

TEST(all_threads_come_to_the_same_verdict_and_see_everybodys_bytes)
{
    pthread_t threads[THREADS];
    uint32_t met = 0;

    make_slate(THREADS);
    for (uintptr_t r = 0; r < THREADS; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, play_rank, (void *)r), 0);
    for (uint32_t r = 0; r < THREADS; r++)
        pthread_join(threads[r], NULL);
    assert_int_equal(verdicts_differ, 0);
    assert_int_equal(seen_wrong, 0);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        assert_true(nmet[i] == 0 || nmet[i] == THREADS);
        assert_int_equal(nmet[i] + nclosed[i], THREADS);
        met += nmet[i] > 0;
    }
    assert_in_range(met, 1, ROUNDS - 1); /* of both there were some */
}

#define slate_test(f) cmocka_unit_test_teardown(f, let_go)

int main(void)
{
    const struct CMUnitTest tests[] = {
        slate_test(a_meeting_is_open_until_the_last_has_come),
        slate_test(who_closes_closes_it_for_all),
        slate_test(one_who_is_too_many_is_sent_away_and_changes_nothing),
        slate_test(a_meeting_that_is_past_is_closed),
        slate_test(the_memory_of_a_meeting_serves_the_next_whatever_became_of_it),
        slate_test(seats_lie_apart_and_take_turns),
        slate_test(one_that_is_shut_says_so_and_leaves_meetings_alone),
        slate_test(the_last_where_all_have_met_is_known),
        slate_test(calls_agree_where_every_field_does),
        slate_test(tensors_that_share_memory_disagree_within_a_process),
        slate_test(an_extent_without_bytes_is_nowhere),
        slate_test(all_threads_come_to_the_same_verdict_and_see_everybodys_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
