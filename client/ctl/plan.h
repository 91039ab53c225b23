/*
 * rucclctl plan: what an operation between nodes would do and take, by every algorithm there is.
 * Asks no daemon: it plans and prices as the daemon does, with the same code.
 */
#ifndef CLIENT_CTL_PLAN_H
#define CLIENT_CTL_PLAN_H

#include <stdio.h>

#include "daemon/plan/choice.h"

/* What was asked for. `bytes` is what chunks cut: of one rank, or of a pair for the exchanges. */
struct plan_options {
    enum collective_id kind;
    enum dtype_id dtype;
    enum operator_id op;
    uint32_t nnodes, ranks, node; /* `node`: whose steps are shown */
    uint64_t bytes, budget;
    struct machine machine; /* what is 0 is the tuning file's, or the default */
    const char *tuning;     /* a path; NULL: none */
    const char *algorithm;  /* forced; NULL: none */
    bool json;
};

/* An algorithm for that collective. */
struct plan_row {
    const struct algorithm *algorithm;
    bool fits, priced; /* keeps the canonical order; has a piece that is within the budget */
    struct price price;
};

#define PLAN_ROWS_MAX 8u

struct plan_report {
    struct plan_options options;
    struct table table;
    struct job job;
    struct plan_row rows[PLAN_ROWS_MAX];
    uint32_t nrows;
    const struct plan_row *shown; /* the one chosen; NULL: nothing is moved */
    struct plan steps;            /* of one piece, of `shown` and options.node */
};

/* argv[0] is "plan", and `ret` points into argv. Return: 0, or -ERROR_INVALID_ARGUMENT. */
int plan_parse(int argc, char **argv, struct plan_options *ret, struct error *e);

/* Reads the tuning file. Return: 0, or -code worded in `e`; the report is for plan_report_fini() in
 * any case. */
int plan_report(const struct plan_options *o, struct plan_report *ret, struct error *e);
void plan_report_fini(struct plan_report *r);

void plan_print_text(const struct plan_report *r, FILE *out);
int plan_print_json(const struct plan_report *r, FILE *out, struct error *e);

#endif
