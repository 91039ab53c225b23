#include "daemon/device/workers.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define CACHE_LINE 64

/* The blocks one worker begins with, [next, end); others take from here once they have none. */
struct part {
    _Alignas(CACHE_LINE) _Atomic uint64_t next;
    uint64_t end;
};

/*
 * A task while it is held. Workers come in while it is queued; the first to find no block left
 * takes it off the queue, and the last to leave finishes it: by then every block has been run.
 */
struct job {
    struct task *task;
    uint64_t block; /* elements */
    struct part *parts;
    atomic_int result;
    unsigned nusers;  /* workers inside; under the lock */
    bool queued;      /* under the lock */
    struct list link; // workers::idle, queue or finished
};

struct worker {
    struct workers *workers;
    unsigned index;
    pthread_t thread;
};

struct workers {
    workers_run_fn run;
    int event_fd;
    struct job *jobs;
    struct part *parts; /* nworkers of them for each job */

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t wake;
    bool stopping;
    struct list idle;
    struct list queue; /* oldest first; jobs that may have a block to take */
    struct list finished;

    unsigned nworkers; /* threads that run */
    struct worker worker[];
};

static void job_init(struct job *job, struct task *task, uint64_t block, unsigned nworkers)
{
    const uint64_t nblocks = div_up_u64(task->count, block);
    uint64_t begin = 0;

    job->task = task;
    job->block = block;
    job->nusers = 0;
    job->queued = true;
    atomic_store(&job->result, 0);
    for (unsigned i = 0; i < nworkers; i++) {
        atomic_store(&job->parts[i].next, begin);
        begin += nblocks / nworkers + (i < nblocks % nworkers);
        job->parts[i].end = begin;
    }
}

/* Runs blocks of one part until there are none, or the task is over. */
static void job_run_part(struct job *job, struct part *part, workers_run_fn run)
{
    const struct task *task = job->task;

    for (;;) {
        uint64_t n = atomic_fetch_add(&part->next, 1), first = n * job->block;
        int r;

        if (n >= part->end || atomic_load(&job->result) != 0)
            return;
        if (task->cancel && atomic_load(task->cancel))
            r = -ECANCELED;
        else
            r = run(task, first, MIN(job->block, task->count - first));
        if (r < 0)
            atomic_store(&job->result, r);
    }
}

static void job_run(struct job *job, unsigned index, unsigned nworkers, workers_run_fn run)
{
    for (unsigned i = 0; i < nworkers; i++)
        job_run_part(job, &job->parts[(index + i) % nworkers], run);
}

/* Under the lock. The descriptor is a semaphore: it counts the finished. */
static void job_finish(struct workers *w, struct job *job)
{
    const uint64_t one = 1;

    list_append(&w->finished, &job->link);
    while (write(w->event_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void *worker_main(void *arg)
{
    struct worker *self = arg;
    struct workers *w = self->workers;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct job *job;

        while (list_empty(&w->queue) && !w->stopping)
            pthread_cond_wait(&w->wake, &w->lock);
        if (w->stopping)
            break;
        job = list_first(&w->queue, struct job, link);
        job->nusers++;
        pthread_mutex_unlock(&w->lock);

        job_run(job, self->index, w->nworkers, w->run);

        pthread_mutex_lock(&w->lock);
        if (job->queued) {
            job->queued = false;
            list_remove(&job->link);
        }
        if (--job->nusers == 0)
            job_finish(w, job);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

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

    w = calloc(1, sizeof(*w) + nworkers * sizeof(w->worker[0]));
    if (!w)
        return -ENOMEM;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    list_init(&w->idle);
    list_init(&w->queue);
    list_init(&w->finished);
    w->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
    *ret = w;
    if (w->event_fd < 0)
        return -errno;

    w->jobs = calloc(WORKERS_TASKS_MAX, sizeof(w->jobs[0]));
    w->parts = aligned_alloc(CACHE_LINE, WORKERS_TASKS_MAX * nworkers * sizeof(w->parts[0]));
    if (!w->jobs || !w->parts)
        return -ENOMEM;
    for (unsigned i = 0; i < WORKERS_TASKS_MAX; i++) {
        w->jobs[i].parts = &w->parts[i * nworkers];
        list_append(&w->idle, &w->jobs[i].link);
    }
    return 0;
}

int workers_new(unsigned nworkers, workers_run_fn run, struct workers **ret)
{
    struct workers *w = NULL;
    int r;

    r = workers_alloc(nworkers, &w);
    if (r == 0)
        w->run = run;
    while (r == 0 && w->nworkers < nworkers) {
        struct worker *worker = &w->worker[w->nworkers];

        *worker = (struct worker){ .workers = w, .index = w->nworkers };
        r = worker_start(worker);
        if (r == 0)
            w->nworkers++;
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
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (unsigned i = 0; i < w->nworkers; i++)
        pthread_join(w->worker[i].thread, NULL);

    if (w->event_fd >= 0)
        close(w->event_fd);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w->parts);
    free(w->jobs);
    free(w);
    return NULL;
}

bool workers_submit(struct workers *w, struct task *task, uint64_t block)
{
    bool taken;

    pthread_mutex_lock(&w->lock);
    taken = !list_empty(&w->idle);
    if (taken) {
        struct job *job = list_first(&w->idle, struct job, link);

        list_remove(&job->link);
        job_init(job, task, block, w->nworkers);
        list_append(&w->queue, &job->link);
        pthread_cond_broadcast(&w->wake);
    }
    pthread_mutex_unlock(&w->lock);
    return taken;
}

/* The job goes back before done() runs, which may well submit the next task. */
static void workers_finish_one(struct workers *w)
{
    struct task *task;
    struct job *job;
    int r;

    pthread_mutex_lock(&w->lock);
    job = list_first(&w->finished, struct job, link);
    task = job->task;
    r = atomic_load(&job->result);
    list_remove(&job->link);
    list_append(&w->idle, &job->link);
    pthread_mutex_unlock(&w->lock);
    task->done(task, r);
}

/* Bounded, so that tasks submitted by done() cannot keep the loop thread here. */
void workers_poll(struct workers *w)
{
    uint64_t one;

    for (unsigned i = 0; i < WORKERS_TASKS_MAX; i++) {
        if (read(w->event_fd, &one, sizeof(one)) != sizeof(one))
            return;
        workers_finish_one(w);
    }
}

int workers_fd(const struct workers *w)
{
    return w->event_fd;
}
