/* Every kernel of every row that this CPU has: against the reference, and inside its bounds. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/kernels.h"
#include "tests/unit/reference.h"

#define SOURCES_MAX 33u
#define COUNT_MAX   258u
#define OFFSET_MAX  64u
#define BUFFER      ((COUNT_MAX + 2 * OFFSET_MAX) * 8) /* bytes: room for the widest, and canaries */
#define CANARY      0xa5

#define for_each_row(row)                                                                          \
    for (const struct kernel_row *const *at_ = kernel_rows, *row = *at_; row; row = *++at_)        \
        if (row->supported())
#define for_each_kernel(row, type, op)                                                             \
    for (enum dtype_id type = 1; type < DTYPE_END; type++)                                         \
        for (enum operator_id op = 1; op < OPERATOR_END; op++)                                     \
            if (row->reduce[type][op])

static uint64_t seed = 1;

static uint8_t sources[SOURCES_MAX][BUFFER], results[SOURCES_MAX][BUFFER], expected[BUFFER];

static unsigned below(unsigned n)
{
    return (unsigned)(unit_random(&seed) >> 33) % n;
}

static const enum dtype_id narrow_floats[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F8E4M3, DTYPE_F8E5M2 };

static enum dtype_id wide_of(enum dtype_id type, bool wide)
{
    return wide ? dtype_get(type)->accumulator : type;
}

/* Any bits at all: for floats NaN, infinities, subnormals and both zeros among them. */
static void fill_bits(void)
{
    for (unsigned s = 0; s < SOURCES_MAX; s++)
        for (unsigned i = 0; i < BUFFER; i++)
            sources[s][i] = (uint8_t)(unit_random(&seed) >> 56);
}

/* In [-2, 2), with every bit of a double: sums of f32 and f64 then show their order. */
static double number(void)
{
    return (double)(unit_random(&seed) >> 11) * 0x1p-51 - 2;
}

/* Numbers of both signs whose sums stay numbers, in every type. */
static void fill_numbers(enum dtype_id type)
{
    const unsigned width = dtype_get(type)->width;

    fill_bits();
    if (dtype_get(type)->class != DTYPE_CLASS_FLOAT)
        return;
    for (unsigned s = 0; s < SOURCES_MAX; s++)
        for (unsigned i = 0; i + width <= BUFFER; i += width)
            reference_store(type, &sources[s][i], (struct reference_value){ .number = number() });
}

/* A call in words, for the message of a failure. */
struct call {
    const struct kernel_row *row;
    enum dtype_id type;
    enum operator_id op;
    struct kernel_args args;
};

static void fail_call(const struct call *c, uint64_t element, const void *got, const void *want,
                      unsigned width)
{
    uint64_t g = 0, w = 0;

    memcpy(&g, got, width);
    memcpy(&w, want, width);
    fail_msg("%s %s %s: nsrc %u ndst %u count %llu divisor %u wide %d %d: element %llu is %#llx, "
             "not %#llx",
             c->row->name, dtype_get(c->type)->name, operator_name(c->op), c->args.nsrc,
             c->args.ndst, (unsigned long long)c->args.count, c->args.divisor, c->args.src_wide,
             c->args.dst_wide, (unsigned long long)element, (unsigned long long)g,
             (unsigned long long)w);
}

static void expect(const struct call *c, void *out)
{
    const enum dtype_id from = wide_of(c->type, c->args.src_wide);
    const enum dtype_id to = wide_of(c->type, c->args.dst_wide);
    struct reference_value v[SOURCES_MAX];

    for (uint64_t i = c->args.first; i < c->args.first + c->args.count; i++) {
        for (uint32_t s = 0; s < c->args.nsrc; s++)
            v[s] =
                reference_load(from, (const uint8_t *)c->args.src[s] + i * dtype_get(from)->width);
        reference_store(to, (uint8_t *)out + i * dtype_get(to)->width,
                        reference_reduce(from, c->op, v, c->args.nsrc, c->args.divisor));
    }
}

