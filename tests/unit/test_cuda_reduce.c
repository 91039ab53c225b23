/*
 * The kernels for GPUs, run by a CPU in grids of several sizes, against those for hosts: the same
 * bits, and nothing but what was asked for read or written as a GPU could not.
 */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "shared/kernels.h"
#include "tests/unit/cuda_host.h"
#include "tests/unit/reference.h"

#define SOURCES_MAX 64u
#define COUNT_MAX   150u
#define FIRST_MAX   9u
#define SLACK       64u /* bytes that a buffer may begin later */
#define BUFFER      (((COUNT_MAX + FIRST_MAX) * 8 + 2 * SLACK) / 64 * 64)
#define CANARY      0xa5
#define NDST_MAX    3u

#define for_each_kernel(type, op)                                                                  \
    for (enum dtype_id type = 1; type < DTYPE_END; type++)                                         \
        for (enum operator_id op = 1; op < OPERATOR_END; op++)                                     \
            if (kernel_rows[0]->reduce[type][op])

static uint64_t seed = 1;

static _Alignas(64) uint8_t sources[SOURCES_MAX][BUFFER], results[NDST_MAX][BUFFER],
    expected[BUFFER];

static const uint64_t grids[] = { 1, 7, 32, 1024 };

static unsigned below(unsigned n)
{
    return (unsigned)(unit_random(&seed) >> 33) % n;
}

/* In [-2, 2), with every bit of a double. */
static double number(void)
{
    return (double)(unit_random(&seed) >> 11) * 0x1p-51 - 2;
}

static enum dtype_id wide_of(enum dtype_id type, bool wide)
{
    return wide ? dtype_get(type)->accumulator : type;
}

/* What minimum and maximum are to tell apart. */
static double special(void)
{
    static const double others[] = { 1, -INFINITY, INFINITY, NAN };

    return below(8) ? (below(2) ? 0.0 : -0.0) : others[below(ARRAY_SIZE(others))];
}

enum content { BITS, NUMBERS, SPECIAL, CONTENTS };

/* From element 0 of p on; integers are any bits always. */
static void fill(enum dtype_id type, uint8_t *p, enum content content)
{
    const bool bits = content == BITS || dtype_get(type)->class != DTYPE_CLASS_FLOAT;
    const unsigned width = dtype_get(type)->width;

    for (unsigned i = 0; i < COUNT_MAX + FIRST_MAX; i++, p += width) {
        const uint64_t u = unit_random(&seed);
        const struct reference_value v = { .number = content == SPECIAL ? special() : number() };

        if (bits)
            memcpy(p, (const uint8_t *)&u + 8 - width, width);
        else
            reference_store(type, p, v);
    }
}

static cuda_host_fn kernel_of(enum dtype_id type, enum operator_id op)
{
    char name[64];

    snprintf(name, sizeof(name), "reduce_%s_%s",
             operator_name(op == OPERATOR_MEAN ? OPERATOR_SUM : op), dtype_get(type)->name);
    return cuda_host_find(name);
}

/* Memory that the arguments refer to, where they are not inline. */
struct tables {
    uint64_t pointers[SOURCES_MAX + NDST_MAX];
    struct cuda_group groups[SOURCES_MAX];
};

static struct cuda_args args_of(const struct kernel_args *k, bool inlined, struct tables *tables)
{
    struct cuda_args a = { .first = k->first,
                           .count = k->count,
                           .nsrc = k->nsrc,
                           .ndst = k->ndst,
                           .divisor = k->divisor,
                           .dst_wide = k->dst_wide,
                           .ngroups = MAX(k->ngroups, 1) };

    for (uint32_t i = 0; i < k->nsrc; i++)
        tables->pointers[i] = (uint64_t)k->src[i];
    for (uint32_t i = 0; i < k->ndst; i++)
        tables->pointers[k->nsrc + i] = (uint64_t)k->dst[i];
    tables->groups[0] = (struct cuda_group){ k->nsrc, k->src_wide };
    for (uint32_t i = 0; i < k->ngroups; i++)
        tables->groups[i] = (struct cuda_group){ k->groups[i].nsrc, k->groups[i].wide };
    if (inlined && a.ngroups <= CUDA_INLINE_GROUPS) {
        memcpy(a.pointers, tables->pointers, (a.nsrc + a.ndst) * sizeof(a.pointers[0]));
        memcpy(a.groups, tables->groups, a.ngroups * sizeof(a.groups[0]));
    } else {
        a.pointer_table = tables->pointers;
        a.group_table = tables->groups;
    }
    return a;
}

