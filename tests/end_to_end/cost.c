#include "tests/end_to_end/cost.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/unit.h"

#define TICKS    1 /* that a clock's edge may bring */
#define SWITCHES 2

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

static uint64_t switches_of_thread(const char *pid_dir, const char *thread)
{
    char path[128], line[256];
    uint64_t n = 0;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%.32s/status", pid_dir, thread);
    f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "voluntary_ctxt_switches: %" SCNu64, &n) == 1)
            break;
    if (f)
        fclose(f);
    return n;
}

struct cost cost_of(pid_t pid)
{
    struct cost cost = { .ticks = ticks_of(pid) };
    struct dirent *entry;
    char path[64];
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    dir = opendir(path);
    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            cost.switches += switches_of_thread(path, entry->d_name);
    closedir(dir);
    return cost;
}

void cost_expect_idle(const char *who, pid_t pid, const struct cost *before, unsigned seconds)
{
    const struct cost after = cost_of(pid);

    if (after.ticks > before->ticks + TICKS || after.switches > before->switches + SWITCHES)
        fail_msg("%s: %llu ticks and %llu wake-ups in %u idle seconds", who,
                 (unsigned long long)(after.ticks - before->ticks),
                 (unsigned long long)(after.switches - before->switches), seconds);
}
