#include "client/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/gpu.h"
#include "client/report.h"
#include "client/work.h"

#define READ_BATCH 64 /* replies before the lock is offered to others */

#define NS_PER_S 1000000000

/* A thread in conn_wait(). Each has its own condition: a reply wakes only those it is for. */
struct waiter {
    bool (*ready)(const void *subject);
    const void *subject;
    pthread_cond_t *wake; /* NULL: it does not sleep behind a leader */
    struct list link;     // ruccl_conn::waiters
};

int64_t conn_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

int64_t conn_deadline(int64_t timeout_us)
{
    int64_t now = conn_now();

    if (timeout_us < 0 || timeout_us > (INT64_MAX - now) / 1000)
        return CONN_NO_DEADLINE;
    return now + timeout_us * 1000;
}

bool conn_is_over(int64_t deadline)
{
    return deadline != CONN_NO_DEADLINE && conn_now() >= deadline;
}

static struct timespec timespec_of(int64_t ns)
{
    return (struct timespec){ .tv_sec = ns / NS_PER_S, .tv_nsec = ns % NS_PER_S };
}

/* ---------------------------------------------------------------- life */

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void conn_free(struct ruccl_conn *c)
{
    close_fd(c->socket);
    close_fd(c->nudge);
    close_fd(c->loop);
    close_fd(c->news);
    rings_close(&c->rings);
    works_free_idle(c);
    gpus_free(c->gpus);
    if (c->cells)
        munmap((void *)c->cells, c->cells_bytes);
    codec_free(c->codec);
    free(c->free_slots);
    free(c->packet);
    free(c->buffer);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

int conn_new(const char *path, struct ruccl_conn **ret, struct error *e)
{
    struct ruccl_conn *c = calloc(1, sizeof(*c));

    if (!c || strlen(path) >= sizeof(c->path)) {
        free(c);
        return c ? error_set(e, ERROR_INVALID_ARGUMENT, "socket path %s is longer than %zu bytes",
                             path, sizeof(c->path) - 1)
                 : error_set_errno(e, ENOMEM, "connect");
    }
    strcpy(c->path, path);
    pthread_mutex_init(&c->lock, NULL);
    c->refs = 1;
    c->pid = getpid();
    c->loop = c->news = -1;
    list_init(&c->waiters);
    list_init(&c->chores);
    list_init(&c->idle);
    list_init(&c->members);
    list_init(&c->idle_works);
    for (uint32_t i = 0; i < CONN_BUCKETS; i++) {
        list_init(&c->pending[i]);
        list_init(&c->regions[i]);
        list_init(&c->idle_by_size[i]);
    }
    c->packet = malloc(sizeof(*c->packet));
    c->buffer = malloc(PACKET_BYTES_MAX);
    c->nudge = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->socket < 0 || c->nudge < 0) {
        int err = errno;

        conn_free(c);
        return error_set_errno(e, err, "connect: socket and eventfd");
    }
    if (!c->packet || !c->buffer || codec_new(&c->codec) < 0) {
        conn_free(c);
        return error_set_errno(e, ENOMEM, "connect");
    }
    *ret = c;
    return 0;
}

int conn_enter(struct ruccl_conn *c)
{
    /* Before the lock: in a forked child another thread of the parent may hold it for ever. */
    if (c->pid != getpid())
        return report_new(ERROR_FORKED,
                          "this connection was made by process %d, and %d is its forked child; "
                          "connect again in the child",
                          (int)c->pid, (int)getpid());
    pthread_mutex_lock(&c->lock);
    c->refs++;
    return 0;
}

void conn_exit(struct ruccl_conn *c)
{
    bool last = --c->refs == 0;

    pthread_mutex_unlock(&c->lock);
    if (last)
        conn_free(c);
}

struct ruccl_conn *conn_ref(struct ruccl_conn *c)
{
    c->refs++;
    return c;
}

void conn_unref(struct ruccl_conn *c)
{
    c->refs--;
}

/* ---------------------------------------------------------------- waiting */

