/*
 * A puppet: speaks the protocol of daemons over a socket of its own, one step at a time, and also
 * as no daemon would.
 */
#ifndef TESTS_UNIT_LINKS_PUPPET_H
#define TESTS_UNIT_LINKS_PUPPET_H

#include "tests/unit/links_world.h"

#define LOWER  "00000000-0000-0000-0000-000000000001"
#define HIGHER "ffffffff-ffff-ffff-ffff-ffffffffffff"

struct puppet {
    int fd;
    struct peer_codec *codec;
    struct handshake h;
    struct seal out, in;
    uint8_t bytes[1 << 16];
    size_t have;
    bool over; /* the other end has closed */
};

extern const struct party puppet_party; /* but for its node */

/* Sockets that nobody speaks on. */
int raw_connect(const struct comms *to);
int raw_listen(char ret_address[64]);
bool raw_closed(int fd);

/* Greets, as the node, and has heard nothing yet. */
struct puppet *puppet_greet(const struct comms *to, const char *node, uint64_t instance,
                            const struct link_key *its_key);
/* Hears the answer and proves itself, whatever the answer proves. */
void puppet_prove(struct puppet *p);
/* Says how it moves tensors. */
void puppet_set_up(struct puppet *p);
/* All of that. */
struct puppet *puppet_dial(const struct comms *to, const char *node, uint64_t instance);
/* And the link is up. */
struct puppet *puppet_up(struct comms *to, const char *node, uint64_t instance);
/* Takes the connection that a daemon has made to `listener`. */
struct puppet *puppet_accept(int listener, const char *node, uint64_t instance);
/* Hears a message of the handshake, and sends what there is to say. */
void puppet_take_handshake(struct puppet *p, int wanted);
/* Answers, and hears the daemon prove itself and say how it moves tensors. */
void puppet_answer(struct puppet *p);
void puppet_free(struct puppet *p);

/* A message in the clear. */
void puppet_put(struct puppet *p, const void *bytes, size_t len);
void puppet_send(struct puppet *p, const struct peer_message *m);
void puppet_receive(struct puppet *p, struct peer_message *ret);
/* The length of a frame that has come, 0: none yet. */
size_t puppet_look(struct puppet *p);
void puppet_hears_asks(struct puppet *p, uint64_t n);

#endif
