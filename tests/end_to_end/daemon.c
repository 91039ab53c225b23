#include "tests/end_to_end/daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/end_to_end/cost.h"

#define START_LIMIT_MS 20000u
#define SETTLE_MS      300u /* for what is due a little later */
#define ARGUMENTS_MAX  32u

uint64_t test_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void test_sleep_ms(unsigned ms)
{
    nanosleep(&(struct timespec){ ms / 1000, (long)(ms % 1000) * 1000000 }, NULL);
}

static struct daemon live; /* a copy of the running test's, whose own is lost where it fails */

static void name_notify(struct daemon *d, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
    snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/notify", d->directory);
}

void daemon_init(struct daemon *d)
{
    struct sockaddr_un address;

    memset(d, 0, sizeof(*d));
    strcpy(d->directory, "/tmp/ruccl-test-XXXXXX");
    assert_non_null(mkdtemp(d->directory));
    snprintf(d->socket, sizeof(d->socket), "%s/ruccld.sock", d->directory);
    snprintf(d->log, sizeof(d->log), "%s/log", d->directory);

    d->notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    name_notify(d, &address);
    assert_int_equal(bind(d->notify, (struct sockaddr *)&address, sizeof(address)), 0);
    live = *d;
}

void daemon_fini(struct daemon *d)
{
    struct dirent *entry;
    DIR *dir;

    if (d->pid && waitpid(d->pid, NULL, WNOHANG) == 0) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    close(d->notify);
    dir = opendir(d->directory);
    while (dir && (entry = readdir(dir)))
        unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(d->directory);
    live = (struct daemon){ 0 };
}

int daemon_clean_up(void **state)
{
    (void)state;
    if (*live.directory)
        daemon_fini(&live);
    return 0;
}

_Noreturn static void run_program(struct daemon *d, const char *const *arguments)
{
    const char *argv[ARGUMENTS_MAX] = { getenv("RUCCLD"), "--socket", d->socket };
    struct sockaddr_un address;
    size_t n = 3;
    int log = open(d->log, O_WRONLY | O_CREAT | O_APPEND, 0600);

    while (*arguments && n < ARGUMENTS_MAX - 1)
        argv[n++] = *arguments++;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(log, STDERR_FILENO);
    name_notify(d, &address);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    unsetenv("JOURNAL_STREAM");
    execv(argv[0], (char *const *)argv);
    _exit(127);
}

void daemon_spawn(struct daemon *d, const char *const *arguments)
{
    assert_non_null(getenv("RUCCLD"));
    d->pid = fork();
    assert_true(d->pid >= 0);
    if (d->pid == 0)
        run_program(d, arguments);
}

void daemon_start(struct daemon *d, const char *const *arguments)
{
    daemon_spawn(d, arguments);
    live.pid = d->pid;
    daemon_wait_notice(d, "READY=1");
}

void daemon_wait_notice(struct daemon *d, const char *text)
{
    uint64_t end = test_now_ms() + START_LIMIT_MS;
    char message[512];

    while (test_now_ms() < end) {
        struct pollfd p = { .fd = d->notify, .events = POLLIN };

        if (poll(&p, 1, 50) > 0) {
            ssize_t n = recv(d->notify, message, sizeof(message) - 1, 0);

            assert_true(n >= 0);
            message[n] = '\0';
            if (strstr(message, text))
                return;
        } else if (d->pid && waitpid(d->pid, NULL, WNOHANG) == d->pid) {
            d->pid = 0;
            break;
        }
    }
    fail_msg("the daemon never said '%s'", text);
}

int daemon_wait(struct daemon *d, uint64_t limit_ms)
{
    uint64_t end = test_now_ms() + limit_ms;
    int status;

    while (waitpid(d->pid, &status, WNOHANG) != d->pid) {
        if (test_now_ms() > end)
            fail_msg("the daemon did not end within %lu ms", (unsigned long)limit_ms);
        test_sleep_ms(5);
    }
    d->pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void daemon_stop(struct daemon *d)
{
    kill(d->pid, SIGTERM);
    assert_int_equal(daemon_wait(d, START_LIMIT_MS), 0);
    daemon_fini(d);
}

void daemon_settle(const struct daemon *d)
{
    test_sleep_ms(SETTLE_MS);
    cost_await_rest(&d->pid, 1);
}

bool daemon_logged(const struct daemon *d, const char *text)
{
    FILE *f = fopen(d->log, "re");
    char line[2048];
    bool found = false;

    while (f && !found && fgets(line, sizeof(line), f))
        found = strstr(line, text);
    if (f)
        fclose(f);
    return found;
}

unsigned daemon_fds(const struct daemon *d)
{
    char path[64];
    unsigned n = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", d->pid);
    dir = opendir(path);
    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

uint64_t daemon_cpu_us(const struct daemon *d)
{
    struct timespec t;
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(d->pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t daemon_memory_kb(const struct daemon *d, const char *field)
{
    char path[64], line[256];
    unsigned long kb = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/status", d->pid);
    f = fopen(path, "re");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (!strncmp(line, field, strlen(field)))
            sscanf(line + strlen(field), ": %lu", &kb);
    fclose(f);
    return kb;
}
