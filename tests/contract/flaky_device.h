/*
 * The flaky device: a row that does everything a device may honestly do to its caller. It holds
 * tasks and completes them later in random order, has no room now and then, fails one, or sits on
 * one until told. One seed, one story; no threads, no clock. For tests of what stands on devices.
 */
#ifndef TESTS_CONTRACT_FLAKY_DEVICE_H
#define TESTS_CONTRACT_FLAKY_DEVICE_H

#include "daemon/device/device.h"

/* All zero, as after open: every task is taken, and device_poll() completes one a call. */
struct flaky_config {
    uint64_t seed;
    unsigned busy_percent;   /* of submits find no room; never while nothing is held */
    unsigned inline_percent; /* of small tasks run inside submit */
    unsigned refuse_percent; /* of submits fail at once with -ENOMEM */
    uint64_t fail_task;      /* the k-th task taken, from 1, half runs and then fails with ... */
    int fail_errno;          /* ... this, > 0; EFAULT also raises `fault` of its first mapping */
    uint64_t stuck_task;     /* the k-th task taken completes only when released or cancelled */
    unsigned mute_percent;   /* of signals are not written */
    bool manual;             /* device_poll() completes nothing; flaky_step() alone does */
};

extern const struct device_ops device_flaky;

/* What is called around the execution of each task, for rows that stand on this one. */
struct flaky_watch {
    void (*enter)(void *context, const struct task *task);
    void (*leave)(void *context, const struct task *task);
    void *context;
};
void flaky_set_watch(struct device *device, const struct flaky_watch *watch);

/* Starts a new story: task numbers start again at 1. No task may be held. */
void flaky_configure(struct device *device, const struct flaky_config *config);

/*
 * Completes one task, chosen at random, and runs its done(). A cancelled one may have run in part.
 * Return: false where there was none that may complete.
 */
bool flaky_step(struct device *device);

/* Lets the stuck task go. */
void flaky_release(struct device *device);

/* Whether a task that it holds may touch this memory. */
bool flaky_touches(const struct device *device, const struct mapping *m);

/* Tasks held, the stuck one too. */
unsigned flaky_pending(const struct device *device);

/* Tasks taken since flaky_configure(), also those that ran inside submit. */
uint64_t flaky_taken(const struct device *device);

#endif
