#include "daemon/server/session_private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/device/publish.h"

#define FDS_PER_SESSION 2u /* socket and pidfd; rings.c charges that of a uid's bells */

/* ---- hello ---- */

/* The pid that a pidfd stands for: 0 if it cannot be seen from here, -1 if it is dead. */
static int pidfd_pid(int fd, pid_t *ret)
{
    char path[64], line[128];
    FILE *info;
    int r = -EBADF;

    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
    info = fopen(path, "re");
    if (!info)
        return -errno;
    while (r < 0 && fgets(line, sizeof(line), info))
        if (sscanf(line, "Pid: %d", ret) == 1)
            r = 0;
    fclose(info);
    return r;
}

/* The client's own process and no other: a pidfd of a stranger would let that one's death count. */
static int hello_take_pidfd(struct session *s, struct packet *p)
{
    int fd = packet_take_fd(p, 0);
    pid_t pid;
    int r = pidfd_pid(fd, &pid);

    if (r < 0)
        r = session_refuse(s, "the descriptor in hello is no pidfd");
    else if (pid > 0 && s->pid > 0 && pid != s->pid)
        r = session_refuse(s, "the pidfd in hello is of pid %d, but pid %d connected", pid, s->pid);
    else
        r = session_watch_process(s, fd);
    if (s->pidfd != fd)
        close(fd);
    return r;
}

/* *ret_fd is the client's. */
static int hello_make_cells(struct session *s, int *ret_fd)
{
    void *cells;
    int r = publish("ruccl-progress", daemon_memory_bytes(s->nslots), PUBLISH_READABLE, &cells,
                    ret_fd);

    if (r == 0)
        s->cells = cells;
    return r;
}

/* From stranger to served: whatever is taken here, session_undo_hello() gives back. */
static int hello_charge(struct session *s, struct error *e)
{
    struct quotas *q = &s->service->quotas;
    int r = quota_charge(q, s->uid, QUOTA_SESSIONS, 1, e);

    if (r < 0)
        return r;
    r = quota_charge(q, s->uid, QUOTA_FDS, FDS_PER_SESSION, e);
    if (r < 0) {
        quota_release(q, s->uid, QUOTA_SESSIONS, 1);
        return r;
    }
    s->service->nsessions++;
    s->charged = true;
    return 0;
}

void session_undo_hello(struct session *s)
{
    free(s->slots);
    s->slots = NULL;
    if (!s->charged)
        return;
    quota_release(&s->service->quotas, s->uid, QUOTA_SESSIONS, 1);
    quota_release(&s->service->quotas, s->uid, QUOTA_FDS, FDS_PER_SESSION);
    s->service->nsessions--;
    s->charged = false;
    if (s->cells)
        munmap(s->cells, daemon_memory_bytes(s->nslots));
    s->cells = NULL;
}

static void hello_welcome(struct session *s, uint64_t serial, int cells)
{
    struct reply welcome = { .kind = REPLY_WELCOME, .serial = serial };

    welcome.welcome.version = CODEC_VERSION_MAX;
    welcome.welcome.daemon_version = PROJECT_VERSION;
    welcome.welcome.node = s->service->config->node;
    welcome.welcome.session = s->number;
    welcome.welcome.slots = s->nslots;
    welcome.welcome.rings = s->service->config->rings;
    welcome.welcome.gpus = s->service->gpus;
    welcome.welcome.slates = s->service->config->slates;
    welcome.welcome.spin_us = (uint32_t)s->service->config->spin_us;
    session_reply(s, &welcome, cells);
}

static void session_hello(struct session *s, const struct request *r, struct packet *p)
{
    struct log_context log = { .uid = &s->uid, .pid = s->pid };
    struct error e = { 0 };
    int cells = -1, error = 0;

    if (r->hello.version_max < CODEC_VERSION_MIN || r->hello.version_min > CODEC_VERSION_MAX)
        error_set(
            &e, ERROR_VERSION,
            "the client speaks protocol versions %u to %u, the daemon (ruccld " PROJECT_VERSION
            ") %u to %u; use a libruccl and a ruccld of one release",
            r->hello.version_min, r->hello.version_max, CODEC_VERSION_MIN, CODEC_VERSION_MAX);
    else if (hello_charge(s, &e) == 0) {
        error = hello_take_pidfd(s, p);
        if (s->state >= SESSION_DOOMED)
            return;
        if (error == 0)
            error = hello_make_cells(s, &cells);
        if (error < 0)
            error_set_errno(&e, -error, "hello");
    }
    if (e.code) {
        session_reply_done(s, r->serial, &e);
        session_dismiss(s, &e);
        return;
    }

    snprintf(s->name, sizeof(s->name), "%s", r->hello.name);
    quota_release(&s->service->quotas, s->uid, QUOTA_STRANGERS, 1);
    s->state = SESSION_SERVED;
    session_set_deadline(s, TIME_NEVER);
    log_info(&log, "session %lu: '%s', pid %d, uid %u", (unsigned long)s->number, s->name, s->pid,
             s->uid);
    hello_welcome(s, r->serial, cells);
    close(cells);
}

