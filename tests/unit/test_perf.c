/*
 * ruccl-perf: command line, sizes, values, references, statistics; and attach and scale as a whole,
 * against a daemon of their own.
 */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/perf/attach.h"
#include "client/perf/bench.h"
#include "client/perf/board.h"
#include "client/perf/number.h"
#include "client/perf/options.h"
#include "client/perf/pattern.h"
#include "client/perf/probe_options.h"
#include "client/perf/report.h"
#include "client/perf/scale.h"
#include "client/perf/scale_table.h"
#include "client/perf/workload.h"

static const char *const workload_names[] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",  "gather",
    "scatter",    "all_to_all", "all_to_all_v",   "sendrecv",  "barrier",
};

/* ---------------------------------------------------------------- command line */

/* Copies, for getopt to shuffle; returns argc. */
static int copy_args(char *argv[16], const char *const *args)
{
    int argc = 0;

    while (args[argc]) {
        argv[argc] = (char *)args[argc];
        argc++;
    }
    argv[argc] = NULL;
    return argc;
}

static int parse(struct options *o, struct error *e, const char *const *args)
{
    char *argv[16];
    int argc = copy_args(argv, args);

    *e = (struct error){ 0 };
    return options_parse(argc, argv, o, e);
}

static int parse_probe(struct probe_options *o, struct error *e, const char *const *args)
{
    char *argv[16];
    int argc = copy_args(argv, args);

    *e = (struct error){ 0 };
    return probe_options_parse(argc, argv, o, e);
}

#define PARSE_PROBE(o, e, ...) parse_probe(o, e, (const char *const[]){ __VA_ARGS__, NULL })

#define PARSE(o, e, ...) parse(o, e, (const char *const[]){ __VA_ARGS__, NULL })

TEST(sizes_take_binary_suffixes)
{
    uint64_t v = 7;

    assert_true(options_parse_size("0", &v) && v == 0);
    assert_true(options_parse_size("17", &v) && v == 17);
    assert_true(options_parse_size("64K", &v) && v == 65536);
    assert_true(options_parse_size("3m", &v) && v == 3145728);
    assert_true(options_parse_size("2G", &v) && v == UINT64_C(2147483648));
    v = 7;
    assert_false(options_parse_size("", &v));
    assert_false(options_parse_size("K", &v));
    assert_false(options_parse_size("-1", &v));
    assert_false(options_parse_size(" 1", &v));
    assert_false(options_parse_size("1KB", &v));
    assert_false(options_parse_size("1T", &v));
    assert_false(options_parse_size("99999999999999999999", &v));
    assert_false(options_parse_size("18446744073709551615K", &v));
    assert_int_equal(v, 7);
}

TEST(a_command_line_is_read_whole)
{
    struct options o;
    struct error e;

    assert_int_equal(PARSE(&o, &e, "reduce_scatter", "--ranks", "3", "--min-bytes=12",
                           "--max-bytes", "1K", "--dtype", "bf16", "--op", "mean", "--budget", "2M",
                           "--in-place", "--check", "--json"),
                     OPTIONS_RUN);
    assert_string_equal(o.workload->name, "reduce_scatter");
    assert_int_equal(o.nranks, 3);
    assert_int_equal(o.min_bytes, 12);
    assert_int_equal(o.max_bytes, 1024);
    assert_int_equal(o.dtype, DTYPE_BF16);
    assert_int_equal(o.op, OPERATOR_MEAN);
    assert_int_equal(o.budget, 2 << 20);
    assert_true(o.in_place && o.check && o.json && !o.plain);
    assert_null(o.socket);
}

TEST(every_collective_runs_without_options)
{
    for (size_t i = 0; i < ARRAY_SIZE(workload_names); i++) {
        struct options o;
        struct error e;

        assert_int_equal(PARSE(&o, &e, workload_names[i]), OPTIONS_RUN);
        assert_int_equal(o.op, workload_has_op(o.workload) ? OPERATOR_SUM : OPERATOR_NONE);
        assert_int_equal(o.budget, BUDGET_NONE);
    }
}

