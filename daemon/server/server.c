#include "daemon/server/server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log/log.h"
#include "daemon/server/links.h"
#include "daemon/server/listener.h"
#include "daemon/server/session.h"
#include "proto/codec.h"

#define LOOKS_PER_TURN    16u /* at the rings, before the sockets have their turn */
#define ACCEPTS_PER_EVENT 16u
#define ACCEPT_PAUSE_US   1000000u /* without room for another descriptor */
#define CLOSE_TIMEOUT_US  5000000u /* for what still moves when every communicator has failed */

static const int signums[] = { SIGTERM, SIGINT, SIGHUP };

enum server_state {
    SERVER_SERVING,
    SERVER_DRAINING, /* nothing new; waits for what is unfinished */
    SERVER_CLOSING,  /* everything has failed; waits for memory to be let go of */
    SERVER_DONE,
    SERVER_ABANDONED, /* told to stop at once, or CLOSING took too long */
};

struct server {
    const struct server_parts *parts;
    struct service service;
    struct listener listener;
    enum server_state state;
    uint64_t state_deadline; /* of DRAINING and CLOSING */
    bool goes_first;
    uint64_t accept_pause; /* until when nothing is accepted; 0: accepting */
    int spare_fd;          /* given up to turn a connection away when there is no room for one */

    uv_loop_t loop;
    uv_prepare_t turn; /* what is due, before each wait */
    uv_timer_t alarm;  /* ends the wait when something is due */
    uv_idle_t busy;    /* keeps the loop from waiting while somebody has more to do */
    uv_poll_t accept, engine, gpus, transport;
    uv_signal_t signals[ARRAY_SIZE(signums)];
    uv_timer_t watchdog;
};

static const char *const state_names[] = {
    [SERVER_SERVING] = "serving", [SERVER_DRAINING] = "draining", [SERVER_CLOSING] = "closing",
    [SERVER_DONE] = "stopped",    [SERVER_ABANDONED] = "stopped",
};

/* ---- states ---- */

static void server_set_state(struct server *s, enum server_state state)
{
    assert(state > s->state);
    log_notice(NULL, "%s -> %s", state_names[s->state], state_names[state]);
    s->state = state;
    s->service.state = state_names[state];
    s->state_deadline = TIME_NEVER;
}

static void on_accept(uv_poll_t *handle, int status, int events);

static void server_drain(struct server *s, uint64_t now)
{
    uint32_t unfinished = comms_unfinished(s->service.comms);

    server_set_state(s, SERVER_DRAINING);
    s->state_deadline = now + s->parts->config->drain_timeout_us;
    s->accept_pause = 0;
    uv_poll_stop(&s->accept);
    listener_shut(&s->listener);
    comms_stop(s->service.comms);
    sd_notifyf(0, "STOPPING=1\nSTATUS=draining: %u unfinished", unfinished);
}

/* Tells everybody. What is still in flight lets go of its memory by itself, soon. */
static void server_fail_all(struct server *s, uint64_t now)
{
    uint32_t unfinished = comms_unfinished(s->service.comms);
    struct error cause = { 0 };

    if (unfinished)
        log_warning(NULL, "%u operation%s not finished in time", unfinished,
                    unfinished == 1 ? " was" : "s were");
    server_set_state(s, SERVER_CLOSING);
    s->state_deadline = now + CLOSE_TIMEOUT_US;
    error_set(&cause, ERROR_DAEMON_STOPPING, "the daemon (pid %d) was told to stop", getpid());
    comms_fail_all(s->service.comms, &cause, now);
    sessions_doom_all(&s->service, &cause);
}

static void server_close_handles(struct server *s);

/* A stop's progress: each step when the one before has nothing left to wait for. */
static void server_advance(struct server *s, uint64_t now)
{
    if (s->state == SERVER_DRAINING &&
        (!comms_unfinished(s->service.comms) || now >= s->state_deadline))
        server_fail_all(s, now);

    if (s->state != SERVER_CLOSING)
        return;
    sessions_turn(&s->service, now);
    if (!comms_unfinished(s->service.comms)) {
        server_set_state(s, SERVER_DONE);
    } else if (now >= s->state_deadline) {
        const uint32_t stuck = comms_unfinished(s->service.comms);

        log_error(NULL, "%u operation%s memory", stuck,
                  stuck == 1 ? " does not let go of its" : "s do not let go of their");
        server_set_state(s, SERVER_ABANDONED);
    }
    if (s->state >= SERVER_DONE)
        server_close_handles(s);
}

