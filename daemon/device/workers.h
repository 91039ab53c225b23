/*
 * Workers: the host device's stream. Threads that take large tasks first in, first out, each task
 * shared by all of them: a fixed part each, then help with what the others have left.
 *
 * All calls are for the loop thread. `run` is called on workers, for blocks of a task that do not
 * overlap; it may not block and knows nothing but its arguments.
 */
#ifndef DAEMON_DEVICE_WORKERS_H
#define DAEMON_DEVICE_WORKERS_H

#include "daemon/device/device.h"

#define WORKERS_TASKS_MAX 64u

struct workers;

/* Does elements [first, first + count) of the task. Return: 0, or what the task fails with. */
typedef int (*workers_run_fn)(const struct task *task, uint64_t first, uint64_t count);

/* Starts `nworkers` >= 1 threads, which sleep while there is nothing to do. Return: 0 or -errno. */
int workers_new(unsigned nworkers, workers_run_fn run, struct workers **ret);

/* Ends and joins the threads; no task may be held. Returns NULL. NULL is allowed. */
struct workers *workers_free(struct workers *w);

/*
 * Takes a task, to be run in blocks of `block` elements; its cancel flag is looked at before each.
 * Return: false, with nothing taken, where WORKERS_TASKS_MAX are held.
 */
bool workers_submit(struct workers *w, struct task *task, uint64_t block);

/* Runs done() of finished tasks. The descriptor is readable while there are any. */
void workers_poll(struct workers *w);
int workers_fd(const struct workers *w);

#endif
