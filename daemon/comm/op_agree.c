/* How the ranks of an operation agree: what other nodes are told, and what all come to. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/comm/gather.h"
#include "daemon/comm/op_private.h"
#include "daemon/comm/talk.h"
#include "daemon/comm/windows.h"

struct frame comm_frame(const struct comm *c)
{
    const struct nodes *n = c->nodes;

    return (struct frame){ .table = n ? &n->table : &c->comms->table,
                           .nodes = n ? n->placement : NULL,
                           .node = n ? n->own : 0,
                           .forced = c->algorithm };
}

/* ---- views */

/* Of the ranks here, or (`all`) of every rank. Return: how many, or -ERROR_NO_MEMORY. */
static int fill_views(const struct op *op, bool all, struct view **ret, struct error *e)
{
    const struct nodes *n = op->comm->nodes;
    const uint32_t nviews = all ? op->comm->nranks : op->nparts;
    struct view *views = malloc(nviews * sizeof(*views));

    if (!views)
        return error_set(e, ERROR_NO_MEMORY, "no memory to compare the ranks");
    for (uint32_t i = 0; i < nviews; i++) {
        const uint32_t node = all ? n->placement->nodes[i] : 0;
        const uint32_t part = all ? n->placement->index[i] : i;

        views[i] = all && node != n->own ? remote_view(op->remotes[node], i, part)
                                         : view_of(op->arrivals[part]);
    }
    *ret = views;
    return (int)nviews;
}

/* ---- what follows once all agree */

static int make_exchange(struct op *op, const struct view *views)
{
    const uint32_t n = op->comm->nranks;
    const struct descriptor *d = views[0].d;
    const uint64_t **rows = calloc(n, sizeof(*rows));
    uint64_t *even = malloc(n * sizeof(*even));
    int r = -ENOMEM;

    if (rows && even) {
        for (uint32_t i = 0; i < n; i++) {
            even[i] = d->shape.axes[0] / n;
            rows[i] = d->kind == COLLECTIVE_ALL_TO_ALL ? even : views[i].counts;
        }
        r = exchange_new(n, rows, &op->exchange);
    }
    free(rows);
    free(even);
    return r;
}

void op_take_choice(struct op *op, const struct choice *c)
{
    op->algorithm = c->algorithm;
    op->chunking = c->chunking;
    op->depth = c->depth;
}

static int decide_exchange(struct op *op, const struct view *views, struct error *e)
{
    const struct frame f = comm_frame(op->comm);
    struct choice_spec spec = { .d = &op->arrivals[0]->d };
    struct choice choice;
    int r;

    r = make_exchange(op, views);
    if (r < 0)
        return op_system_error(op, -r, e);
    spec.rows_max = exchange_rows_max(op->exchange);
    r = choice_make(&spec, &f, &choice, e);
    if (r == 0)
        op_take_choice(op, &choice);
    return r;
}

/* What moves, in which chunks, by which algorithm. All ranks get the same answer. */
static int decide(struct op *op, const struct view *views, struct error *e)
{
    const struct frame f = comm_frame(op->comm);
    const struct arrival *a = op->arrivals[0];
    struct recipe *recipe;
    int r;

    if (a->starts) {
        if (!op->persistent)
            op->persistent = persistent_ref(persistent_find(op->comm, a->starts));
        recipe = op->persistent->recipe;
    } else if (!a->recipe) {
        return decide_exchange(op, views, e);
    } else {
        r = windows_fit(op, e);
        if (r < 0)
            return r;
        recipe = a->recipe;
    }
    r = recipe_decide(recipe, &f, e);
    if (r == 0)
        op_take_choice(op, &recipe->choice);
    return r;
}

/* ---- what this node asks */

