#include "shared/socket_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *variable(const char *name)
{
    const char *value = secure_getenv(name);

    return value && *value ? value : NULL;
}

int socket_path_default(char *buffer, size_t size, struct error *e)
{
    const char *directory = "", *path = variable("RUCCL_SOCKET");

    if (!path && geteuid() == 0)
        path = "/run/ruccl/ruccld.sock";
    if (!path) {
        directory = variable("XDG_RUNTIME_DIR");
        path = "/ruccl/ruccld.sock";
    }
    if (!directory)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "no socket path: set RUCCL_SOCKET or XDG_RUNTIME_DIR");
    if (strlen(directory) + strlen(path) >= size)
        return error_set(e, ERROR_INVALID_ARGUMENT, "socket path %s%s is longer than %zu bytes",
                         directory, path, size - 1);
    snprintf(buffer, size, "%s%s", directory, path);
    return 0;
}
