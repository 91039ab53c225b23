/* What a process has cost so far, all of its threads together. */
#ifndef TESTS_END_TO_END_COST_H
#define TESTS_END_TO_END_COST_H

#include <stdint.h>
#include <sys/types.h>

struct cost {
    uint64_t ticks, switches;
};

struct cost cost_of(pid_t pid);

/*
 * Waits until all of these processes sleep at one moment, every thread of them: whatever they were
 * about to do is done, and only a timer or somebody else wakes them. Fails after a while.
 */
void cost_await_rest(const pid_t *pids, uint32_t n);

/* Fails unless it has done next to nothing in the `seconds` since `before`. */
void cost_expect_idle(const char *who, pid_t pid, const struct cost *before, unsigned seconds);

#endif