TEST(what_makes_no_sense_is_refused_with_a_sentence)
{
    static const char *const lines[][5] = {
        { "all_redeuce" },
        { "all_reduce", "--ranks", "0" },
        { "all_reduce", "--ranks", "4097" },
        { "all_reduce", "--ranks" },
        { "all_reduce", "--wat" },
        { "all_reduce", "stray" },
        { "all_reduce", "--dtype", "f33" },
        { "all_reduce", "--dtype", "packed_u8" },
        { "all_reduce", "--dtype=i32", "--op", "mean" },
        { "all_reduce", "--dtype=f32", "--op", "xor" },
        { "all_reduce", "--op", "average" },
        { "all_reduce", "--min-bytes=2K", "--max-bytes=1K" },
        { "all_reduce", "--iters", "0" },
        { "all_reduce", "--step-factor", "1" },
        { "all_reduce", "--memory", "gpu" },
        { "all_gather", "--op", "sum" },
        { "gather", "--in-place" },
        { "all_to_all", "--in-place" },
        { "barrier", "--in-place" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        struct options o;
        struct error e;

        assert_true(parse(&o, &e, lines[i]) < 0);
        assert_true(e.text[0] != '\0');
    }
}

TEST(sizes_grow_from_zero_and_end_at_the_last)
{
    static const uint64_t expected[] = { 0, 12, 24, 48, 96 };
    struct options o;
    struct error e;
    uint64_t bytes;
    size_t n = 0;

    assert_int_equal(
        PARSE(&o, &e, "all_gather", "--ranks", "3", "--min-bytes", "0", "--max-bytes", "100"),
        OPTIONS_RUN);
    bytes = o.min_bytes;
    do {
        assert_true(n < ARRAY_SIZE(expected));
        assert_int_equal(bytes, expected[n++]);
    } while (options_next_bytes(&o, &bytes));
    assert_int_equal(n, ARRAY_SIZE(expected));
}

TEST(a_size_below_one_element_is_raised_to_one)
{
    struct options o;
    struct error e;

    assert_int_equal(PARSE(&o, &e, "all_gather", "--ranks", "3"), OPTIONS_RUN);
    assert_int_equal(o.min_bytes, 12);
    assert_int_equal(PARSE(&o, &e, "all_gather", "--ranks", "3", "--max-bytes", "8"), OPTIONS_RUN);
    assert_int_equal(o.min_bytes, 8);
}

TEST(warm_up_shrinks_for_large_sizes_unless_told)
{
    struct options o;
    struct error e;

    assert_int_equal(PARSE(&o, &e, "all_reduce"), OPTIONS_RUN);
    assert_int_equal(options_warmup(&o, 16777215), 5);
    assert_int_equal(options_warmup(&o, 16777216), 1);
    assert_int_equal(PARSE(&o, &e, "all_reduce", "--warmup", "0"), OPTIONS_RUN);
    assert_int_equal(options_warmup(&o, 4), 0);
}

TEST(attach_and_scale_have_options_of_their_own)
{
    struct probe_options o;
    struct error e;

    assert_int_equal(PARSE_PROBE(&o, &e, "attach"), OPTIONS_RUN);
    assert_int_equal(o.nranks, 8);
    assert_int_equal(PARSE_PROBE(&o, &e, "attach", "--ranks=3", "--iters", "7", "--json"),
                     OPTIONS_RUN);
    assert_true(o.nranks == 3 && o.iters == 7 && o.json && !o.socket);
    assert_int_equal(PARSE_PROBE(&o, &e, "scale"), OPTIONS_RUN);
    assert_int_equal(o.axes, (1u << AXES) - 1);
    assert_int_equal(
        PARSE_PROBE(&o, &e, "scale", "--axes", "chunks,memory_sessions", "--socket", "/a"),
        OPTIONS_RUN);
    assert_int_equal(o.axes, 1u << AXIS_CHUNKS | 1u << AXIS_MEMORY_SESSIONS);
    assert_string_equal(o.socket, "/a");
}

TEST(what_makes_no_sense_to_attach_and_scale_is_refused_with_a_sentence)
{
    static const char *const lines[][5] = {
        { "attach", "--ranks", "0" },
        { "attach", "--axes", "ranks" },
        { "attach", "--check" },
        { "attach", "stray" },
        { "attach", "--iters", "100001" },
        { "scale", "--ranks", "2" },
        { "scale", "--axes", "" },
        { "scale", "--axes", "ranks," },
        { "scale", "--axes", "rank" },
        { "scale", "--axes", "memory" },
        { "scale", "--max-n", "0" },
        { "scale", "--step-factor", "1" },
        { "scale", "--iters" },
    };

    for (size_t i = 0; i < ARRAY_SIZE(lines); i++) {
        struct probe_options o;
        struct error e;

        assert_true(parse_probe(&o, &e, lines[i]) < 0);
        assert_true(e.text[0] != '\0');
    }
}

static void expect_steps(const struct probe_options *o, enum axis_id id, const uint64_t *expected)
{
    uint64_t n = 0;

    do {
        n = probe_next_n(o, axis_get(id), n);
        assert_int_equal(n, *expected);
    } while (*expected++);
}

TEST(steps_lead_from_the_first_to_the_last)
{
    struct probe_options o;
    struct error e;

    assert_int_equal(PARSE_PROBE(&o, &e, "scale"), OPTIONS_RUN);
    expect_steps(&o, AXIS_RANKS, (uint64_t[]){ 2, 8, 32, 64, 0 });
    expect_steps(&o, AXIS_SESSIONS, (uint64_t[]){ 1, 4, 16, 64, 256, 1000, 0 });
    assert_int_equal(PARSE_PROBE(&o, &e, "scale", "--max-n=9", "--step-factor=2"), OPTIONS_RUN);
    expect_steps(&o, AXIS_RANKS, (uint64_t[]){ 2, 4, 8, 9, 0 });
    expect_steps(&o, AXIS_MEMORY_SESSIONS, (uint64_t[]){ 16, 0 });
    assert_int_equal(PARSE_PROBE(&o, &e, "scale", "--max-n=65536", "--step-factor=60000"),
                     OPTIONS_RUN);
    expect_steps(&o, AXIS_RANKS, (uint64_t[]){ 2, RANKS_MAX, 0 });
    expect_steps(&o, AXIS_CHUNKS, (uint64_t[]){ 1, 60000, 65536, 0 });
}

/* ---------------------------------------------------------------- sizes and shapes */

TEST(sizes_and_factors_are_those_of_nccl_tests)
{
    static const struct {
        const char *name;
        uint64_t n, bytes; /* of 1000 bytes, f32, 3 ranks */
        double factor;
    } rows[] = {
        { "all_reduce", 250, 1000, 4.0 / 3 },
        { "all_gather", 83, 996, 2.0 / 3 },
        { "reduce_scatter", 83, 996, 2.0 / 3 },
        { "broadcast", 250, 1000, 1 },
        { "reduce", 250, 1000, 1 },
        { "gather", 83, 996, 2.0 / 3 },
        { "scatter", 83, 996, 2.0 / 3 },
        { "all_to_all", 83, 996, 2.0 / 3 },
        { "all_to_all_v", 83, 996, 2.0 / 3 },
        { "sendrecv", 250, 1000, 1 },
        { "barrier", 0, 0, 1 },
    };

    assert_int_equal(ARRAY_SIZE(rows), ARRAY_SIZE(workload_names));
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const struct workload *w = workload_by_name(rows[i].name);

        assert_non_null(w);
        assert_int_equal(workload_count(w, 1000, 4, 3), rows[i].n);
        assert_int_equal(workload_bytes(w, rows[i].n, 4, 3), rows[i].bytes);
        assert_true(fabs(w->factor(3) - rows[i].factor) < 1e-12);
    }
}

