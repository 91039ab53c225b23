#include "daemon/transport/transport.h"

#include "daemon/transport/local.h"

const struct transport_ops *const transport_rows[] = { &transport_local, NULL };
