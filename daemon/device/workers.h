/*
 * Workers: the host device's stream. Threads that take tasks first in, first out, each task shared
 * by several: a fixed part each, then help with what the others have left.
 *
 * A long task is left to the workers, all of them. A short one is the loop thread's, which begins
 * at the next workers_poll() and goes on for HELP_US a call; where it is worth a wake-up, workers
 * help, as many as there are other CPUs. While a short task is under way workers_wants_turn() asks
 * for another poll: as long as there are blocks to take, and for WATCH_US thereafter, in which the
 * helpers' last blocks should end; who finishes meanwhile needs not wake the loop. Later ends, and
 * those of long tasks, are told by the descriptor.
 *
 * A worker that has helped with a short task, or came too late to, looks for the next one for a
 * while before it sleeps, lets others run between two looks, and moves away from the CPU where the
 * loop thread works.
 *
 * All calls are for the loop thread. `run` is called on workers and in workers_poll(), for blocks
 * of a task that do not overlap; it may not block and knows nothing but its arguments.
 */
#ifndef DAEMON_DEVICE_WORKERS_H
#define DAEMON_DEVICE_WORKERS_H

#include "daemon/device/device.h"

#define WORKERS_TASKS_MAX 64u

struct workers;

/* Does elements [first, first + count) of the task. Return: 0, or what the task fails with. */
typedef int (*workers_run_fn)(const struct task *task, uint64_t first, uint64_t count);

/*
 * Starts `nworkers` >= 1 threads, which sleep while there is nothing to do; `ncpus` of the
 * process's, for them and the loop thread. They look for a next task for `look_us`; 0: they sleep
 * at once. Return: 0 or -errno.
 */
int workers_new(unsigned nworkers, unsigned ncpus, uint64_t look_us, workers_run_fn run,
                struct workers **ret);

/* Ends and joins the threads; no task may be held. Returns NULL. NULL is allowed. */
struct workers *workers_free(struct workers *w);

enum workers_use {
    WORKERS_NONE,  /* short: the loop thread does it all */
    WORKERS_HELP,  /* short: the loop thread and its helpers */
    WORKERS_ALONE, /* long: every worker, without the loop thread */
};

/*
 * Takes a task, to be run in blocks of `block` elements; its cancel flag is looked at before each.
 * Return: false, with nothing taken, where WORKERS_TASKS_MAX are held.
 */
bool workers_submit(struct workers *w, struct task *task, uint64_t block, enum workers_use use);

/* Takes part in the oldest short task for a while, then runs done() of finished tasks. */
void workers_poll(struct workers *w);
bool workers_wants_turn(const struct workers *w);

/* Readable while there are finished tasks that workers_wants_turn() does not ask for. */
int workers_fd(const struct workers *w);

#endif
