/* The command line of a measurement. */
#ifndef CLIENT_PERF_OPTIONS_H
#define CLIENT_PERF_OPTIONS_H

#include <stdio.h>

#include "client/perf/workload.h"

#define OPTIONS_AUTO      UINT64_MAX
#define OPTIONS_ITERS_MAX 100000u

struct options {
    const struct workload *workload;
    uint32_t nranks;
    uint64_t min_bytes, max_bytes, step_factor;
    enum dtype_id dtype;
    enum operator_id op; /* OPERATOR_NONE for a collective that moves */
    uint64_t budget;     /* bytes, or BUDGET_NONE */
    uint64_t iters;      /* timed calls per size, or OPTIONS_AUTO */
    uint64_t warmup;     /* calls before those, or OPTIONS_AUTO */
    bool in_place;
    bool plain; /* malloc memory, which libruccl stages, instead of shared */
    bool check;
    bool json;
    const char *socket; /* NULL: a private daemon */
};

enum options_outcome {
    OPTIONS_RUN = 0,
    OPTIONS_HELP = 1, /* help was asked for and printed to stdout */
};

/*
 * argv[0] is the collective's name. Return: an outcome, or -EINVAL with the reason in `e`.
 * ret->socket points into argv.
 */
int options_parse(int argc, char **argv, struct options *ret, struct error *e);

/* The number that is --`option`'s argument. Return: 0, or -EINVAL with the reason in `e`. */
int options_want_number(const char *s, const char *option, uint64_t least, uint64_t most,
                        uint64_t *ret, struct error *e);

void options_print_help(FILE *f);

/* The size after `bytes`; false when there is none. */
bool options_next_bytes(const struct options *o, uint64_t *bytes);

/* Warm-up calls at a size. */
uint64_t options_warmup(const struct options *o, uint64_t bytes);

/* The most timed calls that a size can get. */
uint64_t options_iters_max(const struct options *o);

#endif
