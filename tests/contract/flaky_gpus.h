/*
 * Flaky GPUs: a row that stands on a flaky device and owns memory that nobody else reaches. Its
 * mappings are memory files that can be touched while a task of its own runs, and at no other time:
 * who does is killed. Its tasks name nothing but client memory and what was adopted, or the program
 * ends. Its fences pass when they are told to. For tests of what stands on devices.
 */
#ifndef TESTS_CONTRACT_FLAKY_GPUS_H
#define TESTS_CONTRACT_FLAKY_GPUS_H

#include "daemon/device/device.h"

extern const struct device_ops device_flaky_gpus;

/* The flaky device that does its tasks, for flaky_configure() and its kin. */
struct device *flaky_gpus_tasks(struct device *gpus);

/* New memory of so many bytes, all zero, of this device or any other. */
struct mapping *flaky_memory(struct device *device, uint64_t bytes);
/* A mapping's bytes, as the client sees them. */
void *flaky_view(const struct mapping *m);

/* As a network moves them: one end is in memory of an open one of these, the other is not. */
void flaky_gpus_copy(void *to, const void *from, uint64_t bytes);
/* Bytes that went so. */
uint64_t flaky_gpus_copied(void);

#define FENCE_NEVER UINT64_MAX

/* Passes once it has been asked for and the device polled so many times since; at once for 0. */
struct fence *flaky_gpus_fence(struct device *gpus, uint64_t polls);
/* It passes, or (-errno) fails, from now on. */
void flaky_gpus_settle(struct fence *fence, int r);

/* Blocks that are adopted now, and adoptions that fail from now on (-errno; 0: none does). */
uint32_t flaky_gpus_adopted(const struct device *gpus);
void flaky_gpus_refuse_adoption(struct device *gpus, int r);

/* What explain() appends. */
void flaky_gpus_blame(struct device *gpus, const char *text);

#endif
