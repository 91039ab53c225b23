/*
 * The driver of a daemon, the tests' own, directed while the daemon runs: failures on demand, and
 * what it holds. All functions fail the test where they fail.
 */
#ifndef TESTS_END_TO_END_DRIVER_H
#define TESTS_END_TO_END_DRIVER_H

#include "proto/codec.h"
#include "tests/end_to_end/harness.h"
#include "tests/fake_cuda/fake_cuda.h"

#define DRIVER_GPUS 2

struct driver {
    struct harness harness;
    char dir[48], control[64], report[64];
    uint8_t uuids[DRIVER_GPUS][16];
    char texts[DRIVER_GPUS][CUDA_UUID_TEXT];
};

/* Starts a daemon with it. */
void driver_start(struct driver *d, const char *const *options);
/* As harness_stop(). */
int driver_stop(struct driver *d);

/* Words of FAKE_CUDA_CONTROL, separated by blanks; what was said before is forgotten. They count
 * from the daemon's next call to its driver on. */
void driver_say(const struct driver *d, const char *words);

/* What the daemon's driver holds; what was said to it before is forgotten. */
struct driver_live {
    unsigned n[FAKE_CUDA_LIVE_END];
};
struct driver_live driver_live(const struct driver *d);

/* Waits until it holds no more than at `before`; but the daemon may have registered more of its own
 * memory, which it keeps. */
void driver_expect_live(const struct driver *d, const struct driver_live *before);

/* Memory of that GPU, by a handle that no driver knows. */
struct request driver_odd_region(const struct driver *d, unsigned gpu, uint32_t number);

#endif
