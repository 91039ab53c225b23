#include "tests/end_to_end/actors.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/end_to_end/cost.h"
#include "tests/unit/unit.h"

int64_t stage_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

static int64_t deadline_us(void)
{
    return stage_now_us() + STAGE_PATIENCE_MS * 1000ll;
}

static void rest(void)
{
    const struct timespec moment = { .tv_nsec = 100000 };

    nanosleep(&moment, NULL);
}

/* ---- the director */

/* Others use it too; what ours would be called tells it from theirs. */
static unsigned count_shm_names(void)
{
    DIR *dir = opendir("/dev/shm");
    struct dirent *entry;
    unsigned n = 0;

    while (dir && (entry = readdir(dir)))
        n += strstr(entry->d_name, "ruccl") != NULL;
    if (dir)
        closedir(dir);
    return n;
}

struct stage *stage_open(const struct harness *h)
{
    struct stage *stage =
        mmap(NULL, sizeof(*stage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (stage == MAP_FAILED)
        fail_msg("mmap: %s", strerror(errno));
    /* so that what a killed actor leaves behind is ours to end */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    memcpy(stage->socket, h->socket, sizeof(stage->socket));
    stage->before = harness_usage(h);
    stage->shm_names = count_shm_names();
    return stage;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

struct stage *stage_close(struct stage *stage)
{
    if (!stage)
        return NULL;
    for (uint32_t i = 0; i < stage->nparts; i++) {
        struct part *part = &stage->parts[i];

        if (!part->dismissed)
            end_process(part->pid);
        if (part->child)
            end_process(part->child);
    }
    munmap(stage, sizeof(*stage));
    return NULL;
}

static _Noreturn void act(struct stage *stage, struct part *me, role_fn play, pid_t director)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != director)
        _exit(1);
    play(stage, me);
    _exit(0);
}

struct part *stage_reserve(struct stage *stage, uint32_t rank)
{
    struct part *part = &stage->parts[stage->nparts];

    assert_true(stage->nparts < ACTORS_MAX);
    part->number = stage->nparts++;
    part->rank = rank;
    part->dismissed = true;
    return part;
}

void stage_play(struct stage *stage, struct part *part, role_fn play)
{
    const pid_t director = getpid();
    pid_t pid;

    assert_true(part->dismissed);
    *part = (struct part){ .number = part->number, .rank = part->rank, .dismissed = true };
    pid = fork();
    if (pid == 0)
        act(stage, part, play, director);
    if (pid < 0)
        fail_msg("fork: %s", strerror(errno));
    part->pid = pid;
    part->dismissed = false;
}

struct part *stage_add(struct stage *stage, uint32_t rank, role_fn play)
{
    struct part *part = stage_reserve(stage, rank);

