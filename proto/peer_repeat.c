#include "proto/peer_repeat.h"

#include <errno.h>
#include <string.h>

#include "proto/field.h"
#include "proto/memo.h"
#include "proto/peer_wire.h"

/*
 * An agreement is its key, its sequence number, what stays, and what is enclosed, in that order, as
 * the encoder writes it. What has another order is the codec's to read.
 */
struct agreement {
    const uint8_t *key;
    uint64_t sequence;
    const uint8_t *rest, *end; /* behind the sequence number */
};

/* ---- reading */

static bool read_key(const uint8_t **at, const uint8_t *end, const uint8_t **ret)
{
    if (end - *at < (ptrdiff_t)(2 + PEER_KEY_BYTES) || (*at)[0] != AGREE_KEY ||
        (*at)[1] != PEER_KEY_BYTES)
        return false;
    *ret = *at + 2;
    *at += 2 + PEER_KEY_BYTES;
    return true;
}

/* The body of an agreement, up to the fields that stay. */
static bool read_start(const uint8_t *at, const uint8_t *end, struct agreement *ret)
{
    if (!read_key(&at, end, &ret->key) || at == end || *at++ != AGREE_SEQUENCE ||
        !varint_read(&at, end, VARINT_BYTES_MAX, &ret->sequence))
        return false;
    ret->rest = at;
    ret->end = end;
    return true;
}

static bool read_message(const uint8_t *at, size_t len, struct agreement *ret)
{
    const uint8_t *end = at + len;
    uint64_t body;

    return len > 0 && *at++ == MESSAGE_AGREE && varint_read(&at, end, LENGTH_BYTES_MAX, &body) &&
           body == (uint64_t)(end - at) && read_start(at, end, ret);
}

/* All that is left says what is enclosed, or nothing is. */
static bool read_enclosed(const uint8_t *at, const uint8_t *end, struct peer_agree *ret)
{
    uint64_t len;

    ret->enclosed = at < end;
    ret->payload = NULL;
    ret->payload_bytes = 0;
    if (at == end)
        return true;
    if (end - at < 2 || *at++ != AGREE_ENCLOSED || *at++ != true)
        return false;
    if (at == end)
        return true;
    if (*at++ != AGREE_PAYLOAD || !varint_read(&at, end, LENGTH_BYTES_MAX, &len) || len == 0 ||
        len != (uint64_t)(end - at) || len > PEER_ENCLOSED_MAX)
        return false;
    ret->payload = at;
    ret->payload_bytes = (uint32_t)len;
    return true;
}

/* ---- keeping */

/*
 * The bytes of the fields that stay: up to the first that says what is enclosed. 0: another key or
 * sequence number is among them, which would count instead of the first, or there are none.
 */
static size_t measure(const struct agreement *a)
{
    const uint8_t *at = a->rest, *from = at;
    struct field f;

    while (at < a->end) {
        from = at;
        if (!field_read(&at, a->end, &f))
            return 0;
        if (f.number == AGREE_ENCLOSED >> 3 || f.number == AGREE_PAYLOAD >> 3)
            return (size_t)(from - a->rest);
        if (f.number == AGREE_KEY >> 3 || f.number == AGREE_SEQUENCE >> 3)
            return 0;
    }
    return (size_t)(at - a->rest);
}

static bool may_recur(const struct peer_agree *a)
{
    return a->nparts == 1 && !a->parts[0].rejection && !a->verdict && !a->nrows && !a->ncolors;
}

/* `a`: the bytes that `agree` was, and that are well-formed. */
static void keep(struct peer_repeats *p, const struct agreement *a, const struct peer_agree *agree)
{
    const size_t len = measure(a);
    struct peer_agree enclosed;
    uint32_t i;

    if (len == 0 || len > PEER_REPEAT_BYTES || !read_enclosed(a->rest + len, a->end, &enclosed))
        return;
    i = memo_victim(&p->replaced, PEER_REPEATS);
    p->known[i].len = (uint32_t)len;
    memcpy(p->known[i].bytes, a->rest, len);
    p->known[i].agree = *agree;
    p->known[i].part = agree->parts[0];
    p->known[i].agree.parts = &p->known[i].part;
    p->known[i].agree.rows = NULL; /* of neither are there any */
    p->known[i].agree.colors = NULL;
}

/* ---- decoding */

static bool recall(const struct peer_repeats *p, const struct agreement *a, struct peer_agree *ret)
{
    for (uint32_t i = 0; i < PEER_REPEATS; i++) {
        const uint32_t len = p->known[i].len;

        if (len == 0 || (size_t)(a->end - a->rest) < len ||
            memcmp(a->rest, p->known[i].bytes, len) != 0 ||
            memcmp(a->key, p->known[i].agree.key, PEER_KEY_BYTES) != 0)
            continue;
        *ret = p->known[i].agree;
        ret->sequence = a->sequence;
        if (read_enclosed(a->rest + len, a->end, ret)) /* else it only begins like this one */
            return true;
    }
    return false;
}

int peer_repeat_decode(struct peer_repeats *p, struct peer_codec *c, const void *bytes, size_t len,
                       struct peer_message *ret, struct error *e)
{
    struct agreement a;
    const bool is_one = read_message(bytes, len, &a);
    struct peer_agree agree;
    int r;

    if (is_one && recall(p, &a, &agree)) {
        ret->kind = PEER_AGREE;
        ret->agree = agree;
        return 0;
    }
    r = peer_codec_decode(c, bytes, len, ret, e);
    if (r == 0 && is_one && may_recur(&ret->agree))
        keep(p, &a, &ret->agree);
    return r;
}

/* ---- encoding */

static bool parts_equal(const struct peer_part *a, const struct peer_part *b)
{
    return a->rank == b->rank && a->d.kind == b->d.kind && a->d.op == b->d.op &&
           a->d.dtype == b->d.dtype && a->d.root == b->d.root && a->d.budget == b->d.budget &&
           a->makes_persistent == b->makes_persistent && a->starts == b->starts &&
           shape_equal(&a->d.shape, &b->d.shape);
}

/* But for what differs in repeats, of two that may recur. */
static bool agrees_equal(const struct peer_agree *a, const struct peer_agree *b)
{
    return a->plan == b->plan && a->piece == b->piece &&
           memcmp(a->key, b->key, PEER_KEY_BYTES) == 0 && parts_equal(a->parts, b->parts);
}

/* What is known to be said of `agree`; NULL: nothing is. */
static const uint8_t *find(const struct peer_repeats *p, const struct peer_agree *agree,
                           uint32_t *ret_len)
{
    for (uint32_t i = 0; i < PEER_REPEATS; i++) {
        *ret_len = p->known[i].len;
        if (*ret_len && agrees_equal(&p->known[i].agree, agree))
            return p->known[i].bytes;
    }
    return NULL;
}

int64_t peer_repeat_encode(struct peer_repeats *p, struct peer_codec *c,
                           const struct peer_message *m, const void **ret)
{
    const struct peer_agree *agree = &m->agree;
    struct agreement a;
    const uint8_t *known;
    uint32_t known_len;
    int64_t len;

    if (m->kind != PEER_AGREE || !may_recur(agree))
        return peer_codec_encode(c, m, ret);
    known = find(p, agree, &known_len);
    if (known)
        return peer_encode_known_agree(c, agree, known, known_len, ret);
    len = peer_codec_encode(c, m, ret);
    if (len > 0 && read_message(*ret, (size_t)len, &a))
        keep(p, &a, agree);
    return len;
}
