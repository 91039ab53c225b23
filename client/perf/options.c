#include "client/perf/options.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "shared/words.h"

#define DEFAULT_MIN 8u
#define DEFAULT_MAX (UINT64_C(64) << 20)
#define AUTO_ITERS  1000u
#define AUTO_WARMUP 5u
#define LARGE_BYTES (UINT64_C(16) << 20) /* from here on one warm-up call is enough */

static const char help[] =
    "Usage: ruccl-perf COLLECTIVE [OPTION]...\n"
    "       ruccl-perf attach [--ranks N] [--iters N] [--json] [--socket PATH]\n"
    "       ruccl-perf scale [--axes LIST] [--max-n N] [--step-factor N] [--iters N] [--json]\n"
    "                        [--socket PATH]\n"
    "\n"
    "Forks ranks, lets them call a collective over a range of sizes, and prints how long it took.\n"
    "\n"
    "Collectives: all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter,\n"
    "all_to_all, all_to_all_v (uneven rows, also none), sendrecv (a ring), barrier. Roots are rank "
    "0.\n"
    "\n"
    "  --ranks N          processes, 1 to 4096 (4)\n"
    "  --min-bytes S      first size (8); sizes may have " BYTE_UNITS_TEXT "\n"
    "  --max-bytes S      last size (64M)\n"
    "  --step-factor N    from one size to the next (2)\n"
    "  --dtype T          element type, f32, f16, bf16, i64, packed_u8, ... (f32)\n"
    "  --op O             sum, product, min, max, mean, and, or, xor (sum)\n"
    "  --budget S         bytes that tensor messages may take while under way (no limit)\n"
    "  --iters N          timed calls per size (as many as 0.3 s hold, 5 to 1000)\n"
    "  --warmup N         calls before those (5, or 1 from 16M on)\n"
    "  --in-place         one buffer for input and output; not for gather, scatter, all_to_all,\n"
    "                     all_to_all_v, sendrecv, barrier\n"
    "  --memory KIND      shared: ruccl_alloc; plain: malloc, which libruccl has to copy (shared)\n"
    "  --check            fill inputs and compare every element of every call, warm-up included,\n"
    "                     with a reference of ruccl-perf's own; inputs must come out unchanged\n"
    "  --json             one JSON object a line instead of a table\n"
    "  --socket PATH      the daemon to use; otherwise a private one is started for the time of "
    "the\n"
    "                     run: $RUCCLD, or ruccld in the build tree, beside ../sbin, or in PATH\n"
    "  --help             this text\n"
    "\n"
    "Sizes and bandwidths are those of nccl-tests, with R ranks and n elements of W bytes:\n"
    "\n"
    "                                        size      count  busbw / algbw\n"
    "  all_reduce                            n*W       n      2(R-1)/R\n"
    "  broadcast, reduce, sendrecv           n*W       n      1\n"
    "  all_gather, reduce_scatter, gather,\n"
    "  scatter, all_to_all, all_to_all_v     R*n*W     n      (R-1)/R\n"
    "  barrier                               0         0      -\n"
    "\n"
    "A size is rounded down to a whole count. The time of a call is that of its slowest rank; time "
    "is\n"
    "the median over the calls, p99 the time that 99 of 100 calls kept. algbw is size / time in\n"
    "10^9 bytes per second.\n"
    "\n"
    "attach measures connecting, making an id and joining, of all ranks at once (8), and the "
    "first\n"
    "calls after that, N times (20).\n"
    "\n"
    "scale measures a call against n, and what the daemon holds, along\n"
    "\n"
    "  ranks                n processes, 2 to 64\n"
    "  communicators        n of 2 processes, called in turn, 1 to 256\n"
    "  sessions             n idle ones beside 2 ranks, 1 to 1000\n"
    "  chunks               n that a budget cuts 16M into, 1 to 4096\n"
    "  memory_sessions, memory_communicators, memory_operations\n"
    "                       memory of a private daemon, with n of them, 16 to 1000 or more\n"
    "\n"
    "  --axes LIST        some of these, with commas (all)\n"
    "  --max-n N          the last n (each axis' own; its first if that is more)\n"
    "  --step-factor N    from one n to the next (4)\n"
    "  --iters N          calls at each n (500, or 20 of 16M)\n"
    "\n"
    "JSON keys: collective, ranks, bytes, count, dtype and op (null where there is none), "
    "time_us,\n"
    "p99_us, algbw_gbs, busbw_gbs, wrong (null without --check); of attach: measure, part, ranks,\n"
    "iters, median_us, q25_us, q75_us, min_us, max_us; of scale: measure, axis, n, time_us or\n"
    "rss_bytes and pss_bytes, ratio, exponent (null where there is none).\n"
    "\n"
    "Exit status: 0; 1 if an element was wrong or anything failed; 2 for a wrong command line;\n"
    "128 + N when stopped by signal N.\n";

