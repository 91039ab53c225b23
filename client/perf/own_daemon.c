#include "client/perf/own_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/perf/signals.h"
#include "client/ruccl.h"
#include "shared/base.h"

#define STOP_MS 5000 /* from SIGTERM to SIGKILL */
#define STEP_MS 5    /* between two looks */

#define HANDED_FD 3 /* where a service manager's socket is: SD_LISTEN_FDS_START */

/* Where ruccld lies, seen from this program: in the build tree, installed, all in one place. */
static const char *const beside[] = { "../../daemon/ruccld", "../sbin/ruccld", "ruccld" };

/* Its path, or a name for PATH to resolve. */
static void find_program(char *ret, size_t len_bytes)
{
    const char *chosen = getenv("RUCCLD");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    char *slash;

    if (chosen && *chosen) {
        snprintf(ret, len_bytes, "%s", chosen);
        return;
    }

    self[MAX(n, 0)] = '\0';
    slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < ARRAY_SIZE(beside); i++) {
        snprintf(ret, len_bytes, "%.*s/%s", (int)(slash - self), self, beside[i]);
        if (access(ret, X_OK) == 0)
            return;
    }
    snprintf(ret, len_bytes, "ruccld");
}

static int fault(const char *what)
{
    int r = -errno;

    fprintf(stderr, "ruccl-perf: %s: %s\n", what, strerror(-r));
    return r;
}

/* Under a name in `dir` for a moment. Return: a descriptor of the socket's place, or -1 with errno.
 */
static int listen_in(const char *dir, int fd)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int place = -1;

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", dir);
    if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -1;
    if (listen(fd, SOMAXCONN) == 0)
        place = open(address.sun_path, O_PATH | O_CLOEXEC);
    unlink(address.sun_path);
    return place;
}

/* A socket that is reached by its place, through /proc. Return: it, or -errno with the reason on
 * stderr. */
static int listen_namelessly(struct own_daemon *d)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const char *tmp = getenv("TMPDIR");
    char dir[64];
    int r = 0;

    if (fd < 0)
        return fault("socket");
    /* A socket's path has little room. */
    if (!tmp || !*tmp || strlen(tmp) > 40)
        tmp = "/tmp";
    snprintf(dir, sizeof(dir), "%s/ruccl-perf-XXXXXX", tmp);
    if (!mkdtemp(dir)) {
        r = fault("cannot make a temporary directory");
    } else {
        d->place = listen_in(dir, fd);
        if (d->place < 0)
            r = fault("cannot listen in a temporary directory");
        rmdir(dir);
    }
    if (r < 0)
        close(fd);
    snprintf(d->socket, sizeof(d->socket), "/proc/%d/fd/%d", (int)getpid(), d->place);
    return r < 0 ? r : fd;
}

/* In the child: as a service manager does it. */
static void hand_over(int listener)
{
    char pid[16];

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, true);
    setenv("LISTEN_FDS", "1", true);
    unsetenv("LISTEN_FDNAMES");
    dup2(listener, HANDED_FD);
}

/* Of a descriptor to keep when HANDED_FD is taken. */
static int out_of_the_way(int fd)
{
    return fcntl(fd, F_DUPFD_CLOEXEC, HANDED_FD + 1);
}

/* In the child. Its own process group: the terminal's ^C is for the parent, which stops it in
 * order. */
static _Noreturn void become_daemon(const struct own_daemon *d, const char *program, pid_t parent,
                                    int listener, int failed_fd)
{
    int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);
    signals_restore();
    dup2(null_fd, STDIN_FILENO);
    dup2(d->log_fd, STDOUT_FILENO);
    dup2(d->log_fd, STDERR_FILENO);
    listener = out_of_the_way(listener);
    failed_fd = out_of_the_way(failed_fd);
    hand_over(listener);
    execlp(program, program, "--socket", d->socket, (char *)NULL);
    n = write(failed_fd, &errno, sizeof(errno));
    (void)n; /* whoever would hear of it is gone */
    _exit(127);
}

/* Forks, and waits until the child runs the program. Return: 0, or -errno with the reason on
 * stderr. */
static int spawn(struct own_daemon *d, const char *program, int listener)
{
    pid_t parent = getpid();
    int failed_fds[2], failure = 0;
    ssize_t n;

    if (pipe2(failed_fds, O_CLOEXEC) < 0)
        return fault("pipe2");
    d->pid = fork();
    if (d->pid == 0)
        become_daemon(d, program, parent, listener, failed_fds[1]);
    close(failed_fds[1]);
    if (d->pid < 0) {
        d->pid = 0;
        close(failed_fds[0]);
        return fault("fork");
    }

    /* A program that runs has closed its end without a word. */
    n = read(failed_fds[0], &failure, sizeof(failure));
    close(failed_fds[0]);
    if (n != sizeof(failure))
        return 0;
    fprintf(stderr,
            "ruccl-perf: cannot run %s: %s; name the program in $RUCCLD, or a running daemon with "
            "--socket\n",
            program, strerror(failure));
    return -failure;
}

static void print_log(const struct own_daemon *d)
{
    char buffer[4096];
    ssize_t n;

    for (off_t at = 0; (n = pread(d->log_fd, buffer, sizeof(buffer), at)) > 0; at += n)
        fwrite(buffer, 1, (size_t)n, stderr);
}

bool own_daemon_ended(struct own_daemon *d)
{
    int status;

    if (d->pid == 0 || waitpid(d->pid, &status, WNOHANG) != d->pid)
        return false;
    d->pid = 0;
    print_log(d);
    if (WIFSIGNALED(status))
        fprintf(stderr, "ruccl-perf: the private ruccld was killed by signal %d (%s)\n",
                WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        fprintf(stderr, "ruccl-perf: the private ruccld ended with status %d\n",
                WEXITSTATUS(status));
    return true;
}

/* A connection waits for it from the start on; one that ends ends that too. */
static int await_answer(struct own_daemon *d)
{
    struct ruccl_conn *conn;
    int r = ruccl_connect(d->socket, "ruccl-perf", &conn);

    if (r == 0) {
        ruccl_close(conn);
        return 0;
    }
    for (int ms = 0; r != -RUCCL_TIMEOUT && ms < STOP_MS; ms += STEP_MS) {
        if (own_daemon_ended(d))
            return -ECHILD;
        usleep(STEP_MS * 1000);
    }
    fprintf(stderr, "ruccl-perf: the private ruccld: %s\n", ruccl_last_error()->text);
    return -ETIMEDOUT;
}

int own_daemon_start(struct own_daemon *d)
{
    char program[PATH_MAX + 32];
    int r, listener;

    d->log_fd = memfd_create("ruccld-log", MFD_CLOEXEC);
    if (d->log_fd < 0)
        return fault("memfd_create");
    listener = listen_namelessly(d);
    if (listener < 0)
        return listener;
    find_program(program, sizeof(program));
    r = spawn(d, program, listener);
    close(listener);
    return r < 0 ? r : await_answer(d);
}

void own_daemon_stop(struct own_daemon *d)
{
    if (d->pid) {
        kill(d->pid, SIGTERM);
        for (int waited_ms = 0; waitpid(d->pid, NULL, WNOHANG) == 0; waited_ms += STEP_MS) {
            if (waited_ms == STOP_MS)
                kill(d->pid, SIGKILL);
            usleep(STEP_MS * 1000);
        }
    }
    if (d->place >= 0)
        close(d->place);
    if (d->log_fd >= 0)
        close(d->log_fd);
    *d = (struct own_daemon)OWN_DAEMON_INIT;
}