/* Every element that lands somewhere was put in somewhere, and segments fill the output. */
TEST(segments_fill_every_output_from_what_was_put_in)
{
    static const uint64_t counts[] = { 0, 1, 2, 7, 4093 };

    for (size_t i = 0; i < ARRAY_SIZE(workload_names); i++)
        for (uint32_t nranks = 1; nranks <= 9; nranks++)
            for (size_t c = 0; c < ARRAY_SIZE(counts); c++)
                for (uint32_t rank = 0; rank < nranks; rank++) {
                    const struct workload *w = workload_by_name(workload_names[i]);
                    uint64_t n = workload_has_data(w) ? counts[c] : 0, filled = 0;

                    if (!workload_has_out(w, rank))
                        continue;
                    for (uint32_t s = 0; s < workload_nsegments(w, nranks); s++) {
                        struct segment segment = w->expect(n, nranks, rank, s);
                        uint64_t put_in = workload_in_count(w, n, nranks, segment.source);

                        assert_true(segment.source < nranks);
                        assert_true(segment.first + segment.count <= put_in);
                        filled += segment.count;
                    }
                    assert_int_equal(filled, workload_out_count(w, n, nranks, rank));
                }
}

TEST(uneven_rows_add_up_and_are_uneven)
{
    for (uint32_t nranks = 1; nranks <= 17; nranks++) {
        uint64_t n = 1000, least = UINT64_MAX, most = 0;

        for (uint32_t a = 0; a < nranks; a++) {
            uint64_t sent = 0, received = 0;

            for (uint32_t b = 0; b < nranks; b++) {
                uint64_t rows = workload_pair_rows(n, nranks, a, b);

                sent += rows;
                received += workload_pair_rows(n, nranks, b, a);
                least = MIN(least, rows);
                most = MAX(most, rows);
            }
            assert_int_equal(sent, n * nranks);
            assert_int_equal(received, n * nranks);
        }
        if (nranks > 1) {
            assert_int_equal(least, 0);
            assert_true(most >= 2 * n);
        }
    }
}

