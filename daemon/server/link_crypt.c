#include "daemon/server/link_crypt.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

/* What a hash under the key is for: no two of them are ever the same. */
#define FOR_PROOF_OF_DIALLER  "ruccl link: proof of who dials"
#define FOR_PROOF_OF_ANSWERER "ruccl link: proof of who answers"
#define FOR_FROM_DIALLER      "ruccl link: frames of who dials"
#define FOR_FROM_ANSWERER     "ruccl link: frames of who answers"
#define FOR_KEY_FILE          "ruccl link: cluster key"
#define FOR_NO_KEY            "ruccl link: no cluster key"

/* ---- the key ---- */

static void key_from(struct link_key *key, const char *what, const void *bytes, size_t len)
{
    crypto_generichash_state state;

    crypto_generichash_init(&state, NULL, 0, sizeof(key->bytes));
    crypto_generichash_update(&state, (const uint8_t *)what, strlen(what) + 1);
    crypto_generichash_update(&state, bytes, len);
    crypto_generichash_final(&state, key->bytes, sizeof(key->bytes));
}

void link_key_none(struct link_key *ret)
{
    ret->shared = false;
    key_from(ret, FOR_NO_KEY, NULL, 0);
}

void link_key_forget(struct link_key *key)
{
    sodium_memzero(key, sizeof(*key));
}

static int check_key_file(int fd, const char *path, struct error *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return error_set_errno(e, errno, path);
    if (!S_ISREG(st.st_mode))
        return error_set(e, ERROR_INVALID_ARGUMENT, "cluster key %s: not a regular file", path);
    if (st.st_mode & (S_IRWXO | S_IWGRP))
        return error_set(e, ERROR_PERMISSION,
                         "cluster key %s: mode %04o lets other users at it; chmod 0600 it", path,
                         st.st_mode & 07777);
    if (st.st_size < LINK_KEY_FILE_MIN || st.st_size > LINK_KEY_FILE_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "cluster key %s: %lld bytes; a key is %u to %u bytes, made by "
                         "'head -c 32 /dev/urandom'",
                         path, (long long)st.st_size, LINK_KEY_FILE_MIN, LINK_KEY_FILE_MAX);
    return 0;
}

/* Reads what there is, up to `size`. */
static ssize_t read_all(int fd, uint8_t *bytes, size_t size)
{
    size_t have = 0;
    ssize_t n;

    while ((n = read(fd, bytes + have, size - have)) > 0)
        have += (size_t)n;
    return n < 0 ? n : (ssize_t)have;
}

int link_key_read(const char *path, struct link_key *ret, struct error *e)
{
    uint8_t bytes[LINK_KEY_FILE_MAX];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a fifo is told apart */
    ssize_t n;
    int r;

    if (fd < 0)
        return error_set(e, ERROR_SYSTEM, "cluster key %s: %s", path, strerror(errno));
    r = check_key_file(fd, path, e);
    if (r == 0) {
        n = read_all(fd, bytes, sizeof(bytes));
        if (n < (ssize_t)LINK_KEY_FILE_MIN)
            r = error_set(e, ERROR_SYSTEM, "cluster key %s: cannot be read: %s", path,
                          n < 0 ? strerror(errno) : "it has changed meanwhile");
        else
            key_from(ret, FOR_KEY_FILE, bytes, (size_t)n);
        ret->shared = true;
        sodium_memzero(bytes, sizeof(bytes));
    }
    close(fd);
    return r;
}

/* ---- the handshake ---- */

static void hash_bytes(crypto_generichash_state *s, const void *bytes, size_t len)
{
    const uint8_t head[] = { (uint8_t)len, (uint8_t)(len >> 8) };

    assert(len <= UINT16_MAX);
    crypto_generichash_update(s, head, sizeof(head));
    crypto_generichash_update(s, bytes, len);
}

