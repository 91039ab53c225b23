/* ruccl-perf attach and scale: command line, growth, and both against a daemon of their own. */
#include "tests/unit/unit.h"

#include <math.h>
#include <signal.h>
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
#include "client/perf/options.h"
#include "client/perf/probe_options.h"
#include "client/perf/scale.h"
#include "client/perf/scale_table.h"
#include "tests/unit/arguments.h"

/* ---------------------------------------------------------------- command line */

static int parse_probe(struct probe_options *o, struct error *e, const char *const *args)
{
    char *argv[ARGUMENTS_MAX];
    int argc = copy_arguments(argv, args);

    *e = (struct error){ 0 };
    return probe_options_parse(argc, argv, o, e);
}

#define PARSE_PROBE(o, e, ...) parse_probe(o, e, (const char *const[]){ __VA_ARGS__, NULL })

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

static unsigned count(const char *text, const char *word)
{
    unsigned n = 0;

    for (; (text = strstr(text, word)); text++)
        n++;
    return n;
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

    scale_table_init(&t, f, axis_get(AXIS_RANKS), "", false);
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

    scale_table_init(&t, f, axis_get(AXIS_CHUNKS), "", true);
    add_row(&t, 1, 3);
    add_row(&t, 4, 12);
    assert_int_equal(scale_table_end(&t), 0);
    scale_table_init(&t, f, axis_get(AXIS_MEMORY_SESSIONS), "", true);
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

TEST(a_table_without_rows_has_no_head)
{
    struct scale_table t;
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    scale_table_init(&t, f, axis_get(AXIS_CHUNKS), "# title\n", false);
    assert_int_equal(scale_table_end(&t), 0);
    fflush(f);
    assert_string_equal(text, "");
    add_row(&t, 1, 3);
    add_row(&t, 4, 12);
    fclose(f);
    assert_ptr_equal(strstr(text, "# title\n# chunks\n"), text);
    assert_int_equal(count(text, "us/call"), 1);
    free(text);
}

/* ---------------------------------------------------------------- whole commands */

/* Runs one in a process of its own, with at most `files` descriptors; `ret` has what it printed. */
static int run_command(int (*run)(int, char **), rlim_t files, char *ret, size_t len_bytes,
                       const char *const *args)
{
    int out = memfd_create("out", MFD_CLOEXEC);
    const struct rlimit limit = { files, files };
    char *argv[ARGUMENTS_MAX];
    int argc = copy_arguments(argv, args);
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

/* Ends when all that it has started has, too: each of its ranks holds the pipe. */
TEST(a_run_that_is_killed_leaves_nothing_behind)
{
    static const char *const args[] = { "scale", "--axes=ranks", "--json", NULL };
    char directory[] = "/tmp/ruccl-test-XXXXXX", *argv[ARGUMENTS_MAX], bytes[512];
    int ends[2], argc = copy_arguments(argv, args);
    pid_t pid;

    assert_non_null(mkdtemp(directory));
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        setenv("TMPDIR", directory, true);
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        _exit(scale_run(argc, argv));
    }
    close(ends[1]);
    assert_true(read(ends[0], bytes, sizeof(bytes)) > 0); /* it measures */
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    while (read(ends[0], bytes, sizeof(bytes)) > 0)
        ;
    close(ends[0]);
    assert_int_equal(rmdir(directory), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attach_and_scale_have_options_of_their_own),
        cmocka_unit_test(what_makes_no_sense_to_attach_and_scale_is_refused_with_a_sentence),
        cmocka_unit_test(steps_lead_from_the_first_to_the_last),
        cmocka_unit_test(the_exponent_is_that_of_growth),
        cmocka_unit_test(rows_of_growth_say_ratio_and_exponent_where_there_are_any),
        cmocka_unit_test(a_table_without_rows_has_no_head),
        cmocka_unit_test(attach_tells_of_every_part),
        cmocka_unit_test(scale_goes_along_every_axis),
        cmocka_unit_test(scale_skips_what_limits_refuse_and_says_so),
        cmocka_unit_test(scale_skips_what_quotas_refuse_and_says_so),
        cmocka_unit_test(a_run_that_is_killed_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
