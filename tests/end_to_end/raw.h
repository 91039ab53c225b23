/*
 * A client that speaks packets and may say anything, also what libruccl never would. All functions
 * fail the test where they fail.
 */
#ifndef TESTS_END_TO_END_RAW_H
#define TESTS_END_TO_END_RAW_H

#include <sys/types.h>

#include "proto/codec.h"
#include "proto/packet.h"
#include "shared/mem.h"

struct raw {
    int socket;
    int cells; /* the memfd of the progress cells and the daemon's rings; -1 before the welcome */
    uint64_t serial;
    uint32_t slots;
    struct codec *codec;
    struct packet in;
    struct reply reply; /* the last one received; strings live until the next */

    /* after raw_open_rings(); NULL before */
    struct client_rings *rings;
    int rings_fd;
    void *theirs; /* what is in `cells` */
    struct ring_out requests;
    struct ring_in replies;
    bool by_ring; /* the last reply came that way */
};

void raw_connect(struct raw *c, const char *path); /* and nothing else */
void raw_open(struct raw *c, const char *path);    /* and hello and welcome */
void raw_close(struct raw *c);

/* Hands over rings; from now on what has no fd goes through them. */
void raw_open_rings(struct raw *c);
/* Puts a request into the ring, when there is room, and does not ring. */
uint64_t raw_put(struct raw *c, struct request *r);
/* Takes a reply out of the ring, into c->reply. False: it is empty. */
bool raw_take(struct raw *c);

/* Sends; the serial is counted and returned. */
uint64_t raw_send(struct raw *c, struct request *r, int fd);
void raw_send_bytes(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned nfds);
/* Sends by the socket, also where there are rings. */
uint64_t raw_send_by_socket(struct raw *c, struct request *r, int fd);
/* Receives into c->reply, by either way: looks into the ring, arms it, and sleeps at the socket.
 * False: the connection is at its end. Fails after 10 s. */
bool raw_receive(struct raw *c);

/* Receives and fails unless it is of this kind. */
const struct reply *raw_expect(struct raw *c, enum reply_kind kind);
/* Receives a Done of this code, with `text` (may be NULL) in its sentence. */
void raw_expect_done(struct raw *c, enum error_code code, const char *text);
void raw_expect_goodbye(struct raw *c, enum error_code code, const char *text);
/* Sends, and expects a Done of this code. */
void raw_ask(struct raw *c, struct request *r, int fd, enum error_code code, const char *text);

/* Receives a Completion, of this request if `serial` is not 0. */
const struct error *raw_expect_completion(struct raw *c, uint64_t serial);

void raw_expect_success(struct raw *c, uint64_t serial);

/* The requests most tests want. */
uint64_t raw_hello(struct raw *c, uint32_t version_min, uint32_t version_max, int pidfd);
void raw_new_id(struct raw *c, char ret[CODEC_ID_MAX + 1]);
uint64_t raw_join(struct raw *c, uint32_t comm, const char *id, uint32_t rank, uint32_t nranks);
uint64_t raw_join_as(struct raw *c, uint32_t comm, const char *id, uint32_t rank, uint32_t nranks,
                     const char *algorithm, uint64_t timeout_us);
/* Return: the descriptor that came, the caller's; -1: none. */
int raw_open_slate(struct raw *c, uint32_t comm);
void raw_open_region(struct raw *c, uint32_t region, int fd, uint64_t bytes);
uint64_t raw_barrier(struct raw *c, uint32_t comm, uint64_t sequence, uint32_t slot);
/* To be sent: an all-reduce that adds up `count` i32 of a region in place. */
struct request raw_sum(uint32_t comm, uint64_t sequence, uint32_t slot, uint32_t region,
                       uint64_t count);
/* A communicator with both ranks in `c`, as its numbers 1 and 2. */
void raw_join_both(struct raw *c);

/* Asks for the first page of the status: that somebody else is still served. */
void raw_ask_status(struct raw *c);
/* Fails after 10 s. */
void raw_wait_for_sessions(struct raw *c, uint32_t n);

/* Two clients and their communicator, 1 for both: `a` is rank 0 and has rings, `b` is rank 1. */
struct raw_pair {
    struct raw a, b;
};
void raw_pair_open(struct raw_pair *p, const char *path, uint64_t timeout_us);
void raw_pair_close(struct raw_pair *p);

/* A process that joins as rank 1 of `id` and then does as told by `then`. */
pid_t raw_fork_member(const char *path, const char *id, void (*then)(struct raw *c));

int raw_pidfd(pid_t pid);
int raw_memfd(uint64_t bytes); /* sealed as it must be */

#endif
