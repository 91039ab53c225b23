#include "proto/repeat.h"

#include <string.h>

/* Which of a body's fields vary, by the numbers of client.proto: sequence, slot, fence and signal;
 * sequence, wait_us and run_us. */
enum { REQUEST_START_FIELD = 15, REQUEST_POST_FIELD = 11, REPLY_COMPLETION_FIELD = 5 };
static const struct memo_field post_fields[] = {
    { 2, FIELD_8_BYTES }, { 3 }, { 25 }, { 26, FIELD_4_BYTES }
};
static const struct memo_field start_fields[] = {
    { 2, FIELD_8_BYTES }, { 3 }, { 5 }, { 6, FIELD_4_BYTES }
};
static const struct memo_field completion_fields[] = { { 2, FIELD_8_BYTES },
                                                       { 3, FIELD_8_BYTES, true },
                                                       { 4, FIELD_8_BYTES, true } };

/* Where to look as the `n`-th: at the one found last first. */
static uint32_t nth(uint32_t last, uint32_t n)
{
    return (last + n) % REPEATS;
}

/* ---- requests */

static bool may_recur(const struct request *r)
{
    return r->kind == REQUEST_START ||
           (r->kind == REQUEST_POST && !r->post.ncounts && !r->post.rejection.code);
}

static bool operands_equal(const struct wire_operand *a, const struct wire_operand *b)
{
    return a->region == b->region && a->offset == b->offset && a->window == b->window;
}

static bool descriptors_equal(const struct descriptor *a, const struct descriptor *b)
{
    return a->kind == b->kind && a->op == b->op && a->dtype == b->dtype && a->root == b->root &&
           a->budget == b->budget && shape_equal(&a->shape, &b->shape);
}

/* But for what varies, of two that may recur. */
static bool posts_equal(const struct request_post *a, const struct request_post *b)
{
    return a->comm == b->comm && operands_equal(&a->in, &b->in) &&
           operands_equal(&a->out, &b->out) && descriptors_equal(&a->d, &b->d) &&
           a->out_rows == b->out_rows && a->peer == b->peer && a->tag == b->tag &&
           a->color == b->color && a->key == b->key && a->child == b->child &&
           a->persistent == b->persistent;
}

static bool requests_equal(const struct request *a, const struct request *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == REQUEST_POST)
        return posts_equal(&a->post, &b->post);
    return a->start.comm == b->start.comm && a->start.persistent == b->start.persistent;
}

/* One that is known but for the values. */
static void request_set(struct request *r, const struct request *known, const uint64_t *values)
{
    /* what may recur has no rejection, which is behind all else, and most of it */
    memcpy(r, known, offsetof(struct request, post.rejection));
    error_clear(&r->post.rejection);
    r->serial = values[0];
    if (r->kind == REQUEST_POST) {
        r->post.sequence = values[1];
        r->post.slot = (uint32_t)values[2];
        r->post.fence = (uint32_t)values[3];
        r->post.signal = (uint32_t)values[4];
    } else {
        r->start.sequence = values[1];
        r->start.slot = (uint32_t)values[2];
        r->start.fence = (uint32_t)values[3];
        r->start.signal = (uint32_t)values[4];
    }
}

static void request_get(const struct request *r, uint64_t *ret)
{
    ret[0] = r->serial;
    if (r->kind == REQUEST_POST) {
        ret[1] = r->post.sequence;
        ret[2] = r->post.slot;
        ret[3] = r->post.fence;
        ret[4] = r->post.signal;
    } else {
        ret[1] = r->start.sequence;
        ret[2] = r->start.slot;
        ret[3] = r->start.fence;
        ret[4] = r->start.signal;
    }
}

static void request_keep(struct request_repeats *p, const struct request *r, const uint8_t *bytes,
                         size_t len)
{
    const bool is_post = r->kind == REQUEST_POST;
    struct memo memo;
    uint32_t i;

    if (!memo_keep(&memo, bytes, len, is_post ? REQUEST_POST_FIELD : REQUEST_START_FIELD,
                   is_post ? post_fields : start_fields, ARRAY_SIZE(post_fields)))
        return;
    i = memo_victim(&p->replaced, REPEATS);
    p->known[i].memo = memo;
    p->known[i].request = *r;
}

int repeat_decode_request(struct request_repeats *p, struct codec *c, const void *bytes, size_t len,
                          struct request *ret, struct error *e)
{
    uint64_t values[MEMO_VARIED_MAX];
    int r;