static void assert_same(enum dtype_id type, enum operator_id op, const struct kernel_args *k,
                        const uint8_t *got)
{
    const enum dtype_id to = wide_of(type, k->dst_wide);
    const unsigned width = dtype_get(to)->width;

    for (uint64_t i = k->first; i < k->first + k->count; i++) {
        const uint8_t *g = got + i * width, *w = expected + i * width;
        uint64_t x = 0, y = 0;

        memcpy(&x, g, width);
        memcpy(&y, w, width);
        if (!reference_same(to, g, w))
            fail_msg("%s %s: nsrc %u ngroups %u ndst %u first %u count %u divisor %u wide %d %d: "
                     "element %u is %#llx, not %#llx",
                     dtype_get(type)->name, operator_name(op), k->nsrc, k->ngroups, k->ndst,
                     (unsigned)k->first, (unsigned)k->count, k->divisor, k->src_wide, k->dst_wide,
                     (unsigned)i, (unsigned long long)x, (unsigned long long)y);
    }
}

/* By the plain row into `expected`, then by a grid into k->dst. */
static void check(enum dtype_id type, enum operator_id op, const struct kernel_args *k)
{
    const cuda_host_fn kernel = kernel_of(type, op);
    struct kernel_args host = *k;
    struct tables tables;
    struct cuda_args a = args_of(k, below(3), &tables);

    assert_non_null(kernel);
    host.dst = (void *[]){ expected };
    host.ndst = 1;
    kernel_rows[0]->reduce[type][op](&host);
    kernel(&a, grids[below(ARRAY_SIZE(grids))]);
    assert_int_equal(cuda_host_misaligned, 0);
    for (uint32_t d = 0; d < k->ndst; d++)
        assert_same(type, op, k, k->dst[d]);
}

/* Nothing of results[d] but `bytes` bytes at `offset` has changed. */
static void assert_canaries(unsigned d, size_t offset, size_t bytes)
{
    for (size_t i = 0; i < BUFFER; i++)
        if ((i < offset || i >= offset + bytes) && results[d][i] != CANARY)
            fail_msg("destination %u was written at byte %zu", d, i);
}

/* Bytes before a buffer's element 0: the same elements begin vectors in all, or none in particular.
 */
static size_t offset_of(unsigned width, bool meet, unsigned shift)
{
    return 16 * below(SLACK / 16 - 1) + (meet ? shift * width % 16 : below(16 / width) * width);
}

static void check_random(enum dtype_id type, enum operator_id op, uint32_t nsrc, bool src_wide,
                         bool dst_wide, bool meet)
{
    const enum dtype_id from = wide_of(type, src_wide);
    const unsigned width = dtype_get(wide_of(type, dst_wide))->width, shift = below(16);
    const enum content content = below(CONTENTS);
    const void *src[SOURCES_MAX];
    void *dst[NDST_MAX];
    size_t at[NDST_MAX];
    struct kernel_args k = { .src = src, .dst = dst, .nsrc = nsrc };

    k.ndst = 1 + below(NDST_MAX);
    k.first = below(FIRST_MAX);
    k.count = below(4) ? below(COUNT_MAX) : below(20);
    k.src_wide = src_wide;
    k.dst_wide = dst_wide;
    k.divisor = op == OPERATOR_MEAN ? 1 + below(2 * nsrc) : 0;
    for (uint32_t s = 0; s < nsrc; s++) {
        uint8_t *p = sources[s] + offset_of(dtype_get(from)->width, meet, shift);

        fill(from, p, content);
        src[s] = p;
    }
    memset(results, CANARY, sizeof(results));
    for (uint32_t d = 0; d < k.ndst; d++) {
        at[d] = offset_of(width, meet, shift);
        dst[d] = results[d] + at[d];
    }
    check(type, op, &k);
    for (uint32_t d = 0; d < k.ndst; d++)
        assert_canaries(d, at[d] + k.first * width, k.count * width);
}

static const uint32_t source_counts[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9, 10,
                                          11, 12, 13, 14, 15, 16, 17, 33, 64 };

TEST(every_kernel_is_there_and_no_other)
{
    for (enum dtype_id type = 1; type < DTYPE_END; type++)
        for (enum operator_id op = 1; op < OPERATOR_END; op++)
            if (op != OPERATOR_MEAN)
                assert_int_equal(kernel_of(type, op) != NULL,
                                 kernel_rows[0]->reduce[type][op] != NULL);
    assert_null(cuda_host_find("reduce_mean_f32"));
}

