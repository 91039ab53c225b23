#include "client/perf/own_daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
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
#include "shared/base.h"

#define START_MS 10000 /* until it accepts connections */
#define STOP_MS  5000  /* from SIGTERM to SIGKILL */
#define STEP_MS  5     /* between two looks */

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

/* In the child. Its own process group: the terminal's ^C is for the parent, which stops it in
 * order. */
static _Noreturn void become_daemon(const struct own_daemon *d, const char *program, pid_t parent,
                                    int failed_fd)
{
    int null_fd = open("/dev/null", O_RDONLY);
    ssize_t n;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);
    signals_restore();
    dup2(null_fd, STDIN_FILENO);
    dup2(d->log_fd, STDOUT_FILENO);
    dup2(d->log_fd, STDERR_FILENO);
    execlp(program, program, "--socket", d->socket, (char *)NULL);
    n = write(failed_fd, &errno, sizeof(errno));
    (void)n; /* whoever would hear of it is gone */
    _exit(127);
}

/* Forks, and waits until the child runs the program. Return: 0, or -errno with the reason on
 * stderr. */
static int spawn(struct own_daemon *d, const char *program)
{
    pid_t parent = getpid();
    int failed_fds[2], failure = 0;
    ssize_t n;

    if (pipe2(failed_fds, O_CLOEXEC) < 0)
        return fault("pipe2");
    d->pid = fork();
    if (d->pid == 0)
        become_daemon(d, program, parent, failed_fds[1]);
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

static bool accepts(const struct own_daemon *d)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool connected;

    if (fd < 0)
        return false;
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", d->socket);
    connected = connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
    close(fd);
    return connected;
}

int own_daemon_start(struct own_daemon *d, int signal_fd)
{
    const char *tmp = getenv("TMPDIR");
    char program[PATH_MAX + 32];
    int r;

    /* A socket's path has little room. */
    if (!tmp || !*tmp || strlen(tmp) > 40)
        tmp = "/tmp";
    find_program(program, sizeof(program));
    snprintf(d->dir, sizeof(d->dir), "%s/ruccl-perf-XXXXXX", tmp);
    if (!mkdtemp(d->dir)) {
        d->dir[0] = '\0';
        return fault("cannot make a temporary directory");
    }
    snprintf(d->socket, sizeof(d->socket), "%s/ruccld.sock", d->dir);

    d->log_fd = memfd_create("ruccld-log", MFD_CLOEXEC);
    if (d->log_fd < 0)
        return fault("memfd_create");
    r = spawn(d, program);
    if (r < 0)
        return r;

    for (int waited_ms = 0; waited_ms < START_MS; waited_ms += STEP_MS) {
        struct pollfd pollfd = { .fd = signal_fd, .events = POLLIN };
        int stop = 0;

        if (accepts(d))
            return 0;
        if (poll(&pollfd, 1, STEP_MS) > 0)
            stop = signals_take(signal_fd);
        if (stop)
            return stop;
        if (own_daemon_ended(d))
            return -ECHILD;
    }
    fprintf(stderr, "ruccl-perf: %s accepts no connections after %d s\n", program, START_MS / 1000);
    return -ETIMEDOUT;
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

static void remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0); /* "." and ".." refuse */
    if (dir)
        closedir(dir);
    rmdir(path);
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
    if (d->dir[0])
        remove_dir(d->dir);
    if (d->log_fd >= 0)
        close(d->log_fd);
    *d = (struct own_daemon)OWN_DAEMON_INIT;
}
