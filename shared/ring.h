/*
 * Rings: messages through shared memory, one producer and one consumer, without a system call. No
 * I/O: who sleeps and who wakes whom is the caller's, with the help of two numbers.
 *
 * What the producer writes and what the consumer writes lie in different memory, so that each side
 * may be denied the other's. Neither side ever reads back what it wrote: its own place is kept in
 * private memory, and what the other side says is believed only as far as it cannot hurt. Nor does
 * it look at the other's, or write its own anew, where it need not: each time costs the way from
 * one CPU to the other.
 *
 * A consumer about to sleep arms the ring and looks once more. A producer that finds it armed rings
 * a bell, by other means, once for every arming; where there are several bells, the arming says
 * which one is heard. So no message is overlooked, and a consumer that is awake (ring_disarm) is
 * not rung.
 */
#ifndef SHARED_RING_H
#define SHARED_RING_H

#include <stdatomic.h>

#include "shared/base.h"

#define RING_BYTES        (128u << 10) /* of messages that are not yet taken; a power of two */
#define RING_MESSAGE_MAX  (64u << 10)
#define RING_MESSAGES_MAX (RING_BYTES / 8) /* at once, if they are as short as can be */

/* The producer's memory. */
struct ring_messages {
    _Alignas(128) _Atomic uint64_t tail; /* bytes ever put */
    _Alignas(128) uint8_t bytes[RING_BYTES];
};

/* The consumer's memory. */
struct ring_state {
    _Alignas(128) _Atomic uint64_t head;  /* bytes ever taken */
    _Alignas(128) _Atomic uint64_t armed; /* 0: awake; else asleep, a new number every time, and
                                             in its low bits the bell */
    _Alignas(128) _Atomic uint64_t looks; /* how often it has looked, awake, and on which CPU */
};

#define RING_CPU_BITS  16u /* the low bits of ring_state::looks */
#define RING_BELL_BITS 10u /* those of ring_state::armed */

/* The producer's end; zeroed but for the first two. */
struct ring_out {
    struct ring_messages *messages;
    const struct ring_state *state;
    uint64_t tail;
    uint64_t head; /* the consumer's, as last looked at; it may be further now */
    uint64_t rung; /* the arming that was last answered */
};

/* The consumer's end; zeroed but for the first two. */
struct ring_in {
    const struct ring_messages *messages;
    struct ring_state *state;
    _Atomic uint64_t head; /* so that another thread may ask ring_is_empty() */
    uint64_t narmed, nlooks;
    bool armed; /* for whoever may arm and disarm */
};

/* Conditions */
#define RING_FULL  1
#define RING_EMPTY 2

/* Whether a message of `len` bytes has room. */
bool ring_has_room(const struct ring_out *r, uint32_t len);
/* Puts a copy of `len` bytes, 1 to RING_MESSAGE_MAX. Return: 0 or RING_FULL. */
int ring_put(struct ring_out *r, const void *bytes, uint32_t len);
/* After a put: whether the consumer may be asleep and is to be rung; true once for every arming. */
bool ring_take_bell(struct ring_out *r);
/* Then: by which bell, below 1 << RING_BELL_BITS. */
uint32_t ring_taken_bell(const struct ring_out *r);

/*
 * Copies the oldest message out, to `bytes` of RING_MESSAGE_MAX. Return: 0, RING_EMPTY, or -EPROTO:
 * the other side wrote what no producer writes, and the ring is of no more use.
 */
int ring_take(struct ring_in *r, void *bytes, uint32_t *ret_len);
bool ring_is_empty(const struct ring_in *r);
/* Before sleeping where `bell` is heard. Return: whether to sleep; false: there is something to
 * take first. */
bool ring_arm(struct ring_in *r, uint32_t bell);
/* Awake again, and looking by itself. */
void ring_disarm(struct ring_in *r);
/* Says that it is running, and where: sched_getcpu()'s number. */
void ring_note_look(struct ring_in *r, unsigned cpu);

/*
 * What a producer that waits can tell of a consumer that is awake: whether it would run on this CPU
 * if the caller did not, although the caller has given it away `patience` times since the last call
 * that saw it look. Zeroed before the first.
 */
struct ring_watch {
    uint64_t looks;
    unsigned vain;
};
bool ring_consumer_is_kept_waiting(const struct ring_out *r, struct ring_watch *w,
                                   unsigned patience);

#endif
