/*
 * GPUs: their memory as regions, and calls that take part in their streams. The driver is loaded by
 * the first registration of a process; one that has none is never asked for. Everything is done in
 * the primary contexts of the GPUs, and the caller's current context is left alone.
 *
 * A call is ordered by two things. An event, recorded in its stream before the post, is waited for
 * by the daemon: its fence. And a value is waited for by the stream: its signal. Into the cell of
 * the post's slot it is stored by the daemon when it has completed the post; or before that, once
 * the tensors are left alone, by a stream of the daemon's. The slot has no other value until its
 * answer is here.
 *
 * With the connection's lock held, unless told otherwise.
 */
#ifndef CLIENT_GPU_H
#define CLIENT_GPU_H

#include <sys/types.h>

#include "shared/cuda.h"
#include "shared/error.h"
#include "shared/list.h"

struct gpu_allocation;
struct gpu_fence;
struct ruccl_conn;
struct ruccl_region;

struct gpu {
    struct gpus *gpus;
    CUdevice device;
    CUcontext context; /* the primary one, retained */
    uint8_t uuid[16];
    CUdeviceptr cells;  /* the signals, as it sees them; 0: not asked for yet */
    struct list fences; /* that no work uses, the one used last at the end */
    struct list link;   // gpus::gpus
};

/* Of one connection. */
struct gpus {
    const struct cuda *cuda;
    struct list gpus;
    struct list regions;     /* the caller's of GPU memory, the newest first */
    struct list allocations; /* that they lie in and the daemon knows */

    uint32_t last_fence;
    _Atomic uint32_t *cells; /* one a slot; NULL: not made yet */
    size_t cells_bytes;
    uint32_t *signals; /* the last of each slot */
    bool opening;      /* a thread makes the cells */

    pid_t pid;
    struct list link; // those that could not be freed at once
};

/* A call's place in a stream. */
struct gpu_place {
    struct gpu *gpu; /* whose stream; NULL: the call has no place */
    CUstream stream;
    struct gpu_fence *fence; /* NULL: not taken */
    uint32_t slot, signal;   /* 0: nobody waits for it */
};

/* ---------------------------------------------------------------- the GPUs of a connection */

/* The driver, for all connections. Without a lock. */
int gpu_load(const struct cuda **ret, struct error *e);

/* The connection's, made if need be. Return: 0, or -code worded in `e`; as all here. */
int gpus_get(struct ruccl_conn *c, const struct cuda *cuda, struct gpus **ret, struct error *e);

/*
 * When nothing uses the connection any more; NULL is allowed. What streams may still look at is
 * kept until they have gone on, and freed in a later call. In a forked child the driver is left
 * alone.
 */
void gpus_free(struct gpus *s);

int gpu_of_device(struct gpus *s, CUdevice device, struct gpu **ret, struct error *e);

/* The GPU of a stream that is named; *gpu is one of the connection's before. */
int gpu_of_stream(CUstream stream, struct gpu **gpu, struct error *e);

/* Makes the GPU's context current, and what was current so again. Also without the lock. */
int gpu_enter(const struct gpu *gpu, struct error *e);
void gpu_leave(const struct gpu *gpu);

/* 0, or -ERROR_SYSTEM that names the function. */
int gpu_check(const struct cuda *cuda, CUresult result, const char *function, struct error *e);

/* ---------------------------------------------------------------- memory */

/* The live region of GPU memory that holds the address; NULL: there is none. */
struct ruccl_region *gpu_find_region(const struct ruccl_conn *c, uintptr_t address);

/* 0 where the driver knows nothing of the address. Also without the lock. */
unsigned gpu_attribute(const struct cuda *cuda, CUpointer_attribute which, uintptr_t address);

/* A region's use of its allocation ends; NULL is allowed. Return: whether it was the last. */
bool gpu_allocation_let_go(struct gpu_allocation *a);

/* Is there memory of a GPU that the host cannot look at? As far as the driver was loaded. */
bool gpu_has_memory(uintptr_t address);

/* Copies behind what the stream of the place holds, and waits for it. Without the lock. */
int gpu_read(const struct gpu_place *at, void *to, uintptr_t from, uint64_t bytes, struct error *e);
int gpu_write(const struct gpu_place *at, uintptr_t to, const void *from, uint64_t bytes,
              struct error *e);

/* ---------------------------------------------------------------- order */

/* What follows `last` in a cell: not 0, and by CU_STREAM_WAIT_VALUE_GEQ not reached before. */
static inline uint32_t gpu_next_signal(uint32_t last)
{
    return last + 1 ? last + 1 : 1;
}

/* Makes what its streams wait at, once a connection: a driver may let that wait for them. Gives up
 * the lock. */
int gpu_cells_get(struct ruccl_conn *c, struct gpu *gpu, struct error *e);

/*
 * Records a fence in the place's stream, and chooses a signal of `slot` if `signalled`. Gives up
 * the lock.
 */
int gpu_place_take(struct ruccl_conn *c, struct gpu_place *at, uint32_t slot, bool signalled,
                   struct error *e);

/* The fence's number at the daemon; 0: none. */
uint32_t gpu_place_fence(const struct gpu_place *at);

/* For whoever posts: one that stays good when the post is completed meanwhile. */
struct gpu_place gpu_place_hold(const struct gpu_place *at);
void gpu_place_let_go(struct gpu_place *at);

/* When posted: makes the stream wait for the signal. Of a place held. Without the lock. */
int gpu_place_wait(const struct gpu_place *at, struct error *e);

/*
 * The post is completed, well or badly, or its connection ended: whoever waits in the stream goes
 * on. The GPU and its stream stay. More than once does no harm.
 */
void gpu_place_end(struct gpu_place *at);

/* When no work is left: whether no stream of the GPU waits at the cells any more. */
bool gpu_fences_are_passed(const struct gpu *gpu);
/* Only if `entered`, its context, and not in a forked child is the driver called. */
void gpu_fences_free(struct gpu *gpu, bool entered);
/* Before the GPUs go; likewise if `ours`. */
void gpu_cells_free(struct gpus *s, bool ours);

#endif
