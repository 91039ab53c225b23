/* Descriptors that other processes ask for by a handle: from a thread here, or, where its socket
 * cannot be reached (another network namespace), from /proc, by the same user. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/fake_cuda/fake.h"

#define SHARE_MAGIC   0xfacecu
#define SHARE_SECONDS 20 /* that an answer may take */

_Static_assert(sizeof(struct share_handle) == GPU_HANDLE_BYTES, "it is passed as one");

struct shared {
    struct list link; // exported
    uint64_t id;
    int fd;
};

static pthread_mutex_t share_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list exported = LIST_INIT(exported);
static uint8_t share_token[16];
static bool serving; /* under fake_lock */

static socklen_t share_address(const uint8_t token[16], struct sockaddr_un *ret)
{
    char *at = ret->sun_path;

    memset(ret, 0, sizeof(*ret));
    ret->sun_family = AF_UNIX;
    at += 1 + sprintf(at + 1, "fake-cuda-");
    for (int i = 0; i < 16; i++)
        at += sprintf(at, "%02x", token[i]);
    return (socklen_t)(at - (char *)ret);
}

static void share_set_timeout(int fd)
{
    const struct timeval most = { .tv_sec = SHARE_SECONDS };

    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof(most));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
}

union fd_message {
    struct cmsghdr align;
    char room[CMSG_SPACE(sizeof(int))];
};

static void share_send(int socket, int fd)
{
    union fd_message control = { .room = "" };
    struct iovec byte = { .iov_base = &(char){ 1 }, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &byte,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof(control) };
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    sendmsg(socket, &message, MSG_NOSIGNAL);
}

static int share_receive(int socket)
{
    union fd_message control;
    char byte;
    struct iovec room = { .iov_base = &byte, .iov_len = 1 };
    struct msghdr message = { .msg_iov = &room,
                              .msg_iovlen = 1,
                              .msg_control = &control,
                              .msg_controllen = sizeof(control) };
    const struct cmsghdr *c;
    int fd = -1;

    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1)
        return -1;
    c = CMSG_FIRSTHDR(&message);
    if (c && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
}

/* A descriptor of one's own, or -1. */
static int share_dup(uint64_t id)
{
    struct shared *s;
    int fd = -1;

    pthread_mutex_lock(&share_lock);
    list_for_each(s, &exported, link)
        if (s->id == id)
            fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
    pthread_mutex_unlock(&share_lock);
    return fd;
}

static void share_answer(int socket)
{
    uint64_t id;
    int fd;

    share_set_timeout(socket);
    if (recv(socket, &id, sizeof(id), 0) != sizeof(id))
        return;
    fd = share_dup(id);
    if (fd < 0)
        return;
    share_send(socket, fd);
    close(fd);
}

static void *share_serve(void *listener)
{
    for (;;) {
        const int fd = accept4((int)(intptr_t)listener, NULL, NULL, SOCK_CLOEXEC);

        if (fd < 0)
            continue;
        share_answer(fd);
        close(fd);
    }
    return NULL;
}

static bool share_start(void)
{
    struct sockaddr_un address;
    socklen_t len;
    int fd;

    if (serving)
        return true;
    if (getrandom(share_token, sizeof(share_token), 0) != sizeof(share_token))
        return false;
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    len = share_address(share_token, &address);
    if (bind(fd, (struct sockaddr *)&address, len) < 0 || listen(fd, 64) < 0 ||
        thread_start(share_serve, (void *)(intptr_t)fd) != 0) {
        close(fd);
        return false;
    }
    return serving = true;
}

bool share_export(enum share_kind kind, unsigned number, int fd, uint64_t bytes, uint64_t ino,
                  uint64_t *id, void *ret_handle)
{
    struct share_handle h = { .magic = SHARE_MAGIC,
                              .kind = (uint16_t)kind,
                              .number = (uint16_t)number,
                              .pid = getpid(),
                              .fd = fd,
                              .bytes = bytes,
                              .ino = ino };

    if (!share_start())
        return false;
    if (*id == 0) {
        struct shared *s = calloc(1, sizeof(*s));

        if (!s)
            return false;
        s->id = *id = fake_new_id();
        s->fd = fd;
        pthread_mutex_lock(&share_lock);
        list_append(&exported, &s->link);
        pthread_mutex_unlock(&share_lock);
    }
    h.id = *id;
    memcpy(h.token, share_token, sizeof(h.token));
    memcpy(ret_handle, &h, sizeof(h));
    return true;
}

void share_remove(uint64_t id)
{
    struct shared *s, *next;

    if (id == 0)
        return;
    pthread_mutex_lock(&share_lock);
    list_for_each_safe(s, next, &exported, link)
        if (s->id == id) {
            list_remove(&s->link);
            free(s);
        }
    pthread_mutex_unlock(&share_lock);
}

bool share_parse(const void *bytes, enum share_kind kind, struct share_handle *ret)
{
    memcpy(ret, bytes, sizeof(*ret));
    return ret->magic == SHARE_MAGIC && ret->kind == kind && ret->pid > 0 && ret->fd >= 0 &&
           ret->bytes > 0 && ret->bytes < UINT64_MAX / 2;
}

bool share_is_ours(const struct share_handle *handle)
{
    return serving && memcmp(handle->token, share_token, sizeof(share_token)) == 0;
}

/* False: there is no such socket here. */
static bool share_ask(const struct share_handle *handle, int *ret)
{
    struct sockaddr_un address;
    const socklen_t len = share_address(handle->token, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool reached;

    if (fd < 0)
        return false;
    share_set_timeout(fd);
    reached = connect(fd, (struct sockaddr *)&address, len) == 0 &&
              send(fd, &handle->id, sizeof(handle->id), MSG_NOSIGNAL) == sizeof(handle->id);
    *ret = reached ? share_receive(fd) : -1;
    close(fd);
    return reached;
}

int share_fetch(const struct share_handle *handle)
{
    char path[64];
    int fd;

    if (share_ask(handle, &fd))
        return fd;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}
