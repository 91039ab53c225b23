/* What a process has cost so far, all of its threads together. */
#ifndef TESTS_END_TO_END_COST_H
#define TESTS_END_TO_END_COST_H

#include <stdint.h>
#include <sys/types.h>

struct cost {
    uint64_t ticks, switches;
};

struct cost cost_of(pid_t pid);

/* Fails unless it has done next to nothing in the `seconds` since `before`. */
void cost_expect_idle(const char *who, pid_t pid, const struct cost *before, unsigned seconds);

#endif
