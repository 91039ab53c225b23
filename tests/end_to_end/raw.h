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
    int cells; /* the progress cells' memfd; -1 before the welcome */
    uint64_t serial;
    uint32_t slots;
    struct codec *codec;
    struct packet in;
    struct reply reply; /* the last one received; strings live until the next */
};

void raw_connect(struct raw *c, const char *path); /* and nothing else */
void raw_open(struct raw *c, const char *path);    /* and hello and welcome */
void raw_close(struct raw *c);

/* Sends; the serial is counted and returned. */
uint64_t raw_send(struct raw *c, struct request *r, int fd);
void raw_send_bytes(struct raw *c, const void *bytes, size_t len, const int *fds, unsigned nfds);
/* Receives into c->reply. False: the connection is at its end. Fails after 10 s. */
bool raw_receive(struct raw *c);

/* Receives and fails unless it is of this kind. */
const struct reply *raw_expect(struct raw *c, enum reply_kind kind);
/* Receives a Done of this code, with `text` (may be NULL) in its sentence. */
void raw_expect_done(struct raw *c, enum error_code code, const char *text);
void raw_expect_goodbye(struct raw *c, enum error_code code, const char *text);
/* Sends, and expects a Done of this code. */
void raw_ask(struct raw *c, struct request *r, int fd, enum error_code code, const char *text);

/* The requests most tests want. */
uint64_t raw_hello(struct raw *c, uint32_t version_min, uint32_t version_max, int pidfd);
void raw_new_id(struct raw *c, char ret[CODEC_ID_MAX + 1]);
uint64_t raw_join(struct raw *c, uint32_t comm, const char *id, uint32_t rank, uint32_t nranks);
void raw_open_region(struct raw *c, uint32_t region, int fd, uint64_t bytes);
uint64_t raw_barrier(struct raw *c, uint32_t comm, uint64_t sequence, uint32_t slot);

int raw_pidfd(pid_t pid);
int raw_memfd(uint64_t bytes); /* sealed as it must be */

#endif