TEST(only_roots_have_what_only_roots_need)
{
    assert_false(workload_has_in(workload_by_name("scatter"), 1));
    assert_true(workload_has_in(workload_by_name("scatter"), 0));
    assert_false(workload_has_out(workload_by_name("reduce"), 1));
    assert_true(workload_has_out(workload_by_name("all_reduce"), 1));
    assert_false(workload_has_in(workload_by_name("barrier"), 0));
}

/* ---------------------------------------------------------------- numbers */

TEST(known_codes_are_encoded)
{
    static const struct {
        enum dtype_id dtype;
        double value;
        uint64_t code;
    } rows[] = {
        { DTYPE_F32, 1, 0x3f800000 },
        { DTYPE_F32, -0.0, 0x80000000 },
        { DTYPE_F64, -1.5, 0xbff8000000000000 },
        { DTYPE_F64, 4.9406564584124654e-324, 1 },
        { DTYPE_F16, 65504, 0x7bff },
        { DTYPE_F16, 65519.99, 0x7bff },
        { DTYPE_F16, 65520, 0x7c00 },
        { DTYPE_F16, 0x1p-24, 1 },
        { DTYPE_F16, 0x1p-25, 0 },
        { DTYPE_F16, 0x1.8p-24, 2 },
        { DTYPE_F16, 2049, 0x6800 },
        { DTYPE_F16, 2051, 0x6802 },
        { DTYPE_BF16, 1, 0x3f80 },
        { DTYPE_BF16, 257, 0x4380 },
        { DTYPE_F8E4M3, 448, 0x7e },
        { DTYPE_F8E4M3, 464, 0x7e },
        { DTYPE_F8E4M3, 464.1, 0x7f },
        { DTYPE_F8E4M3, -1e9, 0xff },
        { DTYPE_F8E4M3, 0x1p-9, 1 },
        { DTYPE_F8E4M3, 0x1p-10, 0 },
        { DTYPE_F8E5M2, 57344, 0x7b },
        { DTYPE_F8E5M2, 61440, 0x7c },
        { DTYPE_F8E5M2, 1e9, 0x7c },
        { DTYPE_F8E5M2, 0x1p-16, 1 },
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        assert_int_equal(number_encode(number_format_get(rows[i].dtype), rows[i].value),
                         rows[i].code);
}

TEST(encoding_a_float_gives_the_compilers_bits)
{
    const struct number_format *f32 = number_format_get(DTYPE_F32);

    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t bits = (uint64_t)i * UINT64_C(0x9e3779b97f4a7c15);
        uint32_t narrow;
        double value;
        float rounded;

        memcpy(&value, &bits, sizeof(value));
        if (isnan(value))
            continue;
        value = ldexp(value, -(int)(i % 900)); /* many of them near and below the least float */
        rounded = (float)value;
        memcpy(&narrow, &rounded, sizeof(narrow));
        assert_int_equal(number_encode(f32, value), narrow);
    }
}

TEST(nans_are_told_from_numbers)
{
    const struct number_format *e4m3 = number_format_get(DTYPE_F8E4M3);
    const struct number_format *e5m2 = number_format_get(DTYPE_F8E5M2);

    assert_true(number_is_nan(e4m3, 0x7f) && number_is_nan(e4m3, 0xff));
    assert_false(number_is_nan(e4m3, 0x7e));
    assert_true(number_is_nan(e5m2, 0x7d) && number_is_nan(e5m2, 0xff));
    assert_false(number_is_nan(e5m2, 0x7c));
    assert_true(number_is_nan(e4m3, number_encode(e4m3, NAN)));
    assert_true(number_is_nan(e5m2, number_encode(e5m2, NAN)));
    assert_null(number_format_get(DTYPE_I32));
    assert_null(number_format_get(DTYPE_PACKED_U8));
}

/* ---------------------------------------------------------------- references */

static struct pattern_table a, b, c, expected;

#define TABLE(t, type) ((const type *)(const void *)(t).bytes)

/* Three ranks' inputs and their reduction. */
static void make_three(enum dtype_id dtype, enum operator_id op)
{
    const struct pattern p = { dtype, op, 3, 5 };

    pattern_input(&p, 0, PATTERN_PERIOD, &a);
    pattern_input(&p, 1, PATTERN_PERIOD, &b);
    pattern_input(&p, 2, PATTERN_PERIOD, &c);
    pattern_reduced(&p, PATTERN_PERIOD, &expected);
}

#define CHECK_THREE(dtype, op, type, formula)                                                      \
    do {                                                                                           \
        make_three(dtype, op);                                                                     \
        for (uint32_t i = 0; i < PATTERN_PERIOD; i++) {                                            \
            type x = TABLE(a, type)[i], y = TABLE(b, type)[i], z = TABLE(c, type)[i];              \
            type want = (type)(formula);                                                           \
            assert_memory_equal(&want, &TABLE(expected, type)[i], sizeof(want));                   \
        }                                                                                          \
    } while (0)

