/*
 * Memory that is not there. A client can make its file shorter, or its machine's memory run out,
 * and the next touch raises SIGBUS in whoever touches it. Between fault_enter() and fault_leave()
 * that ends the task and nothing else: the whole mapping is replaced by zero pages, and `fault`
 * set.
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

/* What this thread does until fault_leave() is done for `task`. Does not nest. */
void fault_enter(const struct task *task);
void fault_leave(void);

/* Has a mapping of the task lost its contents, now or before? */
bool fault_found(const struct task *task);

#endif
