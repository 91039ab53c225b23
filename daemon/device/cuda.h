/*
 * The row `cuda`: every GPU of the node that the daemon may use. One thread, the loop's, makes all
 * calls; nothing here waits for a GPU but the registering of memory and the rebuilding of a
 * context.
 *
 * cuda.c the row; cuda_gpu.c a GPU, its failures; cuda_memory.c what the addresses of tasks are
 * checked against; cuda_work.c tasks, step by step; cuda_launch.c a step; cuda_watch.c fences, and
 * when to look again.
 */
#ifndef DAEMON_DEVICE_CUDA_H
#define DAEMON_DEVICE_CUDA_H

#include "daemon/device/cuda_args.h"
#include "daemon/device/device.h"
#include "shared/cuda.h"

#define CUDA_GPUS_MAX 32u         /* a bit each */
#define CUDA_LANES    8u          /* streams of a GPU */
#define CUDA_DEV      ((dev_t)-1) /* mapping::dev; no file system has that number */

/* ---- A GPU ---- */

struct cuda_gpu {
    struct cuda_device *device;
    uint32_t index; /* in cuda_device::gpus */
    CUdevice ordinal;
    uint8_t uuid[GPU_UUID_BYTES];
    char text[CUDA_UUID_TEXT]; /* the UUID */
    char name[64];
    unsigned nprocessors;

    CUcontext context; /* NULL: it has none, and is `failed` */
    CUmodule module;
    CUfunction copy, reduce[DTYPE_END][OPERATOR_END];
    CUstream lanes[CUDA_LANES];
    uint32_t lanes_taken; /* a bit each */
    bool signals;         /* its streams write values */
    uint32_t reach;       /* GPUs whose memory its kernels reach, itself among them: a bit each */

    bool failed;            /* not usable until cuda_gpu_revive() */
    bool unrevived;         /* tried in vain; again at the next import */
    uint64_t generation;    /* of contexts; what was made in another is gone */
    uint64_t failures;      /* contexts lost */
    CUresult error;         /* the last that made work fail */
    const char *error_call; /* that returned it */
    bool error_lost;        /* and cost the context */
    uint64_t error_round;   /* cuda_device::round then; 0: never */

    uint64_t mapped_bytes;
    uint32_t nmappings;
};

static inline uint32_t cuda_bit(const struct cuda_gpu *g)
{
    return 1u << g->index;
}

/* ---- Memory ---- */

/* Host memory that GPUs reach once it is registered. */
struct cuda_host {
    struct list link; // cuda_device::adopted or ::hosts
    uint8_t *base;
    uint64_t bytes;
    struct mapping *mapping;    /* a client's, whose before_unmap leads here; else NULL */
    struct cuda_gpu *registrar; /* whose context holds the registration; NULL: it has none */
    CUdeviceptr address;        /* of byte 0, to every GPU; registered only */
    bool refused;               /* as cells: the driver did not take it */
};

struct cuda_mapping {
    struct mapping base;
    struct list link; // cuda_device::mappings
    struct cuda_gpu *gpu;
    uint64_t generation; /* of the GPU's context */
    enum memory_kind kind;
    uint8_t ipc[GPU_HANDLE_BYTES];       /* MEMORY_CUDA_IPC */
    CUmemGenericAllocationHandle handle; /* MEMORY_CUDA_FD */
};

#define CUDA_ON_HOST UINT32_MAX

/* Where a pointer of a task leads. */
struct cuda_place {
    uint64_t address;       /* of element 0, to GPUs; on the host from cuda_host_register() on */
    uint32_t gpu;           /* CUDA_ON_HOST, or whose memory it is */
    uint32_t width;         /* bytes an element */
    struct cuda_host *host; /* CUDA_ON_HOST */
    uint64_t offset;        /* there */
    bool foreign;           /* out of reach for who works on it: passes through the host */
};

/* ---- Tasks ---- */

enum cuda_step { CUDA_FETCH, CUDA_COMBINE, CUDA_STORE };

/*
 * A task under way. Its elements are worked on piece by piece, all at once where every pointer is
 * within reach. A piece has three steps, each begun when the last has ended on every GPU, so that
 * no stream ever waits for another's: what is foreign is brought to the host by its own GPU, the
 * runners combine, each a slice, and foreign results are brought home.
 */
struct cuda_work {
    struct list link; // cuda_device::idle or ::running
    struct task *task;
    uint64_t count;            /* elements of task; bytes where it copies */
    struct cuda_place *places; /* sources, then destinations */
    uint64_t nplaces, places_room;
    uint32_t nsrc, ndst; /* what the kernel is given */

    struct cuda_gpu *main;
    uint32_t runners;         /* GPUs that combine */
    uint32_t involved;        /* and those whose memory it is */
    uint32_t touched;         /* and those that hold registrations of host memory that it uses */
    struct cuda_host *table;  /* pointers and groups that the arguments have no room for */
    struct cuda_host *bounce; /* a slot for every foreign place */
    uint64_t slot_bytes;
    uint32_t nforeign;
    bool signals; /* those of the task, by the stream of main */

    uint32_t lane[CUDA_GPUS_MAX]; /* taken on those of `lanes` */
    uint32_t lanes;
    enum cuda_step step;
    uint64_t first, piece; /* elements */
    uint32_t awaited;      /* GPUs that have yet to end this step */
    int r;
};

/* ---- All of it ---- */

struct cuda_device {
    struct device base;
    const struct cuda *api;
    struct list mappings; // cuda_mapping::link
    struct list adopted;  // cuda_host::link: of the daemon
    struct list hosts;    // cuda_host::link: of clients, and the works' own
    struct list idle;     // cuda_work::link
    struct list running;  // cuda_work::link
    struct cuda_work *works;
    uint64_t allocations; /* numbered so far */
    uint64_t round;       /* of polling */