TEST(integers_reduce_as_c_does)
{
    CHECK_THREE(DTYPE_I8, OPERATOR_SUM, uint8_t, x + y + z);
    CHECK_THREE(DTYPE_U8, OPERATOR_PRODUCT, uint8_t, x * y * z);
    CHECK_THREE(DTYPE_I16, OPERATOR_MIN, int16_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_I16, OPERATOR_MAX, int16_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_U16, OPERATOR_MIN, uint16_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_U16, OPERATOR_MAX, uint16_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_I32, OPERATOR_PRODUCT, uint32_t, x * y * z);
    CHECK_THREE(DTYPE_U32, OPERATOR_AND, uint32_t, x & y & z);
    CHECK_THREE(DTYPE_I64, OPERATOR_OR, int64_t, x | y | z);
    CHECK_THREE(DTYPE_U64, OPERATOR_XOR, uint64_t, x ^ y ^ z);
    CHECK_THREE(DTYPE_U64, OPERATOR_MIN, uint64_t, MIN(MIN(x, y), z));
    CHECK_THREE(DTYPE_I64, OPERATOR_MAX, int64_t, MAX(MAX(x, y), z));
    CHECK_THREE(DTYPE_I64, OPERATOR_SUM, uint64_t, x + y + z);
}

TEST(floats_reduce_as_c_does)
{
    CHECK_THREE(DTYPE_F32, OPERATOR_SUM, float, x + y + z);
    CHECK_THREE(DTYPE_F32, OPERATOR_SUM, float, x + (y + z));
    CHECK_THREE(DTYPE_F32, OPERATOR_MEAN, float, (x + y + z) / 3);
    CHECK_THREE(DTYPE_F32, OPERATOR_PRODUCT, float, x *y *z);
    CHECK_THREE(DTYPE_F64, OPERATOR_SUM, double, x + (y + z));
    CHECK_THREE(DTYPE_F64, OPERATOR_MEAN, double, (x + y + z) / 3);
}

/* Each small type has few enough codes to invert the encoding by trying. */
static double decode(enum dtype_id dtype, const struct pattern_table *t, uint32_t i)
{
    static double values[65536];
    static enum dtype_id of;
    const struct number_format *f = number_format_get(dtype);
    uint64_t bits = 0;

    if (of != dtype)
        for (int exponent = -30; exponent <= 20; exponent++)
            for (int m = 0; m < 4096; m++) {
                double value = ldexp(m, exponent);

                values[number_encode(f, value)] = value;
                values[number_encode(f, -value)] = -value;
            }
    of = dtype;
    memcpy(&bits, t->bytes + (size_t)i * t->width, t->width);
    return values[bits];
}

TEST(small_floats_round_once_and_keep_their_zeros_apart)
{
    static const enum dtype_id types[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F8E4M3, DTYPE_F8E5M2 };
    unsigned int nzeros = 0;

    for (size_t k = 0; k < ARRAY_SIZE(types); k++) {
        make_three(types[k], OPERATOR_MAX);
        for (uint32_t i = 0; i < PATTERN_PERIOD; i++) {
            double x = decode(types[k], &a, i), y = decode(types[k], &b, i),
                   z = decode(types[k], &c, i), want = fmax(fmax(x, y), z);

            if (want == 0) {
                bool positive =
                    (x == 0 && !signbit(x)) || (y == 0 && !signbit(y)) || (z == 0 && !signbit(z));

                assert_int_equal(signbit(decode(types[k], &expected, i)) == 0, positive);
                nzeros++;
            }
            assert_true(want == decode(types[k], &expected, i));
        }
    }
    assert_true(nzeros > 10);
}

TEST(inputs_differ_by_rank_round_and_index)
{
    struct pattern p = { DTYPE_C128, OPERATOR_NONE, 2, 0 };

    pattern_input(&p, 0, PATTERN_PERIOD, &a);
    pattern_input(&p, 1, PATTERN_PERIOD, &b);
    p.round = 1;
    pattern_input(&p, 0, PATTERN_PERIOD, &c);
    assert_int_equal(pattern_count_wrong(&a, b.bytes, 0, PATTERN_PERIOD), PATTERN_PERIOD);
    assert_int_equal(pattern_count_wrong(&a, c.bytes, 0, PATTERN_PERIOD), PATTERN_PERIOD);
    assert_int_equal(pattern_count_wrong(&a, a.bytes + 16, 0, PATTERN_PERIOD - 1),
                     PATTERN_PERIOD - 1);
}

