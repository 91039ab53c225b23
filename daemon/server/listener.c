#include "daemon/server/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log/log.h"

#define LOCK_SUFFIX ".lock"

static void lock_path(const struct listener *l, char ret[CONFIG_PATH_BYTES + sizeof(LOCK_SUFFIX)])
{
    snprintf(ret, CONFIG_PATH_BYTES + sizeof(LOCK_SUFFIX), "%s" LOCK_SUFFIX, l->path);
}

static int fail(struct error *e, int err, const char *verb, const char *path)
{
    return error_set(e, err == ENOMEM ? ERROR_NO_MEMORY : ERROR_SYSTEM, "cannot %s %s: %s", verb,
                     path, strerror(err));
}

static int make_directory(const char *path, struct error *e)
{
    char directory[CONFIG_PATH_BYTES];
    char *slash;

    strcpy(directory, path);
    slash = strrchr(directory, '/');
    if (!slash || slash == directory)
        return 0;
    *slash = '\0';
    if (mkdir(directory, 0755) < 0 && errno != EEXIST)
        return fail(e, errno, "make", directory);
    return 0;
}

static int locked_by_another(const struct listener *l, int fd, struct error *e)
{
    char pid[16] = "";
    ssize_t n = pread(fd, pid, sizeof(pid) - 1, 0);

    if (n > 0)
        pid[strcspn(pid, "\n")] = '\0';
    return error_set(e, ERROR_SYSTEM, "another daemon (pid %s) serves %s", *pid ? pid : "unknown",
                     l->path);
}

/* Whether the locked file is still the one that the path names: its owner may just have removed it.
 */
static bool still_there(int fd, const char *path)
{
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

static int take_lock(struct listener *l, struct error *e)
{
    char path[CONFIG_PATH_BYTES + sizeof(LOCK_SUFFIX)];
    int fd = -1;

    lock_path(l, path);
    do {
        if (fd >= 0)
            close(fd);
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0)
            return fail(e, errno, "open", path);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
            int r =
                errno == EWOULDBLOCK ? locked_by_another(l, fd, e) : fail(e, errno, "lock", path);

            close(fd);
            return r;
        }
    } while (!still_there(fd, path));

    if (ftruncate(fd, 0) < 0 || dprintf(fd, "%d\n", getpid()) < 0)
        log_warning(NULL, "%s: cannot note the pid: %s", path, strerror(errno));
    l->lock = fd;
    return 0;
}

static void drop_lock(struct listener *l)
{
    char path[CONFIG_PATH_BYTES + sizeof(LOCK_SUFFIX)];

    lock_path(l, path);
    unlink(path);
    close(l->lock);
    l->lock = -1;
}

static int new_socket(const char *path, struct sockaddr_un *ret_address)
{
    *ret_address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    memcpy(ret_address->sun_path, path, strlen(path));
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* A socket file that nobody answers at is a dead daemon's; anything else is somebody's. */
static int remove_stale(const char *path, struct error *e)
{
    struct sockaddr_un address;
    struct stat st;
    int fd, err = 0;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(e, errno, "look at", path);
    if (!S_ISSOCK(st.st_mode))
        return error_set(e, ERROR_SYSTEM, "%s is there and is no socket", path);

    fd = new_socket(path, &address);
    if (fd < 0)
        return fail(e, errno, "make a socket for", path);
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        err = errno;
    close(fd);
    if (err != ECONNREFUSED)
        return error_set(e, ERROR_SYSTEM, "another program serves %s", path);
    if (unlink(path) < 0)
        return fail(e, errno, "remove", path);
    log_notice(NULL, "removed the socket that a dead daemon left at %s", path);
    return 0;
}

static int bind_socket(struct listener *l, mode_t mode, struct error *e)
{
    struct sockaddr_un address;
    mode_t mask;
    int r;

    l->socket = new_socket(l->path, &address);
    if (l->socket < 0)
        return fail(e, errno, "make a socket for", l->path);
    mask = umask(0777 & ~mode); /* the right mode from its first moment on */
    r = bind(l->socket, (struct sockaddr *)&address, sizeof(address));
    umask(mask);
    if (r < 0)
        return fail(e, errno, "bind", l->path);
    if (listen(l->socket, SOMAXCONN) < 0)
        return fail(e, errno, "listen at", l->path);
    return 0;
}

static int take_activated(struct listener *l, int n, struct error *e)
{
    struct sockaddr_un address = { 0 };
    int fd = SD_LISTEN_FDS_START;

    if (n != 1)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the service manager passed %d sockets instead of one", n);
    if (sd_is_socket_unix(fd, SOCK_SEQPACKET, 1, NULL, 0) <= 0)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "the service manager's socket is no listening Unix socket of type "
                         "SOCK_SEQPACKET (ListenSequentialPacket= in the socket unit)");
    if (getsockname(fd, (struct sockaddr *)&address, &(socklen_t){ sizeof(address) }) == 0)
        snprintf(l->path, sizeof(l->path), "%.*s", (int)sizeof(l->path) - 1, address.sun_path);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (listen(fd, SOMAXCONN) < 0) /* anew: clients that come from now on see who it is */
        return fail(e, errno, "listen at", l->path);
    l->socket = fd;
    return 0;
}

int listener_open(struct listener *l, const char *path, mode_t mode, struct error *e)
{
    int r, n = sd_listen_fds(1);

    *l = (struct listener){ .socket = -1, .lock = -1 };
    if (n > 0)
        return take_activated(l, n, e);

    strcpy(l->path, path);
    r = make_directory(path, e);
    if (r == 0)
        r = take_lock(l, e);
    if (r < 0)
        return r;

    r = remove_stale(path, e);
    if (r < 0) {
        drop_lock(l);
        return r;
    }
    r = bind_socket(l, mode, e);
    if (r < 0)
        listener_close(l);
    return r;
}

void listener_shut(struct listener *l)
{
    if (l->socket >= 0)
        close(l->socket);
    l->socket = -1;
}

void listener_close(struct listener *l)
{
    listener_shut(l);
    if (l->lock < 0)
        return;
    unlink(l->path);
    drop_lock(l);
}
