/* The command `attach`: what it takes until the ranks of a node can call their first collective. */
#ifndef CLIENT_PERF_ATTACH_H
#define CLIENT_PERF_ATTACH_H

/* argv[0] is "attach". Return: the exit status. */
int attach_run(int argc, char **argv);

#endif