/* Whether its parts ask for the same, so that one of them speaks for all. */
static bool speaks_as_one(const struct op *op)
{
    struct error unlike = { 0 };
    struct view *views;
    bool one;
    int n;

    if (arrivals_alike(op->arrivals, op->nparts))
        return true;
    if (op->nparts > 1 && collective_get(op_kind(op)) &&
        collective_get(op_kind(op))->shape == SHAPE_EXCHANGE)
        return false;
    n = fill_views(op, false, &views, &unlike);
    if (n < 0)
        return false;
    one = agreement_check(views, (uint32_t)n, &unlike) == 0;
    free(views);
    return one;
}

/* The recipe of parts that ask for the same; NULL: there is none. */
static struct recipe *common_recipe(const struct op *op)
{
    const struct arrival *a = op->arrivals[0];
    const struct persistent *p;

    p = a->starts ? persistent_find(op->comm, a->starts) : NULL;
    return p ? p->recipe : a->recipe;
}

static uint64_t plan_digest(const struct recipe *recipe)
{
    return recipe && recipe->decided ? recipe->choice.digest : 0;
}

/* Whether all that is sent may be enclosed in what the nodes tell each other. Those that plan alike
 * may differ in it, but not where it is more than can be enclosed. */
static bool may_enclose(const struct recipe *recipe)
{
    const struct choice *c = &recipe->choice;

    return c->chunking.chunks == 1 && c->piece_length >= c->chunking.length &&
           c->chunking.n * recipe->width <= PEER_ENCLOSED_MAX;
}

/* How it may begin before all have agreed: it is the next one to run. RUN_AT_ONCE: it may not. */
static enum run_start early_start(const struct op *op, const struct recipe *recipe)
{
    if (list_first(&op->comm->ops, struct op, link) != op || op->arrivals[0]->makes_persistent ||
        !recipe->choice.algorithm || !recipe->choice.chunking.chunks || windows_least_piece(op))
        return RUN_AT_ONCE;
    if (!may_enclose(recipe) || nodes_are_many(op->comm->nodes))
        return RUN_EARLY;
    return recipe->contents->sends_first ? RUN_ENCLOSING : RUN_AT_ONCE;
}

/* Starts to run what all will probably agree on, as far as no output is written. Return: 0, or
 * -code worded in `e`. */
static int start_early(struct op *op, const struct recipe *recipe, enum run_start start,
                       struct error *e)
{
    const struct arrival *a = op->arrivals[0];
    int r;

    if (start == RUN_ENCLOSING)
        op_make_letters(op);
    if (a->starts)
        op->persistent = persistent_ref(persistent_find(op->comm, a->starts));
    op_take_choice(op, &recipe->choice);
    r = op_start_run(op, start);
    if (r == ENGINE_PENDING)
        return 0;
    op_run_error(op, r < 0 ? -r : -run_result(op->run), e);
    op_give_run(op);
    return -(int)e->code;
}

/* Whether what the other nodes have to know fits into a message. */
static int check_counts_fit(const struct op *op, struct error *e)
{
    const uint64_t counts = 2 * (uint64_t)op->nparts * op->comm->nranks; /* expected ones too */

    if (op_kind(op) != COLLECTIVE_ALL_TO_ALL_V ||
        counts * sizeof(uint64_t) < PEER_MESSAGE_BYTES / 2)
        return 0;
    return error_set(e, ERROR_QUOTA,
                     "%u of %u ranks are on one node, and their counts are more than a message "
                     "takes; use more nodes, or all_to_all",
                     op->nparts, op->comm->nranks);
}

/* What this node has against it, if anything. */
static int check_here(struct op *op, struct recipe *recipe, struct error *e)
{
    const struct frame f = comm_frame(op->comm);
    enum run_start start;

    if (!op->arrivals[0]->starts && agreement_check_memory(op->arrivals, op->nparts, e) < 0)
        return -(int)e->code;
    if (check_counts_fit(op, e) < 0)
        return -(int)e->code;
    if (!recipe || recipe_decide(recipe, &f, NULL) < 0)
        return 0;
    start = early_start(op, recipe);
    return start == RUN_AT_ONCE ? 0 : start_early(op, recipe, start, e);
}

