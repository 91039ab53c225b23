/* The command `scale`: what a call costs, and the daemon holds, when there is more of everything.
 */
#ifndef CLIENT_PERF_SCALE_H
#define CLIENT_PERF_SCALE_H

/* argv[0] is "scale". Return: the exit status. */
int scale_run(int argc, char **argv);

#endif