    for (uint32_t n = 0; n < REPEATS; n++) {
        const uint32_t i = nth(p->last, n);

        if (!memo_matches(&p->known[i].memo, bytes, len, values))
            continue;
        request_set(ret, &p->known[i].request, values);
        p->last = i;
        return 0;
    }
    r = codec_decode_request(c, bytes, len, ret, e);
    if (r == 0 && may_recur(ret))
        request_keep(p, ret, bytes, len);
    return r;
}

int repeat_encode_request(struct request_repeats *p, const struct request *r, void *buffer)
{
    uint64_t values[MEMO_VARIED_MAX];
    uint32_t len;
    int whole;

    if (!may_recur(r))
        return codec_encode_request(r, buffer);
    request_get(r, values);
    for (uint32_t n = 0; n < REPEATS; n++) {
        const uint32_t i = nth(p->last, n);

        if (p->known[i].memo.len && requests_equal(&p->known[i].request, r) &&
            (len = memo_write(&p->known[i].memo, values, buffer)) > 0) {
            p->last = i;
            return (int)len;
        }
    }
    whole = codec_encode_request(r, buffer);
    if (whole > 0)
        request_keep(p, r, buffer, (size_t)whole);
    return whole;
}

/* ---- replies */

static bool is_plain(const struct reply *r)
{
    const struct reply_completion *c = &r->completion;

    return r->kind == REPLY_COMPLETION && !c->error.code && !c->ncounts && !c->persistent &&
           !c->child_rank && !c->child_nranks && (!c->child_id || !*c->child_id);
}

static bool completions_equal(const struct reply_completion *a, const struct reply_completion *b)
{
    return a->chunks == b->chunks && a->chunk_elements == b->chunk_elements &&
           a->peak_bytes == b->peak_bytes &&
           strcmp(a->algorithm, b->algorithm ? b->algorithm : "") == 0;
}

static void reply_set(struct reply *r, const struct reply *known, const uint64_t *values)
{
    /* what is plain has no error, which is behind all else, and most of it */
    memcpy(r, known, offsetof(struct reply, completion.error));
    error_clear(&r->completion.error);
    r->serial = values[0];
    r->completion.sequence = values[1];
    r->completion.wait_us = values[2];
    r->completion.run_us = values[3];
}

static void reply_keep(struct reply_repeats *p, const struct reply *r, const uint8_t *bytes,
                       size_t len)
{
    const char *algorithm = r->completion.algorithm ? r->completion.algorithm : "";
    struct memo memo;
    uint32_t i;

    if (!memo_keep(&memo, bytes, len, REPLY_COMPLETION_FIELD, completion_fields,
                   ARRAY_SIZE(completion_fields)))
        return;
    i = memo_victim(&p->replaced, REPEATS);
    p->known[i].memo = memo;
    p->known[i].reply = *r;
    strncpy(p->known[i].algorithm, algorithm, CODEC_ALGORITHM_MAX);
    p->known[i].reply.completion.algorithm = p->known[i].algorithm;
    p->known[i].reply.completion.child_id = "";
}

int repeat_decode_reply(struct reply_repeats *p, struct codec *c, const void *bytes, size_t len,
                        struct reply *ret, struct error *e)
{
    uint64_t values[MEMO_VARIED_MAX];
    int r;

    for (uint32_t n = 0; n < REPEATS; n++) {
        const uint32_t i = nth(p->last, n);

        if (!memo_matches(&p->known[i].memo, bytes, len, values))
            continue;
        reply_set(ret, &p->known[i].reply, values);
        p->last = i;
        return 0;
    }
    r = codec_decode_reply(c, bytes, len, ret, e);
    if (r == 0 && is_plain(ret))
        reply_keep(p, ret, bytes, len);
    return r;
}

int repeat_encode_reply(struct reply_repeats *p, const struct reply *r, void *buffer)
{
    const struct reply_completion *done = &r->completion;
    uint32_t len;
    int whole;

    if (!is_plain(r))
        return codec_encode_reply(r, buffer);
    for (uint32_t n = 0; n < REPEATS; n++) {
        const uint64_t values[] = { r->serial, done->sequence, done->wait_us, done->run_us };
        const uint32_t i = nth(p->last, n);

        if (p->known[i].memo.len && completions_equal(&p->known[i].reply.completion, done) &&
            (len = memo_write(&p->known[i].memo, values, buffer)) > 0) {
            p->last = i;
            return (int)len;
        }
    }
    whole = codec_encode_reply(r, buffer);
    if (whole > 0)
        reply_keep(p, r, buffer, (size_t)whole);
    return whole;
}
