/*
 * Daemons in one process, as far as runs need them: engines with real and flaky devices, joined by
 * the local transport, and operations that they run in whatever order chance brings.
 */
#ifndef TESTS_UNIT_DAEMONS_H
#define TESTS_UNIT_DAEMONS_H

#include "daemon/exec/engine.h"
#include "daemon/transport/local.h"
#include "tests/unit/nodes.h"

#define NODES_MAX 5u
#define DEPTH_MAX 3u
#define POLLS_MAX 1000000u

/* A daemon's part of it: what it stands on, and its links with the others. */
struct daemon {
    struct device *device, *gpus;
    struct transport *transport;
    struct staging *staging;
    struct engine *engine;
    struct channel *channel;
    struct transport_peer *peers[NODES_MAX];
    struct run *spare; /* of operations that are over */
};

extern struct daemon daemons[NODES_MAX];
extern uint64_t sequence; /* of the last operation */

/* All of them, and a link between every two; group fixtures of cmocka, too. */
int daemons_open(void **state);
int daemons_close(void **state);
/* What is on its way is lost with the links, and nothing may be left of it. */
void links_open(void);
void links_close(void);
void links_join(uint32_t i, uint32_t k);
/* From here on messages are late, out of order, or early; and devices are busy, or take their time,
 * of every other daemon. */
void daemons_any_weather(void);
/* The k-th task from here on of each of its flaky devices fails. */
void daemons_fail_task(uint32_t node, uint64_t task, int err);
/* From here on every device does small work at once. */
void daemons_honest_devices(void);
/* From here on so many in a hundred ranks have their memory on GPUs, and so many parts a fence. */
void daemons_use_gpus(unsigned percent);
/* From the next weather, or calm, on messages of so many bytes go to and from GPUs as they are;
 * TRANSPORT_NO_GPUS: none. */
void daemons_move_gpus(uint64_t bytes_min);
void daemons_calm(void);
/* One poll of one of the first so many, when somebody has something to do. It fails the test where
 * that never comes. */
void daemons_turn(uint32_t nnodes);

/* One node's part of an operation. */
struct part {
    struct plan full, last, tail;
    struct contents *contents; /* of an operation of one piece; else NULL */
    struct run *run;
    struct run_network network;
    struct run_letter letters[NODES_MAX];
    struct fence *fence; /* of its run; NULL: operation_prepare() may make one */
    uint64_t piece_peak; /* bytes */
    bool held;
    unsigned ndone;
    int result;
};

/* An operation with its memory. */
struct operation {
    struct world w; /* what is asked for, and of what counts */
    const struct placement *nodes;
    const struct algorithm *algorithm;
    struct chunking chunking;
    uint64_t piece, budget;
    uint32_t depth;
    size_t width;
    uint8_t *memory[2][WORLD_RANKS], *in[WORLD_RANKS], *out[WORLD_RANKS], *given[WORLD_RANKS];
    struct mapping *maps[WORLD_RANKS]; /* that a rank's memory lies in; NULL: the test's own */
    bool at_home;                      /* no memory of it is on GPUs */
    struct part parts[NODES_MAX];
    uint8_t *enclosed[NODES_MAX][NODES_MAX]; /* by sender and receiver; NULL: not sent along */
    uint64_t progress;                       /* of node 0 */
};

/* Memory with random inputs, for what operation::w says. */
void operation_fill(struct operation *o);
/* Plans a node's pieces; operation_finish() frees them. */
void operation_emit(struct operation *o, uint32_t node);
/* `mapping`: that the node's memory lies in; NULL: the test's own. */
void operation_prepare(struct operation *o, uint32_t node, enum run_start start,
                       struct mapping *mapping);
/* Some of what could be enclosed is sent along with it. */
void operation_submit(struct operation *o, uint32_t node);
/* The three of them for all nodes, started in ways that chance chooses. */
void operation_start(struct operation *o, bool all_held);

/* Whether it touches memory of GPUs there. */
bool operation_is_far(const struct operation *o, uint32_t node);

/* Sends along what a node has enclosed for another. Return: false, it has nothing to. */
bool operation_enclose(struct operation *o, uint32_t node, uint32_t to);

/* What the engine returned for a run: it may be over. */
void operation_over(struct operation *o, uint32_t node, int r);
bool operation_is_over(const struct operation *o);
bool operation_any_held(const struct operation *o);
void operation_release(struct operation *o, uint32_t node);
/* Each with a chance of one in `odds`. */
void operation_release_some(struct operation *o, uint32_t odds);
/* Releases and polls until all nodes' runs are over. */
void operation_run(struct operation *o);

/* Fails the test if anything was written to an output that is no input, too. */
void operation_assert_untouched(const struct operation *o);
/* Fails the test unless every output is what its definition says, bit for bit. */
void operation_compare(const struct operation *o);
/* Fails the test unless all were over, once each. */
void operation_finish(struct operation *o);

#endif
