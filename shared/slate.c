#include "shared/slate.h"

#include <string.h>

/* A meeting's word: its sequence number, whether it is closed, and how many have come. */
#define COME_BITS 8u
#define COME_MASK 0x7fu
#define CLOSED    0x80u

/* To change a word that others change too: honest ones do so once each. */
#define TRIES 4096u

_Static_assert(SLATE_SEQUENCE_MAX <= UINT64_MAX >> COME_BITS, "a sequence number has room");
_Static_assert(SLATE_RANKS_MAX <= COME_MASK, "all ranks can be counted");
_Static_assert(sizeof(struct slate_call) == (6 + AXES_MAX) * sizeof(uint64_t), "it has no gaps");

size_t slate_size(uint32_t nranks)
{
    return sizeof(struct slate) + (size_t)SLATE_MEETINGS * nranks * sizeof(struct slate_seat);
}

struct slate_seat *slate_seat(struct slate *s, uint32_t nranks, uint64_t sequence, uint32_t rank)
{
    return &s->seats[sequence % SLATE_MEETINGS * nranks + rank];
}

static enum slate_state state_of(uint64_t word, uint32_t nranks, uint64_t sequence)
{
    if (word >> COME_BITS < sequence)
        return SLATE_OPEN;
    if (word >> COME_BITS > sequence || word & CLOSED)
        return SLATE_CLOSED; /* one that is past was closed, or somebody lies */
    return (word & COME_MASK) >= nranks ? SLATE_MET : SLATE_OPEN;
}

/* Of an open meeting, which may not have begun. */
static uint64_t current(uint64_t word, uint64_t sequence)
{
    return word >> COME_BITS == sequence ? word : sequence << COME_BITS;
}

enum slate_state slate_arrive(struct slate *s, uint32_t nranks, uint64_t sequence)
{
    _Atomic uint64_t *meeting = &s->meetings[sequence % SLATE_MEETINGS].word;
    uint64_t word = atomic_load_explicit(meeting, memory_order_relaxed);

    for (unsigned tries = 0; tries < TRIES; tries++) {
        const uint64_t next = current(word, sequence) + 1;

        if (state_of(word, nranks, sequence) != SLATE_OPEN)
            break; /* also where more have come than there are */
        if (atomic_compare_exchange_weak_explicit(meeting, &word, next, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return state_of(next, nranks, sequence);
    }
    return SLATE_CLOSED;
}

enum slate_state slate_look(const struct slate *s, uint32_t nranks, uint64_t sequence)
{
    return state_of(
        atomic_load_explicit(&s->meetings[sequence % SLATE_MEETINGS].word, memory_order_acquire),
        nranks, sequence);
}

enum slate_state slate_close(struct slate *s, uint32_t nranks, uint64_t sequence)
{
    _Atomic uint64_t *meeting = &s->meetings[sequence % SLATE_MEETINGS].word;
    uint64_t word = atomic_load_explicit(meeting, memory_order_acquire);

    for (unsigned tries = 0; tries < TRIES; tries++) {
        const enum slate_state state = state_of(word, nranks, sequence);

        if (state != SLATE_OPEN)
            return state;
        if (atomic_compare_exchange_weak_explicit(meeting, &word, current(word, sequence) | CLOSED,
                                                  memory_order_acq_rel, memory_order_acquire))
            break;
    }
    return SLATE_CLOSED;
}

uint64_t slate_last_met(const struct slate *s, uint32_t nranks, uint64_t meeting)
{
    const uint64_t word = atomic_load(&s->meetings[meeting].word);

    return state_of(word, nranks, word >> COME_BITS) == SLATE_MET ? word >> COME_BITS : 0;
}

void slate_shut(struct slate *s)
{
    atomic_store_explicit(&s->shut, 1, memory_order_release);
}

bool slate_is_shut(const struct slate *s)
{
    return atomic_load_explicit(&s->shut, memory_order_acquire) != 0;
}

static bool touch(const struct slate_extent *a, const struct slate_extent *b)
{
    return MAX(a->first, b->first) < MIN(a->end, b->end);
}

/* Also where both would only read: the daemon refuses that too. */
static bool share_memory(const struct slate_seat *a, const struct slate_seat *b)
{
    return a->process == b->process && (touch(&a->out, &b->out) || touch(&a->out, &b->in) ||
                                        touch(&a->in, &b->out) || touch(&a->in, &b->in));
}

bool slate_agrees(const struct slate *s, uint32_t nranks, uint64_t sequence)
{
    const struct slate_seat *seats = &s->seats[sequence % SLATE_MEETINGS * nranks];

    for (uint32_t i = 1; i < nranks; i++)
        if (memcmp(&seats[i].call, &seats[0].call, sizeof(seats[0].call)) != 0)
            return false;
    for (uint32_t i = 1; i < nranks; i++)
        for (uint32_t k = 0; k < i; k++)
            if (share_memory(&seats[i], &seats[k]))
                return false;
    return true;
}