void conn_nudge(struct ruccl_conn *c)
{
    if (!c->leading)
        return;
    rings_nudge(&c->rings);
    if (!c->at_bells)
        eventfd_write(c->nudge, 1);
}

static void waiter_wake(struct waiter *w)
{
    if (w->wake)
        pthread_cond_signal(w->wake);
}

void conn_wake(struct ruccl_conn *c)
{
    bool any = false;
    struct waiter *w;

    list_for_each(w, &c->waiters, link)
        if (w->ready(w->subject)) {
            waiter_wake(w);
            any = true;
        }
    if (any)
        conn_nudge(c); /* it may be the one */
}

static void announce_news(struct ruccl_conn *c)
{
    if (c->news >= 0)
        eventfd_write(c->news, 1);
}

void conn_end(struct ruccl_conn *c, const struct error *why)
{
    if (c->end.code)
        return;
    c->end = *why;
    report_log(REPORT_INFO, "connection to %s ended: %s", c->path, why->text);
    shutdown(c->socket, SHUT_RDWR);
    for (uint32_t i = 0; i < CONN_BUCKETS; i++)
        while (!list_empty(&c->pending[i])) {
            struct pending *p = list_first(&c->pending[i], struct pending, link);

            list_remove(&p->link);
            p->answered(p, NULL);
        }
    conn_nudge(c);
    announce_news(c);
    conn_wake(c);
}

int conn_check(const struct ruccl_conn *c, struct error *e)
{
    if (c->end.code)
        *e = c->end;
    return -(int)c->end.code;
}

static bool read_ring(struct ruccl_conn *c);

/* What is in the ring was said before. */
static void end_said(struct ruccl_conn *c, const struct error *why)
{
    while (read_ring(c))
        ;
    conn_end(c, why);
}

static void end_lost(struct ruccl_conn *c)
{
    struct error e = { 0 };

    error_set(&e, ERROR_DAEMON_LOST,
              "the daemon at %s closed the connection or died; connect again once it runs",
              c->path);
    end_said(c, &e);
}

/* NULL: to a request nobody waits for, or whose sender ran out of patience. Serials do not recur.
 */
static struct pending *pending_find(struct ruccl_conn *c, uint64_t serial)
{
    struct pending *p;

    list_for_each(p, &c->pending[serial % CONN_BUCKETS], link)
        if (p->serial == serial)
            return p;
    return NULL;
}

static void reply_route(struct ruccl_conn *c, const struct reply *reply)
{
    struct pending *p = pending_find(c, reply->serial);

    if (reply->kind == REPLY_GOODBYE) {
        end_said(c, &reply->done);
    } else if (p && reply->kind != REPLY_PROGRESS) {
        list_remove(&p->link);
        p->answered(p, reply);
    } else if (p && p->progressed) {
        p->progressed(p, reply->progress.elements_done);
    }
}

/* Routes the reply of `len` bytes in the packet. */
static int route_packet(struct ruccl_conn *c)
{
    struct reply reply;
    struct error e;
    int r;

    error_clear(&e);
    r = repeat_decode_reply(&c->answered, c->codec, c->packet->bytes, c->packet->len, &reply, &e);
    if (r < 0)
        conn_end(c, &e);
    else
        reply_route(c, &reply);
    return r;
}

static void end_broken(struct ruccl_conn *c)
{
    struct error e = { 0 };

    error_set(&e, ERROR_PROTOCOL, "the daemon at %s put what is no message into the ring", c->path);
    conn_end(c, &e);
}

/* Takes one reply out of the ring. False: nothing there, or the connection has ended. */
static bool read_ring(struct ruccl_conn *c)
{
    int r;

    if (!c->rings.memory || c->end.code)
        return false;
    c->packet->nfds = 0;
    r = ring_take(&c->rings.replies, c->packet->bytes, &c->packet->len);
    if (r == RING_EMPTY)
        return false;
    if (r < 0)
        end_broken(c);
    return r == 0 && route_packet(c) == 0;
}

