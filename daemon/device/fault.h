/*
 * Memory that is not there. A client can make its file shorter, or its machine's memory run out,
 * and the next touch raises SIGBUS in whoever touches it. Between fault_enter() and fault_leave()
 * that ends the work on that memory and nothing else: the whole mapping is replaced by zero pages,
 * and `fault` set.
 */
#ifndef DAEMON_DEVICE_FAULT_H
#define DAEMON_DEVICE_FAULT_H

#include "daemon/device/device.h"

/*
 * The process's SIGBUS handler; counted, so every install has its uninstall. What is not ours goes
 * to the action found at the first install. Loop thread only.
 */
int fault_install(void);
void fault_uninstall(void);

/* Memory that a thread may touch. */
struct fault_area {
    struct mapping *const *mappings;
    uint32_t nmappings;
    struct fault_area *next; /* and this; NULL: that is all */
};

/* What this thread may touch; fault_enter()'s and the handler's alone. */
extern _Thread_local const struct fault_area *volatile fault_current;

/*
 * What this thread may touch until fault_leave(), all of the chain, which may change meanwhile.
 * Returns what to leave with: what was in force before is again then, and not in between. The
 * fences keep the thread's own accesses between the two.
 */
static inline const struct fault_area *fault_enter(const struct fault_area *areas)
{
    const struct fault_area *before = fault_current;

    fault_current = areas;
    atomic_signal_fence(memory_order_seq_cst);
    return before;
}

static inline void fault_leave(const struct fault_area *before)
{
    atomic_signal_fence(memory_order_seq_cst);
    fault_current = before;
}

/* Has a mapping of this one area lost its contents, now or before? */
static inline bool fault_found(const struct fault_area *area)
{
    for (uint32_t i = 0; i < area->nmappings; i++)
        if (atomic_load(&area->mappings[i]->fault))
            return true;
    return false;
}

static inline struct fault_area fault_area_of(const struct task *task)
{
    return (struct fault_area){ .mappings = task->mappings, .nmappings = task->nmappings };
}

#endif
