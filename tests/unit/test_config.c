/* The daemon's configuration: what is taken, what is refused, and that the manual is the table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/config.h"

static char path[] = "/tmp/ruccl-test-config-XXXXXX";

static int make_file(void **state)
{
    int fd = mkstemp(path);

    (void)state;
    unsetenv("RUCCL_SOCKET");
    setenv("RUCCL_SOCKET", "/tmp/default.sock", 1);
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

/* Parses the file, with one more argument where that is not NULL. */
static int parse(const char *argument, struct config *ret, struct error *e)
{
    char *argv[] = { "ruccld", "--config", path, (char *)argument, NULL };

    memset(e, 0, sizeof(*e));
    return config_parse(argument ? 4 : 3, argv, ret, e);
}

static void refused(const char *text, const char *where, const char *why)
{
    struct config c;
    struct error e;

    write_file(text);
    assert_int_equal(parse(NULL, &c, &e), -ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(e.text, path));
    if (!strstr(e.text, where) || !strstr(e.text, why))
        fail_msg("'%s' names neither '%s' nor '%s'", e.text, where, why);
}

static void an_empty_file_gives_the_defaults(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    write_file("");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.socket, "/tmp/default.sock");
    assert_int_equal(c.socket_mode, 0666);
    assert_int_equal(strlen(c.node), 36);
    assert_int_equal(c.workers, 0);
    assert_int_equal(c.chunk_bytes, 4 << 20);
    assert_int_equal(c.drain_timeout_us, 10000000);
    assert_int_equal(c.id_lifetime_us, 600000000);
    assert_int_equal(c.log_level, LOG_LEVEL_NOTICE);
    assert_int_equal(c.log_target, LOG_TARGET_AUTO);
    assert_int_equal(c.max_in_flight, 4096);
    assert_string_equal(c.listen, "");
    assert_string_equal(c.cluster_key, "");
    assert_string_equal(c.transport, "auto");
    assert_int_equal(c.peer_timeout_us, 5000000);
    assert_int_equal(c.connect_timeout_us, 10000000);
    assert_int_equal(c.max_staging, 1 << 30);
    assert_string_equal(c.gpus, "all");
}

static void the_printed_file_gives_the_defaults_when_uncommented(void **state)
{
    struct config defaults, printed;
    struct error e;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    (void)state;
    config_print(f);
    fclose(f);
    for (char *s = text; s; s = strchr(s + 1, '\n'))
        if (s[0] == '\n' && s[1] == '#' && s[2] != ' ')
            s[1] = ' ';
    write_file("");
    assert_int_equal(parse(NULL, &defaults, &e), CONFIG_RUN);
    write_file(text);
    assert_int_equal(parse(NULL, &printed, &e), CONFIG_RUN);
    assert_memory_equal(&defaults, &printed, sizeof(defaults));
    free(text);
}

static void every_key_that_is_printed_is_seen(void **state)
{
    struct error e;
    struct config c;
    char *text = NULL, name[32];
    size_t size;
    unsigned keys = 0;
    FILE *f = open_memstream(&text, &size);

    (void)state;
    config_print(f);
    fclose(f);
    write_file("");
    for (char *s = text; s; s = strchr(s + 1, '\n')) {
        char argument[64];

        if (sscanf(s, "\n#%31[a-z_] =", name) != 1)
            continue;
        keys++;
        snprintf(argument, sizeof(argument), "--set=%s=!", name);
        if (!strcmp(name, "socket"))
            assert_int_equal(parse(argument, &c, &e), CONFIG_RUN);
        else
            assert_int_equal(parse(argument, &c, &e), -ERROR_INVALID_ARGUMENT);
    }
    assert_true(keys >= 28);
    free(text);
}

