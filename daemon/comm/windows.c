#include "daemon/comm/windows.h"

#include "daemon/comm/op_private.h"

static uint64_t power_of_two_below(uint64_t n)
{
    return n ? 1ull << (63 - __builtin_clzll(n)) : 1;
}

/* The shorter one of a part's windows; UINT64_MAX: it has none. */
static uint64_t shortest(const struct arrival *a)
{
    const struct run_stage *s = &a->stage;

    return MIN(s->in_window ? s->in_window : UINT64_MAX,
               s->out_window ? s->out_window : UINT64_MAX);
}

uint64_t windows_piece(const struct op *op)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < op->nparts; i++)
        least = MIN(least, shortest(op->arrivals[i]));
    return least == UINT64_MAX ? 0 : power_of_two_below(least / WINDOW_PIECES);
}

uint64_t windows_lesser(uint64_t a, uint64_t b)
{
    return a && b ? MIN(a, b) : a + b;
}

uint64_t windows_least_piece(const struct op *op)
{
    return windows_lesser(windows_piece(op), op->piece);
}

int windows_fit(struct op *op, struct error *e)
{
    const uint64_t chunk_bytes = comm_frame(op->comm).table->chunk_bytes;
    struct arrival *a = op->arrivals[0];
    const uint64_t piece = windows_least_piece(op);
    struct recipe *fitting;
    int r;

    if (!piece || a->recipe->d.budget != BUDGET_NONE)
        return 0;
    r = recipes_find(&op->comm->recipes, &a->recipe->d,
                     MIN(piece, power_of_two_below(chunk_bytes / a->recipe->width)), &fitting, e);
    if (r < 0)
        return r;
    recipe_unref(a->recipe);
    a->recipe = fitting;
    return 0;
}

void windows_tell_progress(const struct op *op, uint64_t chunks)
{
    for (uint32_t i = 0; i < op->nparts && chunks < op->chunking.chunks; i++) {
        struct arrival *a = op->arrivals[i];
        const uint64_t piece = MAX(shortest(a) / op->chunking.length / WINDOW_PIECES, 1);

        if (!a->member || !arrival_has_window(a) || chunks / piece == a->told / piece)
            continue;
        a->told = chunks;
        op->comm->comms->events.progressed(a->member->owner, a->member, a->serial,
                                           chunks * op->chunking.length);
    }
}

void op_staged(struct op *op, uint32_t part, uint64_t in_ready, uint64_t out_taken, uint64_t now)
{
    struct run_stage *s = &op->arrivals[part]->stage;

    s->in_ready = MAX(s->in_ready, in_ready);
    s->out_taken = MAX(s->out_taken, out_taken);
    if (op->state == OP_RUNNING && op->run &&
        engine_resume(op->comm->comms->config.engine, op->run) != ENGINE_PENDING)
        op_ended(op, run_result(op->run), now);
}

void windows_add_laggards(const struct op *op, struct text *t, struct error *e)
{
    const uint64_t chunk = run_chunks_done(op->run);
    const uint64_t end = chunk_first(&op->chunking, chunk) + chunk_count(&op->chunking, chunk);
    uint32_t n = 0;

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct arrival *a = op->arrivals[i];

        if (!a || !a->member || !run_stage_holds(&a->stage, end))
            continue;
        error_add_rank(e, a->rank);
        if (n++ >= 4)
            continue;
        text_add(t, "%s", n > 1 ? ", " : "; its memory is waited for: ");
        text_add_rank(t, a->rank, a->member->pid, op->comm->comms->config.host);
    }
}
