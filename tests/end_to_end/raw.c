#include "tests/end_to_end/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/end_to_end/daemon.h"

#define REPLY_LIMIT_MS 10000

void raw_connect(struct raw *c, const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    memset(c, 0, sizeof(*c));
    c->cells = -1;
    assert_int_equal(codec_new(&c->codec), 0);
    c->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_true(c->socket >= 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    if (connect(c->socket, (struct sockaddr *)&address, sizeof(address)) < 0)
        fail_msg("connect: %s", strerror(errno));
}

void raw_close(struct raw *c)
{
    close(c->socket);
    if (c->rings) {
        munmap(c->rings, sizeof(*c->rings));
        munmap(c->theirs, daemon_memory_bytes(c->slots));
        close(c->rings_fd);
    }
    if (c->cells >= 0)
        close(c->cells);
    packet_close_fds(&c->in);
    c->codec = codec_free(c->codec);
}

void raw_open(struct raw *c, const char *path)
{
    int pidfd = raw_pidfd(getpid());

    raw_connect(c, path);
    raw_hello(c, CODEC_VERSION_MIN, CODEC_VERSION_MAX, pidfd);
    close(pidfd);
    raw_expect(c, REPLY_WELCOME);
    c->slots = c->reply.welcome.slots;
    c->cells = packet_take_fd(&c->in, 0);
    assert_true(c->cells >= 0);
}

static void decode(struct raw *c)
{
    struct error e = { 0 };

    if (codec_decode_reply(c->codec, c->in.bytes, c->in.len, &c->reply, &e) < 0)
        fail_msg("%s", e.text);
}

/* ---- rings ---- */

void raw_open_rings(struct raw *c)
{
    struct request r = { .kind = REQUEST_RINGS_OPEN };
    struct client_rings *ours;
    struct daemon_rings *theirs;

    c->rings_fd = raw_memfd(sizeof(*ours));
    ours = mmap(NULL, sizeof(*ours), PROT_READ | PROT_WRITE, MAP_SHARED, c->rings_fd, 0);
    c->theirs = mmap(NULL, daemon_memory_bytes(c->slots), PROT_READ, MAP_SHARED, c->cells, 0);
    assert_ptr_not_equal(ours, MAP_FAILED);
    assert_ptr_not_equal(c->theirs, MAP_FAILED);
    raw_ask(c, &r, c->rings_fd, ERROR_NONE, NULL);

    theirs = (struct daemon_rings *)((char *)c->theirs + daemon_rings_offset(c->slots));
    c->requests = (struct ring_out){ .messages = &ours->requests, .state = &theirs->requests };
    c->replies = (struct ring_in){ .messages = &theirs->replies, .state = &ours->replies };
    c->rings = ours;
}

/* Gives the request its serial. Return: the length of what is at *ret, until the next. */
static uint32_t encode(struct raw *c, struct request *r, const uint8_t **ret)
{
    static uint8_t bytes[PACKET_BYTES_MAX];
    int len;

    r->serial = r->kind == REQUEST_BELL ? 0 : ++c->serial;
    len = codec_encode_request(r, bytes);
    assert_true(len > 0);
    *ret = bytes;
    return (uint32_t)len;
}

uint64_t raw_put(struct raw *c, struct request *r)
{
    uint64_t end = test_now_ms() + REPLY_LIMIT_MS;
    const uint8_t *bytes;
    uint32_t len = encode(c, r, &bytes);

    while (ring_put(&c->requests, bytes, len) == RING_FULL) {
        assert_true(test_now_ms() < end);
        test_sleep_ms(1);
    }
    return r->serial;
}

bool raw_take(struct raw *c)
{
    int r;

    if (!c->rings)
        return false;
    packet_close_fds(&c->in);
    r = ring_take(&c->replies, c->in.bytes, &c->in.len);
    if (r == RING_EMPTY)
        return false;
    assert_int_equal(r, 0);
    decode(c);
    c->by_ring = true;
    return true;
}

/* ---- messages ---- */

uint64_t raw_send_by_socket(struct raw *c, struct request *r, int fd)
{
    const uint8_t *bytes;
    uint32_t len = encode(c, r, &bytes);

    /* a daemon that has hung up is found out by receiving */
    if (packet_send(c->socket, bytes, len, fd) < 0)
        fail_msg("send: %s", strerror(errno));
    return r->serial;
}

uint64_t raw_send(struct raw *c, struct request *r, int fd)
{
    struct request bell = { .kind = REQUEST_BELL };
    uint64_t serial;

    if (!c->rings || fd >= 0)
        return raw_send_by_socket(c, r, fd);
    serial = raw_put(c, r);
    if (ring_take_bell(&c->requests))
        raw_send_by_socket(c, &bell, -1);
    return serial;
}

void raw_send_bytes(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(16 * sizeof(int))];
    } control = { 0 };
    struct iovec iov = { .iov_base = (void *)bytes, .iov_len = len };
    struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

    if (nfds) {
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(nfds * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, nfds * sizeof(int));
    }
    assert_int_equal(sendmsg(c->socket, &m, MSG_NOSIGNAL), len);
}

