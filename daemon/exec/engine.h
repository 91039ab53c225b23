/*
 * The engine: makes runs happen, by a device for host memory, one for GPUs where there are any, and
 * one transport, in a fair order: each turn gives every run its share. Loop thread only; never
 * blocks. Small steps run at once on the loop thread, and the device may use it for larger ones,
 * but no turn does more than a bounded amount of either.
 */
#ifndef DAEMON_EXEC_ENGINE_H
#define DAEMON_EXEC_ENGINE_H

#include "daemon/device/device.h"
#include "daemon/exec/run.h"
#include "daemon/exec/staging.h"

struct engine;

/*
 * All stay the caller's and must outlive the engine. `transport` and `staging` may be NULL: runs
 * have no network then. The transport is polled by the engine alone. Return: 0 or -errno.
 */
int engine_new(struct device *device, struct transport *transport, struct staging *staging,
               struct engine **ret);
/* Another device: runs that touch memory of it are its own. It stays the caller's and must outlive
 * engine and staging. Once, before any run. */
void engine_add_device(struct engine *engine, struct device *gpus);
/* No run may be active. Returns NULL. */
struct engine *engine_free(struct engine *engine);

#define ENGINE_PENDING 1

/*
 * Starts a run. Return: 0, it is over already (run_result() says how; done() does not run), or
 * ENGINE_PENDING: the run is the engine's until its done(). One that is held is over only where it
 * has failed.
 */
int engine_submit(struct engine *engine, struct run *run);

/*
 * Lets a held run go on: all have agreed. `letters`: NULL, all messages are the transport's; else
 * one for each node, which must stay, with their bytes, until the run is done. Once.
 * Return: 0, it is over now (done() does not run), or ENGINE_PENDING. Not from within done() or
 * progress().
 */
int engine_release(struct engine *engine, struct run *run, const struct run_letter *letters);

/* Issues what a pending run's windows allow by now. Return: 0, it is over now (done() does not
 * run), or ENGINE_PENDING. Not from within done() or progress(). */
int engine_resume(struct engine *engine, struct run *run);

/* Stops a pending run. Return: 0, it is over now (done() does not run), or ENGINE_PENDING. */
int engine_cancel(struct engine *engine, struct run *run);

/* Collects what the devices and the network finished and issues more. Call when engine_fd(),
 * engine_gpu_fd() or engine_transport_fd() is readable, and again as long as it returns
 * ENGINE_PENDING, letting the loop take a turn in between. */
int engine_poll(struct engine *engine);

/* Whether engine_poll() has something to do without waiting for a descriptor. May become so outside
 * of engine_poll(), when a peer or a run goes. */
bool engine_wants_turn(const struct engine *engine);

/* Whether anything is submitted that has not ended, or wants a turn. */
bool engine_is_busy(const struct engine *engine);

/* Whether the last run that was submitted was too much to be done at once. */
bool engine_works(const struct engine *engine);

int engine_fd(const struct engine *engine);
/* -1 without another device. */
int engine_gpu_fd(const struct engine *engine);
/* -1 without a transport. */
int engine_transport_fd(const struct engine *engine);

/* The other device; NULL: there is none. */
const struct device *engine_gpus(const struct engine *engine);

#endif
