#include "tests/end_to_end/harness.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/unit/unit.h"

#define START_MS  20000
#define STOP_MS   20000 /* from SIGTERM to SIGKILL */
#define SETTLE_MS 10000
#define STEP_MS   2 /* between two looks at something that gives no notice */

bool harness_full(void)
{
    const char *chosen = getenv("RUCCL_TEST_FULL");

    return chosen && *chosen ? *chosen != '0' : !HARNESS_SANITIZED;
}

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- a private daemon */

static void print_log(const struct harness *h)
{
    char buffer[4096];
    ssize_t n;

    for (off_t at = 0; (n = pread(h->log, buffer, sizeof(buffer), at)) > 0; at += n)
        fwrite(buffer, 1, (size_t)n, stderr);
}

#define OPTIONS_MAX 16

static _Noreturn void become_daemon(const struct harness *h, const char *program, pid_t parent,
                                    const char *const *options)
{
    const char *argv[OPTIONS_MAX + 6] = { program, "--socket", h->socket };
    const char *rings = getenv("RUCCL_TEST_RINGS");
    char set[32];
    int n = 3;

    if (rings) {
        snprintf(set, sizeof(set), "rings=%s", rings);
        argv[n++] = "--set";
        argv[n++] = set;
    }
    for (int i = 0; options && options[i] && i < OPTIONS_MAX; i++)
        argv[n++] = options[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    dup2(h->log, STDOUT_FILENO);
    dup2(h->log, STDERR_FILENO);
    execv(program, (char *const *)argv);
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", program, strerror(errno));
    _exit(127);
}

void harness_start(struct harness *h, const char *const *options)
{
    const char *program = getenv("RUCCLD");
    const int64_t deadline = now_ms() + START_MS;
    struct ruccl_conn *conn = NULL;
    pid_t parent = getpid();
    int status;

    *h = (struct harness){ .dir = "/tmp/ruccl-test-XXXXXX" };
    if (!program || !*program)
        fail_msg("RUCCLD does not name the daemon to test");
    if (!mkdtemp(h->dir))
        fail_msg("mkdtemp: %s", strerror(errno));
    snprintf(h->socket, sizeof(h->socket), "%s/ruccld.sock", h->dir);
    h->log = memfd_create("ruccld-log", MFD_CLOEXEC);
    h->pid = fork();
    if (h->pid == 0)
        become_daemon(h, program, parent, options);
    if (h->pid < 0)
        fail_msg("fork: %s", strerror(errno));

    while (ruccl_connect(h->socket, "harness", &conn) < 0) {
        if (waitpid(h->pid, &status, WNOHANG) == h->pid) {
            h->pid = 0;
            print_log(h);
            fail_msg("the daemon ended at once, with wait status %#x", (unsigned)status);
        }
        if (now_ms() > deadline) {
            print_log(h);
            fail_msg("the daemon does not answer: %s", ruccl_last_error()->text);
        }
        poll(NULL, 0, STEP_MS);
    }
    ruccl_close(conn);
}

/* Whether the daemon maps something that has a name in /dev/shm; what CUDA's driver keeps there for
 * events between processes is not ours. */
static bool has_shm_name(pid_t pid)
{
    char path[64], line[4096];
    bool found = false;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        found = found || (strstr(line, " /dev/shm/") && !strstr(line, "/cuda."));
    if (f)
        fclose(f);
    return found;
}

/* Return: whether it ended by itself. */
static bool wait_for_end(pid_t pid, int *ret_status)
{
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd pollfd = { .fd = pidfd, .events = POLLIN };
    bool ended = pidfd >= 0 && poll(&pollfd, 1, STOP_MS) == 1;

    if (pidfd >= 0)
        close(pidfd);
    if (!ended)
        kill(pid, SIGKILL);
    waitpid(pid, ret_status, 0);
    return ended;
}

/* Return: how many entries were still in it. */
static unsigned remove_dir(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    unsigned n = 0;

    while (dir && (entry = readdir(dir)))
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0) { /* "." and ".." refuse */
            fprintf(stderr, "harness: the daemon left %s/%s\n", path, entry->d_name);
            n++;
        }
    if (dir)
        closedir(dir);
    rmdir(path);
    return n;
}

int harness_stop(struct harness *h)
{
    bool shm, ended;
    int status = 0, r = 0;

    if (h->pid > 0) {
        shm = has_shm_name(h->pid);
        kill(h->pid, SIGTERM);
        ended = wait_for_end(h->pid, &status);
        if (shm)
            fprintf(stderr, "harness: the daemon had a name in /dev/shm\n");
        if (!ended)
            fprintf(stderr, "harness: the daemon did not stop in %d s\n", STOP_MS / 1000);
        if (status)
            fprintf(stderr, "harness: the daemon ended with wait status %#x\n", (unsigned)status);
        if (shm || !ended || status)
            r = -1;
    }
    if (h->dir[0] && remove_dir(h->dir) > 0)
        r = -1;
    if (r < 0)
        print_log(h);
    if (h->log > 0)
        close(h->log);
    *h = (struct harness){ 0 };
    return r;
}

