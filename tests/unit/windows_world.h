/*
 * A communicator whose ranks' tensors pass through windows, on a device that works when it is told
 * to, and the clients behind the ranks, step by step. Functions fail the test where they fail.
 */
#ifndef TESTS_UNIT_WINDOWS_WORLD_H
#define TESTS_UNIT_WINDOWS_WORLD_H

#include "tests/unit/unit.h"

#include <errno.h>
#include <string.h>

#include "daemon/comm/persistent.h"
#include "tests/contract/flaky_device.h"

#define RANKS   3u
#define COUNT   100u
#define WINDOW  32u   /* elements, of which a chunk is 8 */
#define BYTES   8192u /* of a rank's memory */
#define TIMEOUT 2000000u
#define SERIAL  9u

/* A rank, and the client behind it, which brings `given` and takes `got`. */
struct person {
    struct member *member;
    struct mapping *memory;
    uint64_t in_window, out_window;
    bool in_place;
    int32_t given[RANKS * COUNT], got[RANKS * COUNT];
    uint32_t in_blocks, out_blocks; /* of the last post's tensors; each is COUNT elements */
    uint64_t ready, done, taken;    /* as in struct window of the library */
    uint32_t answers, made;
    struct error error; /* of the last answer */
};

extern struct windows_world {
    uint64_t now;
    struct device *device;
    struct engine *engine;
    struct comms *comms;
    uint64_t budget; /* of the posts to come */
    struct person people[RANKS];
} w;

/* A test in a world of its own: however it ends, nothing is under way, and nobody holds memory once
 * the members are gone. */
#define WINDOWS_TEST(claim) cmocka_unit_test_setup_teardown(claim, open_world, close_world)
int open_world(void **state);
int close_world(void **state);

/* ---- what clients do */

int32_t *in_memory(const struct person *p);
int32_t *out_memory(const struct person *p);

/* Of the calls to come, in elements; 0: none. */
void set_windows(uint32_t rank, uint64_t in, uint64_t out, bool in_place);
void set_all(uint64_t in, uint64_t out, bool in_place);

/* A sum of what is given, to be posted. */
struct post call(uint32_t rank, enum collective_id kind, uint32_t root);
void post(uint32_t rank, const struct post *p);
void run(uint32_t rank, enum collective_id kind);
void run_all(enum collective_id kind);

void staged(uint32_t rank, uint64_t ready, uint64_t taken);
/* Brings up to `n` elements more, as far as there is room. */
void bring(struct person *p, uint64_t n, bool takes);
void take(struct person *p, uint64_t n);

/* ---- what comes of it */

/* The daemon does what it can do by now. */
void step(void);
/* Everybody brings and takes `n` elements at a time, until all have been told of the end. */
void go_on(uint64_t n);
void expect_all_sums(void);
/* Of everybody who is still there. */
void expect_failure(enum error_code code, const char *words);

#endif