static void values_come_with_their_units(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    write_file("[daemon]\nchunk_bytes = 64KiB\ndrain_timeout = 250 ms ; short\nsocket_mode=0600\n"
               "socket = /tmp/x.sock\nnode = 0123456789abcdef0123456789abcdef\n"
               "[limits]\nmax_region_bytes = 3G\nmax_gpu_bytes = 80GiB\nmax_sessions = 7\n"
               "[log]\nlog_level = debug\nlog_target = stderr\n");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_int_equal(c.chunk_bytes, 65536);
    assert_int_equal(c.drain_timeout_us, 250000);
    assert_int_equal(c.socket_mode, 0600);
    assert_string_equal(c.socket, "/tmp/x.sock");
    assert_string_equal(c.node, "01234567-89ab-cdef-0123-456789abcdef");
    assert_int_equal(c.max_region_bytes, 3ull << 30);
    assert_int_equal(c.max_gpu_bytes, 80ull << 30);
    assert_int_equal(c.max_sessions, 7);
    assert_int_equal(c.log_level, LOG_LEVEL_DEBUG);
    assert_int_equal(c.log_target, LOG_TARGET_STDERR);
}

#define GPU_1 "GPU-01234567-89ab-cdef-0123-456789abcdef"
#define GPU_2 "GPU-f1234567-89ab-cdef-0123-456789abcdef"

static void gpus_are_all_none_or_named(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    write_file("[daemon]\ngpus = none\n");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.gpus, "none");
    write_file("[daemon]\ngpus = " GPU_1 "," GPU_2 "\n");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.gpus, GPU_1 "," GPU_2);
    assert_int_equal(parse("--set=gpus=" GPU_2, &c, &e), CONFIG_RUN);
    assert_string_equal(c.gpus, GPU_2);
    write_file("[daemon]\ngpus = all\n");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.gpus, "all");
}

static void gpus_up_to_64_may_be_named_and_no_more(void **state)
{
    char argument[4096] = "--set=gpus=" GPU_1;
    struct config c;
    struct error e;

    (void)state;
    write_file("");
    for (unsigned i = 1; i < 64; i++)
        strcat(argument, "," GPU_2);
    assert_int_equal(parse(argument, &c, &e), CONFIG_RUN);
    assert_string_equal(c.gpus, argument + strlen("--set=gpus="));
    strcat(argument, "," GPU_2);
    assert_int_equal(parse(argument, &c, &e), -ERROR_INVALID_ARGUMENT);
}

static void the_network_is_taken_as_it_is_written(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    write_file("[network]\nlisten = [::]:7777\nadvertise = node-1.example.org:7777\n"
               "cluster_key = /etc/ruccl/key\ntransport = ucx\ndevices = mlx5_0:1,eth0\n"
               "ports = 41000-41100\ntuning = /etc/ruccl/tuning.conf\nmax_staging = 64MiB\n");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.listen, "[::]:7777");
    assert_string_equal(c.advertise, "node-1.example.org:7777");
    assert_string_equal(c.cluster_key, "/etc/ruccl/key");
    assert_string_equal(c.transport, "ucx");
    assert_string_equal(c.devices, "mlx5_0:1,eth0");
    assert_string_equal(c.ports, "41000-41100");
    assert_string_equal(c.tuning, "/etc/ruccl/tuning.conf");
    assert_int_equal(c.max_staging, 64 << 20);
}

static void the_cluster_key_may_be_a_credential(void **state)
{
    char directory[] = "/tmp/ruccl-credentials-XXXXXX", key[64];
    struct config c;
    struct error e;

    (void)state;
    write_file("");
    assert_non_null(mkdtemp(directory));
    snprintf(key, sizeof(key), "%s/cluster_key", directory);
    setenv("CREDENTIALS_DIRECTORY", directory, 1);
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.cluster_key, ""); /* none is there */

    FILE *f = fopen(key, "w");

    assert_non_null(f);
    fclose(f);
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    assert_string_equal(c.cluster_key, key);
    assert_int_equal(parse("--set=cluster_key=/other", &c, &e), CONFIG_RUN);
    assert_string_equal(c.cluster_key, "/other");
    unsetenv("CREDENTIALS_DIRECTORY");
    unlink(key);
    rmdir(directory);
}

