#include "daemon/device/workers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE 64
#define HELP_US    100u /* the loop thread's part of short tasks in one poll, but for a last block */
#define WATCH_US   100u /* that polling is preferred to sleeping, for the workers' last blocks */
#define NEVER      UINT64_MAX

/* The blocks one thread begins with, [next, end); others take from here once they have none. */
struct part {
    _Alignas(CACHE_LINE) _Atomic uint64_t next;
    uint64_t end;
};

/*
 * A task while it is held. Threads come in while it is queued; the first to find no block left
 * takes it off the queue, and the last to leave finishes it: by then every block has been run.
 */
struct job {
    struct task *task;
    uint64_t block; /* elements */
    struct part *parts;
    unsigned nparts;
    bool is_short; /* parts[0] is the loop thread's */
    atomic_int result;
    unsigned seats;   /* workers that may yet come in; under the lock */
    unsigned nusers;  /* threads inside; under the lock */
    bool queued;      /* under the lock */
    struct list link; // workers::free, queue or finished
};

struct worker {
    struct workers *workers;
    pthread_t thread;
    pthread_cond_t wake;
    bool idle;        /* under the lock */
    struct list link; // workers::idle, while idle
};

struct workers {
    workers_run_fn run;
    int event_fd;
    struct job *jobs;
    struct part *parts;   /* nworkers + 1 of them for each job */
    unsigned nhelpers;    /* workers that a short task may have */
    uint64_t look_us;     /* that polling is preferred to sleeping, by workers */
    uint64_t watch_until; /* us; the loop thread's */

    /* what workers look at */
    _Alignas(CACHE_LINE) atomic_int loop_cpu; /* where that thread last worked; below 0: nowhere */
    _Atomic uint64_t ncalls; /* reasons to stop looking, so far; written under the lock */

    _Alignas(CACHE_LINE) pthread_mutex_t lock; /* of all below */
    bool stopping;
    bool watching;  /* the loop polls: no need to wake it. Written by the loop thread alone */
    bool signalled; /* the descriptor is readable */
    struct list free;
    struct list queue; /* oldest first; jobs that may have a block to take */
    struct list finished;
    unsigned nshort;  /* jobs that are held, short and not finished */
    struct list idle; /* who slept last comes first: its caches are warmest */
    unsigned nawake;

    unsigned nworkers; /* threads that run */
    struct worker worker[];
};

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- A job ---- */

static void job_init(struct job *job, struct task *task, uint64_t block, unsigned seats,
                     bool is_short)
{
    const uint64_t nblocks = div_up_u64(task->count, block);
    const unsigned nparts = seats + is_short;
    uint64_t begin = 0;

    job->task = task;
    job->block = block;
    job->nparts = nparts;
    job->is_short = is_short;
    job->seats = seats;
    job->nusers = 0;
    job->queued = true;
    atomic_store(&job->result, 0);
    for (unsigned i = 0; i < nparts; i++) {
        atomic_store(&job->parts[i].next, begin);
        begin += nblocks / nparts + (i < nblocks % nparts);
        job->parts[i].end = begin;
    }
}

/* Runs blocks of one part. Return: whether there are no more, or the task is over. */
static bool job_run_part(struct job *job, struct part *part, workers_run_fn run, uint64_t until)
{
    const struct task *task = job->task;

    while (until == NEVER || now_us() < until) {
        uint64_t n = atomic_fetch_add(&part->next, 1), first = n * job->block;
        int r;

        if (n >= part->end || atomic_load(&job->result) != 0)
            return true;
        if (task->cancel && atomic_load(task->cancel))
            r = -ECANCELED;
        else
            r = run(task, first, MIN(job->block, task->count - first));
        if (r < 0)
            atomic_store(&job->result, r);
    }
    return false;
}

/* Runs blocks from part `index` on. Return: false, time is up; true, there are none left. */
static bool job_run(struct job *job, unsigned index, workers_run_fn run, uint64_t until)
{
    for (unsigned i = 0; i < job->nparts; i++)
        if (!job_run_part(job, &job->parts[(index + i) % job->nparts], run, until))
            return false;
    return true;
}

/* ---- Under the lock ---- */