static void assert_result(const struct call *c, const void *want, const void *got)
{
    const enum dtype_id to = wide_of(c->type, c->args.dst_wide);
    const unsigned width = dtype_get(to)->width;

    for (uint64_t i = c->args.first; i < c->args.first + c->args.count; i++) {
        const uint8_t *w = (const uint8_t *)want + i * width;
        const uint8_t *g = (const uint8_t *)got + i * width;

        if (!reference_same(to, g, w))
            fail_call(c, i, g, w, width);
    }
}

/* Nothing of `buffer` but [offset, offset + bytes) has changed. */
static void assert_canaries(const struct call *c, const uint8_t *buffer, size_t offset,
                            size_t bytes)
{
    static const uint8_t canary = CANARY;

    for (size_t i = 0; i < BUFFER; i++)
        if ((i < offset || i >= offset + bytes) && buffer[i] != CANARY)
            fail_call(c, i, &buffer[i], &canary, 1);
}

static void call(const struct call *c)
{
    c->row->reduce[c->type][c->op](&c->args);
}

TEST(a_kernel_exists_where_the_type_has_the_operator_and_nowhere_else)
{
    for_each_row(row) for (enum dtype_id type = 0; type < DTYPE_END;
                           type++) for (enum operator_id op = 0; op < OPERATOR_END; op++)
    {
        bool legal = false;

        if (dtype_get(type) && op != OPERATOR_NONE) {
            bool bitwise = op == OPERATOR_AND || op == OPERATOR_OR || op == OPERATOR_XOR;

            if (dtype_is_integer(dtype_get(type)))
                legal = op != OPERATOR_MEAN;
            else
                legal = dtype_get(type)->class == DTYPE_CLASS_FLOAT && !bitwise;
        }
        assert_int_equal(row->reduce[type][op] != NULL, legal);
    }
}

TEST(the_best_row_is_the_last_that_the_cpu_has)
{
    const struct kernel_row *best = NULL;

    assert_string_equal(kernel_rows[0]->name, "plain");
    assert_true(kernel_rows[0]->supported());
    for_each_row(row) best = row;
    assert_ptr_equal(kernel_row_best(), best);
}

/* Elements stand alone, so one long result says what every shorter one must be. */
static void check_offsets_and_lengths(const struct kernel_row *row, enum dtype_id type,
                                      uint32_t nsrc)
{
    const unsigned width = dtype_get(type)->width;
    const void *src[3];
    void *dst = results[0];
    struct call c = { row, type, OPERATOR_SUM, { .src = src, .dst = &dst, .nsrc = nsrc } };

    c.args.ndst = 1;
    c.args.count = COUNT_MAX + OFFSET_MAX;
    for (uint32_t s = 0; s < nsrc; s++)
        src[s] = sources[s];
    expect(&c, expected);

    for (unsigned offset = 0; offset < OFFSET_MAX; offset++)
        for (unsigned count = 0; count < COUNT_MAX; count++) {
            size_t at = offset * width, bytes = count * width;

            for (uint32_t s = 0; s < nsrc; s++)
                src[s] = sources[s] + at;
            memset(results[0] + at, CANARY, bytes + 2 * OFFSET_MAX);
            dst = results[0] + at + OFFSET_MAX;
            c.args.count = count;
            call(&c);
            if (memcmp(dst, expected + at, bytes) != 0)
                assert_result(&c, expected + at, dst);
            for (unsigned i = 0; i < OFFSET_MAX; i++)
                if (results[0][at + i] != CANARY ||
                    results[0][at + OFFSET_MAX + bytes + i] != CANARY)
                    fail_msg("%s %s: wrote outside at offset %u, count %u", row->name,
                             dtype_get(type)->name, offset, count);
        }
}

TEST(every_offset_and_length_sums_and_writes_nothing_else)
{
    for_each_row(row) for (enum dtype_id type = 1; type < DTYPE_END;
                           type++) if (row->reduce[type][OPERATOR_SUM])
    {
        fill_numbers(type);
        check_offsets_and_lengths(row, type, 2);
        check_offsets_and_lengths(row, type, 3);
    }
}

