/*
 * For tests of the peer codec: one to test, memory for what a test makes up, messages to start
 * from, and what decoding must come to. Stands on cmocka, which is included before.
 */
#ifndef TESTS_PEER_WIRE_H
#define TESTS_PEER_WIRE_H

#include <errno.h>
#include <stdlib.h>

#include "proto/arena.h"
#include "tests/peer_samples.h"

#define KINDS (PEER_ACCEPT + 1)

static struct peer_codec *codec;
static struct arena memory; /* of what a test makes up; the test that fills it resets it */

static inline int peer_setup(void **state)
{
    (void)state;
    return arena_init(&memory, 1 << 16) < 0 ? -1 : peer_codec_new(&codec);
}

static inline int peer_teardown(void **state)
{
    (void)state;
    codec = peer_codec_free(codec);
    arena_fini(&memory);
    return 0;
}

static inline void *take(size_t bytes)
{
    void *p = arena_alloc(&memory, bytes);

    assert_non_null(p);
    return memset(p, 0, bytes);
}

static inline void forget(void)
{
    arena_reset(&memory, SIZE_MAX);
}

/* Exactly as long as it claims to be, so that a sanitizer sees a read behind the end. */
static inline int decode(const void *bytes, size_t len, struct peer_message *ret, struct error *e)
{
    uint8_t *copy = malloc(MAX(len, 1u));

    assert_non_null(copy);
    if (len > 0)
        memcpy(copy, bytes, len);

    int r = peer_codec_decode(codec, copy, len, ret, e);

    free(copy);
    return r;
}

static inline void assert_refused(const void *bytes, size_t len, const char *complaint)
{
    struct peer_message m = { .kind = KINDS };
    struct error e = { 0 };

    assert_int_equal(decode(bytes, len, &m, &e), -EPROTO);
    assert_int_equal(e.code, ERROR_PROTOCOL);
    if (!strstr(e.text, complaint))
        fail_msg("'%s' does not say '%s'", e.text, complaint);
    assert_int_equal(m.kind, KINDS); /* written only on success */
}

static inline char *text_of(const struct peer_message *m)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    say_peer(f, m);
    fclose(f);
    return text;
}

static inline void assert_comes_back(const struct peer_message *m)
{
    struct peer_message back;
    struct error e = { 0 };
    const void *bytes;
    int64_t len = peer_codec_encode(codec, m, &bytes);

    assert_in_range(len, 1, PEER_MESSAGE_BYTES);
    if (decode(bytes, (size_t)len, &back, &e) < 0)
        fail_msg("%s", e.text);

    char *there = text_of(m), *again = text_of(&back);

    assert_string_equal(there, again);
    free(there);
    free(again);
}

/* The sample of a kind that says most. */
static inline struct peer_message full_sample(enum peer_kind kind)
{
    struct peer_message m, full = { .kind = KINDS };

    for (uint32_t i = 0; sample_peer(i, &m); i++)
        if (m.kind == kind)
            full = m;
    assert_int_equal(full.kind, kind);
    return full;
}

/* A copy of the bytes, in `memory`. */
static inline uint8_t *encoded(const struct peer_message *m, size_t *ret_len)
{
    const void *bytes;
    int64_t len = peer_codec_encode(codec, m, &bytes);

    assert_true(len > 0);
    *ret_len = (size_t)len;
    return memcpy(take((size_t)len), bytes, (size_t)len);
}

/* ------------------------------------------------ lists of any length, in `memory` */

/* [n], ranks 0 to n - 1. */
static inline struct peer_part *parts_of(uint32_t n, struct peer_part part)
{
    struct peer_part *parts = take(n * sizeof(*parts));

    for (uint32_t i = 0; i < n; i++) {
        parts[i] = part;
        parts[i].rank = i;
    }
    return parts;
}

static inline struct peer_rows *rows_of(uint32_t n, struct peer_rows row)
{
    struct peer_rows *rows = take(n * sizeof(*rows));

    for (uint32_t i = 0; i < n; i++) {
        rows[i] = row;
        rows[i].rank = i;
    }
    return rows;
}

static inline struct peer_color *colors_of(uint32_t n)
{
    struct peer_color *colors = take(n * sizeof(*colors));

    for (uint32_t i = 0; i < n; i++)
        colors[i].rank = i;
    return colors;
}

static inline struct peer_rank *ranks_of(uint32_t n, const char *last)
{
    struct peer_rank *ranks = take(n * sizeof(*ranks));

    for (uint32_t i = 0; i < n; i++)
        ranks[i] = (struct peer_rank){ .rank = i, .last = last };
    return ranks;
}

/* A rank on each of `n` nodes. */
static inline struct peer_form form_of(uint32_t n, struct peer_node node)
{
    struct peer_form form = sample_form();
    struct peer_node *nodes = take(n * sizeof(*nodes));
    uint32_t *node_of_rank = take(n * sizeof(*node_of_rank));

    for (uint32_t i = 0; i < n; i++) {
        nodes[i] = node;
        node_of_rank[i] = i;
    }
    form.nodes = nodes;
    form.node_of_rank = node_of_rank;
    form.pids = take(n * sizeof(*form.pids));
    form.nnodes = form.nranks = n;
    return form;
}

#endif