TEST(any_bits_at_any_address_reduce_as_on_a_host)
{
    for_each_kernel(type, op) for (unsigned i = 0; i < ARRAY_SIZE(source_counts); i++)
    {
        check_random(type, op, source_counts[i], false, false, true);
        check_random(type, op, source_counts[i], false, false, false);
    }
}

TEST(accumulators_come_in_and_go_out)
{
    for_each_kernel(type, op)
    {
        if (dtype_get(type)->accumulator == type)
            continue;
        for (unsigned i = 0; i < ARRAY_SIZE(source_counts); i++)
            for (unsigned how = 0; how < 6; how++)
                check_random(type, op, source_counts[i], how / 2 != 0, how / 2 != 1, how % 2);
    }
}

static void check_groups(enum dtype_id type, enum operator_id op, unsigned most)
{
    struct source_group groups[SOURCES_MAX];
    const void *src[SOURCES_MAX];
    void *dst[1] = { results[0] };
    struct kernel_args k = { .src = src, .dst = dst, .ndst = 1, .groups = groups };

    k.first = below(FIRST_MAX);
    k.count = 1 + below(COUNT_MAX / 3);
    k.dst_wide = below(2);
    k.divisor = op == OPERATOR_MEAN ? 7 : 0;
    while (k.nsrc + most <= SOURCES_MAX) {
        struct source_group *g = &groups[k.ngroups++];

        *g = (struct source_group){ 1 + below(most), below(2) };
        for (uint32_t i = 0; i < g->nsrc; i++) {
            fill(wide_of(type, g->wide), sources[k.nsrc], NUMBERS);
            src[k.nsrc] = sources[k.nsrc];
            k.nsrc++;
        }
    }
    check(type, op, &k);
}

TEST(groups_are_combined_by_themselves_before_they_meet)
{
    for_each_kernel(type, op)
    {
        check_groups(type, op, 20);
        check_groups(type, op, 9);
        check_groups(type, op, 3);
        check_groups(type, op, 1);
    }
}

/* As many as there is place for to let partial results wait. */
TEST(sources_and_groups_may_be_many)
{
    enum { COUNT = 3 };
    static const void *src[CUDA_GROUPS_MAX + CUDA_SOURCES_MAX];
    static uint64_t pointers[ARRAY_SIZE(src) + 1];
    static struct source_group groups[CUDA_GROUPS_MAX];
    static struct cuda_group table[CUDA_GROUPS_MAX];
    const struct kernel_args k = { .src = src,
                                   .dst = (void *[]){ expected },
                                   .nsrc = ARRAY_SIZE(src) - 1,
                                   .ndst = 1,
                                   .count = COUNT,
                                   .groups = groups,
                                   .ngroups = CUDA_GROUPS_MAX };
    struct cuda_args a = { .count = COUNT,
                           .nsrc = k.nsrc,
                           .ndst = 1,
                           .ngroups = k.ngroups,
                           .pointer_table = pointers,
                           .group_table = table };

    for (uint32_t s = 0; s < SOURCES_MAX; s++)
        fill(DTYPE_F32, sources[s], NUMBERS);
    for (uint32_t s = 0; s < k.nsrc; s++) {
        src[s] = sources[below(SOURCES_MAX)] + 4 * below(COUNT_MAX);
        pointers[s] = (uint64_t)src[s];
    }
    pointers[k.nsrc] = (uint64_t)results[0];
    /* when most results wait, of groups and of the last one's sources */
    for (uint32_t g = 0; g < k.ngroups; g++)
        table[g].nsrc = groups[g].nsrc = g == k.ngroups - 1 ? CUDA_SOURCES_MAX : 1;
    kernel_rows[0]->reduce[DTYPE_F32][OPERATOR_SUM](&k);
    kernel_of(DTYPE_F32, OPERATOR_SUM)(&a, 2);
    assert_same(DTYPE_F32, OPERATOR_SUM, &k, results[0]);
}

TEST(a_source_may_be_a_destination)
{
    for_each_kernel(type, op) for (uint32_t n = 1; n <= 17; n += n < 8 ? 1 : 3)
    {
        const unsigned shift = below(16);
        const void *src[SOURCES_MAX];
        void *dst[SOURCES_MAX];
        struct kernel_args k = { .src = src, .dst = dst, .nsrc = n, .ndst = n };

        k.count = COUNT_MAX;
        for (uint32_t s = 0; s < n; s++) {
            src[s] = dst[s] = sources[s] + offset_of(dtype_get(type)->width, n % 2, shift);
            fill(type, dst[s], NUMBERS);
        }
        check(type, op, &k);
    }
}