/* Any offset in bytes, another for every buffer; a prefix that is not to be touched. */
static void check_random(const struct kernel_row *row, enum dtype_id type, enum operator_id op,
                         uint32_t nsrc, bool src_wide, bool dst_wide)
{
    const unsigned width = dtype_get(wide_of(type, dst_wide))->width;
    const void *src[SOURCES_MAX];
    void *dst[4];
    size_t at[4];
    struct call c = { row, type, op, { .src = src, .dst = dst, .nsrc = nsrc } };

    c.args.src_wide = src_wide;
    c.args.dst_wide = dst_wide;
    c.args.ndst = 1 + below(ARRAY_SIZE(dst));
    c.args.stream = below(2);
    c.args.first = below(9);
    c.args.count = below(COUNT_MAX - 9);
    if (op == OPERATOR_MEAN)
        c.args.divisor = nsrc;
    for (uint32_t s = 0; s < nsrc; s++)
        src[s] = sources[s] + below(OFFSET_MAX);
    expect(&c, expected);

    for (uint32_t d = 0; d < c.args.ndst; d++) {
        at[d] = below(OFFSET_MAX);
        dst[d] = results[d] + at[d];
        memset(results[d], CANARY, BUFFER);
    }
    call(&c);
    for (uint32_t d = 0; d < c.args.ndst; d++) {
        assert_result(&c, expected, dst[d]);
        assert_canaries(&c, results[d], at[d] + c.args.first * width, c.args.count * width);
    }
}

static const uint32_t source_counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 24, 33 };

TEST(every_operator_agrees_with_the_reference_for_any_bits)
{
    for_each_row(row)
        for_each_kernel(row, type, op) for (unsigned i = 0; i < ARRAY_SIZE(source_counts); i++)
    {
        if (i % 4 == 0)
            fill_bits();
        check_random(row, type, op, source_counts[i], false, false);
    }
}

/* Bits at random overflow soon; here sums and products stay numbers. */
TEST(every_operator_agrees_with_the_reference_for_numbers)
{
    for_each_row(row) for_each_kernel(row, type, op)
    {
        fill_numbers(type);
        for (unsigned i = 0; i < ARRAY_SIZE(source_counts); i++)
            check_random(row, type, op, source_counts[i], false, false);
    }
}

TEST(accumulators_come_in_and_go_out)
{
    for_each_row(row)
        for_each_kernel(row, type, op) for (unsigned i = 0; i < ARRAY_SIZE(source_counts); i++)
    {
        fill_numbers(wide_of(type, true));
        check_random(row, type, op, source_counts[i], true, false);
        check_random(row, type, op, source_counts[i], true, true);
        if (i % 2)
            fill_numbers(type);
        check_random(row, type, op, source_counts[i], false, true);
    }
}

/* Sources in groups, each wide or not: the tree of each, then the tree over them. */
static void expect_groups(const struct call *c, void *out)
{
    const enum dtype_id to = wide_of(c->type, c->args.dst_wide);
    struct reference_value trees[SOURCES_MAX], v[SOURCES_MAX];

    for (uint64_t i = c->args.first; i < c->args.first + c->args.count; i++) {
        const void *const *src = c->args.src;

        for (uint32_t g = 0; g < c->args.ngroups; src += c->args.groups[g++].nsrc) {
            const enum dtype_id from = wide_of(c->type, c->args.groups[g].wide);

            for (uint32_t s = 0; s < c->args.groups[g].nsrc; s++)
                v[s] = reference_load(from, (const uint8_t *)src[s] + i * dtype_get(from)->width);
            trees[g] = reference_reduce(from, c->op, v, c->args.groups[g].nsrc, 0);
        }
        reference_store(to, (uint8_t *)out + i * dtype_get(to)->width,
                        reference_reduce(wide_of(c->type, true), c->op, trees, c->args.ngroups,
                                         c->args.divisor));
    }
}

/* Wide sources hold numbers of their own type. */
static void fill_group(enum dtype_id type, const struct source_group *g, unsigned first)
{
    const enum dtype_id from = wide_of(type, g->wide);
    const unsigned width = dtype_get(from)->width;

    for (uint32_t s = first; s < first + g->nsrc; s++)
        for (unsigned i = 0; i + width <= BUFFER; i += width)
            reference_store(from, &sources[s][i], (struct reference_value){ .number = number() });
}