    stage_play(stage, part, play);
    return part;
}

void stage_cue(struct part *part, uint32_t cue)
{
    atomic_store(&part->cue, cue);
}

void stage_cue_all(struct stage *stage, uint32_t cue)
{
    for (uint32_t i = 0; i < stage->nparts; i++)
        if (!stage->parts[i].dismissed)
            stage_cue(&stage->parts[i], cue);
}

static void expect_no_failure(const struct part *part)
{
    if (part->failure[0])
        fail_msg("actor %u: %s", part->number, part->failure);
}

/* Reaps it if it has ended. */
static bool has_ended(struct part *part, int *ret_status)
{
    if (waitpid(part->pid, ret_status, WNOHANG) != part->pid)
        return false;
    part->dismissed = true;
    return true;
}

void stage_await(struct part *part, uint32_t at)
{
    const int64_t deadline = deadline_us();
    int status;

    while (atomic_load(&part->at) < at) {
        if (has_ended(part, &status) && atomic_load(&part->at) < at) {
            expect_no_failure(part);
            fail_msg("actor %u ended with wait status %#x on its way from %u to %u", part->number,
                     (unsigned)status, atomic_load(&part->at), at);
        }
        if (stage_now_us() > deadline)
            fail_msg("actor %u hangs on its way from %u to %u", part->number,
                     atomic_load(&part->at), at);
        rest();
    }
}

void stage_await_all(struct stage *stage, uint32_t at)
{
    for (uint32_t i = 0; i < stage->nparts; i++)
        if (!stage->parts[i].dismissed)
            stage_await(&stage->parts[i], at);
}

void stage_kill(struct part *part)
{
    end_process(part->pid);
    part->dismissed = true;
}

void stage_kill_child(struct part *part)
{
    if (part->child)
        end_process(part->child);
    part->child = 0;
}

void stage_freeze(pid_t pid)
{
    int status;

    kill(pid, SIGSTOP);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
}

void stage_dismiss(struct part *part)
{
    const int64_t deadline = deadline_us();
    int status;

    while (!has_ended(part, &status)) {
        if (stage_now_us() > deadline)
            fail_msg("actor %u hangs at %u", part->number, atomic_load(&part->at));
        rest();
    }
    expect_no_failure(part);
    if (status)
        fail_msg("actor %u ended with wait status %#x at %u", part->number, (unsigned)status,
                 atomic_load(&part->at));
}

void stage_dismiss_all(struct stage *stage)
{
    for (uint32_t i = 0; i < stage->nparts; i++)
        if (!stage->parts[i].dismissed)
            stage_dismiss(&stage->parts[i]);
}

#define GROWTH_BYTES (8u << 20) /* what an allocator may keep for later */

void stage_expect_nothing_left(struct stage *stage, const struct harness *h)
{
    struct harness_usage usage;

    stage_dismiss_all(stage);
    harness_expect_usage(h, &stage->before);
    cost_await_rest(&h->pid, 1);
    usage = harness_usage(h);
    if (!HARNESS_SANITIZED && usage.resident_bytes > stage->before.resident_bytes + GROWTH_BYTES)
        fail_msg("the daemon has grown from %llu to %llu bytes",
                 (unsigned long long)stage->before.resident_bytes,
                 (unsigned long long)usage.resident_bytes);
    assert_int_equal(count_shm_names(), stage->shm_names);
}

bool words_in(const char *text, const char *words, char ret_missing[128])
{
    while (words && *words) {
        size_t n = strcspn(words, "|");

        snprintf(ret_missing, 128, "%.*s", (int)n, words);
        if (!strstr(text, ret_missing))
            return false;
        words += n + (words[n] == '|');
    }
    return true;
}

void stage_expect(const struct part *part, uint32_t report, enum ruccl_code code, const char *words,
                  int64_t since_us)
{
    const struct report *r = &part->reports[report];
    char missing[128];

    assert_true(report < part->nreports);
    if (r->result != -(int)code)
        fail_msg("actor %u, call %u: %s, not %s: %s", part->number, report,
                 r->result >= 0 ? "no failure" : ruccl_code_name(r->result),
                 ruccl_code_name((int)code), r->error.text);
    if (r->result < 0 && !words_in(r->error.text, words, missing))
        fail_msg("actor %u, call %u: no '%s' in: %s", part->number, report, missing, r->error.text);
    if (r->at_us > since_us + STAGE_PROMPT_US)
        fail_msg("actor %u, call %u: told after %lld ms", part->number, report,
                 (long long)(r->at_us - since_us) / 1000);
}

/* ---- the actors */

static _Noreturn void give_up(struct part *me, const char *what, const char *why)
{
    snprintf(me->failure, sizeof(me->failure), "%s: %s", what, why);
    _exit(1);
}

void part_reach(struct part *me, uint32_t at)
{
    atomic_store(&me->at, at);
}

void part_wait(struct part *me, uint32_t cue)
{
    const int64_t deadline = deadline_us();

    while (atomic_load(&me->cue) < cue) {
        if (stage_now_us() > deadline)
            give_up(me, "cue", "it never comes");
        rest();
    }
}

void part_report(struct part *me, int result)
{
    struct report *r = &me->reports[me->nreports];

    if (me->nreports == STAGE_REPORTS)
        give_up(me, "report", "there is no room for another");
    r->at_us = stage_now_us();
    r->result = result;
    if (result < 0)
        r->error = *ruccl_last_error();
    me->nreports++;
}

void part_check(struct part *me, bool holds, const char *what)
{
    if (!holds)
        give_up(me, what, "does not hold");
}

void part_ok(struct part *me, int result, const char *what)
{
    if (result != 0)
        give_up(me, what, result > 0 ? "pending" : ruccl_last_error()->text);
}

struct ruccl_conn *part_connect(const struct stage *stage, struct part *me)
{
    struct ruccl_conn *conn;

