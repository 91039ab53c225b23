#include <inttypes.h>
#include <jansson.h>

#include "client/ctl/plan.h"
#include "client/ctl/print.h"
#include "client/ctl/columns.h"

static const char *const kinds[] = { "copy", "reduce", "send", "recv" };
static const char *const buffers[] = { "in", "out", "scratch", "partial" };

/* ---- for people */

static const char *text_us(char buffer[UNITS_BYTES], double us)
{
    if (us < 1e3)
        snprintf(buffer, UNITS_BYTES, "%.1f us", us);
    else if (us < 1e6)
        snprintf(buffer, UNITS_BYTES, "%.2f ms", us / 1e3);
    else
        snprintf(buffer, UNITS_BYTES, "%.2f s", us / 1e6);
    return buffer;
}

static void print_question(const struct plan_report *r, FILE *out)
{
    const struct plan_options *o = &r->options;
    const bool sums = collective_get(o->kind)->flags & COLLECTIVE_HAS_OP;
    char a[UNITS_BYTES], b[UNITS_BYTES];

    fprintf(out, "%s%s%s of %s %s, %u node%s of %u rank%s\n", collective_get(o->kind)->name,
            sums ? " " : "", sums ? operator_name(o->op) : "", text_bytes(a, o->bytes),
            dtype_get(o->dtype)->name, o->nnodes, o->nnodes == 1 ? "" : "s", o->ranks,
            o->ranks == 1 ? "" : "s");
    fprintf(
        out,
        "a message's latency %g us, its posting %g us; a node's link %g GB/s, its memory %g GB/s\n",
        r->table.machine.latency_us, r->table.machine.message_us,
        r->table.machine.link_bytes_per_us / 1e3, r->table.machine.memory_bytes_per_us / 1e3);
    fprintf(out, "no less than %s for latency, %s for bandwidth\n\n",
            text_us(a, price_bound_latency(&r->job, &r->table.machine)),
            text_us(b, price_bound_link(&r->job, &r->table.machine)));
}

static void add_price(struct columns *t, const struct plan_report *r, const struct price *p)
{
    const double width = r->job.width;
    char s[UNITS_BYTES];

    columns_add(t, "%s", text_bytes(s, p->length * r->job.width));
    columns_add(t, "%" PRIu64, p->pieces);
    columns_add(t, "%u", p->depth);
    columns_add(t, "%.0f", p->cost.messages);
    columns_add(t, "%s", text_bytes(s, (uint64_t)(p->cost.sent * width)));
    columns_add(t, "%s", text_bytes(s, (uint64_t)(p->cost.touched * width)));
    columns_add(t, "%s", text_bytes(s, p->cost.peak * r->job.width));
    columns_add(t, "%s", text_us(s, p->us));
}

static void print_prices(const struct plan_report *r, FILE *out)
{
    _cleanup_(columns_fini) struct columns t;

    columns_init(&t, "lrrrrrrrr");
    columns_add_row(&t, "ALGORITHM", "PIECE", "PIECES", "DEPTH", "MESSAGES", "SENT", "TOUCHED",
                    "PEAK", "TIME");
    for (uint32_t i = 0; i < r->nrows; i++) {
        const struct plan_row *row = &r->rows[i];

        columns_add(&t, "%s", row->algorithm->name);
        if (row->priced)
            add_price(&t, r, &row->price);
        else
            columns_add_row(&t, "", "", "", "", "", "", "",
                            row->fits ? "above the budget" : "does not fit");
    }
    columns_print(&t, "", out);
}

static void print_span(const struct plan_report *r, const struct span *s, FILE *out)
{
    fprintf(out, " %s", buffers[s->buffer]);
    if (span_is_tensor(s) && s->rank == SPAN_EACH)
        fprintf(out, " of %s", r->options.ranks == 1 ? "the rank" : "each rank");
    else if (span_is_tensor(s))
        fprintf(out, " of rank %u", s->rank);
    fprintf(out, " [%" PRIu64 ", %" PRIu64 ")", s->offset, s->offset + s->count);
}

static void print_step(const struct plan_report *r, uint32_t i, FILE *out)
{
    const struct step *s = &r->steps.steps[i];
    const struct span *spans = &r->steps.spans[s->first_span];

    fprintf(out, "%5u  channel %u: ", i, s->channel);
    if (s->after == STEP_ALL)
        fputs("after all, ", out);
    else if (s->after != STEP_NONE)
        fprintf(out, "after %u, ", s->after);
    fputs(kinds[s->kind], out);
    if (step_is_message(s))
        fprintf(out, " %s node %u, tag %u:", s->kind == STEP_SEND ? "to" : "from", s->peer, s->tag);
    for (uint32_t k = 0; k < s->nsrc + s->ndst; k++) {
        if (k == s->nsrc && s->nsrc)
            fputs(" ->", out);
        else if (k)
            fputs(",", out);
        print_span(r, &spans[k], out);
    }
    fputc('\n', out);
}