/* ---- the turn ---- */

static void on_alarm(uv_timer_t *handle)
{
    (void)handle; /* it only ended the wait */
}

static void on_busy(uv_idle_t *handle)
{
    (void)handle; /* it only keeps the loop from waiting */
}

static void server_resume_accept(struct server *s)
{
    s->accept_pause = 0;
    uv_poll_start(&s->accept, UV_READABLE, on_accept);
}

/* Waits until `due` at most; not at all while somebody has more to do. */
static void server_arm(struct server *s, uint64_t due, uint64_t now)
{
    if (sessions_are_awake(&s->service) || engine_wants_turn(s->parts->engine))
        uv_idle_start(&s->busy, on_busy);
    else
        uv_idle_stop(&s->busy);

    if (due == TIME_NEVER) {
        uv_timer_stop(&s->alarm);
    } else {
        uv_update_time(&s->loop);
        uv_timer_start(&s->alarm, on_alarm, due > now ? div_up_u64(due - now, 1000) : 0, 0);
    }
}

/*
 * The scheduler is fair: a rank that looks for its answer on this thread's CPU is given as much of
 * it as the work took. So the thread goes first while there is work; with none to speak of, that
 * would only keep the ranks from their turn.
 */
static void server_go_first(struct server *s, bool first)
{
    const int nice = first ? -(int)s->parts->config->priority : 0;

    if (first == s->goes_first)
        return;
    s->goes_first = first;
    setpriority(PRIO_PROCESS, 0, nice); /* not everybody may, and it is about speed alone */
}

/* Whether anything is awaited that does not come by a ring. */
static bool server_awaits(const struct server *s)
{
    return engine_is_busy(s->parts->engine) || (s->service.links && links_expect(s->service.links));
}

/* A system call costs more than many looks. */
static void server_look(struct server *s)
{
    unsigned n = 0;

    do
        sessions_look(&s->service);
    while (++n < LOOKS_PER_TURN && sessions_are_awake(&s->service) && !server_awaits(s));
}

static void on_turn(uv_prepare_t *handle)
{
    struct server *s = handle->data;
    struct engine *engine = s->parts->engine;
    uint64_t now, due;

    sessions_ring(&s->service);
    server_look(s);
    now = service_now();
    server_go_first(s, engine_works(engine));
    if (engine_wants_turn(engine))
        engine_poll(engine);
    if (comms_deadline(s->service.comms) <= now)
        comms_tick(s->service.comms, now);
    if (s->service.links)
        links_turn(s->service.links, now);
    if (s->accept_pause && s->accept_pause <= now)
        server_resume_accept(s);
    due = sessions_turn(&s->service, now);
    server_advance(s, now);
    sessions_ring(&s->service);
    if (s->state >= SERVER_DONE)
        return;

    due = MIN(due, comms_deadline(s->service.comms));
    due = MIN(due, s->state_deadline);
    if (s->service.links)
        due = MIN(due, links_deadline(s->service.links));
    if (s->accept_pause)
        due = MIN(due, s->accept_pause);
    server_arm(s, due, now);
}

static void on_engine(uv_poll_t *handle, int status, int events)
{
    struct server *s = handle->data;

    (void)status;
    (void)events;
    engine_poll(s->parts->engine);
}

/* ---- connections ---- */

