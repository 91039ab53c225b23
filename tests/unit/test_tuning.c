/* Tuning files: what is taken, and what is refused with the table as it was. */
#include "tests/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/tuning.h"

static char path[] = "/tmp/ruccl-test-tuning-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static void write_file(const char *text)
{
    FILE *f = fopen(path, "we");

    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void read_text(const char *text, struct table *ret)
{
    struct error e = { 0 };

    table_init(ret, 4 << 20);
    write_file(text);
    if (tuning_read(path, ret, &e) < 0)
        fail_msg("%s", e.text);
}

static void refused(const char *text, const char *where, const char *why)
{
    struct table t, before;
    struct error e = { 0 };

    table_init(&t, 4 << 20);
    assert_int_equal(table_add(&t, COLLECTIVE_REDUCE, 5, "tree"), 0);
    before = t;
    write_file(text);
    assert_int_equal(tuning_read(path, &t, &e), -ERROR_INVALID_ARGUMENT);
    assert_memory_equal(&t, &before, sizeof(t));
    assert_non_null(strstr(e.text, path));
    if (!strstr(e.text, where) || !strstr(e.text, why))
        fail_msg("'%s' names '%s' and '%s'? no", e.text, where, why);
}

TEST(an_empty_file_changes_nothing)
{
    struct table t, untouched;

    table_init(&untouched, 4 << 20);
    read_text("", &t);
    assert_memory_equal(&t, &untouched, sizeof(t));
}

TEST(values_come_with_their_units)
{
    struct table t;

    read_text("[machine]\nlatency = 1.5us\nmessage = 250 ns ; little\nbandwidth = 12.5GB/s\n"
              "memory_bandwidth=800MB/s\n[chunks]\nbytes = 64KiB\ndepth = 3\n",
              &t);
    assert_true(t.machine.latency_us == 1.5);
    assert_true(t.machine.message_us > 0.2499 && t.machine.message_us < 0.2501);
    assert_true(t.machine.link_bytes_per_us == 12500);
    assert_true(t.machine.memory_bytes_per_us == 800);
    assert_int_equal(t.chunk_bytes, 65536);
    assert_int_equal(t.depth, 3);
    assert_int_equal(t.nrules, 0);
}

TEST(rules_are_those_of_their_collective_in_any_order)
{
    struct table t;

    read_text("# measured\n[broadcast]\n1MiB = tree\n0 = direct\n[all_reduce]\n"
              "64 KiB = halving-doubling\n8M = auto\n",
              &t);
    assert_int_equal(t.nrules, 4);
    assert_string_equal(table_find(&t, COLLECTIVE_BROADCAST, 0)->algorithm, "direct");
    assert_string_equal(table_find(&t, COLLECTIVE_BROADCAST, 1 << 20)->algorithm, "tree");
    assert_null(table_find(&t, COLLECTIVE_ALL_REDUCE, 65535));
    assert_string_equal(table_find(&t, COLLECTIVE_ALL_REDUCE, 65536)->algorithm,
                        "halving-doubling");
    assert_string_equal(table_find(&t, COLLECTIVE_ALL_REDUCE, 8 << 20)->algorithm, "auto");
}

TEST(every_row_between_nodes_may_be_a_rule)
{
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        char text[128];
        struct table t;

        if (!strcmp(a->name, "hierarchical"))
            continue;
        snprintf(text, sizeof(text), "[%s]\n0 = %s\n", collective_get(a->kind)->name, a->name);
        read_text(text, &t);
        assert_string_equal(table_find(&t, a->kind, 0)->algorithm, a->name);
    }
}

