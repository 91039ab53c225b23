/*
 * A map from 64-bit keys to pointers. Keys may be a client's choice: they are mixed with a random
 * seed, so that no choice of them makes look-ups slow.
 */
#ifndef SHARED_MAP_H
#define SHARED_MAP_H

#include "shared/base.h"

struct map_entry {
    uint64_t key;
    void *value; /* NULL: an empty place */
};

struct map {
    struct map_entry *entries;
    size_t size; /* a power of two, or 0 */
    size_t count;
};

/* An all-zero map is empty and ready. */
void map_fini(struct map *map);

/* Makes room for `count` entries in all, so that as many map_put() cannot fail. 0 or -ENOMEM. */
int map_reserve(struct map *map, size_t count);

/* `key` must not be in the map, `value` not NULL. Return: 0 or -ENOMEM. */
int map_put(struct map *map, uint64_t key, void *value);

void *map_get(const struct map *map, uint64_t key); /* NULL: not there */
void *map_take(struct map *map, uint64_t key);      /* removes it; NULL: not there */

/* Walks over the values, in no order, from *place = 0 on; NULL at the end. The map must not change.
 */
void *map_next(const struct map *map, size_t *place);

#endif
