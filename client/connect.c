/* How a connection starts and stops, and how a program with a loop of its own drives it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/comm.h"
#include "client/conn.h"
#include "client/region.h"
#include "client/report.h"
#include "shared/socket_path.h"

#define SLOTS_MAX 65536u

/* Whoever connects to a file or a directory is refused as by a dead daemon's socket. */
static int refused(const char *path, struct error *e)
{
    struct stat status;

    if (stat(path, &status) == 0 && !S_ISSOCK(status.st_mode))
        return error_set(e, ERROR_SYSTEM, "%s is no socket, so it cannot be ruccld's", path);
    return error_set(e, ERROR_SYSTEM,
                     "nobody listens at %s any more: ruccld has ended and must be started", path);
}

static int connect_failed(const char *path, int err, struct error *e)
{
    switch (err) {
    case ENOENT:
        return error_set(e, ERROR_SYSTEM, "no daemon at %s: is ruccld running?", path);
    case ECONNREFUSED:
        return refused(path, e);
    case EACCES:
    case EPERM:
        return error_set(e, ERROR_PERMISSION, "connect to %s: %s", path, strerror(err));
    case EPROTOTYPE:
        return error_set(e, ERROR_SYSTEM, "the socket at %s is not ruccld's", path);
    default:
        return error_set(e, ERROR_SYSTEM, "connect to %s: %s", path, strerror(err));
    }
}

static int connect_socket(struct ruccl_conn *c, int64_t deadline, struct error *e)
{
    const struct timespec pause = { .tv_nsec = 5000000 };
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    strcpy(address.sun_path, c->path);
    while (connect(c->socket, (struct sockaddr *)&address, sizeof(address)) < 0) {
        /* The daemon's queue of connections is full, which no poll() can wait for. */
        if (errno != EAGAIN && errno != EINTR)
            return connect_failed(c->path, errno, e);
        if (conn_now() >= deadline)
            return error_set(e, ERROR_TIMEOUT, "the daemon at %s accepts nobody", c->path);
        nanosleep(&pause, NULL);
    }
    return 0;
}

static int map_cells(struct ruccl_conn *c, const struct answer *welcome, struct error *e)
{
    const uint32_t nslots = MIN(welcome->slots, SLOTS_MAX);
    size_t bytes = welcome->rings ? daemon_memory_bytes(nslots) : nslots * sizeof(*c->cells);
    struct stat status;
    void *cells;

    if (welcome->slots == 0 || welcome->slots > SLOTS_MAX || welcome->fd < 0 ||
        fstat(welcome->fd, &status) < 0 || (uint64_t)status.st_size < bytes)
        return error_set(e, ERROR_PROTOCOL, "the daemon at %s welcomes without progress cells",
                         c->path);
    cells = mmap(NULL, bytes, PROT_READ, MAP_SHARED, welcome->fd, 0);
    if (cells == MAP_FAILED)
        return error_set_errno(e, errno, "map the progress cells");
    c->cells = cells;
    c->cells_bytes = bytes;
    c->nslots = welcome->slots;
    c->free_slots = calloc(c->nslots, sizeof(*c->free_slots));
    if (!c->free_slots)
        return error_set_errno(e, ENOMEM, "connect");
    for (uint32_t slot = c->nslots; slot > 0; slot--)
        conn_give_slot(c, slot - 1);
    return 0;
}

static int say_hello(struct ruccl_conn *c, const char *name, int64_t deadline, struct error *e)
{
    struct request q = {
        .kind = REQUEST_HELLO,
        .hello = { .version_min = CODEC_VERSION_MIN,
                   .version_max = CODEC_VERSION_MAX,
                   .name = name },
    };
    struct answer welcome = { .fd = -1 };
    int r, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    /* By it the daemon learns of our death even while a forked child keeps the socket open. */
    if (pidfd < 0)
        return error_set_errno(e, errno, "pidfd_open");
    r = conn_ask(c, &q, pidfd, deadline, &welcome, e);
    close(pidfd);
    if (r == 0)
        r = map_cells(c, &welcome, e);
    if (welcome.fd >= 0)
        close(welcome.fd);
    c->has_gpus = welcome.gpus;
    c->has_slates = welcome.slates;
    if (r == 0 && welcome.rings)
        r = rings_open(c, (const void *)((const char *)c->cells + daemon_rings_offset(c->nslots)),
                       welcome.spin_us, deadline, e);
    return r;
}