static bool break_for(struct op *op, int r, uint64_t now)
{
    struct error e = { 0 };

    if (r == 0)
        return false;
    op_system_error(op, -r, &e);
    op_break(op, &e, now);
    return true;
}

bool op_tell(struct op *op, uint64_t now)
{
    struct recipe *recipe;
    struct error e = { 0 };

    op->alike = speaks_as_one(op);
    recipe = op->alike ? common_recipe(op) : NULL;
    if (check_here(op, recipe, &e) < 0) {
        op->verdict = malloc(sizeof(e));
        if (op->verdict)
            *op->verdict = e;
    }
    op->plan = plan_digest(recipe);
    op->told = true;
    return !break_for(op, e.code && !op->verdict ? -ENOMEM : talk_agree(op), now);
}

bool op_pass(struct op *op, uint64_t now)
{
    return !break_for(op, gather_pass(op), now);
}

/* ---- the verdict */

/* What a node alone can see against it. */
static int check_verdicts(const struct op *op, struct error *e)
{
    const struct nodes *n = op->comm->nodes;

    if (!op_is_wide(op))
        return op->arrivals[0]->starts ? 0 /* a start's tensors were compared when it was made */
                                       : agreement_check_memory(op->arrivals, op->nparts, e);
    for (uint32_t i = 0; i < n->placement->nnodes; i++) {
        const struct error *verdict = i == n->own ? op->verdict : op->remotes[i]->verdict;

        if (!verdict)
            continue;
        *e = *verdict;
        return -(int)verdict->code;
    }
    return 0;
}

/* On one node parts that are alike need no views. */
static int compare(const struct op *op, struct view **ret_views, struct error *e)
{
    struct view *views = NULL;
    int r = 0, n = 0;

    if (op_is_wide(op) || !arrivals_alike(op->arrivals, op->nparts)) {
        n = fill_views(op, op_is_wide(op), &views, e);
        if (n < 0)
            return n;
        *ret_views = views;
        r = agreement_check(views, (uint32_t)n, e);
    }
    if (r == 0)
        r = check_verdicts(op, e);
    return r < 0 || !views ? r : agreement_check_counts(views, (uint32_t)n, e);
}

static uint64_t plan_of(const struct op *op, uint32_t node, uint64_t own)
{
    return node == op->comm->nodes->own ? own : op->remotes[node]->plan;
}

/* All nodes have made the same choice, each by itself; if not, they are not of one mind, and one of
 * them of another version. */
static int check_plans(const struct op *op, struct error *e)
{
    const struct nodes *n = op->comm->nodes;
    const uint64_t own = plan_digest(common_recipe(op));

    for (uint32_t i = 1; i < n->placement->nnodes; i++)
        if (plan_of(op, i, own) != plan_of(op, 0, own))
            return error_set(e, ERROR_VERSION,
                             "nodes %s and %s would move it in different ways; all daemons should "
                             "be of one version",
                             n->items[0].host, n->items[i].host);
    return 0;
}

/* Return: 0, or -code; *ret_compared: whether the requests themselves are in order. */
static int judge(struct op *op, bool *ret_compared, struct error *e)
{
    struct view *views = NULL;
    int r = compare(op, &views, e);

    *ret_compared = r == 0;
    if (r == 0 && op_is_wide(op))
        r = check_plans(op, e);
    if (r == 0)
        r = decide(op, views, e);
    free(views);
    return r;
}

bool op_agree(struct op *op, uint64_t now)
{
    bool compared;
    struct error e;
    int r;

    op->agreed_us = now;
    if (!op->cut)
        op->deadline_us = TIME_NEVER;
    op_set_state(op, OP_AGREEING);

    error_clear(&e);
    r = judge(op, &compared, &e);
    if (r == -ERROR_NO_MEMORY && op_is_wide(op))
        op_break(op, &e, now); /* other nodes may have come to another end */
    else if (r < 0)
        op_disagree(op, &e, compared, now);
    return r == 0;
}