static void the_command_line_lies_above_the_file(void **state)
{
    struct config c;
    struct error e;

    (void)state;
    write_file("[daemon]\nsocket = /tmp/file.sock\nworkers = 3\n[log]\nlog_level = error\n");
    assert_int_equal(parse("--socket=/tmp/line.sock", &c, &e), CONFIG_RUN);
    assert_string_equal(c.socket, "/tmp/line.sock");
    assert_int_equal(c.workers, 3);
    assert_int_equal(parse("--workers=5", &c, &e), CONFIG_RUN);
    assert_int_equal(c.workers, 5);
    assert_int_equal(parse("--log-level=info", &c, &e), CONFIG_RUN);
    assert_int_equal(c.log_level, LOG_LEVEL_INFO);
    assert_int_equal(parse("--set=max_regions=9", &c, &e), CONFIG_RUN);
    assert_int_equal(c.max_regions, 9);
}

static void bad_values_are_named_with_what_is_allowed(void **state)
{
    (void)state;
    refused("[daemon]\n\nworkers = many\n", ":3: workers", "a number from 0 to 1024");
    refused("[daemon]\nworkers = 1025\n", ":2: workers", "a number from 0 to 1024");
    refused("[daemon]\nworkers = -1\n", ":2: workers", "'-1'");
    refused("[daemon]\nworkers = 99999999999999999999999\n", ":2: workers", "from 0 to 1024");
    refused("[daemon]\nworkers =\n", ":2: workers", "''");
    refused("[daemon]\nchunk_bytes = 4MB\n", ":2: chunk_bytes", "MiB");
    refused("[daemon]\nchunk_bytes = 99999999999T\n", ":2: chunk_bytes", "bytes from");
    refused("[daemon]\ndrain_timeout = 10\n", ":2: drain_timeout", "in us, ms, s, min or h");
    refused("[daemon]\nsocket_mode = 0888\n", ":2: socket_mode", "octal");
    refused("[daemon]\nnode = here\n", ":2: node", "a UUID");
    refused("[daemon]\ngpus =\n", ":2: gpus", "all, none, or UUIDs");
    refused("[daemon]\ngpus = 0\n", ":2: gpus", "'0' is not all, none");
    refused("[daemon]\ngpus = " GPU_1 ",\n", ":2: gpus", "separated by commas");
    refused("[daemon]\ngpus = " GPU_1 ", " GPU_2 "\n", ":2: gpus", "separated by commas");
    refused("[daemon]\ngpus = " GPU_1 ";" GPU_2 "\n", ":2: gpus", "separated by commas");
    refused("[daemon]\ngpus = " GPU_1 "0\n", ":2: gpus", "separated by commas");
    refused("[daemon]\ngpus = all," GPU_1 "\n", ":2: gpus", "separated by commas");
    refused("[log]\nlog_level = loud\n", ":2: log_level", "warning, notice");
    refused("[log]\nlog_target = syslog\n", ":2: log_target", "auto, stderr or journal");
    refused("[network]\nlisten = 10.0.0.1\n", ":2: listen", "host:port or [v6]:port");
    refused("[network]\nlisten = ::1:7777\n", ":2: listen", "host:port or [v6]:port");
    refused("[network]\nadvertise = x:70000\n", ":2: advertise", "host:port or [v6]:port");
    refused("[network]\ncluster_key = key\n", ":2: cluster_key", "an absolute path");
    refused("[network]\nports = 7\n", ":2: ports", "41000-41100");
    refused("[network]\nports = 9-7\n", ":2: ports", "41000-41100");
    refused("[network]\nports = 1-70000\n", ":2: ports", "41000-41100");
    refused("[network]\nports = 1-2x\n", ":2: ports", "41000-41100");
    refused("[network]\ndevices = eth0 eth1\n", ":2: devices", "names of at most");
    refused("[network]\npeer_timeout = 1ms\n", ":2: peer_timeout", "from 100ms");
    refused("[network]\nmax_staging = 1K\n", ":2: max_staging", "bytes from");
    refused("[limits]\nmax_in_flight = 4097\n", ":2: max_in_flight", "from 1 to 4096");
}

