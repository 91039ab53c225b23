/*
 * Seals: how what two daemons say to each other is encrypted and proven, frame by frame, in one
 * direction of a link. Bytes in, bytes out.
 *
 * A frame is the length of what follows, a text with padding behind it, encrypted, and a tag. The
 * last byte of the padding says how much of it there is: at least that byte. Each is sealed under a
 * key of its direction and a counter: one that is changed, repeated, left out, moved or sent back
 * does not open. By which cipher, both ends choose alike from what each of them has: which that is
 * goes into the proofs and the keys (link_crypt.h), so nobody in between has a say in it.
 */
#ifndef DAEMON_SERVER_LINK_SEAL_H
#define DAEMON_SERVER_LINK_SEAL_H

#include <stdalign.h>

#include "shared/base.h"

#define SEAL_KEY_BYTES    32u
#define SEAL_STATE_BYTES  512u /* of a key as its cipher wants it */
#define FRAME_HEAD_BYTES  4u   /* the length of what follows, lowest byte first */
#define FRAME_PADDING_MAX 128u /* bytes behind the text */
#define FRAME_TAG_BYTES   16u  /* behind the ciphertext */

struct cipher;

/* The ciphers that this machine has, as a set: a bit for each. After sodium_init(). */
uint32_t ciphers_here(void);
/* Of two such sets, perhaps with bits that nobody here knows: what both prefer. NULL: nothing. */
const struct cipher *cipher_common(uint32_t a, uint32_t b);
const char *cipher_name(const struct cipher *c);

/* One direction. */
struct seal {
    const struct cipher *cipher;
    uint64_t counter;
    alignas(16) uint8_t state[SEAL_STATE_BYTES];
};

/* The key may never have been another seal's, but the other end's. */
void seal_init(struct seal *s, const struct cipher *c, const uint8_t key[SEAL_KEY_BYTES]);
/* The bytes of a frame with `len` bytes of text. */
size_t seal_frame_bytes(const struct seal *s, size_t len);
/*
 * `frame`: FRAME_HEAD_BYTES to be filled, `len` bytes of text, which become ciphertext, and the
 * rest of the frame to be filled. Return: the bytes of it all.
 */
size_t seal_close(struct seal *s, uint8_t *frame, size_t len);
/*
 * A whole frame of `len` bytes, head included, opened where it lies: the text starts behind the
 * head. Return: the text's length, or -EBADMSG, after which nothing more can be opened.
 */
int64_t seal_open(struct seal *s, uint8_t *frame, size_t len);

/* The bytes that follow a frame's head. */
uint32_t frame_length(const uint8_t head[FRAME_HEAD_BYTES]);
void frame_set_length(uint8_t head[FRAME_HEAD_BYTES], uint32_t len);

#endif
