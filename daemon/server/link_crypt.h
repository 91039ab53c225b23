/*
 * How two daemons come to trust a connection: the cluster key, the handshake that proves it both
 * ways, and what seals all that follows (link_seal.h). Bytes in, bytes out; no sockets, no clock.
 *
 *   who dials                    who answers
 *   HELLO    who I am     ->
 *                         <-     WELCOME  who I am, and a proof that covers both
 *   PROOF                 ->
 *
 * A proof, and each direction's key, is a hash under the cluster key of everything both have said
 * of themselves, nonces and ciphers included, and of which of the two it is: had somebody in
 * between struck out a cipher, neither would take the other's proof. Whoever has the cluster key
 * can read what was recorded before.
 */
#ifndef DAEMON_SERVER_LINK_CRYPT_H
#define DAEMON_SERVER_LINK_CRYPT_H

#include "daemon/server/link_seal.h"
#include "proto/peer_codec.h"

#define LINK_KEY_FILE_MIN   32u
#define LINK_KEY_FILE_MAX   4096u
#define HANDSHAKE_BYTES_MAX 512u /* of a message of the handshake */

struct link_key {
    bool shared; /* false: none is configured, and any process of this host could have this one */
    uint8_t bytes[SEAL_KEY_BYTES];
};

/* Return: 0, or -code worded in `e`: no regular file, open to other users, too short, too long. */
int link_key_read(const char *path, struct link_key *ret, struct error *e);
/* What daemons without a key prove to each other. */
void link_key_none(struct link_key *ret);
void link_key_forget(struct link_key *key);

/* An end of a link, as it says itself. */
struct party {
    uint32_t version_min, version_max;
    char node[PEER_NODE_BYTES + 1];
    uint64_t instance;
    uint32_t ciphers; /* a set: ciphers_here(), or fewer */
    uint8_t nonce[PEER_NONCE_BYTES];
    char host[PEER_HOST_MAX + 1];
    char address[PEER_ADDRESS_MAX + 1];
};

enum handshake_state {
    HANDSHAKE_HELLO,   /* who answers: waits for it */
    HANDSHAKE_WELCOME, /* who dials: likewise */
    HANDSHAKE_PROOF,   /* who answers */
    HANDSHAKE_OVER,
};

struct handshake {
    enum handshake_state state;
    bool dials;
    const struct link_key *key;
    struct party ours, theirs; /* theirs: a stranger's word until it is proven */
    uint32_t version;          /* spoken from now on */
    const struct cipher *cipher;
    uint8_t digest[64]; /* of all that was said */
    uint8_t out[HANDSHAKE_BYTES_MAX];
    size_t out_len; /* bytes in `out` that are to be sent now */
};

/* Condition of handshake_take(): the other end has proven the key. */
#define HANDSHAKE_PROVEN 1

/*
 * `self`: all of it but the nonce, which is made here. `key` must stay. The codec is used during
 * calls only. Return: 0 or -errno; whoever dials has its first message in `out`.
 */
int handshake_init(struct handshake *h, bool dials, const struct link_key *key,
                   const struct party *self, struct peer_codec *codec);
/*
 * A message. Afterwards, and also on failure, `out` is to be sent: so that both ends see for
 * themselves what is wrong. Return: 0, HANDSHAKE_PROVEN, or -code worded in `e` as what is said of
 * the other end: "does not prove the cluster key ...".
 */
int handshake_take(struct handshake *h, struct peer_codec *codec, const void *bytes, size_t len,
                   struct error *e);
/* Forgets what is secret. */
void handshake_fini(struct handshake *h);

/* The keys of a handshake that is over. */
void handshake_seals(const struct handshake *h, struct seal *ret_out, struct seal *ret_in);

#endif