TEST(vectors_are_read_and_written_where_all_addresses_allow_it)
{
    for_each_kernel(type, op)
    {
        const unsigned width = dtype_get(type)->width;
        const void *src[2] = { sources[0] + width % 16, sources[1] + 32 + width % 16 };
        struct kernel_args k = { .src = src, .nsrc = 2, .ndst = 1, .count = COUNT_MAX };
        struct tables tables;
        struct cuda_args a;
        uint64_t before = cuda_host_vectors;

        k.dst = (void *[]){ results[0] + 16 + width % 16 };
        a = args_of(&k, true, &tables);
        kernel_of(type, op)(&a, 32);
        assert_int_equal(cuda_host_vectors - before, 3 * ((COUNT_MAX * width - 16 + width) / 16));
    }
}

/* Everything that a narrow float widens to, and what lies around and between, is narrowed. */
TEST(every_code_widens_and_every_float_narrows_as_on_a_host)
{
    static const enum dtype_id narrow[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F8E4M3, DTYPE_F8E5M2 };

    for (unsigned t = 0; t < ARRAY_SIZE(narrow); t++) {
        const unsigned width = dtype_get(narrow[t])->width;

        for (unsigned code = 0; code < 1u << 8 * width; code += 64) {
            uint8_t *codes = sources[0];
            uint32_t *floats = (uint32_t *)sources[1];
            struct kernel_args k = { .nsrc = 1, .ndst = 1, .count = 64 };

            for (unsigned i = 0; i < 64; i++) {
                unsigned c = code + i;

                memcpy(codes + i * width, &c, width);
            }
            k.src = (const void *[]){ codes };
            k.dst = (void *[]){ floats };
            k.dst_wide = true;
            check(narrow[t], OPERATOR_SUM, &k);
            for (unsigned i = 0; i < 64; i++) {
                static const uint32_t around[] = { 0, 1, 2, ~1u, ~0u };

                floats[64 + i] =
                    floats[i] + around[below(5)] + below(4) * (width == 1 ? 1u << 18 : 1u << 11);
                floats[128 + i] = (uint32_t)unit_random(&seed);
            }
            k.src = (const void *[]){ floats };
            k.dst = (void *[]){ results[0] };
            k.src_wide = true;
            k.dst_wide = false;
            k.count = COUNT_MAX;
            check(narrow[t], OPERATOR_SUM, &k);
        }
    }
}

TEST(copies_move_bytes_between_any_addresses)
{
    for (unsigned i = 0; i < 4000; i++) {
        const unsigned common = below(16), of = 1u << below(5);
        size_t at[NDST_MAX];
        struct cuda_args a = { .first = below(FIRST_MAX), .count = below(1000), .nsrc = 1 };
        uint8_t *src = sources[0] + common;

        fill(DTYPE_U64, sources[0], BITS);
        memset(results, CANARY, sizeof(results));
        a.ndst = 1 + below(NDST_MAX);
        a.pointers[0] = (uint64_t)src;
        for (uint32_t d = 0; d < a.ndst; d++) {
            at[d] = common % of + of * below(16 / of);
            a.pointers[1 + d] = (uint64_t)(results[d] + at[d]);
        }
        a.pointers[1 + a.ndst] = a.pointers[0]; /* is left alone */
        a.ndst++;
        cuda_host_find("copy")(&a, grids[below(ARRAY_SIZE(grids))]);
        assert_int_equal(cuda_host_misaligned, 0);
        for (uint32_t d = 0; d < a.ndst - 1; d++) {
            assert_memory_equal(results[d] + at[d] + a.first, src + a.first, a.count);
            assert_canaries(d, at[d] + a.first, a.count);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel_is_there_and_no_other),
        cmocka_unit_test(any_bits_at_any_address_reduce_as_on_a_host),
        cmocka_unit_test(accumulators_come_in_and_go_out),
        cmocka_unit_test(groups_are_combined_by_themselves_before_they_meet),
        cmocka_unit_test(sources_and_groups_may_be_many),
        cmocka_unit_test(a_source_may_be_a_destination),
        cmocka_unit_test(vectors_are_read_and_written_where_all_addresses_allow_it),
        cmocka_unit_test(every_code_widens_and_every_float_narrows_as_on_a_host),
        cmocka_unit_test(copies_move_bytes_between_any_addresses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
