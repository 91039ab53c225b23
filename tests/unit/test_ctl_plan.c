/* rucclctl plan: its arguments, its prices and its steps. */
#include "tests/unit/unit.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/plan.h"

struct ran {
    int status;
    char *out, *err;
};

/* Words in one line, as a shell would take them apart. */
static struct ran run(const char *line)
{
    char *words = strdup(line), *rest = words, *argv[32] = { (char *)"rucclctl" };
    struct ran ran = { 0 };
    size_t len;
    int argc = 1;
    FILE *out = open_memstream(&ran.out, &len), *err = open_memstream(&ran.err, &len);

    while ((argv[argc] = strsep(&rest, " ")))
        argc++;
    ran.status = ctl_run(argc, argv, out, err);
    fclose(out);
    fclose(err);
    free(words);
    return ran;
}

static void ran_fini(struct ran *ran)
{
    free(ran->out);
    free(ran->err);
}

static void assert_refused(const char *line, int status, const char *complaint)
{
    _cleanup_(ran_fini) struct ran ran = run(line);

    assert_int_equal(ran.status, status);
    assert_string_equal(ran.out, "");
    if (!strstr(ran.err, complaint))
        fail_msg("'%s' does not say '%s'", ran.err, complaint);
}

TEST(arguments_that_mean_nothing_are_named)
{
    assert_refused("plan", CTL_USAGE, "plan: --collective is missing; see rucclctl --help");
    assert_refused("plan --collective all", CTL_USAGE, "\"all\" is no value of --collective");
    assert_refused("plan --collective barrier", CTL_USAGE, "barrier has no algorithm to choose");
    assert_refused("plan --collective send", CTL_USAGE, "send has no algorithm to choose");
    assert_refused("plan --collective", CTL_USAGE, "a value is missing behind --collective");
    assert_refused("plan --colour red", CTL_USAGE, "unknown argument --colour");
    assert_refused("plan --collective reduce more", CTL_USAGE, "unknown argument more");
    assert_refused("plan --collective reduce --nodes 0", CTL_USAGE, "\"0\" is no value of --nodes");
    assert_refused("plan --collective reduce --nodes 4096 --ranks-per-node 2", CTL_USAGE,
                   "4096 nodes of 2 ranks are more than 4096");
    assert_refused("plan --collective reduce --node 2", CTL_USAGE, "node 2 is not below 2");
    assert_refused("plan --collective reduce --bytes -1", CTL_USAGE,
                   "\"-1\" is no value of --bytes");
    assert_refused("plan --collective reduce --bytes 18446744073709551616", CTL_USAGE, "no value");
    assert_refused("plan --collective reduce --latency-us 0", CTL_USAGE,
                   "no value of --latency-us");
    assert_refused("plan --collective reduce --bandwidth-gbs inf", CTL_USAGE, "no value");
    assert_refused("plan --collective reduce --algorithm rign", CTL_USAGE, "no value");
}

TEST(a_wrong_value_is_told_which_there_are)
{
    assert_refused("plan --collective all", CTL_USAGE,
                   "\"all\" is no value of --collective, which takes all_reduce, all_gather, "
                   "reduce_scatter, broadcast, all_to_all_v, reduce, gather, scatter, all_to_all; "
                   "see");
    assert_refused("plan --collective reduce --dtype f99", CTL_USAGE, "takes f32, f64, f16, bf16,");
    assert_refused("plan --collective reduce --dtype f99", CTL_USAGE, "packed_u32; see");
    assert_refused("plan --collective reduce --op avg", CTL_USAGE,
                   "takes sum, product, min, max, mean, and, or, xor; see");
    assert_refused("plan --collective reduce --algorithm rign", CTL_USAGE,
                   "takes hierarchical, direct, pairwise, halving-doubling, tree, ring; see");
    assert_refused("plan --collective reduce --algorithm auto", CTL_USAGE, "takes hierarchical,");
    assert_refused("plan --collective reduce --nodes 0", CTL_USAGE, "takes whole numbers from 1");
    assert_refused("plan --collective reduce --bytes 1KB", CTL_USAGE,
                   "takes bytes, alone or with K");
    assert_refused("plan --collective reduce --memory-gbs x", CTL_USAGE, "takes numbers above 0");
}