static void check_groups(const struct kernel_row *row, enum dtype_id type, enum operator_id op,
                         bool dst_wide)
{
    const bool is_float = dtype_get(type)->class == DTYPE_CLASS_FLOAT;
    const unsigned width = dtype_get(wide_of(type, dst_wide))->width;
    struct source_group groups[SOURCES_MAX];
    const void *src[SOURCES_MAX];
    void *dst[2] = { results[0], results[1] };
    struct call c = { row, type, op, { .src = src, .dst = dst, .ndst = 2, .groups = groups } };

    c.args.dst_wide = dst_wide;
    c.args.first = below(9);
    c.args.count = below(COUNT_MAX - 9);
    if (op == OPERATOR_MEAN && !dst_wide)
        c.args.divisor = 7;
    while (c.args.nsrc + 12 <= SOURCES_MAX && (c.args.ngroups < 2 || below(5))) {
        struct source_group *g = &groups[c.args.ngroups++];

        *g = (struct source_group){ 1 + below(below(3) ? 3 : 12), below(2) };
        if (is_float)
            fill_group(type, g, c.args.nsrc);
        c.args.nsrc += g->nsrc;
    }
    for (uint32_t s = 0; s < c.args.nsrc; s++)
        src[s] = sources[s];
    dst[1] = sources[below(c.args.nsrc)]; /* in place, where it is as wide */
    for (uint32_t s = 0, g = 0, end = groups[0].nsrc; s < c.args.nsrc; s++) {
        if (s == end)
            end += groups[++g].nsrc;
        if (dst[1] == src[s] && wide_of(type, groups[g].wide) != wide_of(type, dst_wide))
            dst[1] = results[1];
    }
    expect_groups(&c, expected);
    memset(results, CANARY, sizeof(results));
    call(&c);
    assert_result(&c, expected, dst[0]);
    assert_result(&c, expected, dst[1]);
    assert_canaries(&c, results[0], c.args.first * width, c.args.count * width);
}

TEST(groups_are_combined_by_themselves_before_they_meet)
{
    for_each_row(row) for_each_kernel(row, type, op) for (unsigned i = 0; i < 8; i++)
    {
        fill_numbers(type);
        check_groups(row, type, op, i % 2);
    }
}

TEST(every_source_may_be_a_destination)
{
    for_each_row(row)
        for_each_kernel(row, type, op) for (uint32_t n = 1; n <= SOURCES_MAX; n += n < 9 ? 1 : 8)
    {
        const void *src[SOURCES_MAX];
        void *dst[SOURCES_MAX];
        struct call c = { row, type, op, { .src = src, .dst = dst, .nsrc = n, .ndst = n } };

        fill_numbers(type);
        c.args.count = 1 + below(COUNT_MAX - 1);
        for (uint32_t s = 0; s < n; s++)
            src[s] = dst[s] = sources[s] + below(OFFSET_MAX);
        expect(&c, expected);
        call(&c);
        for (uint32_t d = 0; d < n; d++)
            assert_result(&c, expected, dst[d]);
    }
}

/* A row takes other stores where every destination is aligned for them. */
TEST(streaming_gives_the_same_bytes_and_no_others)
{
    static _Alignas(64) uint8_t aligned[2][BUFFER];

    for_each_row(row) for_each_kernel(row, type, op) for (uint32_t n = 1; n <= 8; n++)
    {
        const unsigned width = dtype_get(type)->width;
        const void *src[8];
        void *dst[2] = { aligned[0], aligned[1] };
        struct call c = { row, type, op, { .src = src, .dst = dst, .nsrc = n, .ndst = 2 } };

        fill_numbers(type);
        c.args.stream = true;
        c.args.first = 64;
        c.args.count = below(COUNT_MAX - 64);
        for (uint32_t s = 0; s < n; s++)
            src[s] = sources[s] + below(OFFSET_MAX);
        expect(&c, expected);
        memset(aligned, CANARY, sizeof(aligned));
        call(&c);
        for (uint32_t d = 0; d < 2; d++) {
            assert_result(&c, expected, dst[d]);
            assert_canaries(&c, dst[d], c.args.first * width, c.args.count * width);
        }
    }
}