TEST(one_wrong_element_counts_as_one_wherever_it_is)
{
    static uint8_t data[3 * PATTERN_PERIOD * 2];
    const struct pattern p = { DTYPE_F16, OPERATOR_NONE, 2, 3 };
    const uint64_t total = ARRAY_SIZE(data) / 2;

    pattern_input(&p, 1, total, &a);
    pattern_fill(&a, data, total);
    assert_int_equal(pattern_count_wrong(&a, data, 0, total), 0);
    for (uint64_t first = 0; first < total; first += 613) {
        assert_int_equal(pattern_count_wrong(&a, data + 2 * first, first, total - first), 0);
        data[2 * first + 1] ^= 1;
        assert_int_equal(pattern_count_wrong(&a, data, 0, total), 1);
        assert_int_equal(pattern_count_wrong(&a, data, 0, first), 0);
        data[2 * first + 1] ^= 1;
    }
    assert_int_equal(pattern_count_wrong(&a, data, 1, total - 1), total - 1);
}

TEST(any_nan_will_do_for_a_reduction_but_not_for_a_move)
{
    const struct pattern moved = { DTYPE_F8E4M3, OPERATOR_NONE, 2, 0 };
    const struct pattern reduced = { DTYPE_F8E4M3, OPERATOR_SUM, 2, 0 };
    const uint8_t other_nan = 0xff;

    pattern_input(&moved, 0, 1, &a);
    a.bytes[0] = 0x7f;
    assert_int_equal(pattern_count_wrong(&a, &other_nan, 0, 1), 1);
    pattern_reduced(&reduced, 1, &a);
    a.bytes[0] = 0x7f;
    assert_int_equal(pattern_count_wrong(&a, &other_nan, 0, 1), 0);
}

/* ---------------------------------------------------------------- statistics */

TEST(the_median_and_p99_are_of_sorted_times)
{
    uint64_t times[200] = { 9 };

    assert_int_equal(report_median(times, 1), 9);
    assert_int_equal(report_p99(times, 1), 9);
    for (uint64_t i = 0; i < 200; i++)
        times[i] = (i * 37 + 11) % 200; /* 0..199, shuffled */
    assert_int_equal(report_median(times, 200), 99);
    assert_int_equal(report_p99(times, 200), 197);
    assert_int_equal(report_median(times, 5), 2);
}

TEST(a_measurement_takes_the_slowest_rank_of_each_call)
{
    static const uint64_t times[3][3] = { { 1000, 9000, 1000 },
                                          { 4000, 1000, 1000 },
                                          { 1000, 1000, 6000 } };
    _cleanup_(board_freep) struct board *board = board_new(3, 3);
    struct measurement m;
    struct options o;
    struct error e;

    assert_non_null(board);
    assert_int_equal(PARSE(&o, &e, "all_reduce", "--ranks", "3", "--check"), OPTIONS_RUN);
    board->n = 1500;
    board->niters = 3;
    board->ranks[1].nwrong = 2;
    board->ranks[2].nwrong = 3;
    for (uint32_t rank = 0; rank < 3; rank++)
        memcpy(board_times(board, rank), times[rank], sizeof(times[rank]));

    report_measure(&o, board, &m);
    assert_int_equal(m.bytes, 6000);
    assert_int_equal(m.nwrong, 5);
    assert_true(m.time_us == 6 && m.p99_us == 9);
    assert_true(fabs(m.algbw_gbs - 1) < 1e-12);
    assert_true(fabs(m.busbw_gbs - 4.0 / 3) < 1e-12);
}

TEST(a_json_row_has_exactly_the_promised_keys)
{
    const struct measurement m = { 12, 3, 1.5, 2.5, 0.008, 0.008, 0 };
    char *text = NULL;
    size_t len;
    struct options o;
    struct error e;
    FILE *f;

    assert_int_equal(PARSE(&o, &e, "broadcast", "--json", "--check", "--ranks", "2"), OPTIONS_RUN);
    f = open_memstream(&text, &len);
    assert_int_equal(report_header(f, &o, "given"), 0);
    assert_int_equal(report_row(f, &o, &m), 0);
    fclose(f);
    assert_string_equal(text, "{\"collective\":\"broadcast\",\"ranks\":2,\"bytes\":12,\"count\":3,"
                              "\"dtype\":\"f32\",\"op\":null,\"time_us\":1.5,\"p99_us\":2.5,"
                              "\"algbw_gbs\":0.008,"
                              "\"busbw_gbs\":0.008,\"wrong\":0}\n");
    free(text);
}

/* ---------------------------------------------------------------- growth */

static void add_row(struct scale_table *t, uint64_t n, double value)
{
    assert_int_equal(scale_table_add(t, &(struct scale_row){ n, value, value / 2 }), 0);
}