TEST(less_than_one_element_is_no_operation)
{
    assert_refused("plan --collective all_reduce --bytes 3", CTL_USAGE,
                   "--bytes 3 is less than one element of f32, 4 bytes");
    assert_refused("plan --collective all_reduce --bytes 15 --dtype c128", CTL_USAGE, "16 bytes");
}

TEST(bytes_come_with_their_units)
{
    _cleanup_(ran_fini) struct ran units =
        run("plan --collective all_reduce --bytes 64M --budget 64KiB");
    _cleanup_(ran_fini) struct ran digits =
        run("plan --collective all_reduce --bytes 67108864 --budget 65536");

    assert_int_equal(units.status, 0);
    assert_string_equal(units.out, digits.out);
    assert_non_null(strstr(units.out, "all_reduce sum of 64 MiB f32"));
}

TEST(operations_that_cannot_be_are_told_why)
{
    assert_refused("plan --collective reduce --dtype c64", CTL_FAILED, "moved, never reduced");
    assert_refused("plan --collective reduce --dtype i32 --op mean", CTL_FAILED, "not defined");
    assert_refused("plan --collective all_reduce --budget 7", CTL_FAILED, "the least that works");
    assert_refused("plan --collective all_reduce --algorithm ring", CTL_FAILED,
                   "\"ring\" does not fit this operation on 2 nodes; use auto, direct");
    assert_refused("plan --collective all_reduce --nodes 3 --algorithm halving-doubling",
                   CTL_FAILED, "\"halving-doubling\" does not fit this operation on 3 nodes");
    assert_refused("plan --collective all_gather --bytes 9223372036854775807", CTL_FAILED,
                   "63 bits");
}

static const char expected_text[] =
    "all_reduce sum of 16 B f32, 2 nodes of 2 ranks\n"
    "a message's latency 2 us, its posting 1 us; a node's link 10 GB/s, its memory 10 GB/s\n"
    "no less than 3.0 us for latency, 0.0 us for bandwidth\n"
    "\n"
    "ALGORITHM         PIECE  PIECES  DEPTH  MESSAGES  SENT  TOUCHED  PEAK          TIME\n"
    "hierarchical                                                           does not fit\n"
    "direct             16 B       1      8         1  16 B    112 B  32 B        8.0 us\n"
    "pairwise           16 B       1      8         1  16 B    112 B  32 B        8.0 us\n"
    "halving-doubling   16 B       1      8         2  16 B     88 B  40 B       11.0 us\n"
    "tree               16 B       1      8         2  32 B    160 B  32 B       11.0 us\n"
    "ring                                                                   does not fit\n"
    "\n"
    "direct, one piece on node 1: 0 elements and 8 partial sums staged\n"
    "    0  channel 0: reduce in of each rank [0, 4) -> partial [0, 4)\n"
    "    1  channel 1: after 0, send to node 0, tag 0: partial [0, 4)\n"
    "    2  channel 2: recv from node 0, tag 0: partial [4, 8)\n"
    "    3  channel 0: after all, reduce partial [4, 8), partial [0, 4) -> out of each rank [0, "
    "4)\n";

TEST(text_shows_prices_bounds_and_steps)
{
    _cleanup_(ran_fini) struct ran ran =
        run("plan --collective all_reduce --nodes 2 --ranks-per-node 2 --bytes 16 --node 1 "
            "--latency-us 2 --message-us 1 --bandwidth-gbs 10 --memory-gbs 10");

    assert_string_equal(ran.err, "");
    assert_string_equal(ran.out, expected_text);
    assert_int_equal(ran.status, 0);
}

TEST(nothing_to_move_has_no_price)
{
    _cleanup_(ran_fini) struct ran ran = run("plan --collective all_to_all --bytes 0");

    assert_int_equal(ran.status, 0);
    assert_non_null(strstr(ran.out, "there is nothing to move\n"));
    assert_null(strstr(ran.out, "ALGORITHM"));
}

