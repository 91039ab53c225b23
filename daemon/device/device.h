/*
 * Devices: what moves and reduces bytes. A row per kind of memory; an engine knows nothing else.
 *
 * Submit, poll and import run on the loop thread. What the device does behind them, on workers or
 * streams, gets addresses, a length and a cancel flag and knows no communicator, socket or clock.
 */
#ifndef DAEMON_DEVICE_DEVICE_H
#define DAEMON_DEVICE_DEVICE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "shared/collective.h"
#include "shared/list.h"

struct device;

/* A client's memory as the daemon sees it. Reference-counted: an operation's hold keeps it mapped.
 */
struct mapping {
    struct device *device;
    unsigned refs;
    void *base; /* where the device sees byte 0 */
    uint64_t bytes;
    dev_t dev; /* with ino: which memory this is, to find overlap between clients */
    ino_t ino;
    atomic_bool fault; /* a page could not be backed: contents are lost, operations on it fail */
};

/* NULL is allowed for both. */
struct mapping *mapping_ref(struct mapping *m);
/* Drops a reference; the last one unmaps. Returns NULL. */
struct mapping *mapping_unref(struct mapping *m);
DEFINE_CLEANUP(struct mapping *, mapping_unref)

enum task_kind {
    TASK_COPY,   /* dst[i] = src[0] for every i; a destination equal to the source is left alone */
    TASK_REDUCE, /* dst[i] = canonical tree over src[0..nsrc), for every i */
};

/* Some of a reduction's sources, one behind the other. */
struct source_group {
    uint32_t nsrc; /* >= 1 */
    bool wide;     /* they hold accumulators */
};

/*
 * One piece of work over `count` elements. Owned by who submits it, and untouched by them, until
 * done() has run. No pointer need be aligned. For REDUCE a destination may be a source too (in
 * place), but must not overlap one otherwise.
 *
 * Arithmetic of REDUCE: values are widened to the type's accumulator, combined
 * by T(lo,hi) = T(lo,m) op T(m,hi), m = lo + the largest power of two below hi - lo, divided by
 * `divisor` where that is not 0 (mean; floating types), and rounded once, to nearest even.
 * src_wide / dst_wide: those buffers hold accumulators instead of elements of `dtype`.
 * Sources in groups: each group is combined by itself, by T over its sources; then T over groups.
 */
struct task {
    enum task_kind kind;
    enum dtype_id dtype;
    enum operator_id op; /* REDUCE; MEAN is SUM with a divisor */
    uint32_t divisor;
    bool src_wide, dst_wide;
    const struct source_group *groups; /* REDUCE: of all sources in order, instead of src_wide */
    uint32_t ngroups;                  /* 0: all sources are one group */
    bool small;                        /* run at once on the caller's thread: not worth a wake-up */
    uint32_t nsrc, ndst;
    void **src, **dst;
    uint64_t count;
    uint64_t ntasks; /* of this size that its operation has, about; a hint how to go on; 0: one */
    const atomic_bool *cancel; /* once true the rest may be left undone; then r is -ECANCELED */

    struct mapping *const *mappings; /* all client memory that src and dst lie in, for faults */
    uint32_t nmappings;

    void (*done)(struct task *task, int r); /* on the loop thread, from device_poll() */
    void *owner;
    struct list link; // device's own, while it holds the task
    void *private;    /* device's own, while it holds the task */
};

/* Conditions of device_submit() */
#define DEVICE_PENDING 1 /* taken; done() will run, once, from device_poll() */
#define DEVICE_BUSY    2 /* not taken, no room: submit again after a done() */

/* What every device honestly does. No slot is NULL. */
struct device_ops {
    const char *name;

    /* nworkers: threads for large tasks; 0 lets the device choose. */
    int (*open)(unsigned nworkers, struct device **ret, struct error *e);
    /* No task may be pending and no mapping left. Waits for the device's threads. */
    void (*close)(struct device *device);

    /*
     * Maps memory that a client handed over; `fd` stays the caller's. Checks what it is, its seals
     * and its size before touching it. The new mapping has one reference.
     * Return: 0, or -code worded in `e`.
     */
    int (*import)(struct device *device, int fd, uint64_t bytes, struct mapping **ret,
                  struct error *e);
    void (*unmap)(struct mapping *m); /* frees m; called by mapping_unref() alone */

    /*
     * Return: 0 done (done() does not run), DEVICE_PENDING, DEVICE_BUSY, or a negative errno, when
     * done() does not run either. -EFAULT: a mapping's `fault` was raised.
     */
    int (*submit)(struct device *device, struct task *task);
    /* Runs done() for what has finished. May first work on tasks itself, 100 us or so a call. */
    void (*poll)(struct device *device);
    /* Whether poll() is to be called again soon whatever the descriptor says. Asked after poll()
     * and submit(); it soon ends by itself where there is nothing to do but wait. */
    bool (*wants_turn)(const struct device *device);
    /* Readable when poll() has something to do; level-triggered. Silent while wants_turn(). */
    int (*fd)(const struct device *device);
};

/* Base of every device: the first member of the row's own struct. */
struct device {
    const struct device_ops *ops;
};

/* Every row there is, NULL at the end. */
extern const struct device_ops *const device_rows[];
extern const struct device_ops device_host;

static inline int device_submit(struct device *d, struct task *t)
{
    return d->ops->submit(d, t);
}

static inline void device_poll(struct device *d)
{
    d->ops->poll(d);
}

static inline bool device_wants_turn(const struct device *d)
{
    return d->ops->wants_turn(d);
}

#endif