/* Rows of n, and value = factor * n^p. */
static double fitted_exponent(double factor, double p)
{
    struct scale_table t;
    FILE *f = fopen("/dev/null", "w");
    double fitted;

    assert_int_equal(scale_table_begin(&t, f, axis_get(AXIS_RANKS), false), 0);
    for (uint64_t n = 2; n <= 64; n *= 2)
        add_row(&t, n, factor * pow((double)n, p));
    fitted = scale_table_exponent(&t);
    fclose(f);
    return fitted;
}

TEST(the_exponent_is_that_of_growth)
{
    assert_true(fabs(fitted_exponent(7, 0)) < 1e-9);
    assert_true(fabs(fitted_exponent(0.5, 1) - 1) < 1e-9);
    assert_true(fabs(fitted_exponent(3, 2) - 2) < 1e-9);
}

TEST(rows_of_growth_say_ratio_and_exponent_where_there_are_any)
{
    struct scale_table t;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    assert_int_equal(scale_table_begin(&t, f, axis_get(AXIS_CHUNKS), true), 0);
    add_row(&t, 1, 3);
    add_row(&t, 4, 12);
    assert_int_equal(scale_table_end(&t), 0);
    assert_int_equal(scale_table_begin(&t, f, axis_get(AXIS_MEMORY_SESSIONS), true), 0);
    add_row(&t, 16, 0);
    add_row(&t, 64, 4096);
    assert_true(isnan(scale_table_exponent(&t)));
    fclose(f);
    assert_string_equal(
        text, "{\"measure\":\"scale\",\"axis\":\"chunks\",\"n\":1,\"time_us\":3.0,\"ratio\":1.0,"
              "\"exponent\":null}\n"
              "{\"measure\":\"scale\",\"axis\":\"chunks\",\"n\":4,\"time_us\":12.0,\"ratio\":4.0,"
              "\"exponent\":1.0}\n"
              "{\"measure\":\"scale\",\"axis\":\"memory_sessions\",\"n\":16,\"rss_bytes\":0,"
              "\"pss_bytes\":0,\"ratio\":null,\"exponent\":null}\n"
              "{\"measure\":\"scale\",\"axis\":\"memory_sessions\",\"n\":64,\"rss_bytes\":4096,"
              "\"pss_bytes\":2048,\"ratio\":null,\"exponent\":null}\n");
    free(text);
}

/* ---------------------------------------------------------------- whole commands */

/* Runs one in a process of its own, with at most `files` descriptors; `ret` has what it printed. */
static int run_command(int (*run)(int, char **), rlim_t files, char *ret, size_t len_bytes,
                       const char *const *args)
{
    int out = memfd_create("out", MFD_CLOEXEC);
    const struct rlimit limit = { files, files };
    char *argv[16];
    int argc = copy_args(argv, args);
    ssize_t n;
    int status;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
        if (files)
            setrlimit(RLIMIT_NOFILE, &limit);
        _exit(run(argc, argv));
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    n = pread(out, ret, len_bytes - 1, 0);
    assert_true(n >= 0);
    ret[n] = '\0';
    close(out);
    return WEXITSTATUS(status);
}

#define RUN(run, files, ret, ...)                                                                  \
    run_command(run, files, ret, sizeof(ret), (const char *const[]){ __VA_ARGS__, NULL })

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;

    for (; (text = strstr(text, word)); text++)
        n++;
    return n;
}

TEST(attach_tells_of_every_part)
{
    static const char *const parts[] = { "connect", "id",         "join",
                                         "attach",  "first_call", "next_call" };
    static char text[8192];

    assert_int_equal(RUN(attach_run, 0, text, "attach", "--ranks=3", "--iters=2", "--json"),
                     BENCH_GOOD);
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        char word[64];

        snprintf(word, sizeof(word), "\"part\":\"%s\",\"ranks\":3,\"iters\":2,", parts[i]);
        assert_int_equal(count(text, word), 1);
    }
    assert_int_equal(count(text, "\n"), ARRAY_SIZE(parts));
    assert_int_equal(RUN(attach_run, 0, text, "attach", "--ranks=1", "--iters=1"), BENCH_GOOD);
    assert_int_equal(count(text, "\n  "), ARRAY_SIZE(parts));
    assert_int_equal(RUN(attach_run, 0, text, "attach", "--socket", "/nowhere"), BENCH_BAD);
    assert_int_equal(RUN(attach_run, 0, text, "attach", "--max-n", "3"), BENCH_USAGE);
}