TEST(every_code_of_a_narrow_float_widens_exactly)
{
    static float wide[1 << 16], want[1 << 16];
    static uint8_t codes[2 << 16];

    for_each_row(row) for (unsigned t = 0; t < ARRAY_SIZE(narrow_floats); t++)
    {
        const enum dtype_id type = narrow_floats[t];
        const unsigned width = dtype_get(type)->width, ncodes = 1u << 8 * width;
        struct call c = { row, type, OPERATOR_SUM, { .nsrc = 1, .ndst = 1, .count = ncodes } };

        for (unsigned i = 0; i < ncodes; i++)
            memcpy(&codes[i * width], &i, width);
        c.args.src = (const void *[]){ codes };
        c.args.dst = (void *[]){ wide };
        c.args.dst_wide = true;
        expect(&c, want);
        call(&c);
        assert_result(&c, want, wide);
    }
}

/* The value of a code, its neighbours, the middle to the next code and the middle's neighbours. */
static void fill_around(enum dtype_id type, unsigned code, float *out)
{
    unsigned next = code + 1;
    float v = (float)reference_load(type, &code).number;
    float middle = (v + (float)reference_load(type, &next).number) / 2;

    out[0] = v;
    out[1] = nextafterf(v, -INFINITY);
    out[2] = nextafterf(v, INFINITY);
    out[3] = middle;
    out[4] = nextafterf(middle, -INFINITY);
    out[5] = nextafterf(middle, INFINITY);
}

static void check_narrowing(enum dtype_id type, float *wide, unsigned count)
{
    static uint8_t narrow[2 * (6 << 16)], want[2 * (6 << 16)];

    for_each_row(row)
    {
        struct call c = { row, type, OPERATOR_SUM, { .nsrc = 1, .ndst = 1, .count = count } };

        c.args.src = (const void *[]){ wide };
        c.args.dst = (void *[]){ narrow };
        c.args.src_wide = true;
        if (row == kernel_rows[0])
            expect(&c, want);
        call(&c);
        assert_result(&c, want, narrow);
    }
}

TEST(narrowing_rounds_to_nearest_even_around_every_code)
{
    static float wide[6 << 16];

    for (unsigned t = 0; t < ARRAY_SIZE(narrow_floats); t++) {
        const enum dtype_id type = narrow_floats[t];
        const unsigned ncodes = 1u << 8 * dtype_get(type)->width;

        for (unsigned code = 0; code < ncodes; code++)
            fill_around(type, code, &wide[6 * code]);
        check_narrowing(type, wide, 6 * ncodes);
    }
}

TEST(narrowing_takes_any_float)
{
    static const uint32_t special[] = {
        0x00000000, 0x80000000, 0x00000001, 0x007fffff, 0x00800000, 0x7f7fffff,
        0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0xffffffff,
        0x7fffffff, 0x477fefff, 0x477ff000, 0x43e80000, 0x43e80001, 0x3f800000,
    };
    static float wide[6 << 16];

    memcpy(wide, special, sizeof(special));
    for (unsigned i = ARRAY_SIZE(special); i < ARRAY_SIZE(wide); i++) {
        uint32_t u = (uint32_t)(unit_random(&seed) >> 32);

        memcpy(&wide[i], &u, sizeof(u));
    }
    for (unsigned t = 0; t < ARRAY_SIZE(narrow_floats); t++)
        check_narrowing(narrow_floats[t], wide, ARRAY_SIZE(wide));
}

/* What lies at the edges of a half's codes: zeros, subnormals, one and its neighbours, the largest,
 * infinities, and NaN of both kinds. */
static const uint16_t f16_edges[] = { 0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x3c00, 0x3c01,
                                      0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7c01, 0xfe00 };
static const uint16_t bf16_edges[] = { 0x0000, 0x8000, 0x0001, 0x807f, 0x0080, 0x3f80, 0x3f81,
                                       0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xffc0 };

/* Every code against one, and again against it in the other place. */
static void check_every_code(enum dtype_id type, enum operator_id op, uint16_t edge)
{
    static uint16_t codes[1 << 16], edges[1 << 16], want[1 << 16], got[1 << 16];
    const void *src[2] = { codes, edges };
    struct kernel_args args = { .src = src, .dst = (void *[]){ got }, .nsrc = 2, .ndst = 1 };

    args.count = ARRAY_SIZE(codes);
    args.divisor = op == OPERATOR_MEAN ? args.nsrc : 0;
    for (unsigned turn = 0; turn < 2; turn++) {
        for (unsigned i = 0; i < ARRAY_SIZE(codes); i++) {
            codes[i] = turn ? edge : (uint16_t)i;
            edges[i] = turn ? (uint16_t)i : edge;
        }
        expect(&(struct call){ kernel_rows[0], type, op, args }, want);
        for_each_row(row)
        {
            const struct call c = { row, type, op, args };

            memset(got, CANARY, sizeof(got));
            call(&c);
            assert_result(&c, want, got);
        }
    }
}

