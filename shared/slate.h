/*
 * Slates: memory in which the ranks of a communicator, all of one node and one user, carry out
 * small blocking collectives among themselves, without a message to the daemon. No I/O: who waits
 * how long, and what is done instead, is the caller's.
 *
 * The ranks meet by sequence number. Each writes what it asks for, and its bytes, at its seat, and
 * then arrives; the last to arrive is whom the others wait for. Whoever does not want to wait, or
 * never came to meet, closes the meeting. So every meeting ends in one of two ways, the same for
 * all: everybody has come, and can see everybody's call and bytes; or it is closed, and all
 * go to the daemon with the same sequence number. It goes there, too, whenever the calls do not fit
 * together: all see that.
 *
 * Two meetings take turns in the memory, which is enough if a rank comes to a meeting, or closes
 * one, only when all that it did in the communicator before is over: that nobody is at the meeting
 * before the last any more, follows from everybody having been at the last.
 *
 * A rank that writes what it likes harms the communicators that it is in or was in, and nobody
 * else: nothing that another wrote is used but as a number to compare or to add up, and what bounds
 * its own memory no rank reads there. A meeting that was bent ends for some and goes to the daemon
 * for others, who wait there until the timeout.
 */
#ifndef SHARED_SLATE_H
#define SHARED_SLATE_H

#include <stdatomic.h>

#include "shared/collective.h"

#define SLATE_RANKS_MAX 64u
#define SLATE_BYTES     (64u << 10) /* that a rank may bring */
#define SLATE_MEETINGS  2u

/* More than anybody will ever count to; a number behind it comes of a lie. */
#define SLATE_SEQUENCE_MAX (UINT64_C(1) << 55)

/* What must be equal. Of numbers of one size, so that all of it can be compared. */
struct slate_call {
    uint64_t kind, op, dtype, root, budget, naxes;
    uint64_t axes[AXES_MAX]; /* axis 0 is 0 where ranks may differ in it */
};

/* Bytes of a process, as it sees them; none: first == end. */
struct slate_extent {
    uint64_t first, end;
};

/* What a rank brings. */
struct slate_seat {
    _Alignas(128) struct slate_call call;
    uint64_t process;            /* that of the extents */
    struct slate_extent in, out; /* in regions: plain memory is not watched for overlap */
    _Atomic uint64_t sequence;   /* these three are for the daemon, when people ask */
    _Atomic uint64_t kind, at_us;
    uint64_t room;                    /* all_to_all_v: rows of its output */
    uint64_t counts[SLATE_RANKS_MAX]; /* all_to_all_v: rows for each rank */
    _Alignas(128) uint8_t bytes[SLATE_BYTES];
};

struct slate {
    _Alignas(128) _Atomic uint32_t shut; /* by the daemon: the communicator has failed */
    struct {
        _Alignas(128) _Atomic uint64_t word;
    } meetings[SLATE_MEETINGS];
    struct slate_seat seats[]; /* [SLATE_MEETINGS][ranks] */
};

enum slate_state {
    SLATE_OPEN, /* somebody has not come */
    SLATE_MET,
    SLATE_CLOSED,
};

size_t slate_size(uint32_t nranks);

/* Where a rank writes before it arrives, and what the others read once all have met. */
struct slate_seat *slate_seat(struct slate *s, uint32_t nranks, uint64_t sequence, uint32_t rank);

/* The calling rank has come, which it says once. */
enum slate_state slate_arrive(struct slate *s, uint32_t nranks, uint64_t sequence);

/* How it stands, after that. */
enum slate_state slate_look(const struct slate *s, uint32_t nranks, uint64_t sequence);

/* Nobody else is waited for: SLATE_CLOSED, unless they have all come, SLATE_MET. */
enum slate_state slate_close(struct slate *s, uint32_t nranks, uint64_t sequence);

/* Of the meetings that are sequence numbers modulo SLATE_MEETINGS, the last one where all have met;
 * 0: none is known. */
uint64_t slate_last_met(const struct slate *s, uint32_t nranks, uint64_t meeting);

/* All that come from now on are to go to the daemon. */
void slate_shut(struct slate *s);
bool slate_is_shut(const struct slate *s);

/* Of a meeting that has met: whether all ask for the same, and no two ranks' tensors share memory.
 */
bool slate_agrees(const struct slate *s, uint32_t nranks, uint64_t sequence);

#endif