static void hash_u64(crypto_generichash_state *s, uint64_t n)
{
    uint8_t bytes[8];

    for (unsigned i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(n >> 8 * i);
    hash_bytes(s, bytes, sizeof(bytes));
}

static void hash_party(crypto_generichash_state *s, const struct party *p)
{
    hash_u64(s, p->version_min);
    hash_u64(s, p->version_max);
    hash_bytes(s, p->node, strlen(p->node));
    hash_u64(s, p->instance);
    hash_u64(s, p->ciphers);
    hash_bytes(s, p->nonce, sizeof(p->nonce));
    hash_bytes(s, p->host, strlen(p->host));
    hash_bytes(s, p->address, strlen(p->address));
}

/* Of the contents, not of the bytes that carried them: another version may write those its way. */
static void digest_all(struct handshake *h)
{
    crypto_generichash_state s;

    crypto_generichash_init(&s, NULL, 0, sizeof(h->digest));
    hash_party(&s, h->dials ? &h->ours : &h->theirs);
    hash_party(&s, h->dials ? &h->theirs : &h->ours);
    hash_u64(&s, h->version);
    crypto_generichash_final(&s, h->digest, sizeof(h->digest));
}

static void derive(const struct handshake *h, const char *what, uint8_t ret[SEAL_KEY_BYTES])
{
    crypto_generichash_state s;

    crypto_generichash_init(&s, h->key->bytes, sizeof(h->key->bytes), SEAL_KEY_BYTES);
    hash_bytes(&s, what, strlen(what));
    hash_bytes(&s, h->digest, sizeof(h->digest));
    crypto_generichash_final(&s, ret, SEAL_KEY_BYTES);
}

static struct peer_hello hello_of(const struct party *p)
{
    struct peer_hello hello = {
        .version_min = p->version_min,
        .version_max = p->version_max,
        .node = p->node,
        .instance = p->instance,
        .ciphers = p->ciphers,
        .host = p->host,
        .address = p->address,
    };

    memcpy(hello.nonce, p->nonce, sizeof(hello.nonce));
    return hello;
}

static void party_from(struct party *p, const struct peer_hello *hello)
{
    *p = (struct party){
        .version_min = hello->version_min,
        .version_max = hello->version_max,
        .instance = hello->instance,
        .ciphers = hello->ciphers,
    };
    memcpy(p->nonce, hello->nonce, sizeof(p->nonce));
    strncpy(p->node, hello->node, sizeof(p->node) - 1);
    strncpy(p->host, hello->host, sizeof(p->host) - 1);
    strncpy(p->address, hello->address, sizeof(p->address) - 1);
}

static int put(struct handshake *h, struct peer_codec *codec, const struct peer_message *m)
{
    const void *bytes;
    int64_t len = peer_codec_encode(codec, m, &bytes);

    if (len > (int64_t)sizeof(h->out))
        return -EMSGSIZE;
    if (len < 0)
        return (int)len;
    memcpy(h->out, bytes, (size_t)len);
    h->out_len = (size_t)len;
    return 0;
}

int handshake_init(struct handshake *h, bool dials, const struct link_key *key,
                   const struct party *self, struct peer_codec *codec)
{
    struct peer_message m = { .kind = PEER_HELLO };

    *h = (struct handshake){
        .state = dials ? HANDSHAKE_WELCOME : HANDSHAKE_HELLO,
        .dials = dials,
        .key = key,
        .ours = *self,
    };
    if (sodium_init() < 0)
        return -EIO;
    randombytes_buf(h->ours.nonce, sizeof(h->ours.nonce));
    m.hello = hello_of(&h->ours);
    return dials ? put(h, codec, &m) : 0;
}

static int take_failed(int r, struct error *e)
{
    return error_set_errno(e, -r, "cannot write a message of the handshake");
}

/* The highest version of both; 0: none. */
static uint32_t common_version(const struct party *a, const struct party *b)
{
    uint32_t version = MIN(a->version_max, b->version_max);

    return version >= MAX(a->version_min, b->version_min) ? version : 0;
}

/* What both ends come to by themselves, of what each has said. */
static void settle(struct handshake *h)
{
    h->version = common_version(&h->ours, &h->theirs);
    h->cipher = cipher_common(h->ours.ciphers, h->theirs.ciphers);
}

/* What is wrong with the other end whatever its key is. */
static int check_party(const struct handshake *h, struct error *e)
{
    const struct party *o = &h->ours, *t = &h->theirs;

    if (!h->version)
        return error_set(e, ERROR_VERSION,
                         "speaks versions %u to %u of the link, this daemon %u to %u",
                         t->version_min, t->version_max, o->version_min, o->version_max);
    if (!h->cipher)
        return error_set(e, ERROR_VERSION, "has none of the ciphers that this daemon has");
    if (strcmp(o->node, t->node) != 0)
        return 0;
    if (o->instance == t->instance)
        return error_set(e, ERROR_INVALID_ARGUMENT, "is this daemon itself");
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "is node %s, as this one: give each daemon its own 'node' (was the "
                     "configuration, or the machine with its machine-id, copied?)",
                     t->node);
}