/* ---- ids ---- */

static void session_id_new(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };
    char id[COMM_ID_BYTES];

    (void)p;
    if (comms_id_new(s->service->comms, s->uid, service_now(), id, &e) < 0) {
        session_reply_done(s, r->serial, &e);
    } else {
        struct reply reply = { .kind = REPLY_ID, .serial = r->serial, .id = id };

        session_reply(s, &reply, -1);
    }
}

static void session_id_drop(struct session *s, const struct request *r, struct packet *p)
{
    struct error e = { 0 };

    (void)p;
    comms_id_drop(s->service->comms, s->uid, r->id_drop.id, &e);
    session_reply_done(s, r->serial, &e);
}

/* ---- dispatch ---- */

struct request_row {
    const char *name;
    uint32_t nfds;            /* but see request_nfds() */
    enum session_state state; /* the one it may come in */
    void (*handle)(struct session *s, const struct request *r, struct packet *p);
};

static const struct request_row rows[] = {
    [REQUEST_HELLO] = { "hello", 1, SESSION_STRANGER, session_hello },
    [REQUEST_REGION_OPEN] = { "region_open", 1, SESSION_SERVED, session_region_open },
    [REQUEST_REGION_CLOSE] = { "region_close", 0, SESSION_SERVED, session_region_close },
    [REQUEST_ID_NEW] = { "id_new", 0, SESSION_SERVED, session_id_new },
    [REQUEST_ID_DROP] = { "id_drop", 0, SESSION_SERVED, session_id_drop },
    [REQUEST_JOIN] = { "join", 0, SESSION_SERVED, session_join },
    [REQUEST_LEAVE] = { "leave", 0, SESSION_SERVED, session_leave },
    [REQUEST_ABORT] = { "abort", 0, SESSION_SERVED, session_abort },
    [REQUEST_EXPECT] = { "expect", 0, SESSION_SERVED, session_expect },
    [REQUEST_POST] = { "post", 0, SESSION_SERVED, session_post },
    [REQUEST_STATUS] = { "status", 0, SESSION_SERVED, session_status },
    [REQUEST_RINGS_OPEN] = { "rings_open", 1, SESSION_SERVED, session_rings_open },
    [REQUEST_BELL] = { "bell", 0, SESSION_SERVED, session_bell },
    [REQUEST_START] = { "start", 0, SESSION_SERVED, session_start },
    [REQUEST_PERSISTENT_CLOSE] = { "persistent_close", 0, SESSION_SERVED,
                                   session_persistent_close },
    [REQUEST_STAGED] = { "staged", 0, SESSION_SERVED, session_staged },
    [REQUEST_FENCE_OPEN] = { "fence_open", 0, SESSION_SERVED, session_fence_open },
    [REQUEST_FENCE_CLOSE] = { "fence_close", 0, SESSION_SERVED, session_fence_close },
    [REQUEST_SIGNALS_OPEN] = { "signals_open", 1, SESSION_SERVED, session_signals_open },
    [REQUEST_SLATE_OPEN] = { "slate_open", 0, SESSION_SERVED, session_slate_open },
};

static uint32_t request_nfds(const struct request *r)
{
    if (r->kind == REQUEST_REGION_OPEN && r->region_open.kind == REGION_CUDA_IPC)
        return 0;
    return rows[r->kind].nfds;
}

void session_handle(struct session *s, struct packet *p)
{
    const struct request_row *row;
    struct request r;
    struct error e;

    error_clear(&e);
    if (repeat_decode_request(&s->known, s->service->codec, p->bytes, p->len, &r, &e) < 0) {
        session_refuse(s, "%s", e.text);
        return;
    }
    row = &rows[r.kind];
    if (row->state != s->state)
        session_refuse(s, s->state == SESSION_STRANGER ? "%s came before hello" : "a second %s",
                       row->name);
    else if (p->nfds != request_nfds(&r))
        session_refuse(s, "%s came with %u file descriptors instead of %u", row->name, p->nfds,
                       request_nfds(&r));
    else
        row->handle(s, &r, p);
}
