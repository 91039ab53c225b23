/*
 * A cluster in one process: daemons' communicators with engines of their own, joined by links that
 * are queues of encoded messages and by the local transport. What moves next is random, in order on
 * every link; one seed, one story; nothing has sockets, threads or a clock.
 */
#ifndef TESTS_UNIT_CLUSTER_H
#define TESTS_UNIT_CLUSTER_H

#include "daemon/comm/comm.h"
#include "daemon/comm/links.h"
#include "daemon/exec/staging.h"
#include "daemon/plan/table.h"

#define CLUSTER_NODES 33u
#define CLUSTER_RANKS 40u
#define CLUSTER_UID   1000u
#define CLUSTER_BYTES (256u * 1024) /* of every rank's memory; the output begins half way */
#define CLUSTER_TIME  (30u * 1000000u)
#define CLUSTER_CALLS 16u

struct cluster_rank {
    uint32_t rank, node;
    struct mapping *memory; /* cluster_in() is how the client sees it */
    struct member *member;
    uint32_t joins, lefts, answers;
    bool leaving;
    struct error join_error;
    int codes[CLUSTER_CALLS]; /* of answers, by their order */
    struct error error;       /* of the last answer */
    uint64_t counts[CLUSTER_RANKS];
    uint64_t progress; /* of windows, in elements */
    char algorithm[24];
    struct member *child;
    uint32_t persistent;
};

/* From the next one on: of how many nodes each tells each what it asks. A setup for cmocka: of
 * none; all agree over a tree. */
void cluster_set_tree_above(uint32_t nnodes);
int cluster_over_a_tree(void **state);

/* From here on so many in a hundred ranks have their memory on GPUs, and so many posts a fence. */
void cluster_use_gpus(unsigned percent);
void cluster_open(uint32_t nnodes, uint64_t seed);
/* Everything must have been let go of. */
void cluster_close(void);

/* A node has only so much staging left; and has all of it again. */
void cluster_set_staging(uint32_t node, uint64_t bytes);
void cluster_unset_staging(uint32_t node, uint64_t bytes);

/* `nranks` ranks, rank r on node place[r], join an id made on `root`; not all need be told to. */
void cluster_id(uint32_t root);
const char *cluster_id_text(void);
int cluster_join_as(uint32_t rank, uint32_t node, uint32_t nranks, uid_t uid, uint64_t timeout_us,
                    const char *algorithm, struct error *e);
void cluster_join(uint32_t root, uint32_t nranks, const uint32_t *place);
struct cluster_rank *cluster_rank(uint32_t rank);
struct comms *cluster_comms(uint32_t node);

/* The clock. */
uint64_t cluster_now(void);
void cluster_wait(uint64_t us);

/* Moves everything that can move, or so many messages. */
void cluster_run(void);
void cluster_deliver(uint32_t messages);
uint64_t cluster_delivered(void);

/* Something happens once so many messages have been delivered in all. */
void cluster_at(uint64_t messages, void (*what)(void));
/* The link between two nodes breaks. */
void cluster_cut(uint32_t a, uint32_t b);
/* A task of its device, or a transfer of its transport, from now on counted from 1, fails. */
void cluster_fail_task(uint32_t node, uint64_t task, int err);
void cluster_fail_transfer(uint32_t node, uint64_t transfer, int err);
/* All of a node's ranks die, and its links break. */
void cluster_kill(uint32_t node);
/* Nobody reaches it any more, now or later. */
void cluster_hide(uint32_t node);
/* What it sends is not delivered. */
void cluster_mute(uint32_t node, bool mute);
void cluster_mute_link(uint32_t from, uint32_t to, bool mute);

/* Two nodes that have nothing to do with each other have a link. */
void cluster_link(uint32_t a, uint32_t b);
/* What a node's daemon would not have sent to another. Over a tree an AGREE goes as GATHERED. */
void cluster_forge(uint32_t from, uint32_t to, const struct peer_message *m);
/* The key of the communicator that all are in, for AGREE, SETTLED and LEFT. */
void cluster_give_key(struct peer_message *m);

/* Memory of a rank, input and output. */
void *cluster_in(uint32_t rank);
void *cluster_out(uint32_t rank);
/* The post that the members of a rank make of this descriptor, on its memory. */
int cluster_post(uint32_t rank, const struct post *post);
struct post cluster_describe(uint32_t rank, enum collective_id kind, enum dtype_id dtype,
                             uint64_t count);
void cluster_leave(uint32_t rank);
void cluster_lose(uint32_t rank);

#endif
