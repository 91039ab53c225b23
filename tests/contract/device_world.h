/*
 * What tests of every device stand on: the kinds of devices that there are here, memory that they
 * work on, and tasks. Whatever is not promised fails the test.
 */
#ifndef TESTS_CONTRACT_DEVICE_WORLD_H
#define TESTS_CONTRACT_DEVICE_WORLD_H

#include <fcntl.h>

#include "tests/contract/flaky_device.h"
#include "tests/unit/unit.h"

#define KIB        1024ull
#define MIB        (1024 * KIB)
#define SEALED     (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define MEMFD_NAME "ruccl-test-device"

/* ---- Memory that tasks name ---- */

/* Zeros. Until memory_free(); before a device is opened. */
void *memory_new(size_t bytes);
/* All of it. */
void memory_free(void);

/* ---- Devices ---- */

struct kind {
    unsigned n;
    const struct device_ops *ops;
    unsigned nworkers;
    uint64_t spin_us;
};

/* The n-th of: every row with one, two and three workers, then the flaky one. */
bool kind_get(struct kind *k);

#define for_each_kind(k) for (struct kind k = { 0 }; kind_get(&k); k.n++)

/* Of those that map files of memory. */
#define for_each_host_kind(k) for_each_kind(k) if (k.ops != &device_cuda)

/* With what memory_new() has given. */
struct device *open_kind(const struct kind *k);
void close_device(struct device *d);

/* ---- Memory that is imported ---- */

int make_memfd(uint64_t bytes, int seals);
/* `bytes`, or as many more as the device makes of them. */
struct mapping *import_new(struct device *d, uint64_t bytes);
/* As import makes it, of memory that it would have refused: the file can be cut short. */
struct mapping *import_unsealed(struct device *d, uint64_t bytes, int *ret_fd);

/* Of files that make_memfd() has made, in this process. */
unsigned count_mapped(void);
unsigned count_mapped_by(const struct device *d);
unsigned count_entries(const char *path);

/* ---- Tasks ---- */

struct outcome {
    unsigned ndone;
    int r;
};

/* What done() of a task does whose owner is an outcome. */
void record_done(struct task *task, int r);
/* Until something has finished, and polls. */
void wait_once(struct device *d);
/* Submits, waiting for room where there is none. Return: what submit says in the end. */
int submit(struct device *d, struct task *t);
/* Return: how the task ended, by submit() or by done(). */
int run(struct device *d, struct task *t);

struct task copy_task(void **src, void **dst, uint32_t ndst, uint64_t count);
struct task sum_task(enum dtype_id type, void **src, uint32_t nsrc, void **dst, uint32_t ndst,
                     uint64_t count);
void fill(void *p, size_t bytes, uint64_t seed);

#endif
