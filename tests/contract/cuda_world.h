/*
 * What tests of the row `cuda` stand on: the tests' driver with two GPUs, the row and the host's,
 * and another process, a client's, since handles of memory and events are opened in others only.
 */
#ifndef TESTS_CONTRACT_CUDA_WORLD_H
#define TESTS_CONTRACT_CUDA_WORLD_H

#include "daemon/device/device.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/unit/unit.h"

#define MIB     (1024ull * 1024)
#define HELD_US (3600ull * 1000000) /* longer than any test */

extern struct device *world, *world_host;
extern uint8_t world_uuids[2][GPU_UUID_BYTES];
extern bool world_has_peers;

/* Of the whole program: before the driver is touched, and at its end. */
void world_start(void);
void world_end(void);

/* Of each test: opens both rows; closes them, and sees that the driver holds nothing more. */
int world_set_up(void **state);
int world_tear_down(void **state);

/* What the driver holds, all kinds together. */
unsigned world_live(void);

/* ---- Memory ---- */

/* On a GPU, of this process; the tests may touch it. */
struct mapping *gpu_memory(unsigned gpu, uint64_t bytes);
int gpu_export(unsigned gpu, uint64_t bytes);
struct mapping *host_memory(uint64_t bytes);
/* The daemon's own, adopted until the end of the test. */
void *own_memory(uint64_t bytes);

/* ---- The client process ---- */

/* Both until client_forget(). */
struct memory_handle client_memory(unsigned gpu, uint64_t bytes);
/* Recorded behind work that takes until client_release(). */
void client_event(unsigned gpu, uint8_t ret_handle[GPU_HANDLE_BYTES]);
void client_release(void);
void client_forget(void);

/* ---- Tasks ---- */

struct outcome {
    unsigned ndone;
    int r;
};

struct task sum_of(enum dtype_id type, void **src, uint32_t nsrc, void **dst, uint32_t ndst,
                   uint64_t count);
struct task copy_of(void **src, void **dst, uint32_t ndst, uint64_t bytes);
/* Submits, and counts in `o`. Return: what submit says. */
int begin(struct task *t, struct outcome *o);
/* Until `o` has counted n; fails where nothing happens for long. */
void wait_for(const struct outcome *o, unsigned n);
/* Return: how it ended. */
int run(struct task *t);
/* One turn of a loop, that sleeps where the row lets it. */
void turn(void);

#endif