void options_print_help(FILE *f)
{
    fputs(help, f);
}

/* ---------------------------------------------------------------- values */

static int want_size(const char *s, const char *option, uint64_t *ret, struct error *e)
{
    if (number_parse(s, 10, byte_units, ret))
        return 0;
    error_set(e, ERROR_INVALID_ARGUMENT,
              "--%s wants a number of bytes, alone or with " BYTE_UNITS_TEXT ", not '%s'", option,
              s);
    return -EINVAL;
}

int options_want_number(const char *s, const char *option, uint64_t least, uint64_t most,
                        uint64_t *ret, struct error *e)
{
    uint64_t value;

    if (number_parse(s, 10, no_units, &value) && value >= least && value <= most) {
        *ret = value;
        return 0;
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "--%s wants a number from %llu to %llu, not '%s'", option,
              (unsigned long long)least, (unsigned long long)most, s);
    return -EINVAL;
}

static int want_dtype(const char *s, enum dtype_id *ret, struct error *e)
{
    enum dtype_id id = dtype_by_name(s);
    struct text known = { 0 };

    if (id) {
        *ret = id;
        return 0;
    }
    text_add_dtypes(&known);
    error_set(e, ERROR_INVALID_ARGUMENT, "--dtype: there is no element type '%.32s', only %s", s,
              known.s);
    return -EINVAL;
}

static int want_op(const char *s, enum operator_id *ret, struct error *e)
{
    enum operator_id id = operator_by_name(s);
    struct text known = { 0 };

    if (id) {
        *ret = id;
        return 0;
    }
    text_add_operators(&known);
    error_set(e, ERROR_INVALID_ARGUMENT, "--op: there is no operator '%.32s', only %s", s, known.s);
    return -EINVAL;
}

static int want_memory(const char *s, bool *ret_plain, struct error *e)
{
    bool plain = !strcmp(s, "plain");

    if (plain || !strcmp(s, "shared")) {
        *ret_plain = plain;
        return 0;
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "--memory wants shared or plain, not '%s'", s);
    return -EINVAL;
}

/* ---------------------------------------------------------------- the command line */

enum option_id {
    OPTION_RANKS = 256, /* behind every character, which getopt returns for short options */
    OPTION_MIN_BYTES,
    OPTION_MAX_BYTES,
    OPTION_STEP_FACTOR,
    OPTION_DTYPE,
    OPTION_OP,
    OPTION_BUDGET,
    OPTION_ITERS,
    OPTION_WARMUP,
    OPTION_IN_PLACE,
    OPTION_MEMORY,
    OPTION_CHECK,
    OPTION_JSON,
    OPTION_SOCKET,
    OPTION_HELP,
};

static const struct option long_options[] = {
    { "ranks", required_argument, NULL, OPTION_RANKS },
    { "min-bytes", required_argument, NULL, OPTION_MIN_BYTES },
    { "max-bytes", required_argument, NULL, OPTION_MAX_BYTES },
    { "step-factor", required_argument, NULL, OPTION_STEP_FACTOR },
    { "dtype", required_argument, NULL, OPTION_DTYPE },
    { "op", required_argument, NULL, OPTION_OP },
    { "budget", required_argument, NULL, OPTION_BUDGET },
    { "iters", required_argument, NULL, OPTION_ITERS },
    { "warmup", required_argument, NULL, OPTION_WARMUP },
    { "in-place", no_argument, NULL, OPTION_IN_PLACE },
    { "memory", required_argument, NULL, OPTION_MEMORY },
    { "check", no_argument, NULL, OPTION_CHECK },
    { "json", no_argument, NULL, OPTION_JSON },
    { "socket", required_argument, NULL, OPTION_SOCKET },
    { "help", no_argument, NULL, OPTION_HELP },
    { NULL, 0, NULL, 0 },
};