TEST(bad_values_are_named_with_what_is_allowed)
{
    refused("[machine]\n\nlatency = 5\n", ":3: latency: '5'", "in ns, us, ms or s");
    refused("[machine]\nlatency = 0us\n", ":2: latency", "from 1ns to 10s");
    refused("[machine]\nlatency = -1us\n", ":2: latency", "'-1us'");
    refused("[machine]\nlatency = nan us\n", ":2: latency", "a time");
    refused("[machine]\nmessage = 1e300s\n", ":2: message", "a time");
    refused("[machine]\nmessage = 0x10us\n", ":2: message", "a time");
    refused("[machine]\nmessage =\n", ":2: message", "''");
    refused("[machine]\nbandwidth = 3GiB\n", ":2: bandwidth", "in MB/s or GB/s");
    refused("[machine]\nmemory_bandwidth = 0.5MB/s\n", ":2: memory_bandwidth", "from 1MB/s");
    refused("[chunks]\nbytes = 4095\n", ":2: bytes", "bytes from 4096 to 1099511627776");
    refused("[chunks]\nbytes = 4MB\n", ":2: bytes", "MiB");
    refused("[chunks]\ndepth = 0\n", ":2: depth", "a number from 1 to 64");
    refused("[chunks]\ndepth = 65\n", ":2: depth", "'65'");
    refused("[all_reduce]\n0 = rign\n", ":2: 0: 'rign'",
            "one of auto, direct, pairwise, halving-doubling, tree, ring");
    refused("[gather]\n0 = ring\n", ":2: 0: 'ring'", "one of auto, direct, tree");
    refused("[all_reduce]\n0 = hierarchical\n", ":2: 0", "one of auto");
}

TEST(keys_that_are_wrong_are_named)
{
    refused("[machine]\nlatancy = 5us\n", ":2: unknown key 'latancy'",
            "[machine] has latency, message, bandwidth, memory_bandwidth");
    refused("[chunks]\nlength = 5\n", ":2: unknown key 'length'", "[chunks] has bytes, depth");
    refused("depth = 5\n", ":1: 'depth'", "in no section");
    refused("[all_reduced]\n0 = tree\n", ":1: ", "no section [all_reduced], only [machine]");
    refused("[barrier]\n0 = tree\n", ":1: ", "no section [barrier]");
    refused("[send]\n0 = hierarchical\n", ":1: ", "no section [send]");
    refused("[chunks]\n\n [machin]\n", ":3: ", "no section [machin]");
    refused("[all_reduce]\nmany = tree\n", ":2: 'many'", "is not bytes");
    refused("[all_reduce]\n4MB = tree\n", ":2: '4MB'", "is not bytes");
    refused("[chunks]\ndepth = 2\ndepth = 2\n", ":3: 'depth'", "in line 2");
    refused("[all_reduce]\n1024 = tree\n1K = direct\n", ":3: [all_reduce]", "from 1024 bytes");
    refused("[machine]\nlatency 5us\n", ":2: neither", "key = value");
}

TEST(more_rules_than_a_table_holds_are_refused)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    fputs("[gather]\n", f);
    for (unsigned i = 0; i < TABLE_RULES_MAX; i++) /* one is there already */
        fprintf(f, "%u = tree\n", i);
    fclose(f);
    refused(text, ":257: ", "more than 256 rules");
    free(text);
}

TEST(a_file_that_is_not_there_is_named)
{
    struct table t;
    struct error e = { 0 };

    table_init(&t, 4096);
    assert_true(tuning_read("/nowhere/tuning.conf", &t, &e) < 0);
    assert_non_null(strstr(e.text, "/nowhere/tuning.conf"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_changes_nothing),
        cmocka_unit_test(values_come_with_their_units),
        cmocka_unit_test(rules_are_those_of_their_collective_in_any_order),
        cmocka_unit_test(every_row_between_nodes_may_be_a_rule),
        cmocka_unit_test(bad_values_are_named_with_what_is_allowed),
        cmocka_unit_test(keys_that_are_wrong_are_named),
        cmocka_unit_test(more_rules_than_a_table_holds_are_refused),
        cmocka_unit_test(a_file_that_is_not_there_is_named),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
