/*
 * The row "ucx": payload over UCX, which here means TCP.
 *
 * The settings are not taste. Zero copy and PUT are off because UCX 1.13 ends the process that
 * survives a peer with such sends under way; without them segments have to be large to be fast.
 * Endpoints are closed by force: an orderly close waits for the other end.
 */
#include "daemon/transport/ucx.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/log/log.h"
#include "daemon/transport/interface.h"

#define TX_SEGMENT "256K"
#define RX_SEGMENT "512K" /* a peer's larger TX segment would end this process */

#define READY_MAX       64u    /* peers that one look at the descriptor finds */
#define PROGRESS_ROUNDS 16u    /* of one peer in one poll() */
#define DRAIN_ROUNDS    10000u /* without any progress, before UCX is held to have lost a request */

int ucx_errno(ucs_status_t status)
{
    switch (status) {
    case UCS_OK:
        return 0;
    case UCS_ERR_NO_MEMORY:
        return ENOMEM;
    case UCS_ERR_NO_DEVICE:
        return ENODEV;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return EINVAL;
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return EOPNOTSUPP;
    case UCS_ERR_CANCELED: /* only of what a closed endpoint had */
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_UNREACHABLE:
        return ECONNRESET;
    default:
        return EIO;
    }
}

static int set_status(struct error *e, ucs_status_t status, const char *what)
{
    return error_set(e, status == UCS_ERR_NO_MEMORY ? ERROR_NO_MEMORY : ERROR_SYSTEM, "%s: %s",
                     what, ucs_status_string(status));
}

/* Transports */

struct setting {
    const char *key, *value;
};

static int set_all(ucp_config_t *config, const struct setting *settings, size_t n, struct error *e)
{
    for (size_t i = 0; i < n; i++) {
        ucs_status_t status;

        if (!settings[i].value[0])
            continue;
        status = ucp_config_modify(config, settings[i].key, settings[i].value);
        if (status != UCS_OK)
            return error_set(e, ERROR_INVALID_ARGUMENT, "UCX takes no %s of '%s': %s",
                             settings[i].key, settings[i].value, ucs_status_string(status));
    }
    return 0;
}

static int init_context(struct ucx_transport *u, const struct setting *settings, size_t n,
                        struct error *e)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
    };
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    int r;

    if (status != UCS_OK)
        return set_status(e, status, "reading UCX's defaults");
    r = set_all(config, settings, n, e);
    if (r == 0) {
        status = ucp_init(&params, config, &u->context);
        if (status != UCS_OK)
            r = error_set(e, ERROR_SYSTEM, "starting UCX for %s: %s", u->description,
                          ucs_status_string(status));
    }
    ucp_config_release(config);
    return r;
}

/* Of transports that move it. TCP alone does not. */
static bool knows_gpus(const struct ucx_transport *u)
{
    ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };

    return ucp_context_query(u->context, &attr) == UCS_OK &&
           attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA);
}

static bool port_is_free(int family, unsigned port)
{
    const struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
    const bool is_v4 = family == AF_INET;
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool free;

    if (fd < 0)
        return false;
    free = bind(fd, is_v4 ? (const void *)&v4 : (const void *)&v6,
                is_v4 ? sizeof(v4) : sizeof(v6)) == 0;
    close(fd);
    return free;
}

/* Where all ports of its range are taken, UCX looks for one for ever: so we look first. */
static int find_port(const struct ucx_transport *u, struct error *e)
{
    if (!u->ports[0])
        return 0;
    for (unsigned port = u->ports[0]; port <= u->ports[1]; port++)
        if (port_is_free(u->family, port))
            return 0;
    return error_set(
        e, ERROR_SYSTEM,
        "no port of %u-%u is free; every peer needs one, and a minute after it is gone",
        u->ports[0], u->ports[1]);
}

static int configure(struct ucx_transport *u, const struct transport_config *config,
                     struct error *e)
{
    char device[IF_NAMESIZE];
    const char *devices = config->devices[0] ? config->devices : device;
    int r = ports_parse(config->ports, u->ports, e); /* UCX takes any text, for "any port" */

    if (r == 0)
        r = interface_of(config->address, device, &u->family, e);
    if (r < 0)
        return r;
    const struct setting settings[] = {
        { "LOG_LEVEL", "fatal" }, /* it writes to stdout */
        { "TLS", "tcp" },
        { "NET_DEVICES", devices },
        { "AF_PRIO", u->family == AF_INET ? "inet,inet6" : "inet6,inet" },
        { "PORT_RANGE", config->ports },
        { "ZCOPY_THRESH", "inf" },
        { "PUT_ENABLE", "n" },
        { "TX_SEG_SIZE", TX_SEGMENT },
        { "RX_SEG_SIZE", RX_SEGMENT },
        { "KEEPALIVE_INTERVAL", "inf" }, /* it finds nothing and keeps TCP's own from looking */
    };
    unsigned major, minor, release;