TEST(every_code_of_a_half_meets_the_edges)
{
    for_each_kernel(kernel_rows[0], type, op)
    {
        if (type != DTYPE_F16 && type != DTYPE_BF16)
            continue;
        for (unsigned i = 0; i < ARRAY_SIZE(f16_edges); i++)
            check_every_code(type, op, type == DTYPE_F16 ? f16_edges[i] : bf16_edges[i]);
    }
}

/* One NaN among numbers, in every place of a few strips and in every source; nothing else is
 * changed by it. */
static void check_lone_nan(const struct kernel_row *row, enum dtype_id type, enum operator_id op,
                           uint32_t nsrc)
{
    const uint16_t nan = type == DTYPE_F16 ? 0xfc01 : 0xff81;
    uint8_t *in[SOURCES_MAX];
    const void *src[SOURCES_MAX];
    void *dst = results[0];
    struct call c = { row, type, op, { .src = src, .dst = &dst, .nsrc = nsrc, .ndst = 1 } };

    c.args.count = 2 * OFFSET_MAX + 5;
    for (uint32_t s = 0; s < nsrc; s++)
        src[s] = in[s] = sources[s];
    for (uint64_t i = 0; i < c.args.count; i++) {
        uint8_t *place = in[i % nsrc] + 2 * i;
        uint16_t number;

        memcpy(&number, place, sizeof(number));
        memcpy(place, &nan, sizeof(nan));
        expect(&c, expected);
        call(&c);
        assert_result(&c, expected, results[0]);
        memcpy(place, &number, sizeof(number));
    }
}

TEST(a_lone_nan_stays_one_and_spoils_no_other_element)
{
    for_each_row(row) for_each_kernel(row, type, op)
    {
        if (type != DTYPE_F16 && type != DTYPE_BF16)
            continue;
        fill_numbers(type);
        for (uint32_t n = 1; n <= 9; n++)
            check_lone_nan(row, type, op, n);
    }
}

/* A power of two is divided by in another way than the rest. */
TEST(a_mean_divides_by_any_number)
{
    for_each_row(row) for_each_kernel(row, type, op) for (uint32_t divisor = 1; divisor <= 65;
                                                          divisor += divisor < 9 ? 1 : 8)
    {
        const void *src[2] = { sources[0], sources[1] };
        void *dst = results[0];
        struct call c = { row, type, op, { .src = src, .dst = &dst, .nsrc = 2, .ndst = 1 } };

        if (op != OPERATOR_MEAN)
            continue;
        fill_bits();
        c.args.count = COUNT_MAX;
        c.args.divisor = divisor;
        expect(&c, expected);
        call(&c);
        assert_result(&c, expected, dst);
    }
}

/* v[0..n) of f16, by every row; the same answer from all or the test fails. */
static double sum_f16(const double *v, uint32_t n, uint32_t divisor)
{
    uint16_t in[8], out = 0;
    const void *src[8];

    for (uint32_t i = 0; i < n; i++) {
        reference_store(DTYPE_F16, &in[i], (struct reference_value){ .number = v[i] });
        src[i] = &in[i];
    }
    for_each_row(row)
    {
        uint16_t before = out;

        row->reduce[DTYPE_F16][OPERATOR_SUM](&(struct kernel_args){ .src = src,
                                                                    .dst = (void *[]){ &out },
                                                                    .nsrc = n,
                                                                    .ndst = 1,
                                                                    .count = 1,
                                                                    .divisor = divisor });
        assert_true(row == kernel_rows[0] || out == before);
    }
    return reference_load(DTYPE_F16, &out).number;
}

