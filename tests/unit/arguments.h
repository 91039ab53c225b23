/* Command lines for what takes them from main(). */
#ifndef TESTS_UNIT_ARGUMENTS_H
#define TESTS_UNIT_ARGUMENTS_H

#include <stddef.h>

#define ARGUMENTS_MAX 16

/* Copies what ends with NULL, for getopt to shuffle; returns argc. */
static inline int copy_arguments(char *argv[ARGUMENTS_MAX], const char *const *arguments)
{
    int argc = 0;

    while (arguments[argc]) {
        argv[argc] = (char *)arguments[argc];
        argc++;
    }
    argv[argc] = NULL;
    return argc;
}

#endif
