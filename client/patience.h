/*
 * Patience: how long to look for what others do, letting them run, before going another way. Where
 * it comes later than that, as with many more ranks than CPUs, with large tensors or other nodes,
 * looking takes from those who work: half as long after each in vain, then only now and again.
 */
#ifndef CLIENT_PATIENCE_H
#define CLIENT_PATIENCE_H

#include "shared/base.h"

#define PATIENCE_MISSES   16u
#define PATIENCE_HALVINGS 4u
#define PATIENCE_TRIAL_NS (1 << 21) /* out of every ... */
#define PATIENCE_EVERY_NS (1 << 24)

struct patience {
    int64_t most_ns;
    unsigned misses; /* since the last time that was not in vain */
};

/* By CLOCK_MONOTONIC: alone one of many would learn nothing, since those that have given up slow it
 * down, so all who go by the same clock try again at the same times. */
static inline int64_t patience_ns(const struct patience *p, int64_t now)
{
    if (now % PATIENCE_EVERY_NS < PATIENCE_TRIAL_NS)
        return p->most_ns;
    return p->misses < PATIENCE_MISSES ? p->most_ns >> MIN(p->misses, PATIENCE_HALVINGS) : 0;
}

static inline void patience_note(struct patience *p, bool found)
{
    p->misses = found ? 0 : p->misses + 1;
}

#endif