/* Receives and routes one datagram. False: nothing there, or the connection has ended. */
static bool read_socket(struct ruccl_conn *c)
{
    struct error e = { 0 };
    int r;

    if (c->end.code)
        return false;
    r = packet_recv(c->socket, c->packet);
    if (r == PACKET_AGAIN)
        return false;
    if (r == PACKET_END) {
        end_lost(c);
        return false;
    }
    if (r < 0) {
        error_set_errno(&e, -r, "receive from the daemon");
        conn_end(c, &e);
        return false;
    }
    r = route_packet(c);
    packet_close_fds(c->packet);
    return r == 0;
}

void conn_lost(struct ruccl_conn *c)
{
    while (read_socket(c))
        ;
    end_lost(c);
}

/* Some of what has arrived by either way; all of it, if that is less than a batch. Return: how
 * many.
 */
static int read_batch(struct ruccl_conn *c, bool (*read_one)(struct ruccl_conn *c))
{
    int n = 0;

    while (n < READ_BATCH && read_one(c))
        n++;
    if (n)
        conn_wake(c);
    return n;
}

void conn_poll(struct ruccl_conn *c)
{
    const uint32_t mail = rings_mail(&c->rings);
    int from_ring, from_socket;

    if (c->leading)
        return;
    from_ring = read_batch(c, read_ring);
    from_socket = read_batch(c, read_socket);
    if (from_socket < READ_BATCH)
        rings_take_mail(&c->rings, mail);
    if (from_ring + from_socket)
        announce_news(c);
}

void conn_poll_before_sleep(struct ruccl_conn *c)
{
    do
        conn_poll(c);
    while (c->rings.memory && !c->leading && !ring_arm(&c->rings.replies, BELL_NONE));
}

static void sleep_at_socket(struct ruccl_conn *c, struct pollfd fds[2], int64_t deadline)
{
    struct timespec left = timespec_of(MAX(deadline - conn_now(), 0));

    if (c->rings.memory && !ring_arm(&c->rings.replies, BELL_NONE))
        return;
    fds[0] =
        (struct pollfd){ .fd = c->socket, .events = (short)(POLLIN | (c->blocked ? POLLOUT : 0)) };
    fds[1] = (struct pollfd){ .fd = c->nudge, .events = POLLIN };
    pthread_mutex_unlock(&c->lock);
    ppoll(fds, 2, deadline == CONN_NO_DEADLINE ? NULL : &left, NULL);
    pthread_mutex_lock(&c->lock);
}

static bool look_at_ring(struct ruccl_conn *c, int64_t deadline)
{
    bool found;

    if (!c->rings.memory)
        return false;
    pthread_mutex_unlock(&c->lock);
    found = rings_look(&c->rings, deadline);
    pthread_mutex_lock(&c->lock);
    return found;
}

/*
 * Not where the socket has to be waited at: for room in it, or for the user's loop, which is not
 * rung; or since the kernel cannot wait so, before Linux 5.16 or by a filter's word. A nudge that
 * came too late to end the sleep still ends this. Return: whether to look for what there is.
 */
static bool sleep_at_bells(struct ruccl_conn *c, uint32_t nudges, int64_t deadline)
{
    const uint32_t bell = c->rings.bell;
    int r;

    if (!c->rings.memory || bell == BELL_NONE || c->blocked || c->loop >= 0)
        return false;
    c->at_bells = true;
    pthread_mutex_unlock(&c->lock);
    r = rings_sleep(&c->rings, bell, nudges, deadline);
    pthread_mutex_lock(&c->lock);
    c->at_bells = false;
    if (r < 0)
        c->rings.bell = BELL_NONE;
    return r == 0 || atomic_load(&c->rings.nudges) != nudges;
}

