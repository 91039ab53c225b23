/*
 * The environment that the daemon runs in, before there is a daemon. UCX reads some of its
 * variables before main(), and all that anybody has set whatever we tell it later; left to itself
 * it also puts itself between the process and its memory, and its signals.
 */
#ifndef DAEMON_ENVIRONMENT_H
#define DAEMON_ENVIRONMENT_H

/*
 * Sees that exactly the daemon's own UCX_* variables are set. Where they are not, the program is
 * executed again, once, with the same arguments, name and open descriptors, and this does not
 * return. First thing in main().
 *
 * Return: 0, or -errno: they are not and could not be made so.
 */
int environment_settle(char **argv);

#endif