static int spare_fd(void)
{
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* No room: takes one connection in the spare's place and closes it, so that it does not wait for
 * ever, and rests, since the next would fare no better. */
static void server_turn_away(struct server *s)
{
    log_warning(NULL, "no file descriptor for another connection; none is taken for a second");
    if (s->spare_fd >= 0) {
        close(s->spare_fd);
        int fd = accept4(s->listener.socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0)
            close(fd);
        s->spare_fd = spare_fd();
    }
    uv_poll_stop(&s->accept);
    s->accept_pause = service_now() + ACCEPT_PAUSE_US;
}

static void on_accept(uv_poll_t *handle, int status, int events)
{
    struct server *s = handle->data;

    (void)status;
    (void)events;
    for (unsigned i = 0; i < ACCEPTS_PER_EVENT; i++) {
        int fd = accept4(s->listener.socket, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd >= 0) {
            session_open(&s->service, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            server_turn_away(s);
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* ---- signals ---- */

static void server_reload(struct server *s)
{
    struct error e = { 0 };

    sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)service_now());
    if (config_reload(s->parts->argc, s->parts->argv, s->parts->config, &e) < 0)
        log_error(NULL, "the configuration stays as it was: %s", e.text);
    else
        log_notice(NULL, "read the configuration again");
    log_set_level((enum log_level)s->parts->config->log_level);
    comms_set_max(s->service.comms, (uint32_t)s->parts->config->max_communicators);
    sd_notify(0, "READY=1");
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct server *s = handle->data;

    if (signum == SIGHUP) {
        server_reload(s);
    } else if (s->state == SERVER_SERVING) {
        server_drain(s, service_now());
    } else {
        log_warning(NULL, "told twice: stopping at once");
        server_set_state(s, SERVER_ABANDONED);
        server_close_handles(s);
    }
}

static void on_watchdog(uv_timer_t *handle)
{
    (void)handle;
    sd_notify(0, "WATCHDOG=1");
}

/* ---- start and stop ---- */

static void server_raise_fd_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
        log_warning(NULL, "cannot raise the limit of open files: %s", strerror(errno));
}

static int server_poll(struct server *s, uv_poll_t *poll, int fd, uv_poll_cb callback)
{
    int r = uv_poll_init(&s->loop, poll, fd);

    return r < 0 ? r : uv_poll_start(poll, UV_READABLE, callback);
}

static void server_start_watchdog(struct server *s)
{
    uint64_t limit_us;

    uv_timer_init(&s->loop, &s->watchdog);
    if (sd_watchdog_enabled(0, &limit_us) <= 0)
        return;
    uint64_t period_ms = MAX(limit_us / 2000, 1u);

    uv_timer_start(&s->watchdog, on_watchdog, period_ms, period_ms);
}

static void set_data(uv_handle_t *handle, void *server)
{
    handle->data = server;
}

static int server_start(struct server *s)
{
    int r = 0;

    uv_prepare_init(&s->loop, &s->turn);
    uv_idle_init(&s->loop, &s->busy);
    uv_timer_init(&s->loop, &s->alarm);
    server_start_watchdog(s);
    uv_prepare_start(&s->turn, on_turn);
    for (size_t i = 0; i < ARRAY_SIZE(signums); i++) {
        uv_signal_init(&s->loop, &s->signals[i]);
        r = r < 0 ? r : uv_signal_start(&s->signals[i], on_signal, signums[i]);
    }
    if (r == 0)
        r = server_poll(s, &s->engine, engine_fd(s->parts->engine), on_engine);
    if (r == 0 && engine_gpu_fd(s->parts->engine) >= 0)
        r = server_poll(s, &s->gpus, engine_gpu_fd(s->parts->engine), on_engine);
    if (r == 0 && engine_transport_fd(s->parts->engine) >= 0)
        r = server_poll(s, &s->transport, engine_transport_fd(s->parts->engine), on_engine);
    if (r == 0)
        r = server_poll(s, &s->accept, s->listener.socket, on_accept);
    uv_walk(&s->loop, set_data, s);
    return r;
}

static void close_handle(uv_handle_t *handle, void *unused)
{
    (void)unused;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Closed handles give their signals the fatal meaning back: blocked, one that comes now does not
 * keep the rest from being put away. */
static void server_close_handles(struct server *s)
{
    sigset_t stops;

    sigemptyset(&stops);
    for (size_t i = 0; i < ARRAY_SIZE(signums); i++)
        sigaddset(&stops, signums[i]);
    pthread_sigmask(SIG_BLOCK, &stops, NULL);
    links_close(steal(&s->service.links));
    uv_walk(&s->loop, close_handle, NULL);
}

static int server_open_links(struct server *s, struct error *e)
{
    static const struct links_events events = {
        .up = comms_link_up,
        .message = comms_link_message,
        .lost = comms_link_lost,
    };
    const struct config *config = s->parts->config;
    struct link_key key;
    struct links_config links = {
        .loop = &s->loop,
        .listen = config->listen,
        .advertise = config->advertise,
        .node = config->node,
        .host = s->parts->comms.host,
        .key = &key,
        .version_min = PEER_VERSION_MIN,
        .version_max = PEER_VERSION_MAX,
        .transport = s->parts->transport,
        .connect_timeout_us = config->connect_timeout_us,
        .peer_timeout_us = config->peer_timeout_us,
        .max_strangers = config->max_peer_strangers,
    };
    int r = 0;

    if (!*config->listen)
        return 0;
    link_key_none(&key);
    if (*config->cluster_key)
        r = link_key_read(config->cluster_key, &key, e);
    if (r == 0)
        r = links_open(&links, &events, &s->service.links, e);
    link_key_forget(&key);
    return r;
}

/* Comm stands on the links, and they tell it what comes. */
static int server_make_comms(struct server *s, struct error *e)
{
    struct comms_config config = s->parts->comms;
    int r = server_open_links(s, e);

    if (r < 0)
        return r;
    if (s->service.links) {
        config.address = links_address(s->service.links);
        config.link_ops = &link_ops;
        config.links = s->service.links;
    }
    config.charge = quota_charge_memory;
    config.release = quota_release_memory;
    config.books = &s->service.quotas;
    r = comms_new(&config, &session_events, &s->service.comms);
    if (r < 0)
        return error_set_errno(e, -r, "making the communicators' table");
    if (s->service.links)
        links_serve(s->service.links, s->service.comms);
    return 0;
}

static int server_serve(struct server *s, struct error *e)
{
    int r = server_start(s);

    if (r < 0)
        error_set(e, ERROR_SYSTEM, "starting the loop: %s", uv_strerror(r));
    else
        r = server_make_comms(s, e);
    if (r < 0) {
        server_close_handles(s);
        uv_run(&s->loop, UV_RUN_DEFAULT);
        return -(int)e->code;
    }
    log_notice(NULL, "ruccld " PROJECT_VERSION " serves %s as node %s", s->listener.path,
               s->parts->config->node);
    sd_notifyf(0, "READY=1\nSTATUS=serving %s", s->listener.path);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    if (s->state == SERVER_ABANDONED)
        return error_set(e, ERROR_ABORTED, "stopped at once");
    return 0;
}

static void service_init(struct service *service, const struct server_parts *parts, uv_loop_t *loop)
{
    service->loop = loop;
    service->config = parts->config;
    service->device = parts->device;
    service->gpus = parts->gpus;
    service->no_gpus = parts->no_gpus;
    service->kernels = parts->kernels;
    service->overflow_uid = parts->overflow_uid;
    service->state = state_names[SERVER_SERVING];
    service->started_us = service_now();
    service->quotas.config = parts->config;
    list_init(&service->sessions);
    list_init(&service->timed);
    list_init(&service->doomed);
    list_init(&service->awake);
    list_init(&service->owed);
    list_init(&service->belfries);
    list_init(&service->lingering);
}

static int server_open_loop(struct server *s, struct error *e)
{
    int r = codec_new(&s->service.codec);

    if (r == 0)
        r = uv_loop_init(&s->loop);
    if (r == 0)
        return 0;
    s->service.codec = codec_free(s->service.codec);
    return error_set(e, ERROR_SYSTEM, "making the loop: %s", uv_strerror(r));
}

int server_run(const struct server_parts *parts, struct error *e)
{
    struct server *s = calloc(1, sizeof(*s)); /* two datagrams large */
    int r;

    if (!s)
        return error_set(e, ERROR_NO_MEMORY, "out of memory");
    s->parts = parts;
    s->state_deadline = TIME_NEVER;
    service_init(&s->service, parts, &s->loop);
    signal(SIGPIPE, SIG_IGN);
    server_raise_fd_limit();

    r = listener_open(&s->listener, parts->config->socket, (mode_t)parts->config->socket_mode, e);
    if (r < 0) {
        free(s);
        return r;
    }
    r = server_open_loop(s, e);
    if (r == 0) {
        s->spare_fd = spare_fd();
        r = server_serve(s, e);
        close(s->spare_fd);
        if (s->state != SERVER_ABANDONED) {
            comms_free(s->service.comms);
            service_sweep_regions(&s->service);
            uv_loop_close(&s->loop);
            codec_free(s->service.codec);
            quotas_fini(&s->service.quotas);
        }
    }
    listener_close(&s->listener);
    if (s->state != SERVER_ABANDONED)
        free(s);
    return r;
}
