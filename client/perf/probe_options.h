/* The command lines of attach and scale. */
#ifndef CLIENT_PERF_PROBE_OPTIONS_H
#define CLIENT_PERF_PROBE_OPTIONS_H

#include "client/perf/options.h"

/* What scale varies. */
enum axis_id {
    AXIS_RANKS,
    AXIS_COMMUNICATORS,
    AXIS_SESSIONS,
    AXIS_CHUNKS,
    AXIS_MEMORY_SESSIONS,
    AXIS_MEMORY_COMMUNICATORS,
    AXIS_MEMORY_OPERATIONS,
    AXES,
};

struct axis {
    const char *name;
    uint64_t first, last; /* n, where the command line says nothing else */
    uint64_t most;        /* n, whatever it says */
    bool memory;          /* measures what the daemon holds, not how long a call takes */
};

const struct axis *axis_get(enum axis_id id);

struct probe_options {
    uint32_t nranks;      /* attach */
    uint64_t iters;       /* attach: attachments; scale: calls at each n; or OPTIONS_AUTO */
    uint32_t axes;        /* scale: a bit for each */
    uint64_t max_n;       /* scale; UINT64_MAX: each axis' own last */
    uint64_t step_factor; /* scale: from one n to the next */
    bool json;
    const char *socket; /* NULL: a private daemon */
};

/* As options_parse(); argv[0] is "attach" or "scale". */
int probe_options_parse(int argc, char **argv, struct probe_options *ret, struct error *e);

/* The same for a command: false if it is to end at once, with *ret_status; says why on stderr. */
bool probe_take_arguments(int argc, char **argv, struct probe_options *ret, int *ret_status);

/* The n behind `n`, the last one included; 0 if there is none. From 0: the first. */
uint64_t probe_next_n(const struct probe_options *o, const struct axis *axis, uint64_t n);

#endif
