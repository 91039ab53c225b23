#include "tests/unit/fake_daemon.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the daemon's side */

void fake_answer(struct fake_daemon *d, const struct reply *reply, int fd)
{
    static _Thread_local uint8_t buffer[PACKET_BYTES_MAX];
    int len = codec_encode_reply(reply, buffer);

    assert_true(len > 0);
    packet_send(d->socket, buffer, (uint32_t)len, fd);
}

static void fake_answer_done(struct fake_daemon *d, uint64_t serial, enum error_code code,
                             const char *text)
{
    struct reply reply = { .kind = REPLY_DONE, .serial = serial };

    if (code)
        error_set(&reply.done, code, "%s", text);
    fake_answer(d, &reply, -1);
}

struct fake_region *fake_find_region(struct fake_daemon *d, uint32_t number)
{
    for (int i = 0; i < REGIONS_MAX; i++)
        if (d->regions[i].number == number)
            return &d->regions[i];
    return NULL;
}

/* Moves as many bytes as the shape has from in to out, each plus one, so that both ends show. */
static void echo(struct fake_daemon *d, const struct request_post *post)
{
    struct fake_region *in = fake_find_region(d, post->in.region);
    struct fake_region *out = fake_find_region(d, post->out.region);
    uint64_t n = 0;

    shape_count(&post->d.shape, &n);
    for (uint64_t i = 0;
         in && in->data && out && out->data && post->in.region && post->out.region && i < n; i++)
        out->data[post->out.offset + i] = (uint8_t)(in->data[post->in.offset + i] + 1);
}

static void signal_slot(struct fake_daemon *d, uint32_t slot, uint32_t value)
{
    if (!value)
        return;
    assert_non_null(d->signals);
    assert_true(slot < d->b.slots);
    atomic_store(&d->signals[slot], value);
}

void fake_complete_start(struct fake_daemon *d, const struct request *q)
{
    struct reply reply = { .kind = REPLY_COMPLETION, .serial = q->serial };

    reply.completion.sequence = q->start.sequence;
    signal_slot(d, q->start.slot, q->start.signal);
    fake_answer(d, &reply, -1);
}

void fake_complete(struct fake_daemon *d, const struct request *q, enum error_code code,
                   const char *text)
{
    uint64_t counts[NRANKS] = { 0 };
    struct reply reply = { .kind = REPLY_COMPLETION, .serial = q->serial };

    reply.completion.sequence = q->post.sequence;
    reply.completion.algorithm = "echo";
    reply.completion.peak_bytes = 7;
    if (q->post.rejection.code)
        reply.completion.error = q->post.rejection;
    else if (code)
        error_set(&reply.completion.error, code, "%s", text);
    else
        echo(d, &q->post);
    if (q->post.persistent)
        reply.completion.persistent = 1;
    if (q->post.d.kind == COLLECTIVE_ALL_TO_ALL_V) {
        counts[1] = 2;
        reply.completion.counts = counts;
        reply.completion.ncounts = NRANKS;
    }
    if (q->post.d.kind == COLLECTIVE_SPLIT && q->post.color >= 0) {
        reply.completion.child_rank = 1;
        reply.completion.child_nranks = 2;
        reply.completion.child_id = "rc1-child@here";
    }
    signal_slot(d, q->post.slot, q->post.signal);
    fake_answer(d, &reply, -1);
}

