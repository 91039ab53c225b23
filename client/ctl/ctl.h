/* rucclctl, all but its main(): what the arguments ask for, printed to files of the caller's. */
#ifndef CLIENT_CTL_CTL_H
#define CLIENT_CTL_CTL_H

#include <stdio.h>

#define CTL_FAILED 1 /* exit status: no daemon answers, or its answer makes no sense */
#define CTL_USAGE  2 /* exit status: arguments that mean nothing */

/* Return: the exit status, 0 or one of the above, the reason written to `err`. */
int ctl_run(int argc, char **argv, FILE *out, FILE *err);

#endif
