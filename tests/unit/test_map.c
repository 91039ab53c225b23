#include "tests/unit/unit.h"

#include "shared/map.h"

#define KEYS 1000u

TEST(an_empty_map_has_nothing)
{
    struct map map = { 0 };
    size_t place = 0;

    assert_null(map_get(&map, 0));
    assert_null(map_take(&map, 7));
    assert_null(map_next(&map, &place));
    map_fini(&map);
}

TEST(what_was_put_is_found_until_it_is_taken)
{
    static char values[KEYS];
    struct map map = { 0 };

    for (uint64_t k = 0; k < KEYS; k++)
        assert_int_equal(map_put(&map, k << 32, &values[k]), 0);
    assert_int_equal(map.count, KEYS);
    for (uint64_t k = 0; k < KEYS; k += 3)
        assert_ptr_equal(map_take(&map, k << 32), &values[k]);
    for (uint64_t k = 0; k < KEYS; k++) {
        assert_ptr_equal(map_get(&map, k << 32), k % 3 ? &values[k] : NULL);
        assert_null(map_get(&map, (k << 32) + 1));
    }
    map_fini(&map);
    assert_null(map_get(&map, 1ull << 32));
}

TEST(a_walk_passes_every_value_once)
{
    static unsigned seen[KEYS];
    struct map map = { 0 };
    size_t place = 0;
    unsigned *value;

    for (uint64_t k = 0; k < KEYS; k++)
        assert_int_equal(map_put(&map, k, &seen[k]), 0);
    while ((value = map_next(&map, &place)))
        ++*value;
    for (uint64_t k = 0; k < KEYS; k++)
        assert_int_equal(seen[k], 1);
    map_fini(&map);
}

TEST(reserved_places_are_enough)
{
    static char value;
    struct map map = { 0 };
    const struct map_entry *entries;

    assert_int_equal(map_reserve(&map, KEYS), 0);
    entries = map.entries;
    for (uint64_t k = 0; k < KEYS; k++)
        assert_int_equal(map_put(&map, k, &value), 0);
    assert_ptr_equal(map.entries, entries);
    map_fini(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_map_has_nothing),
        cmocka_unit_test(what_was_put_is_found_until_it_is_taken),
        cmocka_unit_test(a_walk_passes_every_value_once),
        cmocka_unit_test(reserved_places_are_enough),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
