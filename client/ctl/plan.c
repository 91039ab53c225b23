#include "client/ctl/plan.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/chunk.h"
#include "daemon/plan/exchange.h"
#include "daemon/plan/placement.h"

#define CHUNK_BYTES (4ull << 20) /* as the daemon's chunk_bytes, where there is no budget */

/* ---- arguments */

enum {
    OPTION_COLLECTIVE,
    OPTION_NODES,
    OPTION_RANKS,
    OPTION_BYTES,
    OPTION_DTYPE,
    OPTION_OP,
    OPTION_BUDGET,
    OPTION_ALGORITHM,
    OPTION_NODE,
    OPTION_LATENCY,
    OPTION_MESSAGE,
    OPTION_LINK,
    OPTION_MEMORY,
    OPTION_JSON,
};

static const struct option options[] = {
    { "collective", required_argument, NULL, OPTION_COLLECTIVE },
    { "nodes", required_argument, NULL, OPTION_NODES },
    { "ranks-per-node", required_argument, NULL, OPTION_RANKS },
    { "bytes", required_argument, NULL, OPTION_BYTES },
    { "dtype", required_argument, NULL, OPTION_DTYPE },
    { "op", required_argument, NULL, OPTION_OP },
    { "budget", required_argument, NULL, OPTION_BUDGET },
    { "algorithm", required_argument, NULL, OPTION_ALGORITHM },
    { "node", required_argument, NULL, OPTION_NODE },
    { "latency-us", required_argument, NULL, OPTION_LATENCY },
    { "message-us", required_argument, NULL, OPTION_MESSAGE },
    { "bandwidth-gbs", required_argument, NULL, OPTION_LINK },
    { "memory-gbs", required_argument, NULL, OPTION_MEMORY },
    { "json", no_argument, NULL, OPTION_JSON },
    { 0 },
};

static bool parse_u64(const char *s, uint64_t *ret)
{
    char *end;

    errno = 0;
    *ret = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno;
}

static bool parse_u32(const char *s, uint32_t *ret)
{
    uint64_t v;
    bool fits = parse_u64(s, &v) && v <= UINT32_MAX;

    if (fits)
        *ret = (uint32_t)v;
    return fits;
}

/* A decimal number above zero, `unit` times as much. */
static bool parse_positive(const char *s, double unit, double *ret)
{
    char *end;

    *ret = strtod(s, &end) * unit;
    return end != s && !*end && isfinite(*ret) && *ret > 0;
}

static bool take_value(struct plan_options *o, int option, const char *value)
{
    switch (option) {
    case OPTION_COLLECTIVE:
        o->kind = collective_by_name(value);
        return o->kind != COLLECTIVE_NONE;
    case OPTION_DTYPE:
        o->dtype = dtype_by_name(value);
        return o->dtype != DTYPE_NONE;
    case OPTION_OP:
        o->op = operator_by_name(value);
        return o->op != OPERATOR_NONE;
    case OPTION_NODES:
        return parse_u32(value, &o->nnodes) && o->nnodes > 0;
    case OPTION_RANKS:
        return parse_u32(value, &o->ranks) && o->ranks > 0;
    case OPTION_NODE:
        return parse_u32(value, &o->node);
    case OPTION_BYTES:
        return parse_u64(value, &o->bytes);
    case OPTION_BUDGET:
        return parse_u64(value, &o->budget);
    case OPTION_LATENCY:
        return parse_positive(value, 1, &o->machine.latency_us);
    case OPTION_MESSAGE:
        return parse_positive(value, 1, &o->machine.message_us);
    case OPTION_LINK:
        return parse_positive(value, 1e3, &o->machine.link_bytes_per_us);
    case OPTION_MEMORY:
        return parse_positive(value, 1e3, &o->machine.memory_bytes_per_us);
    case OPTION_ALGORITHM:
        o->algorithm = value;
        return algorithm_name_known(value) && strcmp(value, "auto");
    default:
        o->json = true;
        return true;
    }
}

static int check_whole(const struct plan_options *o, struct error *e)
{
    if (o->kind == COLLECTIVE_NONE)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: --collective is missing");
    if (collective_get(o->kind)->shape == SHAPE_NONE ||
        collective_get(o->kind)->flags & COLLECTIVE_PAIR)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: %s has no algorithm to choose",
                         collective_get(o->kind)->name);
    if ((uint64_t)o->nnodes * o->ranks > RANKS_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: %u nodes of %u ranks are more than %u",
                         o->nnodes, o->ranks, RANKS_MAX);
    if (o->node >= o->nnodes)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: node %u is not below %u", o->node,
                         o->nnodes);
    return 0;
}

int plan_parse(int argc, char **argv, struct plan_options *ret, struct error *e)
{
    int option;

    *ret = (struct plan_options){ .dtype = DTYPE_F32,
                                  .op = OPERATOR_SUM,
                                  .nnodes = 2,
                                  .ranks = 1,
                                  .bytes = 1 << 20,
                                  .budget = BUDGET_NONE,
                                  .machine = machine_default };
    opterr = 0;
    optind = 0;
    while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == ':')
            return error_set(e, ERROR_INVALID_ARGUMENT, "a value is missing behind %s",
                             argv[optind - 1]);
        if (option == '?')
            return error_set(e, ERROR_INVALID_ARGUMENT, "unknown argument %s", argv[optind - 1]);
        if (!take_value(ret, option, optarg))
            return error_set(e, ERROR_INVALID_ARGUMENT, "plan: \"%.32s\" is no value of --%s",
                             optarg, options[option].name);
    }
    if (optind < argc)
        return error_set(e, ERROR_INVALID_ARGUMENT, "unknown argument %s", argv[optind]);
    return check_whole(ret, e);
}

