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
#include "shared/error.h"
#include "shared/kernels.h"
#include "shared/list.h"

struct device;

enum memory_kind {
    MEMORY_MEMFD = 1,    /* host memory: a sealed memfd */
    MEMORY_CUDA_IPC = 2, /* of a GPU: a whole allocation of cuMemAlloc, by its legacy IPC handle */
    MEMORY_CUDA_FD = 3,  /* of a GPU: a whole allocation of cuMemCreate, by an exported descriptor */
};

#define GPU_UUID_BYTES   16u
#define GPU_HANDLE_BYTES 64u

/* Memory as a client hands it over. Nothing of it is trusted. */
struct memory_handle {
    enum memory_kind kind;
    int fd;         /* the caller's; of MEMORY_CUDA_IPC -1 */
    uint64_t bytes; /* GPUs: of the whole allocation */
    uint8_t gpu[GPU_UUID_BYTES];
    uint8_t ipc[GPU_HANDLE_BYTES]; /* MEMORY_CUDA_IPC */
};

/* A position in a client's stream of GPU work, which the client moves: device_ops::fence_passed.
 * Reference-counted. */
struct fence {
    struct device *device;
    unsigned refs;
};

/* NULL is allowed for both. */
struct fence *fence_ref(struct fence *f);
/* Drops a reference; the last one frees. Returns NULL. */
struct fence *fence_unref(struct fence *f);

/* A value for a cell of 32 bits, in host memory of a client, which its streams wait for. */
struct signal {
    struct mapping *cells; /* NULL: none */
    uint64_t offset;       /* of the cell, in bytes */
    uint32_t value;
};

/* A client's memory as the daemon sees it. Reference-counted: an operation's hold keeps it mapped.
 */
struct mapping {
    struct device *device;
    unsigned refs;
    void *base; /* where the device sees byte 0 */
    uint64_t bytes;
    dev_t dev; /* with ino: which memory this is, to find overlap between clients. Of GPUs what the
                * row makes of the handle: the same for the same allocation of MEMORY_CUDA_IPC. Of
                * MEMORY_CUDA_FD a driver need not tell that two descriptors are of one: what it
                * does not tell counts as two */
    ino_t ino;
    atomic_bool fault; /* contents are lost, operations on it fail: a page could not be backed, or
                        * its GPU has failed */
    /* Where another device has made the memory known to its driver: undoes that. NULL: none has. */
    void (*before_unmap)(struct mapping *m, void *owner);
    void *before_unmap_owner;
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

/*
 * One piece of work over `count` elements. Owned by who submits it, and untouched by them, until
 * done() has run. No pointer need be aligned, but on GPUs those of REDUCE to their element. For
 * REDUCE a destination may be a source too (in place), but must not overlap one otherwise.
 *
 * Arithmetic of REDUCE, and what `divisor`, src_wide, dst_wide and groups mean, as struct
 * kernel_args (shared/kernels.h) says.
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

    /* All client memory that src and dst lie in; what lies in none is memory that was adopted. */
    struct mapping *const *mappings;
    uint32_t nmappings;

    /* What the device may write by itself, all, some or none of it, before done(): behind all that
     * the task does, and only if that is done well. Nobody hears which it has. */
    const struct signal *signals;
    uint32_t nsignals;

    void (*done)(struct task *task, int r); /* on the loop thread, from device_poll() */
    void *owner;
    struct list link; // device's own, while it holds the task
    void *private;    /* device's own, while it holds the task */
};

/* Conditions of device_submit() */
#define DEVICE_PENDING 1 /* taken; done() will run, once, from device_poll() */
#define DEVICE_BUSY    2 /* not taken, no room: submit again after a done() */

struct device_config {
    unsigned nworkers; /* host: threads for large tasks; 0 lets the device choose */
    uint64_t spin_us;  /* host: how long they look for the next task before they sleep */
    const char *gpus;  /* cuda: "all", or UUIDs as "GPU-...", separated by commas */
};

/* A GPU as people are told of it. */
struct device_gpu {
    uint8_t uuid[GPU_UUID_BYTES];
    char name[64];
    uint64_t mapped_bytes; /* of clients */
    uint32_t mappings;
    bool failed;  /* and not usable again yet */
    uint64_t failures; /* contexts lost since the start */
};

/* What every device honestly does. No slot is NULL. */
struct device_ops {
    const char *name;

    /*
     * Return: 0, or -code worded in `e`: -ERROR_NOT_FOUND where this machine has no such device.
     */
    int (*open)(const struct device_config *config, struct device **ret, struct error *e);
    /* No task may be pending and no mapping left. Waits for the device's threads. */
    void (*close)(struct device *device);

    /*
     * Maps memory that a client handed over. Checks what it is, its seals and its size before
     * touching it. The new mapping has one reference; the same handle again gives one more of the
     * same mapping where the device cannot map it twice.
     * Return: 0, or -code worded in `e`; INVALID_ARGUMENT for a kind that is not this device's.
     */
    int (*import)(struct device *device, const struct memory_handle *handle, struct mapping **ret,
                  struct error *e);
    void (*unmap)(struct mapping *m); /* frees m; called by mapping_unref() alone */

    /*
     * Memory of the daemon's own, on page boundaries, that tasks will name until it is disowned.
     * Return: 0 or -errno. Devices that reach all host memory as it is do nothing.
     */
    int (*adopt)(struct device *device, void *base, uint64_t bytes);
    void (*disown)(struct device *device, void *base);

    /* A client's event (GPUs only); one reference. Return: 0, or -code worded in `e`. */
    int (*fence_import)(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                        const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret,
                        struct error *e);
    /* Whether all has been done that the client's stream had to do when it last recorded the event:
     * 1, 0 (fd() or wants_turn() say when to ask again), or -EIO: explain() says more;
     * ask again once its GPU can be used. */
    int (*fence_passed)(struct fence *fence);
    void (*fence_free)(struct fence *fence); /* called by fence_unref() alone */

    /* Appends what has gone wrong with the device of late: why tasks failed with -EIO. */
    void (*explain)(const struct device *device, struct text *t);
    /* For status, by ascending `index`. False: there are no more. */
    bool (*gpu)(const struct device *device, uint32_t index, struct device_gpu *ret);

    /*
     * Return: 0 done (done() does not run), DEVICE_PENDING, DEVICE_BUSY, or a negative errno, when
     * done() does not run either. -EFAULT: a mapping's `fault` was raised; -EIO: a GPU's was, or
     * its driver failed, and explain() says more; -EINVAL (GPUs): a pointer leads elsewhere than
     * whole into `mappings` or adopted memory, or is not aligned. done() gives the same codes.
     */
    int (*submit)(struct device *device, struct task *task);
    /* Runs done() for what has finished. May first work on tasks itself, 100 us or so a call. */
    void (*poll)(struct device *device);
    /* Whether poll() is to be called again soon whatever the descriptor says. Asked after poll(),
     * submit() and fence_passed(); it soon ends by itself where there is nothing to do but wait. */
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
extern const struct device_ops device_host, device_cuda;

static inline int device_import_memfd(struct device *d, int fd, uint64_t bytes,
                                      struct mapping **ret, struct error *e)
{
    const struct memory_handle h = { .kind = MEMORY_MEMFD, .fd = fd, .bytes = bytes };

    return d->ops->import(d, &h, ret, e);
}

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