TEST(what_is_above_the_budget_is_said_to_be)
{
    _cleanup_(ran_fini) struct ran ran =
        run("plan --collective all_reduce --nodes 8 --bytes 4000 --budget 32");

    assert_int_equal(ran.status, 0);
    assert_non_null(strstr(ran.out, "above the budget"));
    assert_non_null(strstr(ran.out, ", one piece on node 0"));
}

TEST(a_tuning_file_is_read_below_the_arguments)
{
    char path[] = "/tmp/ruccl-test-plan-XXXXXX", line[256];
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");

    assert_non_null(f);
    fputs("[machine]\nlatency = 7us\nmessage = 3us\n[broadcast]\n0 = tree\n", f);
    fclose(f);
    snprintf(line, sizeof(line), "plan --message-us 2 --collective broadcast --nodes 4 --tuning %s",
             path);

    _cleanup_(ran_fini) struct ran ran = run(line);

    assert_int_equal(ran.status, 0);
    assert_non_null(strstr(ran.out, "latency 7 us, its posting 2 us"));
    assert_non_null(strstr(ran.out, "tree, one piece on node 0"));
    unlink(path);
    assert_refused(line, CTL_FAILED, path);
    assert_refused("plan --collective reduce --tuning /nonexist", CTL_FAILED,
                   "/nonexist: No such file or directory\n");
}

TEST(json_holds_the_same)
{
    _cleanup_(ran_fini) struct ran ran =
        run("plan --collective gather --nodes 3 --bytes 16 --algorithm direct --json");
    json_t *root = json_loads(ran.out, 0, NULL), *steps = json_object_get(root, "steps");
    json_t *rows = json_object_get(root, "algorithms"), *recv = json_array_get(steps, 0);
    json_t *price = json_object_get(json_array_get(rows, 1), "price");

    assert_int_equal(ran.status, 0);
    assert_string_equal(json_string_value(json_object_get(root, "algorithm")), "direct");
    assert_int_equal(json_array_size(rows), 3);
    assert_true(json_is_null(json_object_get(json_array_get(rows, 0), "price")));
    assert_int_equal(json_integer_value(json_object_get(price, "peak_bytes")), 32);
    assert_int_equal(json_array_size(steps), 3);
    assert_string_equal(json_string_value(json_object_get(recv, "kind")), "recv");
    assert_int_equal(json_integer_value(json_object_get(recv, "peer")), 2);
    assert_int_equal(json_array_size(json_object_get(recv, "destinations")), 1);
    json_decref(root);
}

/* Every collective that has algorithms, as large as a communicator may be, and as small. */
TEST(every_collective_can_be_planned_for_thousands_of_nodes)
{
    for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++) {
        const struct collective *c = collective_get(kind);

        if (c->shape == SHAPE_NONE || c->flags & COLLECTIVE_PAIR)
            continue;
        for (uint32_t nnodes = 1; nnodes <= 2048; nnodes *= 2048) {
            struct plan_options o;
            struct plan_report report;
            char *argv[] = { (char *)"plan", (char *)"--collective", (char *)c->name, NULL };

            assert_int_equal(plan_parse(3, argv, &o, NULL), 0);
            o.nnodes = nnodes;
            assert_int_equal(plan_report(&o, &report, NULL), 0);
            assert_non_null(report.shown);
            assert_true(report.steps.nsteps > 0);
            assert_true(report.shown->price.us >=
                        price_bound_latency(&report.job, &report.table.machine));
            plan_report_fini(&report);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments_that_mean_nothing_are_named),
        cmocka_unit_test(a_wrong_value_is_told_which_there_are),
        cmocka_unit_test(less_than_one_element_is_no_operation),
        cmocka_unit_test(bytes_come_with_their_units),
        cmocka_unit_test(operations_that_cannot_be_are_told_why),
        cmocka_unit_test(text_shows_prices_bounds_and_steps),
        cmocka_unit_test(nothing_to_move_has_no_price),
        cmocka_unit_test(what_is_above_the_budget_is_said_to_be),
        cmocka_unit_test(a_tuning_file_is_read_below_the_arguments),
        cmocka_unit_test(json_holds_the_same),
        cmocka_unit_test(every_collective_can_be_planned_for_thousands_of_nodes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