    ucp_get_version(&major, &minor, &release);
    snprintf(u->settings, sizeof(u->settings), "ucx %u.%u tx=%s rx=%s window=%u", major, minor,
             TX_SEGMENT, RX_SEGMENT, EAGER_WINDOW);
    snprintf(u->description, sizeof(u->description), "tcp %s", devices);
    r = init_context(u, settings, ARRAY_SIZE(settings), e);
    if (r == 0)
        u->gpus = knows_gpus(u);
    return r;
}

static struct transport *transport_free(struct ucx_transport *u)
{
    channels_fini(&u->channels);
    if (u->context)
        ucp_cleanup(u->context);
    if (u->epoll >= 0)
        close(u->epoll);
    free(u);
    return NULL;
}

static int open_transport(const struct transport_config *config, struct transport **ret,
                          struct error *e)
{
    struct ucx_transport *u = calloc(1, sizeof(*u));
    int r;

    if (!u)
        return error_set_errno(e, ENOMEM, "making a transport");
    u->base.ops = &transport_ucx;
    list_init(&u->active);
    channels_init(&u->channels);
    u->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (u->epoll < 0)
        r = error_set_errno(e, errno, "making an epoll descriptor");
    else
        r = configure(u, config, e);
    if (r < 0) {
        transport_free(u);
        return r;
    }
    *ret = &u->base;
    return 0;
}

static void close_transport(struct transport *t)
{
    transport_free(ucx_transport(t));
}

static const char *settings(const struct transport *t)
{
    return container_of(t, const struct ucx_transport, base)->settings;
}

static const char *describe(const struct transport *t)
{
    return container_of(t, const struct ucx_transport, base)->description;
}

/* What is eager goes through memory of ours, whichever end it concerns. */
static uint64_t gpu_bytes_min(const struct transport *t)
{
    return container_of(t, const struct ucx_transport, base)->gpus ? EAGER_BYTES_MAX + 1
                                                                   : TRANSPORT_NO_GPUS;
}

/* Peers */

static void peer_release(struct ucx_peer *p)
{
    if (p->address)
        ucp_worker_release_address(p->worker, p->address);
    if (p->worker)
        ucp_worker_destroy(p->worker);
    free(p);
}

static ucs_status_t make_worker(struct ucx_peer *p)
{
    const ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucs_status_t status =
        ucp_worker_create(ucx_transport(p->base.transport)->context, &params, &p->worker);

    if (status == UCS_OK)
        status = ucx_receive_start(p);
    if (status == UCS_OK)
        status = ucp_worker_get_efd(p->worker, &p->fd);
    if (status == UCS_OK)
        status = ucp_worker_get_address(p->worker, &p->address, &p->address_bytes);
    return status;
}

static int peer_new(struct transport *t, struct transport_peer **ret, struct error *e)
{
    struct ucx_peer *p;
    ucs_status_t status;
    int r = find_port(ucx_transport(t), e);

    if (r < 0)
        return r;
    p = calloc(1, sizeof(*p));
    if (!p)
        return error_set_errno(e, ENOMEM, "making a peer");
    p->base.transport = t;
    list_init(&p->active);
    list_init(&p->running);
    list_init(&p->finished);
    for (size_t i = 0; i < MESSAGE_BUCKETS; i++) {
        list_init(&p->posted[i]);
        list_init(&p->arrived[i]);
    }
    status = make_worker(p);
    if (status == UCS_OK && p->address_bytes > TRANSPORT_ADDRESS_MAX)
        status = UCS_ERR_EXCEEDS_LIMIT;
    if (status != UCS_OK) {
        peer_release(p);
        return set_status(e, status, "making a UCX worker");
    }
    *ret = &p->base;
    return 0;
}

static const void *peer_address(const struct transport_peer *peer, size_t *ret_len)
{
    const struct ucx_peer *p = container_of(peer, const struct ucx_peer, base);

    *ret_len = p->address_bytes;
    return p->address;
}

static void endpoint_failed(void *arg, ucp_ep_h endpoint, ucs_status_t status)
{
    (void)endpoint;
    ucx_peer_fail(arg, ucx_errno(status));
}

/* Until now the worker has been left alone: what comes for it needs an endpoint that tells of
 * errors. */
static int peer_connect(struct transport_peer *peer, const void *address, size_t len,
                        struct error *e)
{
    struct ucx_peer *p = ucx_peer(peer);
    struct ucx_transport *u = ucx_transport(peer->transport);
    struct epoll_event event = { .events = EPOLLIN, .data.ptr = p };
    const ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = endpoint_failed, .arg = p },
    };
    ucs_status_t status;

    if (!len || len > TRANSPORT_ADDRESS_MAX)
        return error_set(e, ERROR_PROTOCOL, "a UCX address of %zu bytes", len);
    if (epoll_ctl(u->epoll, EPOLL_CTL_ADD, p->fd, &event) < 0)
        return error_set_errno(e, errno, "watching a UCX worker");
    status = ucp_ep_create(p->worker, &params, &p->endpoint);
    if (status != UCS_OK) {
        epoll_ctl(u->epoll, EPOLL_CTL_DEL, p->fd, NULL);
        return set_status(e, status, "making a UCX endpoint");
    }
    ucx_peer_activate(p);
    return 0;
}

