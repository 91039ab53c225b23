#include "daemon/environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shared/base.h"

/* Set while the program is executed again, to the name that it has in process lists. */
#define AGAIN      "RUCCLD_EXECUTED_AGAIN"
#define NAME_BYTES 16

static const struct {
    const char *name, *value;
} wanted[] = {
    { "UCX_MEM_EVENTS", "n" },           /* no hooks in malloc and mmap */
    { "UCX_HANDLE_ERRORS", "none" },     /* no handlers of SIGSEGV, SIGBUS and so on */
    { "UCX_MODULES", "^ib,rdmacm,cma" }, /* networks that are never used */
};

static bool is_wanted(const char *variable)
{
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++) {
        const size_t len = strlen(wanted[i].name);

        if (!strncmp(variable, wanted[i].name, len) && variable[len] == '=')
            return !strcmp(variable + len + 1, wanted[i].value);
    }
    return false;
}

static bool is_ucx(const char *variable)
{
    return !strncmp(variable, "UCX_", 4);
}

static bool is_settled(void)
{
    size_t nours = 0;

    for (char **v = environ; *v; v++) {
        if (!is_ucx(*v))
            continue;
        if (!is_wanted(*v))
            return false;
        nours++;
    }
    return nours == ARRAY_SIZE(wanted);
}

static void clear_ucx(void)
{
    char **kept = environ;

    for (char **v = environ; *v; v++)
        if (!is_ucx(*v))
            *kept++ = *v;
    *kept = NULL;
}

/* Executed by its path in /proc, a program goes by the name of that. */
static int come_back(const char *name)
{
    prctl(PR_SET_NAME, name);
    unsetenv(AGAIN);
    return is_settled() ? 0 : -ELOOP;
}

int environment_settle(char **argv)
{
    const char *again = getenv(AGAIN);
    char name[NAME_BYTES] = "";
    int r;

    if (again)
        return come_back(again);
    if (is_settled())
        return 0;
    clear_ucx();
    for (size_t i = 0; i < ARRAY_SIZE(wanted); i++)
        if (setenv(wanted[i].name, wanted[i].value, 1) < 0)
            return -errno;
    prctl(PR_GET_NAME, name);
    if (setenv(AGAIN, name, 1) < 0)
        return -errno;
    execve("/proc/self/exe", argv, environ);
    r = -errno;
    unsetenv(AGAIN);
    return r;
}