static void keys_that_are_wrong_are_named(void **state)
{
    (void)state;
    refused("[daemon]\nworker = 1\n", ":2: ", "unknown key 'worker'");
    refused("[log]\nworkers = 1\n", ":2: ", "belongs into section [daemon]");
    refused("workers = 1\n", ":1: ", "belongs into section [daemon]");
    refused("[daemon]\nworkers = 1\n#\nworkers = 1\n", ":4: ", "was set before, in line 2");
    refused("[daemon]\nworkers\n", ":2: ", "neither");
    refused("[daemon\n", ":1: ", "neither");
    refused("[demon]\n", ":1: ", "no section [demon], only [daemon], [network], [log], [limits]");
    refused("[log]\n[daemon] # mine\n\t[]\n", ":3: ", "no section []");
}

static void a_line_that_is_too_long_is_refused_not_cut(void **state)
{
    char text[400] = "[daemon]\nsocket = ";

    (void)state;
    memset(text + strlen(text), 'x', 250);
    refused(text, ":2: ", "the line has more than");
    snprintf(text, sizeof(text), "[daemon]\nsocket = /%0110d\n", 1);
    refused(text, ":2: socket", "at most 107 bytes");
}

static void a_named_file_must_exist(void **state)
{
    char *argv[] = { "ruccld", "--config", "/tmp/ruccl-no-such-file", NULL };
    struct config c;
    struct error e = { 0 };

    (void)state;
    assert_int_equal(config_parse(3, argv, &c, &e), -ERROR_SYSTEM);
    assert_non_null(strstr(e.text, "/tmp/ruccl-no-such-file"));
}

static void arguments_that_are_wrong_are_named(void **state)
{
    static const char *const bad[] = { "--sock", "--set=x", "--set=no_such=1", "--workers=x",
                                       "extra",  "--bogus", "--config" };
    static const char *const named[] = { "",      "KEY=VALUE", "no_such",      "--workers",
                                         "extra", "--bogus",   "needs a value" };
    struct config c;
    struct error e;

    (void)state;
    write_file("");
    for (size_t i = 1; i < ARRAY_SIZE(bad); i++) {
        assert_int_equal(parse(bad[i], &c, &e), -ERROR_INVALID_ARGUMENT);
        assert_non_null(strstr(e.text, named[i]));
    }
}

static void a_reload_takes_what_may_change_and_keeps_the_rest(void **state)
{
    char *argv[] = { "ruccld", "--config", path, NULL };
    struct config c;
    struct error e;

    (void)state;
    log_open(LOG_TARGET_STDERR, LOG_LEVEL_ERROR);
    write_file("");
    assert_int_equal(parse(NULL, &c, &e), CONFIG_RUN);
    write_file("[daemon]\nworkers = 3\nsocket = /tmp/other\n[limits]\nmax_sessions = 5\n");
    assert_int_equal(config_reload(3, argv, &c, &e), 0);
    assert_int_equal(c.max_sessions, 5);
    assert_int_equal(c.workers, 0);
    assert_string_equal(c.socket, "/tmp/default.sock");

    write_file("[limits]\nmax_sessions = 6\nmax_regions = none\n");
    assert_true(config_reload(3, argv, &c, &e) < 0);
    assert_int_equal(c.max_sessions, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_file_gives_the_defaults),
        cmocka_unit_test(the_printed_file_gives_the_defaults_when_uncommented),
        cmocka_unit_test(every_key_that_is_printed_is_seen),
        cmocka_unit_test(values_come_with_their_units),
        cmocka_unit_test(gpus_are_all_none_or_named),
        cmocka_unit_test(gpus_up_to_64_may_be_named_and_no_more),
        cmocka_unit_test(the_network_is_taken_as_it_is_written),
        cmocka_unit_test(the_cluster_key_may_be_a_credential),
        cmocka_unit_test(the_command_line_lies_above_the_file),
        cmocka_unit_test(bad_values_are_named_with_what_is_allowed),
        cmocka_unit_test(keys_that_are_wrong_are_named),
        cmocka_unit_test(a_line_that_is_too_long_is_refused_not_cut),
        cmocka_unit_test(a_named_file_must_exist),
        cmocka_unit_test(arguments_that_are_wrong_are_named),
        cmocka_unit_test(a_reload_takes_what_may_change_and_keeps_the_rest),
    };

    return cmocka_run_group_tests(tests, make_file, remove_file);
}
