#include "daemon/transport/transport.h"

#include "daemon/transport/local.h"
#if HAVE_UCX
#include "daemon/transport/ucx.h"
#endif

const struct transport_ops *const transport_rows[] = {
#if HAVE_UCX
    &transport_ucx,
#endif
    &transport_local,
    NULL,
};