/* A while at the ring, then one sleep, and what comes of it. */
static void lead(struct ruccl_conn *c, int64_t deadline)
{
    const uint32_t nudges = atomic_load(&c->rings.nudges);
    struct pollfd fds[2] = { 0 };
    eventfd_t ignored;

    c->leading = true;
    if (!look_at_ring(c, deadline) && !sleep_at_bells(c, nudges, deadline))
        sleep_at_socket(c, fds, deadline);
    c->leading = false;

    if (read_batch(c, read_ring))
        announce_news(c);
    if (fds[1].revents)
        eventfd_read(c->nudge, &ignored);
    if (rings_have_mail(&c->rings) || fds[0].revents & ~POLLOUT)
        conn_poll(c);
    if (fds[0].revents & POLLOUT) {
        c->blocked = false;
        conn_wake(c);
    }
}

static void wake_init(pthread_cond_t *wake)
{
    pthread_condattr_t attributes;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

static void follow(struct ruccl_conn *c, struct waiter *w, int64_t deadline)
{
    struct timespec until = timespec_of(deadline);
    pthread_cond_t wake;

    wake_init(&wake);
    w->wake = &wake;
    if (deadline == CONN_NO_DEADLINE)
        pthread_cond_wait(&wake, &c->lock);
    else
        pthread_cond_timedwait(&wake, &c->lock, &until);
    w->wake = NULL;
    pthread_cond_destroy(&wake);
}

/* Each once: they may go, and others come, while one of them lets go of the lock. */
static bool do_chores(struct ruccl_conn *c)
{
    bool moved = false;
    struct chore *k;
    uint32_t n = 0;

    list_for_each(k, &c->chores, link)
        n++;
    while (n-- > 0 && !list_empty(&c->chores)) {
        k = list_first(&c->chores, struct chore, link);
        list_remove(&k->link);
        list_append(&c->chores, &k->link);
        moved |= k->move(k);
    }
    return moved;
}

/* One leads; what only this thread knew of, the next one looks for. */
static void appoint(struct ruccl_conn *c)
{
    if (!list_empty(&c->chores))
        conn_nudge(c);
    if (!c->leading && !list_empty(&c->waiters))
        waiter_wake(list_first(&c->waiters, struct waiter, link));
}

/* A step of waiting. Return: 0, to look again, or CONN_TIMEOUT. */
static int wait_some(struct ruccl_conn *c, struct waiter *w, bool helps, int64_t deadline)
{
    const bool moved = helps && do_chores(c);

    if (w->ready(w->subject))
        return 0;
    if (conn_is_over(deadline))
        return CONN_TIMEOUT;
    if (moved)
        return 0;
    if (c->leading || c->end.code)
        follow(c, w, deadline);
    else
        lead(c, deadline);
    return 0;
}

static int wait_until(struct ruccl_conn *c, bool (*ready)(const void *subject), const void *subject,
                      bool helps, int64_t deadline)
{
    struct waiter w = { .ready = ready, .subject = subject };
    int r;

    list_append(&c->waiters, &w.link);
    do
        r = wait_some(c, &w, helps, deadline);
    while (r == 0 && !ready(subject));
    list_remove(&w.link);
    appoint(c);
    return r;
}

int conn_wait(struct ruccl_conn *c, bool (*ready)(const void *subject), const void *subject,
              int64_t deadline)
{
    return ready(subject) ? 0 : wait_until(c, ready, subject, true, deadline);
}

int conn_wait_alone(struct ruccl_conn *c, bool (*ready)(const void *subject), const void *subject,
                    int64_t deadline)
{
    return ready(subject) ? 0 : wait_until(c, ready, subject, false, deadline);
}

/* ---------------------------------------------------------------- slots */

static bool slot_is_free(const void *subject)
{
    const struct ruccl_conn *c = subject;

    return c->nfree > 0 || c->end.code;
}

int conn_take_slot(struct ruccl_conn *c, uint32_t *ret, struct error *e)
{
    int r;

    conn_wait(c, slot_is_free, c, CONN_NO_DEADLINE);
    r = conn_check(c, e);
    if (r < 0)
        return r;
    *ret = c->free_slots[--c->nfree];
    return 0;
}

void conn_give_slot(struct ruccl_conn *c, uint32_t slot)
{
    c->free_slots[c->nfree++] = slot;
}
