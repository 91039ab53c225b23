/* Signals as a descriptor: whoever waits for children also sees that the user wants to stop. */
#ifndef CLIENT_PERF_SIGNALS_H
#define CLIENT_PERF_SIGNALS_H

/* Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD, ignores SIGPIPE. Return: a descriptor, or -errno. */
int signals_open(void);

/* Reads what has arrived: the number of a signal that asks to stop, or 0 (only children changed).
 */
int signals_take(int fd);

/* In a child: every signal does again what it does in a fresh process. */
void signals_restore(void);

#endif
