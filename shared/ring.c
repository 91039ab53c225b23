#include "shared/ring.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

#define ALIGNMENT 8u /* of messages: a length never wraps around the end */

static uint32_t record_bytes(uint32_t len)
{
    return ((uint32_t)sizeof(len) + len + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
}

/* How many of `len` bytes there lie behind the ring's end, that is at its start. */
static uint32_t bytes_around(uint64_t place, uint32_t len)
{
    const uint32_t to_end = RING_BYTES - (uint32_t)(place % RING_BYTES);

    return len > to_end ? len - to_end : 0;
}

static void copy_in(struct ring_messages *m, uint64_t place, const void *bytes, uint32_t len)
{
    const uint32_t around = bytes_around(place, len);

    memcpy(&m->bytes[place % RING_BYTES], bytes, len - around);
    if (around)
        memcpy(m->bytes, (const uint8_t *)bytes + (len - around), around);
}

static void copy_out(const struct ring_messages *m, uint64_t place, void *bytes, uint32_t len)
{
    const uint32_t around = bytes_around(place, len);

    memcpy(bytes, &m->bytes[place % RING_BYTES], len - around);
    if (around)
        memcpy((uint8_t *)bytes + (len - around), m->bytes, around);
}

static uint64_t consumer_head(const struct ring_out *r)
{
    return atomic_load_explicit(&r->state->head, memory_order_acquire);
}

/* A head that cannot be is taken for a full ring: it harms only whoever wrote it. */
static bool has_room(const struct ring_out *r, uint64_t head, uint32_t len)
{
    const uint64_t used = r->tail - head;

    return used <= RING_BYTES && RING_BYTES - used >= record_bytes(len);
}

bool ring_has_room(const struct ring_out *r, uint32_t len)
{
    return has_room(r, consumer_head(r), len);
}

int ring_put(struct ring_out *r, const void *bytes, uint32_t len)
{
    assert(len > 0 && len <= RING_MESSAGE_MAX);
    if (!has_room(r, r->head, len)) {
        r->head = consumer_head(r);
        if (!has_room(r, r->head, len))
            return RING_FULL;
    }
    memcpy(&r->messages->bytes[r->tail % RING_BYTES], &len, sizeof(len));
    copy_in(r->messages, r->tail + sizeof(len), bytes, len);
    r->tail += record_bytes(len);
    atomic_store_explicit(&r->messages->tail, r->tail, memory_order_release);
    return 0;
}

/* The fences of this and of ring_arm() see to it that one of the two finds what the other wrote. */
bool ring_take_bell(struct ring_out *r)
{
    uint64_t armed;

    atomic_thread_fence(memory_order_seq_cst);
    armed = atomic_load_explicit(&r->state->armed, memory_order_relaxed);
    if (armed == 0 || armed == r->rung)
        return false;
    r->rung = armed;
    return true;
}

uint32_t ring_taken_bell(const struct ring_out *r)
{
    return (uint32_t)(r->rung & ((1u << RING_BELL_BITS) - 1));
}

bool ring_is_empty(const struct ring_in *r)
{
    return atomic_load_explicit(&r->messages->tail, memory_order_acquire) ==
           atomic_load_explicit(&r->head, memory_order_relaxed);
}

int ring_take(struct ring_in *r, void *bytes, uint32_t *ret_len)
{
    uint64_t head = atomic_load_explicit(&r->head, memory_order_relaxed);
    uint64_t there = atomic_load_explicit(&r->messages->tail, memory_order_acquire) - head;
    uint32_t len;

    if (there == 0)
        return RING_EMPTY;
    if (there > RING_BYTES || there % ALIGNMENT)
        return -EPROTO;
    /* once, and no compiler may do so again: it may change under us */
    len = *(const volatile uint32_t *)&r->messages->bytes[head % RING_BYTES];
    if (len == 0 || len > RING_MESSAGE_MAX || record_bytes(len) > there)
        return -EPROTO;
    copy_out(r->messages, head + sizeof(len), bytes, len);
    head += record_bytes(len);
    atomic_store_explicit(&r->head, head, memory_order_relaxed);
    atomic_store_explicit(&r->state->head, head, memory_order_release);
    *ret_len = len;
    return 0;
}

bool ring_arm(struct ring_in *r, uint32_t bell)
{
    r->armed = true;
    atomic_store_explicit(&r->state->armed, ++r->narmed << RING_BELL_BITS | bell,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return ring_is_empty(r);
}

void ring_disarm(struct ring_in *r)
{
    if (!r->armed)
        return;
    r->armed = false;
    atomic_store_explicit(&r->state->armed, 0, memory_order_relaxed);
}

void ring_note_look(struct ring_in *r, unsigned cpu)
{
    const uint64_t where = cpu & ((1u << RING_CPU_BITS) - 1);

    atomic_store_explicit(&r->state->looks, ++r->nlooks << RING_CPU_BITS | where,
                          memory_order_relaxed);
}

bool ring_consumer_is_kept_waiting(const struct ring_out *r, struct ring_watch *w,
                                   unsigned patience)
{
    const uint64_t looks = atomic_load_explicit(&r->state->looks, memory_order_relaxed);
    const uint64_t cpu = looks & ((1u << RING_CPU_BITS) - 1);

    if (looks != w->looks || cpu != (uint64_t)sched_getcpu() ||
        atomic_load_explicit(&r->state->armed, memory_order_relaxed)) {
        *w = (struct ring_watch){ .looks = looks };
        return false;
    }
    return ++w->vain > patience;
}