TEST(scale_goes_along_every_axis)
{
    static char text[8192];

    assert_int_equal(RUN(scale_run, 0, text, "scale", "--max-n=3", "--iters=4", "--json"),
                     BENCH_GOOD);
    for (uint32_t id = 0; id < AXES; id++) {
        const struct axis *axis = axis_get((enum axis_id)id);
        char word[64];

        snprintf(word, sizeof(word), "\"axis\":\"%s\",", axis->name);
        assert_int_equal(count(text, word), axis->memory ? 1 : 2);
    }
    assert_int_equal(count(text, "\n"), 2 * 4 + 3);
}

TEST(scale_skips_what_limits_refuse_and_says_so)
{
    static char text[8192];

    assert_int_equal(RUN(scale_run, 200, text, "scale", "--axes=sessions,chunks", "--iters=4",
                         "--max-n=400", "--step-factor=400"),
                     BENCH_GOOD);
    assert_non_null(strstr(text, "400 sessions need more files than the hard limit of 200"));
    assert_non_null(strstr(text, "the rest of sessions is skipped"));
    assert_non_null(strstr(text, "# chunks\n"));
}

/* The daemon in the build tree, or $RUCCLD, with an option more: a script for a private daemon. */
static void write_daemon(char path[32], const char *option)
{
    const char *given = getenv("RUCCLD");
    char self[4096] = "";
    FILE *f;

    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    *strrchr(self, '/') = '\0';
    strcpy(path, "/tmp/ruccl-test-XXXXXX");
    f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\nexec '%s%s' \"$@\" --set %s\n", given ? given : self,
            given ? "" : "/../../daemon/ruccld", option);
    fchmod(fileno(f), 0700);
    fclose(f);
}

TEST(scale_skips_what_quotas_refuse_and_says_so)
{
    static char text[8192];
    char *given = getenv("RUCCLD") ? strdup(getenv("RUCCLD")) : NULL;
    char path[32];

    write_daemon(path, "max_sessions=9");
    setenv("RUCCLD", path, true);
    assert_int_equal(RUN(scale_run, 0, text, "scale", "--axes=sessions,memory_sessions",
                         "--iters=4", "--max-n=16"),
                     BENCH_GOOD);
    assert_int_equal(count(text, "max_sessions"), 2);
    assert_non_null(strstr(text, "the rest of sessions is skipped"));
    assert_non_null(strstr(text, "the rest of memory_sessions is skipped"));
    unsetenv("RUCCLD");
    if (given)
        setenv("RUCCLD", given, true);
    free(given);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attach_and_scale_have_options_of_their_own),
        cmocka_unit_test(what_makes_no_sense_to_attach_and_scale_is_refused_with_a_sentence),
        cmocka_unit_test(steps_lead_from_the_first_to_the_last),
        cmocka_unit_test(the_exponent_is_that_of_growth),
        cmocka_unit_test(rows_of_growth_say_ratio_and_exponent_where_there_are_any),
        cmocka_unit_test(attach_tells_of_every_part),
        cmocka_unit_test(scale_goes_along_every_axis),
        cmocka_unit_test(scale_skips_what_limits_refuse_and_says_so),
        cmocka_unit_test(scale_skips_what_quotas_refuse_and_says_so),
        cmocka_unit_test(sizes_take_binary_suffixes),
        cmocka_unit_test(a_command_line_is_read_whole),
        cmocka_unit_test(every_collective_runs_without_options),
        cmocka_unit_test(what_makes_no_sense_is_refused_with_a_sentence),
        cmocka_unit_test(sizes_grow_from_zero_and_end_at_the_last),
        cmocka_unit_test(a_size_below_one_element_is_raised_to_one),
        cmocka_unit_test(warm_up_shrinks_for_large_sizes_unless_told),
        cmocka_unit_test(sizes_and_factors_are_those_of_nccl_tests),
        cmocka_unit_test(segments_fill_every_output_from_what_was_put_in),
        cmocka_unit_test(uneven_rows_add_up_and_are_uneven),
        cmocka_unit_test(only_roots_have_what_only_roots_need),
        cmocka_unit_test(known_codes_are_encoded),
        cmocka_unit_test(encoding_a_float_gives_the_compilers_bits),
        cmocka_unit_test(nans_are_told_from_numbers),
        cmocka_unit_test(integers_reduce_as_c_does),
        cmocka_unit_test(floats_reduce_as_c_does),
        cmocka_unit_test(small_floats_round_once_and_keep_their_zeros_apart),
        cmocka_unit_test(inputs_differ_by_rank_round_and_index),
        cmocka_unit_test(one_wrong_element_counts_as_one_wherever_it_is),
        cmocka_unit_test(any_nan_will_do_for_a_reduction_but_not_for_a_move),
        cmocka_unit_test(the_median_and_p99_are_of_sorted_times),
        cmocka_unit_test(a_measurement_takes_the_slowest_rank_of_each_call),
        cmocka_unit_test(a_json_row_has_exactly_the_promised_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
