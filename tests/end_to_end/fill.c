#include "tests/end_to_end/fill.h"

#include <math.h>
#include <string.h>

#include "shared/base.h"
#include "tests/end_to_end/reference.h"
#include "tests/unit/unit.h"

#define VALUES 256u

/* Values that sum to something of their own size, with bits down to the last. */
static void make_tame(enum ruccl_dtype dtype, uint64_t *seed, uint8_t *to)
{
    const uint32_t width = ruccl_dtype_bytes(dtype);

    for (uint32_t i = 0; i < VALUES; i++) {
        const double fraction = (double)(unit_random(seed) >> 11) / (double)(1ull << 52) - 1;
        const int64_t integer = (int64_t)(unit_random(seed) % 15) - 7;

        if (reference_class(dtype) == REFERENCE_FLOAT)
            reference_encode(dtype, fraction * (double)(1 << i % 4), to + i * width);
        else
            memcpy(to + i * width, &integer, MIN(width, sizeof(integer)));
    }
}

/* The values where arithmetic has its edges, and the least and greatest integers. */
static void make_edges(enum ruccl_dtype dtype, uint64_t *seed, uint8_t *to)
{
    static const double edges[] = { 0.0,    -0.0,    INFINITY, -INFINITY, NAN,   1.0,
                                    0x1p-9, 0x1p-16, 0x1p-24,  0x1p-149,  448.0, 57344.0,
                                    465.0,  65504.0, 65520.0,  0x1p127,   1e308, 0x1p-1074 };
    const uint32_t width = ruccl_dtype_bytes(dtype);

    for (uint32_t i = 0; i < VALUES; i++) {
        const uint64_t pick = unit_random(seed);
        uint64_t integer = 1ull << (8 * MIN(width, 8u) - 1);

        integer = pick % 3 == 0 ? integer - 1 : pick % 3 == 1 ? integer : ~0ull;
        if (reference_class(dtype) == REFERENCE_FLOAT)
            reference_encode(dtype, edges[pick % ARRAY_SIZE(edges)], to + i * width);
        else
            memcpy(to + i * width, &integer, MIN(width, sizeof(integer)));
    }
}

#define TURN 64u

void fill_values(enum ruccl_dtype dtype, uint64_t seed, uint64_t bytes, uint8_t *to)
{
    uint8_t tame[VALUES * FILL_WIDTH] = { 0 }, edges[VALUES * FILL_WIDTH] = { 0 };
    const uint32_t width = ruccl_dtype_bytes(dtype);
    uint64_t word = 0;

    make_tame(dtype, &seed, tame);
    make_edges(dtype, &seed, edges);
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
        word = unit_random(&seed);
        memcpy(to + i, &word, 8);
    }
    for (uint64_t i = TURN; i < bytes / width; i++) {
        const uint8_t *values = i / TURN % 4 == 3 ? edges : tame;

        if (i / TURN % 2 == 0) {
            i += TURN - 1;
            continue;
        }
        if (i % 8 == 0)
            word = unit_random(&seed);
        memcpy(to + i * width, values + (word >> i % 8 * 8) % VALUES * width, width);
    }
}
