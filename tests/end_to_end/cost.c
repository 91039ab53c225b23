#include "tests/end_to_end/cost.h"

#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/unit/unit.h"

#define TICKS       1 /* that a clock's edge may bring */
#define SWITCHES    2
#define REST_WAIT_S 20

static time_t now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static uint64_t ticks_of(pid_t pid)
{
    char path[64], line[1024] = "";
    uint64_t user = 0, system = 0;
    const char *fields;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof(line), f));
    fclose(f);
    fields = strrchr(line, ')');
    assert_non_null(fields);
    assert_int_equal(sscanf(fields,
                            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                            &user, &system),
                     2);
    return user + system;
}

struct threads {
    uint64_t switches; /* of all of them */
    unsigned nawake;
};

static void look_at_thread(const char *pid_dir, const char *thread, struct threads *ret)
{
    char path[128], line[256], state = '?';
    uint64_t n = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%.32s/status", pid_dir, thread);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) {
        sscanf(line, "State: %c", &state);
        if (sscanf(line, "voluntary_ctxt_switches: %" SCNu64, &n) == 1)
            break;
    }
    if (f)
        fclose(f);
    ret->nawake += state != 'S';
    ret->switches += n;
}

static void look_at_threads(pid_t pid, struct threads *ret)
{
    struct dirent *entry;
    char path[64];
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            look_at_thread(path, entry->d_name, ret);
    closedir(dir);
}

struct cost cost_of(pid_t pid)
{
    struct threads threads = { 0 };

    look_at_threads(pid, &threads);
    return (struct cost){ .ticks = ticks_of(pid), .switches = threads.switches };
}

static struct threads look_at_all(const pid_t *pids, uint32_t n)
{
    struct threads all = { 0 };

    for (uint32_t i = 0; i < n; i++)
        look_at_threads(pids[i], &all);
    return all;
}

/* Who sleeps at two looks and has not gone to sleep between them has slept all the time. */
void cost_await_rest(const pid_t *pids, uint32_t n)
{
    const time_t deadline = now_s() + REST_WAIT_S;
    struct threads before, now = look_at_all(pids, n);

    do {
        if (now_s() > deadline)
            fail_msg("%u threads do not come to rest", now.nawake);
        poll(NULL, 0, 2);
        before = now;
        now = look_at_all(pids, n);
    } while (before.nawake || now.nawake || now.switches != before.switches);
}

void cost_expect_idle(const char *who, pid_t pid, const struct cost *before, unsigned seconds)
{
    const struct cost after = cost_of(pid);

    if (after.ticks > before->ticks + TICKS || after.switches > before->switches + SWITCHES)
        fail_msg("%s: %llu ticks and %llu wake-ups in %u idle seconds", who,
                 (unsigned long long)(after.ticks - before->ticks),
                 (unsigned long long)(after.switches - before->switches), seconds);
}
