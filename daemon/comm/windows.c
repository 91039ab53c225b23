#include "daemon/comm/windows.h"

#include "daemon/comm/op_private.h"

bool arrival_has_window(const struct arrival *a)
{
    return a->stage.in_window || a->stage.out_window;
}

static uint64_t power_of_two_below(uint64_t n)
{
    return n ? 1ull << (63 - __builtin_clzll(n)) : 1;
}

uint64_t windows_piece(const struct op *op)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < op->nparts; i++) {
        const struct run_stage *s = &op->arrivals[i]->stage;

        if (s->in_window)
            least = MIN(least, s->in_window);
        if (s->out_window)
            least = MIN(least, s->out_window);
    }
    return least == UINT64_MAX ? 0 : least / WINDOW_PIECES;
}

uint64_t windows_least_piece(const struct op *op)
{
    uint64_t least = windows_piece(op);

    for (uint32_t i = 0; op_is_wide(op) && i < comm_nnodes(op->comm); i++) {
        const uint64_t piece = op->remotes[i] ? op->remotes[i]->piece : 0;

        if (piece && (!least || piece < least))
            least = piece;
    }
    return least;
}

int windows_fit(struct op *op, struct error *e)
{
    const uint64_t chunk_bytes = comm_frame(op->comm).table->chunk_bytes;
    struct arrival *a = op->arrivals[0];
    const uint64_t piece = windows_least_piece(op);
    struct recipe *fitting;
    int r;

    if (!piece)
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
        const struct arrival *a = op->arrivals[i];

        if (a->member && arrival_has_window(a))
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
