/* The daemon's environment: this program executes itself with one, settles it, and tells. */
#include "tests/unit/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/environment.h"

/* What the settled child tells: result, process and name, arguments, a descriptor's end, variables.
 */
static int tell(char **argv)
{
    const pid_t before = getpid();
    const int r = environment_settle(argv);
    char name[16] = "", text[8] = "";

    prctl(PR_GET_NAME, name);
    printf("%d %d %s %s %s|", r, (int)before, name, argv[0], argv[2]);
    if (read(5, text, sizeof(text) - 1) < 0)
        return 1;
    printf("%s|", text);
    for (char **v = environ; *v; v++)
        if (strcmp(*v, "PATH=/bin"))
            printf("%s\n", *v);
    return 0;
}

struct told {
    int r;
    pid_t pid;
    char text[4096];
};

static void child(int out, const char *const *variables)
{
    char *const argv[] = { "a name", "tell", "an argument", NULL };
    int ends[2];

    if (dup2(out, 1) < 0 || pipe(ends) < 0 || dup2(ends[0], 5) < 0 ||
        write(ends[1], "kept", 4) != 4)
        _exit(1);
    close(ends[1]);
    execve("/proc/self/exe", argv, (char *const *)variables);
    _exit(1);
}

static void settle(const char *const *variables, struct told *ret)
{
    int out[2], status;
    size_t n = 0;
    ssize_t got;

    assert_int_equal(pipe(out), 0);
    ret->pid = fork();
    assert_int_not_equal(ret->pid, -1);
    if (ret->pid == 0)
        child(out[1], variables);
    close(out[1]);
    while ((got = read(out[0], ret->text + n, sizeof(ret->text) - 1 - n)) > 0)
        n += (size_t)got;
    ret->text[n] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(ret->pid, &status, 0), ret->pid);
    assert_int_equal(status, 0);
    assert_int_equal(sscanf(ret->text, "%d", &ret->r), 1);
}

static size_t count_lines(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += *text == '\n';
    return n;
}

static void assert_settled(const struct told *told, size_t nothers)
{
    assert_int_equal(told->r, 0);
    assert_non_null(strstr(told->text, "UCX_MEM_EVENTS=n\n"));
    assert_non_null(strstr(told->text, "UCX_HANDLE_ERRORS=none\n"));
    assert_non_null(strstr(told->text, "UCX_MODULES=^ib,rdmacm,cma\n"));
    assert_int_equal(count_lines(told->text), 3 + nothers);
}

TEST(what_is_missing_is_set_and_all_else_stays)
{
    static const char *const variables[] = { "PATH=/bin", "LISTEN_FDS=1", "XUCX_TLS=a", NULL };
    char start[128];
    struct told told;

    settle(variables, &told);
    assert_settled(&told, 2);
    assert_non_null(strstr(told.text, "LISTEN_FDS=1\n"));
    assert_non_null(strstr(told.text, "XUCX_TLS=a\n"));
    snprintf(start, sizeof(start), "0 %d exe a name an argument|kept|", (int)told.pid);
    assert_memory_equal(told.text, start, strlen(start));
}

TEST(variables_of_the_user_are_cleared)
{
    static const char *const variables[] = { "UCX_TLS=shm",     "UCX_MEM_EVENTS=y", "UCX_=",
                                             "UCX_LOG_LEVEL=x", "PATH=/bin",        NULL };
    struct told told;

    settle(variables, &told);
    assert_settled(&told, 0);
}

TEST(a_settled_environment_is_left_alone)
{
    static const char *const variables[] = { "UCX_MEM_EVENTS=n", "UCX_HANDLE_ERRORS=none",
                                             "UCX_MODULES=^ib,rdmacm,cma", NULL };
    struct told told;

    settle(variables, &told);
    assert_settled(&told, 0);
}

TEST(a_program_is_executed_again_once_and_keeps_its_name)
{
    static const char *const variables[] = { "RUCCLD_EXECUTED_AGAIN=my-name", "UCX_TLS=shm", NULL };
    struct told told;

    settle(variables, &told);
    assert_int_equal(told.r, -ELOOP);
    assert_non_null(strstr(told.text, " my-name "));
    assert_null(strstr(told.text, "RUCCLD_EXECUTED_AGAIN"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_set_and_all_else_stays),
        cmocka_unit_test(variables_of_the_user_are_cleared),
        cmocka_unit_test(a_settled_environment_is_left_alone),
        cmocka_unit_test(a_program_is_executed_again_once_and_keeps_its_name),
    };

    if (argc > 1 && strcmp(argv[1], "tell") == 0)
        return tell(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