/* Receives one datagram. */
static bool receive(struct raw *c)
{
    struct pollfd p = { .fd = c->socket, .events = POLLIN };
    int r;

    packet_close_fds(&c->in);
    if (poll(&p, 1, REPLY_LIMIT_MS) == 0)
        fail_msg("no reply");
    r = packet_recv(c->socket, &c->in);
    if (r == PACKET_END)
        return false;
    assert_int_equal(r, 0);
    decode(c);
    c->by_ring = false;
    return true;
}

bool raw_receive(struct raw *c)
{
    for (;;) {
        if (raw_take(c))
            return true;
        if (c->rings && !ring_arm(&c->replies, BELL_NONE))
            continue;
        if (!receive(c))
            return raw_take(c); /* what was said before it hung up */
        if (c->reply.kind != REPLY_BELL)
            return true;
    }
}

const struct reply *raw_expect(struct raw *c, enum reply_kind kind)
{
    if (!raw_receive(c))
        fail_msg("the connection ended");
    if (c->reply.kind != kind)
        fail_msg("a reply of kind %d instead of %d: %s", c->reply.kind, kind,
                 c->reply.kind == REPLY_DONE || c->reply.kind == REPLY_GOODBYE ? c->reply.done.text
                                                                               : "");
    return &c->reply;
}

static void check_error(const struct error *e, enum error_code code, const char *text)
{
    if (e->code != code || (text && !strstr(e->text, text)))
        fail_msg("%s: '%s' instead of %s: '%s'", error_name(e->code), e->text, error_name(code),
                 text ? text : "");
}

void raw_expect_done(struct raw *c, enum error_code code, const char *text)
{
    check_error(&raw_expect(c, REPLY_DONE)->done, code, text);
}

void raw_expect_goodbye(struct raw *c, enum error_code code, const char *text)
{
    check_error(&raw_expect(c, REPLY_GOODBYE)->done, code, text);
    assert_false(raw_receive(c));
}

void raw_ask(struct raw *c, struct request *r, int fd, enum error_code code, const char *text)
{
    uint64_t serial = raw_send(c, r, fd);

    raw_expect_done(c, code, text);
    assert_int_equal(c->reply.serial, serial);
}

const struct error *raw_expect_completion(struct raw *c, uint64_t serial)
{
    raw_expect(c, REPLY_COMPLETION);
    if (serial)
        assert_int_equal(c->reply.serial, serial);
    return &c->reply.completion.error;
}

void raw_expect_success(struct raw *c, uint64_t serial)
{
    const struct error *e = raw_expect_completion(c, serial);

    if (e->code)
        fail_msg("%s", e->text);
}

/* ---- requests ---- */

uint64_t raw_hello(struct raw *c, uint32_t version_min, uint32_t version_max, int pidfd)
{
    struct request r = { .kind = REQUEST_HELLO };

    r.hello.version_min = version_min;
    r.hello.version_max = version_max;
    r.hello.name = "raw";
    return raw_send(c, &r, pidfd);
}

void raw_new_id(struct raw *c, char ret[CODEC_ID_MAX + 1])
{
    struct request r = { .kind = REQUEST_ID_NEW };

    raw_send(c, &r, -1);
    snprintf(ret, CODEC_ID_MAX + 1, "%s", raw_expect(c, REPLY_ID)->id);
}

uint64_t raw_join_as(struct raw *c, uint32_t comm, const char *id, uint32_t rank, uint32_t nranks,
                     const char *algorithm, uint64_t timeout_us)
{
    struct request r = { .kind = REQUEST_JOIN };

    r.join.comm = comm;
    r.join.id = id;
    r.join.rank = rank;
    r.join.nranks = nranks;
    r.join.label = "test";
    r.join.timeout_us = timeout_us;
    r.join.algorithm = algorithm;
    return raw_send(c, &r, -1);
}