static void close_ended(void *request, ucs_status_t status, void *owner)
{
    struct ucx_peer *p = owner;

    (void)status;
    ucp_request_free(request);
    p->nrequests--;
}

static void close_endpoint(struct ucx_peer *p)
{
    const ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = close_ended,
        .user_data = p,
    };

    p->nrequests += UCS_PTR_IS_PTR(ucp_ep_close_nbx(p->endpoint, &param));
}

/* A worker must not be destroyed while it has requests. One whose requests never end is left alone
 * for good, which also keeps it from their memory. */
static void drain(struct ucx_peer *p)
{
    unsigned idle = 0;

    while (p->nrequests && idle < DRAIN_ROUNDS)
        idle = ucp_worker_progress(p->worker) ? 0 : idle + 1;
    if (!p->nrequests)
        return;
    log_error(NULL, "UCX does not end %u requests of a closed endpoint; their memory is lost",
              p->nrequests);
    p->worker = NULL;
    p->address = NULL;
}

static void peer_free(struct transport_peer *peer)
{
    struct ucx_peer *p = ucx_peer(peer);

    p->failure = ECONNRESET;
    ucx_receive_drop(p);
    if (p->endpoint) {
        epoll_ctl(ucx_transport(peer->transport)->epoll, EPOLL_CTL_DEL, p->fd, NULL);
        close_endpoint(p);
        drain(p);
    }
    ucx_message_finish_due(p);
    ucx_message_abandon(p);
    list_remove(&p->active);
    peer_release(p);
}

void ucx_peer_fail(struct ucx_peer *p, int err)
{
    if (p->failure)
        return;
    p->failure = err;
    ucx_peer_activate(p);
}

static void peer_watch(struct transport_peer *peer, void (*failed)(void *owner, int err),
                       void *owner)
{
    struct ucx_peer *p = ucx_peer(peer);

    p->failed = failed;
    p->owner = owner;
    if (p->failure)
        ucx_peer_activate(p);
}

/* Turns */

/* UCX's descriptor speaks only after it was armed, which it refuses while there is work. */
static void progress(struct ucx_peer *p)
{
    unsigned rounds = 0;
    ucs_status_t status = UCS_ERR_BUSY;

    while (rounds < PROGRESS_ROUNDS && ucp_worker_progress(p->worker))
        rounds++;
    ucx_send_credit(p);
    list_remove(&p->active);
    if (rounds < PROGRESS_ROUNDS)
        status = ucp_worker_arm(p->worker);
    if (status == UCS_ERR_BUSY)
        ucx_peer_activate(p);
    else if (status != UCS_OK)
        ucx_peer_fail(p, ucx_errno(status));
}

static void take_turn(struct ucx_peer *p)
{
    if (p->endpoint)
        progress(p);
    ucx_message_finish_due(p);
    if (p->failure && p->failed && !p->told) {
        p->told = true;
        p->failed(p->owner, p->failure);
    }
}

static void find_ready(struct ucx_transport *u)
{
    struct epoll_event events[READY_MAX];
    const int n = epoll_wait(u->epoll, events, READY_MAX, 0);

    for (int i = 0; i < n; i++)
        ucx_peer_activate(events[i].data.ptr);
}

static void poll_transport(struct transport *t)
{
    struct ucx_transport *u = ucx_transport(t);
    struct list turn;

    find_ready(u);
    list_init(&turn);
    while (!list_empty(&u->active)) {
        struct ucx_peer *p = list_first(&u->active, struct ucx_peer, active);

        list_remove(&p->active);
        list_append(&turn, &p->active);
    }
    while (!list_empty(&turn)) {
        struct ucx_peer *p = list_first(&turn, struct ucx_peer, active);

        list_remove(&p->active);
        take_turn(p);
    }
}

static bool wants_turn(struct transport *t)
{
    return !list_empty(&ucx_transport(t)->active);
}

static int descriptor(const struct transport *t)
{
    return container_of(t, const struct ucx_transport, base)->epoll;
}

const struct transport_ops transport_ucx = {
    .name = "ucx",
    .open = open_transport,
    .close = close_transport,
    .settings = settings,
    .describe = describe,
    .gpu_bytes_min = gpu_bytes_min,
    .peer_new = peer_new,
    .peer_address = peer_address,
    .peer_connect = peer_connect,
    .peer_free = peer_free,
    .peer_watch = peer_watch,
    .channel_open = ucx_channel_open,
    .channel_close = ucx_channel_close,
    .channel_forget = ucx_channel_forget,
    .send = ucx_send,
    .recv = ucx_recv,
    .cancel = ucx_cancel,
    .poll = poll_transport,
    .wants_turn = wants_turn,
    .fd = descriptor,
};
