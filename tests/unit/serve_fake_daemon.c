/* The scripted daemon as a program, for tests that are not in C: prints its socket, serves one
 * client, and ends with its standard input. */
#include "tests/unit/fake_daemon.h"

#include <stdio.h>

int main(void)
{
    struct fake_daemon *daemon = fake_start((struct behaviour){ 0 });

    puts(daemon->path);
    fflush(stdout);
    while (getchar() != EOF)
        ;
    fake_stop(daemon);
    return 0;
}