uint64_t raw_join(struct raw *c, uint32_t comm, const char *id, uint32_t rank, uint32_t nranks)
{
    return raw_join_as(c, comm, id, rank, nranks, "", 60000000);
}

void raw_pair_open(struct raw_pair *p, const char *path, uint64_t timeout_us)
{
    char id[CODEC_ID_MAX + 1];

    raw_open(&p->a, path);
    raw_open(&p->b, path);
    raw_open_rings(&p->a);
    raw_new_id(&p->a, id);
    raw_join_as(&p->a, 1, id, 0, 2, "", timeout_us);
    raw_join_as(&p->b, 1, id, 1, 2, "", timeout_us);
    raw_expect_done(&p->a, ERROR_NONE, NULL);
    raw_expect_done(&p->b, ERROR_NONE, NULL);
}

void raw_pair_close(struct raw_pair *p)
{
    raw_close(&p->a);
    raw_close(&p->b);
}

int raw_open_slate(struct raw *c, uint32_t comm)
{
    struct request r = { .kind = REQUEST_SLATE_OPEN, .slate_open.comm = comm };

    raw_ask(c, &r, -1, ERROR_NONE, NULL);
    return packet_take_fd(&c->in, 0);
}

void raw_open_region(struct raw *c, uint32_t region, int fd, uint64_t bytes)
{
    struct request r = { .kind = REQUEST_REGION_OPEN };

    r.region_open.region = region;
    r.region_open.bytes = bytes;
    raw_ask(c, &r, fd, ERROR_NONE, NULL);
}

uint64_t raw_barrier(struct raw *c, uint32_t comm, uint64_t sequence, uint32_t slot)
{
    struct request r = { .kind = REQUEST_POST };

    r.post.comm = comm;
    r.post.sequence = sequence;
    r.post.slot = slot;
    r.post.d.kind = COLLECTIVE_BARRIER;
    r.post.d.budget = BUDGET_NONE;
    return raw_send(c, &r, -1);
}

struct request raw_sum(uint32_t comm, uint64_t sequence, uint32_t slot, uint32_t region,
                       uint64_t count)
{
    struct request r = { .kind = REQUEST_POST };

    r.post.comm = comm;
    r.post.sequence = sequence;
    r.post.slot = slot;
    r.post.d.kind = COLLECTIVE_ALL_REDUCE;
    r.post.d.op = OPERATOR_SUM;
    r.post.d.dtype = DTYPE_I32;
    r.post.d.shape = (struct shape){ .naxes = 1, .axes = { count } };
    r.post.d.budget = BUDGET_NONE;
    r.post.in.region = r.post.out.region = region;
    return r;
}

void raw_join_both(struct raw *c)
{
    char id[CODEC_ID_MAX + 1];

    raw_new_id(c, id);
    raw_join(c, 1, id, 0, 2);
    raw_join(c, 2, id, 1, 2);
    raw_expect_done(c, ERROR_NONE, NULL);
    raw_expect_done(c, ERROR_NONE, NULL);
}

void raw_ask_status(struct raw *c)
{
    struct request r = { .kind = REQUEST_STATUS };

    raw_send(c, &r, -1);
    raw_expect(c, REPLY_STATUS_PAGE);
}

static uint32_t count_sessions(struct raw *c)
{
    raw_ask_status(c);
    assert_int_equal(c->reply.status_page.items[0].kind, STATUS_DAEMON);
    return c->reply.status_page.items[0].daemon.sessions;
}

void raw_wait_for_sessions(struct raw *c, uint32_t n)
{
    const uint64_t end = test_now_ms() + REPLY_LIMIT_MS;
    uint32_t found;

    while ((found = count_sessions(c)) != n) {
        if (test_now_ms() > end)
            fail_msg("there are %u sessions, not %u", found, n);
        test_sleep_ms(5);
    }
}

/* ---- processes and descriptors ---- */

pid_t raw_fork_member(const char *path, const char *id, void (*then)(struct raw *c))
{
    pid_t pid = fork();
    struct raw c;

    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure here must not go on with the other tests */
    raw_open(&c, path);
    raw_join(&c, 1, id, 1, 2);
    raw_expect_done(&c, ERROR_NONE, NULL);
    then(&c);
    _exit(0);
}

int raw_pidfd(pid_t pid)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);

    assert_true(fd >= 0);
    return fd;
}

int raw_memfd(uint64_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
    return fd;
}
