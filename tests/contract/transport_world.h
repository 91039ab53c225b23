/*
 * What tests of every row of transports stand on: nodes of one process, connected over the loopback
 * and turned by hand, and transfers whose bytes can be told from others. Whatever is not promised
 * fails the test.
 */
#ifndef TESTS_CONTRACT_TRANSPORT_WORLD_H
#define TESTS_CONTRACT_TRANSPORT_WORLD_H

#include <time.h>

#include "daemon/transport/transport.h"
#include "tests/unit/unit.h"

#define NODES_MAX 3u
#define NCHANNELS 2u
#define PARTS_MAX 37u
#define WAIT_S    30

struct node {
    struct transport *t;
    struct transport_peer *peers[NODES_MAX];
    struct channel *channels[NCHANNELS];
    unsigned nfailures;
    int failure;
};

/* The nodes, all connected with all; their descriptors are in an epoll as a loop has it. */
extern struct world {
    const struct transport_ops *ops;
    unsigned n;
    struct node nodes[NODES_MAX];
    int loop;
} world;

/* Of the channels that every node has open, and one more. */
extern const uint8_t channel_keys[NCHANNELS + 1][TRANSPORT_KEY_BYTES];

#define for_each_row(row) for (const struct transport_ops *const *row = transport_rows; *row; row++)

/* Whether it is the row that is within one process and has no network. */
bool is_local(const struct transport_ops *ops);

uint64_t now_ns(clockid_t clock);

/* ---- Nodes ---- */

void open_world(const struct transport_ops *ops, unsigned n);
void close_world(void);

/* For worlds that are put together piece by piece: of world.ops, into world.loop. */
void open_node(unsigned i);
struct transport_peer *make_peer(unsigned of);
void connect_nodes(unsigned a, unsigned b);
/* If it is there. */
void free_peer(unsigned of, unsigned to);

/* A turn of the loop: sleeps at most so long where nobody wants one. Returns whether it woke. */
bool turn(int timeout_ms);
void turn_for(unsigned ms);

void assert_no_failures(void);
/* Of node 0. */
void await_failure(void);

/* ---- Transfers ---- */

/* A transfer and what became of it. */
struct item {
    struct transfer t;
    struct iovec parts[PARTS_MAX];
    uint8_t *bytes;
    int r; /* TRANSPORT_PENDING until it is done */
    unsigned ndone;
};

/* `nparts` parts of odd lengths; a byte in front and behind belongs to nobody. */
void item_init(struct item *it, uint64_t name, uint64_t bytes, uint32_t nparts);
void item_fini(struct item *it);

void send_item(struct item *it, unsigned from, unsigned to, unsigned channel);
void recv_item(struct item *it, unsigned at, unsigned from, unsigned channel);
/* Until all of them are done. */
void await(const struct item *items, size_t n);
void assert_received(const struct item *it);
void assert_untouched(const struct item *it);

/* A message from node 0 to node 1, from beginning to end. `late`: its receive comes behind it. */
void exchange_one(uint64_t bytes, uint32_t send_parts, uint32_t recv_parts, bool late);

#endif
