/* Key files: [section], key = value, # comment. Knows no section and no key. */
#ifndef DAEMON_KEYFILE_H
#define DAEMON_KEYFILE_H

#include "shared/error.h"

struct keyfile_key {
    const char *path;
    unsigned line;
    const char *section, *name, *value; /* name and value NULL: the section opens here */
};

/* Return: 0, or -code worded in `e`, which ends the reading. */
typedef int (*keyfile_key_fn)(void *user, const struct keyfile_key *k, struct error *e);

/*
 * Hands every section and every key to `take`, in order. A file that is not there is empty, unless
 * it `must_exist`. Return: 0, or -code with `e` naming the file and, where there is one, the line.
 */
int keyfile_read(const char *path, bool must_exist, keyfile_key_fn take, void *user,
                 struct error *e);

#endif
