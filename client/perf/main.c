/* ruccl-perf: measures and checks collectives against a running ruccld. */
#include <stdio.h>
#include <string.h>

#include "client/perf/attach.h"
#include "client/perf/bench.h"
#include "client/perf/options.h"
#include "client/perf/scale.h"

/* argv[0] is the command's name; the result is the exit status. */
static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    { "all_reduce", bench_run }, { "all_gather", bench_run }, { "reduce_scatter", bench_run },
    { "broadcast", bench_run },  { "reduce", bench_run },     { "gather", bench_run },
    { "scatter", bench_run },    { "all_to_all", bench_run }, { "all_to_all_v", bench_run },
    { "sendrecv", bench_run },   { "barrier", bench_run },    { "attach", attach_run },
    { "scale", scale_run },
};

int main(int argc, char **argv)
{
    if (argc < 2) {
        options_print_help(stderr);
        return BENCH_USAGE;
    }
    if (!strcmp(argv[1], "--help")) {
        options_print_help(stdout);
        return BENCH_GOOD;
    }
    for (size_t i = 0; i < ARRAY_SIZE(commands); i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);

    fprintf(stderr, "ruccl-perf: there is no command '%s'\nTry ruccl-perf --help.\n", argv[1]);
    return BENCH_USAGE;
}
