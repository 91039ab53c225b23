/* ruccl-perf: its command line, the sizes it goes through, and what it makes of times. */
#include "tests/unit/unit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/perf/board.h"
#include "client/perf/options.h"
#include "client/perf/report.h"
#include "client/perf/workload.h"
#include "tests/unit/arguments.h"

static const char *const workload_names[] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",  "gather",
    "scatter",    "all_to_all", "all_to_all_v",   "sendrecv",  "barrier",
};

/* ---------------------------------------------------------------- command line */

static int parse(struct options *o, struct error *e, const char *const *args)
{
    char *argv[ARGUMENTS_MAX];
    int argc = copy_arguments(argv, args);

    *e = (struct error){ 0 };
    return options_parse(argc, argv, o, e);
}

#define PARSE(o, e, ...) parse(o, e, (const char *const[]){ __VA_ARGS__, NULL })

/* --budget, as the one size that nothing else bounds. */
static uint64_t size_of(const char *text)
{
    struct options o;
    struct error e;

    return PARSE(&o, &e, "all_reduce", "--budget", text) == OPTIONS_RUN ? o.budget : 7;
}

TEST(sizes_take_the_units_of_the_daemon)
{
    assert_int_equal(size_of("0"), 0);
    assert_int_equal(size_of("17"), 17);
    assert_int_equal(size_of("64K"), 65536);
    assert_int_equal(size_of("3MiB"), 3145728);
    assert_int_equal(size_of("2G"), UINT64_C(2147483648));
    assert_int_equal(size_of("1T"), UINT64_C(1) << 40);
    assert_int_equal(size_of(""), 7);
    assert_int_equal(size_of("K"), 7);
    assert_int_equal(size_of("-1"), 7);
    assert_int_equal(size_of(" 1"), 7);
    assert_int_equal(size_of("1KB"), 7);
    assert_int_equal(size_of("99999999999999999999"), 7);
    assert_int_equal(size_of("18446744073709551615K"), 7);
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
    assert_int_equal(PARSE(&o, &e, "all_reduce", "--min-bytes", "1"), OPTIONS_RUN);
    assert_int_equal(o.min_bytes, 4);
}

TEST(no_size_of_at_least_one_element_is_refused_unless_zero_is_asked_for)
{
    struct options o;
    struct error e;

    assert_true(PARSE(&o, &e, "all_gather", "--ranks", "3", "--max-bytes", "8") < 0);
    assert_string_equal(e.text,
                        "--max-bytes 8 is less than the least size of all_gather, 12 bytes: "
                        "one f32 a block");
    assert_true(PARSE(&o, &e, "all_reduce", "--min-bytes", "1", "--max-bytes", "1") < 0);
    assert_int_equal(PARSE(&o, &e, "all_reduce", "--max-bytes", "0"), OPTIONS_RUN);
    assert_int_equal(PARSE(&o, &e, "all_reduce", "--min-bytes=0", "--max-bytes=1"), OPTIONS_RUN);
    assert_int_equal(PARSE(&o, &e, "barrier", "--max-bytes", "1"), OPTIONS_RUN);
}

TEST(a_wrong_name_is_told_which_there_are)
{
    struct options o;
    struct error e;

    assert_true(PARSE(&o, &e, "all_reduce", "--op", "avg") < 0);
    assert_string_equal(e.text, "--op: there is no operator 'avg', only sum, product, min, max, "
                                "mean, and, or, xor");
    assert_true(PARSE(&o, &e, "all_reduce", "--dtype", "f99") < 0);
    assert_non_null(strstr(e.text, "'f99', only f32, f64, f16, bf16,"));
    assert_non_null(strstr(e.text, ", packed_u32"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_take_the_units_of_the_daemon),
        cmocka_unit_test(a_command_line_is_read_whole),
        cmocka_unit_test(every_collective_runs_without_options),
        cmocka_unit_test(what_makes_no_sense_is_refused_with_a_sentence),
        cmocka_unit_test(sizes_grow_from_zero_and_end_at_the_last),
        cmocka_unit_test(a_size_below_one_element_is_raised_to_one),
        cmocka_unit_test(no_size_of_at_least_one_element_is_refused_unless_zero_is_asked_for),
        cmocka_unit_test(a_wrong_name_is_told_which_there_are),
        cmocka_unit_test(warm_up_shrinks_for_large_sizes_unless_told),
        cmocka_unit_test(sizes_and_factors_are_those_of_nccl_tests),
        cmocka_unit_test(segments_fill_every_output_from_what_was_put_in),
        cmocka_unit_test(uneven_rows_add_up_and_are_uneven),
        cmocka_unit_test(only_roots_have_what_only_roots_need),
        cmocka_unit_test(the_median_and_p99_are_of_sorted_times),
        cmocka_unit_test(a_measurement_takes_the_slowest_rank_of_each_call),
        cmocka_unit_test(a_json_row_has_exactly_the_promised_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
