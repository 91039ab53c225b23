#include "daemon/transport/transport.h"

#include <string.h>

#include "daemon/transport/local.h"
#include "daemon/transport/tcp.h"
#if HAVE_UCX
#include "daemon/transport/ucx.h"
#endif

const struct transport_ops *const transport_rows[] = {
    &transport_tcp,
#if HAVE_UCX
    &transport_ucx,
#endif
    &transport_local,
    NULL,
};

static bool is_meant(const struct transport_ops *row, const char *name)
{
    return !strcmp(name, "auto") ? !row->in_process : !strcmp(name, row->name);
}

int transport_check(const char *name, struct error *e)
{
    struct text names = { 0 };

    if (!strcmp(name, "auto"))
        return 0;
    for (const struct transport_ops *const *row = transport_rows; *row; row++) {
        if (is_meant(*row, name))
            return 0;
        if (!(*row)->in_process)
            text_add(&names, "%s%s", names.len ? ", " : "", (*row)->name);
    }
    return error_set(e, ERROR_INVALID_ARGUMENT, "transport '%s' is not in this build; there is: %s",
                     name, names.s);
}

int transport_open(const char *name, const struct transport_config *config, struct transport **ret,
                   struct error *e)
{
    struct error first = { 0 };
    int r = transport_check(name, e);

    if (r < 0)
        return r;
    for (const struct transport_ops *const *row = transport_rows; *row; row++) {
        struct error why = { 0 };

        if (!is_meant(*row, name))
            continue;
        if ((*row)->open(config, ret, &why) == 0)
            return 0;
        if (!first.code)
            first = why;
    }
    *e = first;
    return -(int)first.code;
}
