/*
 * Memory that daemon and client both see, besides tensors. Two memfds a session: one made and
 * written by the daemon, sealed so that the client can only read it, of progress cells and, behind
 * them, the daemon's rings; and one made and written by the client, of its rings. And one for all
 * sessions of a uid, the daemon's and sealed likewise, of bells.
 */
#ifndef SHARED_MEM_H
#define SHARED_MEM_H

#include <stdatomic.h>
#include <string.h>

#include "shared/base.h"
#include "shared/ring.h"

/* A tensor may pass through a window of its memory; the daemon works on one piece of it at a time. */
#define WINDOW_PIECES 4u

struct progress {
    uint64_t elements_done, elements_total;
    uint64_t chunks_done, chunks_total;      /* rounds for the exchanges */
    uint64_t rows_sent, rows_to_send;        /* the exchanges only */
    uint64_t rows_received, rows_to_receive; /* the exchanges only */
};

#define PROGRESS_WORDS (sizeof(struct progress) / sizeof(uint64_t))

/* One writer, any readers: a reader that sees the same even version before and after has a whole. */
struct progress_cell {
    _Alignas(128) _Atomic uint64_t version;
    _Atomic uint64_t words[PROGRESS_WORDS];
};

static inline void progress_write(struct progress_cell *cell, const struct progress *p)
{
    const uint64_t *words = (const uint64_t *)p;
    uint64_t version = atomic_load_explicit(&cell->version, memory_order_relaxed);

    atomic_store_explicit(&cell->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
#pragma GCC unroll 8
    for (size_t i = 0; i < PROGRESS_WORDS; i++)
        atomic_store_explicit(&cell->words[i], words[i], memory_order_relaxed);
    atomic_store_explicit(&cell->version, version + 2, memory_order_release);
}

/* What each side writes of the rings of requests and of replies. */
struct client_rings {
    struct ring_messages requests;
    struct ring_state replies;
};

struct daemon_rings {
    struct ring_messages replies;
    struct ring_state requests;
    _Alignas(128) _Atomic uint32_t bell; /* the session's own */
    _Atomic uint32_t mail;               /* how often it was rung for what is at the socket */
};

/*
 * Futexes, for those that sleep until there is something in their rings: a bell's number changes
 * before who sleeps at it is woken. Many may sleep at one, and one system call wakes them, before
 * any of them can keep the daemon from waking the next. Whoever sleeps says which one it hears, all
 * ranks of a communicator the same; and hears its session's own, too.
 */
struct bells {
    _Atomic uint32_t rung[1u << RING_BELL_BITS];
};

#define BELL_NONE 0u /* not to be rung: a datagram at the socket is heard, and only that */

/* The daemon's memfd: `nslots` progress cells, then its rings. */
static inline size_t daemon_rings_offset(uint32_t nslots)
{
    return nslots * sizeof(struct progress_cell);
}

static inline size_t daemon_memory_bytes(uint32_t nslots)
{
    return daemon_rings_offset(nslots) + sizeof(struct daemon_rings);
}

/* False if the writer was in the way every time: the daemon died in the middle, or is very busy. */
static inline bool progress_read(const struct progress_cell *cell, struct progress *ret)
{
    uint64_t words[PROGRESS_WORDS];

    for (int attempt = 0; attempt < 1000; attempt++) {
        uint64_t before = atomic_load_explicit(&cell->version, memory_order_acquire);

        for (size_t i = 0; i < PROGRESS_WORDS; i++)
            words[i] = atomic_load_explicit(&cell->words[i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (!(before & 1) && before == atomic_load_explicit(&cell->version, memory_order_relaxed)) {
            memcpy(ret, words, sizeof(words));
            return true;
        }
    }
    return false;
}

#endif
