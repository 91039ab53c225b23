/*
 * Inside the test's driver. One lock, fake_lock, over everything but the bytes; fake_changed is
 * signalled at every step of a stream. What streams touch is guarded by ranges_lock besides: held
 * for reading while they do, and for writing while ranges come and go. fake_lock is taken first.
 */
#ifndef TESTS_FAKE_CUDA_FAKE_H
#define TESTS_FAKE_CUDA_FAKE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "daemon/device/cuda_args.h"
#include "daemon/device/device.h"
#include "shared/kernels.h"
#include "shared/list.h"
#include "tests/fake_cuda/fake_cuda.h"

#define GPUS_MAX          8u
#define FAKE_GRANULE      (2ull << 20) /* of cuMemCreate() */
#define FAKE_MEMFD_PREFIX "fake_cuda:"

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* context.c */

struct gpu;

struct CUctx_st {
    struct gpu *gpu;
    unsigned refs; /* 0: it is not there */
    bool ending;
    uint64_t tickets;  /* what its streams have taken */
    atomic_int sticky; /* a CUresult */
    atomic_uint peers; /* a bit for each `number` of a GPU that it reaches */
};

struct gpu {
    unsigned number; /* in the machine */
    int ordinal;     /* in this process */
    size_t used;
    struct CUctx_st primary;
};

enum need {
    NEED_NOTHING,
    NEED_INIT,
    NEED_CONTEXT, /* a current one that is well */
};

struct call {
    CUresult r;
    CUcontext context; /* the current one, or NULL */
};

/* Begins a call: fails on demand, checks, and takes fake_lock unless it fails. */
struct call enter(const char *name, enum need need);
void leave(struct call *call);

/* Under fake_lock. NULL where there is none. */
struct gpu *gpu_get(int ordinal);
struct gpu *gpu_by_number(unsigned number);
bool gpu_reaches(const struct gpu *gpu, const struct gpu *peer);
size_t gpu_memory(void);
/* Whether streams may: cuStreamWriteValue32_v2(). */
bool gpus_write_values(void);
void context_poison(CUcontext context, CUresult code);
unsigned context_count(void);
bool context_is(CUcontext context);
/* A name for an object: never the same one twice. */
uint64_t fake_new_id(void);
/* Whether this is the process that called cuInit(), or none has. */
bool fake_is_ours(void);

/* memory.c: what there is to touch */

enum range_kind {
    RANGE_ALLOCATION,
    RANGE_IMPORT,
    RANGE_MAPPED, /* by cuMemMap() */
    RANGE_HOST,
};

struct physical;

struct range {
    struct list link; // ranges
    enum range_kind kind;
    uint64_t base, bytes;
    struct gpu *gpu;
    CUcontext context; /* whose it is; of RANGE_MAPPED none */
    bool exportable, managed, portable;
    unsigned refs;             /* RANGE_IMPORT: opened as often */
    unsigned access;           /* RANGE_MAPPED: a bit for each GPU that may touch it */
    struct physical *physical; /* RANGE_MAPPED */
    int fd;
    uint64_t id;  /* under which it is shared; 0: it is not */
    uint64_t ino; /* which memory it is */
};

extern pthread_rwlock_t ranges_lock;
extern struct list ranges;

/* Under fake_lock, as all that follows but ranges_check(). */
struct range *range_find(uint64_t address);
void range_add(struct range *range);
/* Takes it out and frees it; unmaps what is no host memory of others. */
void range_remove(struct range *range);
unsigned range_count(enum range_kind kind);
void ranges_end_context(CUcontext context);

enum touch { TOUCH_COPY, TOUCH_KERNEL };

/* Whether a stream of `context` may touch these bytes. Under ranges_lock. */
bool ranges_check(CUcontext context, uint64_t address, uint64_t bytes, enum touch touch);

