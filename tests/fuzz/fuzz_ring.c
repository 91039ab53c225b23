/*
 * Any bytes, as what the other side of a ring wrote: its memory and its numbers. Whatever they are,
 * the consumer takes no more than a ring holds, and the producer puts no more than one.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shared/ring.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

#define ALIGNMENT 8u /* of places */

struct input {
    const uint8_t *bytes;
    size_t len;
};

/* The next number of `bytes` bytes; 0 once the input is used up. */
static uint64_t input_take(struct input *input, size_t bytes)
{
    uint64_t number = 0;

    bytes = MIN(bytes, input->len);
    memcpy(&number, input->bytes, bytes);
    input->bytes += bytes;
    input->len -= bytes;
    return number;
}

/* Of zeros. Each allocated alone, so that the sanitizer sees what goes beyond. */
static struct ring_messages *messages_reset(void)
{
    static struct ring_messages *m;

    if (!m)
        m = aligned_alloc(_Alignof(struct ring_messages), sizeof(*m));
    if (!m)
        abort();
    return memset(m, 0, sizeof(*m));
}

/* The rest of the input, from `place` on. */
static void write_messages(struct ring_messages *m, uint64_t place, const struct input *input)
{
    for (size_t i = 0; i < MIN(input->len, RING_BYTES); i++)
        m->bytes[(place + i) % RING_BYTES] = input->bytes[i];
}

static void fuzz_consumer(struct input input)
{
    static uint8_t message[RING_MESSAGE_MAX]; /* globals are watched, too */
    static struct ring_state state;
    struct ring_messages *m = messages_reset();
    struct ring_in in = { .messages = m, .state = &state };
    uint64_t taken = 0, start;
    uint32_t len;
    int r;

    start = input_take(&input, 8) * ALIGNMENT;
    in.head = start;
    atomic_store(&m->tail, in.head + input_take(&input, 8));
    write_messages(m, in.head, &input);
    while ((r = ring_take(&in, message, &len)) == 0) {
        assert(len > 0 && len <= RING_MESSAGE_MAX);
        taken += len;
        assert(taken < RING_BYTES && in.head - start <= RING_BYTES);
        assert(in.head % ALIGNMENT == 0 && atomic_load(&state.head) == in.head);
    }
    assert(r == -EPROTO || (r == RING_EMPTY && ring_is_empty(&in)));
    assert(ring_arm(&in, 0) == ring_is_empty(&in));
}

/* One message: 2 bytes of the input say how long, then 1 whether the other side writes, and what.
 */
static uint64_t room_by(const struct ring_out *out, uint64_t head)
{
    return out->tail - head <= RING_BYTES ? RING_BYTES - (out->tail - head) : 0;
}

static void fuzz_put(struct ring_out *out, struct ring_state *state, struct input *input)
{
    static const uint8_t message[RING_MESSAGE_MAX];
    uint32_t len = 1 + (uint32_t)input_take(input, 2);
    uint8_t writes = (uint8_t)input_take(input, 1);
    uint64_t before = out->tail, room, known;
    bool had_room;

    if (writes & 1)
        atomic_store(&state->head, out->tail - input_take(input, 8));
    if (writes & 2)
        atomic_store(&state->armed, input_take(input, 1));
    room = room_by(out, atomic_load(&state->head));
    known = room_by(out, out->head); /* which is looked at first */
    had_room = ring_has_room(out, len);
    assert(!had_room || room > len);
    if (ring_put(out, message, len) == 0) {
        assert(had_room || known > len);
        assert(out->tail - before > len && out->tail - out->head <= RING_BYTES);
    } else {
        assert(!had_room && out->tail == before);
    }
    assert(atomic_load(&out->messages->tail) == out->tail);
    ring_take_bell(out);
    assert(!ring_take_bell(out));
}

static void fuzz_producer(struct input input)
{
    struct ring_messages *m = messages_reset();
    struct ring_state state = { 0 };
    struct ring_out out = { .messages = m, .state = &state };

    out.tail = input_take(&input, 8) * ALIGNMENT;
    atomic_store(&m->tail, out.tail);
    atomic_store(&state.head, out.tail);
    while (input.len)
        fuzz_put(&out, &state, &input);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    fuzz_consumer((struct input){ bytes, len });
    fuzz_producer((struct input){ bytes, len });
    return 0;
}