void harness_kill(struct harness *h)
{
    char lock[sizeof(h->socket) + 5];

    kill(h->pid, SIGKILL);
    waitpid(h->pid, NULL, 0);
    h->pid = 0;
    snprintf(lock, sizeof(lock), "%s.lock", h->socket);
    unlink(h->socket);
    unlink(lock);
}

static unsigned count_fds(pid_t pid)
{
    char path[64];
    unsigned n = 0;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
    dir = opendir(path);
    while (dir && readdir(dir))
        n++;
    if (dir)
        closedir(dir);
    return n;
}

struct harness_usage harness_usage(const struct harness *h)
{
    struct harness_usage usage = { .fds = count_fds(h->pid) };
    uint64_t size, resident, shared;
    char path[64], line[4096];
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/maps", (int)h->pid);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        usage.mappings += strstr(line, "/memfd:") != NULL;
    if (f)
        fclose(f);

    snprintf(path, sizeof(path), "/proc/%d/statm", (int)h->pid);
    f = fopen(path, "re");
    if (f && fscanf(f, "%" SCNu64 " %" SCNu64 " %" SCNu64, &size, &resident, &shared) == 3)
        usage.resident_bytes = (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (f)
        fclose(f);
    return usage;
}

void harness_expect_usage(const struct harness *h, const struct harness_usage *before)
{
    const int64_t deadline = now_ms() + SETTLE_MS;
    struct harness_usage usage = harness_usage(h);

    while (usage.fds > before->fds || usage.mappings > before->mappings) {
        if (now_ms() > deadline)
            fail_msg("the daemon holds %u fds and %u mappings, but held %u and %u before",
                     usage.fds, usage.mappings, before->fds, before->mappings);
        poll(NULL, 0, STEP_MS);
        usage = harness_usage(h);
    }
}

/* ---- a world of ranks */

static void expect_ok(int r, const char *what)
{
    if (r < 0)
        fail_msg("%s: %s: %s", what, ruccl_code_name(r), ruccl_last_error()->text);
}

void expect_done(struct ruccl_work *work, const char *what)
{
    int r = ruccl_work_wait(work, HARNESS_PATIENCE_US);

    if (r == RUCCL_PENDING)
        fail_msg("%s: not done after %d s", what, HARNESS_PATIENCE_US / 1000000);
    expect_ok(r, what);
    ruccl_work_release(work);
}

void expect_failure(struct ruccl_work *work, enum ruccl_code code, const char *what)
{
    int r = ruccl_work_wait(work, HARNESS_PATIENCE_US);

    if (r != -(int)code)
        fail_msg("%s: %s (%d), not %s: %s", what, r == 0 ? "success" : ruccl_code_name(r), r,
                 ruccl_code_name((int)code), ruccl_last_error()->text);
    ruccl_work_release(work);
}

struct ruccl_conn *world_conn(const struct world *w, uint32_t rank)
{
    return w->conns[rank % w->nconns];
}

static void join_all(struct world *w)
{
    struct ruccl_work *works[HARNESS_RANKS];
    char id[RUCCL_ID_BYTES];

    w->sequence = 0;
    expect_ok(ruccl_new_id(w->conns[0], id), "new_id");
    for (uint32_t r = 0; r < w->nranks; r++)
        expect_ok(
            ruccl_join_async(world_conn(w, r), id, r, w->nranks, NULL, &w->comms[r], &works[r]),
            "join");
    for (uint32_t r = 0; r < w->nranks; r++)
        expect_done(works[r], "join");
}

void world_open(struct world *w, const struct harness *h, uint32_t nranks, uint32_t nconns)
{
    *w = (struct world){ .nranks = nranks, .nconns = nconns };
    for (uint32_t i = 0; i < nconns; i++)
        expect_ok(ruccl_connect(h->socket, "rank", &w->conns[i]), "connect");
    join_all(w);
}

void world_open_across(struct world *w, const struct harness nodes[2], const uint32_t *node_of,
                       uint32_t nranks)
{
    *w = (struct world){ .nranks = nranks, .nconns = nranks, .across = true };
    for (uint32_t r = 0; r < nranks; r++)
        expect_ok(ruccl_connect(nodes[node_of[r]].socket, "rank", &w->conns[r]), "connect");
    join_all(w);
}

void world_join(struct world *w, const struct world *of)
{
    *w = *of;
    join_all(w);
}

void world_leave(struct world *w)
{
    for (uint32_t r = 0; r < w->nranks; r++)
        expect_ok(ruccl_leave(w->comms[r]), "leave");
}

void world_close(struct world *w)
{
    world_leave(w);
    for (uint32_t i = 0; i < w->nconns; i++)
        ruccl_close(w->conns[i]);
}
