/*
 * A daemon for tests of libruccl: a thread of the test's process that keeps what it was asked,
 * answers what has one possible answer, and leaves posts to the test that wants to hold them.
 */
#ifndef TESTS_UNIT_FAKE_DAEMON_H
#define TESTS_UNIT_FAKE_DAEMON_H

#include "tests/unit/unit.h"

#include <pthread.h>

#include "client/ruccl.h"
#include "proto/codec.h"
#include "proto/packet.h"
#include "shared/mem.h"

#define REQUESTS_MAX 8192
#define REGIONS_MAX  64
#define NRANKS       4

struct fake_region {
    uint32_t number;
    uint8_t *data; /* NULL: of a GPU */
    size_t bytes;
};

/* What a test wants of the daemon; all false: it answers everything with success. */
struct behaviour {
    bool refuse_version;  /* greets with a goodbye */
    bool hold_posts;      /* leaves them to fake_complete() */
    bool hold_regions;    /* never answers region_open and leave */
    bool hold_ids;        /* nor id_new, id_drop and abort */
    bool deny_regions;    /* answers region_open with QUOTA */
    uint32_t regions_max; /* and with more than so many open; 0: no limit */
    bool no_gpus;
    uint32_t slots;
    uint32_t rank; /* whose part the client plays, for the echo */
};

struct fake_daemon {
    struct behaviour b;
    char directory[32], path[64];
    int listener, socket;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t grown;
    struct request *requests; /* posts keep no pointers */
    uint32_t nrequests;
    bool busy; /* with one that is not among them yet */
    bool over; /* it reads no more */
    struct fake_region regions[REGIONS_MAX];
    uint32_t regions_opened, regions_closed;
    struct progress_cell *cells;
    int cells_fd;
    _Atomic uint32_t *signals; /* NULL: not handed over */
    size_t signals_bytes;
    struct codec *codec;
    struct packet packet;
};

struct fake_daemon *fake_start(struct behaviour b);
void fake_stop(struct fake_daemon *d);
/* As a death: the socket ends without a word. */
void fake_die(struct fake_daemon *d);

/* The `index`-th request of that kind, waited for. */
struct request fake_await(struct fake_daemon *d, enum request_kind kind, uint32_t index);
/* How many of that kind have been sent. */
uint32_t fake_count(struct fake_daemon *d, enum request_kind kind);

/* `fd`: to go along, or -1. */
void fake_answer(struct fake_daemon *d, const struct reply *reply, int fd);
/* Completes a post that was held: moves its bytes, each plus one, or fails it; and signals. */
void fake_complete(struct fake_daemon *d, const struct request *q, enum error_code code,
                   const char *text);
/* Completes a start likewise, and moves nothing. */
void fake_complete_start(struct fake_daemon *d, const struct request *q);
/* NULL: it is not open. */
struct fake_region *fake_find_region(struct fake_daemon *d, uint32_t number);

/* A daemon, and a client of it that has joined. */
struct pair {
    struct fake_daemon *daemon;
    struct ruccl_conn *conn;
    struct ruccl_comm comm;
};

struct pair pair_start(struct behaviour b);
void pair_stop(struct pair *p);

struct ruccl_tensor bytes_tensor(void *data, uint64_t n);
int count_fds(void);
void sleep_ms(long ms);

#endif
