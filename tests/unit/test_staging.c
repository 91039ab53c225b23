/* Staging: what is promised is there, what is spare stays within the limit, and nothing is left. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/exec/staging.h"

#define KIB 1024ull
#define MIB (1024 * KIB)

TEST(no_more_is_promised_than_there_is)
{
    _cleanup_(staging_freep) struct staging *s = NULL;

    assert_int_equal(staging_new(10 * MIB, &s), 0);
    assert_int_equal(staging_left(s), 10 * MIB);
    assert_int_equal(staging_reserve(s, 6 * MIB), 0);
    assert_int_equal(staging_reserve(s, 5 * MIB), -ENOMEM);
    assert_int_equal(staging_reserve(s, UINT64_MAX), -ENOMEM);
    assert_int_equal(staging_reserve(s, 4 * MIB), 0);
    assert_int_equal(staging_left(s), 0);
    staging_unreserve(s, 6 * MIB);
    assert_int_equal(staging_reserve(s, 6 * MIB), 0);
    assert_null(staging_free(NULL));
}

TEST(spare_blocks_come_from_what_is_not_promised)
{
    _cleanup_(staging_freep) struct staging *s = NULL;
    struct staging_block *spare, *own;

    assert_int_equal(staging_new(4 * MIB, &s), 0);
    assert_int_equal(staging_reserve(s, 3 * MIB), 0);
    assert_null(staging_take(s, 2 * MIB, true));
    spare = staging_take(s, MIB, true);
    assert_non_null(spare);
    assert_null(staging_take(s, 1, true));
    own = staging_take(s, 3 * MIB, false);
    assert_non_null(own);
    assert_true(own->bytes >= 3 * MIB);
    memset(own->memory, 1, own->bytes);
    assert_null(staging_give(s, spare));
    spare = staging_take(s, MIB, true);
    assert_non_null(spare);
    staging_give(s, spare);
    staging_give(s, own);
    assert_null(staging_give(s, NULL));
}

TEST(a_block_is_kept_for_the_next_of_its_size_while_anything_is_promised)
{
    _cleanup_(staging_freep) struct staging *s = NULL;
    struct staging_block *b, *other;
    void *memory;

    assert_int_equal(staging_new(8 * MIB, &s), 0);
    assert_int_equal(staging_reserve(s, 4 * MIB), 0);
    b = staging_take(s, 100 * KIB, false);
    memory = b->memory;
    staging_give(s, b);
    b = staging_take(s, 70 * KIB, false);
    assert_ptr_equal(b->memory, memory);
    other = staging_take(s, 70 * KIB, false);
    assert_ptr_not_equal(other->memory, memory);
    staging_give(s, b);
    staging_give(s, other);
    b = staging_take(s, 2 * MIB, false); /* the small ones are no use */
    assert_true(b->bytes >= 2 * MIB);
    staging_give(s, b);
    staging_unreserve(s, 4 * MIB);
}

TEST(more_than_can_be_counted_is_refused)
{
    _cleanup_(staging_freep) struct staging *s = NULL;

    assert_int_equal(staging_new(UINT64_MAX, &s), 0);
    assert_int_equal(staging_reserve(s, MIB), 0);
    assert_null(staging_take(s, UINT64_MAX, false));
    assert_null(staging_take(s, UINT64_MAX / 2, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_is_promised_than_there_is),
        cmocka_unit_test(spare_blocks_come_from_what_is_not_promised),
        cmocka_unit_test(a_block_is_kept_for_the_next_of_its_size_while_anything_is_promised),
        cmocka_unit_test(more_than_can_be_counted_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
