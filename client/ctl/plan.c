#include "client/ctl/plan.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/exchange.h"
#include "daemon/tuning.h"
#include "shared/words.h"

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
    OPTION_TUNING,
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
    { "tuning", required_argument, NULL, OPTION_TUNING },
    { "json", no_argument, NULL, OPTION_JSON },
    { 0 },
};

static bool parse_u32(const char *s, uint32_t *ret)
{
    uint64_t v;
    bool fits = number_parse(s, 10, no_units, &v) && v <= UINT32_MAX;

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

/* Nothing to choose an algorithm for: no tensors, or a pair. */
static bool without_algorithms(enum collective_id kind)
{
    return collective_get(kind)->shape == SHAPE_NONE ||
           collective_get(kind)->flags & COLLECTIVE_PAIR;
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
        return number_parse(value, 10, byte_units, &o->bytes);
    case OPTION_BUDGET:
        return number_parse(value, 10, byte_units, &o->budget);
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
    case OPTION_TUNING:
        o->tuning = value;
        return true;
    default:
        o->json = true;
        return true;
    }
}

/* What take_value() takes. */
static void add_allowed(int option, struct text *t)
{
    switch (option) {
    case OPTION_COLLECTIVE:
        for (uint32_t kind = 1; kind < COLLECTIVE_END; kind++)
            if (!without_algorithms((enum collective_id)kind))
                text_add_item(t, collective_get(kind)->name);
        break;
    case OPTION_DTYPE:
        text_add_dtypes(t);
        break;
    case OPTION_OP:
        text_add_operators(t);
        break;
    case OPTION_ALGORITHM:
        text_add_algorithms(t);
        break;
    case OPTION_NODES:
    case OPTION_RANKS:
    case OPTION_NODE:
        text_add(t, "whole numbers from %u on", option == OPTION_NODE ? 0 : 1);
        break;
    case OPTION_BYTES:
    case OPTION_BUDGET:
        text_add(t, "bytes, alone or with " BYTE_UNITS_TEXT);
        break;
    default:
        text_add(t, "numbers above 0");
        break;
    }
}

static int refuse_value(int option, const char *value, struct error *e)
{
    struct text allowed = { 0 };

    add_allowed(option, &allowed);
    return error_set(e, ERROR_INVALID_ARGUMENT,
                     "plan: \"%.32s\" is no value of --%s, which takes %s", value,
                     options[option].name, allowed.s);
}

static int check_whole(const struct plan_options *o, struct error *e)
{
    if (o->kind == COLLECTIVE_NONE)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: --collective is missing");
    if (without_algorithms(o->kind))
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: %s has no algorithm to choose",
                         collective_get(o->kind)->name);
    if ((uint64_t)o->nnodes * o->ranks > RANKS_MAX)
        return error_set(e, ERROR_INVALID_ARGUMENT, "plan: %u nodes of %u ranks are more than %u",
                         o->nnodes, o->ranks, RANKS_MAX);
    if (o->bytes > 0 && o->bytes < dtype_get(o->dtype)->width)
        return error_set(e, ERROR_INVALID_ARGUMENT,
                         "plan: --bytes %" PRIu64 " is less than one element of %s, %u bytes",
                         o->bytes, dtype_get(o->dtype)->name, dtype_get(o->dtype)->width);
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
                                  .budget = BUDGET_NONE };
    opterr = 0;
    optind = 0;
    while ((option = getopt_long(argc, argv, ":", options, NULL)) != -1) {
        if (option == ':')
            return error_set(e, ERROR_INVALID_ARGUMENT, "a value is missing behind %s",
                             argv[optind - 1]);
        if (option == '?')
            return error_set(e, ERROR_INVALID_ARGUMENT, "unknown argument %s", argv[optind - 1]);
        if (!take_value(ret, option, optarg))
            return refuse_value(option, optarg, e);
    }
    if (optind < argc)
        return error_set(e, ERROR_INVALID_ARGUMENT, "unknown argument %s", argv[optind]);
    return check_whole(ret, e);
}

/* ---- the operation, and its price by every row */

static double said_or(double said, double otherwise)
{
    return said > 0 ? said : otherwise;
}

/* What was said lies above the tuning file, and that above the defaults. */
static int make_table(const struct plan_options *o, struct table *ret, struct error *e)
{
    const struct machine *said = &o->machine;
    struct machine *m = &ret->machine;
    int r = 0;

    table_init(ret, CHUNK_BYTES);
    if (o->tuning)
        r = tuning_read(o->tuning, ret, e);
    if (r < 0)
        return r;
    m->latency_us = said_or(said->latency_us, m->latency_us);
    m->message_us = said_or(said->message_us, m->message_us);
    m->link_bytes_per_us = said_or(said->link_bytes_per_us, m->link_bytes_per_us);
    m->memory_bytes_per_us = said_or(said->memory_bytes_per_us, m->memory_bytes_per_us);
    return 0;
}

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

/* Prices all rows, and finds the one that the daemons would choose. */
static int price_rows(const struct choice_spec *spec, const struct frame *f, struct plan_report *r,
                      struct error *e)
{
    struct choice choice;
    int result = choice_make(spec, f, &choice, e);

    if (result == 0)
        result = choice_job(spec, f, &r->job, e);
    for (const struct algorithm *a = algorithms; a->kind != COLLECTIVE_NONE && result == 0; a++) {
        struct plan_row *row = &r->rows[r->nrows];

        if (a->kind != spec->d->kind || r->nrows == PLAN_ROWS_MAX)
            continue;
        *row = (struct plan_row){ .algorithm = a, .fits = a->fits(spec->d, f->nodes->nnodes) };
        row->priced = row->fits && price_job(a, &r->job, &f->table->machine, &row->price) == 0;
        r->nrows++;
        if (row->priced && a == choice.algorithm)
            r->shown = row;
    }
    return result;
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

static int emit_steps(struct plan_report *r, const struct placement *nodes)
{
    const struct plan_options *o = &r->options;
    const uint64_t length = r->shown->price.length;
    _cleanup_(exchange_freep) struct exchange *x = NULL;
    int result = 0;

    if (collective_get(o->kind)->shape == SHAPE_EXCHANGE)
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
    const struct choice_spec spec = { .d = &d, .rows_max = o->bytes / dtype_get(o->dtype)->width };
    _cleanup_(placement_freep) struct placement *nodes = NULL;
    int r;

    *ret = (struct plan_report){ .options = *o };
    plan_init(&ret->steps, o->ranks);
    r = make_table(o, &ret->table, e);
    if (r == 0)
        r = descriptor_check(&d, e);
    if (r == 0 && placement_new_even(o->nnodes, o->ranks, &nodes) < 0)
        r = error_set(e, ERROR_NO_MEMORY, "plan: no memory for the nodes");
    if (r == 0)
        r = price_rows(&spec, &(struct frame){ &ret->table, nodes, o->node, o->algorithm }, ret, e);
    if (r == 0 && ret->shown && emit_steps(ret, nodes) < 0)
        r = error_set(e, ERROR_NO_MEMORY, "plan: no memory for the steps");
    return r;
}

void plan_report_fini(struct plan_report *r)
{
    plan_fini(&r->steps);
}