static void workers_signal(struct workers *w)
{
    const uint64_t one = 1;

    if (w->watching || w->signalled)
        return;
    w->signalled = true;
    while (write(w->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void workers_unsignal(struct workers *w)
{
    uint64_t n;

    if (w->signalled && read(w->event_fd, &n, sizeof(n)) == sizeof(n))
        w->signalled = false;
}

static void worker_wake(struct worker *worker)
{
    worker->idle = false;
    worker->workers->nawake++;
    list_remove(&worker->link);
    pthread_cond_signal(&worker->wake);
}

/* Wakes until `n` workers are awake: who is, looks at the queue again before it sleeps. */
static void workers_wake(struct workers *w, unsigned n)
{
    while (w->nawake < n && !list_empty(&w->idle))
        worker_wake(list_first(&w->idle, struct worker, link));
}

/* To any other CPU of those that it may have now, and may have again as soon as it is there. */
static void leave_cpu(int cpu)
{
    cpu_set_t all, others;

    if (sched_getaffinity(0, sizeof(all), &all) < 0)
        return;
    others = all;
    CPU_CLR(cpu, &others);
    if (sched_setaffinity(0, sizeof(others), &others) == 0)
        sched_setaffinity(0, sizeof(all), &all);
}

/*
 * Looks for the next task, since a wake-up costs the loop thread more than a block does, and others
 * who look hold it up. Not on the loop thread's CPU, where the scheduler likes to wake workers:
 * there the loop thread would work, and the worker wait for it. Leaves the lock meanwhile. Return:
 * whether a task has come.
 */
static bool worker_look(struct workers *w)
{
    const uint64_t seen = w->ncalls, until = now_us() + w->look_us;

    pthread_mutex_unlock(&w->lock);
    while (atomic_load_explicit(&w->ncalls, memory_order_relaxed) == seen && now_us() < until) {
        const int cpu = sched_getcpu();

        if (cpu == atomic_load_explicit(&w->loop_cpu, memory_order_relaxed))
            leave_cpu(cpu);
        sched_yield();
    }
    pthread_mutex_lock(&w->lock);
    return w->ncalls != seen;
}

static void worker_sleep(struct worker *self)
{
    struct workers *w = self->workers;

    self->idle = true;
    w->nawake--;
    list_prepend(&w->idle, &self->link);
    while (self->idle)
        pthread_cond_wait(&self->wake, &w->lock);
}

/* Return: the oldest job that a worker may come in to, or NULL. */
static struct job *find_seat(const struct workers *w)
{
    struct job *job;

    list_for_each(job, &w->queue, link)
        if (job->seats > 0)
            return job;
    return NULL;
}

static struct job *find_short(const struct workers *w)
{
    struct job *job;

    list_for_each(job, &w->queue, link)
        if (job->is_short)
            return job;
    return NULL;
}

/* Leaves the lock for as long as there is something to do, and `until` is not reached. */
static void workers_run_job(struct workers *w, struct job *job, unsigned part, uint64_t until)
{
    bool none_left;

    job->nusers++;
    pthread_mutex_unlock(&w->lock);
    none_left = job_run(job, part, w->run, until);
    pthread_mutex_lock(&w->lock);

    if (none_left && job->queued) {
        job->queued = false;
        list_remove(&job->link);
    }
    if (--job->nusers == 0 && !job->queued) {
        w->nshort -= job->is_short;
        list_append(&w->finished, &job->link);
        workers_signal(w);
    }
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct workers *w = self->workers;
    bool expects = false; /* the next task may come soon */

    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        struct job *job = find_seat(w);

        if (job) {
            expects = job->is_short;
            workers_run_job(w, job, job->nparts - job->seats--, NEVER);
        } else if (expects) {
            expects = worker_look(w);
        } else {
            worker_sleep(self);
            expects = true; /* if it was woken too late for this one */
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- Starting and ending ---- */

/* Signals are the loop thread's, but for those that a thread's own instructions raise. */
static int worker_start(struct worker *worker)
{
    static const int synchronous[] = { SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGABRT };
    sigset_t blocked, before;
    int r;

    sigfillset(&blocked);
    for (unsigned i = 0; i < ARRAY_SIZE(synchronous); i++)
        sigdelset(&blocked, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    r = pthread_create(&worker->thread, NULL, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (r == 0)
        pthread_setname_np(worker->thread, "ruccld-worker");
    return -r;
}

static int workers_alloc(unsigned nworkers, struct workers **ret)
{
    struct workers *w;
    const size_t lines = div_up_u64(sizeof(*w) + nworkers * sizeof(w->worker[0]), CACHE_LINE);
    const size_t bytes = lines * CACHE_LINE;
    const unsigned nparts = nworkers + 1;

    w = aligned_alloc(CACHE_LINE, bytes);
    if (!w)
        return -ENOMEM;
    memset(w, 0, bytes);
    pthread_mutex_init(&w->lock, NULL);
    list_init(&w->free);
    list_init(&w->queue);
    list_init(&w->finished);
    list_init(&w->idle);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *ret = w;
    if (w->event_fd < 0)
        return -errno;

    w->jobs = calloc(WORKERS_TASKS_MAX, sizeof(w->jobs[0]));
    w->parts = aligned_alloc(CACHE_LINE, WORKERS_TASKS_MAX * nparts * sizeof(w->parts[0]));
    if (!w->jobs || !w->parts)
        return -ENOMEM;
    for (unsigned i = 0; i < WORKERS_TASKS_MAX; i++) {
        w->jobs[i].parts = &w->parts[i * nparts];
        list_append(&w->free, &w->jobs[i].link);
    }
    return 0;
}

static int workers_start(struct workers *w, unsigned nworkers)
{
    int r = 0;

    pthread_mutex_lock(&w->lock);
    while (r == 0 && w->nworkers < nworkers) {
        struct worker *worker = &w->worker[w->nworkers];

        worker->workers = w;
        pthread_cond_init(&worker->wake, NULL);
        r = worker_start(worker);
        if (r == 0)
            w->nworkers++;
        else
            pthread_cond_destroy(&worker->wake);
    }
    w->nawake = w->nworkers;
    pthread_mutex_unlock(&w->lock);
    return r;
}

int workers_new(unsigned nworkers, unsigned ncpus, uint64_t look_us, workers_run_fn run,
                struct workers **ret)
{
    struct workers *w = NULL;
    int r;

    r = workers_alloc(nworkers, &w);
    if (r == 0) {
        w->run = run;
        w->nhelpers = MIN(nworkers, ncpus - 1);
        w->look_us = look_us;
        w->loop_cpu = -1;
        r = workers_start(w, nworkers);
    }
    if (r < 0) {
        workers_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

struct workers *workers_free(struct workers *w)
{
    if (!w)
        return NULL;
    pthread_mutex_lock(&w->lock);
    assert(list_empty(&w->queue) && list_empty(&w->finished));
    w->stopping = true;
    w->ncalls++;
    workers_wake(w, w->nworkers);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->nworkers; i++) {
        pthread_join(w->worker[i].thread, NULL);
        pthread_cond_destroy(&w->worker[i].wake);
    }

    if (w->event_fd >= 0)
        close(w->event_fd);
    pthread_mutex_destroy(&w->lock);
    free(w->parts);
    free(w->jobs);
    free(w);
    return NULL;
}

/* ---- The loop thread's ---- */

static unsigned workers_seats(const struct workers *w, enum workers_use use)
{
    switch (use) {
    case WORKERS_NONE:
        return 0;
    case WORKERS_HELP:
        return w->nhelpers;
    default:
        return w->nworkers;
    }
}

static void note_loop_cpu(struct workers *w)
{
    atomic_store_explicit(&w->loop_cpu, sched_getcpu(), memory_order_relaxed);
}

/* Those who look, and as many of those who sleep as it takes. Under the lock. */
static void workers_call(struct workers *w, const struct job *job)
{
    if (job->is_short)
        note_loop_cpu(w);
    atomic_fetch_add_explicit(&w->ncalls, 1, memory_order_relaxed);
    workers_wake(w, job->seats);
}

bool workers_submit(struct workers *w, struct task *task, uint64_t block, enum workers_use use)
{
    const bool is_short = use != WORKERS_ALONE;
    bool taken;

    pthread_mutex_lock(&w->lock);
    taken = !list_empty(&w->free);
    if (taken) {
        struct job *job = list_first(&w->free, struct job, link);

        list_remove(&job->link);
        job_init(job, task, block, workers_seats(w, use), is_short);
        list_append(&w->queue, &job->link);
        if (job->seats > 0)
            workers_call(w, job);
        w->nshort += is_short;
        w->watching |= is_short;
    }
    pthread_mutex_unlock(&w->lock);
    return taken;
}

/* Part 0 first, which is its own: from one call to the next it goes on where it was. */
static void workers_help(struct workers *w)
{
    const uint64_t until = now_us() + HELP_US;
    struct job *job;

    while (now_us() < until && (job = find_short(w))) {
        note_loop_cpu(w);
        workers_run_job(w, job, 0, until);
        w->watch_until = now_us() + WATCH_US;
    }
}

/* Bounded, so that tasks submitted by done() cannot keep the loop thread here. The job goes back
 * before done() runs, which may well submit the next task. */
static void workers_finish(struct workers *w)
{
    for (unsigned i = 0; i < WORKERS_TASKS_MAX && !list_empty(&w->finished); i++) {
        struct job *job = list_first(&w->finished, struct job, link);
        struct task *task = job->task;
        int r = atomic_load(&job->result);

        list_remove(&job->link);
        list_append(&w->free, &job->link);
        pthread_mutex_unlock(&w->lock);
        task->done(task, r);
        pthread_mutex_lock(&w->lock);
    }
}

void workers_poll(struct workers *w)
{
    pthread_mutex_lock(&w->lock);
    workers_unsignal(w);
    w->watching = true; /* until the end of this call */
    workers_help(w);
    workers_finish(w);
    w->watching =
        find_short(w) || !list_empty(&w->finished) || (w->nshort > 0 && now_us() < w->watch_until);
    pthread_mutex_unlock(&w->lock);
}

bool workers_wants_turn(const struct workers *w)
{
    return w->watching;
}

int workers_fd(const struct workers *w)
{
    return w->event_fd;
}