void plan_print_text(const struct plan_report *r, FILE *out)
{
    print_question(r, out);
    if (!r->job.length) {
        fputs("there is nothing to move\n", out);
        return;
    }
    print_prices(r, out);
    if (!r->shown)
        return;
    fprintf(out,
            "\n%s, one piece on node %u: %" PRIu64 " elements and %" PRIu64
            " partial sums staged\n",
            r->shown->algorithm->name, r->options.node, r->steps.scratch, r->steps.partials);
    for (uint32_t i = 0; i < r->steps.nsteps; i++)
        print_step(r, i, out);
}

/* ---- for programs */

static json_t *json_u64(uint64_t v)
{
    return v <= INT64_MAX ? json_integer((json_int_t)v) : json_real((double)v);
}

/* An array with one more; NULL, and nothing left of either, where one is missing. */
static json_t *with(json_t *all, json_t *item)
{
    if (json_array_append_new(all, item) == 0)
        return all;
    json_decref(all);
    return NULL;
}

static json_t *json_spans(const struct span *spans, uint32_t n)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < n; i++) {
        const bool one = span_is_tensor(&spans[i]) && spans[i].rank != SPAN_EACH;

        all = with(all, json_pack("{s:s, s:o, s:o, s:o}", "buffer", buffers[spans[i].buffer],
                                  "rank", one ? json_u64(spans[i].rank) : json_null(), "offset",
                                  json_u64(spans[i].offset), "count", json_u64(spans[i].count)));
    }
    return all;
}

static json_t *json_after(const struct step *s)
{
    if (s->after == STEP_ALL)
        return json_string("all");
    return s->after == STEP_NONE ? json_null() : json_u64(s->after);
}

static json_t *json_steps(const struct plan *p)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < p->nsteps; i++) {
        const struct step *s = &p->steps[i];
        const struct span *spans = &p->spans[s->first_span];

        all = with(all, json_pack("{s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "kind", kinds[s->kind],
                                  "channel", json_u64(s->channel), "after", json_after(s), "peer",
                                  step_is_message(s) ? json_u64(s->peer) : json_null(), "tag",
                                  step_is_message(s) ? json_u64(s->tag) : json_null(), "sources",
                                  json_spans(spans, s->nsrc), "destinations",
                                  json_spans(spans + s->nsrc, s->ndst)));
    }
    return all;
}

static json_t *json_price(const struct plan_report *r, const struct price *p)
{
    const double width = r->job.width;

    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:f, s:o, s:f}", "piece_bytes",
                     json_u64(p->length * r->job.width), "pieces", json_u64(p->pieces), "depth",
                     json_u64(p->depth), "messages", p->cost.messages, "sent_bytes",
                     p->cost.sent * width, "touched_bytes", p->cost.touched * width, "peak_bytes",
                     json_u64(p->cost.peak * r->job.width), "time_us", p->us);
}

static json_t *json_rows(const struct plan_report *r)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < r->nrows; i++) {
        const struct plan_row *row = &r->rows[i];

        all =
            with(all, json_pack("{s:s, s:b, s:o}", "name", row->algorithm->name, "fits", row->fits,
                                "price", row->priced ? json_price(r, &row->price) : json_null()));
    }
    return all;
}

int plan_print_json(const struct plan_report *r, FILE *out, struct error *e)
{
    const struct plan_options *o = &r->options;
    json_t *root = json_pack(
        "{s:s, s:s, s:o, s:o, s:o, s:f, s:f, s:o, s:o, s:o, s:o}", "collective",
        collective_get(o->kind)->name, "dtype", dtype_get(o->dtype)->name, "nodes",
        json_u64(o->nnodes), "ranks_per_node", json_u64(o->ranks), "bytes", json_u64(o->bytes),
        "bound_latency_us", price_bound_latency(&r->job, &r->table.machine), "bound_bandwidth_us",
        price_bound_link(&r->job, &r->table.machine), "algorithms", json_rows(r), "algorithm",
        r->shown ? json_string(r->shown->algorithm->name) : json_null(), "node", json_u64(o->node),
        "steps", json_steps(&r->steps));

    return json_write(root, out, e);
}