TEST(a_sum_is_rounded_once)
{
    /* partial sums in f16 would be infinite, and would lose the halves */
    assert_true(sum_f16((double[]){ 60000, 10000, -60000, -9000 }, 4, 0) == 1000);
    assert_true(sum_f16((double[]){ 40000, 40000, 40000, 40000 }, 4, 4) == 40000);
    assert_true(sum_f16((double[]){ 2048, 0.5, 0.5, 0.5, 0.5 }, 5, 0) == 2050);
}

TEST(minimum_and_maximum_propagate_nan_and_order_zeros)
{
    static const double pairs[][2] = { { 0.0, -0.0 },     { 1, NAN }, { -INFINITY, NAN },
                                       { INFINITY, NAN }, { 1, -1 },  { INFINITY, -INFINITY } };

    for_each_row(row) for_each_kernel(row, type, op)
    {
        if (dtype_get(type)->class != DTYPE_CLASS_FLOAT ||
            (op != OPERATOR_MIN && op != OPERATOR_MAX))
            continue;
        for (unsigned i = 0; i < 2 * ARRAY_SIZE(pairs); i++) {
            const double *pair = pairs[i / 2], a = pair[i % 2], b = pair[1 - i % 2];
            const double low = pair[1], high = isnan(pair[1]) ? pair[1] : pair[0];
            uint64_t x = 0, y = 0, got = 0, want = 0;

            reference_store(type, &x, (struct reference_value){ .number = a });
            reference_store(type, &y, (struct reference_value){ .number = b });
            reference_store(type, &want,
                            (struct reference_value){ .number = op == OPERATOR_MIN ? low : high });
            row->reduce[type][op](&(struct kernel_args){ .src = (const void *[]){ &x, &y },
                                                         .dst = (void *[]){ &got },
                                                         .nsrc = 2,
                                                         .ndst = 1,
                                                         .count = 1 });
            assert_true(reference_same(type, &got, &want));
        }
    }
}

TEST(many_more_sources_than_anybody_has_registers_for)
{
    enum { N = RANKS_MAX, COUNT = 7 };
    static float in[N][COUNT];
    static struct reference_value v[N];
    const void **src = calloc(N, sizeof(*src));
    float out[COUNT];

    assert_non_null(src);
    for (unsigned s = 0; s < N; s++) {
        src[s] = in[s];
        for (unsigned i = 0; i < COUNT; i++)
            in[s][i] = (float)number();
    }
    for_each_row(row) for (uint32_t n = N; n > N - 70; n -= 23)
    {
        row->reduce[DTYPE_F32][OPERATOR_SUM](&(struct kernel_args){
            .src = src, .dst = (void *[]){ out }, .nsrc = n, .ndst = 1, .count = COUNT });
        for (unsigned i = 0; i < COUNT; i++) {
            for (uint32_t s = 0; s < n; s++)
                v[s].number = (double)in[s][i];
            assert_true((double)out[i] ==
                        reference_reduce(DTYPE_F32, OPERATOR_SUM, v, n, 0).number);
        }
    }
    free(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_exists_where_the_type_has_the_operator_and_nowhere_else),
        cmocka_unit_test(the_best_row_is_the_last_that_the_cpu_has),
        cmocka_unit_test(every_offset_and_length_sums_and_writes_nothing_else),
        cmocka_unit_test(every_operator_agrees_with_the_reference_for_any_bits),
        cmocka_unit_test(every_operator_agrees_with_the_reference_for_numbers),
        cmocka_unit_test(accumulators_come_in_and_go_out),
        cmocka_unit_test(groups_are_combined_by_themselves_before_they_meet),
        cmocka_unit_test(every_source_may_be_a_destination),
        cmocka_unit_test(streaming_gives_the_same_bytes_and_no_others),
        cmocka_unit_test(every_code_of_a_narrow_float_widens_exactly),
        cmocka_unit_test(narrowing_rounds_to_nearest_even_around_every_code),
        cmocka_unit_test(narrowing_takes_any_float),
        cmocka_unit_test(every_code_of_a_half_meets_the_edges),
        cmocka_unit_test(a_lone_nan_stays_one_and_spoils_no_other_element),
        cmocka_unit_test(a_mean_divides_by_any_number),
        cmocka_unit_test(a_sum_is_rounded_once),
        cmocka_unit_test(minimum_and_maximum_propagate_nan_and_order_zeros),
        cmocka_unit_test(many_more_sources_than_anybody_has_registers_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