    part_ok(me, ruccl_connect(stage->socket, "actor", &conn), "connect");
    return conn;
}

const char *part_id(struct stage *stage, struct part *me, struct ruccl_conn *conn, uint32_t id,
                    bool maker)
{
    const int64_t deadline = deadline_us();

    part_check(me, id < STAGE_IDS_MAX, "an id for every communicator");
    if (maker) {
        part_ok(me, ruccl_new_id(conn, stage->ids[id].text), "new_id");
        atomic_store(&stage->ids[id].ready, true);
    }
    while (!atomic_load(&stage->ids[id].ready)) {
        if (stage_now_us() > deadline)
            give_up(me, "id", "rank 0 makes none");
        rest();
    }
    return stage->ids[id].text;
}

struct ruccl_comm part_join(struct stage *stage, struct part *me, struct ruccl_conn *conn,
                            uint32_t id, uint32_t rank, uint32_t nranks,
                            const struct ruccl_join_options *options)
{
    struct ruccl_comm comm;

    part_ok(me,
            ruccl_join(conn, part_id(stage, me, conn, id, rank == 0), rank, nranks, options, &comm),
            "join");
    return comm;
}

struct ruccl_tensor vector_of(struct ruccl_region *region, uint64_t count)
{
    return (struct ruccl_tensor){
        .dtype = RUCCL_I32, .naxes = 1, .shape = { count }, .region = region
    };
}

struct ruccl_region *part_alloc(struct part *me, struct ruccl_conn *conn, uint64_t bytes)
{
    struct ruccl_region *region;

    part_ok(me, ruccl_alloc(conn, bytes, &region), "alloc");
    return region;
}

int part_watch(struct part *me, struct ruccl_work *work)
{
    struct ruccl_progress progress;
    int r;

    do {
        r = ruccl_work_wait(work, 200);
        part_ok(me, ruccl_work_progress(work, &progress), "progress");
        atomic_store(&me->total, progress.chunks_total);
        atomic_store(&me->done, progress.chunks_done);
    } while (r == RUCCL_PENDING);
    return r;
}

/* A sum that is known: rank r gives r + round. */
void part_compute(struct part *me, struct ruccl_comm comm, struct ruccl_region *region,
                  int32_t round)
{
    const uint64_t count = ruccl_region_bytes(region) / sizeof(int32_t);
    const int32_t rank = (int32_t)ruccl_rank(comm), n = (int32_t)ruccl_world_size(comm);
    const struct ruccl_tensor t = vector_of(region, count);
    int32_t *values = ruccl_region_data(region);

    for (uint64_t i = 0; i < count; i++)
        values[i] = rank + round;
    part_ok(me, ruccl_all_reduce(comm, &t, &t, RUCCL_SUM), "all_reduce");
    for (uint64_t i = 0; i < count; i++)
        part_check(me, values[i] == n * round + n * (n - 1) / 2, "a sum being right");
}

/* ---- bystanders */

#define BYSTANDERS_ID (STAGE_IDS_MAX - 1)

/* Two of them compute by themselves until the last cue and notice nothing. */
static void play_bystander(struct stage *s, struct part *me)
{
    struct ruccl_conn *conn = part_connect(s, me);
    struct ruccl_comm comm = part_join(s, me, conn, BYSTANDERS_ID, me->rank, 2, NULL);
    struct ruccl_region *region = part_alloc(me, conn, 4000);
    struct ruccl_region *flag = part_alloc(me, conn, sizeof(int32_t));
    const struct ruccl_tensor over = vector_of(flag, 1);
    int32_t *done = ruccl_region_data(flag);

    for (int32_t round = 0; *done == 0; round++) {
        part_compute(me, comm, region, round);
        poll(NULL, 0, 1);
        /* both go in the same round */
        *done = atomic_load(&me->cue) == UINT32_MAX;
        part_ok(me, ruccl_all_reduce(comm, &over, &over, RUCCL_MIN), "all_reduce of the flag");
    }
    part_ok(me, ruccl_leave(comm), "leave");
    ruccl_close(conn);
}

void stage_add_bystanders(struct stage *stage)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        stage->bystanders[rank] = stage_add(stage, rank, play_bystander);
}

void stage_dismiss_bystanders(struct stage *stage)
{
    for (uint32_t rank = 0; rank < 2; rank++)
        stage_cue(stage->bystanders[rank], UINT32_MAX);
    for (uint32_t rank = 0; rank < 2; rank++)
        stage_dismiss(stage->bystanders[rank]);
}