/* ---- the operation, and its price by every row */

static struct descriptor descriptor_of(const struct plan_options *o)
{
    const uint64_t n = o->bytes / dtype_get(o->dtype)->width;
    const uint32_t nranks = o->nnodes * o->ranks;
    uint64_t whole = UINT64_MAX; /* which descriptor_check() finds too large */
    const bool blocks =
        o->kind == COLLECTIVE_REDUCE_SCATTER || collective_get(o->kind)->shape == SHAPE_EXCHANGE;

    mul_u64(n, nranks, &whole);
    return (struct descriptor){ .kind = o->kind,
                                .op = o->op,
                                .dtype = o->dtype,
                                .shape = { 1, { blocks ? whole : n } },
                                .budget = o->budget,
                                .nranks = nranks };
}

static int make_job(const struct plan_options *o, const struct descriptor *d, struct job *ret,
                    struct error *e)
{
    const uint32_t width = dtype_get(o->dtype)->width;
    const uint64_t n = o->bytes / width;
    const bool sums = collective_get(o->kind)->flags & COLLECTIVE_HAS_OP;
    struct chunking c;
    int r;

    r = descriptor_check(d, e);
    if (r < 0)
        return r;
    r = chunk_plan(d, n, CHUNK_BYTES, &c, e);
    if (r < 0)
        return r;
    *ret = (struct job){ .load = { .kind = o->kind,
                                   .nnodes = o->nnodes,
                                   .ranks = o->ranks,
                                   .count = n,
                                   .wide = sums ? price_wide(o->op, o->dtype) : 1 },
                         .width = width,
                         .length = MIN(c.length, n),
                         .budget = o->budget == BUDGET_NONE ? UINT64_MAX : o->budget / width };
    return 0;
}

static bool row_wanted(const struct plan_options *o, const struct plan_row *row)
{
    return row->priced && (!o->algorithm || !strcmp(o->algorithm, row->algorithm->name));
}

static int price_rows(const struct descriptor *d, struct plan_report *r, struct error *e)
{
    const struct plan_options *o = &r->options;

    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE; a++) {
        struct plan_row *row = &r->rows[r->nrows];

        if (a->kind != o->kind || r->nrows == PLAN_ROWS_MAX)
            continue;
        row->algorithm = a;
        row->fits = a->fits(d, o->nnodes);
        row->priced = row->fits && price_job(a, &r->job, &o->machine, &row->price);
        r->nrows++;
        if (row_wanted(o, row) && (!r->shown || row->price.us < r->shown->price.us))
            r->shown = row;
    }
    if (o->algorithm && !r->shown && r->job.length)
        return error_set(e, ERROR_UNSUPPORTED_ALGORITHM,
                         "plan: %s does not fit this %s on %u node%s, or its budget", o->algorithm,
                         collective_get(o->kind)->name, o->nnodes, o->nnodes == 1 ? "" : "s");
    return 0;
}

/* ---- the steps of one piece */

/* So many rows from everyone to everyone. */
static int equal_exchange(uint32_t nranks, uint64_t rows, struct exchange **ret)
{
    uint64_t *counts = calloc(nranks, sizeof(*counts));
    const uint64_t **all = calloc(nranks, sizeof(*all));
    int r = counts && all ? 0 : -ENOMEM;

    for (uint32_t i = 0; i < nranks && r == 0; i++) {
        counts[i] = rows;
        all[i] = counts;
    }
    if (r == 0)
        r = exchange_new(nranks, all, ret);
    free(counts);
    free(all);
    return r;
}

static int emit_steps(struct plan_report *r)
{
    const struct plan_options *o = &r->options;
    const uint64_t length = r->shown->price.length;
    _cleanup_(placement_freep) struct placement *nodes = NULL;
    _cleanup_(exchange_freep) struct exchange *x = NULL;
    int result = placement_new_even(o->nnodes, o->ranks, &nodes);

    if (result == 0 && collective_get(o->kind)->shape == SHAPE_EXCHANGE)
        result = equal_exchange(nodes->nranks, r->job.load.count, &x);
    if (result < 0)
        return result;
    return r->shown->algorithm->emit(&r->steps, &(struct plan_args){
                                                    .kind = o->kind,
                                                    .nranks = nodes->nranks,
                                                    .stride = r->job.load.count,
                                                    .count = length,
                                                    .nodes = nodes,
                                                    .node = o->node,
                                                    .exchange = x,
                                                    .rows = length,
                                                    .row_elements = 1,
                                                });
}

int plan_report(const struct plan_options *o, struct plan_report *ret, struct error *e)
{
    const struct descriptor d = descriptor_of(o);
    int r;

    *ret = (struct plan_report){ .options = *o };
    plan_init(&ret->steps, o->ranks);
    r = make_job(o, &d, &ret->job, e);
    if (r == 0)
        r = price_rows(&d, ret, e);
    if (r == 0 && ret->shown && emit_steps(ret) < 0)
        r = error_set(e, ERROR_NO_MEMORY, "plan: no memory for the steps");
    return r;
}

void plan_report_fini(struct plan_report *r)
{
    plan_fini(&r->steps);
}
