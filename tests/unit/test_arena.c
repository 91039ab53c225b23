#include "tests/unit/unit.h"

#include <stdalign.h>
#include <string.h>

#include "proto/arena.h"

static struct arena arena;

static int setup(void **state)
{
    (void)state;
    return arena_init(&arena, 1000);
}

static int teardown(void **state)
{
    (void)state;
    arena_fini(&arena);
    return 0;
}

static void assert_takes(size_t bytes)
{
    uint8_t *p = arena_alloc(&arena, bytes);

    assert_non_null(p);
    assert_int_equal((uintptr_t)p % alignof(max_align_t), 0);
    memset(p, 0xa5, bytes);
}

TEST(memory_is_aligned_and_apart)
{
    arena_reset(&arena, 0);
    for (size_t bytes = 1; bytes < 40; bytes++) {
        uint8_t *a = arena_alloc(&arena, 5), *b = arena_alloc(&arena, bytes);

        assert_non_null(a);
        assert_non_null(b);
        assert_true(b >= a + 5);
        assert_int_equal((uintptr_t)b % alignof(max_align_t), 0);
        arena_reset(&arena, 0);
    }
}

TEST(first_block_is_used_to_its_end_and_from_its_start_again)
{
    for (uint32_t round = 0; round < 3; round++) {
        arena_reset(&arena, 0);
        assert_takes(1000);
        assert_non_null(arena_alloc(&arena, 0));
        assert_null(arena_alloc(&arena, 64));
        assert_false(arena.starved);
    }
    assert_null(arena.blocks);
}

TEST(further_blocks_come_as_far_as_the_reset_allows)
{
    arena_reset(&arena, 3000);
    assert_takes(1000);
    assert_null(arena_alloc(&arena, 3001));
    assert_takes(3000);
    assert_int_equal(arena.more, 0);
    assert_null(arena_alloc(&arena, 64));
    arena_reset(&arena, 0);
    assert_null(arena.blocks);
    assert_null(arena_alloc(&arena, 1009)); /* 1000, rounded up */
    assert_takes(1000);
}

TEST(much_is_taken_in_pieces_of_any_size)
{
    uint64_t seed = 7;

    arena_reset(&arena, 64 << 20);
    for (size_t left = 16 << 20; left > 0;) {
        size_t bytes = MIN(left, unit_random(&seed) % 500000);

        assert_takes(bytes);
        left -= bytes;
    }
}

#if !defined(__SANITIZE_ADDRESS__) /* which ends the program then */
TEST(more_than_there_is_in_the_world_is_told_from_more_than_is_allowed)
{
    arena_reset(&arena, SIZE_MAX / 4);
    assert_null(arena_alloc(&arena, SIZE_MAX / 4));
    assert_true(arena.starved);
    assert_takes(1000);
    arena_reset(&arena, 1000);
    assert_false(arena.starved);
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_false(arena.starved);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_apart),
        cmocka_unit_test(first_block_is_used_to_its_end_and_from_its_start_again),
        cmocka_unit_test(further_blocks_come_as_far_as_the_reset_allows),
        cmocka_unit_test(much_is_taken_in_pieces_of_any_size),
#if !defined(__SANITIZE_ADDRESS__)
        cmocka_unit_test(more_than_there_is_in_the_world_is_told_from_more_than_is_allowed),
#endif
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