/* One option and its argument. */
static int take_option(int option, const char *arg, struct options *o, struct error *e)
{
    uint64_t nranks;
    int r;

    switch (option) {
    case OPTION_RANKS:
        r = options_want_number(arg, "ranks", 1, RANKS_MAX, &nranks, e);
        if (r == 0)
            o->nranks = (uint32_t)nranks;
        return r;
    case OPTION_MIN_BYTES:
        return want_size(arg, "min-bytes", &o->min_bytes, e);
    case OPTION_MAX_BYTES:
        return want_size(arg, "max-bytes", &o->max_bytes, e);
    case OPTION_STEP_FACTOR:
        return options_want_number(arg, "step-factor", 2, 1u << 20, &o->step_factor, e);
    case OPTION_DTYPE:
        return want_dtype(arg, &o->dtype, e);
    case OPTION_OP:
        return want_op(arg, &o->op, e);
    case OPTION_BUDGET:
        return want_size(arg, "budget", &o->budget, e);
    case OPTION_ITERS:
        return options_want_number(arg, "iters", 1, OPTIONS_ITERS_MAX, &o->iters, e);
    case OPTION_WARMUP:
        return options_want_number(arg, "warmup", 0, OPTIONS_ITERS_MAX, &o->warmup, e);
    case OPTION_IN_PLACE:
        o->in_place = true;
        return 0;
    case OPTION_MEMORY:
        return want_memory(arg, &o->plain, e);
    case OPTION_CHECK:
        o->check = true;
        return 0;
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

/* The size of one element a block. */
static uint64_t least_bytes(const struct options *o)
{
    return workload_bytes(o->workload, 1, dtype_get(o->dtype)->width, o->nranks);
}

/* What only the whole command line tells; fills in what depends on other options. */
static int complete(struct options *o, struct error *e)
{
    const struct workload *w = o->workload;

    if (o->min_bytes == OPTIONS_AUTO)
        o->min_bytes = MIN(DEFAULT_MIN, o->max_bytes);
    if (o->max_bytes == OPTIONS_AUTO)
        o->max_bytes = MAX(DEFAULT_MAX, o->min_bytes);
    if (o->min_bytes > o->max_bytes) {
        error_set(e, ERROR_INVALID_ARGUMENT, "--min-bytes is above --max-bytes");
        return -EINVAL;
    }

    /* Sizes that round down to nothing are for those who ask for zero. */
    if (o->min_bytes && o->max_bytes < least_bytes(o)) {
        error_set(e, ERROR_INVALID_ARGUMENT,
                  "--max-bytes %llu is less than the least size of %s, %llu bytes: one %s a block",
                  (unsigned long long)o->max_bytes, w->name, (unsigned long long)least_bytes(o),
                  dtype_get(o->dtype)->name);
        return -EINVAL;
    }
    if (o->min_bytes)
        o->min_bytes = MAX(o->min_bytes, least_bytes(o));

    if (o->in_place && w->in_place == IN_PLACE_NONE) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s has no in-place form", w->name);
        return -EINVAL;
    }

    if (o->op && !workload_has_op(w)) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s takes no --op", w->name);
        return -EINVAL;
    }
    if (!o->op && workload_has_op(w))
        o->op = OPERATOR_SUM;

    const struct descriptor d = {
        .kind = w->kind,
        .op = o->op,
        .dtype = o->dtype,
        .nranks = o->nranks,
        .shape = { .naxes = workload_has_data(w) }, /* of zero elements: fits every collective */
        .budget = o->budget,
    };

    return descriptor_check(&d, e) < 0 ? -EINVAL : 0;
}

int options_parse(int argc, char **argv, struct options *ret, struct error *e)
{
    struct options o = {
        .workload = workload_by_name(argv[0]),
        .nranks = 4,
        .min_bytes = OPTIONS_AUTO,
        .max_bytes = OPTIONS_AUTO,
        .step_factor = 2,
        .dtype = DTYPE_F32,
        .budget = BUDGET_NONE,
        .iters = OPTIONS_AUTO,
        .warmup = OPTIONS_AUTO,
    };
    int option, r;

    if (!o.workload) {
        error_set(e, ERROR_INVALID_ARGUMENT, "there is no collective '%s'", argv[0]);
        return -EINVAL;
    }

    optind = 0; /* a fresh start: tests parse more than one command line */
    opterr = 0;
    while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1) {
        if (option == '?') {
            error_set(e, ERROR_INVALID_ARGUMENT, "%s is no option, or lacks its argument",
                      argv[optind - 1]);
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

    r = complete(&o, e);
    if (r < 0)
        return r;
    *ret = o;
    return OPTIONS_RUN;
}

/* ---------------------------------------------------------------- what follows from it */

bool options_next_bytes(const struct options *o, uint64_t *bytes)
{
    uint64_t next;

    if (!workload_has_data(o->workload))
        return false;
    if (*bytes == 0) /* no factor leads away from zero */
        next = least_bytes(o);
    else if (!mul_u64(*bytes, o->step_factor, &next))
        return false;
    if (next > o->max_bytes)
        return false;
    *bytes = next;
    return true;
}

uint64_t options_warmup(const struct options *o, uint64_t bytes)
{
    if (o->warmup != OPTIONS_AUTO)
        return o->warmup;
    return bytes < LARGE_BYTES ? AUTO_WARMUP : 1;
}

uint64_t options_iters_max(const struct options *o)
{
    return o->iters != OPTIONS_AUTO ? o->iters : AUTO_ITERS;
}
