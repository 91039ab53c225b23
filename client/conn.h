/*
 * Connections: one socket to the daemon, one lock, and the rule of who reads.
 *
 * The library has no threads. Of the threads that wait, one is the leader: it looks at the ring for
 * a while, then sleeps, first at the bells and then in poll() on the socket, and hands replies to
 * whoever they are for, while the others sleep on conditions of their own. On leaving it appoints
 * the next. Nobody looks or sleeps with the lock held.
 *
 * Unless told otherwise, functions are called with the lock held (conn_enter), and those that wait
 * let go of it meanwhile.
 */
#ifndef CLIENT_CONN_H
#define CLIENT_CONN_H

#include <pthread.h>
#include <sys/types.h>
#include <sys/un.h>

#include "client/rings.h"
#include "client/ruccl.h"
#include "proto/repeat.h"
#include "proto/packet.h"
#include "shared/list.h"
#include "shared/mem.h"

#define CONN_BUCKETS     256u /* of the tables of serials and of regions */
#define CONN_NO_DEADLINE INT64_MAX

/* A request that is owed an answer. */
struct pending {
    uint64_t serial;
    /* Called once, when already out of the table. `reply` is NULL if the connection ended first:
     * ruccl_conn::end says why. Must not send. */
    void (*answered)(struct pending *p, const struct reply *reply);
    /* For a post with windows, any number of times before. Must not send. */
    void (*progressed)(struct pending *p, uint64_t elements_done);
    struct list link; // ruccl_conn::pending or, of a work, ::idle_works
};

/* What goes on only while some thread is there: whoever waits lends all of them a hand. */
struct chore {
    bool (*move)(struct chore *k); /* a little; may let go of the lock. Return: whether it did */
    struct list link;              // ruccl_conn::chores
};

struct ruccl_conn {
    pthread_mutex_t lock;
    unsigned refs; /* the user's handle, every work, every call that is inside */
    pid_t pid;     /* a forked child has another */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct error end; /* why the connection is of no more use; ERROR_NONE while it is */

    int socket;
    int nudge; /* eventfd: the leader, in poll(), is to look again at what it waits for */
    int loop;  /* epoll for the user's own loop, of `socket` and `news`; -1 until asked for */
    int news;  /* eventfd: something was read outside of ruccl_dispatch() */
    int64_t polled_at; /* when the socket was last looked at between meetings */

    bool leading;  /* a thread is at the ring, at the bells or in poll() on the socket */
    bool at_bells; /* and that is where it sleeps, or is about to */
    bool sending;  /* a thread has the turn to send; `buffer` is its */
    bool blocked;  /* and waits for room in the socket */
    uint32_t room; /* or in the ring, for so many bytes */
    struct list waiters;
    struct list chores;

    uint64_t last_serial;
    struct list pending[CONN_BUCKETS];
    struct codec *codec;
    struct request_repeats asked;
    struct reply_repeats answered;
    struct packet *packet;
    uint8_t *buffer;

    const struct progress_cell *cells; /* and the daemon's rings behind them */
    size_t cells_bytes;
    struct rings rings;
    uint32_t nslots, nfree;
    uint32_t *free_slots;

    uint32_t last_region;
    struct list regions[CONN_BUCKETS]; /* the caller's, by address of the handle */
    struct list idle;                  /* the pool's that nobody uses, least recently used first */
    struct list idle_by_size[CONN_BUCKETS];
    uint64_t idle_bytes;

    bool has_gpus;     /* the daemon's; its word at the welcome */
    bool has_slates;   /* likewise */
    struct gpus *gpus; /* ours; NULL: none is used */

    uint32_t last_comm;
    struct list members;

    struct list idle_works; /* to be used again */
    uint32_t nidle_works;
};

/* CLOCK_MONOTONIC in nanoseconds, and the deadline `timeout_us` from now (negative: none). */
int64_t conn_now(void);
int64_t conn_deadline(int64_t timeout_us);
bool conn_is_over(int64_t deadline);

/* An unconnected socket's worth of tables, with one reference; -code worded in `e`. */
int conn_new(const char *path, struct ruccl_conn **ret, struct error *e);

/*
 * Locks; every public call is between these two. Return: 0, or -ERROR_FORKED (last error set) in a
 * child of the process that connected. conn_exit() may free the connection.
 */
int conn_enter(struct ruccl_conn *c);
void conn_exit(struct ruccl_conn *c);

/* References, for those that outlive a call. The last one goes in conn_exit(). */
struct ruccl_conn *conn_ref(struct ruccl_conn *c);
void conn_unref(struct ruccl_conn *c);

/* Ends the connection for everyone, once: answers all that is pending. The first reason stays. */
void conn_end(struct ruccl_conn *c, const struct error *why);

/* Likewise, since the daemon is gone; its last words, which say why, may have arrived. */
void conn_lost(struct ruccl_conn *c);

/* 0, or -code with ruccl_conn::end in `e`. */
int conn_check(const struct ruccl_conn *c, struct error *e);

/* Condition of conn_wait() */
#define CONN_TIMEOUT 1

/*
 * Waits until ready(subject), as leader or behind one, and does the connection's chores meanwhile;
 * with the deadline over, once. It must become true when the connection ends at the latest.
 * Return: 0 or a condition.
 */
int conn_wait(struct ruccl_conn *c, bool (*ready)(const void *subject), const void *subject,
              int64_t deadline);

/* As conn_wait(), in the middle of a message, a call or a chore: it does none. */
int conn_wait_alone(struct ruccl_conn *c, bool (*ready)(const void *subject), const void *subject,
                    int64_t deadline);

/* Wakes the threads whose ready() has come true by other means than a reply. */
void conn_wake(struct ruccl_conn *c);

/* For the leader, whom conditions do not reach. */
void conn_nudge(struct ruccl_conn *c);

/* Handles what has arrived, unless a leader is about to; never waits. */
void conn_poll(struct ruccl_conn *c);
/* As conn_poll(), and whoever sleeps at the socket from now on is woken for what comes. */
void conn_poll_before_sleep(struct ruccl_conn *c);

/*
 * Requests go out one at a time, in turns, so that what a turn sends stays together and the numbers
 * it takes are in the order of sending. A turn taken is given back, whatever happens in between.
 */
int conn_take_turn(struct ruccl_conn *c, struct error *e);
void conn_give_turn(struct ruccl_conn *c);

/* Gives the request its serial and enters `p` for the answer. */
void conn_expect(struct ruccl_conn *c, struct pending *p, struct request *q);

/* Sends in one's turn. Return: 0, or -code, and then the connection has ended and `p` is answered.
 */
int conn_send(struct ruccl_conn *c, const struct request *q, int fd, struct error *e);

/* Sends in a turn of its own a request whose answer nobody waits for. */
void conn_tell(struct ruccl_conn *c, struct request *q);

/* What there may be in an answer besides an error. */
struct answer {
    char id[RUCCL_ID_BYTES];
    uint32_t slots, spin_us; /* of the welcome, as is `rings` */
    bool rings, gpus, slates;
    int fd; /* of the welcome, or of the rings' bells, the caller's to close; -1: none */
};

/* Sends a request and waits for its answer. Return: 0, or -code of the answer or the connection. */
int conn_ask(struct ruccl_conn *c, struct request *q, int fd, int64_t deadline, struct answer *ret,
             struct error *e);

/* A progress cell, waited for while all are in use; they also count what may be unanswered. */
int conn_take_slot(struct ruccl_conn *c, uint32_t *ret, struct error *e);
void conn_give_slot(struct ruccl_conn *c, uint32_t slot);

#endif