/* A memfd of that many bytes at least; -1: there is none. `what` tells its kind. */
int memfd_new(const char *what, unsigned number, uint64_t bytes);
/* Whether memfd_new() made it as `what`, for whichever GPU, of as many bytes. */
bool memfd_is(int fd, const char *what, uint64_t bytes, unsigned *ret_number, uint64_t *ret_ino);
uint64_t memfd_round(uint64_t bytes);

/* vmm.c */
unsigned vmm_handles(void);
unsigned vmm_reservations(void);
void vmm_end_gpu(struct gpu *gpu);
/* A mapping of it ends. */
void vmm_unmapped(struct range *range);

/* share.c: descriptors that cross processes by name */

enum share_kind { SHARE_MEMORY = 1, SHARE_EVENT = 2 };

struct share_handle { /* 64 bytes */
    uint32_t magic;
    uint16_t kind, number;
    int32_t pid, fd;
    uint8_t token[16];
    uint64_t id, bytes, ino;
    uint64_t unused;
};

/* Under fake_lock. Gives `*id` if it is 0. False: no thread can be had. */
bool share_export(enum share_kind kind, unsigned number, int fd, uint64_t bytes, uint64_t ino,
                  uint64_t *id, void *ret_handle);
void share_remove(uint64_t id);
/* The handle that these bytes are, or false. */
bool share_parse(const void *bytes, enum share_kind kind, struct share_handle *ret);
bool share_is_ours(const struct share_handle *handle);
/* Asks the process that exported it; slow. A descriptor, or -1. */
int share_fetch(const struct share_handle *handle);

/* stream.c */

struct event_page;

struct twin {
    bool copy;
    enum dtype_id dtype;
    kernel_fn reduce;
};

struct stream {
    struct list link; // streams
    struct list ops;
    uint64_t id; /* 0: the legacy one */
    CUcontext context;
    bool non_blocking;
    bool destroyed; /* but works off what it has */
    bool working;   /* has a thread, which frees it */
    atomic_bool stop;
    atomic_uint_fast64_t delay_us;
};

struct op {
    struct list link; // stream::ops
    uint64_t ticket;
    /* On the stream's thread, under no lock. What it returns otherwise poisons the context. */
    CUresult (*run)(struct stream *stream, struct op *op);
    void *owned;             /* freed with it */
    struct event_page *page; /* unreferenced with it */
    uint64_t dst, src, bytes;
    uint32_t value, flags;
    uint64_t number; /* of a record */
    struct twin twin;
    struct cuda_args args;
};

struct stream *stream_find(CUcontext current, CUstream stream);
/* As enter(), of a call about a stream. */
struct call enter_stream(const char *name, CUstream handle, struct stream **ret);
/* Takes the op, whatever it returns; NULL is CUDA_ERROR_OUT_OF_MEMORY. */
CUresult stream_push(struct stream *stream, struct op *op);
/* Waits, letting go of the lock, until all has run that is in the stream now. */
CUresult stream_wait(struct stream *stream);
/* Its context is poisoned, or it is to stop. */
bool stream_gives_up(const struct stream *stream);
/* On its thread: waits a little, longer every time. False: give up. */
bool stream_pause(struct stream *stream, unsigned *pauses);
struct op *op_new(CUresult (*run)(struct stream *stream, struct op *op));
unsigned stream_count(void);
void streams_end_context(CUcontext context);
void delay_set_all(uint64_t us);
int thread_start(void *(*run)(void *argument), void *argument);

/* event.c */
void event_page_unref(struct event_page *page);
unsigned event_count(void);
void events_end_context(CUcontext context);

/* module.c, twins.c */
unsigned module_count(void);
void modules_end_context(CUcontext context);
bool twin_find(const char *name, struct twin *ret);
CUresult twin_run(const struct twin *twin, CUcontext context, const struct cuda_args *args);

/* faults.c: takes no other lock but fake_lock, which must not be held */
CUresult fault_take(const char *name, bool *ret_sticky);

#endif