static void let_go(struct ruccl_conn *c, const struct error *why)
{
    conn_end(c, why);
    members_free_all(c);
    regions_free_all(c);
    conn_unref(c);
}

static int start(struct ruccl_conn *c, const char *name, struct error *e)
{
    int64_t deadline = conn_deadline(DAEMON_ANSWERS_US);
    int r;

    r = connect_socket(c, deadline, e);
    if (r < 0)
        return r;
    return say_hello(c, name, deadline, e);
}

int ruccl_connect(const char *path, const char *name, struct ruccl_conn **ret)
{
    char buffer[sizeof(((struct ruccl_conn *)0)->path)];
    struct ruccl_conn *c;
    struct error e = { 0 };
    int r;

    if (!ret || (name && strlen(name) > CODEC_NAME_MAX))
        return report_new(ERROR_INVALID_ARGUMENT, "connect: %s",
                          ret ? "the name is longer than 63 bytes" : "ret is NULL");
    if (!path && socket_path_default(buffer, sizeof(buffer), &e) < 0)
        return report_error(&e);
    if (conn_new(path ? path : buffer, &c, &e) < 0)
        return report_error(&e);
    conn_enter(c);
    r = start(c, name, &e);
    if (r < 0)
        let_go(c, &e);
    else
        report_log(REPORT_INFO, "connected to %s, %u slots", c->path, c->nslots);
    conn_exit(c);
    if (r < 0)
        return report_error(&e);
    *ret = c;
    return 0;
}

/*
 * In a forked child: what is shared with the parent stays as it is, so no shutdown and no messages.
 * If a thread of the parent held the lock at the fork, the tables may be half changed; then memory
 * is left alone, and only the descriptors go.
 */
static void close_in_child(struct ruccl_conn *c)
{
    int *const fds[] = { &c->socket, &c->nudge, &c->loop, &c->news };

    for (size_t i = 0; i < ARRAY_SIZE(fds); i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
    if (pthread_mutex_trylock(&c->lock))
        return;
    members_free_all(c);
    regions_free_all(c);
    conn_exit(c);
}

void ruccl_close(struct ruccl_conn *c)
{
    struct error e = { 0 };

    if (!c)
        return;
    if (c->pid != getpid()) {
        close_in_child(c);
        return;
    }
    if (conn_enter(c) < 0)
        return;
    error_set(&e, ERROR_CLOSED, "the connection to %s was closed by ruccl_close()", c->path);
    let_go(c, &e);
    conn_exit(c);
}

/*
 * The user's loop must also wake for what another thread, or a blocking call of its own, has read
 * in passing; hence not the bare socket.
 */
static int loop_open(struct ruccl_conn *c, struct error *e)
{
    struct epoll_event event = { .events = EPOLLIN };
    int loop = epoll_create1(EPOLL_CLOEXEC), news = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);

    if (loop < 0 || news < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, c->socket, &event) < 0 ||
        epoll_ctl(loop, EPOLL_CTL_ADD, news, &event) < 0) {
        error_set_errno(e, errno, "ruccl_fd: epoll");
        if (loop >= 0)
            close(loop);
        if (news >= 0)
            close(news);
        return -(int)e->code;
    }
    c->loop = loop;
    c->news = news;
    conn_nudge(c); /* the leader sleeps at the socket from now on */
    return 0;
}

int ruccl_fd(struct ruccl_conn *c)
{
    struct error e = { 0 };
    int r;

    if (!c)
        return report_new(ERROR_INVALID_ARGUMENT, "ruccl_fd: conn is NULL");
    r = conn_enter(c);
    if (r < 0)
        return r;
    if (c->loop < 0)
        r = loop_open(c, &e);
    if (r == 0)
        r = c->loop;
    conn_exit(c);
    return r < 0 ? report_error(&e) : r;
}

int ruccl_dispatch(struct ruccl_conn *c)
{
    struct error e = { 0 };
    eventfd_t ignored;
    int r;

    if (!c)
        return report_new(ERROR_INVALID_ARGUMENT, "ruccl_dispatch: conn is NULL");
    r = conn_enter(c);
    if (r < 0)
        return r;
    conn_poll_before_sleep(c);
    if (c->news >= 0)
        eventfd_read(c->news, &ignored);
    r = conn_check(c, &e);
    conn_exit(c);
    return r < 0 ? report_error(&e) : 0;
}