    int timer_fd;
    bool turning; /* wants_turn() */
    bool timer_armed;
    bool fence_asked;    /* since the last poll began, about one that has not passed */
    uint64_t stirred_ns; /* when something last began or ended */

    uint32_t ngpus;
    struct cuda_gpu gpus[];
};

static inline struct cuda_device *cuda_of(struct device *device)
{
    return container_of(device, struct cuda_device, base);
}

/* ---- cuda_gpu.c ---- */

/* Learns what the driver says of it. Return: 0, or -code worded in `e`. */
int cuda_gpu_init(struct cuda_gpu *g, struct cuda_device *d, uint32_t index, CUdevice ordinal,
                  struct error *e);
/* Makes its context and all that lives there but the ways to others. On failure cuda_gpu_stop().
 * Return: as cuda_gpu_init(). */
int cuda_gpu_start(struct cuda_gpu *g, struct error *e);
void cuda_gpu_stop(struct cuda_gpu *g);
/* Opens the ways between it and all others that have a context, both directions. */
void cuda_gpu_meet_peers(struct cuda_gpu *g);

/* Makes it current; before every call that is about a GPU. */
static inline CUresult cuda_gpu_enter(struct cuda_gpu *g)
{
    return g->device->api->cuCtxSetCurrent(g->context);
}

/* The one place where errors of a GPU become ours. `call` is a literal. A sticky error fails the
 * GPU. Return: 0 or -errno. */
int cuda_check(struct cuda_gpu *g, CUresult error, const char *call);
/* The same of what a task does: remembered for explain(). Return: 0 or -EIO. */
int cuda_check_work(struct cuda_gpu *g, CUresult error, const char *call);
/* Its context is of no more use: mappings get `fault`; cuda_gpu_revive() makes another. */
void cuda_gpu_fail(struct cuda_gpu *g, CUresult error, const char *call);
/* A new context, once nothing running touches what is left of the old one. Return: whether the
 * GPU can be used. */
bool cuda_gpu_revive(struct cuda_gpu *g);

/* Of one that a client names. Return: 0, or -code worded in `e`. */
int cuda_gpu_wanted(struct cuda_device *d, const uint8_t uuid[GPU_UUID_BYTES], const char *what,
                    struct cuda_gpu **ret, struct error *e);

/* ---- cuda_memory.c ---- */

int cuda_import(struct device *device, const struct memory_handle *handle, struct mapping **ret,
                struct error *e);
void cuda_unmap(struct mapping *m);
int cuda_adopt(struct device *device, void *base, uint64_t bytes);
void cuda_disown(struct device *device, void *base);

/* Memory of the row's own; NULL: there is none. */
struct cuda_host *cuda_host_new(struct cuda_device *d, uint64_t bytes);
/* Returns NULL. NULL is allowed. */
struct cuda_host *cuda_host_free(struct cuda_host *h);
/* Lets go of all that is left at the end. */
void cuda_hosts_free(struct cuda_device *d);

/* What a client's host memory is registered as, or will be; NULL: no memory for that. */
struct cuda_host *cuda_host_of(struct cuda_device *d, struct mapping *m);

/* Where [p, p + bytes) lies: in a mapping of the task or in adopted memory, whole; `hint` is where
 * to look first, and is moved on. Return: 0, -EINVAL where it is neither, or -ENOMEM. */
int cuda_locate(struct cuda_device *d, const struct task *t, const void *p, uint64_t bytes,
                uint32_t *hint, struct cuda_place *ret);
/* Makes it known to all GPUs, by `g` where it is not yet. Return: 0, DEVICE_BUSY while its
 * registrar has failed, or -errno. */
int cuda_host_register(struct cuda_gpu *g, struct cuda_host *h);
/* Drops what hung on the GPU's context, which is about to go, as far as the driver still can. */
void cuda_memory_forget(struct cuda_gpu *g);

/* ---- cuda_launch.c ---- */

/* Queue what a step has to do; the GPUs that got something are in w->awaited then, whatever is
 * returned. Return: 0 or -errno. */
int cuda_launch_step(struct cuda_work *w);

/* ---- cuda_work.c ---- */

int cuda_submit(struct device *device, struct task *task);
void cuda_poll(struct device *device);
/* Whether something running touches what hangs on the GPU's context. */
bool cuda_works_touch(const struct cuda_device *d, const struct cuda_gpu *g);
int cuda_works_new(struct cuda_device *d);
void cuda_works_free(struct cuda_device *d);

/* ---- cuda_watch.c ---- */

int cuda_fence_import(struct device *device, const uint8_t gpu[GPU_UUID_BYTES],
                      const uint8_t handle[GPU_HANDLE_BYTES], struct fence **ret, struct error *e);
int cuda_fence_passed(struct fence *fence);
void cuda_fence_free(struct fence *fence);

int cuda_watch_open(struct cuda_device *d);
void cuda_watch_close(struct cuda_device *d);
/* Something begins or ends: the next is near. */
void cuda_watch_stir(struct cuda_device *d);
/* As that, from where wants_turn() is asked afterwards. */
void cuda_watch_turn(struct cuda_device *d);
/* There is something to look at; from where nobody may ask wants_turn(). */
void cuda_watch_wake(struct cuda_device *d);
/* A poll begins. Return: whether a fence was asked about since the last. */
bool cuda_watch_begin(struct cuda_device *d);
/* A poll ends, with something left or not; a fence that done() has asked about is. */
void cuda_watch_end(struct cuda_device *d, bool left);

#endif
