#include "daemon/server/link_seal.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include <sodium.h>

#define NONCE_BYTES 12u

static_assert(NONCE_BYTES == crypto_aead_aes256gcm_NPUBBYTES, "");
static_assert(NONCE_BYTES == crypto_aead_chacha20poly1305_IETF_NPUBBYTES, "");
static_assert(FRAME_TAG_BYTES == crypto_aead_aes256gcm_ABYTES, "");
static_assert(FRAME_TAG_BYTES == crypto_aead_chacha20poly1305_IETF_ABYTES, "");
static_assert(SEAL_KEY_BYTES == crypto_aead_aes256gcm_KEYBYTES, "");
static_assert(SEAL_KEY_BYTES == crypto_aead_chacha20poly1305_IETF_KEYBYTES, "");
static_assert(SEAL_STATE_BYTES >= sizeof(crypto_aead_aes256gcm_state), "");

/* ---- the ciphers ---- */

struct cipher {
    const char *name;
    uint32_t block; /* a text of so many bytes, or a multiple, is the cheapest of its size */
    int (*available)(void);
    void (*set_key)(void *state, const uint8_t key[SEAL_KEY_BYTES]);
    /* `len` bytes behind the frame's head, in place; the head is proven with them. */
    void (*close)(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len);
    int (*open)(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len);
};

static void aes_set_key(void *state, const uint8_t key[SEAL_KEY_BYTES])
{
    crypto_aead_aes256gcm_beforenm(state, key);
}

static void aes_close(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len)
{
    uint8_t *text = frame + FRAME_HEAD_BYTES;

    crypto_aead_aes256gcm_encrypt_detached_afternm(text, text + len, NULL, text, len, frame,
                                                   FRAME_HEAD_BYTES, NULL, nonce, state);
}

static int aes_open(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len)
{
    uint8_t *text = frame + FRAME_HEAD_BYTES;

    return crypto_aead_aes256gcm_decrypt_detached_afternm(text, NULL, text, len, text + len, frame,
                                                          FRAME_HEAD_BYTES, nonce, state);
}

static int chacha_available(void)
{
    return true;
}

static void chacha_set_key(void *state, const uint8_t key[SEAL_KEY_BYTES])
{
    memcpy(state, key, SEAL_KEY_BYTES);
}

static void chacha_close(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len)
{
    uint8_t *text = frame + FRAME_HEAD_BYTES;

    crypto_aead_chacha20poly1305_ietf_encrypt_detached(text, text + len, NULL, text, len, frame,
                                                       FRAME_HEAD_BYTES, NULL, nonce, state);
}

static int chacha_open(const void *state, const uint8_t *nonce, uint8_t *frame, size_t len)
{
    uint8_t *text = frame + FRAME_HEAD_BYTES;

    return crypto_aead_chacha20poly1305_ietf_decrypt_detached(
        text, NULL, text, len, text + len, frame, FRAME_HEAD_BYTES, nonce, state);
}

/*
 * The preferred first; a row's place is its bit in what daemons say of themselves, and stays. AES
 * is there where the CPU has instructions for it: eight of its blocks at once cost it less than
 * three by themselves.
 */
static const struct cipher ciphers[] = {
    { "AES-256-GCM", 128, crypto_aead_aes256gcm_is_available, aes_set_key, aes_close, aes_open },
    { "ChaCha20-Poly1305", 16, chacha_available, chacha_set_key, chacha_close, chacha_open },
};

uint32_t ciphers_here(void)
{
    uint32_t set = 0;

    for (uint32_t i = 0; i < ARRAY_SIZE(ciphers); i++)
        if (ciphers[i].available())
            set |= 1u << i;
    return set;
}

const struct cipher *cipher_common(uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < ARRAY_SIZE(ciphers); i++)
        if (a & b & 1u << i)
            return &ciphers[i];
    return NULL;
}

const char *cipher_name(const struct cipher *c)
{
    return c->name;
}

/* ---- frames ---- */

uint32_t frame_length(const uint8_t head[FRAME_HEAD_BYTES])
{
    return (uint32_t)head[0] | (uint32_t)head[1] << 8 | (uint32_t)head[2] << 16 |
           (uint32_t)head[3] << 24;
}

void frame_set_length(uint8_t head[FRAME_HEAD_BYTES], uint32_t len)
{
    for (unsigned i = 0; i < FRAME_HEAD_BYTES; i++)
        head[i] = (uint8_t)(len >> 8 * i);
}

void seal_init(struct seal *s, const struct cipher *c, const uint8_t key[SEAL_KEY_BYTES])
{
    *s = (struct seal){ .cipher = c };
    c->set_key(s->state, key);
}

static void next_nonce(struct seal *s, uint8_t ret[NONCE_BYTES])
{
    memset(ret, 0, NONCE_BYTES);
    for (unsigned i = 0; i < 8; i++)
        ret[4 + i] = (uint8_t)(s->counter >> 8 * i);
    s->counter++; /* 64 bits do not come round */
}

/* 1 .. FRAME_PADDING_MAX */
static uint32_t padding(const struct seal *s, size_t len)
{
    return s->cipher->block - (uint32_t)(len % s->cipher->block);
}

size_t seal_frame_bytes(const struct seal *s, size_t len)
{
    return FRAME_HEAD_BYTES + len + padding(s, len) + FRAME_TAG_BYTES;
}

size_t seal_close(struct seal *s, uint8_t *frame, size_t len)
{
    const uint32_t more = padding(s, len);
    uint8_t nonce[NONCE_BYTES], *end = frame + FRAME_HEAD_BYTES + len;

    memset(end, 0, more - 1);
    end[more - 1] = (uint8_t)more;
    frame_set_length(frame, (uint32_t)(len + more) + FRAME_TAG_BYTES);
    next_nonce(s, nonce);
    s->cipher->close(s->state, nonce, frame, len + more);
    return FRAME_HEAD_BYTES + len + more + FRAME_TAG_BYTES;
}

int64_t seal_open(struct seal *s, uint8_t *frame, size_t len)
{
    uint8_t nonce[NONCE_BYTES];
    size_t padded;
    uint32_t more;

    if (len <= FRAME_HEAD_BYTES + FRAME_TAG_BYTES || frame_length(frame) != len - FRAME_HEAD_BYTES)
        return -EBADMSG;
    padded = len - FRAME_HEAD_BYTES - FRAME_TAG_BYTES;
    next_nonce(s, nonce);
    if (s->cipher->open(s->state, nonce, frame, padded) < 0)
        return -EBADMSG;
    more = frame[FRAME_HEAD_BYTES + padded - 1];
    if (more == 0 || more > MIN(padded, FRAME_PADDING_MAX))
        return -EBADMSG;
    return (int64_t)(padded - more);
}
