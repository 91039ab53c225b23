#include "client/perf/probe_options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "client/perf/bench.h"

static const struct axis axes[AXES] = {
    [AXIS_RANKS] = { "ranks", 2, 64, RANKS_MAX, false },
    [AXIS_COMMUNICATORS] = { "communicators", 1, 256, 65536, false },
    [AXIS_SESSIONS] = { "sessions", 1, 1000, 65536, false },
    [AXIS_CHUNKS] = { "chunks", 1, 4096, 65536, false },
    [AXIS_MEMORY_SESSIONS] = { "memory_sessions", 16, 1000, 65536, true },
    [AXIS_MEMORY_COMMUNICATORS] = { "memory_communicators", 16, 1024, 65536, true },
    /* A connection may leave 4096 unanswered; the next call would wait. */
    [AXIS_MEMORY_OPERATIONS] = { "memory_operations", 16, 2048, 4000, true },
};

const struct axis *axis_get(enum axis_id id)
{
    return &axes[id];
}

enum option_id {
    OPTION_RANKS = 256,
    OPTION_ITERS,
    OPTION_AXES,
    OPTION_MAX_N,
    OPTION_STEP_FACTOR,
    OPTION_JSON,
    OPTION_SOCKET,
    OPTION_HELP,
};

static const struct option attach_options[] = {
    { "ranks", required_argument, NULL, OPTION_RANKS },
    { "iters", required_argument, NULL, OPTION_ITERS },
    { "json", no_argument, NULL, OPTION_JSON },
    { "socket", required_argument, NULL, OPTION_SOCKET },
    { "help", no_argument, NULL, OPTION_HELP },
    { NULL, 0, NULL, 0 },
};

static const struct option scale_options[] = {
    { "axes", required_argument, NULL, OPTION_AXES },
    { "max-n", required_argument, NULL, OPTION_MAX_N },
    { "step-factor", required_argument, NULL, OPTION_STEP_FACTOR },
    { "iters", required_argument, NULL, OPTION_ITERS },
    { "json", no_argument, NULL, OPTION_JSON },
    { "socket", required_argument, NULL, OPTION_SOCKET },
    { "help", no_argument, NULL, OPTION_HELP },
    { NULL, 0, NULL, 0 },
};

/* "ranks,chunks" as bits. */
static int want_axes(const char *s, uint32_t *ret, struct error *e)
{
    uint32_t chosen = 0;

    for (const char *at = s;; at++) {
        size_t len = strcspn(at, ",");
        uint32_t id = 0;

        while (id < AXES && (strlen(axes[id].name) != len || memcmp(axes[id].name, at, len) != 0))
            id++;
        if (id == AXES) {
            error_set(e, ERROR_INVALID_ARGUMENT, "--axes: there is no axis '%.*s'", (int)len, at);
            return -EINVAL;
        }
        chosen |= 1u << id;
        at += len;
        if (!*at)
            break;
    }
    *ret = chosen;
    return 0;
}

static int take_option(int option, const char *arg, struct probe_options *o, struct error *e)
{
    uint64_t nranks;
    int r;

    switch (option) {
    case OPTION_RANKS:
        r = options_want_number(arg, "ranks", 1, RANKS_MAX, &nranks, e);
        if (r == 0)
            o->nranks = (uint32_t)nranks;
        return r;
    case OPTION_ITERS:
        return options_want_number(arg, "iters", 1, OPTIONS_ITERS_MAX, &o->iters, e);
    case OPTION_AXES:
        return want_axes(arg, &o->axes, e);
    case OPTION_MAX_N:
        return options_want_number(arg, "max-n", 1, 65536, &o->max_n, e);
    case OPTION_STEP_FACTOR:
        return options_want_number(arg, "step-factor", 2, 1u << 20, &o->step_factor, e);
    case OPTION_JSON:
        o->json = true;
        return 0;
    case OPTION_SOCKET:
        o->socket = arg;
        return 0;
    case OPTION_HELP:
        options_print_help(stdout);
        return OPTIONS_HELP;
    default:
        assert(!"an option without a case");
        return -EINVAL;
    }
}

int probe_options_parse(int argc, char **argv, struct probe_options *ret, struct error *e)
{
    const bool attach = !strcmp(argv[0], "attach");
    struct probe_options o = {
        .nranks = 8,
        .iters = OPTIONS_AUTO,
        .axes = (1u << AXES) - 1,
        .max_n = UINT64_MAX,
        .step_factor = 4,
    };
    int option, r;

    optind = 0;
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", attach ? attach_options : scale_options, NULL)) !=
           -1) {
        if (option == '?') {
            error_set(e, ERROR_INVALID_ARGUMENT, "%s is no option of %s, or lacks its argument",
                      argv[optind - 1], argv[0]);
            return -EINVAL;
        }
        r = take_option(option, optarg, &o, e);
        if (r != 0)
            return r;
    }
    if (optind < argc) {
        error_set(e, ERROR_INVALID_ARGUMENT, "'%s' belongs to no option", argv[optind]);
        return -EINVAL;
    }
    *ret = o;
    return OPTIONS_RUN;
}

bool probe_take_arguments(int argc, char **argv, struct probe_options *ret, int *ret_status)
{
    struct error e = { 0 };
    int r = probe_options_parse(argc, argv, ret, &e);

    if (r < 0)
        fprintf(stderr, "ruccl-perf: %s\nTry ruccl-perf --help.\n", e.text);
    *ret_status = r < 0 ? BENCH_USAGE : BENCH_GOOD;
    return r == OPTIONS_RUN;
}

uint64_t probe_next_n(const struct probe_options *o, const struct axis *axis, uint64_t n)
{
    const uint64_t asked = o->max_n == UINT64_MAX ? axis->last : MIN(o->max_n, axis->most);
    const uint64_t last = MAX(asked, axis->first);

    if (n == 0)
        return axis->first;
    return n < last ? MIN(n * o->step_factor, last) : 0;
}