static int check_proof(const struct handshake *h, const char *what,
                       const uint8_t proof[PEER_PROOF_BYTES], struct error *e)
{
    uint8_t wanted[PEER_PROOF_BYTES];

    derive(h, what, wanted);
    if (sodium_memcmp(wanted, proof, sizeof(wanted)) == 0)
        return HANDSHAKE_PROVEN;
    return error_set(e, ERROR_PERMISSION, "does not prove the cluster key: %s",
                     h->key->shared ? "it has another one, or none"
                                    : "it has one, and this daemon has none (cluster_key)");
}

static int take_hello(struct handshake *h, struct peer_codec *codec, const struct peer_message *in,
                      struct error *e)
{
    struct peer_message m = { .kind = PEER_WELCOME };
    int r;

    party_from(&h->theirs, &in->hello);
    settle(h);
    digest_all(h);
    m.welcome.hello = hello_of(&h->ours);
    m.welcome.version = h->version;
    derive(h, FOR_PROOF_OF_ANSWERER, m.welcome.proof);
    r = put(h, codec, &m);
    if (r < 0)
        return take_failed(r, e);
    h->state = HANDSHAKE_PROOF;
    return check_party(h, e);
}

static int take_welcome(struct handshake *h, struct peer_codec *codec,
                        const struct peer_message *in, struct error *e)
{
    struct peer_message m = { .kind = PEER_PROOF };
    uint8_t proof[PEER_PROOF_BYTES];
    int r;

    memcpy(proof, in->welcome.proof, sizeof(proof));
    party_from(&h->theirs, &in->welcome.hello);
    settle(h);
    h->state = HANDSHAKE_OVER;
    r = check_party(h, e);
    if (r < 0)
        return r;
    if (in->welcome.version != h->version)
        return error_set(e, ERROR_PROTOCOL, "chose version %u of the link instead of %u",
                         in->welcome.version, h->version);
    digest_all(h);
    derive(h, FOR_PROOF_OF_DIALLER, m.proof.proof);
    r = put(h, codec, &m);
    if (r < 0)
        return take_failed(r, e);
    return check_proof(h, FOR_PROOF_OF_ANSWERER, proof, e);
}

static int take_proof(struct handshake *h, const struct peer_message *in, struct error *e)
{
    h->state = HANDSHAKE_OVER;
    return check_proof(h, FOR_PROOF_OF_DIALLER, in->proof.proof, e);
}

int handshake_take(struct handshake *h, struct peer_codec *codec, const void *bytes, size_t len,
                   struct error *e)
{
    static const enum peer_kind wanted[] = {
        [HANDSHAKE_HELLO] = PEER_HELLO,
        [HANDSHAKE_WELCOME] = PEER_WELCOME,
        [HANDSHAKE_PROOF] = PEER_PROOF,
    };
    struct peer_message m;
    struct error unread = { 0 };

    assert(h->state != HANDSHAKE_OVER);
    h->out_len = 0;
    if (len > HANDSHAKE_BYTES_MAX || peer_codec_decode(codec, bytes, len, &m, &unread) < 0 ||
        m.kind != wanted[h->state])
        return error_set(e, ERROR_PROTOCOL, "does not speak as a daemon of ruCCL does");
    switch (h->state) {
    case HANDSHAKE_HELLO:
        return take_hello(h, codec, &m, e);
    case HANDSHAKE_WELCOME:
        return take_welcome(h, codec, &m, e);
    default:
        return take_proof(h, &m, e);
    }
}

void handshake_fini(struct handshake *h)
{
    sodium_memzero(h->digest, sizeof(h->digest));
}

void handshake_seals(const struct handshake *h, struct seal *ret_out, struct seal *ret_in)
{
    uint8_t key[SEAL_KEY_BYTES];

    assert(h->state == HANDSHAKE_OVER);
    derive(h, h->dials ? FOR_FROM_DIALLER : FOR_FROM_ANSWERER, key);
    seal_init(ret_out, h->cipher, key);
    derive(h, h->dials ? FOR_FROM_ANSWERER : FOR_FROM_DIALLER, key);
    seal_init(ret_in, h->cipher, key);
    sodium_memzero(key, sizeof(key));
}
