/*
 * Counts beyond 31 bits and offsets beyond 32: what breaks where a size has passed through an int.
 * Skipped, with the reason, where memory for it is short.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/end_to_end/harness.h"
#include "tests/unit/unit.h"

#define GIB          (1ull << 30)
#define NEEDED_BYTES (5 * GIB)
#define EXIT_SKIPPED 77
#define COUNT        ((1ull << 31) + 3) /* elements, more than an int counts */
#define BEYOND       (4 * GIB)          /* an offset, more than 32 bits hold */
#define BEYOND_COUNT 1000003ull

static struct harness harness;
static struct world world;

static uint64_t available_bytes(void)
{
    uint64_t kib = 0;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static int open_world(void **state)
{
    (void)state;
    harness_start(&harness, NULL);
    world_open(&world, &harness, 2, 2);
    return 0;
}

static int stop_daemon(void **state)
{
    (void)state;
    return harness_stop(&harness);
}

/* Words, so that billions are soon written and compared; every byte of a word is its own. */
static uint64_t word_of(uint64_t i)
{
    return i * 0x9e3779b97f4a7c15ull;
}

/* Of an i8 each, wrapping: what a sum of two words of i8 is. */
static uint64_t add_bytes(uint64_t a, uint64_t b)
{
    const uint64_t high = 0x8080808080808080ull;

    return ((a & ~high) + (b & ~high)) ^ ((a ^ b) & high);
}

static void write_words(uint8_t *to, uint64_t bytes, uint64_t first)
{
    uint64_t i, word;

    for (i = 0; i + 8 <= bytes; i += 8) {
        word = word_of(first + i / 8);
        memcpy(to + i, &word, 8);
    }
    word = word_of(first + i / 8);
    memcpy(to + i, &word, bytes - i);
}

static bool is_zero(const uint8_t *p, uint64_t bytes)
{
    return p[0] == 0 && memcmp(p, p + 1, bytes - 1) == 0;
}

static struct ruccl_region *alloc(uint32_t rank, uint64_t bytes)
{
    struct ruccl_region *region;

    if (ruccl_alloc(world_conn(&world, rank), bytes, &region) < 0)
        fail_msg("alloc: %s", ruccl_last_error()->text);
    return region;
}

static struct ruccl_tensor bytes_at(struct ruccl_region *region, uint64_t offset, uint64_t count)
{
    return (struct ruccl_tensor){
        .dtype = RUCCL_I8, .naxes = 1, .shape = { count }, .region = region, .offset = offset
    };
}

#define FIRST_OF(rank) ((rank) * (1ull << 40))

/* In place, so that two tensors are all the memory there is; every byte is looked at. */
TEST(all_reduce_of_more_elements_than_an_int_counts)
{
    struct ruccl_region *regions[2];
    struct ruccl_work *works[2];
    struct ruccl_stats stats;
    uint64_t i;

    for (uint32_t r = 0; r < 2; r++) {
        regions[r] = alloc(r, COUNT);
        write_words(ruccl_region_data(regions[r]), COUNT, FIRST_OF(r));
    }
    for (uint32_t r = 0; r < 2; r++) {
        const struct ruccl_tensor t = bytes_at(regions[r], 0, COUNT);

        assert_int_equal(ruccl_all_reduce_async(world.comms[r], &t, &t, RUCCL_SUM, &works[r]), 0);
    }
    assert_int_equal(ruccl_work_wait(works[0], 10 * (int64_t)HARNESS_PATIENCE_US), 0);
    assert_int_equal(ruccl_work_stats(works[0], &stats), 0);
    assert_true(stats.chunks > 1);
    assert_true(stats.chunks == (COUNT + stats.chunk_elements - 1) / stats.chunk_elements);
    ruccl_work_release(works[0]);
    expect_done(works[1], "all_reduce");

    for (uint32_t r = 0; r < 2; r++) {
        const uint8_t *got = ruccl_region_data(regions[r]);

        for (i = 0; i < COUNT; i += 8) {
            const uint64_t sum =
                add_bytes(word_of(FIRST_OF(0) + i / 8), word_of(FIRST_OF(1) + i / 8));

            if (memcmp(got + i, &sum, COUNT - i < 8 ? COUNT - i : 8))
                fail_msg("rank %u: wrong sum near element %" PRIu64, r, i);
        }
        ruccl_free(regions[r]);
    }
}

/* Memory of which only what is touched exists. */
static struct ruccl_region *register_sparse(uint32_t rank, uint64_t bytes)
{
    int fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct ruccl_region *region;

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
    if (ruccl_register(world_conn(&world, rank), fd, bytes, &region) < 0)
        fail_msg("register: %s", ruccl_last_error()->text);
    close(fd);
    return region;
}

TEST(broadcast_between_offsets_beyond_four_gib)
{
    const uint64_t bytes = BEYOND + 4096 + BEYOND_COUNT;
    struct ruccl_region *regions[2];
    struct ruccl_tensor tensors[2];
    struct ruccl_work *works[2];
    const uint8_t *sent, *got;

    for (uint32_t r = 0; r < 2; r++) {
        regions[r] = register_sparse(r, bytes);
        tensors[r] = bytes_at(regions[r], BEYOND + 1 + 16 * r, BEYOND_COUNT);
    }
    sent = (uint8_t *)ruccl_region_data(regions[1]) + tensors[1].offset;
    got = (uint8_t *)ruccl_region_data(regions[0]) + tensors[0].offset;
    write_words((uint8_t *)ruccl_region_data(regions[1]) + tensors[1].offset, BEYOND_COUNT, 5);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(
            ruccl_broadcast_async(world.comms[r], &tensors[r], &tensors[r], 1, &works[r]), 0);
    for (uint32_t r = 0; r < 2; r++)
        expect_done(works[r], "broadcast");

    assert_true(!memcmp(sent, got, BEYOND_COUNT));
    assert_int_equal(got[-1], 0);
    assert_int_equal(got[BEYOND_COUNT], 0);
    /* where offsets cut to 32 bits would have led */
    assert_true(is_zero(ruccl_region_data(regions[0]), 2 * BEYOND_COUNT));
    for (uint32_t r = 0; r < 2; r++)
        ruccl_release(regions[r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broadcast_between_offsets_beyond_four_gib),
        cmocka_unit_test(all_reduce_of_more_elements_than_an_int_counts),
    };

    if (HARNESS_SANITIZED && !harness_full()) {
        printf("skipped: too slow under a sanitizer; RUCCL_TEST_FULL=1 runs it all the same\n");
        return EXIT_SKIPPED;
    }
    if (available_bytes() < NEEDED_BYTES) {
        printf("skipped: needs %llu GiB of memory, %llu are available\n", NEEDED_BYTES / GIB,
               (unsigned long long)available_bytes() / GIB);
        return EXIT_SKIPPED;
    }
    return cmocka_run_group_tests(tests, open_world, stop_daemon);
}