static void open_region(struct fake_daemon *d, const struct request *q)
{
    struct fake_region *region = fake_find_region(d, 0);

    assert_non_null(region);
    region->number = q->region_open.region;
    region->bytes = q->region_open.bytes;
    assert_int_equal(d->packet.nfds, q->region_open.kind != REGION_CUDA_IPC);
    if (q->region_open.kind == REGION_MEMFD) {
        int fd = packet_take_fd(&d->packet, 0);

        region->data = mmap(NULL, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(region->data != MAP_FAILED);
        close(fd);
    }
    d->regions_opened++;
    fake_answer_done(d, q->serial, ERROR_NONE, "");
}

static void close_region(struct fake_daemon *d, const struct request *q)
{
    struct fake_region *region = fake_find_region(d, q->region_close.region);

    assert_non_null(region);
    if (region->data)
        munmap(region->data, region->bytes);
    *region = (struct fake_region){ 0 };
    d->regions_closed++;
    fake_answer_done(d, q->serial, ERROR_NONE, "");
}

static void open_signals(struct fake_daemon *d, const struct request *q)
{
    int fd = packet_take_fd(&d->packet, 0);
    const int seals = fcntl(fd, F_GET_SEALS);
    void *signals;

    assert_null(d->signals);
    assert_int_equal(seals, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    d->signals_bytes = d->b.slots * sizeof(*d->signals);
    assert_true(lseek(fd, 0, SEEK_END) >= (off_t)d->signals_bytes);
    signals = mmap(NULL, d->signals_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(signals != MAP_FAILED);
    close(fd);
    d->signals = signals;
    fake_answer_done(d, q->serial, ERROR_NONE, "");
}

static void greet(struct fake_daemon *d, const struct request *q)
{
    struct reply reply = { .kind = REPLY_WELCOME, .serial = q->serial };

    assert_int_equal(d->packet.nfds, 1);
    if (d->b.refuse_version) {
        reply.kind = REPLY_GOODBYE;
        error_set(&reply.done, ERROR_VERSION, "speaks 7 only");
        fake_answer(d, &reply, -1);
        shutdown(d->socket, SHUT_RDWR);
        return;
    }
    reply.welcome.version = CODEC_VERSION_MAX;
    reply.welcome.slots = d->b.slots;
    reply.welcome.gpus = !d->b.no_gpus;
    fake_answer(d, &reply, d->cells_fd);
}

static bool is_held(const struct fake_daemon *d, enum request_kind kind)
{
    return (d->b.hold_regions && kind == REQUEST_LEAVE) ||
           (d->b.hold_ids && (kind == REQUEST_ID_DROP || kind == REQUEST_ABORT));
}

static void handle(struct fake_daemon *d, const struct request *q)
{
    struct reply reply = { .serial = q->serial };

    switch (q->kind) {
    case REQUEST_HELLO:
        greet(d, q);
        break;
    case REQUEST_REGION_OPEN:
        if (d->b.deny_regions ||
            (d->b.regions_max && d->regions_opened - d->regions_closed >= d->b.regions_max))
            fake_answer_done(d, q->serial, ERROR_QUOTA, "no more regions");
        else if (!d->b.hold_regions)
            open_region(d, q);
        break;
    case REQUEST_REGION_CLOSE:
        close_region(d, q);
        break;
    case REQUEST_ID_NEW:
        if (d->b.hold_ids)
            break;
        reply.kind = REPLY_ID;
        reply.id = "rc1-new@here";
        fake_answer(d, &reply, -1);
        break;
    case REQUEST_POST:
        if (!d->b.hold_posts)
            fake_complete(d, q, ERROR_NONE, "");
        break;
    case REQUEST_SIGNALS_OPEN:
        open_signals(d, q);
        break;
    case REQUEST_START: /* always left to the test */
    case REQUEST_EXPECT:
        break;
    default:
        if (!is_held(d, q->kind))
            fake_answer_done(d, q->serial, ERROR_NONE, "");
    }
}

static void keep(struct fake_daemon *d, const struct request *q)
{
    pthread_mutex_lock(&d->lock);
    assert_true(d->nrequests < REQUESTS_MAX);
    d->requests[d->nrequests++] = *q;
    d->busy = false;
    pthread_cond_broadcast(&d->grown);
    pthread_mutex_unlock(&d->lock);
}

/* Busy before a request leaves the socket: who counts knows of it, wherever it is. Return: whether
 * there is one. */
static bool take(struct fake_daemon *d)
{
    struct pollfd p = { .fd = d->socket, .events = POLLIN };

    poll(&p, 1, -1);
    pthread_mutex_lock(&d->lock);
    d->busy = true;
    pthread_mutex_unlock(&d->lock);
    return packet_recv(d->socket, &d->packet) == 0;
}

static void *serve(void *arg)
{
    struct fake_daemon *d = arg;
    struct request q;
    struct error e = { 0 };

    d->socket = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
    while (d->socket >= 0 && take(d)) {
        assert_int_equal(codec_decode_request(d->codec, d->packet.bytes, d->packet.len, &q, &e), 0);
        handle(d, &q);
        packet_close_fds(&d->packet);
        keep(d, &q);
    }
    pthread_mutex_lock(&d->lock);
    d->busy = false;
    d->over = true;
    pthread_cond_broadcast(&d->grown);
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

struct fake_daemon *fake_start(struct behaviour b)
{
    struct fake_daemon *d = calloc(1, sizeof(*d));
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    assert_non_null(d);
    d->b = b;
    if (d->b.slots == 0)
        d->b.slots = 4096;
    d->socket = -1;
    d->requests = calloc(REQUESTS_MAX, sizeof(*d->requests));
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->grown, NULL);
    strcpy(d->directory, "/tmp/ruccl-test-XXXXXX");
    assert_non_null(mkdtemp(d->directory));
    snprintf(d->path, sizeof(d->path), "%s/sock", d->directory);
    strcpy(address.sun_path, d->path);
    d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(d->listener, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(d->listener, 8), 0);
    d->cells_fd = memfd_create("cells", MFD_CLOEXEC);
    assert_int_equal(ftruncate(d->cells_fd, (off_t)(d->b.slots * sizeof(*d->cells))), 0);
    d->cells = mmap(NULL, d->b.slots * sizeof(*d->cells), PROT_READ | PROT_WRITE, MAP_SHARED,
                    d->cells_fd, 0);
    assert_true(d->cells != MAP_FAILED);
    assert_int_equal(codec_new(&d->codec), 0);
    assert_int_equal(pthread_create(&d->thread, NULL, serve, d), 0);
    return d;
}

void fake_die(struct fake_daemon *d)
{
    shutdown(d->socket, SHUT_RDWR);
}

void fake_stop(struct fake_daemon *d)
{
    shutdown(d->listener, SHUT_RDWR);
    if (d->socket >= 0)
        shutdown(d->socket, SHUT_RDWR);
    pthread_join(d->thread, NULL);
    for (int i = 0; i < REGIONS_MAX; i++)
        if (d->regions[i].data)
            munmap(d->regions[i].data, d->regions[i].bytes);
    if (d->signals)
        munmap((void *)d->signals, d->signals_bytes);
    if (d->socket >= 0)
        close(d->socket);
    close(d->listener);
    close(d->cells_fd);
    munmap(d->cells, d->b.slots * sizeof(*d->cells));
    unlink(d->path);
    rmdir(d->directory);
    codec_free(d->codec);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->grown);
    free(d->requests);
    free(d);
}

struct request fake_await(struct fake_daemon *d, enum request_kind kind, uint32_t index)
{
    struct request q;

    pthread_mutex_lock(&d->lock);
    for (;;) {
        uint32_t seen = 0;

        for (uint32_t i = 0; i < d->nrequests; i++)
            if (d->requests[i].kind == kind && seen++ == index) {
                q = d->requests[i];
                pthread_mutex_unlock(&d->lock);
                return q;
            }
        pthread_cond_wait(&d->grown, &d->lock);
    }
}

static bool has_unread(const struct fake_daemon *d)
{
    int bytes = 0;

    return !d->over && ioctl(d->socket, FIONREAD, &bytes) == 0 && bytes > 0;
}

uint32_t fake_count(struct fake_daemon *d, enum request_kind kind)
{
    uint32_t n = 0;

    pthread_mutex_lock(&d->lock);
    while (d->busy || has_unread(d))
        pthread_cond_wait(&d->grown, &d->lock);
    for (uint32_t i = 0; i < d->nrequests; i++)
        n += d->requests[i].kind == kind;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* ---------------------------------------------------------------- the client's side */

struct pair pair_start(struct behaviour b)
{
    struct pair p = { .daemon = fake_start(b) };

    assert_int_equal(ruccl_connect(p.daemon->path, "test", &p.conn), 0);
    assert_int_equal(ruccl_join(p.conn, "rc1-x@here", b.rank, NRANKS, NULL, &p.comm), 0);
    return p;
}

void pair_stop(struct pair *p)
{
    ruccl_close(p->conn);
    fake_stop(p->daemon);
}

struct ruccl_tensor bytes_tensor(void *data, uint64_t n)
{
    return (struct ruccl_tensor){ .dtype = RUCCL_U8, .naxes = 1, .shape = { n }, .data = data };
}

int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

void sleep_ms(long ms)
{
    const struct timespec t = { .tv_nsec = ms * 1000000 };

    nanosleep(&t, NULL);
}
