#include "shared/map.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

static uint64_t seed(void)
{
    static uint64_t value;

    while (!value)
        if (getrandom(&value, sizeof(value), 0) != sizeof(value))
            value = (uintptr_t)&value; /* no entropy yet: the address layout's will do */
    return value;
}

static size_t place_of(const struct map *map, uint64_t key)
{
    uint64_t x = key ^ seed();

    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
    return (size_t)(x ^ (x >> 32)) & (map->size - 1);
}

void map_fini(struct map *map)
{
    free(map->entries);
    *map = (struct map){ 0 };
}

/* The place of `key`, or the empty one where it belongs. At least one place is always empty. */
static struct map_entry *find(const struct map *map, uint64_t key)
{
    size_t i = place_of(map, key);

    while (map->entries[i].value && map->entries[i].key != key)
        i = (i + 1) & (map->size - 1);
    return &map->entries[i];
}

int map_reserve(struct map *map, size_t count)
{
    struct map larger = { .size = map->size ? map->size : 16, .count = map->count };

    while (larger.size / 4 * 3 < count)
        larger.size *= 2;
    if (larger.size == map->size)
        return 0;

    larger.entries = calloc(larger.size, sizeof(*larger.entries));
    if (!larger.entries)
        return -ENOMEM;
    for (size_t i = 0; i < map->size; i++)
        if (map->entries[i].value)
            *find(&larger, map->entries[i].key) = map->entries[i];
    free(map->entries);
    *map = larger;
    return 0;
}

int map_put(struct map *map, uint64_t key, void *value)
{
    int r = map_reserve(map, map->count + 1);

    if (r < 0)
        return r;
    *find(map, key) = (struct map_entry){ key, value };
    map->count++;
    return 0;
}

void *map_get(const struct map *map, uint64_t key)
{
    return map->size ? find(map, key)->value : NULL;
}

void *map_take(struct map *map, uint64_t key)
{
    struct map_entry *hole = map->size ? find(map, key) : NULL;
    void *value = hole ? hole->value : NULL;

    if (!value)
        return NULL;
    hole->value = NULL;
    map->count--;

    /* what had to step over the removed entry may have to move up */
    for (size_t i = ((size_t)(hole - map->entries) + 1) & (map->size - 1); map->entries[i].value;
         i = (i + 1) & (map->size - 1)) {
        struct map_entry entry = map->entries[i];

        map->entries[i].value = NULL;
        *find(map, entry.key) = entry;
    }
    return value;
}

void *map_next(const struct map *map, size_t *place)
{
    while (*place < map->size) {
        void *value = map->entries[(*place)++].value;

        if (value)
            return value;
    }
    return NULL;
}
